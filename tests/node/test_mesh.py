"""From an intent to the CPUs of a container: the mesh decides the zone, the annotation carries it, the node's agent obeys; a pod that
the agent refuses all the same is decided again, elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import nats
import pytest
from nats.aio.msg import Msg

from moorage.node.core.node_report import NodeDescription, NodeRows
from moorage.node.mesh_reports import MeshReports, read_credentials
from moorage_testkit.mesh import Mesh
from moorage_testkit.nodes import SimulatedNode
from moorage_testkit.polling import until

from .machines import pod, write_pod, write_policy
from .test_examples import RESERVED, Stand

GROUP = "/v1/groups/default/{}/v1/default/why"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    nodes = [{"name": name, "allocatable": {"cpu": "76", "memory": "400Gi"}} for name in ("n1", "n2")]
    clusters = [{"provider": "lab", "name": "one", "nodes": nodes, "behaviour": {"readyDelayMs": 600_000}}]
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"kind": "Fleet", "clusters": clusters}))
    with Mesh("--fleet", str(fleet)) as found:
        yield found


def join(mesh: Mesh, node: str, file: Path) -> Path:
    done = mesh.run("node", "join", f"lab/one/{node}", "--credentials", str(file))
    assert done.returncode == 0, done.stderr.decode()
    return file


def application(name: str, role: str, cores: int) -> dict[str, Any]:
    amounts = {"cpu": str(cores), "memory": "1Gi"}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {"kubernetes.io/pod-role": role}},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }
    spec = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [{"name": "web", "manifests": [manifest]}]}}


def claims(mesh: Mesh, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = mesh.http(GROUP.format(name))["apps"].get("web", {}).get("claims", [])
    return found


def slots(mesh: Mesh, name: str) -> list[dict[str, Any]]:
    return [slot for claim in claims(mesh, name) for slot in claim["slots"]]


def claimed_pod(mesh: Mesh, name: str, uid: str, role: str, cores: int) -> dict[str, Any]:
    """The pod of the group as the cluster's agent makes it."""
    [slot] = slots(mesh, name)
    runs = {slot["node"]: [{"count": 1, "parts": slot["parts"]}]}
    manifest = pod(name, role, str(cores), annotations={"moorage.dev/parts": json.dumps(runs)})
    manifest["metadata"] |= {"uid": uid, "labels": {"moorage.dev/claim": claims(mesh, name)[0].get("id", "c")}}
    return manifest


async def test_an_intent_becomes_cpus_of_the_zone_that_was_decided(mesh: Mesh, tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    write_policy(stand.policy, **RESERVED)
    credentials = join(mesh, "n1", tmp_path / "n1.json")
    await stand.runtime.start(tmp_path / "r.sock")
    await stand.agent.start("--credentials", str(credentials), "--cluster", "lab/one")
    from .cri_client import CriClient

    stand.kubelet = CriClient(stand.agent.cri)
    second: asyncio.Task[None] | None = None
    stack = contextlib.AsyncExitStack()
    pods = await stack.enter_async_context(spy_on(mesh))
    try:
        await until(lambda: len(mesh.http("/v1/nodes/lab/one/n1").get("zones", [])) == 2, 60, "zones are reported")
        mesh.http("/v1/apply", application("first", "storage-service", 20))
        await until(lambda: bool(slots(mesh, "first")), 60, "it is decided")
        mesh.http("/v1/apply", application("rank", "reranker", 10))
        await until(lambda: bool(slots(mesh, "rank")), 60, "it is decided")
        for name, role, cores in (("first", "storage-service", 20), ("rank", "reranker", 10)):
            await until(lambda name=name: f"{name}-0" in pods.uids, 60, "the cluster has made the pod")  # type: ignore[misc]
            uid = pods.uids[f"{name}-0"]
            manifest = claimed_pod(mesh, name, uid, role, cores)
            zone = next(iter(slots(mesh, name)[0]["parts"])).removeprefix("n1/numa-")
            write_pod(stand.pods, manifest)
            await stand.kubelet.run(name, uid, manifest["metadata"]["annotations"])
            first = 2 + 40 * int(zone)
            assert stand.runtime.cpus(uid) == f"{first}-{first + cores - 1}"
        for name in ("first", "rank"):
            await stand.remove(name)
            assert mesh.run("terminate", f"default/{name}/v1/default").returncode == 0
        mesh.http("/v1/apply", application("unlucky", "storage-service", 30))
        await until(lambda: [slot["node"] for slot in slots(mesh, "unlucky")] == ["n1"], 60, "it is decided")
        # Another node gets an agent, too; then the zones of this one get full without anybody having decided that.
        second = asyncio.ensure_future(_second_agent(join(mesh, "n2", tmp_path / "n2.json")))
        await until(lambda: len(mesh.http("/v1/nodes/lab/one/n2").get("zones", [])) == 2, 60, "zones are reported")
        await _refused_is_decided_elsewhere(mesh, stand, pods)
    finally:
        if second is not None:
            second.cancel()
        await stack.aclose()
        await stand.close()


async def _refused_is_decided_elsewhere(mesh: Mesh, stand: Stand, pods: Pods) -> None:
    assert stand.kubelet is not None
    await until(lambda: "unlucky-0" in pods.uids, 60, "the cluster has made the pod")
    uid = pods.uids["unlucky-0"]
    manifest = claimed_pod(mesh, "unlucky", uid, "storage-service", 30)
    for stranger in ("a", "b"):
        write_pod(stand.pods, pod(stranger, "reranker", "10"))
        await stand.kubelet.run(stranger, f"uid-{stranger}", {"kubernetes.io/pod-role": "reranker"})
    write_pod(stand.pods, manifest)
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stand.kubelet.run("unlucky", uid, manifest["metadata"]["annotations"])
    assert "ClaimUnmet: " in (refused.value.details() or "")
    await until(lambda: [s["node"] for s in slots(mesh, "unlucky")] == ["n2"], 60, "it is decided again, elsewhere")
    sys.stdout.write(f"decided again {time.monotonic() - started:.2f} s after the refusal\n")


@contextlib.asynccontextmanager
async def spy_on(mesh: Mesh) -> AsyncIterator[Pods]:
    """Follows the pods that the cluster's agent reports."""
    spy = await nats.connect(
        mesh.settings.nats_url, nkeys_seed_str=mesh.settings.nats_seed, inbox_prefix=b"_INBOX.admin"
    )
    pods = Pods()
    await spy.subscribe("moorage.reports.lab.one.cluster", cb=pods.heard)
    try:
        yield pods
    finally:
        await spy.close()


class Pods:
    """The pods that the cluster's agent reports: uids by name."""

    def __init__(self) -> None:
        self.uids: dict[str, str] = {}

    async def heard(self, message: Msg) -> None:
        for found in json.loads(message.data).get("pods", []):
            self.uids[found["name"]] = found["uid"]


async def _second_agent(credentials: Path) -> None:
    node = SimulatedNode("{kind: NodePolicy, spec: {reservedCpus: '0-1,40-41'}}", name="n2")
    description = NodeDescription("n2", node.machine)

    def rows() -> NodeRows:
        offered = {"cpu": 3, "memory": 3}
        return description.rows(node.node.policy, {}, {}, enabled=True, exclusive_free=76, offered=offered)

    await MeshReports(read_credentials(credentials), rows).run()
