"""What a node agent decides, beside the kubelet's times for the same; and pods with roles that come and go on simulated nodes."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from moorage.qos.cpu_choice import take_distributed, take_packed
from moorage.qos.cpu_hints import cpu_hints
from moorage.qos.topology_hints import Hint, merge
from moorage_testkit.mesh import Mesh
from moorage_testkit.nodes import GB, SimulatedNode, machine, pod

from .harness import Figure

#: What the kubelet's own functions took for 256 CPUs on 8 NUMA nodes, in ms.
KUBELET = {"packed": 7.4, "distributed": 4.3, "hints": 9.9}
#: Pods that come and go, at most this many of a group, on so many nodes.
PODS, REPLICAS, NODES = 10_000, 40, 24


def _samples(work: Callable[[], object], times: int = 300) -> list[float]:
    work()
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append((time.perf_counter() - started) * 1e3)
    return found


async def node_core() -> list[Figure]:
    found = machine(8, 16, 2, sockets=2)
    topology = found.cpus
    free = sum(1 << cpu for cpu in range(256) if cpu % 5)
    figures = []
    for name, work in (
        ("packed", lambda: take_packed(topology, free, 24)),
        ("distributed", lambda: take_distributed(topology, free, 24)),
        ("hints", lambda: cpu_hints(topology, 24, free)),
    ):
        beside = KUBELET[name]
        figure = Figure.of(f"node {name}, 256 CPUs, 8 NUMA", _samples(work), ">= 50 x the kubelet", p50=beside / 50)
        figures.append(
            msgspec.structs.replace(figure, floor=beside, floor_parts={"kubelet": beside}, ratio=beside / figure.p50)
        )
    every = [[Hint(mask, False) for mask in range(1, 256)] for _ in range(3)]
    figures.append(
        Figure.of(
            "node merge of 3 x 255 hints, 8 NUMA",
            _samples(lambda: merge("best-effort", every, 8), 50),
            "<= 10 ms",
            p99=10,
        )
    )
    pairs = [Hint(1 << i, False) for i in range(34)] + [
        Hint(1 << i | 1 << j, False) for i, j in combinations(range(34), 2)
    ]
    figures.append(
        Figure.of(
            "node merge, 34 NUMA", _samples(lambda: merge("best-effort", [pairs] * 3, 34), 20), "<= 100 ms", p99=100
        )
    )
    node = SimulatedNode("{kind: NodePolicy, spec: {reservedCpus: '0-1'}}", machine(8, 32))
    numbers = iter(range(10**9))

    def come_and_go() -> None:
        name = f"p{next(numbers)}"
        node.admit(pod(name, "numa-enhancement" if name.endswith("0") else "online-micro_service", 2, GB))
        node.remove(f"uid-{name}")

    figures.append(Figure.of("node admission without sockets and disk", _samples(come_and_go), "<= 5 ms", p50=5))
    return figures


def _node() -> dict[str, Any]:
    zones = [
        {"id": i, "cpus": f"{40 * i}-{40 * i + 39}", "memory": 190 * GB, "reserved": {"cpus": f"{40 * i}-{40 * i + 1}"}}
        for i in (0, 1)
    ]
    nics = [{"name": f"eth{i}", "numa": i, "mbps": 25000} for i in (0, 1)]
    allocatable = {"cpu": "76", "memory": 390 * GB, "pods": "250"}
    return {"name": "n", "count": NODES, "allocatable": allocatable, "zones": zones, "nodePolicy": {"nics": nics}}


def _application(name: str, role: str, cores: int, replicas: int) -> dict[str, Any]:
    amounts = {"cpu": str(cores), "memory": "1Gi"}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {"moorage.dev/pod-role": role}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [{"name": "web", "manifests": [manifest]}]}}


def _refused(mesh: Mesh) -> float:
    total = 0.0
    for url in mesh.endpoint["metrics"]["inventory"]:
        with urllib.request.urlopen(url, timeout=10) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                total += sum(s.value for s in family.samples if s.name == "moorage_refused_pods_total")
    return total


async def roles_come_and_go(pods: int = PODS) -> list[Figure]:
    """Counts the pods with roles that their simulated node refused; each group runs before it ends."""
    import tempfile
    from pathlib import Path

    chosen = random.Random(3)
    roles = {
        "storage-service": (4, 30, 4),
        "reranker": (2, 12, 4),
        "numa-enhancement": (1, 4, REPLICAS),
        "ETL": (1, 2, REPLICAS),
    }
    with tempfile.TemporaryDirectory() as directory:
        fleet = Path(directory) / "fleet.json"
        head = {"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1"}
        fleet.write_bytes(msgspec.json.encode({**head, "clusters": [{"name": "c", "nodes": [_node()]}]}))
        with Mesh("--fleet", str(fleet)) as mesh:
            there: list[str] = []
            ran, number, started = 0, 0, time.perf_counter()
            while ran < pods:
                role = chosen.choice(list(roles))
                least, most, copies = roles[role]
                name, replicas = f"app-{number}", chosen.randint(1, copies)
                number += 1
                await _apply(mesh, _application(name, role, chosen.randint(least, most), replicas))
                there.append(name)
                if await _settled(mesh, name) == "Running":
                    ran += replicas
                while len(there) > 20:
                    mesh.run("terminate", f"default/{there.pop(chosen.randrange(len(there)))}/v1/default")
            seconds = time.perf_counter() - started
            refused = _refused(mesh)
    return [
        Figure(
            name=f"{ran} pods with roles come and go ({seconds:.0f} s): refused by their node",
            n=ran,
            p50=refused,
            p99=refused,
            goal="0",
            ok=refused == 0,
            unit="pods",
        )
    ]


async def _apply(mesh: Mesh, document: dict[str, Any]) -> None:
    """Applies the document, again while the mesh is too busy to answer."""
    while True:
        try:
            mesh.http("/v1/apply", document)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            await asyncio.sleep(0.5)
        else:
            return


async def _settled(mesh: Mesh, name: str) -> str:
    """Waits until the group runs or has nowhere to go."""
    phase = ""
    for _ in range(200):
        phase = str(mesh.http(f"/v1/groups/default/{name}/v1/default/why")["phase"])
        if phase in ("Running", "Pending", "Failed"):
            break
        await asyncio.sleep(0.05)
    return phase
