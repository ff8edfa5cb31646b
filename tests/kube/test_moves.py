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
    is_ready,
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


def test_an_update_moves_a_group(fleet: Fleet) -> None:
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


def test_an_update_that_does_not_fit_keeps_the_old_placement(fleet: Fleet) -> None:
    mesh, (edge, other, _) = fleet
    apply(mesh, at("stuck", "lab/edge-1", 1))
    running(mesh, "stuck")
    before = pods(edge, "stuck")[0]["metadata"]["uid"]
    apply(mesh, at("stuck", "lab/edge-2", 99))
    waiting = until(
        lambda: (
            (w := why(mesh, "stuck")).get("pendingRevision")
            and any(r.get("need") == "cpu" for r in w.get("reasons", ()))
            and w
        ),
        40,
        "it does not fit",
    )
    assert waiting["phase"] == "Running" and waiting["apps"]["stuck"]["clusters"] == ["lab/edge-1"]
    time.sleep(1)
    assert [p["metadata"]["uid"] for p in pods(edge, "stuck")] == [before] and not pods(other, "stuck")


def test_a_rollback_moves_across_clusters(fleet: Fleet) -> None:
    """A rollback makes a new revision of the old content, which is placed again."""
    mesh, (edge, other, _) = fleet
    apply(mesh, at("back", "lab/edge-1", 1, hold=True))
    until(lambda: pods(edge, "back"), 60, "its pod")
    let_go(edge, "back")
    running(mesh, "back")
    apply(mesh, at("back", "lab/edge-2", 2))
    until(lambda: not pods(edge, "back"), 40, "it moved")
    running(mesh, "back")
    # Another group takes the capacity meanwhile: the rollback waits for it, and the running pods stay.
    blockers = [f"blocker-{i}" for i in range(4)]
    for name in blockers:
        apply(mesh, at(name, "lab/edge-1", 8))
    for name in blockers:
        running(mesh, name)
    done = mesh.run("rollback", "back")
    assert done.returncode == 0, done.stderr.decode()
    until(lambda: why(mesh, "back").get("pendingRevision") == 3, 40, "there is no room to go back to")
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


@pytest.mark.parametrize(("kind", "number", "cpu"), [("StatefulSet", 4, 6), ("DaemonSet", 1, 6), ("Deployment", 4, 8)])
def test_a_rollout_on_full_nodes_ends(fleet: Fleet, kind: str, number: int, cpu: int) -> None:
    """Each of the four nodes of eight cores has room for one pod. Without a steering rule of its own the Deployment may run
    five pods and miss one; there is no room for five."""
    mesh, (edge, other, _) = fleet
    name = f"full-{kind.lower()}"

    def document(image: str) -> dict[str, Any]:
        made = at(name, "lab/edge-1", cpu)
        (app,) = made["spec"]["apps"]
        app["placement"] = {"anyOf": EDGES}
        (manifest,) = app["manifests"]
        manifest["kind"] = app["consumers"][0]["object"]["kind"] = kind
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = image
        if kind != "StatefulSet":
            del manifest["spec"]["serviceName"]
        if kind == "DaemonSet":
            del app["consumers"][0]["replicas"]
        else:
            app["consumers"][0]["replicas"] = number
        return made

    apply(mesh, document("registry.example/x:1"))
    (home,) = running(mesh, name)["apps"][name]["clusters"]
    plane = edge if home == "lab/edge-1" else other
    for version in (2, 3):
        image = f"registry.example/x:{version}"
        apply(mesh, document(image))
        until(
            lambda image=image: (  # type: ignore[misc]
                (found := [p for p in pods(plane, name) if "deletionTimestamp" not in p["metadata"]])
                and len(found) == 4
                and all(is_ready(p) and p["spec"]["containers"][0]["image"] == image for p in found)
            ),
            60,
            f"all pods have image {version}",
        )
        found = running(mesh, name)
        assert found["apps"][name]["clusters"] == [home] and found["revision"] == version
        until(
            lambda: (
                ("SurgeLeftOut" in {w["code"] for w in why(mesh, name).get("warnings", [])}) == (kind == "Deployment")
            ),
            40,
            "it is told where a surge was left out",
        )
    until(
        lambda: mesh.http(f"/v1/clusters/{home}")["free"]["cpu"] == str(32 - 4 * cpu), 40, "older claims are released"
    )


@pytest.mark.parametrize("steering", ["preferred", "required", "pinned"])
def test_a_rollout_with_a_surge_ends_on_full_nodes(fleet: Fleet, steering: str) -> None:
    """Three pods and the one of the surge fill all four nodes; none may be missing meanwhile. With required node affinity, or
    pinned, the pod of the surge may run on no other node."""
    mesh, (edge, _, _) = fleet
    name = f"surging-{steering}"

    def document(image: str) -> dict[str, Any]:
        made = at(name, "lab/edge-1", 8)
        (app,) = made["spec"]["apps"]
        app["steering"] = steering
        (manifest,) = app["manifests"]
        manifest["kind"] = app["consumers"][0]["object"]["kind"] = "Deployment"
        manifest["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = image
        del manifest["spec"]["serviceName"]
        app["consumers"][0]["replicas"] = 3
        return made

    def required(pod: dict[str, Any]) -> set[str]:
        affinity = pod["spec"]["affinity"]["nodeAffinity"].get("requiredDuringSchedulingIgnoredDuringExecution", {})
        terms = affinity.get("nodeSelectorTerms", [])
        rules = [rule for term in terms for rule in (*term.get("matchExpressions", []), *term.get("matchFields", []))]
        return {host for rule in rules for host in rule["values"]}

    apply(mesh, document("registry.example/x:1"))
    running(mesh, name)
    for version in (2, 3):
        image = f"registry.example/x:{version}"
        apply(mesh, document(image))
        until(
            lambda image=image: (  # type: ignore[misc]
                (found := pods(edge, name))
                and len(found) == 3
                and all(is_ready(p) and p["spec"]["containers"][0]["image"] == image for p in found)
            ),
            90,
            f"all pods have image {version}",
        )
        for pod in pods(edge, name):
            allowed = required(pod)
            assert pod["spec"]["nodeName"] in allowed if steering != "preferred" else not allowed
            assert steering != "pinned" or len(allowed) == 1
        running(mesh, name)
        until(lambda: not why(mesh, name).get("warnings"), 40, "without warnings")
    until(lambda: mesh.http("/v1/clusters/lab/edge-1")["free"]["cpu"] == "8", 40, "older claims are released")


@pytest.fixture
def rest(mesh: Mesh) -> Iterator[HttpClient]:
    rest = HttpClient(mesh)
    if rest("GET", "/projects/movers").status == 404:
        rest.must(201, "POST", "/projects", {"metadata": {"name": "movers"}})
    yield rest


def composed(
    rest: HttpClient, version: str, group: str, name: str, cluster: str, *, hold: bool = False, beside: str = ""
) -> str:
    """Creates a composite application with one app and an approved group. `beside`: a second object, which is held."""
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
    text = "\n---\n".join(json.dumps(one) for one in (manifest, *([held(beside)] if beside else ())))
    answered = rest.upload("POST", base + "/apps", {"metadata": {"name": "web"}}, text.encode())
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


def test_a_migration_moves_across_clusters(fleet: Fleet, rest: HttpClient) -> None:
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
        until(lambda: not pods(edge, "web-one"), 40, "the old pod is gone")
        assert len(pods(other, "web-two")) == 1
    finally:
        for path in (old, new):
            rest("POST", path + "/terminate")
            rest.until(path + "/status", lambda s: s["phase"] in ("Terminated", "Draft"), 40)


@pytest.mark.parametrize("how", ["it runs", "it is given up", "it never starts"])
def test_a_migration_updates_objects_of_the_same_name_in_place(fleet: Fleet, rest: HttpClient, how: str) -> None:
    """The StatefulSet becomes the other group's, and is taken back where that one ends first. A pod that does not become ready would
    keep it from being rolled back, so it is made anew then."""
    _, (edge, _, _) = fleet
    versions = {
        "it runs": ("heir", "v3", "v4"),
        "it is given up": ("loan", "v5", "v6"),
        "it never starts": ("dud", "v7", "v8"),
    }
    name, first, second = versions[how]
    other = f"{name}-side" if how == "it is given up" else ""
    old = composed(rest, first, "one", name, "lab/edge-1")
    new = composed(rest, second, "two", name, "lab/edge-1", hold=not other, beside=other)

    def owned() -> tuple[str, str]:
        meta = edge.get(f"/apis/apps/v1/namespaces/default/statefulsets/{name}")["metadata"]
        return meta["uid"], meta["annotations"]["moorage.dev/owner"]

    def claims() -> set[str]:
        return {pod["metadata"]["labels"]["moorage.dev/claim"] for pod in pods(edge, name)}

    try:
        rest.must(202, "POST", old + "/instantiate")
        rest.until(old + "/status", lambda s: s["phase"] == "Running", 40)
        (uid, owner), claim = owned(), claims()
        rest.must(
            202, "POST", old + "/migrate", {"spec": {"targetCompositeAppVersion": second, "targetDigName": "two"}}
        )
        until(lambda: claims() and not claims() & claim, 60, "its pod is replaced")
        assert owned()[0] == uid and owned()[1] != owner
        assert rest("GET", old + "/status").body["phase"] in ("Running", "Deploying"), "it is not told that it failed"
        if how == "it runs":
            let_go(edge, name)
            rest.until(old + "/status", lambda s: s["phase"] == "Terminated", 60)
            rest.until(new + "/status", lambda s: s["phase"] == "Running", 40)
            assert owned()[0] == uid and owned()[1] != owner
        else:
            rest.must(202, "POST", new + "/terminate")
            rest.until(new + "/status", lambda s: s["phase"] == "Terminated", 60)
            until(lambda: claims() == claim, 60, "the pod is as before")
            until(lambda: owned()[1] == owner, 40, "its owner is as before")
            assert (owned()[0] == uid) == (how == "it is given up")
            rest.until(old + "/status", lambda s: s["phase"] == "Running", 40)
    finally:
        for path in (new, old):
            rest("POST", path + "/terminate")
            rest.until(path + "/status", lambda s: s["phase"] in ("Terminated", "Draft"), 60)


def test_a_drained_cluster_is_emptied_without_loss(fleet: Fleet) -> None:
    mesh, planes = fleet
    document = application("mover", [{"resource": "cpu", "requests": 1, "limits": 1}], placement={"anyOf": EDGES})
    document["spec"]["apps"][0]["manifests"] = [held("mover")]
    apply(mesh, document)
    old = until(lambda: next((p for p in planes[:2] if pods(p, "mover")), None), 60, "its pod")
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
        out, err = drain.communicate(timeout=180)
    assert drain.returncode == 0, err.decode()
    assert out.decode().strip() == f"{cluster} drained"
    assert sampling.least >= 1
    assert running(mesh, "mover")["apps"]["mover"]["clusters"] == [f"lab/{new.name}"]
    until(lambda: not pods(old, "mover"), 40, "the old pod is gone")
    assert mesh.run("cluster", "uncordon", cluster).returncode == 0
    until(lambda: mesh.http(f"/v1/clusters/{cluster}")["state"] == "Ready", 40, "it takes new things again")
