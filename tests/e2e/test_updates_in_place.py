"""Updates in place on clusters that are full: simulated clusters roll out as Kubernetes does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application, group
from moorage_testkit.polling import wait_until

#: By test, the number of its clusters.
CLUSTERS = {"more": 1, "image": 2, "daemon": 1, "surge": 1, "single": 1, "both": 1, "back": 1, "steered": 1}
EIGHT = {"cpu": "8", "memory": "16Gi", "pods": "110"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Each test has clusters of its own."""
    clusters = [
        {
            "name": f"{name}-{i}",
            "provider": "lab",
            "nodes": [
                {"name": "n", "count": 2 if name == "daemon" else 1, "allocatable": EIGHT},
                *(
                    [{"name": "small", "labels": {"size": "small"}, "allocatable": EIGHT | {"cpu": "4"}}]
                    if name == "steered"
                    else []
                ),
            ],
            "behaviour": {"readyDelayMs": 50},
        }
        for name, count in CLUSTERS.items()
        for i in range(count)
    ]
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(json.dumps({"clusters": clusters}))
    with Mesh("--fleet", str(file)) as found:
        yield found


def poll(condition: Callable[[], Any], seconds: float, what: Callable[[], str]) -> Any:
    return wait_until(condition, what, seconds)


def document(name: str, kind: str, cpu: int, pods: int = 1, image: str = "i:1", **spec: Any) -> dict[str, Any]:
    made = application(name, cpu=str(cpu), pods=pods, image=image)
    (app,) = made["spec"]["apps"]
    manifest = app["manifests"][0]
    manifest["kind"] = app["consumers"][0]["object"]["kind"] = kind
    manifest["spec"] |= spec
    if kind == "DaemonSet":
        del manifest["spec"]["replicas"]
    app["placement"] = {"allOf": [{"anyOf": [{"cluster": f"lab/{name}-{i}"} for i in range(CLUSTERS[name])]}]}
    return made


def apply(mesh: Mesh, made: dict[str, Any]) -> int:
    revision: int = mesh.http("/v1/apply", made)["revision"]
    return revision


def why(mesh: Mesh, name: str) -> dict[str, Any]:
    found: dict[str, Any] = mesh.http(f"/v1/groups/{group(name)}/why")
    return found


def run(mesh: Mesh, made: dict[str, Any]) -> dict[str, Any]:
    """Applies the document and waits until it runs, and only its newest claims count."""
    name, revision = made["metadata"]["name"], apply(mesh, made)

    def runs() -> dict[str, Any] | None:
        found = why(mesh, name)
        return found if (found.get("revision"), found["phase"]) == (revision, "Running") else None

    found: dict[str, Any] = poll(runs, 60, lambda: f"{name} runs in revision {revision}: {why(mesh, name)}")
    return found


def cluster(found: dict[str, Any]) -> str:
    (name,) = found["apps"]["web"]["clusters"]
    return str(name)


def free(mesh: Mesh, name: str) -> int:
    return int(mesh.http(f"/v1/clusters/{name}")["free"]["cpu"])


def until_free(mesh: Mesh, name: str, cpu: int) -> None:
    poll(lambda: free(mesh, name) == cpu, 60, lambda: f"{name} has {free(mesh, name)} free, not {cpu}")


def test_more_pods_find_room_beside_those_that_stay(mesh: Mesh) -> None:
    first = run(mesh, document("more", "Deployment", 4))
    claim = mesh.http(f"/v1/decisions?group={group('more')}")["items"][0]["claims"][0]["id"]
    second = run(mesh, document("more", "Deployment", 4, pods=2))
    assert cluster(first) == cluster(second)
    until_free(mesh, "lab/more-0", 0)
    assert mesh.http(f"/v1/decisions?group={group('more')}")["items"][0]["claims"][0]["id"] == claim
    run(mesh, document("more", "Deployment", 4))
    until_free(mesh, "lab/more-0", 4)


def test_a_stateful_set_that_fills_its_cluster_gets_new_images_there(mesh: Mesh) -> None:
    home = cluster(run(mesh, document("image", "StatefulSet", 3, pods=2)))
    for number in range(2, 5):
        assert cluster(run(mesh, document("image", "StatefulSet", 3, pods=2, image=f"i:{number}"))) == home
    until_free(mesh, home, 2)


def test_a_daemon_set_that_fills_its_cluster_gets_new_images_there(mesh: Mesh) -> None:
    run(mesh, document("daemon", "DaemonSet", 6))
    run(mesh, document("daemon", "DaemonSet", 6, image="i:2"))
    run(mesh, document("daemon", "DaemonSet", 8, image="i:3"))
    until_free(mesh, "lab/daemon-0", 0)


def test_a_surge_without_room_is_left_out_where_pods_may_be_missing(mesh: Mesh) -> None:
    run(mesh, document("surge", "Deployment", 2, pods=4))
    second = run(mesh, document("surge", "Deployment", 2, pods=4, image="i:2"))
    assert "SurgeLeftOut" in {warning["code"] for warning in second["warnings"]}
    until_free(mesh, "lab/surge-0", 0)


def test_a_surge_without_room_is_refused_where_no_pod_may_be_missing(mesh: Mesh) -> None:
    run(mesh, document("single", "Deployment", 5))
    revision = apply(mesh, document("single", "Deployment", 5, image="i:2"))
    found = poll(
        lambda: (w := why(mesh, "single")).get("pendingRevision") == revision and "SurgeShort" in str(w) and w,
        60,
        lambda: f"{why(mesh, 'single')}",
    )
    assert found["phase"] == "Running"
    (reason,) = (r for r in found["reasons"] if r["code"] == "SurgeShort")
    assert (reason["needed"], reason["free"]) == ("1", "0") and "maxSurge 1" in reason["message"]
    run(mesh, document("single", "Deployment", 5, image="i:2", strategy={"type": "Recreate"}))
    until_free(mesh, "lab/single-0", 3)


def test_number_and_size_change_at_once(mesh: Mesh) -> None:
    run(mesh, document("both", "StatefulSet", 3, pods=2))
    run(mesh, document("both", "StatefulSet", 2, pods=3))
    until_free(mesh, "lab/both-0", 2)
    run(mesh, document("both", "StatefulSet", 4, pods=2))
    until_free(mesh, "lab/both-0", 0)


def test_a_rollback_needs_no_more_room_than_the_update_did(mesh: Mesh) -> None:
    run(mesh, document("back", "StatefulSet", 5))
    run(mesh, document("back", "StatefulSet", 7))
    ran = mesh.run("rollback", "back", "--revision", "1")
    assert ran.returncode == 0, ran.stderr
    until_free(mesh, "lab/back-0", 3)


def test_more_pods_on_further_nodes_start_although_no_other_room_is_left(mesh: Mesh) -> None:
    """The pods are confined to their nodes. A further node changes the template, and none of the pods may be missing while they
    are started again."""

    def steered(pods: int) -> dict[str, Any]:
        made = document("steered", "Deployment", 4, pods=pods)
        made["spec"]["apps"][0]["steering"] = "required"
        made["spec"]["apps"][0]["manifests"][0]["spec"]["strategy"] = {
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}
        }
        return made

    def slots() -> dict[str, int]:
        (decision,) = mesh.http(f"/v1/decisions?group={group('steered')}")["items"]
        return {slot["node"]: slot.get("count", 1) for slot in decision["claims"][0]["slots"]}

    first = application("blocks", cpu="4")
    first["spec"]["apps"][0]["placement"] = {"allOf": [{"anyOf": [{"cluster": "lab/steered-0"}]}]}
    first["spec"]["apps"][0]["manifests"][0]["spec"]["template"]["spec"]["nodeSelector"] = {"size": "small"}
    run(mesh, first)
    run(mesh, steered(2))
    assert slots() == {"n": 2}
    mesh.http("/v1/applications/default/blocks", method="DELETE")
    until_free(mesh, "lab/steered-0", 4)
    run(mesh, steered(3))
    assert slots() == {"n": 2, "small": 1}
    until_free(mesh, "lab/steered-0", 0)
    used = poll(
        lambda: (found := mesh.http("/v1/clusters/lab/steered-0")["used"])["pods"] == "3" and found,
        40,
        lambda: "3 pods",
    )
    assert used["cpu"] == "12"
