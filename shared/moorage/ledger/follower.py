"""Keeps a ledger current: it loads the newest snapshot, folds what the log delivers, and loads again after a gap."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer, OrderedConsumer, until_done
from moorage.classes import ClassCatalog
from moorage.fleet import Fleet
from moorage.mesh import stores
from moorage.model.claims import Allocation, Commit, Decision, SlotGrants, SlotReservations

from .capacity import Capacity
from .commits import decode_commit
from .device_quotas import DeviceQuotas
from .ledger import Changes, Ledger
from .snapshots import read_snapshot

log = structlog.get_logger("ledger")
LOG = stores.LEDGER
#: Kinds of entries, beside decisions, whose room is held until they are folded.
_HELD: tuple[type[Allocation | SlotReservations | SlotGrants], ...] = (Allocation, SlotReservations, SlotGrants)


class LedgerLost(LookupError):
    """The log begins after the newest readable snapshot, so commits are missing."""


class LedgerFollower:
    """Calls `on_fold` after each commit, and `on_reload` when `ledger` was replaced by another object. `broken` is set when
    a callback failed, so that other callbacks were not called; the worker then ends."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._log = bus.log(LOG)
        self.ledger = Ledger()
        self.on_fold: list[Callable[[Commit, Changes], None]] = []
        self.on_reload: list[Callable[[Ledger], None]] = []
        #: The last commit that a committer sent, and its bytes: it need not be decoded if the log delivers it before its acknowledgement.
        self.sent: tuple[bytes, Commit] | None = None
        self._tail: OrderedConsumer | None = None
        self._loading = False
        self.broken = False
        self._moved = asyncio.Event()

    async def start(self) -> None:
        await self._load()

    async def stop(self) -> None:
        if self._tail is not None:
            await self._tail.stop()
            self._tail = None

    async def wait(self, seq: int) -> None:
        """Waits until everything up to `seq` is folded."""
        while self.ledger.seq < seq:
            await self.moved()

    async def moved(self) -> None:
        """Waits for the next fold or reload."""
        self._moved.clear()
        await self._moved.wait()

    def fold(self, seq: int, commit: Commit) -> bool:
        """Folds the next commit; one that is folded already is ignored. A committer passes its own commit as soon as it is
        acknowledged, without waiting for the log to deliver it."""
        if seq <= self.ledger.seq:
            return False
        if seq != self.ledger.seq + 1:
            self._reload(f"commit {seq} came after {self.ledger.seq}")
            return False
        with self._end_worker_on_error():
            changes = self.ledger.fold(seq, commit)
            self._moved.set()
            for callback in self.on_fold:
                callback(commit, changes)
        return True

    @contextlib.contextmanager
    def _end_worker_on_error(self) -> Iterator[None]:
        """Ends this worker if a callback fails: what the callbacks keep may no longer match the ledger. After a restart they
        get the complete ledger."""
        try:
            yield
        except Exception:
            self.broken = True
            self._bus.closed.set()
            log.error("a callback failed, so this worker ends: its state may not match the ledger", seq=self.ledger.seq)
            raise

    def _received(self, seq: int, data: bytes) -> None:
        if seq <= self.ledger.seq or self._loading or self.broken:
            return
        if self.sent is not None and data == self.sent[0]:
            self.fold(seq, self.sent[1])
            return
        try:
            commit = decode_commit(data)
        except msgspec.DecodeError as error:
            # Every follower folds it to nothing, so that all ledgers stay equal.
            self._bus.count("unreadable_commits")
            log.error("an unreadable commit is folded to nothing", seq=seq, error=str(error))
            commit = Commit()
        self.fold(seq, commit)

    def _reload(self, why: str) -> None:
        if not self._loading:
            self._loading = True
            log.warning("the ledger is loaded again", why=why)
            self._bus.spawn(self._load_again())

    async def _load_again(self) -> None:
        async for attempt in until_done((NoAnswer, BusError), first=0.05):
            with attempt:
                await self.stop()
                await self._load()

    async def _load(self) -> None:
        ledger = await read_snapshot(self._bus)
        first, last = await self._log.first(), await self._log.last()
        if first > ledger.seq + 1 and last > ledger.seq:
            raise LedgerLost(
                f"the decision log begins at {first}, but the newest readable snapshot ends at {ledger.seq}: the decisions "
                "between are lost; restore a backup into an empty state directory or broker with `moorage restore FILE`"
            )
        self.ledger = ledger
        self._loading = False
        self._moved.set()
        with self._end_worker_on_error():
            for callback in self.on_reload:
                callback(ledger)
        self._tail = await self._log.follow(ledger.seq + 1, self._received)


def keep_capacity(follower: LedgerFollower, fleet: Fleet, *, lazy: bool = False) -> Capacity:
    """Returns the capacity of the fleet, kept in step with the follower's ledger; a `lazy` one by its `refresh`."""
    capacity = Capacity(fleet, follower.ledger, lazy=lazy)

    def folded(commit: Commit, changes: Changes) -> None:
        entries = [entry.id for kind in _HELD for entry in commit.entries_of(kind)]
        capacity.folded(changes, commit.entries_of(Decision), entries)

    follower.on_fold.append(folded)
    follower.on_reload.append(capacity.reload)
    return capacity


def keep_quotas(follower: LedgerFollower, fleet: Fleet, catalog: ClassCatalog) -> DeviceQuotas:
    """Returns what projects hold of devices, kept in step with the follower's ledger."""
    quotas = DeviceQuotas(fleet, follower.ledger, catalog)
    follower.on_fold.append(lambda _commit, changes: quotas.folded(changes))
    follower.on_reload.append(quotas.reload)
    return quotas


async def open_ledger(bus: Bus) -> LedgerFollower:
    follower = LedgerFollower(bus)
    await follower.start()
    return follower
