"""A ledger kept current from the log: the newest snapshot, then the tail; loaded again when the tail has a gap."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import msgspec
import nats.errors
import nats.js.errors
import structlog

from moorage.bus import Bus, BusError, NoAnswer, OrderedConsumer
from moorage.bus.failpoints import reached
from moorage.fleet import Fleet
from moorage.mesh import stores
from moorage.model.claims import Commit, Decision

from .capacity import Capacity
from .commits import decode_commit
from .ledger import Changes, Ledger

log = structlog.get_logger("ledger")
LOG = stores.LEDGER
SNAPSHOTS = stores.SNAPSHOTS
_PREFIX = "ledger-"
#: Who waits longer for a snapshot waits for a part that is not there; a list of them is short.
PATIENCE, LISTED = 30.0, 5.0


class LedgerLost(LookupError):
    """The log does not reach back to a snapshot that can be read."""


class LedgerFollower:
    """`on_fold` after each commit, `on_reload` when the ledger was replaced as a whole (it is another object then).
    `broken`: somebody was told in part only, and this worker ends."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._log = bus.log(LOG)
        self.ledger = Ledger()
        self.on_fold: list[Callable[[Commit, Changes], None]] = []
        self.on_reload: list[Callable[[Ledger], None]] = []
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
        """Until everything up to `seq` is folded."""
        while self.ledger.seq < seq:
            await self.moved()

    async def moved(self) -> None:
        """Until the next fold."""
        self._moved.clear()
        await self._moved.wait()

    def fold(self, seq: int, commit: Commit) -> bool:
        """Folds what comes next. A committer calls this with its own commit as soon as it is acknowledged, so that it
        need not wait for the tail; whatever comes twice is passed over."""
        if seq <= self.ledger.seq:
            return False
        if seq != self.ledger.seq + 1:
            self._reload(f"{seq} came after {self.ledger.seq}")
            return False
        with self._whole():
            changes = self.ledger.fold(seq, commit)
            self._moved.set()
            for callback in self.on_fold:
                callback(commit, changes)
        return True

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What follows the ledger is told as a whole, or this worker ends: one that is started anew has all there is."""
        try:
            yield
        except Exception:
            self.broken = True
            self._bus.closed.set()
            log.error("what follows the ledger may not be what it says: this worker ends", seq=self.ledger.seq)
            raise

    def _received(self, seq: int, data: bytes) -> None:
        if seq <= self.ledger.seq or self._loading or self.broken:
            return
        try:
            commit = decode_commit(data)
        except msgspec.DecodeError as error:
            # Everyone folds a message that cannot be read to nothing, or two folds of one log would differ.
            self._bus.count("unreadable_commits")
            log.error("a commit that cannot be read folds to nothing", seq=seq, error=str(error))
            commit = Commit()
        self.fold(seq, commit)

    def _reload(self, why: str) -> None:
        if not self._loading:
            self._loading = True
            log.warning("the ledger is loaded again", why=why)
            self._bus.spawn(self._load_again())

    async def _load_again(self) -> None:
        delay = 0.05
        while True:
            try:
                await self.stop()
                await self._load()
                return
            except (NoAnswer, BusError) as error:
                log.warning("loading the ledger failed", error=str(error))
                await asyncio.sleep(delay)
                delay = min(2.0, delay * 2)

    async def _load(self) -> None:
        ledger = await read_snapshot(self._bus)
        first, last = await self._log.first(), await self._log.last()
        if first > ledger.seq + 1 and last > ledger.seq:
            raise LedgerLost(
                f"the decision log begins at {first}, the newest snapshot that can be read ends at {ledger.seq}: what was "
                "decided between is lost here; `moorage restore FILE` puts a back-up into an empty place"
            )
        self.ledger = ledger
        self._loading = False
        self._moved.set()
        with self._whole():
            for callback in self.on_reload:
                callback(ledger)
        self._tail = await self._log.follow(ledger.seq + 1, self._received)


def keep_capacity(follower: LedgerFollower, fleet: Fleet) -> Capacity:
    """The room that claims take, kept in step with this ledger from now on."""
    capacity = Capacity(fleet, follower.ledger)
    follower.on_fold.append(lambda commit, changes: capacity.folded(changes, commit.entries_of(Decision)))
    follower.on_reload.append(capacity.reload)
    return capacity


async def open_ledger(bus: Bus) -> LedgerFollower:
    follower = LedgerFollower(bus)
    await follower.start()
    return follower


async def read_snapshot(bus: Bus) -> Ledger:
    """The newest that can be read; an empty ledger where there is none."""
    tried: set[str] = set()
    # Listed anew each time: the older ones may be deleted meanwhile, for the sake of a newer one.
    while names := [name for name in await _names(bus) if name not in tried]:
        ledger = await _read(bus, names[-1])
        if ledger is not None:
            return ledger
        tried.add(names[-1])
    return Ledger()


async def newest_snapshot(bus: Bus) -> int:
    """The sequence that it folds, or 0."""
    names = await _names(bus)
    return int(names[-1].removeprefix(_PREFIX)) if names else 0


async def _names(bus: Bus) -> list[str]:
    try:
        async with asyncio.timeout(LISTED):
            return [name for name in await bus.objects(SNAPSHOTS).names() if name.startswith(_PREFIX)]
    except TimeoutError as error:
        raise NoAnswer("the ledger's snapshots: no answer") from error
    except nats.errors.Error as error:
        raise BusError(f"the ledger's snapshots: {error}") from error


async def _read(bus: Bus, name: str) -> Ledger | None:
    try:
        async with asyncio.timeout(PATIENCE):
            data = await bus.objects(SNAPSHOTS).get(name)
        return None if data is None else Ledger.decode(data)
    except TimeoutError:
        why = f"not whole within {PATIENCE:g} s"
    except (nats.js.errors.DigestMismatchError, nats.js.errors.BadObjectMetaError) as error:
        why = f"damaged ({type(error).__name__})"
    except (msgspec.DecodeError, ValueError) as error:
        why = str(error)
    except nats.errors.Error as error:
        raise BusError(f"reading {name}: {error}") from error
    log.error("a ledger snapshot that cannot be read is passed over", name=name, error=why)
    return None


async def write_snapshot(bus: Bus, ledger: Ledger) -> str:
    """The log keeps what comes after the second-newest snapshot, so that one that turns out unreadable costs nothing."""
    store = bus.objects(SNAPSHOTS)
    name = f"{_PREFIX}{ledger.seq:020d}"
    try:
        await store.put(name, ledger.encode())
        reached("ledger.snapshot")
        older = [n for n in await _names(bus) if n < name]
        if older:
            await bus.log(LOG).purge(int(older[-1].removeprefix(_PREFIX)))
            for gone in older[:-1]:
                await store.delete(gone)
    except nats.errors.Error as error:
        raise BusError(f"writing {name}: {error}") from error
    return name
