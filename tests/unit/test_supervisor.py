"""Tests how the supervisor of `moorage up` waits for signals, also where the system cannot wait for one with a time limit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moorage.cli.up.processes import QUIET, SupervisedProcess

_WAIT = """
import os, signal, sys, time
if sys.argv[1] == "polling":
    del signal.sigtimedwait
from moorage.cli.up.processes import block_signals, wait_signal
block_signals()
print("blocked", flush=True)
print(int(wait_signal(20)), flush=True)  # TERM, from the test
child = os.fork()
if not child:
    os._exit(0)
print(int(wait_signal(20)), flush=True)
os.waitpid(child, 0)
print(wait_signal(0), wait_signal(-1), flush=True)
start = time.monotonic()
print(wait_signal(0.2), 0.2 <= time.monotonic() - start < 20, flush=True)
"""


def test_what_keeps_ending_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    process = SupervisedProcess("merger", 1, lambda: 0, Path("log"))

    def delays(longest: float) -> list[float]:
        found = []
        for _ in range(10):
            process.started = now
            process.died(0, longest)
            found.append(round(process.due - now, 1))
        return found

    assert delays(15.0) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 15.0]
    assert delays(1.0) == [1.0] * 10
    process.started = now - QUIET
    process.died(0)
    assert round(process.due - now, 1) == 0.2, "it ran for long"


@pytest.mark.parametrize("how", ["waiting", "polling"])
def test_signals_are_received_one_by_one(how: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", _WAIT, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == "blocked\n"
        process.send_signal(signal.SIGTERM)
        assert lines.readline() == f"{int(signal.SIGTERM)}\n"
        assert lines.readline() == f"{int(signal.SIGCHLD)}\n"
        assert lines.read() == "None None\nNone True\n"
    assert process.wait(10) == 0
