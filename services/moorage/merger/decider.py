"""Decides a group: asks the controllers, proposes a decision, holds its room and commits it, and tries again where others
were faster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.bus import Bus, Reply, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.candidates import pack
from moorage.classes import ClassCatalog
from moorage.collections import LruDict
from moorage.device_algorithms import DEFAULT
from moorage.fit import Ids, Mask, asks_parts
from moorage.fit.device_rows import DeviceRows
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
    keep_quotas,
)
from moorage.ledger.device_quotas import QUOTA_EXCEEDED
from moorage.model.attempts import AppView, Attempt
from moorage.model.candidates import Ask, PackedSet
from moorage.model.claims import Decision, Withdrawal
from moorage.model.concerns import concerns_of, is_concerned
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.reasons import Reason, Warn
from moorage.model.resource_classes import FleetObject
from moorage.model.shapes import Shape
from moorage.telemetry import tracing

from .core.class_binding import bound
from .core.class_grants import forbidden_class
from .core.class_quotas import within_quotas, without_full_classes
from .core.funnel import funnels
from .core.lent_slots import with_lent_slots
from .core.propose import NameOrder, ProposalRefused
from .core.responses import (
    NOT_ASKED,
    AskedAt,
    ControllerResults,
    Replies,
    collect_reasons,
    gather,
    order_reasons,
    placement_masks,
    steady_confinement,
)
from .durability import Confirmation
from .events import placed
from .metrics import DecisionMetrics
from .proposer import SOLVE_SECONDS, Proposer
from .recorder import Recorder

#: Seconds that a decision may take beyond the largest deadline. Asking for reasons ends `_MARGIN` before that.
GRACE = 0.050
_MARGIN = 0.015
#: Commits of a decision that are tried before the controllers are asked again.
COMMIT_TRIES = 16
#: Times that controllers are asked again because they had not seen the newest clusters.
BEHIND_TRIES = 3
#: Seconds before they are asked again, while the change is on its way to them.
_BEHIND_DELAY = 0.01
#: Documents of the newest decisions that are kept: settling needs those of groups that are being rolled out.
_DOCUMENTS = 512
#: Answers that are kept for controllers whose policy is stale-ok.
_MAX_STALE = 2048
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
    """Returns whether the group needs no decision: this revision or a later one is decided or withdrawn. One that is displaced
    needs another."""
    if ledger.ended_revisions.get(group, 0) >= revision:
        return True
    standing = ledger.standing.get(group)
    if standing is None or standing.revision < revision:
        return False
    return standing.revision > revision or not ledger.wants_decision(group)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a try to decide a group. `confined` is the `steady_confinement` of its apps; empty if the group was
    placed or a required controller did not answer. `outdated`: it was refused by answers of controllers that had not seen
    all that this merger had, so another try may come to something else although nothing changes any more."""

    attempt: Attempt
    confined: Sequence[bytes | None] = ()
    outdated: bool = False


class Decider:
    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        follower: LedgerFollower,
        capacity: Capacity,
        catalog: ClassCatalog | None = None,
    ) -> None:
        self.bus, self.fleet, self.follower, self.capacity = bus, fleet, follower, capacity
        self.catalog = catalog or ClassCatalog()
        self.devices = DeviceRows(fleet)
        self.quotas = keep_quotas(follower, fleet, self.catalog)
        self.committer = Committer(bus, follower, capacity, self.quotas)
        self.metrics = DecisionMetrics(bus.process_health.registry)
        self.controllers: dict[str, Controller] = {}
        self.name_order = NameOrder()
        self._stale = LruDict[tuple[str, str, int], bytes](_MAX_STALE)  # controller, group, revision → answer
        self._deciding: dict[str, int] = {}  # group → revision
        self.documents = LruDict[tuple[str, int], Revision](_DOCUMENTS)  # of decisions made here: group, revision
        self.recorder = Recorder(bus, self.committer.ident, lambda: bool(self._deciding))
        follower.on_fold.append(self.recorder.folded)
        self._last_took_ms: dict[str, float] = {}  # by controller

    @property
    def ledger(self) -> Ledger:
        return self.follower.ledger

    def choose_nodes(self, shapes: Sequence[Shape], where: Ids, feasible: Mask) -> NDArray[np.int64] | None:
        """Asks the algorithm that chooses devices where pods go."""
        began = time.perf_counter()
        found = self.devices.choose(shapes, where, feasible, DEFAULT)
        asked = next((ask.algorithm for group in shapes[0].groups for ask in group.devices), "")
        self.metrics.devices_chosen(asked or DEFAULT, time.perf_counter() - began)
        return found

    @property
    def based_on(self) -> int:
        """The commit that what is received now is based on."""
        return max(self.ledger.seq, 1)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        record: Revision,
        cause: str,
        existing: ExistingPlacement,
        controllers: Mapping[str, Controller],
        *,
        explain: bool = False,
        explain_within: Mapping[str, PackedSet] | None = None,
        within: float | None = None,
    ) -> dict[str, Reply]:
        """Asks all controllers at once, each under its own deadline or `within`, whichever is less."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        held = existing.unchanged_clusters(record.apps, self.fleet)
        by_deadline: dict[float, dict[str, tuple[str, float]]] = {}
        # The controller that took longest the last time is asked first.
        for name, controller in sorted(controllers.items(), key=lambda item: -self._last_took_ms.get(item[0], 0.0)):
            deadline = controller.deadline_ms / 1e3
            deadline = deadline if within is None else min(deadline, within)
            by_deadline.setdefault(deadline, {})[name] = (subjects.candidates(name), deadline)
        ident = new_id()
        # Requests are batched only while other groups are decided, too.
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
                explain_within=dict(explain_within or {}),
                held=held,
                own=existing.own,
            )
            return await self.bus.ask_many(asks, _encode(message), ident=ident, together=together)

        if len(by_deadline) == 1:
            ((deadline, asks),) = by_deadline.items()
            return await ask(deadline, asks)
        replies: dict[str, Reply] = {}
        for found in await asyncio.gather(*(ask(deadline, asks) for deadline, asks in by_deadline.items())):
            replies.update(found)
        return replies

    def _concerned(self, record: Revision) -> dict[str, Controller]:
        """Returns the placement controllers that may have something to say about the group."""
        found = concerns_of(record.apps, record.intents, lambda shape: asks_parts(shape, self.fleet))
        return {name: c for name, c in self.controllers.items() if c.placement and is_concerned(c.concerns, found)}

    async def gather(
        self,
        record: Revision,
        cause: str,
        existing: ExistingPlacement,
        *,
        within: float | None = None,
    ) -> ControllerResults:
        """Asks the placement controllers that the group concerns and reads their answers."""
        controllers = {name: c for name, c in self.controllers.items() if c.placement}
        asked = self._concerned(record)
        began = time.perf_counter()
        with tracing.span("ask"):
            replies = await self._ask(record, cause, existing, asked, within=within)
        self.metrics.asked(time.perf_counter() - began)
        self._last_took_ms.update((name, reply.took_ms) for name, reply in replies.items())
        for name in controllers.keys() - asked.keys():
            replies[name] = NOT_ASKED
            self.bus.metrics.asked(name, subjects.candidates(name)).skipped()
        stale: dict[str, bytes] = {}
        for name in asked:
            data = self._stale.get((name, record.group, record.revision))
            if data is not None:
                stale[name] = data
        names = [app.name for app in record.apps]
        results = gather(Replies(names, list(controllers.values()), replies, stale), self.fleet)
        for name, data in results.fresh.items():
            self._stale[name, record.group, record.revision] = data
        return results

    async def _explained(
        self, record: Revision, cause: str, existing: ExistingPlacement, results: ControllerResults, until: float
    ) -> ControllerResults:
        """Returns the results with the answers of controllers that were asked for reasons with numbers, in the time that is
        left."""
        answered = {a.name for a in results.asked if a.outcome == "answered"}
        controllers = {n: c for n, c in self.controllers.items() if n in answered}
        left = until - asyncio.get_running_loop().time()
        if controllers and left > 0:
            placement = zip(results.replies.apps, placement_masks(results, self.fleet), strict=True)
            about = {app: pack(mask) for app, mask in placement}
            replies = await self._ask(
                record, cause, existing, controllers, explain=True, explain_within=about, within=left
            )
            explained = gather(Replies(results.replies.apps, list(controllers.values()), replies, {}), self.fleet)
            results = replace(results, answers={**results.answers, **explained.answers})
        return results

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def decide(
        self, record: Revision, cause: str, based_on: int, confirmation: Confirmation | None = None
    ) -> Outcome | None:
        """Returns None if there is nothing left to decide, or if another task of this process decides the group.
        `based_on`: the last commit that was folded when the record was received. `confirmation` is given if the record is still
        being written: the intent store's, that it is durable."""
        group = record.group
        if self._deciding.get(group, 0) >= record.revision:
            return None
        self._deciding[group] = record.revision
        began = time.perf_counter()
        try:
            outcome = await self._decide(record, cause, based_on, confirmation)
            self.metrics.decided(time.perf_counter() - began)
            self.metrics.outcome(outcome.attempt if outcome is not None else None)
            return outcome
        finally:
            if self._deciding.get(group) == record.revision:
                del self._deciding[group]

    @property
    def served(self) -> AbstractSet[str]:
        """Returns the extended resources that DeviceClasses serve somewhere in the fleet."""
        return self.fleet.parts.layouts.extended_resources if self.fleet.layout is not None else frozenset()

    def bound(self, record: Revision) -> Revision:
        return bound(record, self.catalog, self.served)

    async def _decide(
        self, record: Revision, cause: str, based_on: int, confirmation: Confirmation | None
    ) -> Outcome | None:
        loop = asyncio.get_running_loop()
        if settled(self.ledger, record.group, record.revision):
            return None
        document, record = record, self.bound(within_quotas(record, self.quotas))
        record = without_full_classes(record, self.quotas, self.catalog, self.fleet)
        for app in record.apps:
            for shape in app.shapes:
                self.devices.record(shape, (record.group, record.revision, app.name, shape.object))
        until = loop.time() + self._longest_deadline(record) + GRACE - _MARGIN
        existing = existing_placement(record, self.fleet, self.ledger)
        record = with_lent_slots(record, existing.own, self.fleet, time.time())
        asked_at = AskedAt(self.fleet.epoch, self.ledger.seq)
        results = await self.gather(record, cause, existing)
        reached("merger.answered")
        # Where nothing else is decided, the decision is proposed while its record is written. Where much is, others would take
        # the room meanwhile.
        if confirmation is not None and len(self._deciding) > 1 and not await confirmation.wait():
            return None
        asked_again = 0
        while True:
            refusal = await self._try(record, results, until, based_on, confirmation)
            if refusal is None or (confirmation is not None and not await confirmation.wait()):
                return None
            if isinstance(refusal, Attempt):
                self.documents[document.group, document.revision] = document
                return Outcome(refusal)
            hopeless = refusal.final or asked_again == BEHIND_TRIES or not self._misses_clusters(results)
            if hopeless and not refusal.overtaken:
                break
            # The answers are older than what took the room, or than the newest clusters. They are asked for again if the
            # slowest controller can still answer in time.
            if until - loop.time() < max(self._last_took_ms.values(), default=0.0) / 1e3 + _BEHIND_DELAY:
                break
            if not refusal.overtaken:
                asked_again += 1
                await asyncio.sleep(_BEHIND_DELAY)
            existing = existing_placement(record, self.fleet, self.ledger)
            asked_at = AskedAt(self.fleet.epoch, self.ledger.seq)
            results = await self.gather(record, cause, existing, within=until - loop.time())
        outdated = any(asked_at.is_ahead_of(answer) for answer in results.answers.values())
        confined = [] if results.missing else steady_confinement(results, len(record.apps), self.controllers)
        explanations: list[Reason] = []
        if not (refusal.final or results.missing):
            results = await self._explained(record, cause, existing, results, until)
            explanations = collect_reasons(results, self.fleet)
        attempt = _refused(record, refusal, results, explanations, self.fleet)
        return Outcome(attempt, confined, outdated)

    async def _try(
        self,
        record: Revision,
        results: ControllerResults,
        until: float,
        based_on: int,
        confirmation: Confirmation | None,
    ) -> Attempt | ProposalRefused | None:
        """Proposes a decision, and commits it once its record is durable. Returns None if there is nothing left to decide."""
        if (forbidden := forbidden_class(record, self.catalog.grants)) is not None:
            return ProposalRefused([forbidden])
        proposer = Proposer(self, record, results, based_on)
        for attempt in range(COMMIT_TRIES):
            # A withdrawal from after a forgotten commit may not be known any more: the hint counts as lost.
            if settled(self.ledger, record.group, record.revision) or self.ledger.is_forgotten(based_on):
                return None
            guard = self._guard(record)
            with tracing.span("propose"):
                decision = await proposer.propose_solved(until)
            if decision is None:
                return _OVERTAKEN if attempt and not proposer.refusal.final else proposer.refusal
            if confirmation is not None and not await confirmation.wait():
                self.capacity.give_back(decision.id)
                return None
            began = time.perf_counter()
            with tracing.span("commit"):
                result = await self.committer.commit(decision, guard, proposer.propose)
            self.metrics.committed(time.perf_counter() - began)
            if isinstance(result, Committed):
                reached("merger.committed")
                decision = proposer.decision or decision
                self.recorder.decided(decision, result.seq, proposer.recording)
                return placed(decision, result.seq)
            if result.code in ("DecisionTooLarge", QUOTA_EXCEEDED):
                is_final = result.code != QUOTA_EXCEEDED  # others may give devices back, or the quota may grow
                return ProposalRefused([_reason(result)], final=is_final)
            if result.code:
                break  # the group was decided or withdrawn meanwhile
        return _OVERTAKEN

    def _forbids(self, record: Revision, proposal: Decision | ProposalRefused) -> Reason | None:
        """Returns why grants or quotas do not allow a decision that is only simulated, or None."""
        if (forbidden := forbidden_class(record, self.catalog.grants)) is not None:
            return forbidden
        why = self.quotas.check(proposal) if isinstance(proposal, Decision) else None
        return None if why is None else _reason(why)

    def _misses_clusters(self, results: ControllerResults) -> bool:
        """Returns whether clusters joined after a controller computed its answer."""
        return any(self.fleet.joined_after(answer.epoch) is not None for answer in results.answers.values())

    def _longest_deadline(self, record: Revision) -> float:
        """Returns the largest deadline of the controllers that are asked, in seconds."""
        return max((c.deadline_ms for c in self._concerned(record).values()), default=0.0) / 1e3

    def _guard(self, record: Revision) -> Guard:
        """Refuses the commit if the group got a decision or a withdrawal after this one was proposed."""

        def state(ledger: Ledger) -> tuple[str, int]:
            standing = ledger.standing.get(record.group)
            return standing.id if standing else "", ledger.ended_revisions.get(record.group, 0)

        before = state(self.ledger)

        def guard(ledger: Ledger) -> Dropped | None:
            if state(ledger) == before:
                return None
            return Dropped("Overtaken", "the group was decided or withdrawn meanwhile")

        return guard

    async def withdraw(self, group: str, revision: int, based_on: int) -> None:
        """Commits a withdrawal, unless the group is withdrawn up to this revision already. `based_on`: as in `decide`."""

        def guard(ledger: Ledger) -> Dropped | None:
            withdrawn = ledger.ended_revisions.get(group, 0) >= revision
            return Dropped("Overtaken", "the revision is withdrawn already") if withdrawn else None

        if guard(self.ledger) is None:
            trace = tracing.traceparent()
            withdrawal = Withdrawal(group=group, revision=revision, traceparent=trace, based_on=based_on)
            await self.committer.commit(withdrawal, guard)
            reached("merger.withdrawn")

    # -- simulating ---------------------------------------------------------------------------------------------------

    async def simulate(self, record: Revision, cause: str, classes: Sequence[FleetObject] = ()) -> Attempt:
        """Decides without the commit, as if these resource classes were stored. A simulation is not tried again later, so controllers that answered from before the
        newest change of the fleet are asked once more before the result is a refusal."""
        proposal: Decision | ProposalRefused
        loop = asyncio.get_running_loop()
        catalog = self.catalog.with_unsaved(classes) if classes else self.catalog
        record = bound(within_quotas(record, self.quotas), catalog, self.served)
        record = without_full_classes(record, self.quotas, catalog, self.fleet)
        until = loop.time() + 2 * self._longest_deadline(record)
        for _ in range(2):
            existing = existing_placement(record, self.fleet, self.ledger)
            record = with_lent_slots(record, existing.own, self.fleet, time.time())
            results = await self.gather(record, cause, existing)
            proposer = Proposer(self, record, results, self.based_on, is_simulated=True)
            proposal = await proposer.compute_solved(loop.time() + SOLVE_SECONDS)
            if (reason := self._forbids(record, proposal)) is not None:
                proposal = ProposalRefused([reason])
                break
            results = proposer.results
            epoch = str(self.fleet.epoch)
            if isinstance(proposal, Decision) or all(a.epoch in ("", epoch) for a in results.answers.values()):
                break
        if isinstance(proposal, ProposalRefused):
            results = await self._explained(record, cause, existing, results, until)
            attempt = _refused(record, proposal, results, collect_reasons(results, self.fleet), self.fleet)
        else:
            attempt = placed(proposal, 0)
            attempt.decision = ""
        attempt.simulated = True
        return attempt


def _reason(why: Dropped) -> Reason:
    return Reason(code=why.code, message=why.message, needed=why.needed, free=why.free, by="merger")


def _refused(
    record: Revision,
    refusal: ProposalRefused,
    results: ControllerResults,
    explanations: list[Reason],
    fleet: Fleet,
) -> Attempt:
    warnings: list[Warn] = list(dict.fromkeys([*record.warnings, *results.warnings]))
    return Attempt(
        group=record.group,
        revision=record.revision,
        phase="Failed" if refusal.final else "Pending",
        epoch=str(fleet.epoch),
        apps={app.name: AppView(replicas=app.replicas) for app in record.apps},
        controllers=results.asked,
        reasons=order_reasons([*refusal.reasons, *explanations], refusal.blocking),
        warnings=warnings,
        blocking=list(refusal.blocking),
        funnel={} if refusal.shortfall is None else funnels(results, fleet, refusal.shortfall),
    )
