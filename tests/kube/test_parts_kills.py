"""Mergers and patchers that die while they place groups inside of nodes, on a real control plane: the group runs as if nothing had
happened, its objects are written once, and no zone is given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from moorage.podspec import CLAIM, PARTS
from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.mesh import Mesh

from .fleet import agent_of, application, apply, pods, remove, running, until
from .test_node_topology import DEFINITION, DEFINITIONS, NAME, TOPOLOGIES, topology

pytestmark = pytest.mark.timeout(400)
NODES = [f"edge-1-n{i}" for i in range(4)]


@pytest.fixture(scope="module")
def zoned(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Gives each node two zones of four cores."""
    plane.call("POST", DEFINITIONS, DEFINITION)

    def is_served() -> bool:
        conditions = plane.get(f"{DEFINITIONS}/{NAME}").get("status", {}).get("conditions", [])
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    until(is_served, 30, "the definition is served")
    for node in NODES:
        plane.call("POST", TOPOLOGIES, topology(node, "4"))
    yield plane
    plane.call("DELETE", f"{DEFINITIONS}/{NAME}")


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("points"))


@pytest.fixture(scope="module")
def mesh(zoned: ControlPlane, failpoints: Failpoints) -> Iterator[Mesh]:
    mesh = Mesh()
    mesh.environment = failpoints.environment
    with mesh:
        done = mesh.run("cluster", "join", "--kubeconfig", str(zoned.kubeconfig), "--context", zoned.name, "--provider", "lab", "--no-deploy")  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        agent: AgentProcess = agent_of(mesh, zoned)
        with agent:
            until(lambda: len(zones(mesh)) == 8, 60, "the zones of all nodes are known")
            yield mesh


def zones(mesh: Mesh) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = mesh.http("/v1/parts?limit=500")["items"]
    return [part for part in items if part["kind"] == "zone"]


LONG = [
    pytest.param(point, marks=pytest.mark.long) for point in ("merger.answered", "patcher.asked", "patcher.confirmed")
]


@pytest.mark.parametrize("point", ["merger.committed", "patcher.desired", "patcher.concluded", *LONG])
def test_a_kill_neither_loses_nor_repeats_what_is_placed_in_zones(
    mesh: Mesh, zoned: ControlPlane, failpoints: Failpoints, point: str
) -> None:
    name = point.replace(".", "-")
    needs = [{"resource": "cpu", "requests": 3, "limits": 3}]
    document = application(name, needs, pods=3)
    document["spec"]["apps"][0]["consumers"][0]["topology"] = {"zone": "required"}
    failpoints.arm(point)
    apply(mesh, document)
    until(lambda: failpoints.happened(point), 60, "it is killed there")
    found = running(mesh, name, 90)

    (claim,) = found["apps"][name]["claims"]
    taken = Counter(
        (slot["node"], part)
        for slot in claim["slots"]
        for part, amounts in slot["parts"].items()
        for _ in range(slot.get("count", 1))
        if amounts == {"cpu": "3"}
    )
    assert len(taken) == 3 and set(taken.values()) == {1}, "each pod has a zone of its own"
    placed = [pod for pod in pods(zoned, name) if "deletionTimestamp" not in pod["metadata"]]
    assert Counter(pod["spec"]["nodeName"] for pod in placed) == Counter(node for node, _ in taken)
    seats: set[tuple[str, str]] = set()
    for pod in placed:
        runs = msgspec.json.decode(pod["metadata"]["annotations"][PARTS])
        assert pod["spec"]["nodeName"] in runs
        seats.update((node, part) for node, of_node in runs.items() for run in of_node for part in run["parts"])
    assert seats == set(taken)
    assert len({pod["metadata"]["labels"][CLAIM] for pod in placed}) == 1
    workload = zoned.get(f"/apis/apps/v1/namespaces/default/statefulsets/{name}")
    assert workload["metadata"]["generation"] == 1, "it was written once"
    until(lambda: [part["used"] for part in zones(mesh)].count({"cpu": "3"}) == 3, 60, "three zones are in use")
    remove(mesh, name)
    until(lambda: not any(part["used"].get("cpu", "0") != "0" for part in zones(mesh)), 60, "zones are free again")
