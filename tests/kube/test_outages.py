"""A real API server that goes away under a working agent: what is reported and applied is right again soon after."""

from __future__ import annotations

import asyncio
import time

from moorage.testing.conditions import until
from moorage.testing.kube import ControlPlane

from .conftest import Mesh, Start
from .test_agent import CLUSTER, clean, config, config_path  # noqa: F401 - the fixture is for all tests here


async def test_a_restarted_server_is_followed_again(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 30)
    await asyncio.to_thread(plane.stop_server)
    await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
    await asyncio.sleep(3)
    await asyncio.to_thread(plane.start_server)
    back = time.monotonic()
    await asyncio.to_thread(plane.node, "fresh")
    try:
        await until(
            lambda: set(mesh.states("web", 6).values()) == {"Ready"}, 20, "what was decided meanwhile is applied"
        )
        await until(lambda: "fresh" in mesh.nodes, 20, "what happened meanwhile is reported")
        assert time.monotonic() - back < 5
    finally:
        await asyncio.to_thread(plane.call, "DELETE", "/api/v1/nodes/fresh")


async def test_a_server_that_hangs_is_waited_for(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    """Its connections stay open and say nothing; the lease runs out, and comes back."""
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 30)
    plane.pause_server()
    try:
        await mesh.want(CLUSTER, "web", 6, config("c", a="2"))
        await asyncio.sleep(8)
        assert mesh.said("web", 6) is None
    finally:
        plane.resume_server()
    await until(lambda: mesh.states("web", 6) == {"ConfigMap/c": "Ready"}, 30)
    assert plane.get(config_path("c"))["data"] == {"a": "2"}


async def test_a_mesh_that_was_away_hears_everything(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 30)
    mesh.deaf = True
    plane.node("extra")
    await asyncio.to_thread(plane.call, "DELETE", config_path("c"))
    mesh.desired["web"].remove, mesh.desired["web"].version = True, 9
    await asyncio.sleep(4)
    mesh.deaf = False
    await until(lambda: (c := mesh.said("web", 9)) is not None and c.removed, 30)
    await until(lambda: "extra" in mesh.nodes, 20)
    await asyncio.to_thread(plane.call, "DELETE", "/api/v1/nodes/extra")
    await until(lambda: "extra" not in mesh.nodes, 10)
