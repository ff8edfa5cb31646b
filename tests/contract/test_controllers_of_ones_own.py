"""Runs custom controllers as the contract describes them: a file that `moorage run` starts, and one that uses plain NATS and
knows only the subject and the JSON of Moorage."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from moorage.sdk import changed
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually
from moorage_testkit.polling import until

EXAMPLE = Path(__file__).parent / "examples" / "only_eu.py"
FLEET = {
    "clusters": [
        {
            "name": name,
            "provider": "lab",
            "labels": {"region": region},
            "nodes": [{"name": "n", "allocatable": {"cpu": cpu, "memory": "8Gi"}}],
        }
        # The other clusters have more capacity, so that no app is placed in Europe by chance.
        for name, region, cpu in [("edge-1", "eu", "4"), ("us-1", "us", "64"), ("us-2", "us", "64")]
    ]
}
PLAIN = {"apps": {"web": {"groups": [{"mode": "allow", "clusters": ["lab/edge-1"]}]}}}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(json.dumps(FLEET))
    with Mesh("--fleet", str(file)) as found:
        yield found


@pytest_asyncio.fixture
async def driver(mesh: Mesh) -> AsyncIterator[MeshClient]:
    async with MeshClient(mesh) as found:
        yield found


@contextmanager
def running(mesh: Mesh, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "moorage.cli", "run", str(file)]
    process = subprocess.Popen(command, env={**os.environ, "MOORAGE_STATE": str(mesh.state)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def plain(mesh: Mesh) -> AsyncIterator[Client]:
    """Connects with what any language has: an address, a seed, publish and subscribe."""
    nc = await nats.connect(mesh.endpoint["nats"], nkeys_seed_str=mesh.endpoint["natsSeed"])
    try:
        yield nc
    finally:
        await nc.close()


async def names(driver: MeshClient) -> set[str]:
    return {item["name"] for item in (await driver.http("/v1/controllers"))["items"]}


async def simulate(driver: MeshClient) -> tuple[list[str], dict[str, dict[str, Any]]]:
    why = await driver.http("/v1/simulate", application("question"))
    clusters: list[str] = why["apps"]["web"].get("clusters", [])
    return clusters, {c["name"]: c for c in why["controllers"]}


async def until_asked(driver: MeshClient, name: str) -> None:
    async def asked() -> bool:
        return (await simulate(driver))[1].get(name, {}).get("outcome") == "answered"

    await eventually(asked, 40, f"{name} is asked and answers")


def test_the_readme_shows_the_example_file() -> None:
    """Blank lines, which formatting adds, do not count."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "only_eu" in block)
    code = [line for line in shown.splitlines() if line and not line.startswith("#")]
    assert code == [line for line in EXAMPLE.read_text().splitlines() if line]


async def test_the_example_controller_is_asked_and_leaves_when_stopped(mesh: Mesh, driver: MeshClient) -> None:
    clusters, _ = await simulate(driver)
    assert clusters[0].startswith("lab/us-")
    with running(mesh, EXAMPLE) as process:
        await until_asked(driver, "only-eu")

        async def chosen() -> bool:
            clusters, controllers = await simulate(driver)
            asked = controllers["only-eu"]
            assert (asked["policy"], asked["deadlineMs"]) == ("optional", 200)
            assert asked["outcome"] != "answered" or clusters == ["lab/edge-1"]
            return bool(asked["outcome"] == "answered")

        # A busy machine may answer later than that, and an optional controller is then left out.
        await eventually(chosen, 40, "it is asked, and chooses")
        # Not only in simulations.
        names_of_apps = (f"european-{number}" for number in range(20))

        async def placed() -> bool:
            name = next(names_of_apps)
            await driver.apply(application(name))
            await driver.until_phase(name, "Running")
            why = await driver.why(name)
            outcome = {c["name"]: c["outcome"] for c in why["controllers"]}["only-eu"]
            assert outcome != "answered" or why["apps"]["web"]["clusters"] == ["lab/edge-1"]
            await driver.delete([name])
            return bool(outcome == "answered")

        await eventually(placed, 60, "it is asked about an application, and chooses")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0

    async def left() -> bool:
        return "only-eu" not in await names(driver)

    await eventually(left, 40, "a cleanly stopped controller leaves")
    clusters, controllers = await simulate(driver)
    assert "only-eu" not in controllers and clusters[0].startswith("lab/us-")


async def test_a_killed_controller_stays_registered_and_times_out(mesh: Mesh, driver: MeshClient) -> None:
    with running(mesh, EXAMPLE) as process:
        await until_asked(driver, "only-eu")
        process.kill()
        process.wait()

        async def noticed() -> bool:
            outcome: str = (await simulate(driver))[1]["only-eu"]["outcome"]
            return outcome != "answered"

        await eventually(noticed, 40, "its silence is noticed")
    clusters, controllers = await simulate(driver)
    assert controllers["only-eu"]["outcome"] == "timeout"
    assert clusters[0].startswith("lab/us-"), "an optional one that is silent is left out"
    assert "only-eu" in await names(driver), "a dead one stays"
    # With the policy `required` its silence blocks all decisions, with a reason.
    assert (await driver.mesh.arun("controllers", "set", "only-eu", "--policy", "required")).returncode == 0
    await driver.apply(application("waits"))
    await driver.until_phase("waits", "Pending")

    async def blocked() -> bool:
        reasons = (await driver.why("waits")).get("reasons", ())
        return {(r["code"], r["by"]) for r in reasons} == {("ControllerTimeout", "only-eu")}

    await eventually(blocked, 40, "its silence is the reason")
    # After its restart it answers, and the waiting group is placed where it allows.
    with running(mesh, EXAMPLE):
        await driver.until_phase("waits", "Running")
        assert (await driver.why("waits"))["apps"]["web"]["clusters"] == ["lab/edge-1"]
    await driver.ask("moorage.controllers.set", {"name": "only-eu", "remove": True})


TIDE = """
import asyncio
from pathlib import Path

from moorage.sdk import allow, background, changed, controller, deny

HIGH = Path({high!r})


@controller("tide", deadline=2)
def tide(ask, fleet):
    return {{app.name: deny() if HIGH.exists() else allow([]) for app in ask.apps}}


@background
async def watch():
    before = HIGH.exists()
    while True:
        await asyncio.sleep(0.05)
        if HIGH.exists() != before:
            before = HIGH.exists()
            await changed("tide")
"""


async def test_a_changed_notice_retries_the_groups_that_it_rejected(
    mesh: Mesh, driver: MeshClient, tmp_path: Path
) -> None:
    high = tmp_path / "high"
    file = tmp_path / "tide.py"
    file.write_text(TIDE.format(high=str(high)))
    with running(mesh, file) as process:
        await until_asked(driver, "tide")
        await driver.apply(application("ship"))
        await driver.until_phase("ship", "Pending")
        # The fleet does not change, and the next sweep is a minute away.
        high.touch()
        await driver.until_phase("ship", "Running", seconds=40)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    await driver.delete(["ship"])


async def test_a_controller_whose_background_function_fails_leaves_the_registry(
    mesh: Mesh, driver: MeshClient, tmp_path: Path
) -> None:
    high = tmp_path / "high"
    file = tmp_path / "tide.py"
    file.write_text(TIDE.format(high=str(high)).replace('await changed("tide")', 'raise OSError("no water")'))
    with running(mesh, file) as process:
        await until_asked(driver, "tide")
        high.touch()
        assert await asyncio.to_thread(process.wait, 60) == 1

        async def left() -> bool:
            listed = await driver.http("/v1/controllers")
            return "tide" not in {controller["name"] for controller in listed["items"]}

        await eventually(left, 40, "the controller is still registered")


async def test_only_a_running_controller_can_send_a_changed_notice() -> None:
    with pytest.raises(ValueError, match="no controller nobody runs in this process"):
        await changed("nobody")


async def test_a_controller_works_with_plain_nats(mesh: Mesh, driver: MeshClient) -> None:
    asks: list[dict[str, Any]] = []
    async with plain(mesh) as nc:

        async def answer(msg: Msg) -> None:
            asks.append(json.loads(msg.data))
            await nc.publish(msg.reply, json.dumps(PLAIN).encode())

        await nc.subscribe("moorage.controllers.elsewhere.candidates", cb=answer)
        await nc.flush()
        done = await mesh.arun("controllers", "set", "elsewhere", "--deadline", "5s")
        assert done.returncode == 0, done.stderr
        await until_asked(driver, "elsewhere")
        clusters, controllers = await simulate(driver)
        assert clusters == ["lab/edge-1"]
        assert controllers["elsewhere"]["deadlineMs"] == 5000
        assert {"id", "group", "revision", "budgetMs", "epoch", "tenant", "apps"} <= set(asks[-1])
        assert asks[-1]["apps"][0]["name"] == "web"
        await driver.apply(application("plain"))
        await driver.until_phase("plain", "Running")
        assert (await driver.why("plain"))["apps"]["web"]["clusters"] == ["lab/edge-1"]
    await driver.ask("moorage.controllers.set", {"name": "elsewhere", "remove": True})


async def test_a_controller_key_cannot_answer_for_a_built_in(mesh: Mesh) -> None:
    errors: list[str] = []

    async def failed(error: Exception) -> None:
        errors.append(str(error))

    seed = mesh.endpoint["controllerSeed"]
    nc = await nats.connect(mesh.endpoint["nats"], nkeys_seed_str=seed, error_cb=failed)
    try:
        await nc.subscribe("moorage.controllers.hpa.candidates")
        await nc.subscribe("moorage.controllers.mine.candidates")
        await until(lambda: bool(errors))
        await nc.flush()
        assert len(errors) == 1 and "hpa" in errors[0]
    finally:
        await nc.close()
