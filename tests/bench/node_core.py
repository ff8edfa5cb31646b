"""Measures what a node agent decides, beside the kubelet's times for the same; and pods with roles that come and go on simulated nodes."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
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
#: Pods that come and go on so many nodes; groups that do so at a time, and groups that are there.
PODS, NODES = 10_000, 24
_AT_ONCE, _THERE = 4, 20
#: The least and the most CPUs of a pod, and the most pods of a group, by role.
ROLES = {"storage-service": (4, 30, 4), "reranker": (2, 12, 4), "numa-enhancement": (1, 2, 100), "ETL": (1, 1, 150)}


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
    """Counts the pods with roles that their simulated node refused. Several groups come and go at a time; each that has a place runs
    before it ends, and its place is given to others as soon as it does."""
    with tempfile.TemporaryDirectory() as directory:
        fleet = Path(directory) / "fleet.json"
        head = {"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1"}
        fleet.write_bytes(msgspec.json.encode({**head, "clusters": [{"name": "c", "nodes": [_node()]}]}))
        with Mesh("--fleet", str(fleet)) as mesh:
            crowd = _Crowd(mesh, pods)
            started = time.perf_counter()
            await asyncio.gather(*(crowd.live() for _ in range(_AT_ONCE)))
            seconds = time.perf_counter() - started
            refused = _refused(mesh)
    return [
        Figure(
            name=f"{crowd.ran} pods with roles come and go ({seconds:.0f} s): refused by their node",
            n=crowd.ran,
            p50=refused,
            p99=refused,
            goal="0",
            ok=refused == 0 and crowd.ran >= pods,
            unit="pods",
        )
    ]


class _Crowd:
    """Groups of pods with roles on the nodes of a mesh. `ran`: how many pods have run so far."""

    def __init__(self, mesh: Mesh, pods: int) -> None:
        self.ran = 0
        self._mesh, self._pods = mesh, pods
        self._random, self._numbers = random.Random(3), itertools.count()
        self._there: list[str] = []

    async def live(self) -> None:
        """Lets one group after the other come, and others go."""
        while self.ran < self._pods:
            role = self._random.choice(list(ROLES))
            least, most, copies = ROLES[role]
            name, replicas = f"app-{next(self._numbers)}", self._random.randint(1, copies)
            await self._ask("POST", "/v1/apply", _application(name, role, self._random.randint(least, most), replicas))
            if await self._settled(name) == "Running":
                self.ran += replicas
            self._there.append(name)
            while len(self._there) > _THERE:
                leaving = self._there.pop(self._random.randrange(len(self._there)))
                await self._ask("DELETE", f"/v1/applications/default/{leaving}")

    async def _settled(self, name: str) -> str:
        """Waits until the group runs, or waits for a place."""
        phase = ""
        for _ in range(200):
            found = await self._ask("GET", f"/v1/groups/default/{name}/v1/default/why")
            phase = str((found or {}).get("phase"))
            if phase in ("Running", "Pending", "Failed"):
                break
            await asyncio.sleep(0.05)
        return phase

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Asks the mesh, again while it is too busy to answer."""
        while True:
            try:
                return await asyncio.to_thread(self._mesh.http, path, body, method=method)
            except urllib.error.HTTPError as error:
                if error.code == 404 and method == "GET":
                    return None  # it is not known there yet
                if error.code not in (429, 503):
                    raise
                await asyncio.sleep(0.5)
