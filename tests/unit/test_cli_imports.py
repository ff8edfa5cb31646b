"""Commands start quickly: they import what they need, and nothing that workers need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Each of these alone takes longer to import than most commands take.
HEAVY = {
    "aiohttp", "asyncio", "highspy", "jsonschema", "kubernetes_asyncio", "msgspec", "nats", "numpy", "prometheus_client",
    "pyroaring", "redis", "structlog", "uvloop", "yaml",
}  # fmt: skip

_RUN = """
import sys
from moorage.cli.main import run
run(sys.argv[2:])
print("imported", *(set(sys.argv[1].split(",")) & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "command",
    ["get groups", "get clusters -o json", "describe group shop", "why shop", "wait shop --for phase=Running", "logs",
     "--version", "version", "check", "events", "delete app shop", "approve shop", "get"],
)  # fmt: skip
def test_commands_import_nothing_heavy(command: str, tmp_path: Path) -> None:
    """There is no mesh: the commands fail when they look for it, and have imported everything by then."""
    arguments = [sys.executable, "-c", _RUN, ",".join(sorted(HEAVY)), *command.split()]
    environment = {"MOORAGE_STATE": str(tmp_path), "PATH": ""}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "imported", f"{done.stdout}{done.stderr}"


def test_the_overview_imports_nothing_heavy() -> None:
    arguments = [sys.executable, "-c", _RUN, ",".join(sorted(HEAVY)), "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: moorage" in done.stdout and done.stdout.splitlines()[-1] == "imported"
