"""Runs a container engine for tests: its daemon on a private socket, Compose, and a base image made of Debian packages.
Nothing is pulled. `make engine` gets what it needs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import platformdirs

COMPOSE, RELEASE = "v2.40.3", "bookworm"
BASE = f"localhost/base:{RELEASE}"
#: Python of the base image; wheels are built for it.
PYTHON = (3, 11)
PROGRAMS = ("dockerd", "containerd", "docker", "iptables")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # the distribution's programs, not those of /usr/local


def cache() -> Path:
    return Path(platformdirs.user_cache_dir("moorage")) / f"engine-{COMPOSE}-{RELEASE}"


def find() -> str:
    """Returns one line that names what is missing and what to do; "" if an engine can be started."""
    if os.geteuid() != 0:
        return "no container engine: starting one needs root"
    if sys.version_info[:2] != PYTHON:
        return (
            f"no container engine: the base image has Python {PYTHON[0]}.{PYTHON[1]}, and wheels are made with this one"
        )
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    missing += [name for name in ("docker-compose", "base.tar") if not (cache() / name).exists()]
    return f"no container engine: no {', '.join(missing)}; `make engine` gets them" if missing else ""


_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class Engine:
    """A Docker daemon for one test run; leaving the block removes everything it made."""

    def __init__(self, directory: Path) -> None:
        """`directory` must have a short path: it holds Unix sockets."""
        self.directory = directory
        self.host = f"unix://{directory}/d.sock"
        self._forward = ""
        self._rules = ""

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("DOCKER_", "COMPOSE_", "MOORAGE_"))
        }
        plugin = str(self.directory / "config")
        return {**kept, "PATH": f"{PATH}:{kept.get('PATH', '')}", "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0", "DOCKER_CONFIG": plugin}  # fmt: skip

    def docker(self, *arguments: str, seconds: float = 300) -> str:
        return self._checked(["docker", *arguments], None, seconds)

    def compose(self, project: Path, *arguments: str, seconds: float = 300) -> str:
        return self._checked([str(cache() / "docker-compose"), *arguments], project, seconds)

    def piped(self, project: Path, *arguments: str, data: bytes = b"", seconds: float = 300) -> bytes:
        """Runs Compose with bytes as its input and output."""
        return self._done([str(cache() / "docker-compose"), *arguments], project, seconds, data)

    def _checked(self, command: list[str], cwd: Path | None, seconds: float) -> str:
        return self._done(command, cwd, seconds).decode(errors="replace")

    def _done(self, command: list[str], cwd: Path | None, seconds: float, data: bytes = b"") -> bytes:
        done = subprocess.run(
            command, cwd=cwd, env=self.environment, input=data, capture_output=True, timeout=seconds, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{said[-6000:]}")
        return done.stdout

    def __enter__(self) -> Self:
        d = self.directory
        (d / "config").mkdir(parents=True)
        # One engine at a time on a machine: each restores the packet filter as it found it.
        self._turn = (cache() / ".turn").open("w")
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self._forward = _FORWARD.read_text()
        self._rules = self._checked(["iptables-save"], None, 60)
        places = ["--data-root", f"{d}/data", "--exec-root", f"{d}/exec", "-p", f"{d}/d.pid"]
        # The daemon has no bridge: builds have no network, and projects create their own.
        command = ["dockerd", "-H", self.host, *places, "--bridge", "none"]
        with (d / "dockerd.log").open("wb") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self._process = process
        try:
            end = time.monotonic() + 120
            while subprocess.run(["docker", "info"], env=self.environment, capture_output=True, check=False).returncode:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"dockerd does not start:\n{(d / 'dockerd.log').read_text()[-4000:]}")
                time.sleep(0.2)
            self.docker("import", str(cache() / "base.tar"), BASE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the daemon and its containers and removes its network rules."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._restore()
        for line in Path("/proc/self/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(f"{self.directory}/"):
                subprocess.run(["umount", "-l", place], capture_output=True, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._turn.close()

    def _restore(self) -> None:
        """Restores the packet filter."""
        policies = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n*nat\nCOMMIT\n"
        for rules in (policies, self._rules):
            command = ["iptables-restore"]
            subprocess.run(command, input=rules, env=self.environment, text=True, capture_output=True, check=False)
        _FORWARD.write_text(self._forward)
