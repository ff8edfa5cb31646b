"""First objects are created while their record is being stored: if the agent is killed in between, its successor finds them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from moorage.agent.core.owned_objects import Ref
from moorage.agent.install import undo
from moorage.agent.install_manifests import OWN_RULES, RULES
from moorage.kube import connect
from moorage_testkit.api_proxy import ApiProxy
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

from .conftest import Mesh, Start, settled
from .test_agent import CLUSTER, clean, config, config_path, deployment, deployment_path, there  # noqa: F401 - a fixture

OURS = "/api/v1/namespaces/moorage-system/configmaps"
MARKS = f"{OURS}/moorage-marks"
#: Its lease is short, so that the next agent does not wait for long.
RUN = """
import asyncio, sys
from moorage.agent.worker import main
from moorage.bus import Settings
from moorage.kube import leader_election
leader_election.LEASE_DURATION, leader_election.RENEW_DEADLINE, leader_election.RETRY_PERIOD = 3.0, 2.0, 0.5
asyncio.run(main(Settings(sys.argv[1], sys.argv[2]), cluster=sys.argv[3], kubeconfig=sys.argv[4]))
"""


def noted(plane: ControlPlane) -> list[Any]:
    found = there(plane, MARKS)
    kinds: list[Any] = msgspec.json.decode(found["data"]["record"])["kinds"] if found else []
    return kinds


def recorded(plane: ControlPlane, app: str) -> list[Ref] | None:
    """Returns the recorded objects of the app."""
    for item in plane.get(f"{OURS}?labelSelector=moorage.dev/record")["items"]:
        record = msgspec.json.decode(item["data"]["record"])
        if record["app"] == app:
            return [Ref(*ref) for ref in record["refs"]]
    return None


async def prime(plane: ControlPlane, mesh: Mesh) -> None:
    """Waits until ConfigMaps are among the kinds that may be created before they are recorded."""
    for version in range(1, 30):
        await mesh.want(CLUSTER, "prime", version, *(config(f"prime-{i}") for i in range(version)))
        await until(lambda v=version: len(mesh.states("prime", v)) == v, 30)  # type: ignore[misc]
        if ["v1", "ConfigMap"] in await asyncio.to_thread(noted, plane):
            return
    raise AssertionError("it is never noted")


@contextlib.contextmanager
def process_of(nats: NatsServer, proxy: ApiProxy, failpoints: Failpoints) -> Iterator[subprocess.Popen[bytes]]:
    """Starts an agent that can be killed."""
    settings = nats.settings()
    arguments = [settings.nats_url, settings.nats_seed, CLUSTER, str(proxy.kubeconfig())]
    process = subprocess.Popen([sys.executable, "-c", RUN, *arguments], env={**os.environ, **failpoints.environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def new_record(request: web.Request) -> bool:
    return request.method == "POST" and request.path == OURS


@pytest.fixture
async def killed(plane: ControlPlane, nats: NatsServer, mesh: Mesh, tmp_path: Path) -> AsyncIterator[str]:
    """Kills an agent after it created an object that no record names. Returns the object's uid."""
    failpoints = Failpoints(tmp_path)
    async with ApiProxy(plane) as proxy:
        with process_of(nats, proxy, failpoints) as process:
            await prime(plane, mesh)
            proxy.fault = lambda request: "hang" if new_record(request) else ""
            failpoints.arm("agent.made")
            await mesh.want(CLUSTER, "web", 5, config("lost", a="1"), deployment("web"))
            await until(lambda: failpoints.happened("agent.made") == process.pid, 40, "it is killed there")
            assert await asyncio.to_thread(process.wait, 60) < 0
    lost = await asyncio.to_thread(there, plane, config_path("lost"))
    assert lost is not None and mesh.confirmation("web", 5) is None
    assert await asyncio.to_thread(recorded, plane, "web") is None
    yield lost["metadata"]["uid"]


async def test_the_successor_adopts_an_object_that_is_still_desired(
    plane: ControlPlane, mesh: Mesh, agents: Start, killed: str
) -> None:
    agents(plane)
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 40)
    assert plane.get(config_path("lost"))["metadata"]["uid"] == killed, "it is kept"
    assert Ref("v1", "ConfigMap", "default", "lost") in (recorded(plane, "web") or [])


async def test_the_successor_removes_an_object_whose_group_is_gone(
    plane: ControlPlane, mesh: Mesh, agents: Start, killed: str
) -> None:
    await mesh.want(CLUSTER, "web", 6, remove=True)
    agents(plane)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 40)
    assert there(plane, config_path("lost")) is None and recorded(plane, "web") is None


async def test_the_successor_removes_an_object_that_the_new_version_lacks(
    plane: ControlPlane, mesh: Mesh, agents: Start, killed: str
) -> None:
    await mesh.want(CLUSTER, "web", 6, config("other"))
    agents(plane)
    await until(lambda: mesh.states("web", 6) == {"ConfigMap/other": "Ready"}, 40)
    await settled(lambda: there(plane, config_path("lost")) is None, what="it is pruned")
    await settled(lambda: recorded(plane, "web") == [Ref("v1", "ConfigMap", "default", "other")])


async def test_leaving_removes_unrecorded_objects(plane: ControlPlane, killed: str) -> None:
    api = await connect(plane.kubeconfig)
    printed: list[str] = []
    try:
        await undo(api, printed.append, 60)
    finally:
        await api.close()
    assert there(plane, config_path("lost")) is None and there(plane, config_path("prime-0")) is None
    assert "removing p/shop/v1/default, app web" in printed


async def test_a_waiting_group_adopts_an_unrecorded_object(
    plane: ControlPlane, nats: NatsServer, mesh: Mesh, agents: Start, tmp_path: Path
) -> None:
    """The object is never missing, and an object that is listed late is adopted, too."""
    failpoints = Failpoints(tmp_path)
    async with ApiProxy(plane) as proxy:
        with process_of(nats, proxy, failpoints):
            await prime(plane, mesh)
            agents(plane)
            proxy.fault = lambda request: "hang" if new_record(request) else ""
            failpoints.arm("agent.made")
            await mesh.want(CLUSTER, "web", 5, config("lost", a="1"))
            await until(lambda: bool(failpoints.happened("agent.made")), 40, "it is killed there")
            lost = await asyncio.to_thread(plane.get, config_path("lost"))
            await mesh.want(CLUSTER, "web", 6, remove=True)
            await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 40)
            assert there(plane, config_path("lost")) is None
    # As if a request of the killed agent had been under way until now; and a copy of the object by somebody else.
    kept = {k: v for k, v in lost["metadata"].items() if k in ("name", "labels", "annotations")}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept}
    copy = {**made, "metadata": {**kept, "name": "copy"}}
    for obj in (copy, made):
        await asyncio.to_thread(plane.call, "POST", config_path("lost").rsplit("/", 1)[0], obj)
    await settled(lambda: there(plane, config_path("lost")) is None, what="it goes")
    await settled(lambda: recorded(plane, "web") is None)
    assert there(plane, config_path("copy")) is not None, "what somebody else made does not"


@pytest.mark.parametrize("fault", ["abort", "503"])
async def test_a_version_that_cannot_be_recorded_is_not_confirmed(
    plane: ControlPlane, mesh: Mesh, agents: Start, fault: str
) -> None:
    async with ApiProxy(plane) as proxy:
        agents(plane, kubeconfig=proxy.kubeconfig())
        await prime(plane, mesh)
        proxy.fault = lambda request: fault if new_record(request) else ""
        await mesh.want(CLUSTER, "web", 5, config("early"), deployment("web"))
        await settled(lambda: there(plane, config_path("early")) is not None, what="made beside")
        tried = len([what for _, what in proxy.requests if what == f"POST {OURS}"])
        await until(
            lambda: len([what for _, what in proxy.requests if what == f"POST {OURS}"]) > tried, 20, "it is tried again"
        )
        assert there(plane, deployment_path("web")) is None and mesh.confirmation("web", 5) is None
        # Objects that the next version lacks are removed nevertheless, once that is recorded.
        await mesh.want(CLUSTER, "web", 6, config("late"))
        await asyncio.sleep(1)
        assert mesh.confirmation("web", 6) is None and there(plane, config_path("early")) is not None
        proxy.fault = lambda request: ""
        await until(lambda: mesh.states("web", 6) == {"ConfigMap/late": "Ready"}, 30)
        await settled(lambda: there(plane, config_path("early")) is None, what="pruned")
        await settled(lambda: recorded(plane, "web") == [Ref("v1", "ConfigMap", "default", "late")])


async def test_a_group_can_end_before_it_was_recorded(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    async with ApiProxy(plane) as proxy:
        agents(plane, kubeconfig=proxy.kubeconfig())
        await prime(plane, mesh)
        proxy.fault = lambda request: "abort" if new_record(request) else ""
        await mesh.want(CLUSTER, "web", 5, config("early"))
        await settled(lambda: there(plane, config_path("early")) is not None, what="made beside")
        await mesh.want(CLUSTER, "web", 6, remove=True)
        await asyncio.sleep(1)
        proxy.fault = lambda request: ""
        await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 30)
        assert there(plane, config_path("early")) is None and recorded(plane, "web") is None


async def test_existing_objects_are_not_changed_before_they_are_recorded(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    """A Secret is not created before it is recorded, because the agent may not list Secrets."""
    theirs = config("theirs", a="theirs")
    plane.call("POST", config_path("theirs").rsplit("/", 1)[0], theirs)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "one"}}
    async with ApiProxy(plane) as proxy:
        agents(plane, kubeconfig=proxy.kubeconfig())
        await prime(plane, mesh)
        await mesh.want(CLUSTER, "known", 1, {**secret, "metadata": {"name": "t"}})
        await until(lambda: set(mesh.states("known", 1).values()) == {"Ready"}, 20)
        proxy.fault = lambda request: "abort" if new_record(request) else ""
        await mesh.want(CLUSTER, "web", 5, secret, config("theirs", b="added"), config("early"))
        await settled(lambda: there(plane, config_path("early")) is not None, what="made beside")
        await asyncio.sleep(1.5)
        assert plane.get(config_path("theirs"))["data"] == {"a": "theirs"}
        assert there(plane, "/api/v1/namespaces/default/secrets/s") is None
        proxy.fault = lambda request: ""
        await until(lambda: len(mesh.states("web", 5)) == 3 and set(mesh.states("web", 5).values()) == {"Ready"}, 30)
        assert plane.get(config_path("theirs"))["data"] == {"a": "theirs", "b": "added"}
    assert not [kind for kind in noted(plane) if kind[1] == "Secret"]


async def test_objects_that_cannot_be_listed_are_recorded_first(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    """This holds even for an object that was listed once; and a kind that is no longer served has no objects."""
    first = agents(plane)
    await prime(plane, mesh)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    found = plane.get(MARKS)
    record = msgspec.json.decode(found["data"]["record"])
    record["kinds"] += [["gone.example.com/v1", "Widget"], ["v1", "Nothing"]]
    found["data"]["record"] = msgspec.json.encode(record).decode()
    plane.call("PUT", MARKS, found)
    rules = [{**rule, "verbs": [v for v in rule["verbs"] if v != "watch" and v != "list"]} if "configmaps" in rule["resources"] else rule for rule in RULES]  # fmt: skip
    # In its own namespace it can list them.
    given = await asyncio.to_thread(plane.service_account, "unlisting", rules)
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/moorage-system"
    named = {"metadata": {"name": "unlisting"}}
    subject = {"kind": "ServiceAccount", "name": "unlisting", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "unlisting"}
    plane.call("POST", f"{rbac}/roles", {**named, "rules": OWN_RULES})
    plane.call("POST", f"{rbac}/rolebindings", {**named, "roleRef": role, "subjects": [subject]})
    async with ApiProxy(plane) as proxy:
        config_ = msgspec.json.decode(given.read_bytes())
        config_["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{proxy.port}"}
        given.write_bytes(msgspec.json.encode(config_))
        began = asyncio.get_running_loop().time()
        agents(plane, kubeconfig=given)
        await mesh.want(CLUSTER, "web", 5, config("c"))
        await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 20)
        assert asyncio.get_running_loop().time() - began < 40, "it waits for nobody"
        proxy.fault = lambda request: "abort" if new_record(request) else ""
        tried = len(proxy.requests)
        await mesh.want(CLUSTER, "two", 5, config("d"))
        await until(lambda: any(what == f"POST {OURS}" for _, what in proxy.requests[tried:]), 20)
        await asyncio.sleep(0.5)
        assert there(plane, config_path("d")) is None
        proxy.fault = lambda request: ""
        await until(lambda: mesh.states("two", 5) == {"ConfigMap/d": "Ready"}, 20)
