"""Groups move between real clusters: the new place runs before the old one is removed. State is read from the API servers, and
pods become ready only when the test lets them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

from .fleet import (  # noqa: F401 - fixtures
    EDGES,
    GROUP,
    Sampling,
    application,
    apply,
    held,
    joined_agents,
    let_go,
    pods,
    remove,
    running,
    stateful,
    tidied,
    until,
    whole_mesh,
    why,
)

Fleet = tuple[Mesh, list[ControlPlane]]


@pytest.fixture
def fleet(mesh: Mesh, agents: dict[str, AgentProcess], planes: list[ControlPlane]) -> Fleet:
    return mesh, planes


def at(name: str, cluster: str, cpu: int, *, hold: bool = False) -> dict[str, Any]:
    needs = [{"resource": "cpu", "requests": cpu, "limits": cpu}]
    manifest = held(name) if hold else stateful(name)
    return application(name, needs, placement={"anyOf": [{"cluster": cluster}]}, manifests=[manifest])


def watch_it_wait(sampling: Sampling, new: ControlPlane, app: str) -> None:
    """The old pod stays while the new one is bound but not ready."""
    until(lambda: any(p["spec"].get("nodeName") for p in pods(new, app)), 40, "the new place is made")
    seen = len(sampling.samples)
    time.sleep(3)
    assert all(old >= 1 and not ready for old, ready in sampling.samples[seen:]), "the old place went too soon"


def test_an_update_that_moves(fleet: Fleet) -> None:
    mesh, (edge, other, _) = fleet
    apply(mesh, at("shifty", "lab/edge-1", 1))
    running(mesh, "shifty")
    with Sampling((edge, "shifty"), (other, "shifty")) as sampling:
        apply(mesh, at("shifty", "lab/edge-2", 2, hold=True))
        watch_it_wait(sampling, other, "shifty")
        let_go(other, "shifty")
        until(lambda: not pods(edge, "shifty"), 40, "the old place is given up")
    assert sampling.least >= 1
    assert running(mesh, "shifty")["apps"]["shifty"]["clusters"] == ["lab/edge-2"]


def test_an_update_for_which_there_is_no_room(fleet: Fleet) -> None:
    mesh, (edge, other, _) = fleet
    apply(mesh, at("stuck", "lab/edge-1", 1))
    running(mesh, "stuck")
    before = pods(edge, "stuck")[0]["metadata"]["uid"]
    apply(mesh, at("stuck", "lab/edge-2", 99))
    waiting = until(
        lambda: (w := why(mesh, "stuck")).get("pendingRevision") and w.get("reasons") and w, 20, "it does not fit"
    )
    assert waiting["phase"] == "Running" and waiting["apps"]["stuck"]["clusters"] == ["lab/edge-1"]
    assert any(r.get("need") == "cpu" for r in waiting["reasons"])
    time.sleep(1)
    assert [p["metadata"]["uid"] for p in pods(edge, "stuck")] == [before] and not pods(other, "stuck")


def test_a_rollback_across_clusters(fleet: Fleet) -> None:
    """A rollback makes a new revision of the old content, which is placed again."""
    mesh, (edge, other, _) = fleet
    apply(mesh, at("back", "lab/edge-1", 1, hold=True))
    until(lambda: pods(edge, "back"), 30, "its pod")
    let_go(edge, "back")
    running(mesh, "back")
    apply(mesh, at("back", "lab/edge-2", 2))
    until(lambda: not pods(edge, "back"), 40, "it moved")
    running(mesh, "back")
    # Meanwhile somebody takes the room: going back waits for it, and what runs goes on.
    blockers = [f"blocker-{i}" for i in range(4)]
    for name in blockers:
        apply(mesh, at(name, "lab/edge-1", 8))
    for name in blockers:
        running(mesh, name)
    done = mesh.run("rollback", "back")
    assert done.returncode == 0, done.stderr.decode()
    until(lambda: why(mesh, "back").get("pendingRevision") == 3, 20, "there is no room to go back to")
    assert pods(other, "back") and not pods(edge, "back")
    with Sampling((other, "back"), (edge, "back")) as sampling:
        remove(mesh, blockers[0])
        watch_it_wait(sampling, edge, "back")
        let_go(edge, "back")
        until(lambda: not pods(other, "back"), 40, "the place in between is given up")
    assert sampling.least >= 1
    found = running(mesh, "back")
    assert found["apps"]["back"]["clusters"] == ["lab/edge-1"] and found["revision"] == 3
    (pod,) = pods(edge, "back")
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1", "as it was in the first revision"


def test_an_update_in_place_keeps_pods_running(fleet: Fleet) -> None:
    """A Deployment has capacity for its own surge."""
    mesh, (edge, _, _) = fleet

    def document(cpu: int) -> dict[str, Any]:
        made = at("steady", "lab/edge-1", cpu)
        (app,) = made["spec"]["apps"]
        labels = {"app": "steady"}
        container = {"name": "main", "image": "registry.example/x:1"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        manifest = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "steady"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        app["manifests"] = [manifest]
        app["consumers"][0] |= {"replicas": 2}
        app["consumers"][0]["object"] |= {"kind": "Deployment"}
        return made

    apply(mesh, document(1))
    running(mesh, "steady")
    with Sampling((edge, "steady"), (edge, "steady")) as sampling:
        apply(mesh, document(2))
        until(
            lambda: (
                (found := [p for p in pods(edge, "steady") if "deletionTimestamp" not in p["metadata"]])
                and len(found) == 2
                and all(p["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2" for p in found)
            ),
            40,
            "both are of the new version",
        )
    assert min(old for old, _ in sampling.samples) >= 2
    running(mesh, "steady")


@pytest.fixture
def rest(mesh: Mesh) -> Iterator[HttpClient]:
    rest = HttpClient(mesh)
    rest.must(201, "POST", "/projects", {"metadata": {"name": "movers"}})
    yield rest


def composed(rest: HttpClient, version: str, group: str, name: str, cluster: str, *, hold: bool = False) -> str:
    """Creates a composite application with one app and an approved group; objects are named after the version."""
    import json

    base = f"/projects/movers/composite-apps/shop/{version}"
    if rest("GET", "/projects/movers/composite-apps/shop/" + version).status == 404:
        rest.must(
            201,
            "POST",
            "/projects/movers/composite-apps",
            {"metadata": {"name": "shop"}, "spec": {"compositeAppVersion": version}},
        )
    manifest = held(name) if hold else stateful(name)
    answered = rest.upload("POST", base + "/apps", {"metadata": {"name": "web"}}, json.dumps(manifest).encode())
    assert answered.status == 201, answered
    rest.must(201, "POST", base + "/composite-profiles", {"metadata": {"name": "plain"}})
    groups = base + "/deployment-intent-groups"
    rest.must(
        201, "POST", groups, {"metadata": {"name": group}, "spec": {"compositeProfile": "plain", "version": "r1"}}
    )
    path = f"{groups}/{group}"
    rest.must(201, "POST", path + "/generic-placement-intents", {"metadata": {"name": "where"}})
    provider, _, short = cluster.partition("/")
    rest.must(
        201,
        "POST",
        path + "/generic-placement-intents/where/app-intents",
        {
            "metadata": {"name": "web"},
            "spec": {"app": "web", "intent": {"allOf": [{"clusterProvider": provider, "cluster": short}]}},
        },
    )
    rest.must(202, "POST", path + "/approve")
    return path


def test_a_migration_across_clusters(fleet: Fleet, rest: HttpClient) -> None:
    """Another group takes the place: the old one is removed only once the new one runs."""
    _, (edge, other, _) = fleet
    old = composed(rest, "v1", "one", "web-one", "lab/edge-1")
    new = composed(rest, "v2", "two", "web-two", "lab/edge-2", hold=True)
    try:
        rest.must(202, "POST", old + "/instantiate")
        rest.until(old + "/status", lambda s: s["phase"] == "Running", 40)
        order = {"spec": {"targetCompositeAppVersion": "v2", "targetDigName": "two"}}
        with Sampling((edge, "web-one"), (other, "web-two")) as sampling:
            rest.must(202, "POST", old + "/migrate", order)
            watch_it_wait(sampling, other, "web-two")
            let_go(other, "web-two")
            rest.until(old + "/status", lambda s: s["phase"] == "Terminated", 40)
        assert sampling.least >= 1
        assert not pods(edge, "web-one") and len(pods(other, "web-two")) == 1
    finally:
        for path in (old, new):
            rest("POST", path + "/terminate")
            rest.until(path + "/status", lambda s: s["phase"] in ("Terminated", "Draft"), 40)


def test_a_drained_cluster_keeps_nothing_and_loses_nothing(fleet: Fleet) -> None:
    mesh, planes = fleet
    document = application("mover", [{"resource": "cpu", "requests": 1, "limits": 1}], placement={"anyOf": EDGES})
    document["spec"]["apps"][0]["manifests"] = [held("mover")]
    apply(mesh, document)
    old = until(lambda: next((p for p in planes[:2] if pods(p, "mover")), None), 30, "its pod")
    new = planes[1] if old is planes[0] else planes[0]
    let_go(old, "mover")
    running(mesh, "mover")
    cluster = f"lab/{old.name}"
    with Sampling((old, "mover"), (new, "mover")) as sampling:
        drain = subprocess.Popen(
            [sys.executable, "-m", "moorage.cli", "cluster", "drain", cluster],
            env={**os.environ, "MOORAGE_STATE": str(mesh.state)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        watch_it_wait(sampling, new, "mover")
        assert drain.poll() is None, "it waits for what it moves"
        let_go(new, "mover")
        out, err = drain.communicate(timeout=60)
    assert drain.returncode == 0, err.decode()
    assert out.decode().strip() == f"{cluster} drained"
    assert sampling.least >= 1
    assert running(mesh, "mover")["apps"]["mover"]["clusters"] == [f"lab/{new.name}"]
    assert not pods(old, "mover")
    assert mesh.run("cluster", "uncordon", cluster).returncode == 0
    until(lambda: mesh.http(f"/v1/clusters/{cluster}")["state"] == "Ready", 10, "it takes new things again")
