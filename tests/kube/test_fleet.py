"""A whole mesh and three real clusters: joined as an operator joins them, agents with no more rights than joining gives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.agent.joining import token
from moorage.kube import connect
from moorage.testing.kube import ControlPlane
from moorage.testing.mesh import Mesh

GPU = "nvidia.com/gpu"
AVX = "feature.node.kubernetes.io/cpu-cpuid.AVX512F"
GROUP = "/v1/groups/default/{}/v1/default"


class Agent:
    """`moorage agent` as a process, acting as the service account that joining made."""

    def __init__(self, mesh: Mesh, plane: ControlPlane) -> None:
        self.mesh, self.plane = mesh, plane
        self.kubeconfig = mesh.state / f"{plane.name}.kubeconfig"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        async def ask() -> str:
            api = await connect(self.plane.kubeconfig)
            try:
                return await token(api)
            finally:
                await api.close()

        self.kubeconfig.write_bytes(msgspec.json.encode(self.plane.config(asyncio.run(ask()))))
        env = {**os.environ, "MOORAGE_STATE": str(self.mesh.state)}
        with (self.mesh.state / f"agent-{self.plane.name}.log").open("ab") as out:
            command = [
                sys.executable,
                "-m",
                "moorage.cli",
                "agent",
                "--provider",
                "lab",
                "--kubeconfig",
                str(self.kubeconfig),
            ]
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=out)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None


def until(check: Callable[[], Any], seconds: float = 30, what: str = "") -> Any:
    end = time.monotonic() + seconds
    while True:
        if found := check():
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def mesh(planes: list[ControlPlane]) -> Iterator[Mesh]:
    with Mesh() as mesh:
        yield mesh


@pytest.fixture(scope="module")
def agents(mesh: Mesh, planes: list[ControlPlane]) -> Iterator[dict[str, Agent]]:
    core = planes[2]
    for i in range(2):
        patch = {"metadata": {"labels": {AVX: "true"}}}
        core.call("PATCH", f"/api/v1/nodes/core-1-n{i}", patch, "application/merge-patch+json")
    made: dict[str, Agent] = {}
    try:
        for plane in planes:
            done = mesh.run("cluster", "join", "--kubeconfig", str(plane.kubeconfig), "--context", plane.name, "--provider", "lab", "--label", "region=eu", "--no-deploy")  # fmt: skip
            assert done.returncode == 0, done.stderr.decode()
            made[plane.name] = Agent(mesh, plane)
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


@pytest.fixture(autouse=True)
def tidy(request: pytest.FixtureRequest) -> Iterator[None]:
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


def test_the_example_runs_where_the_hardware_is(
    mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]
) -> None:
    core = planes[2]
    free = mesh.http("/v1/clusters/lab/core-1")["free"]
    apply(mesh, application("fwall", EXAMPLE))
    assert running(mesh, "fwall")["apps"]["fwall"]["clusters"] == ["lab/core-1"]
    (pod,) = pods(core, "fwall")
    node = core.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
    assert node["metadata"]["labels"][AVX] == "true"
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"]["cpu"] == "4" and resources["limits"][GPU] == "1"
    assert resources["requests"]["memory"] in ("1G", "1000M", "1000000000")
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert AVX in json.dumps(required)
    held = mesh.http("/v1/clusters/lab/core-1")["free"]
    assert int(held[GPU]) == int(free[GPU]) - 1, "counted once: the claim became a pod"
    remove(mesh, "fwall")
    assert not pods(core, "fwall")
    until(lambda: mesh.http("/v1/clusters/lab/core-1")["free"] == free, 20, "capacity comes back")


def test_two_groups_race_for_the_last_gpu(mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]) -> None:
    whole: list[dict[str, Any]] = [{"resource": GPU, "limits": 2}]
    apply(mesh, application("first", whole))
    running(mesh, "first")
    for name in ("red", "blue"):
        apply(mesh, application(name, whole))
    phases = until(
        lambda: (p := sorted(why(mesh, n)["phase"] for n in ("red", "blue"))) == ["Pending", "Running"] and p,
        40,
        "one of two",
    )
    assert phases
    loser = next(n for n in ("red", "blue") if why(mesh, n)["phase"] == "Pending")
    assert any(r.get("need") == GPU for r in why(mesh, loser)["reasons"])
    remove(mesh, "first")
    running(mesh, loser)


def test_what_a_cluster_refuses_reaches_why(mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]) -> None:
    document = application("picky", [{"resource": "cpu", "requests": 1, "limits": 1}], replicas=2, placement={"anyOf": [{"cluster": "lab/edge-1"}, {"cluster": "lab/edge-2"}]})  # fmt: skip
    edge = planes[0]
    edge.call("POST", "/api/v1/namespaces/default/resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/statefulsets.apps": "0"}}})  # fmt: skip
    until(
        lambda: edge.get("/api/v1/namespaces/default/resourcequotas/none").get("status", {}).get("hard"),
        20,
        "the quota holds",
    )
    try:
        apply(mesh, document)
        found = until(lambda: (w := why(mesh, "picky"))["phase"] == "Degraded" and w, 40, "it is degraded")
        said = [r for r in found["reasons"] if r["code"] == "ApplyFailed"]
        assert said and said[0]["cluster"] == "lab/edge-1" and "exceeded quota" in said[0]["message"]
        until(lambda: pods(planes[1], "picky"), 20, "the other cluster is not affected")
    finally:
        edge.call("DELETE", "/api/v1/namespaces/default/resourcequotas/none")
    running(mesh, "picky", 90)


def test_an_agent_killed_between_apply_and_report(
    mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]
) -> None:
    core, agent = planes[2], agents["core-1"]
    apply(mesh, application("sturdy", EXAMPLE))
    until(lambda: pods(core, "sturdy"), 30, "it is applied")
    agent.stop(signal.SIGKILL)
    agent.start()
    running(mesh, "sturdy", 60)
    assert len(pods(core, "sturdy")) == 1


def test_a_cluster_that_was_away_catches_up(mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]) -> None:
    core, agent = planes[2], agents["core-1"]
    apply(mesh, application("gone", EXAMPLE))
    running(mesh, "gone")
    agent.stop()
    until(lambda: mesh.http("/v1/clusters/lab/core-1")["state"] == "Stale", 30, "it is stale")
    apply(mesh, application("late", EXAMPLE))
    until(lambda: why(mesh, "late")["phase"] == "Pending", 20, "nothing new goes there")
    assert mesh.run("terminate", "gone").returncode == 0
    agent.start()
    running(mesh, "late", 60)
    until(lambda: not pods(core, "gone"), 30, "what was withdrawn meanwhile goes")
    until(lambda: why(mesh, "gone")["phase"] == "Terminated", 30, "and is known to be gone")


def test_a_drained_cluster_keeps_nothing_and_loses_nothing(
    mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]
) -> None:
    apply(mesh, application("mover", [{"resource": "cpu", "requests": 1, "limits": 1}], placement={"anyOf": [{"cluster": "lab/edge-1"}, {"cluster": "lab/edge-2"}]}))  # fmt: skip
    (at,) = running(mesh, "mover")["apps"]["mover"]["clusters"]
    old, new = (planes[0], planes[1]) if at == "lab/edge-1" else (planes[1], planes[0])
    watching: list[tuple[int, int]] = []

    drain = subprocess.Popen(
        [sys.executable, "-m", "moorage.cli", "cluster", "drain", at],
        env={**os.environ, "MOORAGE_STATE": str(mesh.state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while drain.poll() is None:
        watching.append((len(pods(old, "mover")), sum(_ready(p) for p in pods(new, "mover"))))
        time.sleep(0.05)
    out, err = drain.communicate()
    assert drain.returncode == 0, err.decode()
    assert out.decode().strip() == f"{at} drained"
    assert all(before or after for before, after in watching), "the new place first, then the removal"
    assert running(mesh, "mover")["apps"]["mover"]["clusters"] == [f"lab/{new.name}"]
    assert not pods(old, "mover")
    assert mesh.run("cluster", "uncordon", at).returncode == 0
    until(lambda: mesh.http(f"/v1/clusters/{at}")["state"] == "Ready", 10, "it takes new things again")


def _ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def test_an_update_that_moves_makes_before_it_breaks(
    mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]
) -> None:
    def at(cluster: str, cpu: int) -> dict[str, Any]:
        needs = [{"resource": "cpu", "requests": cpu, "limits": cpu}]
        return application("shifty", needs, placement={"anyOf": [{"cluster": cluster}]})

    apply(mesh, at("lab/edge-1", 1))
    running(mesh, "shifty")
    apply(mesh, at("lab/edge-2", 2))
    end = time.monotonic() + 40
    while pods(planes[0], "shifty"):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert any(_ready(pod) for pod in pods(planes[1], "shifty")), "the old place went before the new one was ready"
    assert running(mesh, "shifty")["apps"]["shifty"]["clusters"] == ["lab/edge-2"]
    apply(mesh, at("lab/edge-1", 99))
    waiting = until(lambda: (w := why(mesh, "shifty")).get("pendingRevision") and w, 20, "it does not fit")
    assert waiting["phase"] == "Running" and waiting["apps"]["shifty"]["clusters"] == ["lab/edge-2"]


def test_what_fits_nowhere_else_stays_and_says_why(mesh: Mesh, agents: dict[str, Agent]) -> None:
    apply(mesh, application("bound", EXAMPLE))
    running(mesh, "bound")
    done = mesh.run("cluster", "drain", "lab/core-1", "--timeout", "30s")
    assert done.returncode == 1 and b"default/bound/v1/default stays" in done.stderr and AVX.encode() in done.stderr
    assert why(mesh, "bound")["apps"]["bound"]["clusters"] == ["lab/core-1"]
    assert mesh.run("cluster", "uncordon", "lab/core-1").returncode == 0


def test_a_cluster_leaves_and_its_agent_is_cut_off(
    mesh: Mesh, agents: dict[str, Agent], planes: list[ControlPlane]
) -> None:
    plane, agent = planes[1], agents["edge-2"]
    arguments = ["--kubeconfig", str(plane.kubeconfig), "--context", plane.name, "--provider", "lab"]
    apply(mesh, application("stays", [{"resource": "cpu", "requests": 1, "limits": 1}], placement={"anyOf": [{"cluster": "lab/edge-2"}]}))  # fmt: skip
    running(mesh, "stays")
    refused = mesh.run("cluster", "leave", *arguments)
    assert refused.returncode == 4 and b"drain" in refused.stderr
    agent.stop()
    done = mesh.run("cluster", "leave", "--force", *arguments, seconds=120)
    assert done.returncode == 0, done.stderr.decode()
    assert not pods(plane, "stays")
    assert not [
        r
        for r in plane.get("/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
        if "moorage" in r["metadata"]["name"]
    ]
    until(lambda: _gone(mesh, "lab/edge-2"), 10, "the fleet forgets it")
    secrets = json.loads((mesh.state / "secrets.json").read_bytes())
    assert "lab/edge-2" not in secrets["agents"]
    remove(mesh, "stays")
    until(
        lambda: plane.get("/api/v1/namespaces")["items"] and not _has(plane, "moorage-system"),
        40,
        "its namespace is gone",
    )
    again = mesh.run("cluster", "join", *arguments, "--no-deploy")
    assert again.returncode == 0, again.stderr.decode()
    agent.start()
    until(
        lambda: not _gone(mesh, "lab/edge-2") and mesh.http("/v1/clusters/lab/edge-2")["state"] == "Ready",
        60,
        "it is back",
    )


def _has(plane: ControlPlane, namespace: str) -> bool:
    return namespace in [n["metadata"]["name"] for n in plane.get("/api/v1/namespaces")["items"]]


def _gone(mesh: Mesh, cluster: str) -> bool:
    return cluster not in [c["id"] for c in mesh.http("/v1/clusters")["items"]]


def test_a_revoked_agent_is_cut_off_within_two_seconds(mesh: Mesh, tmp_path: Path) -> None:
    from moorage.cli.state import State
    from moorage.cli.up.agents import ask

    async def cut() -> float:
        import nats

        seed = await asyncio.to_thread(ask, State(mesh.state), "add", "lab/other")
        cut_off = asyncio.Event()

        async def lost() -> None:
            cut_off.set()

        async def quiet(_error: Exception) -> None:
            pass

        nc = await nats.connect(
            mesh.endpoint["nats"],
            nkeys_seed_str=seed,
            allow_reconnect=False,
            disconnected_cb=lost,
            closed_cb=lost,
            error_cb=quiet,
        )
        started = time.monotonic()
        await asyncio.to_thread(ask, State(mesh.state), "revoke", "lab/other")
        async with asyncio.timeout(5):
            await cut_off.wait()
        took = time.monotonic() - started
        await nc.close()
        return took

    assert asyncio.run(cut()) < 2
