"""A control plane with machines for the tests of a module, and what they ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from moorage.machine_groups.names import DOMAIN, GROUP_VERSION, MACHINE_TYPE
from moorage.machines.install import install
from moorage.model.object_names import NAMESPACE
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess, Refused
from moorage_testkit.machines import machine, offline
from moorage_testkit.polling import wait_until
from moorage_testkit.servers import free_port

from .conftest import settled

NODES = ["m0", "m1", "m2"]
GUEST = {MACHINE_TYPE: "a"}
TEAM = "team"
METRICS = free_port()
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"


@pytest.fixture(scope="module")
def cluster() -> Iterator[MachineCluster]:
    with ControlPlane("machines") as plane:
        for name in NODES:
            plane.node(name, allocatable={"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"})
        found = MachineCluster(plane)
        asyncio.run(found.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False)))
        found.namespace(TEAM)
        yield found


@pytest.fixture(scope="module")
def process(cluster: MachineCluster) -> Iterator[MachinesProcess]:
    """Runs `moorage machines` as the service account, and waits until its hooks answer."""
    process = MachinesProcess(cluster, MOORAGE_METRICS=f"127.0.0.1:{METRICS}")
    try:
        until(lambda: process.is_ready() and hooks_answer(cluster), 40)
        yield process
    finally:
        process.remove()


@pytest_asyncio.fixture
async def ready(cluster: MachineCluster, process: MachinesProcess) -> AsyncIterator[None]:
    """Removes all Machines and Pods after a test."""
    yield
    await asyncio.to_thread(clean, cluster)


def until(check: Callable[[], bool], seconds: float) -> None:
    wait_until(check, within=seconds)


def hooks_answer(cluster: MachineCluster) -> bool:
    """Returns whether a guest of an unknown Machine is refused by our hook, and not because it cannot be reached."""
    try:
        cluster.pod(TEAM, "probe", {MACHINE_TYPE: "none"}, query="?dryRun=All")
    except Refused as refused:
        return "inject-" in refused.message and "MachineUnknown" in refused.message
    return False


def clean(cluster: MachineCluster) -> None:
    for kind in ("apps/v1", "batch/v1"):
        plurals = ("deployments", "statefulsets", "daemonsets") if kind == "apps/v1" else ("jobs",)
        for plural in plurals:
            for obj in cluster.call("GET", f"/apis/{kind}/namespaces/{TEAM}/{plural}")["items"]:
                cluster.delete(f"/apis/{kind}/namespaces/{TEAM}/{plural}/{obj['metadata']['name']}")

    def is_clean() -> bool:
        for found in cluster.call("GET", f"/apis/{GROUP_VERSION}/machines")["items"]:
            with contextlib.suppress(Refused):  # it is gone
                cluster.delete(f"/apis/{GROUP_VERSION}/machines/{found['metadata']['name']}")
        pods = cluster.pods(TEAM) + cluster.pods(NAMESPACE)
        for pod in pods:
            with contextlib.suppress(Refused):
                cluster.delete_pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
        return not pods and not any(is_marked(cluster, name) for name in NODES)

    until(is_clean, 60)


def is_marked(cluster: MachineCluster, name: str) -> bool:
    """Returns whether a Node has labels, annotations or taints of Machines."""
    node = cluster.call("GET", f"/api/v1/nodes/{name}")
    meta = node["metadata"]
    return DOMAIN in str((meta["labels"], meta.get("annotations"), node["spec"].get("taints")))


def the_machine(slots: int = 3, nodes: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return machine("g", {"a": offline(slots, **more)}, {name: ["a"] for name in nodes or NODES}, taint=True)


async def usage(
    cluster: MachineCluster, maximum: int, reserved: int, used: int, waiting: int, seconds: float = 25
) -> None:
    wanted = (maximum, reserved, used, waiting)

    def check() -> bool:
        return cluster.usage("g").get("a") == wanted

    try:
        await settled(check, seconds)
    except AssertionError:
        pods = [
            (
                p["metadata"]["name"],
                p["spec"].get("nodeName"),
                p["spec"].get("schedulingGates"),
                p["status"].get("phase"),
            )
            for p in cluster.pods(NAMESPACE) + cluster.pods(TEAM)
        ]
        raise AssertionError(f"usage is {cluster.usage('g')}, not {wanted}: {pods}") from None
