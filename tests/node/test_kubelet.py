"""Before a stock kubelet: it starts, shows, resizes and removes pods as without the agent, and each container has what its role
gives it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moorage.node.api import cri_pb2 as cri
from moorage_testkit import kube_assets, node_assets
from moorage_testkit.control_plane import ControlPlane

from .agent_process import AgentProcess
from .containerd import IMAGE, Containerd, cgroup_file
from .cri_client import CriClient
from .kubelet import Kubelet
from .machines import pod, write_pod, write_policy
from .test_real_runtimes import eventually

POOLS = {"online": {"cpus": "0", "default": True}, "offline": {"cpus": "1"}}
NODE = "n1"
GATE = ("--feature-gates", "QoSResourceManager=true", "--qos-resource-manager-reconcile-period", "1s")


def _manifest(name: str, role: str = "", cpu: str = "100m", **spec: Any) -> dict[str, Any]:
    found = pod(name, role, cpu, "64Mi")
    del found["metadata"]["uid"]  # as people write manifests: the kubelet or the API server gives one
    found["apiVersion"] = "v1"
    found["spec"] = {
        **found["spec"],
        "hostNetwork": True,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        **spec,
    }
    found["spec"]["containers"][0] |= {"image": IMAGE, "imagePullPolicy": "Never"}
    return found


class Node:
    """A node with a runtime, the agent before it, and a kubelet that knows of neither."""

    def __init__(self, daemon: Containerd, directory: Path, pods: str, *arguments: str, **config: Any) -> None:
        program = node_assets.kubelet()
        assert program is not None
        self.daemon, self.policy = daemon, directory / "policy.yaml"
        write_policy(self.policy, pools=POOLS, native="off")
        self.agent = AgentProcess(
            daemon.directory / "n",
            *("--node", NODE, "--runtime", f"unix://{daemon.socket}", "--config", str(self.policy), "--pods", pods),
            *("--kubelet-dir", str(daemon.directory / "k/root"), "--plugins", "cpu,memory", *GATE, *arguments),
        )
        self.kubelet = Kubelet(program, daemon, self.agent.cri, NODE, directory / "kubelet.log", **config)
        self.client = CriClient(str(daemon.socket))

    async def close(self) -> None:
        self.kubelet.stop()
        await self.client.close()
        await self.agent.stop()

    async def container(self, name: str) -> cri.Container | None:
        """Returns the running container of the pod whose name begins so."""
        request = cri.ListContainersRequest()
        answer = await self.client.call("ListContainers", request, cri.ListContainersResponse)
        for found in answer.containers:
            if found.state == 1 and found.labels["io.kubernetes.pod.name"].startswith(name):
                return found
        return None

    async def runs(self, name: str) -> int:
        """Waits until the pod's container runs, and returns its process."""

        async def running() -> bool:
            return await self.container(name) is not None

        await eventually(running, 60)
        found = await self.container(name)
        assert found is not None
        return await self.client.pid(found.id)

    async def gone(self, name: str) -> None:
        """Waits until nothing of the pod runs, and the agent has taken back what it had."""

        async def away() -> bool:
            allocations = await self.agent.ask("allocations")
            return await self.container(name) is None and all(name not in item["pod"] for item in allocations)

        await eventually(away, 60)


def _cpus(pid: int) -> str:
    return cgroup_file(pid, "cpuset", "cpuset.cpus").read_text().strip()


@pytest.fixture(autouse=True)
def assets() -> None:
    if why := node_assets.missing():
        pytest.skip(why)


@pytest_asyncio.fixture
async def static(containerd: Containerd, tmp_path: Path) -> AsyncIterator[Node]:
    (tmp_path / "pods").mkdir()
    node = Node(containerd, tmp_path, str(tmp_path / "pods"), staticPodPath=str(tmp_path / "pods"))
    await node.agent.start()
    node.kubelet.start()
    yield node
    await node.close()


async def test_static_pods(static: Node, tmp_path: Path) -> None:
    pods = tmp_path / "pods"
    write_pod(pods, _manifest("etl", "ETL"))
    write_pod(pods, _manifest("web"))
    write_pod(pods, _manifest("odd", "nobody-knows"))
    etl, web = await static.runs("etl"), await static.runs("web")
    assert (_cpus(etl), _cpus(web)) == ("1", "0")
    # What is refused is in the kubelet's words, and starts as soon as the policy knows it.
    await static.kubelet.said("RoleUnknown: the node has no role 'nobody-knows'")
    write_policy(static.policy, pools=POOLS, native="off", roles={"nobody-knows": {"pool": "offline"}})
    assert _cpus(await static.runs("odd")) == "1"
    # Neither takes notice of the other's end.
    static.kubelet.stop(signal.SIGKILL)
    await static.agent.kill()
    await static.agent.start()
    static.kubelet.start()
    write_pod(pods, _manifest("late", "ETL"))
    assert _cpus(await static.runs("late")) == "1"
    assert (await static.runs("etl"), await static.runs("web")) == (etl, web)
    await static.agent.ask("pools", "set", "online=1", "offline=0")
    assert (_cpus(etl), _cpus(web)) == ("0", "1")
    # A changed manifest is a new pod to the kubelet.
    write_pod(pods, _manifest("web", "ETL"))

    async def replaced() -> bool:
        found = await static.container("web")
        return found is not None and await static.client.pid(found.id) != web

    await eventually(replaced, 60)
    assert _cpus(await static.runs("web")) == "0"
    (pods / "etl.yaml").unlink()
    await static.gone("etl")


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """An API server and its etcd; pods name their node themselves."""
    if kube_assets.find()[0] is None:
        pytest.skip(kube_assets.find()[1])
    plane = ControlPlane("node", arguments=("--disable-admission-plugins=ServiceAccount",))
    try:
        plane.begin()
        plane.until(plane.ready, 120, "kube-apiserver")
        yield plane
    finally:
        plane.remove()


@pytest_asyncio.fixture
async def member(containerd_1_7: Containerd, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Node]:
    kubeconfig = ("--kubeconfig", str(plane.kubeconfig))
    node = Node(containerd_1_7, tmp_path, "api", *kubeconfig)
    await node.agent.start()
    node.kubelet.start(*kubeconfig)
    yield node
    await node.close()


async def test_a_node_of_a_cluster(member: Node, plane: ControlPlane) -> None:
    pods = "/api/v1/namespaces/default/pods"
    for name, role in (("etl", "ETL"), ("web", ""), ("odd", "nobody-knows")):
        plane.call("POST", pods, _manifest(name, role, nodeName=NODE))
    etl, web = await member.runs("etl"), await member.runs("web")
    assert (_cpus(etl), _cpus(web)) == ("1", "0")

    async def told() -> bool:
        events = plane.get("/api/v1/namespaces/default/events")["items"]
        return any(e["involvedObject"]["name"] == "odd" and "RoleUnknown: the node has" in e["message"] for e in events)

    await eventually(told, 60)
    # Resized in place by the kubelet: it sets what is its own, and the agent keeps what is the agent's.
    amounts = {"cpu": "200m", "memory": "64Mi"}
    resources = {"resources": {"requests": amounts, "limits": amounts}}
    change = {"spec": {"containers": [{"name": "main", **resources}]}}
    plane.call("PATCH", f"{pods}/etl/resize", change, "application/strategic-merge-patch+json")

    async def resized() -> bool:
        status = plane.get(f"{pods}/etl")["status"]["containerStatuses"][0]
        return bool(status["resources"].get("requests", {}).get("cpu") == "200m")

    await eventually(resized, 60)

    async def has_shares() -> bool:
        return cgroup_file(etl, "cpu", "cpu.shares").read_text().strip() == "204"

    await eventually(has_shares, 60)
    assert (await member.runs("etl"), _cpus(etl)) == (etl, "1")
    plane.call("DELETE", f"{pods}/etl?gracePeriodSeconds=0")
    await member.gone("etl")
