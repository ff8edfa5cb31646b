"""Reads and writes snapshots of the ledger in the object store. A snapshot's name has the sequence number that it folds."""

from __future__ import annotations

import asyncio

import msgspec
import nats.errors
import nats.js.errors
import structlog

from moorage.bus import Bus, BusError, NoAnswer
from moorage.bus.failpoints import reached
from moorage.mesh import stores

from .ledger import Ledger

log = structlog.get_logger("ledger")
_PREFIX = "ledger-"
#: Seconds to wait for a snapshot. After that, a part of it is missing.
READ_TIMEOUT = 30.0
#: Seconds to wait for the list of snapshots, which is short.
LIST_TIMEOUT = 5.0


async def read_snapshot(bus: Bus) -> Ledger:
    """Returns the newest snapshot that can be read, or an empty ledger if there is none."""
    tried: set[str] = set()
    # Listed again each time: the older ones may be deleted meanwhile because a newer one was written.
    while names := [name for name in await _names(bus) if name not in tried]:
        ledger = await _read(bus, names[-1])
        if ledger is not None:
            return ledger
        tried.add(names[-1])
    return Ledger()


async def newest_snapshot(bus: Bus) -> int:
    """Returns the sequence number of the newest snapshot, or 0."""
    names = await _names(bus)
    return int(names[-1].removeprefix(_PREFIX)) if names else 0


async def write_snapshot(bus: Bus, ledger: Ledger) -> str:
    """Writes a snapshot and purges the log up to the second-newest one. So the log can still be folded if the newest turns
    out to be unreadable."""
    store = bus.objects(stores.SNAPSHOTS)
    name = f"{_PREFIX}{ledger.seq:020d}"
    try:
        await store.put(name, ledger.encode())
        reached("ledger.snapshot")
        older = [n for n in await _names(bus) if n < name]
        if older:
            await bus.log(stores.LEDGER).purge(int(older[-1].removeprefix(_PREFIX)))
            for unneeded in older[:-1]:
                await store.delete(unneeded)
    except nats.errors.Error as error:
        raise BusError(f"writing {name}: {error}") from error
    return name


async def _names(bus: Bus) -> list[str]:
    """Returns the names of all snapshots, the newest last."""
    try:
        async with asyncio.timeout(LIST_TIMEOUT):
            return [name for name in await bus.objects(stores.SNAPSHOTS).names() if name.startswith(_PREFIX)]
    except TimeoutError as error:
        raise NoAnswer("the ledger's snapshots: no answer") from error
    except nats.errors.Error as error:
        raise BusError(f"the ledger's snapshots: {error}") from error


async def _read(bus: Bus, name: str) -> Ledger | None:
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            data = await bus.objects(stores.SNAPSHOTS).get(name)
        return None if data is None else Ledger.decode(data)
    except TimeoutError:
        why = f"incomplete after {READ_TIMEOUT:g} s"
    except (nats.js.errors.DigestMismatchError, nats.js.errors.BadObjectMetaError) as error:
        why = f"damaged ({type(error).__name__})"
    except (msgspec.DecodeError, ValueError) as error:
        why = str(error)
    except nats.errors.Error as error:
        raise BusError(f"reading {name}: {error}") from error
    log.error("an unreadable ledger snapshot is skipped", name=name, error=why)
    return None
