"""A container engine of one's own: its daemon on a private socket, Compose built from its Go module, a base image made of
packages. Nothing is pulled.

`python -m moorage_testkit.container_engine` (what `make engine` runs, as root) installs and builds what it needs, once; what takes
long is kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import platformdirs

COMPOSE, RELEASE = "v2.40.3", "bookworm"
BASE = f"localhost/base:{RELEASE}"
#: The base image's; wheels must be made for it.
PYTHON = (3, 11)
_PACKAGES = ("docker.io", "debootstrap", "iptables")
_PROGRAMS = ("dockerd", "containerd", "docker", "iptables")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # what was installed goes before what somebody put elsewhere


def cache() -> Path:
    return Path(platformdirs.user_cache_dir("moorage")) / f"engine-{COMPOSE}-{RELEASE}"


def find() -> str:
    """What is missing, in one line that says what to do; empty if an engine can be started."""
    if os.geteuid() != 0:
        return "no container engine: starting one needs root"
    if sys.version_info[:2] != PYTHON:
        return (
            f"no container engine: the base image has Python {PYTHON[0]}.{PYTHON[1]}, and wheels are made with this one"
        )
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    missing += [name for name in ("docker-compose", "base.tar") if not (cache() / name).exists()]
    return f"no container engine: no {', '.join(missing)}; `make engine` gets them" if missing else ""


def build() -> None:
    """Each part appears whole or not at all; two at once take turns."""
    directory = cache()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        needed = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
        if not (directory / "base.tar").exists() and shutil.which("debootstrap", path=_PATH) is None:
            needed.append("debootstrap")
        if needed:
            _timed("packages", lambda: _install())
        if not (directory / "docker-compose").exists():
            _timed("Compose", lambda: _compose(directory))
        if not (directory / "base.tar").exists():
            _timed("the base image", lambda: _base(directory))
    sys.stderr.write(f"the engine's parts are in {directory}\n")


def _timed(what: str, work: Callable[[], None]) -> None:
    started = time.monotonic()
    work()
    sys.stderr.write(f"{what}: {time.monotonic() - started:.0f} s\n")


def _run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: float = 1200) -> str:
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def _install() -> None:
    """The daemon that the package brings is not to start: ours does, with a socket of its own."""
    if shutil.which("apt-get") is None:
        raise SystemExit(f"{', '.join(_PROGRAMS)} and debootstrap: install them; only Debian's way is known here")
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        _run("apt-get", "update", "-qq", env=quiet)
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES, env=quiet)
    finally:
        if ours:
            policy.unlink()


def _compose(directory: Path) -> None:
    """Its module has excludes of its own, so `go install` refuses it; a copy of its source is built instead."""
    if shutil.which("go") is None:
        raise SystemExit("building Compose needs a Go toolchain (https://go.dev/dl)")
    told = _run("go", "mod", "download", "-json", f"github.com/docker/compose/v2@{COMPOSE}")
    found = re.search(r'"Dir": "(.*)"', told)
    if found is None:
        raise SystemExit(f"docker/compose {COMPOSE}: no source")
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as work:
        source = Path(work, "source")
        shutil.copytree(found[1], source, copy_function=shutil.copyfile)
        for place, _, _ in os.walk(source):
            os.chmod(place, 0o755)
        made = Path(work, "docker-compose")
        flags = ("-trimpath", "-ldflags", "-s -w", "-o", str(made), "./cmd")
        _run("go", "build", *flags, cwd=source, env={"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"})
        made.replace(directory / made.name)


def _base(directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as work:
        root = Path(work, "root")
        packages = "--include=python3,python3-venv,ca-certificates"
        path = {"PATH": f"{_PATH}:{os.environ.get('PATH', '')}"}
        _run("debootstrap", "--variant=minbase", packages, RELEASE, str(root), env=path)
        shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
        made = Path(work, "base.tar")
        with tarfile.open(made, "w") as archive:
            archive.add(root, arcname=".")
        made.replace(directory / made.name)


_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class Engine:
    """A daemon for one test run. Nothing of it is left behind."""

    def __init__(self, directory: Path) -> None:
        """The directory's name must be short: it holds sockets."""
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
        return {**kept, "PATH": f"{_PATH}:{kept.get('PATH', '')}", "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0", "DOCKER_CONFIG": plugin}  # fmt: skip

    def docker(self, *arguments: str, seconds: float = 120) -> str:
        return self._checked(["docker", *arguments], None, seconds)

    def compose(self, project: Path, *arguments: str, seconds: float = 300) -> str:
        return self._checked([str(cache() / "docker-compose"), *arguments], project, seconds)

    def piped(self, project: Path, *arguments: str, data: bytes = b"", seconds: float = 120) -> bytes:
        """The same for what is no text."""
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
        # One at a time on a machine: each puts the packet filter back as it found it.
        self._turn = (cache() / ".turn").open("w")
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self._forward = _FORWARD.read_text()
        self._rules = self._checked(["iptables-save"], None, 10)
        places = ["--data-root", f"{d}/data", "--exec-root", f"{d}/exec", "-p", f"{d}/d.pid"]
        # No bridge of the daemon's own: builds have no network, and projects make theirs.
        command = ["dockerd", "-H", self.host, *places, "--bridge", "none"]
        with (d / "dockerd.log").open("wb") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self._process = process
        try:
            end = time.monotonic() + 60
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
        """Containers end with it, and its rules for the network go."""
        self._process.terminate()
        try:
            self._process.wait(30)
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
        """The packet filter as it was before."""
        policies = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n*nat\nCOMMIT\n"
        for rules in (policies, self._rules):
            command = ["iptables-restore"]
            subprocess.run(command, input=rules, env=self.environment, text=True, capture_output=True, check=False)
        _FORWARD.write_text(self._forward)


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("a container engine needs root")
    build()


if __name__ == "__main__":
    main()
