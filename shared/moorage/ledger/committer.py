"""Appends entries to the decision log. A message has many entries, and is only ever appended to the state that it was
checked against."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from moorage.bus import Bus, BusError, Conflict, NoAnswer, new_id
from moorage.model.claims import Commit, Decision, Entry

from .capacity import Capacity
from .commits import encode_commit, encode_entry
from .device_quotas import DeviceQuotas
from .entries import Batch, Dropped, handler_of
from .entries.decision import NO_ROOM, WITHDRAWN
from .entries.handler import NEXT_COMMIT
from .follower import LOG, LedgerFollower
from .ledger import Changes, Ledger

log = structlog.get_logger("ledger")

MAX_ENTRIES = 32
MAX_BYTES = 768 << 10
_ENVELOPE = 1024
#: Seconds for which a committer pauses after a win while others append too. Without it, two committers refuse each other's
#: batches for many rounds.
PAUSE = 0.002
_RECENTLY = 1.0


class Committed(msgspec.Struct, frozen=True):
    seq: int


#: Is called right before each attempt to append an entry. Returns why the entry may not be appended, the one to append in its
#: place, or None.
Guard = Callable[[Ledger], Dropped | Entry | None]
#: Is called when other decisions took the room. Returns another decision, held in the capacity already, or None.
DecideAgain = Callable[[], Decision | None]


@dataclass(slots=True)
class _Pending:
    entry: Entry
    raw: msgspec.Raw
    guard: Guard | None
    again: DecideAgain | None
    done: asyncio.Future[Committed | Dropped] = field(repr=False)


class Committer:
    """Appends the entries of one process in batches. `keep_capacity` must keep the capacity in step with the log. Decisions
    must be held in the capacity before they are committed; they are given back when dropped and become claims when folded.
    """

    def __init__(
        self, bus: Bus, follower: LedgerFollower, capacity: Capacity, quotas: DeviceQuotas | None = None
    ) -> None:
        self._bus, self._follower, self._capacity, self._quotas = bus, follower, capacity, quotas
        self._log = bus.log(LOG)
        self.ident = new_id()
        self._waiting: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._others_at = -_RECENTLY  # when a commit of another committer was folded last
        self._sent = ""
        self._refused: tuple[str, ...] | None = None  # decisions of the last sent commit that folded to nothing
        self.conflicts = 0
        follower.on_fold.append(self._folded)
        self._task = bus.spawn(self._run())

    async def commit(
        self, entry: Entry, guard: Guard | None = None, again: DecideAgain | None = None
    ) -> Committed | Dropped:
        """Appends the entry. `again` makes another decision at once where the room was taken, so that the group keeps its
        turn."""
        raw = encode_entry(entry)
        if (too_large := _too_large(raw)) is not None:
            handler_of(entry).give_back(entry, self._capacity)
            return too_large
        done: asyncio.Future[Committed | Dropped] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(entry, raw, guard, again, done))
        self._wake.set()
        return await done

    def _folded(self, commit: Commit, changes: Changes) -> None:
        if commit.by != self.ident:
            self._others_at = asyncio.get_running_loop().time()
        elif commit.id == self._sent:
            self._refused = changes.refused

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._commit_batch(self._take())

    def _take(self) -> list[_Pending]:
        batch: list[_Pending] = []
        size = _ENVELOPE
        while self._waiting and len(batch) < MAX_ENTRIES and size + len(self._waiting[0].raw) <= MAX_BYTES:
            size += len(self._waiting[0].raw) + 1
            batch.append(self._waiting.popleft())
        return batch

    def _drop(self, pending: _Pending, why: Dropped) -> None:
        handler_of(pending.entry).give_back(pending.entry, self._capacity)
        if not pending.done.done():
            pending.done.set_result(why)

    def _check(self, pendings: list[_Pending]) -> list[_Pending]:
        """Drops what may not be appended any more, puts off what must wait for the next commit, and returns the rest. The order
        matters: room that a dropped decision gives back is free for those after it."""
        batch = Batch(self._follower.ledger, self._capacity)
        quotas = self._quotas.batch() if self._quotas is not None else None
        good: list[_Pending] = []
        later: list[_Pending] = []
        size = _ENVELOPE
        for number, pending in enumerate(pendings):
            why = self._guarded(pending)
            if why is None:
                why = handler_of(pending.entry).check(pending.entry, batch)
            if why is NO_ROOM and self._decided_again(pending):
                why = None
            if why is None and quotas is not None and isinstance(pending.entry, Decision):
                why = quotas.check(pending.entry)
            if why is None and size + len(pending.raw) > MAX_BYTES:  # one that was made anew is larger
                later += pendings[number:]
                break
            if why is NEXT_COMMIT:
                later.append(pending)
            elif why is not None:
                self._drop(pending, why)
            else:
                good.append(pending)
                size += len(pending.raw) + 1
        self._waiting.extendleft(reversed(later))
        return good

    def _guarded(self, pending: _Pending) -> Dropped | None:
        """Asks the guard of an entry, and takes over the entry that it makes in its place."""
        made = pending.guard(self._follower.ledger) if pending.guard is not None else None
        if made is None or isinstance(made, Dropped):
            return made
        pending.entry, pending.raw = made, encode_entry(made)
        return _too_large(pending.raw)

    def _decided_again(self, pending: _Pending) -> bool:
        if pending.again is None:
            return False
        handler_of(pending.entry).give_back(pending.entry, self._capacity)
        decision = pending.again()
        if decision is None:
            return False
        pending.entry, pending.raw = decision, encode_entry(decision)
        return len(pending.raw) <= MAX_BYTES - _ENVELOPE

    async def _commit_batch(self, batch: list[_Pending]) -> None:
        while batch := self._check(batch):
            self._check_follower()
            ident, at = new_id(), _now()
            self._sent, self._refused = ident, None
            expected = self._follower.ledger.seq
            data = encode_commit(ident, self.ident, [pending.raw for pending in batch], at)
            commit = Commit(id=ident, by=self.ident, at=at, entries=[pending.entry for pending in batch])
            self._follower.sent = data, commit
            try:
                seq = await self._log.append(data, expected=expected)
            except Conflict:
                self.conflicts += 1
                await self._catch_up(expected)
                continue
            except (NoAnswer, BusError) as error:
                log.warning("a commit was not acknowledged", error=str(error))
                if not await self._is_committed(ident, expected):
                    continue
                seq = expected + 1  # it can be nowhere else
            else:
                self._follower.fold(seq, commit)
            self._check_follower()  # the log may have delivered the commit before its acknowledgement came
            for pending in batch:
                self._committed(pending, seq)
            if asyncio.get_running_loop().time() - self._others_at < _RECENTLY:
                await asyncio.sleep(PAUSE)
            return

    def _check_follower(self) -> None:
        if self._follower.broken:
            raise RuntimeError("the capacity may be out of step with the ledger")

    def _committed(self, pending: _Pending, seq: int) -> None:
        handler = handler_of(pending.entry)
        # The fold turned what was held into claims. After a reload instead of a fold it is still held.
        handler.give_back(pending.entry, self._capacity)
        if not pending.done.done():
            took_effect = handler.took_effect(pending.entry, self._follower.ledger, self._refused)
            pending.done.set_result(Committed(seq) if took_effect else WITHDRAWN)

    async def _catch_up(self, expected: int) -> None:
        """Waits until the commit that took the sequence after `expected` is folded. The follower delivers it; if it does
        not, the log is asked whether there is one."""
        while self._follower.ledger.seq <= expected:
            try:
                async with asyncio.timeout(1.0):
                    await self._follower.moved()
            except TimeoutError:
                try:
                    last = await self._log.last()
                except (NoAnswer, BusError):
                    continue
                if last <= expected:
                    return

    async def _is_committed(self, ident: str, expected: int) -> bool:
        """Returns whether an unacknowledged commit is in the log. The append may still be under way, but it can succeed only
        right after `expected`. So an empty commit is appended there, unless another one is there already: from then on the
        first commit is in the log or never will be."""
        while True:
            if self._follower.ledger.seq > expected:
                return ident in self._follower.ledger.commits
            fence = Commit(id=new_id(), by=self.ident, at=_now())
            try:
                seq = await self._log.append(encode_commit(fence.id, fence.by, at=fence.at), expected=expected)
            except Conflict:
                await self._catch_up(expected)
            except (NoAnswer, BusError) as error:
                log.warning("the log cannot be asked for a commit that was not acknowledged", error=str(error))
                await asyncio.sleep(0.1)
            else:
                self._follower.fold(seq, fence)


def _too_large(raw: msgspec.Raw) -> Dropped | None:
    if len(raw) <= MAX_BYTES - _ENVELOPE:
        return None
    return Dropped("DecisionTooLarge", f"{len(raw)} bytes; a commit may have {MAX_BYTES}")


def _now() -> float:
    return round(time.time(), 3)
