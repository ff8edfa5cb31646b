"""Pods are known by the API server's watch, over a kubeconfig with a token; what plugins give out is in the node's status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from aiohttp import web

from moorage.kube.api import Unreachable
from moorage.node.kube_config import connect
from moorage.node.node_capacity import capacity_of
from moorage.qos.messages import AllocatableResource
from moorage_testkit.polling import until
from moorage_testkit.scripted_api import ScriptedServer, write_kubeconfig

from .fake_plugin import FakePlugin
from .machines import pod, write_policy
from .test_examples import RESERVED, Stand

PODS = "/api/v1/pods"


class Server(ScriptedServer):
    """Notes what is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.collections[PODS] = {}
        self.queries: list[tuple[str, str]] = []
        self.patches: list[tuple[str, Any]] = []

    async def _answer(self, request: web.Request, fault: str) -> web.StreamResponse:
        self.queries.append((request.query.get("fieldSelector", ""), request.headers.get("Authorization", "")))
        return await super()._answer(request, fault)

    async def other(self, request: web.Request, path: str) -> web.StreamResponse:
        if request.method == "PATCH":
            self.patches.append((path, json.loads(await request.read())))
            return web.json_response({})
        return await super().other(request, path)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as server:
        yield server


@pytest_asyncio.fixture
async def stand(tmp_path: Path, server: Server) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    write_policy(stand.policy, **RESERVED)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server.url, token="secret")
    # The last of two options counts.
    stand.agent._arguments = (
        *(word if word != str(stand.pods) else "api" for word in stand.agent._arguments),
        *("--kubeconfig", str(kubeconfig), "--qos-resource-manager-reconcile-period", "1s"),
    )
    yield stand
    await stand.close()


async def test_pods_of_the_api_server(stand: Stand, server: Server) -> None:
    await stand.start()
    assert stand.kubelet is not None
    manifest = pod("pod1", "storage-service", "20", "40G")
    uid = manifest["metadata"].pop("uid")

    async def appear() -> None:
        # The kubelet hears of a pod before the agent does.
        await asyncio.sleep(0.3)
        await server.put(PODS, "pod1", metadata={**manifest["metadata"], "uid": uid}, spec=manifest["spec"])

    late = asyncio.ensure_future(appear())
    annotations = manifest["metadata"]["annotations"]
    await stand.kubelet.run("pod1", uid, annotations)
    await late
    assert stand.runtime.cpus(uid) == "2-21"
    assert ("spec.nodeName=n1", "Bearer secret") in server.queries
    # What has ended gives back what it had.
    status = {"phase": "Succeeded"}
    await server.put(PODS, "pod1", metadata={**manifest["metadata"], "uid": uid}, spec=manifest["spec"], status=status)
    for _ in range(800):
        if not await stand.agent.ask("allocations"):
            break
        await asyncio.sleep(0.05)
    assert await stand.agent.ask("allocations") == []


async def test_the_server_away_a_pod_that_asks_for_something_special_is_refused(stand: Stand, server: Server) -> None:
    await stand.start()
    assert stand.kubelet is not None
    with pytest.raises(grpc.aio.AioRpcError, match="SpecMissing"):
        await stand.kubelet.run("special", "uid-special", {"kubernetes.io/pod-role": "storage-service"})
    await stand.kubelet.run("plain", "uid-plain")
    assert stand.runtime.cpus("uid-plain") == "2-39,42-79"


async def test_the_status_of_the_node_has_what_plugins_give_out(stand: Stand, server: Server) -> None:
    await stand.start()
    plugin = FakePlugin()
    plugin.info.is_node_resource = True
    await plugin.start(stand.agent.root / "plugins_registry" / "p.sock")
    await until(lambda: bool(server.patches), 40)
    path, body = server.patches[0]
    assert path == "/api/v1/nodes/n1/status"
    assert body["status"]["capacity"] == body["status"]["allocatable"] == {"example.com/tokens": "8"}


def test_capacity_has_scalar_node_resources_of_a_domain() -> None:
    def resource(node: bool, amount: float) -> AllocatableResource:
        return AllocatableResource(
            is_node_resource=node,
            is_scalar_resource=True,
            aggregated_allocatable=amount,
            aggregated_capacity=amount + 1,
        )

    found = capacity_of(
        {"cpu": resource(True, 8), "a.b/c": resource(True, 3.7), "a.b/hidden": resource(False, 3)}, ["gone.b/c"]
    )
    assert (found.capacity, found.allocatable, found.removed) == ({"a.b/c": 4}, {"a.b/c": 3}, ("gone.b/c",))


@pytest.mark.parametrize("user", [{"exec": {"command": "x"}}, {"auth-provider": {"name": "y"}}])
async def test_a_login_by_a_program_is_refused_with_what_to_do(tmp_path: Path, user: dict[str, Any]) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "k", "http://127.0.0.1:1", **user)
    with pytest.raises(Unreachable, match="token or a certificate"):
        await connect(kubeconfig)
