"""Copies the streams of a broker into a backup and back.

A backup is taken while the mesh runs. Streams cannot be copied at one moment, so effects are copied before their causes: events
and statuses, then decisions, then groups, then documents. Whatever happens meanwhile then looks as if the mesh had been killed
after a cause and before its effect, and every worker can continue from there. Two changes would not look like that: the deletion
of a group with claims, and a decision log that is trimmed beyond the copied snapshot. They are detected, and everything is copied
again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from moorage.mesh import stores
from moorage.mesh.discovery import installed

from .backup_archive import Archive
from .exit_codes import CONFLICT, UNREACHABLE, Failure
from .terminal import note

if TYPE_CHECKING:
    from moorage.bus import Bus, Settings

LEASES = f"KV_{stores.LEASES}"
_ATTEMPTS = 8


@dataclass
class Snapshot:
    """Copies of all streams, and the manifest's entries about them."""

    about: dict[str, Any]
    parts: dict[str, IO[bytes]]


def temporary_file(stack: ExitStack) -> IO[bytes]:
    file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    return file


async def take_snapshot(settings: Settings, stack: ExitStack) -> Snapshot:
    """Copies all streams into temporary files, again if they changed in a way that cannot be restored."""
    from moorage.bus import now_text, stream_backup
    from moorage.telemetry.health import version_of_moorage

    async with _connect(settings) as bus:
        for _ in range(_ATTEMPTS):
            parts: dict[str, IO[bytes]] = {}
            streams: dict[str, Any] = {}
            about: dict[str, Any] = {"release": version_of_moorage(), "created": now_text(), "streams": streams}
            async with _detect_conflicts(bus) as find_conflict:
                for stream in installed().backed_up():
                    name = f"streams/{stream}"
                    parts[name] = part = temporary_file(stack)
                    streams[stream] = await stream_backup.snapshot(bus, stream, part.write)
                leases = await stream_backup.state_of(bus, LEASES)
                about["leases"] = 0 if leases is None else leases["last_seq"]
                conflict = await find_conflict(streams[stores.LEDGER]["state"])
            if not conflict:
                return Snapshot(about, parts)
            note(f"{conflict}; trying again")
    raise Failure(f"{conflict} in each of {_ATTEMPTS} attempts; try again when less is being deleted")


@contextlib.asynccontextmanager
async def _detect_conflicts(bus: Bus) -> AsyncIterator[Callable[[dict[str, Any]], Awaitable[str]]]:
    """Watches the decision log while streams are copied. Yields a function that returns why the copies cannot be used, if
    so."""
    from moorage.ledger import open_ledger
    from moorage.mesh.stores import SNAPSHOTS
    from moorage.model.claims import Decision
    from moorage.model.names import group_tokens

    store = bus.objects(SNAPSHOTS)
    snapshots = await store.names()
    groups = await _group_keys(bus)
    follower = await open_ledger(bus)
    claimed = {group_tokens(group) for group in follower.ledger.by_group}
    without_group = claimed - groups  # deleted before the backup began
    follower.on_fold.append(
        lambda commit, _: claimed.update(group_tokens(d.group) for d in commit.entries_of(Decision))
    )

    async def find_conflict(log: dict[str, Any]) -> str:
        await follower.wait(log["last_seq"])
        if await store.names() != snapshots:
            return "the decision log was trimmed during the backup"
        deleted = claimed - await _group_keys(bus) - without_group
        return f"{len(deleted)} groups with claims were deleted during the backup" if deleted else ""

    try:
        yield find_conflict
    finally:
        await follower.stop()


async def _group_keys(bus: Bus) -> set[str]:
    keys: set[str] = set()
    mirror = await bus.bucket(stores.GROUPS).mirror(lambda key, value, _: None if value is None else keys.add(key))
    await mirror.stop()
    return keys


async def restore_streams(settings: Settings, archive: Archive) -> None:
    """Restores all streams on an empty broker. If that fails, it removes those already restored."""
    from moorage.bus import BusError, NoAnswer
    from moorage.bus.provision import create_leases
    from moorage.bus.stream_backup import remove, restore

    async with _connect(settings) as bus:
        for stream in await _check_empty(bus):
            await remove(bus, stream)
        restored: list[str] = []
        try:
            for stream in installed().backed_up():
                restored.append(stream)
                await restore(bus, stream, archive.about["streams"][stream], archive.chunks(f"streams/{stream}"))
            restored.append(LEASES)
            # Agents that kept running know lease numbers and versions given out after the backup, or after an earlier restore
            # of it. New numbers must be larger; milliseconds are, as there are fewer than a thousand decisions a second.
            await create_leases(bus, max(archive.about["leases"], time.time_ns() // 1_000_000))
            await bus.provision(installed().stores.values())
        except BaseException:
            for stream in restored:  # half of a mesh is worse than none
                with contextlib.suppress(BusError, NoAnswer):
                    await remove(bus, stream)
            raise


async def _check_empty(bus: Bus) -> list[str]:
    """Returns the existing streams, which must all be empty; fails also if workers are running."""
    from moorage.bus.stream_backup import state_of

    if running := await _running_workers(bus):
        raise Failure(f"workers are running on this broker: {', '.join(running)}; stop them first", CONFLICT)
    found: list[str] = []
    for stream in (store.stream for store in installed().stores.values()):
        state = await state_of(bus, stream)
        if state is None:
            continue
        if state["last_seq"]:
            raise Failure(
                f"the target is not empty: {stream} has {state['messages']} messages; restore into another state "
                "directory (--state DIR) or an empty broker",
                CONFLICT,
            )
        found.append(stream)
    return found


async def _running_workers(bus: Bus) -> list[str]:
    """Returns the kinds of workers that answer a ping."""
    kinds: set[str] = set()
    inbox = bus.nc.new_inbox()
    sub = await bus.subscribe(inbox, lambda _, data: kinds.add(str(json.loads(data or b"{}").get("name", ""))))
    await bus.settle()
    await bus.publish("$SRV.PING", b"", inbox)
    await asyncio.sleep(0.5)
    await sub.unsubscribe()
    return sorted(kind.removeprefix("moorage-") for kind in kinds if kind.startswith("moorage-"))


@contextlib.asynccontextmanager
async def _connect(settings: Settings) -> AsyncIterator[Bus]:
    from moorage.bus import Bus, BusError, NoAnswer

    try:
        bus = await Bus.connect(settings, worker="admin", timeout=15)
        try:
            yield bus
        finally:
            await bus.close()
    except (NoAnswer, OSError) as error:
        raise Failure(f"{settings.nats_url}: {error}", UNREACHABLE) from error
    except BusError as error:
        raise Failure(f"{settings.nats_url}: {error}") from error
