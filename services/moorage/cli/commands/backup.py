"""`moorage backup` and `moorage restore`: everything that cannot be made again, in one file and back.

A back-up is taken while the mesh runs. Streams cannot be copied at one moment, so effects are copied before their causes:
events and statuses, then decisions, then groups, then documents. Whatever happens meanwhile then looks as if the mesh had
been killed after a cause and before its effect, and every worker goes on from there. Two things would not look so, and are
looked for: a group with claims that is deleted meanwhile, and a decision log cut shorter than the snapshot it goes with.
Then all is copied again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from moorage.mesh import stores

from ..backup_archive import Archive, write
from ..documents import STDIN
from ..exit_codes import CONFLICT, DONE, UNREACHABLE, USAGE, Failure
from ..output import StateDir
from ..state_dir import StateDirectory, state_dir, write_private
from ..terminal import note, out

if TYPE_CHECKING:
    from moorage.bus import Bus, Settings

#: Effects before causes. Refused messages are not kept; leases only by their number.
STREAMS = (
    stores.EVENTS,
    f"OBJ_{stores.SIMULATED_FLEET}",
    f"KV_{stores.STATUS}",
    f"KV_{stores.DESIRED}",
    f"OBJ_{stores.SNAPSHOTS}",
    stores.LEDGER,
    f"KV_{stores.GROUPS}",
    f"KV_{stores.REVISIONS}",
    f"KV_{stores.DOCUMENTS}",
    f"KV_{stores.RESOURCES}",
    f"KV_{stores.CONTROLLERS}",
    f"KV_{stores.CLUSTERS}",
    f"KV_{stores.TOKENS}",
)
LEASES = f"KV_{stores.LEASES}"
OTHERS = (LEASES, stores.REJECTED)
_KEYS = "keys.json"
_TRIES = 8


def backup(file: str, /, *, state: StateDir = None) -> int:
    """Write everything that cannot be made again into one file, while the mesh runs.

    Documents, revisions, life cycle, resources, the registry of controllers, cluster ids with labels and cordons, the
    decision log, desired state, status, events and hashed access tokens; of a mesh on this machine also its keys, so keep
    the file as you keep those. MOORAGE_NATS_URL and MOORAGE_NATS_SEED (an administrator's) name another broker.

    Parameters
    ----------
    file
        Where to; replaced in one step when all is there. `-` is stdout.
    """
    where = _here(state)

    def work(settings: Settings, local: bool) -> int:
        with ExitStack() as stack:
            made = asyncio.run(taken(settings, stack))
            if local:
                made.parts[_KEYS] = keys = _scratch(stack)
                keys.write(where.secrets.read_bytes())
            if file == STDIN:
                write(sys.stdout.buffer, made.about, made.parts)
                sys.stdout.buffer.flush()
            else:
                _replace(Path(file), made)
        streams = made.about["streams"]
        total = sum(one["state"]["messages"] for one in streams.values())
        note(
            f"{len(streams)} streams with {total} messages, decisions up to {streams['MOORAGE_LEDGER']['state']['last_seq']}"
        )
        if file != STDIN:
            out(file)
        return DONE

    return _with_broker(where, work)


def _here(state: Path | None) -> StateDirectory:
    """Not the mesh that all other commands would be about: the gateway has nothing to back up with."""
    if state is None and os.environ.get("MOORAGE_URL") and not os.environ.get("MOORAGE_NATS_URL"):
        raise Failure(
            "MOORAGE_URL names a mesh, and this works on a broker: set MOORAGE_NATS_URL and MOORAGE_NATS_SEED (an "
            "administrator's) of that mesh, or name a directory on this machine with --state",
            USAGE,
        )
    return StateDirectory(state_dir(state))


def _scratch(stack: ExitStack) -> IO[bytes]:
    file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    return file


class _Made:
    def __init__(self, about: dict[str, Any], parts: dict[str, IO[bytes]]) -> None:
        self.about, self.parts = about, parts


def _replace(path: Path, made: _Made) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out_file:
            write(out_file, made.about, made.parts)
            out_file.flush()
            os.fsync(out_file.fileno())
        fresh.replace(path)
    except OSError as wrong:
        fresh.unlink(missing_ok=True)
        raise Failure(f"cannot write {path}: {wrong.strerror}") from wrong


async def taken(settings: Settings, stack: ExitStack) -> _Made:
    from moorage.bus import now_text, stream_backup
    from moorage.telemetry.health import version_of_moorage

    async with _connected(settings) as bus:
        for _ in range(_TRIES):
            parts: dict[str, IO[bytes]] = {}
            streams: dict[str, Any] = {}
            about: dict[str, Any] = {"release": version_of_moorage(), "created": now_text(), "streams": streams}
            async with _watched(bus) as unlike_a_crash:
                for stream in STREAMS:
                    name = f"streams/{stream}"
                    parts[name] = part = _scratch(stack)
                    streams[stream] = await stream_backup.snapshot(bus, stream, part.write)
                leases = await stream_backup.state_of(bus, LEASES)
                about["leases"] = 0 if leases is None else leases["last_seq"]
                why = await unlike_a_crash(streams[stores.LEDGER]["state"])
            if not why:
                return _Made(about, parts)
            note(f"{why}; once more")
    raise Failure(f"{why} in each of {_TRIES} attempts; try again when less is being deleted")


@contextlib.asynccontextmanager
async def _watched(bus: Bus) -> AsyncIterator[Any]:
    """What changes while streams are copied; yields a function that says why the copies are of no use."""
    from moorage.ledger import open_ledger
    from moorage.ledger.follower import SNAPSHOTS
    from moorage.model.claims import Decision
    from moorage.model.names import group_tokens

    store = bus.objects(SNAPSHOTS)
    cuts = await store.names()
    before = await _keys(bus)
    follower = await open_ledger(bus)
    claimed = {group_tokens(group) for group in follower.ledger.by_group}
    never = claimed - before
    follower.on_fold.append(
        lambda commit, _: claimed.update(group_tokens(d.group) for d in commit.entries_of(Decision))
    )

    async def unlike_a_crash(log: dict[str, Any]) -> str:
        await follower.wait(log["last_seq"])
        if await store.names() != cuts:
            return "the decision log was cut meanwhile"
        lost = claimed - await _keys(bus) - never
        return f"{len(lost)} groups with claims were deleted meanwhile" if lost else ""

    try:
        yield unlike_a_crash
    finally:
        await follower.stop()


async def _keys(bus: Bus) -> set[str]:
    """The groups there are."""
    found: set[str] = set()
    mirror = await bus.bucket(stores.GROUPS).mirror(lambda key, value, _: None if value is None else found.add(key))
    await mirror.stop()
    return found


def restore(file: str, /, *, state: StateDir = None) -> int:
    """Put a back-up into an empty place: a state directory that has no mesh yet, or an empty broker.

    Nothing else may run there; afterwards start it as always. Numbers mean what they meant: revisions, ETags, sequences of
    decisions, ids of events. Clusters report again by themselves.

    Parameters
    ----------
    file
        What `moorage backup` wrote. `-` is stdin.
    """
    where = _here(state)
    with ExitStack() as stack:
        path = Path(file)
        if file == STDIN:
            copy = stack.enter_context(tempfile.NamedTemporaryFile())
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            path = Path(copy.name)
        archive = Archive(path)
        if missing := set(STREAMS) - archive.about["streams"].keys():
            raise Failure(f"{file} lacks {', '.join(sorted(missing))}")

        def work(settings: Settings, local: bool) -> int:
            asyncio.run(_put(settings, archive))
            if local and _KEYS in archive.about["parts"]:
                write_private(where.secrets, archive.content(_KEYS).decode())
            return DONE

        _with_broker(where, work, empty=True)
    last = archive.about["streams"][stores.LEDGER]["state"]["last_seq"]
    note(f"restored the state of {archive.about['created']}, decisions up to {last}")
    out("restored")
    return DONE


async def _put(settings: Settings, archive: Archive) -> None:
    from moorage.bus import BusError, NoAnswer
    from moorage.bus.provision import create_leases
    from moorage.bus.stream_backup import remove
    from moorage.bus.stream_backup import restore as put_back
    from moorage.mesh.discovery import installed

    async with _connected(settings) as bus:
        found = await _refuse_what_is_used(bus)
        for stream in found:
            await remove(bus, stream)
        done: list[str] = []
        try:
            for stream in STREAMS:
                done.append(stream)
                await put_back(bus, stream, archive.about["streams"][stream], archive.chunks(f"streams/{stream}"))
            done.append(LEASES)
            # Agents that live on heard numbers of leases and versions that were given after the back-up, or after an earlier
            # restore of it: those to come are larger. Nobody decides more than a thousand times a second.
            await create_leases(bus, max(archive.about["leases"], time.time_ns() // 1_000_000))
            await bus.provision(installed().stores.values())
        except BaseException:
            for stream in done:  # half of a mesh is worse than none
                with contextlib.suppress(BusError, NoAnswer):
                    await remove(bus, stream)
            raise


async def _refuse_what_is_used(bus: Bus) -> list[str]:
    """The streams that are there, all of them empty."""
    from moorage.bus.stream_backup import state_of

    if running := await _running(bus):
        raise Failure(f"workers run on this broker: {', '.join(running)}; stop them first", CONFLICT)
    found: list[str] = []
    for stream in (*STREAMS, *OTHERS):
        state = await state_of(bus, stream)
        if state is None:
            continue
        if state["last_seq"]:
            raise Failure(
                f"the place is not empty: {stream} has {state['messages']} messages; a back-up goes into another state "
                "directory (--state DIR) or an empty broker",
                CONFLICT,
            )
        found.append(stream)
    return found


async def _running(bus: Bus) -> list[str]:
    """Kinds of workers that answer."""
    kinds: set[str] = set()
    inbox = bus.nc.new_inbox()
    sub = await bus.subscribe(inbox, lambda _, data: kinds.add(str(json.loads(data or b"{}").get("name", ""))))
    await bus.settle()
    await bus.publish("$SRV.PING", b"", inbox)
    await asyncio.sleep(0.5)
    await sub.unsubscribe()
    return sorted(kind.removeprefix("moorage-") for kind in kinds if kind.startswith("moorage-"))


@contextlib.asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[Bus]:
    from moorage.bus import Bus, BusError, NoAnswer

    try:
        bus = await Bus.connect(settings, worker="admin", timeout=15)
        try:
            yield bus
        finally:
            await bus.close()
    except (NoAnswer, OSError) as wrong:
        raise Failure(f"{settings.nats_url}: {wrong}", UNREACHABLE) from wrong
    except BusError as wrong:
        raise Failure(f"{settings.nats_url}: {wrong}") from wrong


def _with_broker(where: StateDirectory, work: Any, *, empty: bool = False) -> int:
    """On the broker that is named, on that of the running mesh, or on one started for the moment on its directory."""
    from moorage.bus import Settings

    if os.environ.get("MOORAGE_NATS_URL"):
        return int(work(Settings.from_env(), False))
    if not empty:
        endpoint = where.read_endpoint()
        if endpoint is not None and where.holder():
            return int(work(Settings(endpoint["nats"], endpoint["natsSeed"]), True))
        if not where.secrets.exists():
            raise Failure(f"there is no mesh in {where.root}; name its directory with --state", UNREACHABLE)
    where.make()
    lock = where.take()
    try:
        with _broker(where) as settings:
            return int(work(settings, True))
    finally:
        os.close(lock)


@contextlib.contextmanager
def _broker(where: StateDirectory) -> Iterator[Settings]:
    from moorage.bus import Settings
    from moorage.mesh.discovery import installed

    from ..up import brokers
    from ..up.credentials import Credentials

    secrets = Credentials.open(where, installed().users)
    port = brokers.free_port()
    brokers.write_nats_conf(where, f"127.0.0.1:{port}", secrets, installed())
    with (where.logs / "nats.log").open("ab") as log:
        process = subprocess.Popen([brokers.nats_server(), "-c", str(where.nats_conf)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while not brokers.nats_ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise Failure(f"the broker does not start; see {where.logs / 'nats.log'}")
            time.sleep(0.02)
        yield Settings(f"nats://127.0.0.1:{port}", secrets.seeds["admin"])
    finally:
        process.terminate()
        process.wait(20)
