"""The one merger that holds the lease looks after what waits, what may be released, and pods that run elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from moorage.bus import Bus, BusError, Lease, NoAnswer, subjects
from moorage.bus.failpoints import reached
from moorage.fleet import FleetChange
from moorage.ledger import Changes, Dropped, Guard, Ledger, newest_snapshot, write_snapshot
from moorage.mesh import stores
from moorage.model.attempts import Attempt
from moorage.model.base import Message, Model
from moorage.model.claims import Claim, Commit, Reassignment, Release, Slot, Withdrawal
from moorage.model.desired import ClaimsRemoved
from moorage.model.groups import Revision, State
from moorage.model.names import untoken
from moorage.telemetry import tracing

from .core.wait_queue import WaitQueue
from .decider import Decider, settled
from .events import DecisionEvents, tell

log = structlog.get_logger("merger")

#: Changes are gathered this long, so that a burst is one round.
GATHER = 0.05
#: What takes longer goes on after all else has had its turn, and after what is older and may be helped by then.
TURN = 0.25
SWEEP = 60.0
#: A hint to decide is on its way when a document changes; who finds it undecided after this long does it himself.
HINT_GRACE = 1.0
#: Pods that stay elsewhere this long are where they run.
STABLE = 1.0
SNAPSHOT_EVERY = 2000
#: Reasons of every app of the largest document.
MAX_ATTEMPT = 4 << 20


class _Head(Model, kw_only=True):
    """Of a group's record only what tells whether it waits; manifests stay undecoded."""

    group: str
    revision: int
    state: State
    resolved: msgspec.Raw


_heads = msgspec.json.Decoder(_Head)
_revisions = msgspec.json.Decoder(Revision)
_messages = msgspec.json.Decoder(Message)
_attempts = msgspec.json.Decoder(Attempt)
_removals = msgspec.json.Decoder(ClaimsRemoved)


class WaitLoop:
    def __init__(self, bus: Bus, decider: Decider, events: DecisionEvents) -> None:
        self._bus, self._decider, self._events = bus, decider, events
        self._fleet = decider.fleet
        self.waiting = WaitQueue()
        self._hinted: dict[str, tuple[_Head, float]] = {}  # somebody was told to decide these; until when he has time
        self._ending: dict[str, tuple[int, float]] = {}  # group → revision to withdraw, and when
        self._removed: dict[str, tuple[str, float | None]] = {}  # claim → cluster and the agent's time; None: it left
        self._moved: dict[str, tuple[float, list[Slot]]] = {}  # claim → since when its pods are there
        self._suspects: set[str] = set()
        self._forced: set[str] = set()
        self._left: dict[str, NDArray[np.intp]] = {}  # of the last round: rows that may help these
        self._wake = asyncio.Event()
        self._heard = False
        self._labels: dict[int, object] = {}
        self._open: set[int] = set()  # clusters that may be used
        self._tested = 0
        self._snapshot_at = 0

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Until cancelled."""
        follower, fleet = self._decider.follower, self._fleet
        self._tested = fleet.tick
        self._suspects.update(self._decider.ledger.claims)
        self._look()
        fleet.on_change.append(self._fleet_changed)
        follower.on_fold.append(self._folded)
        follower.on_reload.append(self._reloaded)
        subs = [
            await self._bus.subscribe(subjects.MERGER_WAITING, self._refused, max_bytes=MAX_ATTEMPT),
            await self._bus.subscribe(subjects.MERGER_REMOVED, self._confirmed),
            await self._bus.subscribe("moorage.controllers.*.changed", self._controller_changed),
        ]
        mirror = await self._bus.bucket(stores.GROUPS).mirror(self._record)
        log.info("looking after what waits", groups=len(self.waiting.groups))
        self._events.check()
        self._snapshot_at = self._decider.ledger.seq
        recalling = self._bus.spawn(self._recall())
        try:
            await self._loop()
        finally:
            recalling.cancel()
            fleet.on_change.remove(self._fleet_changed)
            follower.on_fold.remove(self._folded)
            follower.on_reload.remove(self._reloaded)
            await mirror.stop()
            for sub in subs:
                with contextlib.suppress(Exception):
                    await sub.unsubscribe()

    # -- what is told -------------------------------------------------------------------------------------------------

    def _record(self, key: str, data: bytes | None, _revision: int) -> None:
        if data is None:
            group = "/".join(untoken(part) for part in key.split("."))
            self._forget(group)
            self._end(group, self._standing(group))
            return
        head = _heads.decode(data)
        if head.state == "Instantiated":
            # Most are decided before anybody has to read more of them than this.
            if not settled(self._decider.ledger, head.group, head.revision):
                self._hinted.pop(head.group, None)
                due = self._now + HINT_GRACE
                if not self._hinted:
                    asyncio.get_running_loop().call_at(due, self._wake.set)
                self._hinted[head.group] = head, due
        else:
            self._forget(head.group)
            if head.state in ("Terminated", "TerminateStopped"):
                # Also where nothing stands: a decision that is under way must find the withdrawal in the log.
                self._end(head.group, max(head.revision, self._standing(head.group)), always=True)

    def _forget(self, group: str) -> None:
        self._hinted.pop(group, None)
        self.waiting.drop(group)

    def _promote(self, group: str, due: float | None) -> None:
        """It waits: from now on it is looked at whenever something changes."""
        head, _ = self._hinted.pop(group)
        if not settled(self._decider.ledger, group, head.revision):
            self.waiting.put(_revisions.decode(head.resolved), due)

    def _promote_due(self) -> None:
        for group, (_, when) in list(self._hinted.items()):
            if when > self._now:
                return  # in the order of their times
            self._promote(group, when)

    def _standing(self, group: str) -> int:
        stands = self._decider.ledger.standing.get(group)
        return stands.revision if stands is not None else 0

    def _end(self, group: str, revision: int, *, always: bool = False) -> None:
        """The withdrawal is on its way too; a decision that stands although the document says otherwise ends."""
        ledger = self._decider.ledger
        if ledger.ended_revisions.get(group, 0) < revision and (always or group in ledger.standing):
            self._ending[group] = (revision, self._now + HINT_GRACE)
            self._wake.set()

    def _refused(self, _subject: str, data: bytes) -> None:
        attempt = _attempts.decode(data)
        if attempt.group in self._hinted:
            self._promote(attempt.group, None)
        self.waiting.refused(attempt.group, attempt, self._now, fresh=True)
        if attempt.group in self.waiting.nowhere and self._fleet.known.any():
            self._forced.add(attempt.group)
        self._wake.set()

    def _confirmed(self, _subject: str, data: bytes) -> None:
        removed = _removals.decode(data)
        for ident in removed.claims:
            self._removed[ident] = (removed.cluster, None if removed.gone else removed.as_of)
        self._heard = True
        self._wake.set()

    def _controller_changed(self, subject: str, data: bytes) -> None:
        if data:  # nothing in it matters, but junk is no word of a controller
            _messages.decode(data)
        self._forced |= self.waiting.refused_by(untoken(subject.split(".")[2]))
        self._wake.set()

    def registry_changed(self) -> None:
        """Who is asked, or how, is not what it was."""
        self._forced.update(self.waiting.groups)
        self._wake.set()

    def _folded(self, commit: Commit, changes: Changes) -> None:
        ledger = self._decider.ledger
        for group in changes.groups:
            hinted = self._hinted.get(group)
            if hinted is not None and settled(ledger, group, hinted[0].revision):
                del self._hinted[group]
            waiter = self.waiting.groups.get(group)
            if waiter is not None and settled(ledger, group, waiter.record.revision):
                self.waiting.drop(group)
        for withdrawal in commit.entries_of(Withdrawal):
            self._ending.pop(withdrawal.group, None)
            waiter = self.waiting.groups.get(withdrawal.group)
            if waiter is not None and waiter.record.revision <= withdrawal.revision:
                self.waiting.drop(withdrawal.group)
        if changes.released and self.waiting.groups:
            self._wake.set()
        if changes.seq - self._snapshot_at >= SNAPSHOT_EVERY:
            self._wake.set()

    def _reloaded(self, _ledger: Ledger) -> None:
        self._suspects.update(_ledger.claims)
        self._wake.set()

    def _fleet_changed(self, change: FleetChange) -> None:
        if change.reset:
            self._look()
            self._suspects.update(self._decider.ledger.claims)
            # Refused over a fleet that was empty or half there: even where nothing fits now, the reasons are others.
            self._forced.update(self.waiting.groups)
        else:
            self._look_at(change.clusters)
        if self.waiting.nowhere and self._fleet.known.any():
            self._forced |= self.waiting.nowhere
        self._suspects |= change.claims
        if self._removed and (len(change.heard) or len(change.clusters)):
            self._heard = True
        if self.waiting.groups or self._suspects or self._heard:
            self._wake.set()

    def _look(self) -> None:
        """At all clusters there are, so that what changes of one is seen the first time."""
        known = np.flatnonzero(self._fleet.known)
        usable = self._fleet.usable_clusters[known]
        self._labels = {cid: self._fleet.cluster_labels(cid) for cid in known.tolist()}
        self._open = set(known[usable].tolist())
        self.waiting.open((), self._fleet.epoch)

    def _look_at(self, clusters: NDArray[np.int32]) -> None:
        opened: list[int] = []
        for cid, usable in zip(clusters.tolist(), self._fleet.usable_clusters[clusters].tolist(), strict=True):
            # Label sets are shared: another set is another object.
            labels = self._fleet.cluster_labels(cid)
            if self._labels.get(cid, labels) is not labels:
                self._forced.update(self.waiting.groups)
            self._labels[cid] = labels
            if not usable:
                self._open.discard(cid)
            elif cid not in self._open:
                self._open.add(cid)
                opened.append(cid)
        if opened:
            self.waiting.open(opened, self._fleet.epoch)

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        swept = self._now
        while True:
            times = [swept + SWEEP, self.waiting.next_due()]
            times += [since + STABLE for since, _ in self._moved.values()]
            times += [when for _, when in self._ending.values()]
            times += [when for _, when in itertools.islice(self._hinted.values(), 1)]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(t for t in times if t is not None)):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(GATHER)
            if self._now - swept >= SWEEP:
                swept = self._now
                self._forced.update(self.waiting.groups)
                self._events.check()
            self._promote_due()
            await self._release()
            await self._reassign()
            await self._withdraw()
            await self._round()
            await self._snapshot()

    async def _round(self) -> None:
        """Everything that something new may help, the oldest first, one after the other: so the oldest gets the room."""
        if not self.waiting.groups:
            self._tested = self._fleet.tick
            self._forced.clear()
            self._left.clear()
            return
        forced = (self._forced | self.waiting.due(self._now)) & self.waiting.groups.keys()
        self._forced = set()
        hits, self._left = self._left, {}
        order: list[str] = []
        began = self._now
        first = True
        while first or order:
            if first or self._fleet.tick != self._tested:
                # Also while others are asked in vain: room that came meanwhile is the oldest's.
                new = self._hits()
                for group, more in new.items():
                    hits[group] = np.union1d(more, hits[group]) if group in hits else more
                if first or new:
                    order = self.waiting.oldest_first((forced if first else forced.intersection(order)) | hits.keys())
                    order.reverse()
                first = False
                continue
            if self._now - began > TURN:
                self._forced.update(forced.intersection(order))
                self._left = hits
                self._wake.set()
                break
            group = order.pop()
            rows = hits.pop(group) if group in hits else None
            wanted = group in forced
            forced.discard(group)
            waiter = self.waiting.groups.get(group)
            if waiter is None:
                continue
            if not wanted and (rows is None or not self.waiting.still(self._fleet, group, rows)):
                continue
            waiter.due = None
            before = waiter.attempt
            with tracing.carried("decide again", waiter.record.traceparent, **{"moorage.group": group}):
                confined: list[bytes | None] = []
                known = self._fleet.size
                attempt = await self._decider.decide(waiter.record, "", confined=confined)
            if attempt is None:
                self._look_again(group)
                continue
            waiter.confined, waiter.among = confined, known
            self.waiting.refused(group, attempt, self._now, fresh=False)
            if attempt.phase == "Placed":
                self.waiting.drop(group)
            if before is None or attempt.phase == "Placed" or _figures(before) != _figures(attempt):
                await tell(self._bus, attempt, "")
            if waiter.due is not None and waiter.attempt is attempt:
                # A required controller is silent, so it would be for all the others, one deadline each.
                self.waiting.postpone(order, waiter.due)
                break

    def _hits(self) -> dict[str, NDArray[np.intp]]:
        """What changed since the last look may help these, by these rows."""
        improved = self._fleet.improved_since(self._tested)
        self._tested = self._fleet.tick
        return self.waiting.hits(self._fleet, improved)

    def _look_again(self, group: str) -> None:
        """Somebody else is at it, or it is settled."""
        waiter = self.waiting.groups.get(group)
        if waiter is None:
            return
        if settled(self._decider.ledger, group, waiter.record.revision):
            self.waiting.drop(group)
        else:
            waiter.due = self._now + HINT_GRACE

    async def _withdraw(self) -> None:
        for group, (revision, when) in list(self._ending.items()):
            # Others may do it while one is under way.
            if when <= self._now and self._ending.pop(group, None) is not None:
                await self._decider.withdraw(group, revision)

    async def _release(self) -> None:
        """A claim counts until its removal is confirmed and a later report shows no pod of it."""
        if not self._heard:
            return
        self._heard = False
        ledger = self._decider.ledger
        ready: list[str] = []
        for ident, (cluster, as_of) in list(self._removed.items()):
            held = ledger.claims.get(ident)
            if held is None or not held.withdrawn or held.claim.cluster != cluster:
                del self._removed[ident]
                continue
            cid = self._fleet.ids.get(cluster)
            reported = cid is not None and as_of is not None and self._fleet.as_of(cid) > as_of
            if as_of is None or (reported and cid is not None and not self._fleet.present(ident, cid)):
                ready.append(ident)
                del self._removed[ident]
        for start in range(0, len(ready), 256):
            await self._decider.committer.commit(Release(claims=ready[start : start + 256]))
            reached("merger.released")

    async def _reassign(self) -> None:
        """`Displaced`: pods run on other nodes than claimed, all of them, and stayed there for a while."""
        suspects, self._suspects = self._suspects, set()
        ledger, capacity = self._decider.ledger, self._decider.capacity
        for ident in suspects:
            held = ledger.claims.get(ident)
            slots = capacity.displaced(held.claim) if held is not None and not held.withdrawn else None
            if slots is None:
                self._moved.pop(ident, None)
            elif ident not in self._moved or self._moved[ident][1] != slots:
                self._moved[ident] = (self._now, slots)
        for ident, (since, slots) in list(self._moved.items()):
            if self._now - since < STABLE:
                continue
            del self._moved[ident]
            held = ledger.claims.get(ident)
            if held is not None and not held.withdrawn and capacity.displaced(held.claim) == slots:
                where = Reassignment(claim=ident, slots=slots)
                result = await self._decider.committer.commit(where, _unchanged(held.claim))
                if isinstance(result, Dropped):
                    self._suspects.add(ident)
                    self._wake.set()

    async def _recall(self) -> None:
        """When the last snapshot was written, by whoever had the lease: or the log would never be cut where that changes
        hands more often."""
        while True:
            try:
                self._snapshot_at = await newest_snapshot(self._bus)
                self._wake.set()
                return
            except (NoAnswer, BusError) as error:
                log.warning("the ledger's snapshots could not be listed", error=str(error))
                await asyncio.sleep(HINT_GRACE)

    async def _snapshot(self) -> None:
        ledger = self._decider.ledger
        if ledger.seq - self._snapshot_at >= SNAPSHOT_EVERY:
            self._snapshot_at = ledger.seq
            try:
                await write_snapshot(self._bus, ledger)
            except (NoAnswer, BusError) as error:
                # The log is whole without it; the next try is a few commits away.
                log.warning("a ledger snapshot was not written", error=str(error))
                self._snapshot_at = ledger.seq - SNAPSHOT_EVERY // 2


def _figures(attempt: Attempt) -> tuple[str, list[tuple[str, ...]]]:
    """What a reader would see change between two tries."""
    seen = [(r.code, r.app, r.consumer, r.need, str(r.clusters), r.needed, r.free, r.by) for r in attempt.reasons]
    return attempt.phase, sorted(seen)


def _unchanged(claim: Claim) -> Guard:
    def guard(now: Ledger) -> Dropped | None:
        held = now.claims.get(claim.id)
        same = held is not None and not held.withdrawn and held.claim.slots == claim.slots
        return None if same else Dropped("Overtaken", "the claim changed meanwhile")

    return guard


async def look_after(bus: Bus, decider: Decider, events: DecisionEvents, current: list[WaitLoop]) -> None:
    """Holds the lease whenever it can; `current` shows the state while it does."""
    lease = Lease(bus, "pending")
    try:
        while True:
            await lease.hold()
            pending = WaitLoop(bus, decider, events)
            current[:] = [pending]
            task = asyncio.ensure_future(pending.run())
            lost = asyncio.ensure_future(lease.lost.wait())
            try:
                await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                current.clear()
                lost.cancel()
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            if task.done() and not task.cancelled():
                task.result()
    finally:
        await lease.release()
