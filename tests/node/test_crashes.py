"""An agent that is killed at any point goes on as if it had not been; with the gate off, or on junk, nothing is touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from moorage.qos.cpusets import parse_cpuset
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.polling import until

from .machines import write_policy
from .test_examples import POOLS, RESERVED, Stand


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    await stand.close()


def _disjoint(stand: Stand) -> None:
    """Fails if CPUs that a container has for itself are another's, too: after every single update."""
    seen = 0
    exclusive = [name for name, found in stand.runtime.resources.items() if found.cpu_quota == -1]
    for name in exclusive:
        cpus = parse_cpuset(stand.runtime.resources[name].cpuset_cpus)
        assert not cpus & seen, "two containers have a CPU for themselves"
        seen |= cpus
    for name, found in stand.runtime.resources.items():
        if name not in exclusive and stand.runtime.states[name] == 1:
            assert not parse_cpuset(found.cpuset_cpus) & seen, f"{name} is on CPUs that another has for itself"


@pytest.mark.parametrize(
    "point", ["node.allocated", "node.state.written", "node.state.renamed", "node.admitted", "node.shrunk"]
)
async def test_killed_at(stand: Stand, tmp_path: Path, point: str) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    stand.agent._environment = failpoints.environment
    write_policy(stand.policy, pools=POOLS)
    stand.runtime.after_update = lambda: _disjoint(stand)
    await stand.start()
    online = await stand.run("web", "online-micro_service", "4")
    offline = await stand.run("etl", "ETL", "2")
    failpoints.arm(point)
    if point == "node.shrunk":
        code, _, _ = await stand.agent.command("pools", "set", "online=0-13,40-53", "offline=14-39,54-79")
        assert code != 0
    else:
        with pytest.raises(grpc.aio.AioRpcError):
            await stand.run("own", "storage-service", "10", "10G")
    assert failpoints.happened(point), "it was not killed there"
    await stand.agent.kill()
    await stand.agent.start()
    own = await stand.run("own", "storage-service", "10", "10G")
    await stand.agent.ask("pools", "set", "online=0-13,40-53", "offline=14-39,54-79")
    assert stand.runtime.cpus(own) == "0-9"
    assert stand.runtime.cpus(online) == "10-13,40-53"
    assert stand.runtime.cpus(offline) == "14-39,54-79"
    items = await stand.agent.ask("allocations")
    assert len(items) == 3 and all(item["applied"] for item in items)


async def test_what_a_plugin_still_has_of_a_pod_that_is_gone_is_taken_back(stand: Stand, tmp_path: Path) -> None:
    """The agent is killed when its checkpoint has no record of the pod any more, and before plugins hear of it."""
    failpoints = Failpoints(tmp_path / "failpoints")
    stand.agent._environment = failpoints.environment
    stand.agent._arguments += ("--qos-resource-manager-reconcile-period", "1s")
    write_policy(stand.policy, pools=POOLS)
    await stand.start()
    assert stand.runtime.cpus(await stand.run("own", "storage-service", "10", "10G")) == "0-9"
    state, other = (stand.agent.root / f"{name}_plugin_state" for name in ("cpu", "memory"))
    await until(lambda: all(file.exists() and "uid-own" in file.read_text() for file in (state, other)))
    failpoints.arm("node.state.renamed")
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stand.remove("own")
    await until(lambda: failpoints.happened("node.state.renamed") > 0)
    assert "uid-own" in state.read_text()
    await stand.agent.kill()
    await stand.agent.start()
    await until(lambda: "uid-own" not in state.read_text())
    assert stand.runtime.cpus(await stand.run("next", "storage-service", "10", "10G")) == "0-9"


async def test_without_any_state_a_container_keeps_the_cpus_of_its_cgroup(stand: Stand) -> None:
    """Neither the checkpoint nor plugins nor annotations tell what it was given, as where it ran before the agent was turned on."""
    role = {"exclusive": True, "numa": "bind", "sharesNumaWith": ["db"]}
    write_policy(stand.policy, pools=POOLS, roles={"db": role})
    await stand.start()
    first = await stand.run("first", "db", "10", "10G")
    second = await stand.run("second", "db", "10", "10G")
    assert (stand.runtime.cpus(first), stand.runtime.cpus(second)) == ("0-9", "10-19")
    await stand.remove("first")
    await stand.agent.kill()
    for file in stand.agent.root.glob("*_state"):
        file.unlink()
    stand.runtime.containers[stand.runtime.of_pod(second)].config.ClearField("annotations")
    updates = len(stand.runtime.updates())
    await stand.agent.start()
    third = await stand.run("third", "db", "10", "10G")
    assert (stand.runtime.cpus(second), stand.runtime.cpus(third)) == ("10-19", "0-9")
    assert len(stand.runtime.updates()) == updates
    zones = await stand.agent.ask("zones")
    assert zones[0]["exclusiveCpus"] == "0-19"


async def test_an_exclusive_set_waits_until_others_have_left_it(stand: Stand) -> None:
    write_policy(stand.policy, pools=POOLS)
    stand.runtime.after_update = lambda: _disjoint(stand)
    await stand.start()
    online = await stand.run("web", "online-micro_service", "4")
    own = await stand.run("own", "storage-service", "10", "10G")
    assert (stand.runtime.cpus(own), stand.runtime.cpus(online)) == ("0-9", "10-37,40-77")
    await stand.remove("own")

    async def grown() -> bool:
        return stand.runtime.cpus(online) == "0-37,40-77"

    for _ in range(800):
        if await grown():
            break
        await asyncio.sleep(0.05)
    assert await grown()


async def test_a_container_that_cannot_be_moved_keeps_its_cpus(stand: Stand) -> None:
    """A pod that would have CPUs for itself is refused while another one cannot be moved away from them."""
    write_policy(stand.policy, pools=POOLS)
    await stand.start()
    online = await stand.run("web", "online-micro_service", "4")
    stand.runtime.fail_updates.add(stand.runtime.of_pod(online))
    with pytest.raises(grpc.aio.AioRpcError, match="UnexpectedAdmissionError"):
        await stand.run("own", "storage-service", "10", "10G")
    code, _, err = await stand.agent.command("pools", "set", "online=0-13,40-53", "offline=14-39,54-79")
    assert code == 1, err
    assert {p["name"]: p["size"] for p in await stand.agent.ask("pools")} == {"online": 76, "offline": 4}
    stand.runtime.fail_updates.clear()
    own = await stand.run("own", "storage-service", "10", "10G")
    assert (stand.runtime.cpus(own), stand.runtime.cpus(online)) == ("0-9", "10-37,40-77")


async def test_with_the_gate_off_all_passes_unchanged(stand: Stand) -> None:
    stand.agent._arguments = tuple(a.replace("=true", "=false") for a in stand.agent._arguments)
    write_policy(stand.policy, pools=POOLS)
    await stand.start()
    uid = await stand.run("etl", "nobody-knows-this-role", "2")
    assert stand.runtime.cpus(uid) == ""
    assert not stand.runtime.containers[stand.runtime.of_pod(uid)].config.annotations
    assert [zone["id"] for zone in await stand.agent.ask("zones")] == ["numa-0", "numa-1"]
    code, out, _ = await stand.agent.command("check")
    assert code == 1 and "QoSResourceManager=true" in out


async def test_turned_on_later_it_touches_no_container_without_need(stand: Stand) -> None:
    on = stand.agent._arguments
    stand.agent._arguments = tuple(a.replace("=true", "=false") for a in on)
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    before = await stand.run("plain", "", "1500m")
    await stand.agent.stop()
    stand.agent._arguments = on
    await stand.agent.start()
    own = await stand.run("own", "storage-service", "20", "40G")
    assert stand.runtime.cpus(own) == "2-21"
    assert parse_cpuset(stand.runtime.cpus(before)) & parse_cpuset("2-21") == 0
    assert len(stand.runtime.updates()) <= 2


async def test_a_policy_that_makes_no_sense_leaves_the_last_good_one(stand: Stand) -> None:
    write_policy(stand.policy, pools=POOLS)
    await stand.start()
    uid = await stand.run("web", "online-micro_service", "4")
    write_policy(stand.policy, pools={"online": {"cpus": "0-900"}})
    for _ in range(800):
        problems = (await stand.agent.ask("status"))["problems"]
        if problems:
            break
        await asyncio.sleep(0.05)
    assert any("spec.pools.online.cpus" in problem for problem in problems)
    assert stand.runtime.cpus(uid) == "0-37,40-77"
    write_policy(stand.policy, pools={**POOLS, "online": {"cpus": "0-36,40-76", "default": True}})
    for _ in range(800):
        if stand.runtime.cpus(uid) == "0-36,40-76":
            break
        await asyncio.sleep(0.05)
    assert stand.runtime.cpus(uid) == "0-36,40-76"


async def test_junk_on_every_socket(stand: Stand) -> None:
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    for name in ("cri.sock", "node.sock", "pod-resources/kubelet.sock", "resource-plugins/kubelet.sock"):
        path = stand.agent.root / name
        assert path.stat().st_mode & 0o777 == 0o600
        for junk in (os.urandom(65536), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096, b"GET " + b"/" * 70000):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(path))
                connection.sendall(junk)
                connection.recv(64)
    assert stand.kubelet is not None
    for method in ("RunPodSandbox", "CreateContainer", "UpdateContainerResources", "ContainerStatus"):
        with pytest.raises(grpc.aio.AioRpcError):
            await stand.kubelet.channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(b"\xff\xff\xff\xff")
    assert stand.runtime.cpus(await stand.run("pod", "storage-service", "20", "40G")) == "2-21"


async def test_two_agents_do_not_share_a_directory(stand: Stand) -> None:
    write_policy(stand.policy, **RESERVED)
    await stand.start()
    code, _, err = await stand.agent.command("run", "--node", "n1", "--sysfs", str(stand.directory / "sys"))
    assert code == 1 and "another agent uses" in err
