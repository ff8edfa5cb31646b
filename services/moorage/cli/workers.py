"""The workers there are, in one place, and how a process becomes one of them."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exit_codes import DONE, FAILED, FORBIDDEN, USAGE, Failure
from .terminal import note

if TYPE_CHECKING:
    from moorage.bus import Settings
    from moorage.telemetry import ProcessHealth

#: kind → the module with `async def main(settings)`; also the order in which they are started.
WORKERS = {
    "intents": "moorage.intents.worker",
    "inventory": "moorage.inventory.worker",
    "hpa": "moorage.controllers.hardware.worker",
    "labels": "moorage.controllers.cluster_selection.worker",
    "affinity": "moorage.controllers.affinity.worker",
    "merger": "moorage.merger.worker",
    "patcher": "moorage.patcher.worker",
    "sim": "moorage.sim.worker",
    "gateway": "moorage.gateway.worker",
}

#: What all workers import, once, before any is forked: its pages are shared.
HEAVY = ("numpy", "nats", "msgspec", "redis.asyncio", "pyroaring", "uvloop", "structlog", "asyncio", "hiredis")

#: Where cores are short, deciding comes before carrying out and reporting; simulated clusters come last.
NICE = {"inventory": 10, "patcher": 15, "sim": 19}

#: How long a worker that was asked to end has for it, until it is asked again.
AGAIN = 3.0


def load(kind: str) -> Callable[..., Coroutine[Any, Any, None]]:
    main: Callable[..., Coroutine[Any, Any, None]] = importlib.import_module(WORKERS[kind]).main
    return main


def settle(kind: str) -> None:
    """What a process does to itself before it becomes a worker."""
    os.nice(NICE.get(kind, 0))
    # Ledger and fleet are large and live long: looking through them for garbage after every few hundred messages costs
    # more than all that deciding does.
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def serve(coro: Coroutine[Any, Any, None], vitals: ProcessHealth, listener: socket.socket | None = None) -> int:
    """Runs a worker's main until it ends or SIGTERM or SIGINT cancels it; 0 only if somebody asked it to end. `listener`:
    where it shows how it does; without one, MOORAGE_METRICS says where, if anywhere."""
    import uvloop

    from moorage.telemetry import end_traces, from_env, serve_health

    asked = False

    async def guarded() -> None:
        task = asyncio.ensure_future(coro)
        loop = asyncio.get_running_loop()

        def end() -> None:
            nonlocal asked
            asked = True
            if not task.done():
                task.cancel()
                # Before Python 3.12 asyncio.wait_for, which the broker's client uses, loses a cancellation that comes as
                # its future is done; once lost, a worker would run on.
                loop.call_later(AGAIN, end)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        async with serve_health(vitals, listener or from_env()):
            try:
                await task
            except asyncio.CancelledError:
                if not asked:
                    raise

    try:
        uvloop.run(guarded())
    finally:
        end_traces()
    return DONE if asked else FAILED


def run_worker(what: str, settings: Settings) -> int:
    """`moorage run`: a built-in kind by its name, or a file with controllers of one's own."""
    from moorage.telemetry import configure

    if what in WORKERS:
        vitals = configure(what)
        main = load(what)
        settle(what)
        return serve(main(settings), vitals)
    path = Path(what)
    if path.suffix != ".py" and not path.exists():
        raise Failure(f"{what!r} is neither a worker ({', '.join(WORKERS)}) nor a Python file", USAGE)
    if not path.is_file():
        raise Failure(f"there is no file '{path}'", USAGE)
    from moorage.sdk import CannotRun, run_file

    vitals = configure(path.stem)
    try:
        return serve(run_file(str(path), settings, _asked), vitals)
    except CannotRun as wrong:
        raise Failure(str(wrong), FORBIDDEN if wrong.forbidden else FAILED) from None


def _asked(names: list[str]) -> None:
    verb = "is" if len(names) == 1 else "are"
    note(f"{', '.join(names)} {verb} registered and {verb} asked from now on; Ctrl-C ends it")
