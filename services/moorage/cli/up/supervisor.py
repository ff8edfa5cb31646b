"""Starts, watches, restarts and stops the processes of a mesh. Synchronous and single-threaded, so that it may fork."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..exit_codes import FAILED, Failure
from ..state_dir import StateDirectory, write_private
from .processes import TAKEN, SupervisedProcess, execute, exit_text, fork

#: How long each wave gets to end before it is killed: gateway, workers, Redis and NATS. Together below 10 s.
_PATIENCE = (2.0, 4.0, 2.5)
_LAST_WAVE = len(_PATIENCE) - 1


class Stopped(Exception):
    """Somebody asked for the end while something else was waited for."""


@dataclass
class Plan:
    """What to run and what others are told about it."""

    state: StateDirectory
    url: str
    token: str
    nats: str
    redis: str
    admin_seed: str
    controller_seed: str
    kept: list[SupervisedProcess] = field(default_factory=list)


class Supervisor:
    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.say = say
        self.asked: Callable[[], None] = lambda: None  # what to do when a command woke us
        self._woken = False
        self.started = False  # until then a death is a reason not to go on
        self._tasks: dict[int, int | None] = {}  # one-shot children → exit status once there

    # --- waiting -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Takes over the signals, and makes all memory so far shared with every child for good."""
        signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        gc.collect()
        gc.freeze()

    def step(self, longest: float | None) -> None:
        """Waits for one thing to happen: a child's end, a signal to stop, a restart that is due."""
        now = time.monotonic()
        due = [k.due - now for k in self.plan.kept if not k.pid and k.started]
        wait = min([*due, 3600.0 if longest is None else longest])
        info = signal.sigtimedwait(TAKEN, max(wait, 0.0))
        if info is not None and info.si_signo == signal.SIGUSR1:
            self._woken = True
        elif info is not None and info.si_signo != signal.SIGCHLD:
            raise Stopped
        changed = self._reap()
        for kept in self.plan.kept:
            if not kept.pid and kept.started and kept.due <= time.monotonic():
                kept.start()
                changed = True
        if changed:
            self.tell()

    def _reap(self) -> bool:
        changed = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return changed
            if not pid:
                return changed
            if pid in self._tasks:
                self._tasks[pid] = status
                continue
            for kept in self.plan.kept:
                if kept.pid == pid:
                    kept.died(status)
                    changed = True
                    delay = kept.due - time.monotonic()
                    self.say(f"{kept.name} ended ({kept.last_exit}); it starts again in {delay:.1f} s, see {kept.log}")

    def until(self, ready: Callable[[], bool], seconds: float, what: str, *needed: SupervisedProcess) -> None:
        """Waits for a condition; a needed process that dies twice while it is waited for is the reason to give up."""
        end = time.monotonic() + seconds
        pause = 0.005
        while not ready():
            for kept in needed:
                if kept.deaths > 1:
                    raise Failure(f"{what}: {kept.name} does not start ({kept.last_exit})\n{kept.tail()}")
            if time.monotonic() > end:
                tails = "\n".join(k.tail() for k in needed)
                raise Failure(f"{what}: not ready after {seconds:g} s\n{tails}".rstrip())
            self.step(pause)
            pause = min(pause * 1.5, 0.1)

    def perform(self, name: str, body: Callable[[], int | None]) -> int:
        """Runs something once in a child, so that the supervisor can go on watching; its exit code."""
        pid = fork(name, body, None)
        self._tasks[pid] = None
        try:
            while self._tasks[pid] is None:
                self.step(None)
        except Stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise
        status = self._tasks.pop(pid)
        assert status is not None
        if os.WIFSIGNALED(status):
            self.say(f"{name}: {exit_text(status)}")
            return FAILED
        return os.waitstatus_to_exitcode(status)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self, kept: SupervisedProcess) -> SupervisedProcess:
        self.plan.kept.append(kept)
        kept.start()
        return kept

    def tell(self) -> None:
        """The endpoint file: how clients on this machine find the mesh, and who is who."""
        plan = self.plan
        pids: dict[str, list[int]] = {"up": [os.getpid()]}
        workers = []
        metrics: dict[str, list[str]] = {}
        for kept in plan.kept:
            if kept.metrics:
                metrics.setdefault(kept.kind, []).append(kept.metrics)
            pids.setdefault(kept.kind, [])
            if kept.pid:
                pids[kept.kind].append(kept.pid)
            shown: dict[str, Any] = {"kind": kept.kind, "name": kept.name, "pid": kept.pid, "restarts": kept.deaths}
            if kept.deaths:
                shown |= {"lastExit": kept.last_exit, "lastEnd": kept.ended}
            workers.append(shown)
        endpoint = {
            "http": plan.url,
            "token": plan.token,
            "nats": plan.nats,
            "natsSeed": plan.admin_seed,
            "controllerSeed": plan.controller_seed,
            "redis": plan.redis,
            "metrics": metrics,
            "logs": str(plan.state.logs),
            "pids": pids,
            "workers": workers,
        }
        write_private(plan.state.endpoint, json.dumps(endpoint, indent=1))

    def watch(self) -> None:
        """Runs until somebody asks for the end."""
        while True:
            if self._woken:
                self._woken = False
                self.asked()
            else:
                self.step(None)

    def stop(self) -> None:
        """Ends everything, in order, within the patience of each wave; a second request ends it at once."""
        hurry = False
        for wave, patience in enumerate(_PATIENCE):
            mine = [k for k in self.plan.kept if k.wave == wave and k.pid]
            for kept in mine:
                _kill(kept.pid, signal.SIGTERM)
            end = time.monotonic() + patience
            while mine and not hurry and time.monotonic() < end:
                info = signal.sigtimedwait(TAKEN, max(0.0, min(0.2, end - time.monotonic())))
                hurry = info is not None and info.si_signo in (signal.SIGINT, signal.SIGTERM)
                self._bury(mine)
            for kept in mine:
                self.say(f"{kept.name} did not end in time and is killed")
                _kill(kept.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(kept.pid, 0)
                kept.pid = 0
        for pid, status in self._tasks.items():
            if status is None:
                _kill(pid, signal.SIGKILL)
        self.plan.state.endpoint.unlink(missing_ok=True)

    def _bury(self, mine: list[SupervisedProcess]) -> None:
        for kept in list(mine):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(kept.pid, os.WNOHANG)[0] == 0:
                    continue
            kept.pid = 0
            mine.remove(kept)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def warm(modules: list[str]) -> None:
    """Imports what the workers need before they are forked, without starting a thread in this process."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in modules:
        importlib.import_module(name)


def program(kind: str, argv: list[str], logs: Path) -> SupervisedProcess:
    """A broker: stopped last. It shares the machine with the workers that it serves: on all cores at once it would only
    take theirs from them."""
    half = {"GOMAXPROCS": str(max(1, (os.cpu_count() or 2) // 2))}
    return SupervisedProcess(kind, 0, execute(argv, half), logs / f"{kind}.log", wave=_LAST_WAVE)
