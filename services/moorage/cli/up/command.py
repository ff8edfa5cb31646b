"""`moorage up` and `moorage down`: the process around the supervisor, in the foreground or detached from it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from moorage.cli.output import StateDir
from moorage.cli.terminal import note, out
from moorage.mesh.discovery import installed

from ..exit_codes import DONE, FAILED, USAGE, Failure
from ..state_dir import StateDirectory, state_dir


def up(
    *,
    state: StateDir = None,
    http: str = "127.0.0.1:7070",
    nats: str = "127.0.0.1:0",
    fleet: Path | None = None,
    example: Annotated[bool, Parameter(negative="")] = False,
    detach: Annotated[bool, Parameter(negative="")] = False,
    workers: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> int:
    """Run a whole mesh on this machine: NATS, Redis, every worker, and simulated clusters.

    Parameters
    ----------
    http
        HOST:PORT of the gateway; port 0 takes a free one.
    nats
        HOST:PORT of NATS, which agents of other machines need to reach; port 0 takes the one of last time, or a free one.
    fleet
        A file with simulated clusters, in place of those that an earlier `up` had on this state.
    example
        Apply the usage example on a built-in fleet and show what became of it.
    detach
        Return once it is ready and leave it running; `moorage down` stops it.
    workers
        KIND=NUMBER, how many of a kind to run (may be given several times).
    """
    if fleet is not None and not fleet.is_file():
        raise Failure(f"there is no fleet file {fleet}", USAGE)
    _, colon, port = nats.rpartition(":")
    if not colon or not port.isdigit():
        raise Failure(f"--nats {nats!r} is not HOST:PORT", USAGE)
    asked = {"http": http, "fleet": fleet, "example": example, "counts": _counts(workers or []), "nats": nats}
    found = StateDirectory(state_dir(state))
    if state is not None:
        asked["named"] = found.root
    found.make()
    os.environ["MOORAGE_STATE"] = str(found.root)
    if detach:
        return _detached(found, asked)
    return _run(found, asked)


def _run(state: StateDirectory, asked: dict[str, Any]) -> int:
    """`asked`: the fields of Options, which are not there yet: what they come with takes a while to import."""
    state.take()
    note(f"the mesh lives in {state.root}")
    from .launch import Options, launch  # imports everything the workers need

    return launch(state, Options(**asked), note)


def _counts(given: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in given:
        kind, equals, number = one.partition("=")
        if kind not in installed().workers or not equals or not number.isdigit() or int(number) > 64:
            raise Failure(f"--workers {one!r} is not KIND=NUMBER with one of {', '.join(installed().workers)}", USAGE)
        counts[kind] = int(number)
    return counts


def _detached(state: StateDirectory, asked: dict[str, Any]) -> int:
    """The child becomes the supervisor in a session of its own; this process passes on what it says until it is ready."""
    out_read, out_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out_read)
        code = FAILED
        try:
            os.setsid()
            _redirect(state, out_write)
            code = _run(state, asked)
        except Failure as wrong:
            note(f"moorage: {wrong}")
            code = wrong.code
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(out_write)
    return _relay(pid, out_read, state)


def _redirect(state: StateDirectory, out_write: int) -> None:
    """Said until ready: to who started us. After that the pipe has no reader, so all goes to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out_write, 1)
    log = os.open(state.logs / "up.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _relay(pid: int, out_read: int, state: StateDirectory) -> int:
    log = state.logs / "up.log"
    with open(log, "a+b") as said, os.fdopen(out_read, "rb") as answers:
        start = said.seek(0, os.SEEK_END)
        try:
            for line in answers:
                out(line.decode(errors="replace").rstrip("\n"))
                if line.startswith(b"ready "):
                    return DONE
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        said.seek(start)
        sys.stderr.write(said.read().decode(errors="replace"))
    return os.waitstatus_to_exitcode(status) or FAILED


def down(*, state: StateDir = None) -> int:
    """Stop the mesh of this state directory; back when all of it is gone."""
    found = StateDirectory(state_dir(state))
    pid = found.holder()
    if pid is None:
        found.endpoint.unlink(missing_ok=True)
        note(f"no mesh runs in {found.root}")
        return DONE
    if not pid:
        raise Failure(f"a mesh is starting in {found.root}; try again in a moment")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 15
    while found.holder() is not None:
        if time.monotonic() > end:
            raise Failure(f"process {pid} did not end within 15 s; `kill -9 {pid}` ends all of it")
        time.sleep(0.02)
    note(f"the mesh in {found.root} is stopped")
    return DONE
