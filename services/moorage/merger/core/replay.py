"""Makes a decision again from its record and compares: the same proposal, over a fleet and a ledger made from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from moorage.candidates import value_parts
from moorage.fit import PackingSolutions
from moorage.fit.budget import BudgetExceeded
from moorage.fleet import ExcerptFleet, Malformed
from moorage.ledger import Ledger
from moorage.ledger.records import digest, excerpt_of, record_of
from moorage.model.claims import Claim, Decision
from moorage.model.records import DecisionRecord, Difference, RecordBatch, RecordedPacking, Replay
from moorage.model.replies import Reply

from .propose import NameOrder, ProposalRefused, TriedChoices, propose
from .recording import LIMITS
from .responses import ControllerResults, Replies, gather

#: Differences that are told. One cause may have many effects.
MOST = 32


def replay(batch: RecordBatch, ident: str, release: str) -> Replay:
    """Decides again from the record of one decision. `release` is the version of this program. Raises NotRecorded or
    msgspec.DecodeError."""
    record = record_of(batch, ident)
    damaged = list(_damaged(batch, ident, record))
    try:
        found = [*damaged, *_Replayed(record, batch.answers).differences()]
    except (Malformed, msgspec.DecodeError, ValueError, LookupError) as error:
        found = [*damaged, Difference(what="record", recorded="cannot be read", computed=str(error)[:300])]
    decision = record.decision
    return Replay(
        decision=ident,
        group=decision.group,
        revision=decision.revision,
        same=not found,
        differences=found[:MOST],
        unsure=list(_unsure(record, release)),
        release=record.release,
    )


def _damaged(batch: RecordBatch, ident: str, record: DecisionRecord) -> Iterator[Difference]:
    """Yields what does not have the hash under which it was stored."""
    hashed = digest(batch.records[ident])
    if batch.digests.get(ident) != hashed:
        yield Difference(what="hash of the record", recorded=batch.digests.get(ident, "none"), computed=hashed)
    for name, reply in record.replies.items():
        for stored in filter(None, (reply.answer, reply.stale)):
            data = batch.answers.get(stored)
            if data is None or digest(data) != stored:
                computed = "missing" if data is None else digest(data)
                yield Difference(what=f"hash of the answer of {name}", recorded=stored, computed=computed)


def _unsure(record: DecisionRecord, release: str) -> Iterator[str]:
    """Yields what keeps a replay from being exact."""
    for packing in record.packings:
        if packing.gave_up is not None:
            yield (
                f"a search for a packing was stopped by time after {packing.gave_up * 1e3:.0f} ms; that it found nothing is "
                "taken from the record, and another run may find one"
            )
    if record.release != release:
        yield f"the decision was made by release {record.release}, this is {release}"
    for name, limit in LIMITS.items():
        if (then := record.limits.get(name)) != limit:
            yield f"the limit of {name} was {then} and is {limit}"


class _Replayed:
    """A record, and the same decision made again from it."""

    def __init__(self, record: DecisionRecord, answers: Mapping[str, bytes]) -> None:
        self.record = record
        self.fleet = ExcerptFleet(excerpt_of(record))
        ledger = Ledger.decode(record.own) if record.own else Ledger()
        self.solutions = PackingSolutions()
        self.solutions.solved.update((packing.problem, _packed(packing)) for packing in record.packings)
        self.tried = TriedChoices()
        self.computed = propose(
            record.revision,
            recorded_results(record, answers, self.fleet),
            self.fleet,
            ledger,
            NameOrder(),
            record.decision.id,
            self.solutions,
            self.tried,
        )

    def differences(self) -> Iterator[Difference]:
        for resource, clusters in self.fleet.different_sums().items():
            for cluster in clusters:
                yield Difference(
                    what=f"free {resource} of {cluster}", recorded="its sum", computed="not that of its nodes"
                )
        yield from self._choices()
        if isinstance(self.computed, ProposalRefused):
            codes = ", ".join(dict.fromkeys(reason.code for reason in self.computed.reasons))
            yield Difference(what="decision", recorded="placed", computed=f"refused: {codes}")
            return
        yield from _claims(self.record.decision, self.computed)
        for what, of in _FIELDS.items():
            if (recorded := of(self.record.decision)) != (computed := of(self.computed)):
                yield Difference(what=what, recorded=_text(recorded), computed=_text(computed))

    def _choices(self) -> Iterator[Difference]:
        """Compares the choices that were tried, with the values of the best clusters."""
        recorded, computed = self.record.tried, self.tried.choices
        if len(recorded) != len(computed):
            yield Difference(what="choices tried", recorded=str(len(recorded)), computed=str(len(computed)))
        for number, (before, now) in enumerate(zip(recorded, computed, strict=False), 1):
            for app, shaped in enumerate(self.record.revision.apps):
                what = f"choice {number} for {shaped.name}"
                if (was := _at(before.clusters, app)) != (found := _at(now.clusters, app)):
                    yield Difference(what=what, recorded=self._named(was), computed=self._named(found))
                if (was := _at(before.ranked, app)) != (found := now.ranked(app)):
                    yield Difference(what=f"values of {what}", recorded=self._valued(was), computed=self._valued(found))
            if before.failed != now.failed:
                what = f"clusters without room in choice {number}"
                yield Difference(what=what, recorded=self._named(before.failed), computed=self._named(now.failed))

    def _named(self, clusters: Sequence[int]) -> str:
        return ", ".join(self.fleet.names[cid] if cid < self.fleet.size else str(cid) for cid in clusters) or "none"

    def _valued(self, values: Sequence[tuple[int, int]]) -> str:
        words = []
        for cid, value in values:
            parts = value_parts(value)
            words.append(f"{self._named([cid])} (score {parts.score:g}, tie {parts.tie:g})")
        return ", ".join(words) or "none"


def _at(items: Sequence[Any], number: int) -> Any:
    return items[number] if number < len(items) else []


_FIELDS: dict[str, Callable[[Decision], Any]] = {
    "replicas": lambda decision: decision.replicas,
    "scores": lambda decision: decision.scores,
    "warnings": lambda decision: [warning.message for warning in decision.warnings],
    "fleet": lambda decision: decision.epoch,
}


def _claims(recorded: Decision, computed: Decision) -> Iterator[Difference]:
    before, now = _by_place(recorded), _by_place(computed)
    for place in {**before, **now}:
        was, found = before.get(place), now.get(place)
        if was is None or found is None or (was.id, was.slots, was.optional) != (found.id, found.slots, found.optional):
            yield Difference(what=place, recorded=_slots(was), computed=_slots(found))


def _by_place(decision: Decision) -> dict[str, Claim]:
    return {f"{claim.app} {claim.object} on {claim.cluster}".replace("  ", " "): claim for claim in decision.claims}


def _slots(claim: Claim | None) -> str:
    if claim is None:
        return "no claim"
    slots = [f"{slot.node} x{slot.count} {_text(slot.resources)}" for slot in claim.slots]
    granted = [f"{grant.need} {'granted' if grant.granted else 'not granted'}" for grant in claim.optional]
    return ", ".join([*slots, *granted]) or f"claim {claim.id}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _packed(packing: RecordedPacking) -> np.ndarray[Any, Any] | BudgetExceeded | None:
    if packing.gave_up is not None:
        return BudgetExceeded(packing.gave_up)
    if packing.packed is None:
        return None
    return np.frombuffer(packing.packed, np.int64).reshape(len(packing.problem[2]), -1)


def recorded_results(record: DecisionRecord, answers: Mapping[str, bytes], fleet: ExcerptFleet) -> ControllerResults:
    """Returns what the controllers said, read against the fleet as it was."""
    replies = {
        name: Reply(reply.outcome, answers.get(reply.answer, b""), reply.took_ms, reply.error)
        for name, reply in record.replies.items()
    }
    stale = {name: answers[reply.stale] for name, reply in record.replies.items() if reply.stale in answers}
    apps = [app.name for app in record.revision.apps]
    return gather(Replies(apps, record.controllers, replies, stale), fleet)
