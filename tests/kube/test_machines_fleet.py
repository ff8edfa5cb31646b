"""Machines of the mesh on real clusters: `machines` writes them from documents, and guests made with kubectl and an application that the mesh
decides never get the same slot."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from moorage.kube import Api
from moorage.machine_groups.names import GROUP_VERSION, MACHINE_GROUP, MACHINE_TYPE, MESH, NAMESPACE_LABELS, ORIGIN
from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import control_planes
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

TEAM = "team"
MACHINES = f"/apis/{GROUP_VERSION}/machines"
RUNNING = f"/api/v1/pods?labelSelector={MACHINE_GROUP}%3Dshared"
GUEST = {MACHINE_GROUP: "shared", MACHINE_TYPE: "small"}


class Fleet:
    """A mesh with real clusters that have joined it with Machines."""

    def __init__(self, mesh: Mesh, clusters: list[MachineCluster]) -> None:
        self.mesh, self.clusters = mesh, clusters
        self.agents: list[AgentProcess] = []
        self.processes: list[MachinesProcess] = []

    def join(self) -> None:
        for found in self.clusters:
            name = f"lab/{found.plane.name}"
            where = [name, "--kubeconfig", str(found.plane.kubeconfig), "--machines", "--no-deploy"]
            joined = self.mesh.run("cluster", "join", *where, seconds=90)
            assert joined.returncode == 0, joined.stderr.decode()
            asyncio.run(found.install(nothing))
            self.agents.append(AgentProcess(self.mesh, found.plane, "--name", name))
            self.agents[-1].start()
            self.processes.append(MachinesProcess(found, "--name", name, MOORAGE_STATE=str(self.mesh.state)))
            found.namespace(TEAM)
            # Applications go there, too.
            found.patch("/api/v1/namespaces/default", {"metadata": {"labels": {NAMESPACE_LABELS[0]: "enabled"}}})

    def leave(self) -> None:
        for process in self.processes:
            process.remove()
        for agent in self.agents:
            agent.stop()

    def apply(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            self.mesh.http("/v1/apply", document)

    def slots(self) -> Counter[tuple[str, str]]:
        return Counter(
            (slot["cluster"].partition("/")[2], slot["state"]) for slot in self.mesh.http("/v1/slots")["items"]
        )

    def held(self) -> dict[str, int]:
        """Returns how many guests each cluster has on Nodes, whoever made them."""
        found = {}
        for cluster in self.clusters:
            pods = cluster.call("GET", RUNNING)["items"]
            found[cluster.plane.name] = sum(
                bool(pod["spec"].get("nodeName")) and pod["metadata"]["labels"].get("imperator.tenzen-y.io/pod-role") == "guest"
                for pod in pods
            )  # fmt: skip
        return found


async def nothing(_api: Api) -> None:
    """Installs nothing: `join` has done so."""


@contextlib.contextmanager
def fleet(*names: str, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[Fleet]:
    mesh = Mesh()
    mesh.environment |= environment
    with mesh, control_planes(*names) as planes:
        for plane in planes:
            plane.node(f"{plane.name}-n0", allocatable={"cpu": "8", "memory": "32Gi"})
        found = Fleet(mesh, [MachineCluster(plane) for plane in planes])
        try:
            found.join()
            for process in found.processes:
                until(process.is_ready, 60)
            until(lambda: len(mesh.http("/v1/clusters")["items"]) == len(names), 60)
            yield found
        finally:
            found.leave()


def until(check: Callable[[], Any], seconds: float, what: str = "") -> None:
    wait_until(check, what, seconds)


def document(available: int, *names: str) -> dict[str, Any]:
    pool = [
        {"name": f"{name}-n0", "cluster": f"lab/{name}", "mode": "ready", "taint": True, "machineType": [{"name": "small"}]}
        for name in names
    ]  # fmt: skip
    types = [{"name": "small", "spec": {"cpu": "2", "memory": "4Gi"}, "available": available}]
    meta = {"name": "shared", "labels": {MACHINE_GROUP: "shared"}}
    return {"apiVersion": GROUP_VERSION, "kind": "Machine", "metadata": meta, "spec": {"nodePool": pool, "machineTypes": types}}  # fmt: skip


def application(name: str, replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 0}}  # fmt: skip
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    consumer = {"object": target, "container": "main", "needs": [{"machine": "shared/small"}]}
    app = {"name": "web", "manifests": [manifest], "consumers": [consumer]}
    return {"kind": "Application", "metadata": {"name": name}, "spec": {"apps": [app]}}


def check(found: Fleet, available: int) -> None:
    """A document becomes Machines of its clusters; guests and an application race for its last slot."""
    names = [cluster.plane.name for cluster in found.clusters]
    found.apply(document(available, *names))
    until(lambda: sum(n for (_, state), n in found.slots().items() if state == "reserved") == available, 60, "held")
    shares: dict[str, int] = {}

    def are_written() -> bool:
        for cluster in found.clusters:
            machine = cluster.find(f"{MACHINES}/shared")
            if machine is None:
                return False
            assert machine["metadata"]["labels"][ORIGIN] == MESH
            assert [node["name"] for node in machine["spec"]["nodePool"]] == [f"{cluster.plane.name}-n0"]
            shares[cluster.plane.name] = machine["spec"]["machineTypes"][0]["available"]
        return sum(shares.values()) == available

    until(are_written, 60, "each cluster has its Machine")
    first = found.clusters[0]
    assert shares[first.plane.name], "the cluster of the guests that come late has slots"
    # What somebody changes of it is put back.
    types = [{"name": "small", "spec": {"cpu": "2", "memory": "4Gi"}, "available": 7}]
    first.patch(f"{MACHINES}/shared", {"spec": {"machineTypes": types}})

    def available_in(cluster: MachineCluster) -> int:
        return int(cluster.get_machine("shared")["spec"]["machineTypes"][0]["available"])

    until(lambda: available_in(first) == shares[first.plane.name], 60, "it is put back")

    # All slots but one are used by guests that were made in their clusters.
    for cluster in found.clusters:
        name = cluster.plane.name
        for i in range(shares[name] - (cluster is first)):
            cluster.pod(TEAM, f"early-{i}", GUEST)
    until(lambda: sum(found.held().values()) == available - 1, 60, "guests run")

    threads = [threading.Thread(target=first.pod, args=(TEAM, f"late-{i}", GUEST)) for i in range(12)]
    threads.append(threading.Thread(target=found.apply, args=(application("racer", 1),)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def holders() -> list[str]:
        """Returns the Pods that came last and run: never more than one."""
        # Those that come late are read first: they end only here, while the other one may end between two clusters.
        assert found.clusters[0] is first
        pods = [p for c in found.clusters for p in c.call("GET", RUNNING)["items"] if p["spec"].get("nodeName")]
        names = [p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith(("late-", "racer"))]
        held = found.held()
        assert len(names) <= 1 and all(held[name] <= shares[name] for name in shares), (names, held)
        return names

    seen = []
    for _ in range(13):
        until(holders, 60, "the slot is given")
        (name,) = holders()
        seen.append(name.partition("-")[0])
        if name.startswith("late-"):
            first.delete_pod(TEAM, name)
        else:
            done = found.mesh.run("delete", "application", "racer")
            assert done.returncode == 0, done.stderr.decode()
        until(lambda name=name: name not in holders(), 60, "it is given back")  # type: ignore[misc]
    assert Counter(seen) == {"late": 12, "racer": 1}


def check_daemon_set(found: Fleet) -> None:
    """Its pods come for the tainted Node of its machine, and for no other."""
    (cluster,) = found.clusters
    cluster.plane.node("edge-plain", allocatable={"cpu": "8", "memory": "32Gi"})
    until(lambda: len(found.mesh.http("/v1/nodes")["items"]) == 2, 60, "the other Node is known")
    wanted = application("everywhere", 1)
    (app,) = wanted["spec"]["apps"]
    (manifest,) = app["manifests"]
    manifest["kind"] = app["consumers"][0]["object"]["kind"] = "DaemonSet"
    del manifest["spec"]["replicas"]
    found.apply(wanted)

    def pods() -> list[str]:
        listed = cluster.call("GET", "/api/v1/pods?labelSelector=app%3Deverywhere")["items"]
        return [pod["spec"].get("nodeName", "") for pod in listed]

    until(lambda: pods() == ["edge-n0"], 60, "its guest runs")
    group = "/v1/groups/default/everywhere/v1/default"
    until(lambda: found.mesh.http(group)["phase"] == "Running", 60, "it is ready")
    status = cluster.call("GET", "/apis/apps/v1/namespaces/default/daemonsets/everywhere")["status"]
    assert status["desiredNumberScheduled"] == 1


def test_guests_and_an_application_race_for_the_last_slot_of_a_machine_of_the_mesh() -> None:
    with fleet("edge") as found:
        check(found, 2)
        check_daemon_set(found)


@pytest.mark.long
def test_a_machine_over_three_clusters() -> None:
    with fleet("one", "two", "three") as found:
        check(found, 9)
        first = found.clusters[0]
        found.mesh.run("delete", "machine", "shared")
        until(lambda: not any(c.find(f"{MACHINES}/shared") for c in found.clusters), 60, "its Machines go")
        until(lambda: "taints" not in first.call("GET", "/api/v1/nodes/one-n0")["spec"], 30, "Nodes are clean")
        assert any(first.bound(TEAM)), "no guest that runs stops"
