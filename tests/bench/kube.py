"""Real clusters: how soon a change is seen, how soon a decision is applied, and what an agent of a large cluster costs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psutil

from moorage.bus import Bus, Settings
from moorage.fleet import Fleet, FleetFollower
from moorage.kube import Api, ApiDiscovery, Unreachable, apply, connect
from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane, control_planes
from moorage_testkit.kube_assets import find
from moorage_testkit.mesh import Mesh

from .harness import Figure, percentiles

NODES, PODS = 5_000, 20_000


def clusters(count: int, *, scheduler: bool = True) -> contextlib.AbstractContextManager[list[ControlPlane]]:
    return control_planes(*(f"bench-{i}" for i in range(count)), scheduler=scheduler)


def agent(mesh: Mesh, plane: ControlPlane) -> AgentProcess:
    return AgentProcess(mesh, plane, "--provider", "lab")


async def nodes_known(mesh: Mesh, plane: ControlPlane, count: int, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = await asyncio.to_thread(mesh.http, "/v1/clusters")
        if any(c["id"] == f"lab/{plane.name}" and c["nodes"] >= count for c in found["items"]):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"{plane.name} is not in the fleet after {seconds:g} s")


def pod(name: str, node: str, cpu: str = "100m") -> dict[str, Any]:
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [container], "automountServiceAccountToken": False},
    }


async def account(plane: ControlPlane) -> None:
    """Pods are refused until the controllers have made it."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(plane.call, "GET", "/api/v1/namespaces/default/serviceaccounts/default")
            return
        await asyncio.sleep(0.2)


async def seen(times: int = 100) -> Figure:
    """From a pod being bound until a controller's own view has less room."""
    samples = []
    with clusters(1) as (plane,), Mesh() as mesh:
        for i in range(10):
            plane.node(f"n{i}")
        with agent(mesh, plane):
            await nodes_known(mesh, plane, 10)
            await account(plane)
            fleet = Fleet()
            follower = FleetFollower(mesh.settings.redis_url, fleet)
            await follower.start()
            changed = asyncio.Event()
            fleet.on_change.append(lambda _: changed.set())
            api = await connect(plane.kubeconfig)
            cid = fleet.ids[f"lab/{plane.name}"]
            try:
                for i in range(times + 5):
                    row = fleet.row_of(cid, f"n{i % 10}")
                    column = fleet.free("cpu")
                    assert row is not None and column is not None
                    before = int(column[row])
                    body = msgspec.json.encode(pod(f"p{i}", f"n{i % 10}"))
                    await api.call("POST", "/api/v1/namespaces/default/pods", body=body)
                    start = time.perf_counter()
                    while int((fleet.free("cpu"))[row]) == before:  # type: ignore[index]
                        changed.clear()
                        async with asyncio.timeout(10):
                            await changed.wait()
                    samples.append((time.perf_counter() - start) * 1e3)
                    await asyncio.sleep(0.15)
            finally:
                await api.close()
                await follower.stop()
    return Figure.of("pod bound until free capacity is seen", samples[5:], "p99 <= 300 ms", p99=300)


STATEFULSETS = "/apis/apps/v1/namespaces/default/statefulsets"


def stateful(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/c:1"}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {"serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def application(name: str) -> dict[str, Any]:
    consumer = {
        "object": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
        "container": "main",
        "name": name,
        "needs": [{"resource": "cpu", "requests": "10m"}],
    }
    app = {"name": "app", "replicas": 3, "manifests": [stateful(name)], "consumers": [consumer]}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [app]},
    }


async def arrivals(api: Api) -> AsyncIterator[tuple[str, float]]:
    """Names of StatefulSets and when each one came."""
    _, data = await api.call("GET", STATEFULSETS)
    at = msgspec.json.decode(data)["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": at, "timeoutSeconds": "290"}
    async for line in api.stream(STATEFULSETS, query, 280):
        if line and (event := msgspec.json.decode(line))["type"] == "ADDED":
            yield event["object"]["metadata"]["name"], time.perf_counter()


async def applied(times: int = 30) -> Figure:
    """From the decision's event until the objects are in all three clusters; the floor is server-side apply alone."""
    came: dict[str, list[float]] = {}
    decided: dict[str, float] = {}
    floors: list[float] = []

    async def watch(api: Api) -> None:
        with contextlib.suppress(Unreachable):
            async for name, when in arrivals(api):
                came.setdefault(name, []).append(when)

    with clusters(3) as planes, Mesh() as mesh, contextlib.ExitStack() as stack:
        for plane in planes:
            for i in range(3):
                plane.node(f"{plane.name}-n{i}")
            stack.enter_context(agent(mesh, plane))
        for plane in planes:
            await nodes_known(mesh, plane, 3)
        apis = [await connect(plane.kubeconfig) for plane in planes]
        bus = await Bus.connect(Settings(mesh.endpoint["nats"], mesh.endpoint["natsSeed"]), worker="admin")
        watches = [asyncio.ensure_future(watch(api)) for api in apis]

        def placed(subject: str, _data: bytes) -> None:
            decided.setdefault(subject.split(".")[5], time.perf_counter())

        await bus.subscribe("moorage.events.decisions.placed.>", placed)
        kinds = [await ApiDiscovery(api).find("apps/v1", "StatefulSet") for api in apis]
        try:
            for i in range(times):
                start = time.perf_counter()
                await asyncio.gather(
                    *(
                        apply(api, kind, _placed(f"floor-{i}"), force=True)
                        for api, kind in zip(apis, kinds, strict=True)
                        if kind
                    )
                )
                floors.append((time.perf_counter() - start) * 1e3)
                await asyncio.sleep(0.2)
                name = f"app-{i}"
                await asyncio.to_thread(mesh.http, "/v1/apply", application(name))
                end = time.monotonic() + 20
                while len(came.get(name, ())) < 3 and time.monotonic() < end:  # noqa: ASYNC110 - three servers end this
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.5)
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await bus.close()
            for api in apis:
                await api.close()
    samples = [(max(when) - decided[name]) * 1e3 for name, when in came.items() if name in decided and len(when) == 3]
    floor, _ = percentiles(floors)
    parts = {"server-side apply in 3 clusters at once": floor}
    return Figure.of("decision until applied in 3 clusters", samples, "p50 <= 2 x floor", p50=2 * floor, floor=parts)


def _placed(name: str) -> dict[str, Any]:
    made = stateful(name)
    return {**made, "metadata": {**made["metadata"], "namespace": "default"}}


async def large() -> list[Figure]:
    """An agent of 5,000 nodes and 20,000 pods."""
    with clusters(1, scheduler=False) as (plane,), Mesh() as mesh:
        await _fill(plane)
        started = time.perf_counter()
        with agent(mesh, plane) as process:
            await nodes_known(mesh, plane, NODES, 120)
            took = (time.perf_counter() - started) * 1e3
            await asyncio.sleep(10)
            it = psutil.Process(process.pid)
            memory = it.memory_info().rss / 1e6
            before, since = sum(it.cpu_times()[:2]), time.monotonic()
            await asyncio.sleep(30)
            cpu = 100 * (sum(it.cpu_times()[:2]) - before) / (time.monotonic() - since)
    what = f"agent of {NODES} nodes and {PODS} pods"
    return [
        Figure.of(f"{what}: start to full report", [took], "<= 15 s", p50=15_000),
        Figure.of(f"{what}: memory", [memory], "<= 400 MB", p50=400, unit="MB"),
        Figure.of(f"{what}: CPU at rest", [cpu], "<= 2 % of a core", p50=2, unit="%"),
    ]


async def _fill(plane: ControlPlane) -> None:
    await account(plane)
    api = await connect(plane.kubeconfig)
    gate = asyncio.Semaphore(24)

    async def post(path: str, body: dict[str, Any]) -> None:
        async with gate:
            await api.call("POST", path, body=msgspec.json.encode(body), timeout=60)

    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(20)}
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{i}", "labels": {**labels, "kubernetes.io/hostname": f"n{i}"}},
            "status": {"allocatable": amounts, "capacity": amounts},
        }
        for i in range(NODES)
    ]
    for start in range(0, NODES, 1000):
        await asyncio.gather(*(post("/api/v1/nodes", node) for node in nodes[start : start + 1000]))
    for start in range(0, PODS, 1000):
        made = (pod(f"p{i}", f"n{i % NODES}") for i in range(start, start + 1000))
        await asyncio.gather(*(post("/api/v1/namespaces/default/pods", one) for one in made))
    try:
        while True:  # until kwok has made all of them run, so that rest is rest
            query = {"fieldSelector": "status.phase!=Running", "limit": "1"}
            found = await api.get("/api/v1/namespaces/default/pods", query=query)
            if not (found or {}).get("items"):
                return
            await asyncio.sleep(1)
    finally:
        await api.close()


async def kube() -> list[Figure]:
    assets, why = find()
    if assets is None:
        sys.stdout.write(f"{why}\n")
        return []
    return [await seen(), await applied(), *await large()]
