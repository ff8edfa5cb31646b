"""`moorage backup` and `moorage restore`: write all durable state of a mesh into one file, and restore it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from moorage.mesh import stores
from moorage.mesh.discovery import installed

from ..backup_archive import Archive, write
from ..backup_streams import Snapshot, restore_streams, take_snapshot, temporary_file
from ..exit_codes import DONE, UNREACHABLE, USAGE, Failure
from ..output import StateDir
from ..state_dir import StateDirectory, state_dir, write_private
from ..terminal import STDIN, note, out

if TYPE_CHECKING:
    from moorage.bus import Settings

#: The archive's part with the secrets of a mesh on this machine.
_KEYS = "keys.json"


def backup(file: str, /, *, state: StateDir = None) -> int:
    """Back up a running mesh to a file.

    The file has documents, revisions, life-cycle states, resources, registered controllers, clusters with labels and cordons,
    the decision log, desired state, status, events and hashed access tokens. The backup of a mesh on this machine also has its
    keys: protect the file. MOORAGE_NATS_URL and MOORAGE_NATS_SEED (an administrator's) select another broker.

    Parameters
    ----------
    file
        Target file, replaced atomically; - for stdout.
    """
    directory = _local_state(state)

    def work(settings: Settings, local: bool) -> int:
        with ExitStack() as stack:
            snapshot = asyncio.run(take_snapshot(settings, stack))
            if local:
                snapshot.parts[_KEYS] = keys = temporary_file(stack)
                keys.write(directory.secrets.read_bytes())
            if file == STDIN:
                write(sys.stdout.buffer, snapshot.about, snapshot.parts)
                sys.stdout.buffer.flush()
            else:
                _write_file(Path(file), snapshot)
        streams = snapshot.about["streams"]
        messages = sum(stream["state"]["messages"] for stream in streams.values())
        last = streams[stores.LEDGER]["state"]["last_seq"]
        note(f"saved {len(streams)} streams with {messages} messages, decisions up to {last}")
        if file != STDIN:
            out(file)
        return DONE

    return _with_broker(directory, work)


def restore(file: str, /, *, state: StateDir = None) -> int:
    """Restore a backup into an empty state directory or an empty broker.

    No worker may be running on it; start the mesh as usual afterwards. Revisions, ETags, decision sequences and event ids are
    preserved. Clusters report again by themselves.

    Parameters
    ----------
    file
        Backup file; - for stdin.
    """
    directory = _local_state(state)
    with ExitStack() as stack:
        path = Path(file)
        if file == STDIN:
            copy = stack.enter_context(tempfile.NamedTemporaryFile())
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            path = Path(copy.name)
        archive = Archive(path)
        if missing := set(installed().backed_up()) - archive.about["streams"].keys():
            raise Failure(f"{file} lacks {', '.join(sorted(missing))}")

        def work(settings: Settings, local: bool) -> int:
            asyncio.run(restore_streams(settings, archive))
            if local and _KEYS in archive.about["parts"]:
                write_private(directory.secrets, archive.content(_KEYS).decode())
            return DONE

        _with_broker(directory, work, empty=True)
    last = archive.about["streams"][stores.LEDGER]["state"]["last_seq"]
    note(f"restored the state of {archive.about['created']}, decisions up to {last}")
    out("restored")
    return DONE


def _local_state(state: Path | None) -> StateDirectory:
    """Returns the state directory. Refuses MOORAGE_URL, because a backup needs the broker and not the gateway."""
    if state is None and os.environ.get("MOORAGE_URL") and not os.environ.get("MOORAGE_NATS_URL"):
        raise Failure(
            "MOORAGE_URL names a gateway, but this command needs the broker: set MOORAGE_NATS_URL and MOORAGE_NATS_SEED (an "
            "administrator's) of that mesh, or name a state directory on this machine with --state",
            USAGE,
        )
    return StateDirectory(state_dir(state))


def _write_file(path: Path, snapshot: Snapshot) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out_file:
            write(out_file, snapshot.about, snapshot.parts)
            out_file.flush()
            os.fsync(out_file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise Failure(f"cannot write {path}: {error.strerror}") from error


def _with_broker(directory: StateDirectory, work: Callable[[Settings, bool], int], *, empty: bool = False) -> int:
    """Calls `work` with the configured broker, with that of the running mesh, or with one started temporarily on the state
    directory. The second argument of `work` is whether the broker is that of the state directory."""
    from moorage.bus import Settings

    if os.environ.get("MOORAGE_NATS_URL"):
        return work(Settings.from_env(), False)
    if not empty:
        endpoint = directory.read_endpoint()
        if endpoint is not None and directory.holder():
            return work(Settings(endpoint["nats"], endpoint["natsSeed"]), True)
        if not directory.secrets.exists():
            raise Failure(f"there is no mesh in {directory.root}; name its directory with --state", UNREACHABLE)
    directory.make()
    lock = directory.take()
    try:
        with _temporary_broker(directory) as settings:
            return work(settings, True)
    finally:
        os.close(lock)


@contextlib.contextmanager
def _temporary_broker(directory: StateDirectory) -> Iterator[Settings]:
    from moorage.bus import Settings

    from ..up import brokers
    from ..up.credentials import Credentials

    secrets = Credentials.open(directory, installed().users)
    port = brokers.free_port()
    brokers.write_nats_conf(directory, f"127.0.0.1:{port}", secrets, installed())
    with (directory.logs / "nats.log").open("ab") as log:
        process = subprocess.Popen([brokers.nats_server(), "-c", str(directory.nats_conf)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while not brokers.nats_ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise Failure(f"the broker does not start; see {directory.logs / 'nats.log'}")
            time.sleep(0.02)
        yield Settings(f"nats://127.0.0.1:{port}", secrets.seeds["admin"])
    finally:
        process.terminate()
        process.wait(20)
