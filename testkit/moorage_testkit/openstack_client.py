"""Installs the OpenStack client with osc-placement into an environment of its own, in the user's cache: what it needs does not go
together with what the tests need. `make openstack-client` does it; a test that finds none does it too."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

import platformdirs

_TOP = Path(__file__).parents[2]
LOCK = _TOP / "requirements-openstack-client.lock"


def directory() -> Path:
    """Returns the environment's directory. Each set of versions has its own."""
    versions = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Path(platformdirs.user_cache_dir("moorage")) / f"openstack-client-{versions}-python{python}"


def interpreter() -> Path:
    """Returns the environment's interpreter, after installing what is missing. Raises RuntimeError if that is not possible."""
    made = directory()
    python, complete = made / "bin" / "python", made / ".complete"
    if complete.exists():
        return python
    made.mkdir(parents=True, exist_ok=True)
    with (made / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait until it is complete
        if not complete.exists():
            _run(sys.executable, "-m", "venv", str(made))
            _run(str(python), str(_TOP / "tools" / "install.py"), str(LOCK))
            complete.touch()
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


if __name__ == "__main__":
    sys.stderr.write(f"the OpenStack client is in {interpreter().parent.parent}\n")
