"""Kills workers while groups with parts on several nodes are placed, updated and removed: each pod runs in the slot of its claim, and
no part is given twice."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from moorage.bus import subjects
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.invariants import counting_pods
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually

from .conftest import MakeMesh

#: Two clusters of three nodes with two zones each, and a card in each zone: room for two groups of three pods each.
CLUSTERS, NODES, ZONES, PODS = 2, 3, 2, 3
FIT, GROUPS = CLUSTERS * NODES * ZONES // PODS, 6
CONFIRMED = "moorage.desired.confirm.>"


def node() -> dict[str, Any]:
    return {
        "name": "n",
        "count": NODES,
        "allocatable": {"cpu": "8", "memory": "16Gi"},
        "zones": [{"id": i, "resources": {"cpu": 4, "memory": "8Gi"}} for i in range(ZONES)],
        "providers": [{"name": f"card{i}", "zone": i, "inventories": {"FPGA": 1}} for i in range(ZONES)],
    }


FLEET = {"clusters": [{"name": f"c-{i}", "provider": "lab", "nodes": [node()]} for i in range(CLUSTERS)]}


def document(name: str, image: str = "i") -> dict[str, Any]:
    """Each pod takes most of a zone and its card, so that two fit on a node."""
    made = application(name, pods=PODS, image=image)
    (app,) = made["spec"]["apps"]
    (consumer,) = app["consumers"]
    consumer["needs"] = [
        {"resource": "cpu", "requests": 3, "limits": 3, "group": "_C"},
        {"resource": "FPGA", "requests": 1, "group": "_A"},
    ]
    consumer["topology"] = {"sameSubtree": [["_C", "_A"]]}
    app["manifests"][0]["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return made


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    return make_mesh(FLEET, "--workers", "merger=2", environment=failpoints.environment)


def kill_simulator(mesh: Mesh) -> None:
    mesh.kill("sim")


async def in_their_slots(driver: MeshClient) -> bool:
    """Returns whether each node runs just what is claimed on it. A pod beside its slots would take more."""
    claimed: dict[tuple[str, str], int] = {}
    for decision in driver.ledger.standing.values():
        for claim in decision.claims:
            for slot in claim.slots:
                key = claim.cluster, slot.node
                claimed[key] = claimed.get(key, 0) + 3 * slot.count
    nodes = (await driver.http("/v1/nodes"))["items"]
    used = {(n["cluster"], n["name"]): int(n["used"].get("cpu", "0")) for n in nodes}
    return {key: cores for key, cores in used.items() if cores} == claimed


async def cards_in_use(driver: MeshClient) -> list[int]:
    """Returns the numbers of holders of the cards that are in use."""
    parts = (await driver.http("/v1/parts"))["items"]
    return [len(p["holders"]) for p in parts if "card" in p["id"] and p.get("holders")]


async def running(driver: MeshClient) -> bool:
    phases = list((await driver.phases()).values())
    return phases.count("Running") == FIT and phases.count("Pending") == GROUPS - FIT


async def died(failpoints: Failpoints, points: list[str]) -> None:
    async def all_of_them() -> bool:
        return all(failpoints.happened(point) for point in points)

    await eventually(all_of_them, 60, f"somebody comes to {points}")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("placing", "changing", "leaving"),
    [
        (["merger.answered", "patcher.desired"], ["merger.committed"], ["merger.withdrawn", "patcher.confirmed"]),
        (["merger.committed", "patcher.asked"], ["patcher.desired"], ["merger.released"]),
        ([], [], []),
    ],
    ids=["before the commit", "after the commit", "the simulator alone"],
)
async def test_a_kill_leaves_each_pod_in_its_slot(
    mesh: Mesh,
    driver: MeshClient,
    failpoints: Failpoints,
    placing: list[str],
    changing: list[str],
    leaving: list[str],
    request: pytest.FixtureRequest,
) -> None:
    case = request.node.callspec.id.replace(" ", "-")
    names = [f"{case}-{i}" for i in range(GROUPS)]
    for point in placing:
        failpoints.arm(point)
    async with driver.at(CONFIRMED, partial(kill_simulator, mesh), 2) as killed:
        await asyncio.gather(*(driver.apply(document(name)) for name in names))
        await asyncio.wait_for(killed.wait(), 60)
    await died(failpoints, placing)
    await eventually(lambda: running(driver), 90, f"{FIT} of {GROUPS} run")
    await eventually(lambda: in_their_slots(driver), 60, "pods run in their slots")

    async def held_once() -> bool:
        """Returns whether claims that were given up on the way are released."""
        return counting_pods(driver.ledger) == FIT * PODS and await cards_in_use(driver) == [1] * (FIT * PODS)

    await eventually(held_once, 60, "each card that is in use has one holder")
    pinned = [c for d in driver.ledger.standing.values() for c in d.claims if len({s.node for s in c.slots}) > 1]
    assert pinned and all(claim.pinned for claim in pinned)

    # All that run are updated; there is no room for a pod more.
    run = [g.split("/")[1] for g, phase in (await driver.phases()).items() if phase == "Running"]
    before = {g: d.id for g, d in driver.ledger.standing.items()}
    for point in changing:
        failpoints.arm(point)
    async with driver.at(CONFIRMED, partial(kill_simulator, mesh), 1) as killed:
        await asyncio.gather(*(driver.apply(document(name, "another")) for name in run))
        await asyncio.wait_for(killed.wait(), 60)
    await died(failpoints, changing)

    async def updated() -> bool:
        return await running(driver) and all(d.id != before.get(g) for g, d in driver.ledger.standing.items())

    await eventually(updated, 90, "they run as they are wanted now")
    await eventually(lambda: in_their_slots(driver), 60, "pods run in their slots")

    await eventually(held_once, 60, "older claims are released")

    for point in leaving:
        failpoints.arm(point)
    await driver.delete(names, 90)
    await died(failpoints, leaving)

    async def nothing_left() -> bool:
        return not driver.ledger.claims and not await driver.phases() and not await cards_in_use(driver)

    await eventually(nothing_left, 60, "no claim and no group is left")
    items = (await driver.ask(subjects.SIM_LIST, {}))["items"]
    assert sum(item["pods"] for item in items) == 0
