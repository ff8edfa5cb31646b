"""Gets what a container engine for tests needs, as root (`make engine`): Debian's packages of the daemon, Compose built from
its Go module, and a base image. What takes long is kept in the user's cache."""

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

from moorage_testkit.container_engine import COMPOSE, PATH, PROGRAMS, RELEASE, cache

_PACKAGES = ("docker.io", "debootstrap", "iptables")


def build() -> None:
    """Builds what is missing. A part is moved into place when it is complete; concurrent builds wait for each other."""
    directory = cache()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        needed = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
        if not (directory / "base.tar").exists() and shutil.which("debootstrap", path=PATH) is None:
            needed.append("debootstrap")
        if needed:
            _timed("packages", lambda: _install())
        if not (directory / "docker-compose").exists():
            _timed("Compose", lambda: _compose(directory))
        if not (directory / "base.tar").exists():
            _timed("the base image", lambda: _base(directory))
    sys.stderr.write(f"the engine's parts are in {directory}\n")


def _timed(part: str, work: Callable[[], None]) -> None:
    started = time.monotonic()
    work()
    sys.stderr.write(f"{part}: {time.monotonic() - started:.0f} s\n")


def _run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: float = 1200) -> str:
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def _install() -> None:
    """Installs packages without starting the daemon that they bring: tests start their own, on a private socket."""
    if shutil.which("apt-get") is None:
        raise SystemExit(f"{', '.join(PROGRAMS)} and debootstrap: install them; this tool knows only apt-get")
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
    """Builds Compose from a copy of its source: `go install` refuses a module with exclude directives."""
    if shutil.which("go") is None:
        raise SystemExit("building Compose needs a Go toolchain (https://go.dev/dl)")
    module = _run("go", "mod", "download", "-json", f"github.com/docker/compose/v2@{COMPOSE}")
    found = re.search(r'"Dir": "(.*)"', module)
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
        path = {"PATH": f"{PATH}:{os.environ.get('PATH', '')}"}
        _run("debootstrap", "--variant=minbase", packages, RELEASE, str(root), env=path)
        shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
        made = Path(work, "base.tar")
        with tarfile.open(made, "w") as archive:
            archive.add(root, arcname=".")
        made.replace(directory / made.name)


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("a container engine needs root")
    build()


if __name__ == "__main__":
    main()
