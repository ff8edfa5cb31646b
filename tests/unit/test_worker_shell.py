"""A worker that is asked to end ends, whatever the libraries in it make of the first word."""

from __future__ import annotations

import signal
import subprocess
import sys

#: Loses the first cancellation and goes on, as a worker did that was stopped while it connected.
DEAF = """
import asyncio
from moorage.cli import workers
from moorage.telemetry import configure

async def deaf():
    print("up", flush=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    await asyncio.Event().wait()

workers.AGAIN = 0.1
raise SystemExit(workers.serve(deaf(), configure("deaf")))
"""


def test_a_lost_cancellation_is_repeated() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == b"up\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(10) == 0
        finally:
            worker.kill()
