"""Runs the stack of compose.yaml on a real engine, built from wheels as on a machine that reaches no registry."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit import container_engine
from moorage_testkit.servers import data_directory, free_port

TOP = Path(__file__).parents[2]
NEEDED = (
    "compose.yaml",
    "tests/compose/compose.test.yaml",
    ".dockerignore",
    "pyproject.toml",
    "requirements-traces.lock",
    "README.md",
    "LICENSE",
)
FILES = ("-f", "compose.yaml", "-f", "compose.test.yaml")


class Stack:
    def __init__(self, daemon: container_engine.Engine, project: Path) -> None:
        self.engine, self.project = daemon, project
        self.url = f"http://127.0.0.1:{free_port()}"
        # The only difference from what users run.
        (project / ".env").write_text(f"MOORAGE_LISTEN={self.url.removeprefix('http://')}\n")
        self.token = ""

    def compose(self, *arguments: str, seconds: float = 300) -> str:
        return self.engine.compose(self.project, *FILES, *arguments, seconds=seconds)

    def piped(self, *arguments: str, data: bytes = b"") -> bytes:
        return self.engine.piped(self.project, *FILES, *arguments, data=data)

    def up(self) -> None:
        """Starts the stack with the commands that compose.yaml names."""
        self.compose("up", "-d", "--wait", "--wait-timeout", "280")
        self.token = self.compose("exec", "-T", "gateway", "cat", "/run/moorage/token").strip()

    def containers(self) -> dict[str, dict[str, Any]]:
        """Returns what `docker inspect` says of each service, including those that have ended."""
        ids = self.compose("ps", "-a", "-q").split()
        found = json.loads(self.engine.docker("inspect", *ids))
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def moorage(self, *arguments: str, check: bool = True, data: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the command line on the host."""
        env = {**os.environ, "MOORAGE_URL": self.url, "MOORAGE_TOKEN": self.token}
        command = [sys.executable, "-m", "moorage.cli", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, input=data, timeout=200, check=False)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done


def wheels() -> Path:
    """Returns a directory with all wheels of the image, in the user's cache under the hash of what they are made from."""
    lock = TOP / "requirements-traces.lock"
    # pip judges markers by the Python that runs here; the base image may have an earlier patch release.
    early = [line.split(";")[0].strip() for line in lock.read_text().splitlines() if "< '3.11.3'" in line]
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    directory = container_engine.cache().with_name(f"wheels-{digest}")
    if not directory.exists():
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=directory.parent) as work:
            command = [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "-q",
                "--disable-pip-version-check",
                "-w",
                f"{work}/wheels",
            ]
            subprocess.run([*command, "-r", str(lock), *early, "hatchling"], check=True, timeout=300)
            with contextlib.suppress(OSError):  # another run was faster
                Path(work, "wheels").rename(directory)
    return directory


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    if missing := container_engine.find():
        pytest.skip(missing)
    directory = data_directory("mre-")
    project = directory / "moorage"
    try:
        for name in ("shared", "services", "ops"):
            shutil.copytree(TOP / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
        for file in NEEDED:
            shutil.copy(TOP / file, project)
        shutil.copytree(wheels(), project / "ops/image/wheels", dirs_exist_ok=True)
        with container_engine.Engine(directory / "e") as daemon:
            stack = Stack(daemon, project)
            stack.compose("build", seconds=400)
            try:
                stack.up()
                yield stack
            except RuntimeError as wrong:
                logs = stack.compose("logs", "--no-color", "--tail", "30")
                raise RuntimeError(f"{wrong}\n{logs}") from wrong
            finally:
                stack.compose("down", "-v", "-t", "5")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
