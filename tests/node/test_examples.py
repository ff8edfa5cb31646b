"""A machine with 80 CPUs in two NUMA nodes: pools for online and offline pods, exclusive sets on nodes of their own, shared
network cards. Everything crosses sockets; the runtime keeps what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from moorage.node.api import cri_pb2 as cri
from moorage_testkit.polling import until

from .agent_process import AgentProcess
from .cri_client import CriClient
from .machines import pod, write_pod, write_policy, write_sysfs
from .recording_runtime import RecordingRuntime

GiB = 1 << 30
POOLS = {"online": {"cpus": "0-37,40-77", "default": True}, "offline": {"cpus": "38-39,78-79"}}
RESERVED = {"reservedCpus": "0-1,40-41", "reservedMemory": {"0": "500Mi", "1": "500Mi"}}
NICS = [
    {"name": "eth0", "numa": 0, "mbps": 25000, "ipv6": "fdbd:dc05:3:154::20"},
    {"name": "eth1", "numa": 1, "mbps": 25000, "ipv6": "fdbd:dc05:3:155::20", "netns": "/var/run/netns/ns1"},
]


class Stand:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pods = directory / "pods"
        self.policy = directory / "policy.yaml"
        self.runtime = RecordingRuntime()
        write_sysfs(directory / "sys")
        self.pods.mkdir()
        self.agent = AgentProcess(
            directory / "n",
            *("--node", "n1", "--runtime", f"unix://{directory}/r.sock", "--sysfs", str(directory / "sys")),
            *("--pods", str(self.pods), "--config", str(self.policy), "--kubelet-dir", str(directory / "kubelet")),
            *("--feature-gates", "QoSResourceManager=true"),
        )
        self.kubelet: CriClient | None = None

    async def start(self) -> None:
        await self.runtime.start(self.directory / "r.sock")
        await self.agent.start()
        self.kubelet = CriClient(self.agent.cri)

    async def run(self, name: str, role: str = "", cpu: str = "1", memory: str = "1Gi") -> str:
        """Runs a pod as a kubelet does and returns the uid."""
        manifest = pod(name, role, cpu, memory)
        write_pod(self.pods, manifest)
        assert self.kubelet is not None
        await self.kubelet.run(name, f"uid-{name}", manifest["metadata"]["annotations"])
        return f"uid-{name}"

    async def remove(self, name: str) -> None:
        """Ends a pod as a kubelet does."""
        (self.pods / f"{name}.yaml").unlink()
        assert self.kubelet is not None
        for sandbox, config in list(self.runtime.sandboxes.items()):
            if config.metadata.name == name:
                for method in ("StopPodSandbox", "RemovePodSandbox"):
                    request = cri.PodSandboxIdRequest(pod_sandbox_id=sandbox)
                    await self.kubelet.call(method, request, cri.EmptyResponse)

    async def close(self) -> None:
        if self.kubelet is not None:
            await self.kubelet.close()
        if self.agent.process is not None:
            await self.agent.stop()
        await self.runtime.stop()


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    await stand.close()


async def test_pools_for_online_and_offline_pods(stand: Stand) -> None:
    write_policy(stand.policy, pools=POOLS)
    await stand.start()
    assert stand.agent.ready == f"ready unix://{stand.agent.cri}"
    first = await stand.run("pod1", "online-micro_service", "4")
    second = await stand.run("pod2", "ETL", "2")
    third = await stand.run("pod3", "online-micro_service", "4")
    runtime = stand.runtime
    assert [runtime.cpus(uid) for uid in (first, second, third)] == ["0-37,40-77", "38-39,78-79", "0-37,40-77"]
    given = {item["uid"]: item["resources"]["cpu"] for item in await stand.agent.ask("allocations")}
    assert [given[uid]["allocatedQuantity"] for uid in (first, second, third)] == [76, 4, 76]
    assert given[first] == {
        "ociPropertyName": "CpusetCpus",
        "isNodeResource": False,
        "isScalarResource": True,
        "allocationResult": "0-37,40-77",
        "allocatedQuantity": 76,
        "resourceHints": [],
        "envs": {},
        "annotations": {},
    }
    runtime.after_update = lambda: None
    pools = await stand.agent.ask("pools", "set", "online=0-13,40-53", "offline=14-39,54-79")
    assert {p["name"]: p["size"] for p in pools} == {"online": 28, "offline": 52}
    assert [runtime.cpus(uid) for uid in (first, second, third)] == ["0-13,40-53", "14-39,54-79", "0-13,40-53"]
    # Online shrinks before offline grows.
    changed = [request.container_id for request in runtime.updates()]
    assert set(changed[:2]) == {runtime.of_pod(first), runtime.of_pod(third)} and changed[2] == runtime.of_pod(second)
    items = await stand.agent.ask("allocations")
    assert {item["resources"]["cpu"]["allocatedQuantity"] for item in items} == {28, 52}
    assert all(item["applied"] for item in items)


async def test_exclusive_cpus_on_nodes_apart(stand: Stand) -> None:
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    storage = await stand.run("pod1", "storage-service", "20", "40G")
    reranker = await stand.run("pod2", "reranker", "10", "20G")
    runtime = stand.runtime
    found = runtime.resources[runtime.of_pod(storage)]
    assert (found.cpuset_cpus, found.cpuset_mems, found.cpu_quota) == ("2-21", "0", -1)
    found = runtime.resources[runtime.of_pod(reranker)]
    assert (found.cpuset_cpus, found.cpuset_mems) == ("42-51", "1")  # though node 0 has 18 free
    by_uid = {item["uid"]: item["resources"] for item in await stand.agent.ask("allocations")}
    assert by_uid[storage]["cpu"]["resourceHints"] == [{"nodes": [0], "preferred": True}]
    assert by_uid[reranker]["cpu"]["resourceHints"] == [{"nodes": [1], "preferred": True}]


async def test_pods_of_one_node_share_its_network_card(stand: Stand) -> None:
    write_policy(stand.policy, nics=NICS, **RESERVED)
    await stand.start()
    await stand.run("filler", "storage-service", "30", "200Gi")
    first = await stand.run("pod1", "numa-enhancement", "10", "20G")
    second = await stand.run("pod2", "numa-sharing && cpu-execlusive", "10", "20G")
    for uid, cpus in ((first, "42-51"), (second, "52-61")):
        config = stand.runtime.containers[stand.runtime.of_pod(uid)].config
        assert (config.linux.resources.cpuset_cpus, config.linux.resources.cpuset_mems) == (cpus, "1")
        assert {env.key: env.value for env in config.envs} == {"AFFINITY_NIC_ADDR_IPV6": "fdbd:dc05:3:155::20"}
        assert config.annotations["kubernetes.io/host-netns-path"] == "/var/run/netns/ns1"


async def test_a_refused_pod_says_why_and_starts_as_soon_as_it_fits(stand: Stand) -> None:
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    await stand.run("a", "storage-service", "30", "40G")
    await stand.run("b", "storage-service", "30", "40G")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stand.run("c", "storage-service", "30", "40G")
    assert (refused.value.details() or "").startswith("TopologyAffinityError: ")
    assert len(stand.runtime.sandboxes) == 2
    why = await stand.agent.ask("why", "default/c")
    assert why["outcome"] == "refused" and why["reasons"][0]["code"] == "TopologyAffinityError"
    assert why["reasons"][0]["needed"] == 30 and why["reasons"][0]["nearest"]
    await stand.remove("a")
    await _until_released(stand, "uid-a")
    uid = await stand.run("c", "storage-service", "30", "40G")
    assert stand.runtime.cpus(uid) == "2-31"


async def _until_released(stand: Stand, uid: str) -> None:
    for _ in range(800):
        if all(item["uid"] != uid for item in await stand.agent.ask("allocations")):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{uid} still has something")


async def test_a_pod_without_role_starts_in_the_default_pool(stand: Stand) -> None:
    write_policy(stand.policy, pools=POOLS)
    await stand.start()
    assert stand.kubelet is not None
    await stand.kubelet.run("unknown", "uid-unknown")  # nobody knows its manifest
    assert stand.runtime.cpus("uid-unknown") == "0-37,40-77"
    with pytest.raises(grpc.aio.AioRpcError, match="SpecMissing"):
        await stand.kubelet.run("special", "uid-special", {"kubernetes.io/pod-role": "ETL"})


async def test_the_agent_ends_quickly_and_goes_on_where_it_was(stand: Stand) -> None:
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    uid = await stand.run("pod1", "storage-service", "20", "40G")
    assert await stand.agent.stop() < 60
    await stand.agent.start()
    second = await stand.run("pod2", "reranker", "10", "20G")
    assert (stand.runtime.cpus(uid), stand.runtime.cpus(second)) == ("2-21", "42-51")
    assert stand.runtime.updates() == []


async def test_a_container_resized_to_a_part_of_a_cpu_has_the_quota_that_the_kubelet_asks_for(stand: Stand) -> None:
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    assert stand.kubelet is not None
    write_pod(stand.pods, pod("p", "", "2", "1Gi"))
    container = await stand.kubelet.run("p", "uid-p", cpu_quota=200_000, cpu_period=100_000)
    found = stand.runtime.resources[container]
    assert (found.cpuset_cpus, found.cpu_quota) == ("2-3", -1)
    # The kubelet asks before the agent knows the new manifest; the agent remembers it, also over its end.
    await stand.kubelet.update(container, cpu_quota=150_000)
    assert stand.runtime.resources[container].cpu_quota == -1
    await stand.agent.kill()
    await stand.agent.start()
    await _until_shown(stand, container, 150_000)
    write_pod(stand.pods, pod("p", "", "1500m", "1Gi"))

    def has(quota: int) -> bool:
        now = stand.runtime.resources[container]
        return (now.cpuset_cpus, now.cpu_quota) == ("2-39,42-79", quota)

    await until(lambda: has(150_000))
    # From now on the quota is the kubelet's own, and stays what it says.
    await stand.kubelet.update(container, cpu_quota=120_000)
    await _until_shown(stand, container, 120_000)
    await stand.run("own", "storage-service", "4")
    await until(lambda: stand.runtime.resources[container].cpuset_cpus == "6-39,42-79")
    assert stand.runtime.resources[container].cpu_quota == 120_000


async def _until_shown(stand: Stand, container: str, quota: int) -> None:
    """Waits until the kubelet is shown a quota."""
    assert stand.kubelet is not None
    async with asyncio.timeout(60):
        while (await stand.kubelet.status(container)).status.resources.linux.cpu_quota != quota:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
