"""Turns a process into a worker: one of the installed ones, or a file with controllers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage.mesh.discovery import installed

from .exit_codes import DONE, FAILED, FORBIDDEN, USAGE, Failure
from .process_title import set_title
from .terminal import note

if TYPE_CHECKING:
    from moorage.bus import Settings
    from moorage.telemetry import ProcessHealth

#: Seconds after which a worker that has not ended is cancelled again.
CANCEL_AGAIN = 3.0


def load(name: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """Imports the main function of an installed worker."""
    spec = installed().workers[name]
    main: Callable[..., Coroutine[Any, Any, None]] = spec.main()
    return partial(main, mesh=installed()) if spec.takes_mesh else main


def prepare_process(nice: int = 0) -> None:
    """Lowers the priority of this process and tunes its garbage collection for a worker."""
    os.nice(nice)
    # Ledger and fleet are large and live long. The default thresholds would scan them every few hundred messages, which
    # costs more than all decisions together.
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def serve(coro: Coroutine[Any, Any, None], process_health: ProcessHealth, listener: socket.socket | None = None) -> int:
    """Runs a worker's main until it ends or SIGTERM or SIGINT cancels it, and returns 0 only after a signal. Health and
    metrics are served on `listener`, or where MOORAGE_METRICS says, if it is set."""
    import uvloop

    from moorage.telemetry import end_traces, from_env, serve_health

    signalled = False

    async def guarded() -> None:
        task = asyncio.ensure_future(coro)
        loop = asyncio.get_running_loop()

        def end() -> None:
            nonlocal signalled
            signalled = True
            if not task.done():
                task.cancel()
                # Before Python 3.12 asyncio.wait_for, which the broker's client uses, loses a cancellation that arrives as
                # its future completes; without a second one the worker would run on.
                loop.call_later(CANCEL_AGAIN, end)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        async with serve_health(process_health, listener or from_env()):
            try:
                await task
            except asyncio.CancelledError:
                if not signalled:
                    raise

    try:
        uvloop.run(guarded())
    finally:
        end_traces()
    return DONE if signalled else FAILED


def run_worker(what: str, settings: Settings) -> int:
    """Runs an installed worker by its name, or a Python file with controllers."""
    from moorage.telemetry import configure

    workers = installed().workers
    set_title(what)
    if what in workers:
        process_health = configure(what)
        main = load(what)
        prepare_process(workers[what].nice)
        return serve(main(settings), process_health)
    path = Path(what)
    if path.suffix != ".py" and not path.exists():
        raise Failure(f"{what!r} is neither a worker ({', '.join(workers)}) nor a Python file", USAGE)
    if not path.is_file():
        raise Failure(f"there is no file '{path}'", USAGE)
    from moorage.sdk import CannotRun, run_file

    process_health = configure(path.stem)
    reserved = {spec.name for spec in installed().builtin_controllers}
    try:
        return serve(run_file(str(path), settings, reserved, _announce), process_health)
    except CannotRun as wrong:
        raise Failure(str(wrong), FORBIDDEN if wrong.forbidden else FAILED) from None


def _announce(names: list[str]) -> None:
    is_, it = ("is", "it") if len(names) == 1 else ("are", "them")
    note(f"{', '.join(names)} {is_} registered; Ctrl-C stops {it}")
