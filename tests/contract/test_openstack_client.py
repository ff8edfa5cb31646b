"""The functional tests that osc-placement ships, with the real client: against the worker directly, and by bearer token through the
gateway. Some run always, all of them in the long tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_testkit import openstack_client
from moorage_testkit.mesh import Mesh

RUNNER = Path(__file__).parent / "placement" / "osc_runner.py"
#: Tests by module.
MODULES = {
    "aggregate": 20,
    "allocation": 26,
    "allocation_candidate": 28,
    "inventory": 28,
    "plugin": 1,
    "resource_class": 8,
    "resource_provider": 32,
    "trait": 13,
    "usage": 4,
}
#: Those that always run: the others take a minute.
SAMPLE = {("worker", "plugin"), ("worker", "trait"), ("gateway", "resource_class"), ("gateway", "usage")}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return openstack_client.interpreter()
    except RuntimeError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no OpenStack client: {error}")


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """The tests empty the service, so it is theirs alone, and no cluster reports nodes to it."""
    with Mesh() as found:
        yield found


def test_these_are_all_tests_of_the_client() -> None:
    assert sum(MODULES.values()) == 160


@pytest.mark.parametrize(
    ("way", "module"),
    [
        pytest.param(way, module, marks=() if (way, module) in SAMPLE else pytest.mark.long)
        for way in ("worker", "gateway")
        for module in MODULES
    ],
)
def test_the_client(python: Path, mesh: Mesh, way: str, module: str) -> None:
    url = mesh.endpoint["placement"] if way == "worker" else f"{mesh.endpoint['http']}/placement"
    command = [str(python), str(RUNNER), url, mesh.endpoint["token"], "bearer" if way == "gateway" else "token"]
    path = f"{python.parent}:{os.environ.get('PATH', '')}"  # one test calls the command
    done = subprocess.run(
        [*command, f"test_{module}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"passed": MODULES[module], "failed": {}}
