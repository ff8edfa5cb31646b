"""The state directory of a mesh on this machine, and the endpoint file in it by which commands find the mesh."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from .exit_codes import CONFLICT, Failure


def state_dir(given: Path | None = None) -> Path:
    """Returns `--state`, else `MOORAGE_STATE`, else the user's state directory."""
    if given is not None:
        return given.expanduser().absolute()
    if named := os.environ.get("MOORAGE_STATE"):
        return Path(named).expanduser().absolute()
    import platformdirs  # imported only where needed, because each import delays every command

    return Path(platformdirs.user_state_dir("moorage", appauthor=False))


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically, readable by its owner only: readers see the complete old or the complete new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


class StateDirectory:
    """The paths inside a state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.endpoint = root / "endpoint.json"
        self.secrets = root / "secrets.json"
        self.lock = root / "lock"
        self.nats_conf = root / "nats.conf"
        self.nats_store = root / "nats"
        self.redis_conf = root / "redis.conf"
        self.requests = root / "requests"

    def make(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.logs.mkdir(exist_ok=True, mode=0o700)
            self.nats_store.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise Failure(
                f"cannot write to the state directory {self.root}: {error.strerror}; choose another with --state"
            ) from error

    def read_endpoint(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.endpoint.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Failure(f"cannot read {self.endpoint}: {error}") from error
        return found if isinstance(found, dict) else None

    def holder(self) -> int | None:
        """Returns the process id of the `up` that holds the directory (0 while it starts), None if there is none."""
        try:
            file = open(self.lock, "r+")  # noqa: SIM115
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read().strip() or 0)
        return None

    def take(self) -> int:
        """Locks the directory for this process; the lock lasts until the returned descriptor is closed."""
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode().strip() or "?"
            os.close(fd)
            raise Failure(
                f"`moorage up` is already running in {self.root} (process {pid}); "
                "stop it with `moorage down` or choose another directory with --state",
                CONFLICT,
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd
