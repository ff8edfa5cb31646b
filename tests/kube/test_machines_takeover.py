"""Upgrade from objects as the existing program leaves them: a real API server has its definitions, hooks, Machines, Nodes, reservations and
guests; while it is there nothing of them is touched, and once it is gone they are taken over slot by slot."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from moorage.kube import Api
from moorage.machine_groups.names import (
    DOMAIN,
    GROUP_VERSION,
    MACHINE_GROUP,
    MACHINE_TYPE,
    NODE_MARKS,
    NODE_POOL,
    OTHER_CONTROLLER,
    OTHER_FINALIZER,
    OTHER_HOOKS,
    OTHER_NAMESPACE,
    POD_ROLE,
    SLOT_OF,
)
from moorage.machines.install import install
from moorage.model.object_names import NAMESPACE
from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess, Refused
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

from .conftest import settled

Object = dict[str, Any]
TEAM, NODES = "team", ["m0", "m1"]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/deployments"
LABELS = {MACHINE_GROUP: "g", MACHINE_TYPE: "a"}
TYPE_LABEL = f"{DOMAIN}a"
GPU = "nvidia.com/gpu"
#: Where processes are killed during a takeover into a mesh.
POINTS = ("machines.granted", "machines.cleaned", "machines.vacated", "machines.opened")


def definition(kind: str, singular: str) -> Object:
    """Returns a definition of the names that the existing program has."""
    fields: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema: Object = {"type": "object", "properties": {"spec": fields, "status": fields}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{singular}s", "singular": singular}
    group = DOMAIN.rstrip("/")
    spec = {"group": group, "scope": "Cluster", "names": names, "versions": [version | {"schema": {"openAPIV3Schema": schema}}]}  # fmt: skip
    return {"metadata": {"name": f"{singular}s.{group}"}, "spec": spec}


def pod_spec() -> Object:
    """Returns what it injects into a Pod."""
    required = [{"key": TYPE_LABEL, "operator": "In", "values": ["g"]}, {"key": NODE_POOL, "operator": "In", "values": ["ready"]}]  # fmt: skip
    terms = {"nodeSelectorTerms": [{"matchExpressions": required}]}
    amounts = {"cpu": "2", "memory": "1Gi", GPU: "1"}
    return {
        "tolerations": [
            {"key": TYPE_LABEL, "effect": "NoSchedule", "operator": "Equal", "value": "g"},
            {"key": NODE_POOL, "effect": "NoSchedule", "operator": "Equal", "value": "ready"},
        ],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [{"name": "sleeper", "image": "x", "resources": {"requests": amounts, "limits": amounts}}],
    }


def leave_behind(cluster: MachineCluster) -> None:
    """Makes everything that the existing program makes: a Machine of 4 slots on 2 Nodes, 2 of them used."""
    cluster.namespace(OTHER_NAMESPACE, label=None)
    for kind, singular in (("Machine", "machine"), ("MachineNodePool", "machinenodepool")):
        cluster.call("POST", CRDS, definition(kind, singular))
    wait_until(cluster.serves_machines, "the server serves them")
    size = {"cpu": "2", "memory": "1Gi", "gpu": {"type": GPU, "num": "1", "family": "ampere"}}  # as its hook writes it
    pool = [{"name": name, "mode": "ready", "taint": True, "machineType": [{"name": "a"}]} for name in NODES]
    machine = {
        "apiVersion": GROUP_VERSION,
        "kind": "Machine",
        "metadata": {"name": "g", "labels": {MACHINE_GROUP: "g"}},
    }
    machine["spec"] = {"nodePool": pool, "machineTypes": [{"name": "a", "spec": size, "available": 4}]}
    uid = cluster.call("POST", f"/apis/{GROUP_VERSION}/machines", machine)["metadata"]["uid"]
    owner = {"apiVersion": GROUP_VERSION, "kind": "Machine", "name": "g", "uid": uid, "controller": True, "blockOwnerDeletion": True}  # fmt: skip
    meta = {"name": "g-node-pool", "labels": {MACHINE_GROUP: "g"}, "ownerReferences": [owner], "finalizers": [OTHER_FINALIZER]}  # fmt: skip
    spec: Object = {"machineGroupName": "g", "nodePool": pool, "machineTypeStock": [{"name": "a"}, {"name": "removed"}]}
    stored = {"apiVersion": GROUP_VERSION, "kind": "MachineNodePool", "metadata": meta, "spec": spec}
    cluster.call("POST", f"/apis/{GROUP_VERSION}/machinenodepools", stored)
    status = {"status": {"nodePool": [{"name": name, "condition": "Healthy"} for name in NODES]}}
    cluster.patch(f"/apis/{GROUP_VERSION}/machinenodepools/g-node-pool/status", status)
    for name in NODES:
        taints = [{"key": TYPE_LABEL, "value": "g", "effect": "NoSchedule"}, {"key": NODE_POOL, "value": "ready", "effect": "NoSchedule"}]  # fmt: skip
        labels = {TYPE_LABEL: "g", NODE_POOL: "ready", f"{GPU}.family": "ampere"}
        body = {"metadata": {"labels": labels, "annotations": {MACHINE_GROUP: "g"}}, "spec": {"taints": taints}}
        cluster.patch(f"/api/v1/nodes/{name}", body)
    cluster.patch("/api/v1/nodes/lost", {"metadata": {"labels": {TYPE_LABEL: "g", NODE_POOL: "not-ready"}, "annotations": {MACHINE_GROUP: "g"}}})  # fmt: skip
    marks = {**LABELS, POD_ROLE: "reservation"}
    meta = {"name": "g-a", "labels": marks, "ownerReferences": [owner]}
    template = {"metadata": {"labels": marks}, "spec": pod_spec()}
    reserved = {"selector": {"matchLabels": marks}, "serviceName": "g-a", "replicas": 2, "template": template}
    guests = {**LABELS, POD_ROLE: "guest"}
    for name in ("one", "two"):
        cluster.pod(TEAM, name, guests, **pod_spec())
    cluster.call(
        "POST", f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/statefulsets", {"metadata": meta, "spec": reserved}
    )
    service = {"selector": marks, "ports": [{"port": 80}]}
    cluster.call("POST", f"/api/v1/namespaces/{OTHER_NAMESPACE}/services", {"metadata": meta, "spec": service})
    selector = {"matchLabels": {"app": "imperator"}}
    container = {"metadata": {"labels": {"app": "imperator"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    deployment = {"replicas": 0, "selector": selector, "template": container}
    cluster.call("POST", DEPLOYMENTS, {"metadata": {"name": OTHER_CONTROLLER}, "spec": deployment})


def leave_hooks(cluster: MachineCluster) -> None:
    """Makes its hooks, which nobody answers any more."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]}
    for kind, name in zip(("mutating", "validating"), OTHER_HOOKS, strict=True):
        hook = {
            "name": "pod.imperator.tenzen-y.io",
            "clientConfig": {"url": "https://127.0.0.1:9/"},
            "rules": [rule],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": TEAM}},
        }
        cluster.call("POST", f"{HOOKS}/{kind}webhookconfigurations", {"metadata": {"name": name}, "webhooks": [hook]})


@pytest.fixture
def cluster() -> Iterator[MachineCluster]:
    with ControlPlane("takeover") as plane:
        for name in [*NODES, "lost"]:
            plane.node(name, allocatable={"cpu": "4", "memory": "32Gi", GPU: "2"})
        found = MachineCluster(plane)
        found.namespace(TEAM)
        yield found


class Places:
    """Counts all the time how many Pods each Node has."""

    def __init__(self, cluster: MachineCluster) -> None:
        self._cluster = cluster
        self.fewest = dict.fromkeys(NODES, 2)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stopped.wait(0.05):
            pods = self._cluster.call("GET", "/api/v1/pods")["items"]
            for name in NODES:
                there = sum(pod["spec"].get("nodeName") == name for pod in pods)
                self.fewest[name] = min(self.fewest[name], there)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(30)


def versions(cluster: MachineCluster) -> dict[str, str]:
    """Returns the generations of what must not be touched while the other controller is there."""
    paths = ["/api/v1/nodes", f"/apis/{GROUP_VERSION}/machinenodepools", f"/apis/{GROUP_VERSION}/machines"]
    paths += [f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/statefulsets"]
    found = {}
    for path in paths:
        for obj in cluster.call("GET", path)["items"]:
            meta = obj["metadata"]
            found[meta["uid"]] = str([meta.get(k) for k in ("labels", "annotations", "finalizers", "generation")])
    return found


def new_guest(cluster: MachineCluster, name: str) -> bool:
    try:
        cluster.pod(TEAM, name, LABELS)
    except Refused:
        return False
    return True


async def usage(cluster: MachineCluster, process: MachinesProcess, *wanted: int) -> None:
    try:
        await settled(lambda: cluster.usage("g").get("a") == wanted, 60)
    except AssertionError:
        pods = [
            (
                p["metadata"]["name"],
                p["spec"].get("nodeName"),
                p["spec"].get("schedulingGates"),
                p["status"].get("conditions"),
            )
            for p in cluster.call("GET", "/api/v1/pods")["items"]
        ]
        text = f"usage is {cluster.usage('g')}, not {wanted}: {pods}\n{process.log.read_text()[-3000:]}"
        raise AssertionError(text) from None


async def test_upgrade_from_objects_as_the_existing_program_leaves_them(cluster: MachineCluster) -> None:
    leave_behind(cluster)
    old = f"{MACHINE_GROUP}=g,{POD_ROLE}=reservation"
    await settled(lambda: len(cluster.bound(OTHER_NAMESPACE, old)) == 2 and len(cluster.bound(TEAM)) == 2, 40)
    running = {pod["metadata"]["uid"] for pod in cluster.pods(TEAM)}
    await cluster.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False))
    before = versions(cluster)
    process = MachinesProcess(cluster)
    try:
        await settled(process.is_ready, 40, "it is ready")

        def reason() -> str:
            conditions = (cluster.get_machine("g").get("status") or {}).get("conditions") or [{}]
            return str(conditions[0].get("reason"))

        await settled(lambda: reason() == "OtherControllerActive", 30)
        # What the other one lets in stays as it lets it in.
        late = cluster.pod(TEAM, "late", {**LABELS, POD_ROLE: "guest"}, **pod_spec())
        assert "schedulingGates" not in late["spec"] and SLOT_OF not in str(late["metadata"])
        assert versions(cluster) == before
        assert cluster.find(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/a-g") is None

        leave_hooks(cluster)
        with pytest.raises(Refused):
            cluster.pod(TEAM, "refused", LABELS)
        with Places(cluster) as places:
            cluster.delete(f"{DEPLOYMENTS}/{OTHER_CONTROLLER}")
            # Nobody gave slots out yet, so that its reservations hold the places.
            await settled(lambda: reason() == "TakingOver", 30)
            assert len(cluster.bound(OTHER_NAMESPACE, old)) == 2
            machine = f"/apis/{GROUP_VERSION}/machines/g"
            types = cluster.call("GET", machine)["spec"]["machineTypes"]
            cluster.patch(machine, {"spec": {"machineTypes": [types[0] | {"offlineSlots": 4}]}})
            await usage(cluster, process, 4, 1, 3, 0)
            await settled(lambda: not cluster.pods(OTHER_NAMESPACE, old), 30, "its reservations are gone")
        assert min(places.fewest.values()) >= 1, "one place of a Node is open at a time"
        assert running < {pod["metadata"]["uid"] for pod in cluster.pods(TEAM)}, "no running guest stops"
        await settled(lambda: all(SLOT_OF in pod["metadata"]["annotations"] for pod in cluster.pods(TEAM)), 30)
        for path in (f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/statefulsets", f"/api/v1/namespaces/{OTHER_NAMESPACE}/services"):  # fmt: skip
            await settled(partial(lambda path: not cluster.call("GET", path)["items"], path), 20)
        for kind, name in zip(("mutating", "validating"), OTHER_HOOKS, strict=True):
            await settled(partial(lambda path: cluster.find(path) is None, f"{HOOKS}/{kind}webhookconfigurations/{name}"), 30)  # fmt: skip
        pool = f"/apis/{GROUP_VERSION}/machinenodepools/g-node-pool"
        await settled(lambda: "finalizers" not in cluster.call("GET", pool)["metadata"], 10)
        stock = {"machineGroup": "g", "machineTypeStock": [{"name": "a"}]}
        await settled(lambda: stock.items() <= cluster.call("GET", pool)["spec"].items(), 30)
        await settled(
            lambda: {n["condition"] for n in cluster.call("GET", pool)["status"]["nodePool"]} == {"Ready"}, 10
        )
        for name in NODES:
            path = f"/api/v1/nodes/{name}"
            await settled(partial(lambda path: NODE_MARKS in cluster.call("GET", path)["metadata"]["annotations"], path), 30)  # fmt: skip
        await settled(
            lambda: cluster.call("GET", "/api/v1/nodes/lost")["metadata"]["labels"].keys().isdisjoint((NODE_POOL, TYPE_LABEL)), 30
        )  # fmt: skip
        await settled(lambda: reason() == "Reconciled", 10)

        # It goes on like any other Machine.
        await settled(partial(new_guest, cluster, "new"), 20, "hooks let guests in")
        await usage(cluster, process, 4, 0, 4, 0)
        cluster.delete(f"/apis/{GROUP_VERSION}/machines/g")
        await settled(lambda: cluster.find(pool) is None, 30, "nothing waits for a finalizer")
        assert running < {pod["metadata"]["uid"] for pod in cluster.pods(TEAM)}
    finally:
        process.remove()


@pytest.mark.long
async def test_a_cluster_is_taken_over_into_a_mesh_while_processes_are_killed(
    cluster: MachineCluster, tmp_path: Path
) -> None:
    """Kills `machines` and `slots` of a whole mesh at each of their steps."""
    leave_behind(cluster)
    old = f"{MACHINE_GROUP}=g,{POD_ROLE}=reservation"
    await settled(lambda: len(cluster.bound(OTHER_NAMESPACE, old)) == 2 and len(cluster.bound(TEAM)) == 2, 40)
    running = {pod["metadata"]["uid"] for pod in cluster.pods(TEAM)}
    points = Failpoints(tmp_path / "points")

    def run() -> None:
        with contextlib.ExitStack() as stack:
            mesh = Mesh()
            mesh.environment |= points.environment
            stack.enter_context(mesh)
            where = ["lab/takeover", "--kubeconfig", str(cluster.plane.kubeconfig)]
            joined = mesh.run("cluster", "join", *where, "--machines", "--no-deploy", seconds=90)
            assert joined.returncode == 0, joined.stderr.decode()
            asyncio.run(cluster.install(nothing))
            agent = AgentProcess(mesh, cluster.plane, "--name", "lab/takeover")
            stack.callback(agent.remove)
            agent.start()
            machines = MachinesProcess(cluster, "--name", "lab/takeover", MOORAGE_STATE=str(mesh.state), **points.environment)  # fmt: skip
            stack.callback(machines.remove)

            def ready_again() -> bool:
                if machines.process.poll() is not None:
                    machines.start()
                return machines.is_ready()

            wait_until(machines.is_ready, "machines is ready")
            with Places(cluster) as places:
                points.arm("slots.committed")
                cluster.delete(f"{DEPLOYMENTS}/{OTHER_CONTROLLER}")
                # From this moment nobody is let in without a gate.
                cluster.pod(TEAM, "first", LABELS)
                wait_until(partial(points.happened, "slots.committed"), "slots is killed", 60)
                for number, point in enumerate(POINTS):
                    points.arm(point)
                    # Without `machines` there are no new guests.
                    wait_until(lambda number=number: ready_again() and new_guest(cluster, f"new-{number}"), point, 60)  # type: ignore[misc]
                    if number == 0:  # as long as there are slots, this step is taken
                        wait_until(partial(points.happened, point), point, 60)
                wait_until(
                    lambda: ready_again() and not cluster.pods(OTHER_NAMESPACE, old), "its reservations are gone", 120
                )
                wait_until(lambda: ready_again() and cluster.usage("g").get("a") == (4, 0, 4, 3), "all slots are used", 90)  # fmt: skip
            assert min(places.fewest.values()) >= 1, "one place of a Node is open at a time"
            assert running < {pod["metadata"]["uid"] for pod in cluster.pods(TEAM)}, "no running guest stops"

            def guests() -> Counter[str]:
                return Counter(guest["state"] for guest in mesh.http("/v1/guests")["items"])

            wait_until(lambda: guests() == {"used": 4, "waiting": 3}, guests)
            used = {guest["uid"] for guest in mesh.http("/v1/guests")["items"] if guest["state"] == "used"}
            assert used >= running

    await asyncio.to_thread(run)


async def nothing(_api: Api) -> None:
    """Installs nothing: `join` has done so."""
