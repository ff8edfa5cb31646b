"""Decides waiting groups again when something changed that may help them. Only the merger that holds the lease does so."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from moorage.bus import Bus, BusError, Lease, NoAnswer, subjects, until_done
from moorage.fleet import FleetChange
from moorage.ledger import Changes, Ledger
from moorage.mesh import stores
from moorage.model.attempts import Attempt
from moorage.model.base import Message, Model
from moorage.model.claims import Commit, Settlement, Withdrawal
from moorage.model.groups import Revision, State
from moorage.model.names import group_tokens, untoken
from moorage.model.shapes import ShapedApp
from moorage.telemetry import tracing

from .core.class_binding import bound_app
from .core.delayed import Delayed
from .core.lent_slots import app_with_lent_slots
from .core.round import Round
from .core.usable_clusters import UsableClusters
from .core.wait_queue import Waiter, WaitQueue, back_off
from .core.waiting_news import is_news
from .decider import Decider, settled
from .events import DecisionEvents, tell
from .releases import Releases
from .settling import Settling
from .snapshots import Snapshots

log = structlog.get_logger("merger")

#: Seconds for which changes are gathered, so that a burst causes one round.
GATHER = 0.05
#: Seconds that a round may take. The rest of it comes after releases, withdrawals and older groups that may be helped by
#: then.
ROUND_TIME = 0.25
#: Seconds after which every waiting group is decided again, whatever changed.
SWEEP = 60.0
#: Seconds after which a changed document is handled here. By then the hint to decide or withdraw must have been lost.
HINT_GRACE = 1.0
#: Room for the reasons of every app of the largest document.
MAX_ATTEMPT = 4 << 20


class _Head(Model, kw_only=True):
    """The part of a group's record that decides whether it waits; manifests stay undecoded."""

    group: str
    revision: int
    state: State
    resolved: msgspec.Raw


_heads = msgspec.json.Decoder(_Head)
_revisions = msgspec.json.Decoder(Revision)
_messages = msgspec.json.Decoder(Message)
_attempts = msgspec.json.Decoder(Attempt)


class WaitLoop:
    def __init__(self, bus: Bus, decider: Decider, events: DecisionEvents) -> None:
        self._bus, self._decider, self._events = bus, decider, events
        self._fleet = decider.fleet
        self._wake = asyncio.Event()
        self.waiting = WaitQueue(self._own_clusters, self._bound)
        self._hinted: Delayed[_Head] = Delayed(HINT_GRACE)  # groups that a merger was asked to decide
        # Withdrawals that were asked for: group → revision, and the last commit that was folded then.
        self._ending: Delayed[tuple[int, int]] = Delayed(HINT_GRACE)
        self._releases = Releases(decider, self._wake)
        self._settling = Settling(bus, decider, self._displaced)
        self._snapshots = Snapshots(bus, decider.follower, self._wake)
        self._clusters = UsableClusters(decider.fleet)
        self._unrecorded: set[str] = set()  # decided groups whose record was not read yet after the start
        self._forced: set[str] = set()  # groups of the next round whatever changed
        self._rows: dict[str, NDArray[np.intp]] = {}  # what the last round left over: rows that may help these groups
        self._tick = 0  # of the fleet, up to which changes were tested
        self._silences = 0  # tries in a row in which a required controller gave no answer
        self.outdated = (
            asyncio.Event()
        )  # the ledger was loaded again: what waits may be withdrawn and forgotten meanwhile

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _bound(self, app: ShapedApp) -> ShapedApp:
        bound = bound_app(app, self._decider.catalog, self._decider.served)
        return app_with_lent_slots(bound, self._fleet, time.time())

    def _own_clusters(self, group: str) -> set[int]:
        ledger, ids = self._decider.ledger, self._fleet.ids
        clusters = (ledger.claims[ident].claim.cluster for ident in ledger.by_group.get(group, ()))
        return {ids[cluster] for cluster in clusters if cluster in ids}

    async def run(self) -> None:
        """Runs until it is cancelled."""
        follower, fleet = self._decider.follower, self._fleet
        self._tick = fleet.tick
        self._reset_clusters()
        fleet.on_change.append(self._fleet_changed)
        follower.on_fold.append(self._folded)
        follower.on_reload.append(self._reloaded)
        subs = [
            await self._bus.subscribe(subjects.MERGER_WAITING, self._attempt_failed, max_bytes=MAX_ATTEMPT),
            await self._bus.subscribe(subjects.MERGER_REMOVED, self._releases.removal_confirmed),
            await self._bus.subscribe("moorage.controllers.*.changed", self._controller_changed),
        ]
        self._unrecorded = set(self._decider.ledger.standing)
        mirror = await self._bus.bucket(stores.GROUPS).mirror(self._record_changed)
        for group in self._unrecorded:
            self._end(group, self._standing_revision(group))  # it was deleted while no merger was there
        self._unrecorded.clear()
        log.info("this merger decides waiting groups again", groups=len(self.waiting.groups))
        self._events.check()
        finding = self._bus.spawn(self._snapshots.find_last())
        settling = self._bus.spawn(self._settling.run())
        try:
            await self._loop()
        finally:
            finding.cancel()
            settling.cancel()
            fleet.on_change.remove(self._fleet_changed)
            follower.on_fold.remove(self._folded)
            follower.on_reload.remove(self._reloaded)
            await mirror.stop()
            for sub in subs:
                with contextlib.suppress(Exception):
                    await sub.unsubscribe()

    async def _loop(self) -> None:
        swept = self._now
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(swept + SWEEP, self._next_due())):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(GATHER)
            if self._now - swept >= SWEEP:
                swept = self._now
                self._forced.update(self.waiting.groups)
                self._events.check()
            for group in self._hinted.due(self._now):
                self._put_hinted(group, self._now)
            await self._releases.append_ready()
            await self._withdraw_due()
            await self._round()
            await self._snapshots.write_if_due()

    def _next_due(self) -> float:
        times = (
            self.waiting.next_due(),
            self._hinted.next_due(),
            self._ending.next_due(),
        )
        return min((time for time in times if time is not None), default=math.inf)

    # -- changes ------------------------------------------------------------------------------------------------------

    def _record_changed(self, key: str, data: bytes | None, _revision: int) -> None:
        if data is None:
            group = "/".join(untoken(part) for part in key.split("."))
            self._drop(group)
            self._end(group, self._standing_revision(group))
            return
        head = _heads.decode(data)
        self._unrecorded.discard(head.group)
        if head.state == "Instantiated":
            if not settled(self._decider.ledger, head.group, head.revision):
                self._expect_decision(head)
            return
        self._drop(head.group)
        if head.state in ("Terminated", "TerminateStopped"):
            # Also where no decision stands: one that is under way must find the withdrawal in the log.
            self._end(head.group, max(head.revision, self._standing_revision(head.group)))

    def _expect_decision(self, head: _Head) -> None:
        """Gives the merger that got the hint some time. Most groups are decided by then, and their records need not be
        decoded any further."""
        if not self._hinted:
            asyncio.get_running_loop().call_later(HINT_GRACE, self._wake.set)
        self._hinted.put(head.group, head, self._now)

    def _put_hinted(self, group: str, due: float | None) -> None:
        """Lets the group wait, unless it is decided by now."""
        head = self._hinted.pop(group)
        if head is not None and not settled(self._decider.ledger, group, head.revision):
            self.waiting.put(_revisions.decode(head.resolved), due)

    def _drop(self, group: str) -> None:
        self._hinted.pop(group)
        self.waiting.drop(group)

    def _standing_revision(self, group: str) -> int:
        standing = self._decider.ledger.standing.get(group)
        return standing.revision if standing is not None else 0

    def _end(self, group: str, revision: int) -> None:
        """Withdraws the revision after a while, unless the merger that got the hint did."""
        if self._decider.ledger.ended_revisions.get(group, 0) < revision:
            self._ending.put(group, (revision, self._decider.based_on), self._now)
            self._wake.set()

    def _attempt_failed(self, _subject: str, data: bytes) -> None:
        attempt = _attempts.decode(data)
        self._put_hinted(attempt.group, None)
        self.waiting.refused(attempt.group, attempt, self._now, untested=True)
        self.waiting.told(attempt.group, attempt, self._now)
        if attempt.group in self.waiting.refused_without_clusters and self._fleet.known.any():
            self._forced.add(attempt.group)
        self._wake.set()

    def _controller_changed(self, subject: str, data: bytes) -> None:
        if data:  # the content is not used, but junk must be refused
            _messages.decode(data)
        self._forced |= self.waiting.refused_by(untoken(subject.split(".")[2]))
        self._wake.set()

    def registry_changed(self) -> None:
        """Decides all waiting groups again, because other controllers are asked now, or with other settings."""
        self._forced.update(self.waiting.groups)
        self._wake.set()

    def _folded(self, commit: Commit, changes: Changes) -> None:
        ledger = self._decider.ledger
        for group in changes.groups:
            head = self._hinted.get(group)
            if head is not None and settled(ledger, group, head.revision):
                self._hinted.pop(group)
            waiter = self.waiting.groups.get(group)
            if waiter is not None and settled(ledger, group, waiter.record.revision):
                self.waiting.drop(group)
        for withdrawal in commit.entries_of(Withdrawal):
            self._ending.pop(withdrawal.group)
            waiter = self.waiting.groups.get(withdrawal.group)
            if waiter is not None and waiter.record.revision <= withdrawal.revision:
                self.waiting.drop(withdrawal.group)
        if commit.entries_of(Settlement):
            for group in changes.groups & (ledger.steered | ledger.displaced.keys()):
                self._bus.spawn(self._expect_displaced(group))
        if ((changes.released or changes.consumers) and self.waiting.groups) or self._snapshots.due:
            self._wake.set()

    async def _expect_displaced(self, group: str) -> None:
        """Lets a group wait that a settlement displaced, if the merger that settled died before it did."""
        await asyncio.sleep(HINT_GRACE)
        if group in self.waiting.groups:
            return
        key = group_tokens(group)
        async for attempt in until_done((NoAnswer, BusError), first=0.1):
            with attempt:
                stored = await self._bus.bucket(stores.GROUPS).get(key)
                if stored is not None:
                    self._record_changed(key, stored.value, stored.revision)

    async def move_devices(self, cluster: str, kind: str) -> list[str]:
        """Lets pods leave devices that failed together. Returns the kinds of these once the log says so."""
        return await self._settling.move_devices(cluster, kind)

    def _displaced(self, record: Revision, wait: float) -> None:
        """Lets a group wait that a settlement displaced."""
        ledger = self._decider.ledger
        # This merger may have slept until the group was deleted and forgotten.
        if ledger.knows(record.group) and not settled(ledger, record.group, record.revision):
            self.waiting.put(record, self._now + wait)
            self._wake.set()

    def _reloaded(self, _ledger: Ledger) -> None:
        self.outdated.set()

    def _fleet_changed(self, change: FleetChange) -> None:
        if change.reset:
            self._reset_clusters()
            # Groups were refused over a fleet that was empty or incomplete. Where nothing fits even now, the reasons differ.
            self._forced.update(self.waiting.groups)
        else:
            opened, relabelled = self._clusters.update(change.clusters)
            if opened:
                self.waiting.clusters_opened(opened, self._fleet.epoch)
            if relabelled:
                self._forced.update(self.waiting.groups)
        if self.waiting.refused_without_clusters and self._fleet.known.any():
            self._forced |= self.waiting.refused_without_clusters
        self._releases.fleet_changed(change)
        if self.waiting.groups:
            self._wake.set()

    def _reset_clusters(self) -> None:
        self._clusters.reset()
        self.waiting.clusters_opened((), self._fleet.epoch)

    # -- effects ------------------------------------------------------------------------------------------------------

    async def _withdraw_due(self) -> None:
        due = [(group, ending) for group in self._ending.due(self._now) if (ending := self._ending.pop(group))]
        # After a start there may be thousands of ended groups that the ledger has forgotten: together they share commits.
        await asyncio.gather(*(self._decider.withdraw(group, *ending) for group, ending in due))

    async def _round(self) -> None:
        """Decides every group again that something new may help. They are decided one after the other, the oldest first, so
        that it gets the room."""
        if not self.waiting.groups:
            self._tick = self._fleet.tick
            self._forced.clear()
            self._rows.clear()
            return
        forced = (self._forced | self.waiting.due(self._now)) & self.waiting.groups.keys()
        current = Round(self.waiting, forced, self._rows)
        self._forced, self._rows = set(), {}
        current.add(self._improved_rows())
        began = self._now
        while current.order:
            if self._fleet.tick != self._tick:
                # Room that came while a group was decided belongs to the oldest, even if that one was decided already.
                if rows := self._improved_rows():
                    current.add(rows)
            elif self._now - began > ROUND_TIME:
                self._forced.update(current.forced)
                self._rows = current.rows
                self._wake.set()
                return
            else:
                waiter = current.pop(self._fleet)
                if waiter is None:
                    continue
                if not await self._decide_again(waiter):
                    # Each of the others would wait for the controller's deadline, too. They are tried before this group is
                    # tried again: the controller may be slow for it alone.
                    self.waiting.postpone(current.order, self._now + back_off(self._silences) / 2)
                    self._silences += 1
                    return
                if self._silences:
                    self._silences = 0
                    self.waiting.bring_forward(self._now)
                    self._wake.set()

    async def _decide_again(self, waiter: Waiter) -> bool:
        """Returns false if a required controller did not answer."""
        group = waiter.record.group
        waiter.due = None
        clusters = self._fleet.size
        with tracing.stored_span("decide again", waiter.record.traceparent, **{"moorage.group": group}):
            outcome = await self._decider.decide(waiter.record, "", self._decider.based_on)
        if outcome is None:
            self._look_again(group)
            return True
        attempt = outcome.attempt
        waiter.confined, waiter.confined_among = outcome.confined, clusters
        self.waiting.refused(group, attempt, self._now, untested=False, outdated=outcome.outdated)
        if attempt.phase == "Placed":
            self.waiting.drop(group)
        displaced = group in self._decider.ledger.displaced  # it keeps what it has, and the patcher says so
        if (not displaced and is_news(waiter, attempt, self._now)) or attempt.phase == "Placed":
            waiter.told, waiter.told_at = attempt, self._now
            await tell(self._bus, attempt, "")
        return not (waiter.attempt is attempt and waiter.silent)

    def _improved_rows(self) -> dict[str, NDArray[np.intp]]:
        """Returns the groups that changes since the last call may help, with the rows that changed."""
        improved = self._fleet.improved_since(self._tick)
        self._tick = self._fleet.tick
        return self.waiting.helped_by(self._fleet, improved)

    def _look_again(self, group: str) -> None:
        """Drops a group that needs no decision, or tries it again later because it is being decided elsewhere."""
        waiter = self.waiting.groups.get(group)
        if waiter is None:
            return
        if settled(self._decider.ledger, group, waiter.record.revision):
            self.waiting.drop(group)
        else:
            waiter.due = self._now + HINT_GRACE


class LeasedWaitLoop:
    """Runs a wait loop whenever this merger holds the lease. `loop` is None while another merger does."""

    def __init__(self, bus: Bus, decider: Decider, events: DecisionEvents) -> None:
        self._bus, self._decider, self._events = bus, decider, events
        self.loop: WaitLoop | None = None

    def registry_changed(self) -> None:
        if self.loop is not None:
            self.loop.registry_changed()

    async def run(self) -> None:
        lease = Lease(self._bus, "pending")
        try:
            while True:
                await lease.hold()
                while not lease.lost.is_set():
                    await self._run_until_lost(lease)
        finally:
            await lease.release()

    async def _run_until_lost(self, lease: Lease) -> None:
        """Runs a wait loop until the lease is lost or the loop must begin anew."""
        loop = self.loop = WaitLoop(self._bus, self._decider, self._events)
        task = asyncio.ensure_future(loop.run())
        ends = [asyncio.ensure_future(event.wait()) for event in (lease.lost, loop.outdated)]
        try:
            await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.loop = None
            for end in ends:
                end.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()
