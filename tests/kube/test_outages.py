"""A real API server fails under a working agent: soon after, reports and applied objects are right again."""

from __future__ import annotations

import asyncio
import time

import pytest

from moorage.bus import Settings
from moorage.kube import leader_election
from moorage_testkit.api_proxy import ApiProxy
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer
from moorage_testkit.tcp_proxy import TcpProxy

from .conftest import Mesh, Start, settled
from .test_agent import CLUSTER, clean, config, config_path, there  # noqa: F401 - the fixture is for all tests here


async def test_a_restarted_api_server_is_watched_again(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 30)
    await asyncio.to_thread(plane.stop_server)
    await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
    await asyncio.sleep(3)
    await asyncio.to_thread(plane.start_server)
    await asyncio.to_thread(plane.node, "fresh")
    try:
        await until(
            lambda: set(mesh.states("web", 6).values()) == {"Ready"}, 20, "what was decided meanwhile is applied"
        )
        await until(lambda: "fresh" in mesh.nodes, 40, "what happened meanwhile is reported")
    finally:
        await asyncio.to_thread(plane.call, "DELETE", "/api/v1/nodes/fresh")


async def test_the_agent_survives_a_hanging_api_server(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    """Connections stay open without data; the lease expires and is taken again."""
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 30)
    plane.pause_server()
    try:
        await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
        await asyncio.sleep(8)
        assert mesh.confirmation("web", 6) is None
    finally:
        plane.resume_server()
    await until(lambda: mesh.states("web", 6) == {"ConfigMap/c": "Ready"}, 30)
    assert plane.get(config_path("c"))["data"] == {"a": "2"}


async def test_the_agent_reports_in_full_after_an_outage_of_the_mesh(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 30)
    mesh.silent = True
    await asyncio.to_thread(plane.node, "extra")
    await asyncio.to_thread(plane.call, "DELETE", config_path("c"))
    mesh.desired["web"].remove, mesh.desired["web"].version = True, 9
    await asyncio.sleep(4)
    mesh.silent = False
    await until(lambda: (c := mesh.confirmation("web", 9)) is not None and c.removed, 30)
    await until(lambda: "extra" in mesh.nodes, 60)
    await asyncio.to_thread(plane.call, "DELETE", "/api/v1/nodes/extra")
    await until(lambda: "extra" not in mesh.nodes, 60)


@pytest.mark.parametrize("fault", ["html", "abort", "event", "410", "close", "refused", "503"])
async def test_a_failing_api_server_gets_at_most_two_requests_a_second(
    plane: ControlPlane, mesh: Mesh, agents: Start, fault: str
) -> None:
    """Watches, writes and election together make at most two requests in any second while the server fails, and what is
    reported and applied is right within five seconds after it recovers."""
    async with ApiProxy(plane) as proxy:
        agents(plane, kubeconfig=proxy.kubeconfig())
        await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
        await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 30)
        await asyncio.sleep(1.5)
        if fault == "refused":
            await proxy.refuse()
        else:
            proxy.fault = lambda request: fault
            proxy.cut()
        failed = time.monotonic()
        try:
            await asyncio.to_thread(plane.node, "fresh")
            if fault not in ("event", "410", "close"):  # here the server answers normally
                await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
            await asyncio.sleep(7)
            assert len([t for t, _ in proxy.requests if t > failed]) >= (0 if fault == "refused" else 3), "it tries"
            asked = "\n".join(f"{t - failed:.2f} {what[:70]}" for t, what in proxy.requests if t > failed)
            # On a busy machine one may arrive late, and so within a second of three others.
            assert proxy.most(failed) <= 4, asked
            if fault == "refused":
                await proxy.listen()
            proxy.fault = lambda request: ""
            back = time.monotonic()
            await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
            await until(lambda: mesh.states("web", 6) == {"ConfigMap/c": "Ready"}, 40, "what was decided is applied")
            applied = time.monotonic() - back
            await until(lambda: "fresh" in mesh.nodes, 40, "what happened is reported")
            assert max(applied, time.monotonic() - back) < 60, "five seconds on a quiet machine"
        finally:
            await asyncio.to_thread(plane.call, "DELETE", "/api/v1/nodes/fresh")


LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/moorage-system/leases/moorage-agent"


async def test_a_leader_without_the_mesh_hands_over_to_the_standby(
    plane: ControlPlane, nats: NatsServer, mesh: Mesh, agents: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader reaches its API server but not the mesh; the standby reaches both."""
    monkeypatch.setattr(leader_election, "UNABLE_AFTER", 2.0)
    async with TcpProxy(nats.port) as proxy:
        first = agents(plane, settings=Settings(proxy.url))
        await until(lambda: bool(mesh.nodes), 20)
        agents(plane)
        await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
        await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 20)
        session = mesh.reports[-1].session
        proxy.partition()
        await until(lambda: mesh.reports[-1].session != session, 40, "the other one reports")
        assert next(r for r in mesh.reports if r.session != session).succeeds == session
        await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
        await until(lambda: mesh.states("web", 6) == {"ConfigMap/c": "Ready"}, 40, "and applies")
        session = mesh.reports[-1].session
        proxy.heal()
        await asyncio.sleep(6)
        assert mesh.reports[-1].session == session, "who comes back stands by"
        lease = await asyncio.to_thread(plane.get, LEASE_PATH)
        assert lease["spec"]["leaseTransitions"] == 2
        assert not {"moorage.dev/holder-unable", "moorage.dev/wanted-by"} & set(lease["metadata"]["annotations"])
        assert not first.done()


async def test_the_leader_stays_when_no_agent_reaches_the_mesh(
    plane: ControlPlane, nats: NatsServer, mesh: Mesh, agents: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No agent reaches the mesh, so the lease stays with the leader, which keeps what it applied."""
    monkeypatch.setattr(leader_election, "UNABLE_AFTER", 1.0)
    async with TcpProxy(nats.port) as proxy:
        for _ in range(2):
            agents(plane, settings=Settings(proxy.url))
        await until(lambda: bool(mesh.nodes), 20)
        await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
        await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 20)
        before = (await asyncio.to_thread(plane.get, LEASE_PATH))["spec"]
        sessions = {r.session for r in mesh.reports}
        proxy.partition()
        await settled(
            lambda: "moorage.dev/holder-unable" in (plane.get(LEASE_PATH)["metadata"].get("annotations") or {}),
            30,
            "it says so",
        )
        await asyncio.to_thread(plane.call, "DELETE", config_path("c"))
        await settled(lambda: there(plane, config_path("c")) is not None, what="what was deleted is made again")
        await asyncio.sleep(6)
        after = (await asyncio.to_thread(plane.get, LEASE_PATH))["spec"]
        assert (after["holderIdentity"], after["leaseTransitions"]) == (before["holderIdentity"], 1)
        seen = len(mesh.reports)
        proxy.heal()
        await until(lambda: len(mesh.reports) > seen, 40, "it reports again")
        assert {r.session for r in mesh.reports} == sessions
