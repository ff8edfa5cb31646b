"""One group from question to commit: asks, proposes, holds the room, commits; again where others were faster."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from moorage.bus import Bus, Reply, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.fleet import Fleet
from moorage.ledger import (
    Capacity,
    Committed,
    Committer,
    Dropped,
    ExistingPlacement,
    Guard,
    Ledger,
    LedgerFollower,
    existing_placement,
)
from moorage.model.attempts import AppView, Attempt
from moorage.model.candidates import Ask
from moorage.model.claims import Decision, Withdrawal
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.reasons import Reason, Warn
from moorage.telemetry import tracing

from .core.propose import NameOrder, Proposal, ProposalRefused, propose
from .core.responses import ControllerResults, Replies, current, gather, open_to, reasons
from .durability import DurableRevisions
from .events import placed
from .metrics import DecisionMetrics

#: A decision may take the largest deadline and this much more; asking for reasons has to end a little before.
GRACE = 0.050
_MARGIN = 0.015
#: Others may take the room this often before the controllers are asked again.
RETRIES = 16
#: So often those are asked again who have not seen the newest clusters, and after so long: the news is on its way.
BEHIND, _BEAT = 3, 0.01
_REMEMBERED = 2048
_OVERTAKEN = "Overtaken"
_OVERTAKEN_OFTEN = "others took the room each time it was found, until the time was over; it is tried again at once"

_encode = msgspec.json.Encoder().encode


def settled(ledger: Ledger, group: str, revision: int) -> bool:
    """Decided at this revision or a later one, or withdrawn."""
    stands = ledger.standing.get(group)
    return ledger.ended_revisions.get(group, 0) >= revision or (stands is not None and stands.revision >= revision)


class _Overtaken:
    """Others were faster: the answers are from before."""


class Decider:
    def __init__(self, bus: Bus, fleet: Fleet, follower: LedgerFollower, capacity: Capacity) -> None:
        self.bus, self.fleet, self.follower, self.capacity = bus, fleet, follower, capacity
        self.committer = Committer(bus, follower, capacity)
        self.figures = DecisionMetrics(bus.vitals.registry)
        self.controllers: dict[str, Controller] = {}
        self._names = NameOrder()
        self._stale: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._deciding: dict[str, int] = {}
        self._took: dict[str, float] = {}

    @property
    def ledger(self) -> Ledger:
        return self.follower.ledger

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        record: Revision,
        cause: str,
        known: ExistingPlacement,
        controllers: Mapping[str, Controller],
        *,
        explain: bool = False,
        within: float | None = None,
    ) -> dict[str, Reply]:
        """All at once, each under its own deadline; `within` bounds them all."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        held = known.named(record.apps, self.fleet)
        by_deadline: dict[float, dict[str, tuple[str, float]]] = {}
        # Who took longest the last time hears it first.
        for name, controller in sorted(controllers.items(), key=lambda one: -self._took.get(one[0], 0.0)):
            deadline = controller.deadline_ms / 1e3
            deadline = deadline if within is None else min(deadline, within)
            by_deadline.setdefault(deadline, {})[name] = (subjects.candidates(name), deadline)
        ident = new_id()
        # Alone there is nobody to go together with.
        together = {n for n, c in controllers.items() if c.together} if len(self._deciding) > 1 else ()

        async def ask(deadline: float, asks: Mapping[str, tuple[str, float]]) -> dict[str, Reply]:
            message = Ask(
                id=ident,
                cause=cause,
                group=record.group,
                revision=record.revision,
                budget_ms=round((deadline - (loop.time() - start)) * 1e3, 3),
                epoch=str(self.fleet.epoch),
                tenant=record.tenant,
                apps=record.apps,
                intents=record.intents,
                explain=explain,
                held=held,
            )
            return await self.bus.ask_many(asks, _encode(message), ident=ident, together=together)

        if len(by_deadline) == 1:
            ((deadline, asks),) = by_deadline.items()
            return await ask(deadline, asks)
        replies: dict[str, Reply] = {}
        for some in await asyncio.gather(*(ask(deadline, asks) for deadline, asks in by_deadline.items())):
            replies.update(some)
        return replies

    async def gather(
        self,
        record: Revision,
        cause: str,
        known: ExistingPlacement,
        *,
        explain: bool = False,
        within: float | None = None,
    ) -> ControllerResults:
        controllers = {name: c for name, c in self.controllers.items() if c.placement}
        began = time.perf_counter()
        with tracing.span("ask"):
            replies = await self._ask(record, cause, known, controllers, explain=explain, within=within)
        self.figures.asked(time.perf_counter() - began)
        self._took.update((name, reply.took_ms) for name, reply in replies.items())
        stale: dict[str, bytes] = {}
        for name in controllers:
            data = self._stale.get((name, record.group, record.revision))
            if data is not None:
                stale[name] = data
        heard = Replies([app.name for app in record.apps], list(controllers.values()), replies, stale)
        got = gather(heard, self.fleet)
        for name, data in got.fresh.items():
            self._stale[name, record.group, record.revision] = data
            self._stale.move_to_end((name, record.group, record.revision))
        while len(self._stale) > _REMEMBERED:
            self._stale.popitem(last=False)
        return got

    async def _explained(
        self, record: Revision, cause: str, known: ExistingPlacement, got: ControllerResults, until: float
    ) -> list[Reason]:
        """Nothing could be placed: those who answered are asked for their numbers, in the time that is left."""
        answered = {a.name for a in got.asked if a.outcome == "answered"}
        controllers = {n: c for n, c in self.controllers.items() if n in answered}
        left = until - asyncio.get_running_loop().time()
        if controllers and left > 0:
            replies = await self._ask(record, cause, known, controllers, explain=True, within=left)
            again = gather(Replies(got.heard.apps, list(controllers.values()), replies, {}), self.fleet)
            got.answers.update(again.answers)
        return reasons(got, self.fleet)

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def decide(
        self,
        record: Revision,
        cause: str,
        ahead: DurableRevisions | None = None,
        confined: list[bytes | None] | None = None,
    ) -> Attempt | None:
        """None: there is nothing to decide any more, or somebody in this process is at it. `ahead`: the record is being
        written; whether it stands is heard there. `confined`: filled with `open_to` where it is refused."""
        group = record.group
        if self._deciding.get(group, 0) >= record.revision:
            return None
        self._deciding[group] = record.revision
        began = time.perf_counter()
        try:
            attempt = await self._decide(record, cause, ahead, confined)
            self.figures.decided(time.perf_counter() - began)
            self.figures.outcome(attempt)
            return attempt
        finally:
            if self._deciding.get(group) == record.revision:
                del self._deciding[group]

    async def _decide(
        self, record: Revision, cause: str, ahead: DurableRevisions | None, confined: list[bytes | None] | None
    ) -> Attempt | None:
        loop = asyncio.get_running_loop()
        if settled(self.ledger, record.group, record.revision):
            return None
        until = loop.time() + self._longest() + GRACE - _MARGIN
        known = existing_placement(record, self.fleet, self.ledger)
        got = await self.gather(record, cause, known)
        reached("merger.answered")
        if ahead is not None and not await ahead.wait_durable(cause):
            return None
        again = 0
        while True:
            outcome = await self._tried(record, got)
            if outcome is None or isinstance(outcome, Attempt):
                return outcome
            if isinstance(outcome, ProposalRefused) and (outcome.final or again == BEHIND or not self._late(got)):
                break
            # The answers are from before others took the room, or before clusters joined: once more, if whoever takes
            # longest can still answer in time.
            if until - loop.time() < max(self._took.values(), default=0.0) / 1e3 + _BEAT:
                if not isinstance(outcome, ProposalRefused):
                    outcome = ProposalRefused([Reason(code="Overtaken", by="merger", message=_OVERTAKEN_OFTEN)])
                break
            if isinstance(outcome, ProposalRefused):
                again += 1
                await asyncio.sleep(_BEAT)
            known = existing_placement(record, self.fleet, self.ledger)
            got = await self.gather(record, cause, known, within=until - loop.time())
        if confined is not None and not got.missing:
            confined[:] = open_to(got, len(record.apps), self.controllers)
        why: list[Reason] = []
        if not (outcome.final or got.missing):
            why = await self._explained(record, cause, known, got, until)
        return _refused(record, outcome, got, why, str(self.fleet.epoch))

    async def _tried(self, record: Revision, got: ControllerResults) -> Attempt | ProposalRefused | _Overtaken | None:
        """Placed, why not, that somebody else was faster; None: there is nothing to decide any more."""
        decision: Decision | None
        refusal = ProposalRefused([])
        traceparent = tracing.traceparent()

        def decided() -> Decision | None:
            """By what is known now; held."""
            nonlocal got, decision, refusal
            decision = None
            got = current(got, self.fleet)
            began = time.perf_counter()
            proposal = propose(record, got, self.fleet, self.ledger, self._names, new_id())
            self.figures.proposed(time.perf_counter() - began)
            if isinstance(proposal, ProposalRefused):
                refusal = proposal
                return None
            decision = proposal.decision
            decision.traceparent = traceparent
            self.capacity.hold(decision)
            return decision

        for attempt in range(RETRIES):
            if settled(self.ledger, record.group, record.revision):
                return None
            guard = self._guard(record)
            with tracing.span("propose"):
                held = decided()
            if held is None:
                return _Overtaken() if attempt and not refusal.final else refusal
            began = time.perf_counter()
            with tracing.span("commit"):
                result = await self.committer.commit(held, guard, decided)
            self.figures.committed(time.perf_counter() - began)
            if isinstance(result, Committed):
                reached("merger.committed")
                assert decision is not None
                return placed(decision, result.seq)
            if result.code == "DecisionTooLarge":
                return ProposalRefused([Reason(code=result.code, message=result.message, by="merger")], final=True)
            if result.code:
                break  # somebody decided or withdrew the group meanwhile
        return _Overtaken()

    def _late(self, got: ControllerResults) -> bool:
        """Whether clusters joined that somebody has not looked at."""
        return any(self.fleet.joined_after(answer.epoch) is not None for answer in got.answers.values())

    def _longest(self) -> float:
        """Seconds that whoever is asked may take at most."""
        return max((c.deadline_ms for c in self.controllers.values() if c.placement), default=0.0) / 1e3

    def _guard(self, record: Revision) -> Guard:
        """The group's standing decision and withdrawn revision are what was seen when this was decided."""
        ledger = self.ledger
        stands = ledger.standing.get(record.group)
        seen = (stands.id if stands else "", ledger.ended_revisions.get(record.group, 0))

        def guard(now: Ledger) -> Dropped | None:
            stands = now.standing.get(record.group)
            if (stands.id if stands else "", now.ended_revisions.get(record.group, 0)) == seen:
                return None
            return Dropped(_OVERTAKEN, "the group was decided or withdrawn meanwhile")

        return guard

    async def withdraw(self, group: str, revision: int) -> None:
        def guard(now: Ledger) -> Dropped | None:
            return Dropped(_OVERTAKEN, "withdrawn already") if now.ended_revisions.get(group, 0) >= revision else None

        if guard(self.ledger) is None:
            ending = Withdrawal(group=group, revision=revision, traceparent=tracing.traceparent())
            await self.committer.commit(ending, guard)
            reached("merger.withdrawn")

    # -- only looking -------------------------------------------------------------------------------------------------

    async def simulate(self, record: Revision, cause: str) -> Attempt:
        """The same without the commit. Nobody looks again later: who answered from before the newest change is asked once
        more before the answer is no."""
        proposal: Proposal | ProposalRefused
        for _ in range(2):
            known = existing_placement(record, self.fleet, self.ledger)
            got = current(await self.gather(record, cause, known, explain=True), self.fleet)
            proposal = propose(record, got, self.fleet, self.ledger, self._names, new_id())
            now = str(self.fleet.epoch)
            if isinstance(proposal, Proposal) or all(answer.epoch in ("", now) for answer in got.answers.values()):
                break
        if isinstance(proposal, ProposalRefused):
            attempt = _refused(record, proposal, got, reasons(got, self.fleet), str(self.fleet.epoch))
        else:
            attempt = placed(proposal.decision, 0)
            attempt.decision = ""
        attempt.simulated = True
        return attempt


def _refused(
    record: Revision, refusal: ProposalRefused, got: ControllerResults, why: list[Reason], epoch: str
) -> Attempt:
    warnings: list[Warn] = list(dict.fromkeys([*record.warnings, *got.warnings]))
    return Attempt(
        group=record.group,
        revision=record.revision,
        phase="Failed" if refusal.final else "Pending",
        epoch=epoch,
        apps={app.name: AppView(replicas=app.replicas) for app in record.apps},
        controllers=got.asked,
        reasons=[*refusal.reasons, *why],
        warnings=warnings,
    )
