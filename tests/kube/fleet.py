"""Runs a whole mesh with real clusters, joined as by an operator, with agents that have only the rights of `join`."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any, Self

import msgspec
import pytest

from moorage.agent.install import token
from moorage.kube import connect
from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

GPU = "nvidia.com/gpu"
AVX = "feature.node.kubernetes.io/cpu-cpuid.AVX512F"
GROUP = "/v1/groups/default/{}/v1/default"
#: Two equal clusters between which tests let the merger choose.
EDGES = [{"cluster": "lab/edge-1"}, {"cluster": "lab/edge-2"}]


def agent_of(mesh: Mesh, plane: ControlPlane) -> AgentProcess:
    """Writes a kubeconfig with a token of the agent's service account."""

    async def ask() -> str:
        api = await connect(plane.kubeconfig)
        try:
            return await token(api)
        finally:
            await api.close()

    kubeconfig = mesh.state / f"{plane.name}.kubeconfig"
    kubeconfig.write_bytes(msgspec.json.encode(plane.config(asyncio.run(ask()))))
    return AgentProcess(mesh, plane, kubeconfig=kubeconfig)


def until(check: Callable[[], Any], seconds: float = 30, what: str = "") -> Any:
    return wait_until(check, what, seconds)


@pytest.fixture(name="mesh", scope="module")
def whole_mesh(planes: list[ControlPlane]) -> Iterator[Mesh]:
    with Mesh() as mesh:
        yield mesh


@pytest.fixture(name="agents", scope="module")
def joined_agents(mesh: Mesh, planes: list[ControlPlane]) -> Iterator[dict[str, AgentProcess]]:
    core = planes[2]
    for i in range(2):
        patch = {"metadata": {"labels": {AVX: "true"}}}
        core.call("PATCH", f"/api/v1/nodes/core-1-n{i}", patch, "application/merge-patch+json")
    made: dict[str, AgentProcess] = {}
    try:
        for plane in planes:
            done = mesh.run("cluster", "join", "--kubeconfig", str(plane.kubeconfig), "--context", plane.name, "--provider", "lab", "--label", "region=eu", "--no-deploy")  # fmt: skip
            assert done.returncode == 0, done.stderr.decode()
            made[plane.name] = agent_of(mesh, plane)
            made[plane.name].start()
        until(
            lambda: (
                len([c for c in mesh.http("/v1/clusters")["items"] if c["state"] == "Ready" and c["nodes"] == 4]) == 3
            ),
            60,
            "three clusters",
        )
        yield made
    finally:
        for agent in made.values():
            agent.stop()


def stateful(name: str, **extra: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/x:1", **extra}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }


def application(name: str, needs: list[dict[str, Any]], **app: Any) -> dict[str, Any]:
    consumer = {
        "name": name,
        "object": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
        "container": "main",
        "replicas": app.pop("pods", 1),
        "needs": needs,
    }
    spec = {"name": name, "replicas": 1, "manifests": [stateful(name)], "consumers": [consumer], **app}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [spec]},
    }


def apply(mesh: Mesh, document: dict[str, Any]) -> None:
    assert mesh.http("/v1/apply", document)["accepted"]


def why(mesh: Mesh, name: str) -> dict[str, Any]:
    found: dict[str, Any] = mesh.http(GROUP.format(name) + "/why")
    return found


def running(mesh: Mesh, name: str, seconds: float = 40) -> dict[str, Any]:
    found: dict[str, Any] = until(lambda: (w := why(mesh, name))["phase"] == "Running" and w, seconds, f"{name} runs")
    return found


def remove(mesh: Mesh, *names: str) -> None:
    for name in names:
        done = mesh.run("delete", "application", name, seconds=60)
        assert done.returncode in (0, 3), done.stderr.decode()


def pods(plane: ControlPlane, app: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.get(f"/api/v1/namespaces/default/pods?labelSelector=app={app}")["items"]
    return found


@pytest.fixture(name="tidy", autouse=True)
def tidied(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    mesh = request.getfixturevalue("mesh")
    for item in mesh.http("/v1/applications")["items"]:
        remove(mesh, item["metadata"]["name"] if "metadata" in item else item["group"].split("/")[1])


EXAMPLE: list[dict[str, Any]] = [
    {"resource": "cpu", "requests": 4, "limits": 4},
    {"resource": "memory", "requests": 1000, "limits": 1000, "units": "MB"},
    {"resource": GPU, "limits": 1, "mandatory": False, "weight": 9},
    {"label": AVX, "value": "true"},
]


def is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def is_gone(plane: ControlPlane, path: str) -> bool:
    try:
        plane.get(path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return True
        raise
    return False


class Sampling:
    """Reads an app's pods in the old place and then in the new one, repeatedly: if the old pods go only after the new ones are
    ready, each round sees ready pods in one of them."""

    def __init__(self, old: tuple[ControlPlane, str], new: tuple[ControlPlane, str]) -> None:
        self._places = (old, new)
        self.samples: list[tuple[int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.03):
            old, new = (sum(map(is_ready, pods(*place))) for place in self._places)
            self.samples.append((old, new))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def least(self) -> int:
        """Returns the smallest number of ready pods that a round saw."""
        return min(old + new for old, new in self.samples)


HOLD = "moorage.dev/test-hold"


def held(app: str) -> dict[str, Any]:
    """Makes a StatefulSet whose pods are bound but become ready only when a test lets them."""
    made = stateful(app)
    made["spec"]["template"]["metadata"]["annotations"] = {HOLD: "true"}
    return made


def let_go(plane: ControlPlane, app: str) -> None:
    for pod in pods(plane, app):
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        plane.call("PATCH", path, {"metadata": {"annotations": {HOLD: None}}}, "application/merge-patch+json")
