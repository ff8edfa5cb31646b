"""Starts, watches, restarts and stops the processes of a mesh. It is synchronous and single-threaded, so that it can fork."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..exit_codes import FAILED, Failure
from ..state_dir import StateDirectory, write_private
from .processes import LAST_DELAY, SupervisedProcess, execute, exit_text, fork, limit_log, wait_signal

#: Seconds until each wave is killed: gateway, workers, Redis and NATS. Together below 10 s.
_GRACE_SECONDS = (2.0, 4.0, 2.5)
#: Seconds between checks of the size of logs.
_LOG_SECONDS = 30.0
_LAST_WAVE = len(_GRACE_SECONDS) - 1


class Stopped(Exception):
    """A signal to stop arrived while the supervisor was waiting."""


@dataclass
class Plan:
    """The processes of a mesh and the contents of its endpoint file."""

    state: StateDirectory
    url: str
    placement: str
    token: str
    nats: str
    redis: str
    admin_seed: str
    controller_seed: str
    processes: list[SupervisedProcess] = field(default_factory=list)


class Supervisor:
    def __init__(self, plan: Plan, say: Callable[[str], None], restart_delay: float = LAST_DELAY) -> None:
        self.plan = plan
        self.say = say
        self.on_wake: Callable[[], None] = lambda: None  # called after a command sent WAKE
        self.held_ports: list[socket.socket] = []  # bound to the ports of servers for as long as these may be restarted
        self._restart_delay = restart_delay  # the longest, in seconds
        self._woken = False
        self.started = False
        self._tasks: dict[int, int | None] = {}  # exit status of one-shot children by pid, None while they run

    # --- waiting -----------------------------------------------------------------------------------------------------

    def step(self, longest: float | None) -> None:
        """Waits for one event: the end of a child, a signal, or a restart that is due."""
        now = time.monotonic()
        due = [p.due - now for p in self.plan.processes if not p.pid and p.started]
        wait = min([*due, 3600.0 if longest is None else longest])
        number = wait_signal(wait)
        if number == signal.SIGUSR1:
            self._woken = True
        elif number is not None and number != signal.SIGCHLD:
            raise Stopped
        changed = self._reap()
        for process in self.plan.processes:
            if not process.pid and process.started and process.due <= time.monotonic():
                process.start()
                changed = True
        if changed:
            self.write_endpoint()

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
            for process in self.plan.processes:
                if process.pid == pid:
                    process.died(status, self._restart_delay)
                    changed = True
                    delay = process.due - time.monotonic()
                    self.say(
                        f"{process.name} exited ({process.last_exit}); restarting in {delay:.1f} s, see {process.log}"
                    )

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str, *needed: SupervisedProcess) -> None:
        """Waits for a condition. Fails when time is up or a needed process has died twice."""
        end = time.monotonic() + seconds
        pause = 0.005
        while not ready():
            for process in needed:
                if process.deaths > 1:
                    raise Failure(f"{what}: {process.name} does not start ({process.last_exit})\n{process.tail()}")
            if time.monotonic() > end:
                tails = "\n".join(process.tail() for process in needed)
                raise Failure(f"{what}: not ready after {seconds:g} s\n{tails}".rstrip())
            self.step(pause)
            pause = min(pause * 1.5, 0.1)

    def perform(self, name: str, body: Callable[[], int | None]) -> int:
        """Runs a function in a child, watches the other processes meanwhile, and returns the child's exit code."""
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

    def start(self, process: SupervisedProcess) -> SupervisedProcess:
        self.plan.processes.append(process)
        process.start()
        return process

    def write_endpoint(self) -> None:
        """Writes the endpoint file, by which clients on this machine find the mesh and its processes."""
        plan = self.plan
        pids: dict[str, list[int]] = {"up": [os.getpid()]}
        workers = []
        metrics: dict[str, list[str]] = {}
        for process in plan.processes:
            if process.metrics:
                metrics.setdefault(process.kind, []).append(process.metrics)
            pids.setdefault(process.kind, [])
            if process.pid:
                pids[process.kind].append(process.pid)
            worker: dict[str, Any] = {
                "kind": process.kind,
                "name": process.name,
                "pid": process.pid,
                "restarts": process.deaths,
            }
            if process.deaths:
                worker |= {"lastExit": process.last_exit, "lastEnd": process.ended}
            workers.append(worker)
        endpoint = {
            "http": plan.url,
            "placement": plan.placement,
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
        """Supervises until a signal to stop arrives."""
        while True:
            for process in self.plan.processes:
                limit_log(process.log)
            if self._woken:
                self._woken = False
                self.on_wake()
            else:
                self.step(_LOG_SECONDS)

    def stop(self) -> None:
        """Stops all processes wave by wave and kills those that exceed their grace time. A second signal kills at once."""
        hurry = False
        for wave, grace in enumerate(_GRACE_SECONDS):
            running = [p for p in self.plan.processes if p.wave == wave and p.pid]
            for process in running:
                _kill(process.pid, signal.SIGTERM)
            end = time.monotonic() + grace
            while running and not hurry and time.monotonic() < end:
                hurry = wait_signal(min(0.2, end - time.monotonic())) in (signal.SIGINT, signal.SIGTERM)
                running = _still_running(running)
            for process in running:
                self.say(f"{process.name} did not end in time and was killed")
                _kill(process.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
                process.pid = 0
        for pid, status in self._tasks.items():
            if status is None:
                _kill(pid, signal.SIGKILL)
        for port in self.held_ports:
            port.close()
        self.plan.state.endpoint.unlink(missing_ok=True)


def _still_running(processes: list[SupervisedProcess]) -> list[SupervisedProcess]:
    """Reaps the processes that have ended and returns the others."""
    running = []
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(process.pid, os.WNOHANG)[0] == 0:
                running.append(process)
                continue
        process.pid = 0
    return running


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def program(kind: str, argv: list[str], logs: Path) -> SupervisedProcess:
    """Returns a broker's process, which is stopped last. It may use half of the cores: on all of them it would only slow down
    the workers that it serves."""
    limits = {"GOMAXPROCS": str(max(1, (os.cpu_count() or 2) // 2))}
    return SupervisedProcess(kind, 0, execute(argv, limits), logs / f"{kind}.log", wave=_LAST_WAVE)
