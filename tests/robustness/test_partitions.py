"""The network drops everything between one worker and NATS while TCP stays up: others take over, and after it heals the
worker does no harm and works again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import msgspec
import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, room
from moorage_testkit.polling import until
from moorage_testkit.tcp_proxy import TcpProxy

from .conftest import MakeMesh

CLUSTERS, CPU = 5, 2
FIT = CLUSTERS * CPU
FLEET = fleet(CLUSTERS, CPU)


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(FLEET)


@contextmanager
def worker(mesh: Mesh, kind: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a second worker that reaches NATS only through the proxy."""
    seed = msgspec.json.decode((mesh.state / "secrets.json").read_bytes())["seeds"][kind]
    reaches = {"MOORAGE_NATS_URL": url, "MOORAGE_NATS_SEED": seed, "MOORAGE_REDIS_URL": mesh.endpoint["redis"]}
    command = [sys.executable, "-m", "moorage.cli", "run", kind]
    process = subprocess.Popen(command, env={**os.environ, **reaches})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def instances(driver: MeshClient, kind: str) -> dict[int, str]:
    """Returns the workers of a kind that answer on the bus: process id → role."""
    inbox = driver.bus.nc.new_inbox()
    found: dict[int, str] = {}

    def on_reply(_subject: str, data: bytes) -> None:
        stats = msgspec.json.decode(data)
        found[int(stats["metadata"]["pid"])] = stats["metadata"].get("role", "")

    subscription = await driver.bus.subscribe(inbox, on_reply)
    await driver.bus.publish(f"$SRV.STATS.moorage-{kind}", b"", inbox)
    await asyncio.sleep(0.3)  # workers that do not answer within it count as gone
    await subscription.unsubscribe()
    return found


@asynccontextmanager
async def proxied(driver: MeshClient, kind: str) -> AsyncIterator[tuple[TcpProxy, subprocess.Popen[bytes]]]:
    port = urlsplit(driver.mesh.settings.nats_url).port
    assert port is not None
    async with TcpProxy(port) as proxy:
        with worker(driver.mesh, kind, proxy.url) as process:

            async def answers() -> bool:
                return process.pid in await instances(driver, kind)

            await eventually(answers, 40, f"the second {kind} is there")
            yield proxy, process


async def running(driver: MeshClient) -> int:
    return list((await driver.phases()).values()).count("Running")


async def exactly_what_fits(driver: MeshClient, names: list[str]) -> None:
    async def settled() -> bool:
        return await running(driver) == FIT and len(driver.ledger.standing) == FIT

    await eventually(settled, 30, f"{FIT} of {len(names)} run")


async def finished(driver: MeshClient, names: list[str]) -> None:
    await driver.delete(names)
    await until(lambda: not driver.ledger.claims, 40, "no claim is left")
    assert await driver.violations(room(FLEET)) == []


async def test_groups_of_a_partitioned_merger_are_decided_by_others(driver: MeshClient) -> None:
    """NATS still delivers hints to it, which get lost; the leading merger decides those groups."""
    names = [f"merger-{i}" for i in range(FIT + 6)]
    async with proxied(driver, "merger") as (proxy, process):
        proxy.partition()
        await asyncio.gather(*(driver.apply(application(name)) for name in names))
        await exactly_what_fits(driver, names)
        assert proxy.held, "something was on its way to it"
        proxy.heal()

        async def back() -> bool:
            return process.pid in await instances(driver, "merger")

        await eventually(back, 40, "the merger is there again")
        # It has folded the missed commits, so its decisions from now on fit, too.
        await driver.delete(names[:4])
        names = [*names[4:], *(f"merger-more-{i}" for i in range(8))]
        await asyncio.gather(*(driver.apply(application(name)) for name in names[-8:]))
        await exactly_what_fits(driver, names)
        assert process.poll() is None
        await finished(driver, names)


@pytest.mark.parametrize("kind", ["patcher", "inventory"])
async def test_a_partitioned_active_worker_is_replaced(mesh: Mesh, driver: MeshClient, kind: str) -> None:
    """Cuts off the worker that is active: another takes over, and after healing it steps back."""
    names = [f"{kind}-{i}" for i in range(4)]
    async with proxied(driver, kind) as (proxy, process):
        (own,) = mesh.pids(kind)
        os.kill(own, signal.SIGSTOP)

        async def active() -> list[int]:
            return [pid for pid, role in (await instances(driver, kind)).items() if role == "active"]

        async def taken(by_it: bool) -> bool:
            return [pid == process.pid for pid in await active()] == [by_it]

        await eventually(lambda: taken(True), 40, "the proxied one is active")
        await driver.apply(application(names[0]))
        await driver.until_phase(names[0], "Running")
        os.kill(own, signal.SIGCONT)
        await until(lambda: mesh.pids(kind) not in ([], [own]), 40, "the other stepped back and stands by now")
        proxy.partition()
        for name in names[1:]:
            await driver.apply(application(name))
        for name in names[1:]:
            await driver.until_phase(name, "Running", seconds=30)
        await eventually(lambda: taken(False), 40, "another is active")
        proxy.heal()
        # It learns that it is no longer active, and ends, to be restarted as the standby.
        await until(lambda: process.poll() is not None, 40, f"the old {kind} steps back")

        async def ready() -> bool:
            clusters = (await driver.http("/v1/clusters"))["items"]
            return [c["state"] for c in clusters] == ["Ready"] * CLUSTERS

        await eventually(ready, 40, "no cluster is lost by the change")
        for name in names:
            await driver.until_phase(name, "Running")
        await finished(driver, names)


async def test_groups_wait_for_a_partitioned_required_controller(mesh: Mesh, driver: MeshClient) -> None:
    """The only hpa is behind the proxy: no group is decided meanwhile, and all are once it is back."""
    names = [f"hpa-{i}" for i in range(FIT + 2)]
    async with proxied(driver, "hpa") as (proxy, process):
        (own,) = mesh.pids("hpa")
        os.kill(own, signal.SIGSTOP)  # so that only the other can answer
        try:
            proxy.partition()
            await asyncio.gather(*(driver.apply(application(name)) for name in names))

            async def silent() -> bool:
                return "ControllerTimeout" in {r["code"] for r in (await driver.why(names[0])).get("reasons", [])}

            await eventually(silent, 40, "its silence is named")
            assert not [n for n in names if group(n) in driver.ledger.standing]
        finally:
            os.kill(own, signal.SIGCONT)
            proxy.heal()
        await exactly_what_fits(driver, names)
        assert process.poll() is None
        await finished(driver, names)
