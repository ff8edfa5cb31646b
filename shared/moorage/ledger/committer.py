"""Appends to the decision log: many entries in one message, each whole or absent, only ever onto what was folded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from moorage.bus import Bus, BusError, Conflict, NoAnswer, new_id
from moorage.model.base import Message
from moorage.model.claims import Commit, Decision, Reassign, Release, Withdrawal

from .capacity import Capacity
from .follower import LOG, LedgerFollower
from .ledger import Changes, Ledger

log = structlog.get_logger("ledger")

MAX_ENTRIES = 32
MAX_BYTES = 768 << 10
_ENVELOPE = 1024
#: After a win, the other committer gets its turn; without it two of them refuse each other's batches for many rounds.
PAUSE = 0.002
_RECENTLY = 1.0

Entry = Decision | Withdrawal | Release | Reassign
_encode = msgspec.json.Encoder().encode


class _RawCommit(Message, kw_only=True):
    """A Commit whose entries are encoded already: each is, once, to know its size."""

    by: str = ""
    decisions: list[msgspec.Raw] = []
    withdrawals: list[msgspec.Raw] = []
    releases: list[msgspec.Raw] = []
    reassigns: list[msgspec.Raw] = []


class Committed(msgspec.Struct, frozen=True):
    seq: int


class Dropped(msgspec.Struct, frozen=True):
    """Not in the log, and will not be. `code`: DecisionTooLarge, Withdrawn, or "" where it no longer fits and may be
    decided anew."""

    code: str
    message: str


_WITHDRAWN = Dropped("Withdrawn", "the revision was withdrawn or overtaken")

#: Asked right before an entry goes out, each time: why it must not, or None.
Guard = Callable[[Ledger], Dropped | None]
#: Where others took the room: another decision in its place, held already, or None.
Again = Callable[[], Decision | None]


@dataclass(slots=True)
class _Pending:
    entry: Entry
    raw: msgspec.Raw
    guard: Guard | None
    again: Again | None
    done: asyncio.Future[Committed | Dropped] = field(repr=False)


def _kind(entry: Entry) -> str:
    if isinstance(entry, Decision):
        return "decisions"
    if isinstance(entry, Withdrawal):
        return "withdrawals"
    return "releases" if isinstance(entry, Release) else "reassigns"


class Committer:
    """One per process; the capacity is kept in step by `keep_capacity`. Decisions must be held in the capacity before they
    are given here; they are given back when dropped and become claims when folded."""

    def __init__(self, bus: Bus, follower: LedgerFollower, capacity: Capacity) -> None:
        self._bus, self._follower, self._capacity = bus, follower, capacity
        self._log = bus.log(LOG)
        self._me = new_id()
        self._waiting: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._others = -_RECENTLY
        self._sent = ""
        self._refused: tuple[str, ...] | None = None  # decisions of the commit sent last that folded to nothing
        self.conflicts = 0
        follower.on_fold.append(self._folded)
        self._task = bus.spawn(self._run())

    async def commit(self, entry: Entry, guard: Guard | None = None, again: Again | None = None) -> Committed | Dropped:
        """`again`: decides anew on the spot, so that who lost a place does not lose its turn, too."""
        raw = msgspec.Raw(_encode(entry))
        if len(raw) > MAX_BYTES - _ENVELOPE:
            if isinstance(entry, Decision):
                self._capacity.give_back(entry.id)
            return Dropped("DecisionTooLarge", f"{len(raw)} bytes; a commit may have {MAX_BYTES}")
        done: asyncio.Future[Committed | Dropped] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(entry, raw, guard, again, done))
        self._wake.set()
        return await done

    def _folded(self, commit: Commit, changes: Changes) -> None:
        if commit.by != self._me:
            self._others = asyncio.get_running_loop().time()
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
        if isinstance(pending.entry, Decision):
            self._capacity.give_back(pending.entry.id)
        if not pending.done.done():
            pending.done.set_result(why)

    def _check(self, batch: list[_Pending]) -> list[_Pending]:
        """What may still go. In order: what one gives back by being dropped is there for those after it."""
        ledger = self._follower.ledger
        good: list[_Pending] = []
        groups: set[str] = set()  # what their claims will be, one entry says
        for pending in batch:
            entry = pending.entry
            why = pending.guard(ledger) if pending.guard is not None else None
            if why is None and isinstance(entry, Decision):
                if not ledger.accepts(entry):
                    why = _WITHDRAWN
                elif entry.group in groups:
                    why = Dropped("", "the group's claims change with the same commit")
                elif not self._capacity.fits(entry.id) and not self._decided_anew(pending):
                    why = Dropped("", "the room is not there any more")
                groups.add(entry.group)
            elif why is None and isinstance(entry, Reassign) and (held := ledger.claims.get(entry.claim)) is not None:
                if held.group in groups:
                    why = Dropped("Overtaken", "the group is decided with the same commit")
                groups.add(held.group)
            if why is not None:
                self._drop(pending, why)
            else:
                good.append(pending)
        return good

    def _decided_anew(self, pending: _Pending) -> bool:
        assert isinstance(pending.entry, Decision)
        self._capacity.give_back(pending.entry.id)
        decision = pending.again() if pending.again is not None else None
        if decision is None:
            return False
        pending.entry, pending.raw = decision, msgspec.Raw(_encode(decision))
        return len(pending.raw) <= MAX_BYTES - _ENVELOPE

    async def _commit_batch(self, batch: list[_Pending]) -> None:
        while batch := self._check(batch):
            if self._follower.broken:
                raise RuntimeError("the capacity may not be what the ledger says")
            ident = self._sent = new_id()
            self._refused = None
            expected = self._follower.ledger.seq
            lists: dict[str, list[msgspec.Raw]] = {}
            for pending in batch:
                lists.setdefault(_kind(pending.entry), []).append(pending.raw)
            data = _encode(_RawCommit(id=ident, by=self._me, **lists))  # type: ignore[arg-type]
            try:
                seq = await self._log.append(data, expected=expected)
            except Conflict:
                self.conflicts += 1
                await self._catch_up(expected)
                continue
            except (NoAnswer, BusError) as error:
                log.warning("a commit was not acknowledged", error=str(error))
                if not await self._settle(ident, expected):
                    continue
                seq = expected + 1  # it could land nowhere else
            else:
                self._follower.fold(seq, self._whole(ident, batch))
            for pending in batch:
                entry = pending.entry
                if isinstance(entry, Decision):
                    # Folded to claims already; empty unless the fold came by a reload.
                    self._capacity.give_back(entry.id)
                if not pending.done.done():
                    nothing = isinstance(entry, Decision) and not self._stood(entry)
                    pending.done.set_result(_WITHDRAWN if nothing else Committed(seq))
            if asyncio.get_running_loop().time() - self._others < _RECENTLY:
                await asyncio.sleep(PAUSE)
            return

    def _stood(self, decision: Decision) -> bool:
        """What goes with a withdrawal of its revision folds to nothing. Of a fold that came by a reload there is only what
        stands now."""
        if self._refused is not None:
            return decision.id not in self._refused
        stands = self._follower.ledger.standing.get(decision.group)
        return stands is not None and stands.id == decision.id

    def _whole(self, ident: str, batch: list[_Pending]) -> Commit:
        commit = Commit(id=ident, by=self._me)
        for pending in batch:
            getattr(commit, _kind(pending.entry)).append(pending.entry)
        return commit

    async def _catch_up(self, expected: int) -> None:
        """Until the commit that came before ours is folded. The tail brings it; should it not, the log is asked."""
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

    async def _settle(self, ident: str, expected: int) -> bool:
        """Whether the commit stands. An append still on its way can only land right after `expected`; so put an empty
        commit there or find that somebody did: from then on it is in the log or never will be."""
        while True:
            if self._follower.ledger.seq > expected:
                return ident in self._follower.ledger.commits
            fence = Commit(id=new_id(), by=self._me)
            try:
                seq = await self._log.append(_encode(fence), expected=expected)
            except Conflict:
                await self._catch_up(expected)
            except (NoAnswer, BusError) as error:
                log.warning("settling waits for the log", error=str(error))
                await asyncio.sleep(0.1)
            else:
                self._follower.fold(seq, fence)
