"""The commands of `moorage node` show what is there and change what they say, and metrics count it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
import yaml

from moorage.cli.up.credentials import new_seed
from moorage.node.cgroups import Cgroup, normal, of_process
from moorage_testkit.polling import until

from .cri_client import CriClient
from .fake_plugin import FakePlugin
from .machines import pod, write_policy
from .test_examples import POOLS, Stand

TOKENS = "example.com/tokens"


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    write_policy(stand.policy, pools=POOLS)
    yield stand
    await stand.close()


def _get(socket_path: Path, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(socket_path))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def test_commands(stand: Stand) -> None:
    await stand.start()
    own = await stand.run("own", "storage-service", "10", "10G")
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.run("odd", "nobody-knows")
    status = await stand.agent.ask("status")
    assert (status["node"], status["attach"], status["enabled"], status["pods"]) == ("n1", "cri", True, 1)
    first, second = await stand.agent.ask("zones")
    assert (first["id"], first["cpus"], first["exclusiveCpus"]) == ("numa-0", "0-39", "0-9")
    assert first["exclusiveFree"] < second["exclusiveFree"] and first["roles"] == ["storage-service"]
    why = await stand.agent.ask("why", "default/odd")
    assert (why["outcome"], [reason["code"] for reason in why["reasons"]]) == ("refused", ["RoleUnknown"])
    assert (await stand.agent.ask("why", own))["outcome"] == "admitted"
    code, _, err = await stand.agent.command("why", "default/nobody")
    assert code == 3 and "no pod default/nobody" in err
    code, _, err = await stand.agent.command("pools", "set", "online=0-900")
    assert code == 1 and err
    code, out, _ = await stand.agent.command("check")
    assert (code, out) == (0, "")
    for path, expected in (("/livez", "ok\n"), ("/readyz", "ok\n")):
        assert await asyncio.to_thread(_get, stand.agent.root / "node.sock", path) == (200, expected)
    _, metrics = await asyncio.to_thread(_get, stand.agent.root / "node.sock", "/metrics")
    for line in (
        'moorage_node_admissions_total{outcome="admitted",code=""} 1',
        'moorage_node_admissions_total{outcome="refused",code="RoleUnknown"} 1',
        'moorage_node_exclusive_cpus{zone="0"} 10',
        'moorage_node_pool_cpus{pool="online"} 66',
        'moorage_node_plugin_calls_total{plugin="cpu",method="Allocate",outcome="ok"} 1',
        "moorage_node_drift_total 0",
    ):
        assert line in metrics.splitlines(), f"{line} is missing in\n{metrics}"


async def test_a_simulation_changes_nothing(stand: Stand) -> None:
    await stand.start()
    file = stand.directory / "two.yaml"
    pods = [pod("a", "storage-service", "10", "10G"), pod("b", "reranker", "50", "10G")]
    file.write_text(yaml.safe_dump_all(pods))
    first, second = await stand.agent.ask("simulate", "-f", str(file))
    assert (first["pod"], first["resources"]["cpu"]["allocationResult"]) == ("default/a", "0-9")
    assert second["reasons"][0]["code"] == "TopologyAffinityError"
    assert await stand.agent.ask("allocations") == [] and stand.runtime.calls == []


async def test_a_reset_finds_everything_again(stand: Stand) -> None:
    """It forgets what is not there any more, and takes over what changed unseen."""
    stand.agent._arguments += ("--qos-resource-manager-reconcile-period", "1s")
    await stand.start()
    own = await stand.run("own", "storage-service", "10", "10G")
    web = await stand.run("web", "online-micro_service", "1")
    gone = await stand.run("gone", "reranker", "4", "1G")
    tokens = FakePlugin(TOKENS)
    tokens.options.need_reconcile = False
    await tokens.start(stand.agent.root / "plugins_registry" / "tokens.sock")
    tokens.allocated[web] = {"main": 3.0}
    await until(lambda: bool(tokens.registered))
    # Behind the agent's back, as after a restore of the machine or a defect of the runtime.
    del stand.runtime.containers[stand.runtime.of_pod(gone)]
    (stand.pods / "gone.yaml").unlink()
    assert stand.runtime.cpus(web) == "10-37,44-77"
    answer = await stand.agent.ask("reset")
    assert ".bad" in answer["message"]
    given = {item["uid"]: item["resources"] for item in await stand.agent.ask("allocations") if item["uid"] != gone}
    assert given.keys() == {own, web}
    assert given[own]["cpu"]["allocationResult"] == "0-9"
    assert given[web][TOKENS]["allocatedQuantity"] == 3
    await until(lambda: stand.runtime.cpus(web) == "10-37,40-77")
    touched = {request.container_id for request in stand.runtime.updates()}
    assert stand.runtime.of_pod(own) not in touched, "a reset changes no container without need"
    assert list(stand.agent.root.glob("qos_resource_manager_state.*.bad"))
    await stand.agent.kill()
    await stand.agent.start()
    items = {item["uid"]: item["resources"]["cpu"]["allocationResult"] for item in await stand.agent.ask("allocations")}
    assert items[own] == "0-9"


async def test_a_reset_without_a_runtime_changes_nothing(stand: Stand) -> None:
    await stand.start()
    await stand.run("own", "storage-service", "10", "10G")
    await stand.runtime.stop()
    code, _, err = await stand.agent.command("reset")
    assert code == 1 and "the runtime does not answer" in err
    assert not list(stand.agent.root.glob("*.bad"))
    (item,) = await stand.agent.ask("allocations")
    assert item["resources"]["cpu"]["allocationResult"] == "0-9"


async def test_a_detached_agent_says_so(stand: Stand) -> None:
    await stand.start()
    own = await stand.run("own", "storage-service", "10", "10G")
    assert (await stand.agent.ask("detach"))["containers"] == 1
    assert stand.runtime.cpus(own) == "0-79"
    assert (await stand.agent.ask("status"))["enabled"] is False
    code, out, _ = await stand.agent.command("check")
    assert code == 1 and "the agent was detached" in out
    code, _, err = await stand.agent.command("reset")
    assert code == 1 and "detached" in err
    await stand.agent.stop()
    await stand.agent.start()
    await until(lambda: stand.runtime.cpus(own) == "0-9")


async def test_a_check_says_that_the_mesh_does_not_hear_the_agent(stand: Stand) -> None:
    credentials = stand.directory / "node.json"
    found = {"cluster": "lab/one", "node": "n1", "nats": "nats://127.0.0.1:1", "seed": new_seed()}
    credentials.write_text(json.dumps(found))
    await stand.runtime.start(stand.directory / "r.sock")
    await stand.agent.start("--credentials", str(credentials))
    code, out, _ = await stand.agent.command("check")
    assert code == 1 and "the mesh does not hear the agent" in out and "moorage node join" in out
    stand.kubelet = CriClient(stand.agent.cri)
    assert stand.runtime.cpus(await stand.run("own", "storage-service", "10", "10G")) == "0-9"


async def test_without_an_agent_a_command_says_where_it_looked(tmp_path: Path) -> None:
    from .agent_process import AgentProcess

    code, _, err = await AgentProcess(tmp_path).command("status")
    assert code == 6 and f"no node agent at {tmp_path}/node.sock" in err


def test_cgroups_of_version_2(tmp_path: Path) -> None:
    place = tmp_path / "cgroup" / "pod" / "container"
    place.mkdir(parents=True)
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text("0::/pod/container\n")
    files = {
        "cpuset.cpus": "0-3,8\n",
        "cpuset.mems": "0\n",
        "cpu.max": "max 100000\n",
        "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n",
        "io.weight": "default 100\n",
    }
    for name, content in files.items():
        (place / name).write_text(content)
    cgroup = of_process(7, tmp_path / "cgroup", tmp_path / "proc")
    assert cgroup is not None and cgroup.is_v2
    wanted = dict.fromkeys(("CpusetCpus", "CpusetMems", "CpuQuota", "CpuPeriod"), "") | {"io.weight": "default 100"}
    assert cgroup.read(wanted) == {
        "CpusetCpus": "0-3,8",
        "CpusetMems": "0",
        "CpuQuota": "-1",
        "CpuPeriod": "100000",
        "io.weight": "default 100",
    }
    assert cgroup.unchanged()
    (place / "cpuset.cpus").write_text("0-1\n")
    assert not cgroup.unchanged()
    usage = cgroup.usage(200)
    assert usage is not None and (usage.cpu, usage.waited) == (2.5, 1.5)
    assert of_process(8, tmp_path / "cgroup", tmp_path / "proc") is None
    assert Cgroup({}, None).read(wanted) == {}
    assert normal("CpusetCpus", "0,1,2") == "0-2"
