"""Nodes with zones admit and reject pods as a kubelet does, and report late what is in use of their zones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.model.reports import PodReport
from moorage.parts.kubelet import TOPOLOGY_AFFINITY_ERROR, TopologyManager
from moorage.sim.core.cluster import MAX_REFUSED
from moorage.sim.core.cluster_rows import node_rows
from moorage.sim.core.cluster_spec import ClusterSpec, NodeKind, NodeRun
from moorage.sim.core.node_zones import NodeTopology, SimulatedZone

from .world import World, app, workload

SINGLE = TopologyManager("single-numa-node")


def kind(manager: TopologyManager = SINGLE, zones: int = 2, **labels: str) -> NodeKind:
    amounts = {"cpu": 8000, "memory": 16 << 30}
    found = tuple(SimulatedZone(f"numa-{i}", amounts) for i in range(zones))
    return NodeKind(
        allocatable={"cpu": str(8 * zones), "memory": f"{16 * zones}Gi"},
        labels=labels,
        topology=NodeTopology(manager, found),
    )


def lab(*kinds: NodeKind, delay: float = 0.0) -> World:
    runs = tuple(NodeRun(found, f"n-{i}") for i, found in enumerate(kinds))
    return World({"lab/a": ClusterSpec("lab/a", runs, topology_delay=delay)})


def guaranteed(kind: str = "Deployment", cores: int = 5, replicas: int = 1, **pod: Any) -> dict[str, Any]:
    amounts = {"cpu": str(cores), "memory": "1Gi"}
    containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
    return workload(kind, replicas=replicas, containers=containers, **pod)


def pods(world: World, phase: str) -> list[PodReport]:
    return [pod for pod in world.pods["lab/a"].values() if pod.phase == phase]


def in_use(world: World, node: str = "n-0") -> dict[str, Any]:
    """Returns what was reported last to be in use of the node's zones."""
    agent = world.core.agents["lab/a"]
    [row] = node_rows(agent.cluster, [node]) if agent.cluster.nodes is not None else list(node_rows(agent.cluster))
    found: dict[str, Any] = msgspec.json.decode(row).get("inUse", {})
    return found


def test_what_no_zone_holds_is_rejected_again_and_again() -> None:
    """kubernetes#84869: the node has six cores free, three of each zone."""
    world = lab(kind())
    world.want("lab/a", app(1, guaranteed(replicas=3)))
    world.run(10)
    assert len(pods(world, "Running")) == 2
    failed = pods(world, "Failed")
    assert 20 < len(failed) < 60
    assert {(p.reason, p.message, p.node) for p in failed} == {
        (TOPOLOGY_AFFINITY_ERROR, "Resources cannot be allocated with Topology locality", "n-0")
    }
    assert in_use(world) == {f"numa-{i}": {"cpu": "5", "memory": "1Gi"} for i in (0, 1)}
    status = world.last().objects[0]
    assert (status.state, status.ready, status.wanted) == ("Progressing", 2, 3)
    assert TOPOLOGY_AFFINITY_ERROR in status.message
    world.run(60)
    assert len(world.pods["lab/a"]) <= MAX_REFUSED + 3
    world.want("lab/a", app(2, guaranteed(replicas=2)))
    world.run(2)
    world.assert_reported()


def test_rejected_pods_take_nothing_and_others_follow_where_there_is_room() -> None:
    world = lab(kind(), kind(disk="ssd"))
    world.want("lab/a", app(1, guaranteed(cores=5, replicas=3, nodeSelector={"kubernetes.io/hostname": "n-0"})))
    world.run(2)
    assert len(pods(world, "Running")) == 2
    world.want("lab/a", app(2, guaranteed(cores=5, replicas=3)))
    world.run(5)
    assert len(pods(world, "Running")) == 3
    assert world.last().objects[0].state == "Ready"
    assert len(pods(world, "Failed")) > 2, "the garbage collector of Kubernetes keeps failed pods"
    world.want("lab/a", app(3, remove=True))
    world.run(2)
    assert world.pods["lab/a"] == {}
    assert in_use(world) == in_use(world, "n-1") == {}
    world.assert_reported()


def test_a_stateful_set_replaces_its_rejected_pod() -> None:
    world = lab(kind())
    world.want("lab/a", app(1, guaranteed("StatefulSet", replicas=3)))
    seen: set[str] = set()
    for _ in range(40):
        world.run(0.1)
        failed = pods(world, "Failed")
        assert len(failed) <= 1
        seen.update(pod.uid for pod in failed)
        assert all(pod.name == "web-2" for pod in failed)
    assert len(seen) > 3
    assert TOPOLOGY_AFFINITY_ERROR in world.last().objects[0].message


def test_daemon_sets_and_jobs_wait_longer_each_time_and_bare_pods_for_ever() -> None:
    world = lab(kind())
    objects = [guaranteed("DaemonSet", cores=9), guaranteed("Job", cores=9), guaranteed("Pod", cores=9)]
    world.want("lab/a", app(1, *objects))
    world.run(17)
    names = [pod.name.split("-")[0] for pod in pods(world, "Failed")]
    assert len(names) == 5 + 2 + 1  # after 0, 1, 3, 7, 15 s; after 0, 10 s; never again
    world.run(600)
    assert len(pods(world, "Failed")) < 30
    assert {o.state for o in world.last().objects} == {"Progressing"}


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_other_policies_admit_what_the_node_holds(policy: Any) -> None:
    world = lab(kind(TopologyManager(policy)))
    world.want("lab/a", app(1, guaranteed(replicas=3)))
    world.run(3)
    assert len(pods(world, "Running")) == 3
    assert sum(int(amounts["cpu"]) for amounts in in_use(world).values()) == 15


def test_pods_that_share_cores_are_not_aligned() -> None:
    world = lab(kind())
    world.want("lab/a", app(1, workload(cpu="9", replicas=1)))
    world.run(1)
    assert len(pods(world, "Running")) == 1
    assert in_use(world) == {}


def test_zones_are_reported_late_with_the_pods_that_count() -> None:
    world = lab(kind(), delay=10)
    world.want("lab/a", app(1, guaranteed(cores=3, replicas=2)))
    world.run(5)
    [*uids] = sorted(pod.uid for pod in pods(world, "Running"))
    assert len(uids) == 2
    assert in_use(world) == {}
    world.run(6)
    assert in_use(world) == {"numa-0": {"cpu": "6", "memory": "2Gi"}}
    [row] = node_rows(world.core.agents["lab/a"].cluster, ["n-0"])
    assert msgspec.json.decode(row)["counted"] == uids
    world.want("lab/a", app(2, remove=True))
    world.run(5)
    assert in_use(world) == {"numa-0": {"cpu": "6", "memory": "2Gi"}}
    world.run(6)
    assert in_use(world) == {}


def test_what_is_in_use_from_the_start_is_not_given() -> None:
    full = SimulatedZone("numa-0", {"cpu": 8000}, {"cpu": 6000})
    busy = NodeKind(
        allocatable={"cpu": "16", "memory": "32Gi"}, topology=NodeTopology(SINGLE, (full, full._replace(id="numa-1")))
    )
    world = lab(busy)
    assert in_use(world) == {"numa-0": {"cpu": "6"}, "numa-1": {"cpu": "6"}}
    world.want("lab/a", app(1, guaranteed(cores=3)))
    world.run(1)
    assert pods(world, "Running") == []
    assert pods(world, "Failed") != []


def test_pods_are_admitted_again_when_the_nodes_change() -> None:
    world = lab(kind())
    world.want("lab/a", app(1, guaranteed(replicas=2)))
    world.run(1)
    smaller = NodeKind(
        allocatable={"cpu": "16", "memory": "32Gi"},
        topology=NodeTopology(SINGLE, (SimulatedZone("numa-0", {"cpu": 8000}), SimulatedZone("numa-1", {"cpu": 4000}))),
    )
    world.core.apply({"lab/a": ClusterSpec("lab/a", (NodeRun(smaller, "n-0"),))}, world.now)
    world.run(2)
    assert len(pods(world, "Running")) == 1
    assert pods(world, "Failed") != []
    assert in_use(world) == {"numa-0": {"cpu": "5"}}
    world.want("lab/a", app(2, guaranteed(replicas=1)))
    world.run(2)
    world.assert_reported()


def test_zones_that_strangers_took_are_reported_late() -> None:
    def stranger(name: str, cores: int) -> dict[str, Any]:
        amounts = {"cpu": str(cores), "memory": "1Gi"}
        containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
        return {"metadata": {"name": name}, "spec": {"nodeName": "n-0", "containers": containers}}

    def reported(world: World) -> dict[str, str]:
        return {zone: amounts["cpu"] for zone, amounts in in_use(world).items()}

    runs = (NodeRun(kind(), "n-0"),)
    spec = ClusterSpec("lab/a", runs, pods=(stranger("one", 5),), topology_delay=2.0)
    world = World({"lab/a": spec})
    world.run(1)
    assert reported(world) == {}
    world.run(2)
    assert reported(world) == {"numa-0": "5"}
    world.core.apply({"lab/a": spec._replace(pods=(stranger("one", 5), stranger("two", 6)))}, world.now)
    world.run(1)
    assert reported(world) == {"numa-0": "5"}
    world.run(2)
    assert reported(world) == {"numa-0": "5", "numa-1": "6"}
    world.core.apply({"lab/a": spec._replace(pods=(), topology_delay=0.0)}, world.now)
    world.run(1)
    assert reported(world) == {}
    world.assert_reported()
