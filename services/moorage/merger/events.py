"""What is said of decisions, and that it is said: who committed one may die, or the broker with him, before its event is
kept. So the newest decisions of everyone who commits are compared with the kept events, where and when that may have
happened: on starting, on taking over what waits, after each reconnect, and now and then."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from functools import partial

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer, subjects
from moorage.ledger import LOG, Changes, LedgerFollower, decode_commit
from moorage.mesh import stores
from moorage.model.attempts import AppView, Attempt, ClaimView, slot_views
from moorage.model.claims import Commit, Decision

log = structlog.get_logger("merger")

#: Per committer, more than it can have under way at once; and committers, of which most are dead.
NEWEST, COMMITTERS = 128, 16
#: Commits of before the start that are looked at: others go on while one who died is started again.
BACK = 512
#: An event that is only on its way is not repeated.
GRACE = 1.0


def placed(decision: Decision, seq: int) -> Attempt:
    """The outcome of a try that succeeded: all of it stands in the log."""
    scores = decision.scores
    apps = {name: AppView(replicas=count, score=scores.get(name)) for name, count in decision.replicas.items()}
    seen: set[tuple[str, str]] = set()
    for claim in decision.claims:
        app, cluster = claim.app, claim.cluster
        if (app, cluster) not in seen:
            seen.add((app, cluster))
            apps[app].clusters.append(cluster)
        if claim.object:
            view = ClaimView(cluster=cluster, object=claim.object, slots=slot_views(claim.slots))
            apps[app].claims.append(view)
    return Attempt(
        group=decision.group,
        revision=decision.revision,
        phase="Placed",
        decision=decision.id,
        epoch=decision.epoch,
        seq=seq,
        apps=apps,
        controllers=decision.controllers,
        warnings=decision.warnings,
    )


async def tell(bus: Bus, attempt: Attempt, cause: str) -> None:
    """The event of a try; of a decision under its own id and kept once, whoever says it how often. What waits is told to
    whoever looks after what waits, too."""
    subject = subjects.decision_event(attempt.phase.lower(), attempt.group)
    if attempt.phase == "Placed":
        await bus.emit(subject, attempt, cause=cause, id=attempt.decision, once=True)
    else:
        await bus.emit(subject, attempt, cause=cause)
        await bus.publish(subjects.MERGER_WAITING, attempt)


class Telling:
    def __init__(self, bus: Bus, follower: LedgerFollower) -> None:
        self._bus, self._follower = bus, follower
        self._newest: OrderedDict[str, deque[tuple[int, Decision]]] = OrderedDict()
        self._wanted = asyncio.Event()
        self._kept: set[str] = set()  # decisions whose events were seen among those kept, since the broker came back
        self._doubtful = False
        self.mended = 0
        follower.on_fold.append(lambda commit, changes: self._saw(changes.seq, commit, changes))
        bus.on_reconnect(self._anew)
        bus.spawn(self._run())

    def _saw(self, seq: int, commit: Commit, changes: Changes | None = None) -> None:
        decisions = commit.entries_of(Decision)
        if not decisions:
            return
        mine = self._newest.get(commit.by)
        if mine is None:
            mine = self._newest[commit.by] = deque(maxlen=NEWEST)
            if len(self._newest) > COMMITTERS:
                self._newest.popitem(last=False)
        refused = changes.refused if changes is not None else ()
        mine.extend((seq, decision) for decision in decisions if decision.id not in refused)

    async def check(self) -> None:
        """Soon, and once for all who ask meanwhile."""
        self._wanted.set()

    async def _anew(self) -> None:
        """A broker that died may have lost what it had only in memory."""
        self._doubtful = True
        self._wanted.set()

    async def _run(self) -> None:
        await self._before()
        while True:
            await asyncio.sleep(GRACE)
            self._wanted.clear()
            try:
                await self._mend()
            except (NoAnswer, BusError) as error:
                log.warning("events could not be compared with decisions", error=str(error))
                self._wanted.set()
            await self._wanted.wait()

    async def _before(self) -> None:
        """The log's last commits from before this one listened, the snapshot's among them."""
        ledger_log = self._bus.log(LOG)
        upto = self._follower.ledger.seq
        found: dict[int, bytes] = {}
        while True:
            try:
                first = max(await ledger_log.first(), upto - BACK + 1)
                if first <= upto:
                    tail = await ledger_log.follow(first, found.__setitem__)
                    await tail.stop()
                break
            except (NoAnswer, BusError) as error:
                log.warning("the log's end could not be read", error=str(error))
                await asyncio.sleep(GRACE)
        since, self._newest = self._newest, OrderedDict()
        for seq, data in found.items():
            try:
                if seq <= upto:
                    self._saw(seq, decode_commit(data))
            except msgspec.DecodeError:
                continue  # counted by who folds it
        for by, newer in since.items():
            self._newest.setdefault(by, deque(maxlen=NEWEST)).extend(newer)

    async def _mend(self) -> None:
        events, ledger_log = self._bus.log(stores.EVENTS), self._bus.log(LOG)
        live = self._follower.ledger.standing
        known, self._kept = set() if self._doubtful else self._kept, set()
        self._doubtful = False
        recent = sorted(
            ((seq, d) for mine in self._newest.values() for seq, d in mine if _stands(live.get(d.group), d)),
            key=lambda one: one[0],
        )
        if not recent:
            return
        for seq, decision in recent:
            if decision.id in known:
                self._kept.add(decision.id)
                continue
            subject = subjects.decision_event("placed", decision.group)
            if not await events.is_missing(subject, decision.id, partial(ledger_log.time, seq)):
                self._kept.add(decision.id)
                continue
            if not _stands(live.get(decision.group), decision):
                continue
            log.warning("an event was missing", group=decision.group, decision=decision.id)
            self.mended += 1
            await tell(self._bus, placed(decision, seq), "")


def _stands(stands: Decision | None, decision: Decision) -> bool:
    return stands is not None and stands.id == decision.id
