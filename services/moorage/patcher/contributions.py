"""Action controllers: all asked at once, each under its own deadline; what their silence means is their policy's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.bus import Bus, Reply, new_id, subjects
from moorage.model.claims import Decision, decision_document
from moorage.model.controllers import Controller
from moorage.model.desired import ActionAnswer, ActionAsk, Contribution
from moorage.model.groups import GroupRecord
from moorage.model.reasons import Reason, Warn
from moorage.model.redaction import redacted

from .core.contribution_checks import disagreements, unusable

_answer = msgspec.json.Decoder(ActionAnswer).decode
_encode = msgspec.json.Encoder().encode
_KEEP = 1024


class Contributed(NamedTuple):
    """`reasons`: nothing is changed on any cluster because of these. `again`: asking once more may help."""

    contributions: list[Contribution]
    reasons: list[Reason]
    warnings: list[Warn]
    again: bool = False


def question(record: GroupRecord, decision: Decision, budget_ms: float) -> bytes:
    ask = ActionAsk(
        id=new_id(),
        cause=decision.id,
        group=decision.group,
        revision=decision.revision,
        budget_ms=budget_ms,
        decision=decision_document(decision),
        intents=list(record.resolved.intents),
        manifests=redacted(record.manifests),
        apps=record.resolved.apps,
    )
    return _encode(ask)


def gather(
    controllers: Iterable[Controller],
    replies: Mapping[str, Reply],
    manifests: Mapping[str, list[dict[str, Any]]],
    last: Mapping[str, list[Contribution]],
) -> tuple[Contributed, dict[str, list[Contribution]]]:
    """What all contribute together, and what each answered. `last`: earlier answers to the same question. Pure."""
    together: list[Contribution] = []
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    answered: dict[str, list[Contribution]] = {}
    again = False
    for controller in controllers:
        name, reply = controller.name, replies[controller.name]
        code, message, mine = _read(name, reply, manifests)
        if not code:
            answered[name] = mine
        elif controller.policy == "stale-ok" and name in last:
            mine = last[name]
            warnings.append(Warn(code=code, message=f"{message}; its last answer is used"))
        elif controller.policy == "required":
            reasons.append(Reason(code=code, by=name, message=message))
            again = True
            continue
        else:
            warnings.append(Warn(code=code, message=f"{message}; it is left out"))
            continue
        together += mine
    reasons += disagreements(together)
    return Contributed(together, reasons, warnings, again), answered


def _read(
    name: str, reply: Reply, manifests: Mapping[str, list[dict[str, Any]]]
) -> tuple[str, str, list[Contribution]]:
    """Code and message of what is wrong with a reply, or its contributions."""
    if reply.outcome != "answered":
        return "ControllerTimeout", f"{name} did not say what to write: {reply.error}", []
    if reply.data.startswith(b'{"problem"'):
        return "ControllerError", f"{name} refused the question", []
    try:
        answer = _answer(reply.data)
    except (msgspec.DecodeError, RecursionError) as error:
        return "ControllerError", f"{name} answered what cannot be read: {error}", []
    if answer.error:
        return "ControllerError", f"{name}: {answer.error}", []
    # The author is the controller that was asked, whatever its answer says.
    mine = [msgspec.structs.replace(contribution, by=name) for contribution in answer.contributions]
    if wrong := unusable(manifests, mine):
        return "ControllerError", wrong[0].message, []
    return "", "", mine


class ActionFanout:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last: OrderedDict[tuple[str, int], dict[str, list[Contribution]]] = OrderedDict()
        self.registry: dict[str, Controller] = {}

    async def contributions(self, record: GroupRecord, decision: Decision) -> Contributed:
        asked = [c for _, c in sorted(self.registry.items()) if c.actions]
        if not asked:
            return Contributed([], [], [])
        replies = await self._ask(record, decision, asked)
        key = (decision.group, decision.revision)
        found, answered = gather(asked, replies, record.manifests, self._last.get(key, {}))
        if any(c.policy == "stale-ok" for c in asked):
            self._last[key] = {**self._last.get(key, {}), **answered}
            self._last.move_to_end(key)
            if len(self._last) > _KEEP:
                self._last.popitem(last=False)
        return found

    async def _ask(self, record: GroupRecord, decision: Decision, controllers: list[Controller]) -> dict[str, Reply]:
        """All at once; each is told the time that it has itself, so those with the same time are asked the same."""
        asks: dict[float, dict[str, tuple[str, float]]] = {}
        for one in controllers:
            asks.setdefault(one.deadline_ms, {})[one.name] = (subjects.actions(one.name), one.deadline_ms / 1e3)
        answered = await asyncio.gather(
            *(self._bus.ask_many(some, question(record, decision, budget)) for budget, some in asks.items())
        )
        return {name: reply for replies in answered for name, reply in replies.items()}
