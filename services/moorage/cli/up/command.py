"""`moorage up` and `moorage down`: start the supervisor in the foreground or detached, and stop it."""

from __future__ import annotations

import gc
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

from ..durations import seconds
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
    """Run a mesh on this machine: NATS, Redis, all workers and simulated clusters.

    Parameters
    ----------
    http
        HOST:PORT of the gateway; port 0 takes a free port.
    nats
        HOST:PORT of NATS, which agents on other machines must reach; port 0 takes the previous port or a free one.
    fleet
        Fleet file with simulated clusters; replaces those of an earlier run in the same state directory.
    example
        Apply the example application to a built-in fleet and show its placement.
    detach
        Return once the mesh is ready and leave it running; `moorage down` stops it.
    workers
        Number of workers of a kind, KIND=NUMBER (repeatable).
    """
    if fleet is not None and not fleet.is_file():
        raise Failure(f"fleet file '{fleet}' does not exist", USAGE)
    _, colon, port = nats.rpartition(":")
    if not colon or not port.isdigit():
        raise Failure(f"--nats {nats!r} is not HOST:PORT", USAGE)
    options: dict[str, Any] = {
        "http": http,
        "fleet": fleet,
        "example": example,
        "counts": _counts(workers or []),
        "nats": nats,
    }
    if delay := os.environ.get("MOORAGE_RESTART_DELAY"):
        options["restart_delay"] = seconds(delay)
    directory = StateDirectory(state_dir(state))
    if state is not None:
        options["named"] = directory.root
    directory.make()
    os.environ["MOORAGE_STATE"] = str(directory.root)
    if detach:
        return _run_detached(directory, options)
    return _run(directory, options)


def _run(state: StateDirectory, options: dict[str, Any]) -> int:
    """Runs the supervisor. `options` are the fields of Options, whose module is imported late because that takes a while."""
    state.take()
    note(f"state directory: {state.root}")
    # Until `warm`: imports leave next to nothing to collect, and looking for it takes a sixth of their time.
    gc.disable()
    from .launch import Options, launch

    return launch(state, Options(**options), note)


def _counts(given: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in given:
        kind, equals, number = text.partition("=")
        if kind not in installed().workers or not equals or not number.isdigit() or int(number) > 64:
            raise Failure(f"--workers {text!r} is not KIND=NUMBER with one of {', '.join(installed().workers)}", USAGE)
        counts[kind] = int(number)
    return counts


def _run_detached(state: StateDirectory, options: dict[str, Any]) -> int:
    """Forks the supervisor into its own session, and relays its output until it is ready."""
    out_read, out_write = os.pipe()
    log = state.logs / "up.log"
    logged = log.stat().st_size if log.exists() else 0
    pid = os.fork()
    if pid == 0:
        os.close(out_read)
        code = FAILED
        try:
            os.setsid()
            _redirect(state, out_write)
            code = _run(state, options)
        except Failure as failure:
            note(f"moorage: {failure}")
            code = failure.code
        except BaseException:  # noqa: BLE001 - the child must end here, whatever was raised
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(out_write)
    return _relay(pid, out_read, log, logged)


def _redirect(state: StateDirectory, out_write: int) -> None:
    """Sends stdout to the starting process, which reads it until the mesh is ready, and stderr to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out_write, 1)
    log = os.open(state.logs / "up.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _relay(pid: int, out_read: int, log: Path, logged: int) -> int:
    """Prints the output of the supervisor until it is ready. If it ends, prints its log from the byte `logged` on."""
    with os.fdopen(out_read, "rb") as lines:
        try:
            for line in lines:
                out(line.decode(errors="replace").rstrip("\n"))
                if line.startswith(b"ready "):
                    return DONE
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
    sys.stderr.write(log.read_bytes()[logged:].decode(errors="replace"))
    return os.waitstatus_to_exitcode(status) or FAILED


def down(*, state: StateDir = None) -> int:
    """Stop the mesh on this machine, and return when all its processes have ended."""
    directory = StateDirectory(state_dir(state))
    pid = directory.holder()
    if pid is None:
        directory.endpoint.unlink(missing_ok=True)
        note(f"no mesh is running in {directory.root}")
        return DONE
    if not pid:
        raise Failure(f"a mesh is starting in {directory.root}; try again in a moment")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 15
    while directory.holder() is not None:
        if time.monotonic() > end:
            raise Failure(f"process {pid} did not end within 15 s; `kill -9 {pid}` ends the whole mesh")
        time.sleep(0.02)
    note(f"stopped the mesh in {directory.root}")
    return DONE
