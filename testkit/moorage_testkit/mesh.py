"""Runs a whole mesh: `moorage up` with its own state directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from moorage.bus import Settings

from .invariants import Room, room_now, wrong_since
from .resource import Resource
from .servers import data_directory

T = TypeVar("T")


def ended(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Waits for a process that was told to end. Kills it and raises if it does not."""
    try:
        process.wait(seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine in a loop of its own, because the caller may already be in one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


class Mesh(Resource):
    """`moorage up` as a user starts it: each worker is a process, NATS and Redis are real."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        #: Added to the environment of the test. Tests that kill a worker again and again do not wait for it longer each time.
        self.environment: dict[str, str] = {"MOORAGE_RESTART_DELAY": "1s"}
        self.state = state or data_directory("moorage-mesh-")
        self._own = state is None
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoint: dict[str, Any] = {}
        self.checked = True  # check the decision log when the mesh is stopped; off where a test breaks the mesh
        self._room: Room = {}

    def start(self, seconds: float = 200) -> float:
        """Starts the mesh, waits until it is ready and returns how long that took."""
        started = time.monotonic()
        command = [sys.executable, "-m", "moorage.cli", "up", "--state", str(self.state), "--http", "127.0.0.1:0"]
        with (self.state / "up.out").open("wb") as out:
            command += self._options
            env = {**os.environ, **self.environment}
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
        while True:
            if b"\nready " in b"\n" + self.output():
                break
            if self.process.poll() is not None or time.monotonic() - started > seconds:
                raise RuntimeError(f"the mesh did not become ready:\n{self.output().decode()[-4000:]}")
            time.sleep(0.02)
        took = time.monotonic() - started
        self.read_endpoint()
        if self.checked:
            self._room = _apart(lambda: room_now(self.settings.redis_url))
        return took

    def read_endpoint(self) -> None:
        self.endpoint = msgspec.json.decode((self.state / "endpoint.json").read_bytes())

    def output(self) -> bytes:
        return (self.state / "up.out").read_bytes()

    def pids(self, worker: str) -> list[int]:
        self.read_endpoint()
        found: list[int] = self.endpoint["pids"].get(worker, [])
        return found

    def kill(self, worker: str) -> None:
        for pid in self.pids(worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restarts(self) -> dict[str, int]:
        """Counts how often processes were started again, but for those that ended because they lost their lease: they do so
        where the machine stands still for seconds."""
        self.read_endpoint()
        found = {}
        for worker in self.endpoint["workers"]:
            log = Path(self.endpoint["logs"], f"{worker['name']}.log")
            lost = log.read_text(errors="replace").count("lease lost") if worker["restarts"] else 0
            found[worker["name"]] = max(0, worker["restarts"] - lost)
        return found

    @property
    def settings(self) -> Settings:
        return Settings(self.endpoint["nats"], self.endpoint["natsSeed"], self.endpoint["redis"])

    def http(self, path: str, body: Any = None, *, method: str = "") -> Any:
        request = urllib.request.Request(
            self.endpoint["http"].rstrip("/") + path,
            method=method or ("GET" if body is None else "POST"),
            data=None if body is None else msgspec.json.encode(body),
            headers={"Authorization": f"Bearer {self.endpoint['token']}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            found = response.read()
        return msgspec.json.decode(found) if found else None

    def run(
        self, *arguments: str, data: bytes | None = None, seconds: float = 100
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs the command line against this mesh."""
        env = {**os.environ, **self.environment, "MOORAGE_STATE": str(self.state)}
        command = [sys.executable, "-m", "moorage.cli", *arguments]
        return subprocess.run(command, input=data, env=env, capture_output=True, timeout=seconds, check=False)

    async def arun(self, *arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return await asyncio.to_thread(lambda: self.run(*arguments, data=data))

    def stop(self) -> None:
        if self.process is None:
            return
        try:
            if self.checked and self.process.poll() is None:
                self.read_endpoint()
                wrong = _apart(lambda: wrong_since(self._room, self.settings))
                assert not wrong, wrong
        finally:
            self.process.terminate()
            ended(self.process, 60)
            self.process = None

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            if self._own:
                shutil.rmtree(self.state, ignore_errors=True)
