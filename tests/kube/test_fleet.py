"""Runs a whole mesh and three real clusters: decided apps run there, also after failures."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.mesh import Mesh

from .fleet import (  # noqa: F401 - fixtures
    AVX,
    EDGES,
    EXAMPLE,
    GPU,
    agent_of,
    application,
    apply,
    is_gone,
    joined_agents,
    pods,
    remove,
    running,
    tidied,
    until,
    whole_mesh,
    why,
)


def test_the_example_runs_on_matching_hardware(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    core = planes[2]
    until(
        lambda: [c["labels"].get("region") for c in mesh.http("/v1/clusters")["items"]] == ["eu"] * len(planes),
        60,
        "each has the label it joined with",
    )
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
    left = int(free[GPU]) - 1
    until(lambda: int(mesh.http("/v1/clusters/lab/core-1")["free"][GPU]) == left, 40, "the claim became a pod")
    remove(mesh, "fwall")
    until(lambda: not pods(core, "fwall"), 40, "its pod is gone")
    until(lambda: mesh.http("/v1/clusters/lab/core-1")["free"] == free, 40, "capacity comes back")


def test_two_groups_race_for_the_last_gpu(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    needs: list[dict[str, Any]] = [{"resource": GPU, "limits": 2}]
    apply(mesh, application("first", needs))
    running(mesh, "first")
    for name in ("red", "blue"):
        apply(mesh, application(name, needs))
    phases = until(
        lambda: (p := sorted(why(mesh, n)["phase"] for n in ("red", "blue"))) == ["Pending", "Running"] and p,
        40,
        "one of two",
    )
    assert phases
    loser = next(n for n in ("red", "blue") if why(mesh, n)["phase"] == "Pending")
    until(lambda: any(r.get("need") == GPU for r in why(mesh, loser)["reasons"]), 40, "it is known what it lacks")
    remove(mesh, "first")
    running(mesh, loser)


def test_why_shows_what_a_cluster_refused(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    document = application(
        "picky", [{"resource": "cpu", "requests": 1, "limits": 1}], replicas=2, placement={"anyOf": EDGES}
    )
    edge = planes[0]
    edge.call("POST", "/api/v1/namespaces/default/resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/statefulsets.apps": "0"}}})  # fmt: skip
    until(
        lambda: edge.get("/api/v1/namespaces/default/resourcequotas/none").get("status", {}).get("hard"),
        20,
        "the quota holds",
    )
    try:
        apply(mesh, document)
        until(lambda: why(mesh, "picky")["phase"] == "Degraded", 40, "it is degraded")
        failures = until(
            lambda: [r for r in why(mesh, "picky")["reasons"] if r["code"] == "ApplyFailed"], 40, "it is known why"
        )
        assert failures[0]["cluster"] == "lab/edge-1" and "exceeded quota" in failures[0]["message"]
        until(lambda: pods(planes[1], "picky"), 40, "the other cluster is not affected")
    finally:
        edge.call("DELETE", "/api/v1/namespaces/default/resourcequotas/none")
    running(mesh, "picky", 90)


@pytest.mark.parametrize("point", ["agent.recorded", "agent.applied", "agent.opened", "agent.removed"])
def test_a_killed_agent_is_succeeded_between_any_two_steps(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane], tmp_path: Path, point: str
) -> None:
    """A successor continues what a killed agent had recorded, applied or removed."""
    core, name = planes[2], point.replace("agent.", "sturdy-")
    agents["core-1"].stop()
    failpoints = Failpoints(tmp_path)
    doomed = agent_of(mesh, core)
    doomed.environment = failpoints.environment
    with doomed:
        until(lambda: mesh.http("/v1/clusters/lab/core-1")["state"] == "Ready", 60, "it reports")
        failpoints.arm(point)
        apply(mesh, application(name, EXAMPLE, **({"steering": "pinned"} if point == "agent.opened" else {})))
        if point == "agent.removed":
            running(mesh, name)
            assert mesh.run("terminate", name).returncode == 0
        until(lambda: failpoints.happened(point), 40, "it is killed there")
    before = [pod["metadata"]["uid"] for pod in pods(core, name)]
    assert why(mesh, name)["phase"] not in ("Running" if before else "", "Terminated"), "nobody knows"
    agents["core-1"].start()
    if point == "agent.removed":
        until(lambda: why(mesh, name)["phase"] == "Terminated", 60, "it is known to be gone")
        records = "/api/v1/namespaces/moorage-system/configmaps?labelSelector=moorage.dev/record"
        until(
            lambda: not any(name in record["data"]["record"] for record in core.get(records)["items"]),
            40,
            "nothing is recorded of it",
        )
    else:
        running(mesh, name, 60)
        until(lambda: len(pods(core, name)) == 1, 40, "it has one pod")
        assert not before or [pod["metadata"]["uid"] for pod in pods(core, name)] == before, "nothing is made again"


def test_an_agent_on_another_machine_needs_only_the_cluster(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane], tmp_path: Path
) -> None:
    """On a machine without a mesh, the credentials that `join` stored name the broker and the agent's cluster."""
    core = planes[2]
    lease = "/apis/coordination.k8s.io/v1/namespaces/moorage-system/leases/moorage-agent"
    agents["core-1"].stop()
    given = agents["core-1"].kubeconfig
    with AgentProcess(mesh, core, "--state", str(tmp_path / "none"), kubeconfig=given) as elsewhere:
        until(lambda: f"-{elsewhere.pid}-" in core.get(lease)["spec"]["holderIdentity"], 40, "it acts")
        until(lambda: mesh.http("/v1/clusters/lab/core-1")["state"] == "Ready", 40, "it reports")
        labels = until(lambda: mesh.http("/v1/clusters/lab/core-1")["labels"], 40, "and its labels")
        assert labels["region"] == "eu"
    agents["core-1"].start()
    until(lambda: f"-{agents['core-1'].pid}-" in core.get(lease)["spec"]["holderIdentity"], 40, "the first one again")


def test_a_suspended_agent_writes_nothing_after_it_was_replaced(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    """An agent that was suspended resumes after its lease expired, in the middle of its writes."""
    edge = planes[0]
    lease = "/apis/coordination.k8s.io/v1/namespaces/moorage-system/leases/moorage-agent"
    apply(mesh, application("kept", [{"resource": "cpu", "requests": 1, "limits": 1}], placement={"anyOf": EDGES[:1]}))
    running(mesh, "kept")
    with agent_of(mesh, edge):
        before = edge.get(lease)["spec"]
        agents["edge-1"].send(signal.SIGSTOP)
        until(
            lambda: edge.get(lease)["spec"]["leaseTransitions"] > before["leaseTransitions"], 60, "the other one acts"
        )
        until(lambda: mesh.http("/v1/clusters/lab/edge-1")["state"] == "Ready", 60, "and reports")
        holder = edge.get(lease)["spec"]["holderIdentity"]
        assert mesh.run("terminate", "kept").returncode == 0
        until(lambda: why(mesh, "kept")["phase"] == "Terminated", 60, "what it took away is gone")
        agents["edge-1"].send(signal.SIGCONT)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            assert is_gone(edge, "/apis/apps/v1/namespaces/default/statefulsets/kept")
            time.sleep(0.05)
        assert edge.get(lease)["spec"]["holderIdentity"] == holder
    until(lambda: edge.get(lease)["spec"]["holderIdentity"] not in ("", holder), 60, "it acts again once it may")


def test_a_cluster_catches_up_after_an_outage(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    core, agent = planes[2], agents["core-1"]
    apply(mesh, application("gone", EXAMPLE))
    running(mesh, "gone")
    agent.stop()
    until(lambda: mesh.http("/v1/clusters/lab/core-1")["state"] == "Stale", 60, "it is stale")
    apply(mesh, application("late", EXAMPLE))
    until(lambda: why(mesh, "late")["phase"] == "Pending", 40, "nothing new goes there")
    assert mesh.run("terminate", "gone").returncode == 0
    agent.start()
    running(mesh, "late", 60)
    until(lambda: not pods(core, "gone"), 60, "what was withdrawn meanwhile goes")
    until(lambda: why(mesh, "gone")["phase"] == "Terminated", 60, "and is known to be gone")


def test_drain_keeps_groups_that_fit_nowhere_else_and_says_why(mesh: Mesh, agents: dict[str, AgentProcess]) -> None:
    apply(mesh, application("bound", EXAMPLE))
    running(mesh, "bound")
    done = mesh.run("cluster", "drain", "lab/core-1", "--timeout", "30s")
    assert done.returncode == 1 and b"default/bound/v1/default not moved" in done.stderr and AVX.encode() in done.stderr
    assert why(mesh, "bound")["apps"]["bound"]["clusters"] == ["lab/core-1"]
    assert mesh.run("cluster", "uncordon", "lab/core-1").returncode == 0


def test_a_cluster_leaves_and_its_agent_loses_access(
    mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]
) -> None:
    plane, agent = planes[1], agents["edge-2"]
    theirs = "/api/v1/namespaces/default/configmaps/theirs"
    plane.call("POST", theirs.rsplit("/", 1)[0], {"metadata": {"name": "theirs"}, "data": {"a": "theirs"}})
    shared = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"b": "added"}}
    arguments = ["--kubeconfig", str(plane.kubeconfig), "--context", plane.name, "--provider", "lab"]
    document = application("stays", [{"resource": "cpu", "requests": 1, "limits": 1}], placement={"anyOf": EDGES[1:]})
    document["spec"]["apps"][0]["manifests"].append(shared)
    apply(mesh, document)
    running(mesh, "stays")
    assert plane.get(theirs)["data"] == {"a": "theirs", "b": "added"}
    refused = mesh.run("cluster", "leave", *arguments)
    assert refused.returncode == 4 and b"drain" in refused.stderr
    agent.stop()
    done = mesh.run("cluster", "leave", "--force", *arguments, seconds=120)
    assert done.returncode == 0, done.stderr.decode()
    until(lambda: not pods(plane, "stays"), 60, "its pods are gone")
    assert plane.get(theirs)["data"] == {"a": "theirs"}, "fields of ours on what others made are taken back"
    plane.call("DELETE", theirs)
    assert not [
        r
        for r in plane.get("/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
        if "moorage" in r["metadata"]["name"]
    ]
    until(lambda: _gone(mesh, "lab/edge-2"), 40, "the fleet forgets it")
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
    agents["edge-2"] = agent_of(mesh, plane)  # its account was a different one
    agents["edge-2"].start()
    until(
        lambda: not _gone(mesh, "lab/edge-2") and mesh.http("/v1/clusters/lab/edge-2")["state"] == "Ready",
        60,
        "it is back",
    )


def _has(plane: ControlPlane, namespace: str) -> bool:
    return namespace in [n["metadata"]["name"] for n in plane.get("/api/v1/namespaces")["items"]]


def _gone(mesh: Mesh, cluster: str) -> bool:
    return cluster not in [c["id"] for c in mesh.http("/v1/clusters")["items"]]


def test_a_revoked_agent_loses_access_within_two_seconds(mesh: Mesh, tmp_path: Path) -> None:
    from moorage.cli.state_dir import StateDirectory
    from moorage.cli.up.agent_users import ask

    async def cut() -> float:
        import nats

        seed = await asyncio.to_thread(ask, StateDirectory(mesh.state), "add", "lab/other")
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
        await asyncio.to_thread(ask, StateDirectory(mesh.state), "revoke", "lab/other")
        async with asyncio.timeout(120):
            await cut_off.wait()
        took = time.monotonic() - started
        await nc.close()
        return took

    assert asyncio.run(cut()) < 60, "half a second on a quiet machine"
