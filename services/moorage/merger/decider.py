"""One group from question to commit: asks, proposes, holds the room, commits; again where others were faster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from moorage.bus import Bus, Reply, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.collections import LruDict
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
from .core.responses import ControllerResults, Replies, collect_reasons, gather, refresh, steady_confinement
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
_OVERTAKEN = ProposalRefused(
    [
        Reason(
            code="Overtaken",
            by="merger",
            message="other groups took the room until the time was over; the group is tried again at once",
        )
    ],
    overtaken=True,
)

_encode = msgspec.json.Encoder().encode


def settled(ledger: Ledger, group: str, revision: int) -> bool:
    """Decided at this revision or a later one, or withdrawn."""
    stands = ledger.standing.get(group)
    return ledger.ended_revisions.get(group, 0) >= revision or (stands is not None and stands.revision >= revision)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a try to decide a group. `confined`: per app the clusters to which steady answers confine it, as
    `open_to` returns them; empty if it was placed or if a required controller did not answer."""

    attempt: Attempt
    confined: Sequence[bytes | None] = ()


class _Proposer:
    """Makes decisions of one record from the newest state, and holds their room."""

    def __init__(self, decider: Decider, record: Revision, results: ControllerResults) -> None:
        self._decider, self._record, self._results = decider, record, results
        self._traceparent = tracing.traceparent()
        self.decision: Decision | None = None  # the last proposal, if it was not refused
        self.refusal = ProposalRefused([])

    def propose(self) -> Decision | None:
        """Returns a decision whose room is held, or None after setting `refusal`."""
        decider = self._decider
        self._results = refresh(self._results, decider.fleet)
        began = time.perf_counter()
        proposal = propose(self._record, self._results, decider.fleet, decider.ledger, decider.name_order, new_id())
        decider.metrics.proposed(time.perf_counter() - began)
        if isinstance(proposal, ProposalRefused):
            self.decision, self.refusal = None, proposal
            return None
        self.decision = proposal.decision
        self.decision.traceparent = self._traceparent
        decider.capacity.hold(self.decision)
        return self.decision


class Decider:
    def __init__(self, bus: Bus, fleet: Fleet, follower: LedgerFollower, capacity: Capacity) -> None:
        self.bus, self.fleet, self.follower, self.capacity = bus, fleet, follower, capacity
        self.committer = Committer(bus, follower, capacity)
        self.metrics = DecisionMetrics(bus.vitals.registry)
        self.controllers: dict[str, Controller] = {}
        self.name_order = NameOrder()
        self._stale = LruDict[tuple[str, str, int], bytes](_REMEMBERED)
        self._deciding: dict[str, int] = {}
        self._last_took_ms: dict[str, float] = {}

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
        held = known.unchanged_clusters(record.apps, self.fleet)
        by_deadline: dict[float, dict[str, tuple[str, float]]] = {}
        # Who took longest the last time hears it first.
        for name, controller in sorted(controllers.items(), key=lambda one: -self._last_took_ms.get(one[0], 0.0)):
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
        self.metrics.asked(time.perf_counter() - began)
        self._last_took_ms.update((name, reply.took_ms) for name, reply in replies.items())
        stale: dict[str, bytes] = {}
        for name in controllers:
            data = self._stale.get((name, record.group, record.revision))
            if data is not None:
                stale[name] = data
        heard = Replies([app.name for app in record.apps], list(controllers.values()), replies, stale)
        got = gather(heard, self.fleet)
        for name, data in got.fresh.items():
            self._stale[name, record.group, record.revision] = data
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
            again = gather(Replies(got.replies.apps, list(controllers.values()), replies, {}), self.fleet)
            got.answers.update(again.answers)
        return collect_reasons(got, self.fleet)

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def decide(
        self, record: Revision, cause: str, durable_revisions: DurableRevisions | None = None
    ) -> Outcome | None:
        """Returns None if there is nothing left to decide, or if another task of this process decides the group.
        `durable_revisions` is given if the record is still being written, and tells when it is durable."""
        group = record.group
        if self._deciding.get(group, 0) >= record.revision:
            return None
        self._deciding[group] = record.revision
        began = time.perf_counter()
        try:
            outcome = await self._decide(record, cause, durable_revisions)
            self.metrics.decided(time.perf_counter() - began)
            self.metrics.outcome(outcome.attempt if outcome is not None else None)
            return outcome
        finally:
            if self._deciding.get(group) == record.revision:
                del self._deciding[group]

    async def _decide(self, record: Revision, cause: str, durable_revisions: DurableRevisions | None) -> Outcome | None:
        loop = asyncio.get_running_loop()
        if settled(self.ledger, record.group, record.revision):
            return None
        until = loop.time() + self._longest_deadline() + GRACE - _MARGIN
        existing = existing_placement(record, self.fleet, self.ledger)
        results = await self.gather(record, cause, existing)
        reached("merger.answered")
        if durable_revisions is not None and not await durable_revisions.wait_durable(cause):
            return None
        asked_again = 0
        while True:
            refusal = await self._try(record, results)
            if refusal is None:
                return None
            if isinstance(refusal, Attempt):
                return Outcome(refusal)
            hopeless = refusal.final or asked_again == BEHIND or not self._misses_clusters(results)
            if hopeless and not refusal.overtaken:
                break
            # The answers are older than what took the room, or than the newest clusters. They are asked for again if the
            # slowest controller can still answer in time.
            if until - loop.time() < max(self._last_took_ms.values(), default=0.0) / 1e3 + _BEAT:
                break
            if not refusal.overtaken:
                asked_again += 1
                await asyncio.sleep(_BEAT)
            existing = existing_placement(record, self.fleet, self.ledger)
            results = await self.gather(record, cause, existing, within=until - loop.time())
        confined = [] if results.missing else steady_confinement(results, len(record.apps), self.controllers)
        explanations: list[Reason] = []
        if not (refusal.final or results.missing):
            explanations = await self._explained(record, cause, existing, results, until)
        attempt = _refused(record, refusal, results, explanations, str(self.fleet.epoch))
        return Outcome(attempt, confined)

    async def _try(self, record: Revision, results: ControllerResults) -> Attempt | ProposalRefused | None:
        """Proposes and commits a decision. Returns None if there is nothing left to decide."""
        proposer = _Proposer(self, record, results)
        for attempt in range(RETRIES):
            if settled(self.ledger, record.group, record.revision):
                return None
            guard = self._guard(record)
            with tracing.span("propose"):
                decision = proposer.propose()
            if decision is None:
                return _OVERTAKEN if attempt and not proposer.refusal.final else proposer.refusal
            began = time.perf_counter()
            with tracing.span("commit"):
                result = await self.committer.commit(decision, guard, proposer.propose)
            self.metrics.committed(time.perf_counter() - began)
            if isinstance(result, Committed):
                reached("merger.committed")
                return placed(proposer.decision or decision, result.seq)
            if result.code == "DecisionTooLarge":
                return ProposalRefused([Reason(code=result.code, message=result.message, by="merger")], final=True)
            if result.code:
                break  # the group was decided or withdrawn meanwhile
        return _OVERTAKEN

    def _misses_clusters(self, got: ControllerResults) -> bool:
        """Whether clusters joined that somebody has not looked at."""
        return any(self.fleet.joined_after(answer.epoch) is not None for answer in got.answers.values())

    def _longest_deadline(self) -> float:
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
            return Dropped("Overtaken", "the group was decided or withdrawn meanwhile")

        return guard

    async def withdraw(self, group: str, revision: int) -> None:
        def guard(now: Ledger) -> Dropped | None:
            return Dropped("Overtaken", "withdrawn already") if now.ended_revisions.get(group, 0) >= revision else None

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
            got = refresh(await self.gather(record, cause, known, explain=True), self.fleet)
            proposal = propose(record, got, self.fleet, self.ledger, self.name_order, new_id())
            now = str(self.fleet.epoch)
            if isinstance(proposal, Proposal) or all(answer.epoch in ("", now) for answer in got.answers.values()):
                break
        if isinstance(proposal, ProposalRefused):
            attempt = _refused(record, proposal, got, collect_reasons(got, self.fleet), str(self.fleet.epoch))
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
