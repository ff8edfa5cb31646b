"""Asks the action controllers that a group concerns at once, each under its own deadline."""

from __future__ import annotations

import asyncio

import msgspec

from moorage.bus import Bus, Reply, new_id, subjects
from moorage.collections import LruDict
from moorage.model.claims import Decision, decision_document
from moorage.model.concerns import concerns_of, is_concerned
from moorage.model.controllers import Controller
from moorage.model.desired_state import ActionAsk, Contribution
from moorage.model.groups import GroupRecord
from moorage.parsing.redaction import redact

from .core.contributions import ActionResult, Contributed, combine, read_answer

_encode = msgspec.json.Encoder().encode
#: Questions whose answers are kept for controllers with the policy `stale-ok`.
_KEPT_QUESTIONS = 1024


class ActionFanout:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last = LruDict[tuple[str, int], dict[str, list[Contribution]]](_KEPT_QUESTIONS)
        self.registry: dict[str, Controller] = {}

    async def contributions(self, record: GroupRecord, decision: Decision) -> Contributed:
        found = concerns_of(record.resolved.apps, record.resolved.intents)
        controllers = [
            controller
            for _, controller in sorted(self.registry.items())
            if controller.actions and is_concerned(controller.action_concerns, found)
        ]
        if not controllers:
            return Contributed([], [], [])
        replies = await self._ask(record, decision, controllers)
        answers = {name: _answer_of(name, reply, record) for name, reply in replies.items()}
        question = (decision.group, decision.revision)
        last = self._last.get(question, {})
        if any(controller.policy == "stale-ok" for controller in controllers):
            new = {name: answer.contributions for name, answer in answers.items() if not answer.code}
            self._last[question] = {**last, **new}
        return combine(controllers, answers, last)

    async def _ask(self, record: GroupRecord, decision: Decision, controllers: list[Controller]) -> dict[str, Reply]:
        """Each request carries its controller's own budget, so controllers with equal deadlines get equal bytes."""
        by_deadline: dict[float, dict[str, tuple[str, float]]] = {}
        for controller in controllers:
            timeout = controller.deadline_ms / 1e3
            by_deadline.setdefault(controller.deadline_ms, {})[controller.name] = (
                subjects.actions(controller.name),
                timeout,
            )
        gathered = await asyncio.gather(
            *(
                self._bus.ask_many(requests, _request(record, decision, deadline))
                for deadline, requests in by_deadline.items()
            )
        )
        return {name: reply for replies in gathered for name, reply in replies.items()}


def _request(record: GroupRecord, decision: Decision, budget_ms: float) -> bytes:
    ask = ActionAsk(
        id=new_id(),
        cause=decision.id,
        group=decision.group,
        revision=decision.revision,
        budget_ms=budget_ms,
        decision=decision_document(decision),
        intents=list(record.resolved.intents),
        manifests=record.manifests,
        apps=record.resolved.apps,
    )
    request = _encode(ask)
    if b'"Secret"' not in request:  # no object has that kind, which is quicker to see than to look at every field
        return request
    ask.manifests = redact(record.manifests)
    return _encode(ask)


def _answer_of(name: str, reply: Reply, record: GroupRecord) -> ActionResult:
    if reply.outcome != "answered":
        return ActionResult([], "ControllerTimeout", f"{name} did not answer what to write: {reply.error}")
    return read_answer(name, reply.data, record.manifests)
