"""Devices of drivers in a simulated fleet, from outside: they are decided on, raced for by strangers, plugged in and counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from moorage_testkit.device_fleets import API, DRIVER, GPU, Json, change, why
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

BIG: Json = {
    "kind": "ResourceClass",
    "metadata": {"name": "big"},
    "spec": {
        "resourceSelector": [
            {
                "matchExpressions": [
                    {"key": "Driver", "operator": "In", "values": [DRIVER]},
                    {"key": "memory", "operator": "GtEq", "values": ["30G"]},
                ]
            }
        ]
    },
}


def slice_of(cluster: str, *names: str) -> Json:
    devices = [
        {
            "name": name,
            "attributes": {"uuid": {"string": f"{cluster}-{name}"}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for name in names
    ]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "n", "pool": pool, "devices": devices}
    return {**API, "kind": "ResourceSlice", "metadata": {"name": "gpus"}, "spec": spec}


def stranger(name: str) -> tuple[Json, Json]:
    metadata = {"name": name, "namespace": "others"}
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
    claim = {**API, "kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}
    spec = {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    return claim, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def fleet(*strangers: str, a: tuple[str, ...] = ("g0", "g1"), b: tuple[str, ...] = ("g0", "g1")) -> str:
    node = {"name": "n", "allocatable": {"cpu": "8", "memory": "32Gi"}}
    plugin = {"name": "p", "allocatable": {"cpu": "8", "memory": "32Gi", "amd.com/gpu": "2"}}
    theirs = [stranger(name) for name in strangers]
    clusters = [
        {
            "name": name,
            "provider": "lab",
            "nodes": [node],
            "objects": [GPU, slice_of(name, *devices), *(claim for claim, _ in theirs if name == "a")],
            "pods": [pod for _, pod in theirs if name == "a"],
        }
        for name, devices in (("a", a), ("b", b))
    ]
    return json.dumps({"clusters": [*clusters, {"name": "c", "provider": "lab", "nodes": [plugin]}]})


def application(name: str, pods: int, *needs: Json) -> str:
    container = {"name": "c", "image": "i"}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    consumer = {"object": {"kind": "Deployment", "name": name}, "container": "c", "needs": list(needs)}
    app = {"name": name, "manifests": [deployment], "consumers": [consumer]}
    return json.dumps({"kind": "Application", "metadata": {"name": name}, "spec": {"apps": [app]}})


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file: Path = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(fleet())
    with Mesh("--fleet", str(file)) as found:
        apply(found, json.dumps(BIG))
        yield found


@pytest.fixture(autouse=True)
def clean(mesh: Mesh) -> Iterator[None]:
    yield
    for item in mesh.http("/v1/applications")["items"]:
        mesh.run("delete", "application", item["metadata"]["name"])
    change(mesh, fleet())


def apply(mesh: Mesh, document: str) -> None:
    done = mesh.run("apply", "-f", "-", data=document.encode())
    assert done.returncode == 0, done.stderr.decode()


until = partial(wait_until, within=60)


def places(mesh: Mesh, name: str) -> dict[str, list[str]]:
    """Returns the parts that an app's slots have, by cluster."""
    found: dict[str, list[str]] = {}
    for claim in why(mesh, name).get("apps", {}).get(name, {}).get("claims", ()):
        parts = [part for slot in claim["slots"] for part in slot.get("parts", ())]
        found.setdefault(claim["cluster"], []).extend(parts)
    return {cluster: sorted(parts) for cluster, parts in found.items()}


def lacks(mesh: Mesh, name: str) -> set[tuple[str, str, str]]:
    """Returns the codes of reasons, with what is needed and what there is at most."""
    reasons = why(mesh, name).get("reasons", ())
    return {(reason["code"], reason.get("needed", ""), reason.get("free", "")) for reason in reasons}


def status(mesh: Mesh) -> tuple[str, str]:
    found = mesh.http("/v1/resource-classes/big")["status"]
    return found["allocatable"], found["requested"]


def used(mesh: Mesh, cluster: str) -> dict[str, str]:
    items = mesh.http(f"/v1/parts?class=big&cluster={cluster}")["items"]
    return {item["id"].rpartition("/")[2]: item["used"]["GPU_EXAMPLE_COM"] for item in items}


def test_pods_get_the_devices_of_their_slots(mesh: Mesh) -> None:
    apply(mesh, application("own", 2, {"class": "big"}))
    until(lambda: why(mesh, "own")["phase"] == "Running")
    assert places(mesh, "own") == {"lab/a": [f"{DRIVER}/n/g0", f"{DRIVER}/n/g1"]}
    warnings = [warning["code"] for warning in why(mesh, "own").get("warnings", ())]
    assert "ChosenByKubelet" not in warnings, "the claims are pinned, so no kubelet chooses"
    until(lambda: status(mesh) == ("4", "2"))
    until(lambda: used(mesh, "lab/a") == {"g0": "1", "g1": "1"})
    items = mesh.http("/v1/parts?class=gpu")["items"]
    assert {item["properties"]["uuid"] for item in items} == {"a-g0", "a-g1", "b-g0", "b-g1"}, (
        "a DeviceClass of clusters"
    )


def test_who_loses_the_race_for_a_device_is_placed_elsewhere(mesh: Mesh) -> None:
    assert mesh.run("fleet", "fault", "lab/a", "refuse").returncode == 0  # its pods do not start yet
    apply(mesh, application("late", 2, {"class": "big"}))
    until(lambda: "lab/a" in places(mesh, "late"))
    change(mesh, fleet("s", "t"))  # also ends the fault: the strangers are there before them
    until(lambda: places(mesh, "late") == {"lab/b": [f"{DRIVER}/n/g0", f"{DRIVER}/n/g1"]})
    subject = "moorage.events.decisions.pending.default.late.v1.default"
    until(lambda: "Displaced" in str(mesh.http(f"/v1/events?follow=false&subject={subject}")["items"]))
    until(lambda: why(mesh, "late")["phase"] == "Running")
    until(lambda: status(mesh) == ("4", "4"))


def test_who_waits_gets_devices_that_are_plugged_in(mesh: Mesh) -> None:
    change(mesh, fleet(a=("g0",), b=("g0",)))
    apply(mesh, application("wide", 1, {"name": "gpus", "class": "big", "count": 2}))
    until(lambda: why(mesh, "wide")["phase"] == "Pending")
    until(lambda: ("PartMissing", "2", "1") in lacks(mesh, "wide"))
    change(mesh, fleet(a=("g0",), b=("g0", "g1")))
    until(lambda: why(mesh, "wide")["phase"] == "Running")
    assert places(mesh, "wide") == {"lab/b": [f"{DRIVER}/n/g0", f"{DRIVER}/n/g1"]}


def cards(*names: str) -> list[Json]:
    """Cards like c0 and their halves like c0a, which only their memory tells apart."""
    devices = [
        {
            "name": name,
            "capacity": {"memory": {"value": "80Gi" if len(name) == 2 else "40Gi"}},
            "consumesCounters": [
                {"counterSet": name[:2], "counters": {"slices": {"value": "2" if len(name) == 2 else "1"}}}
            ],
        }
        for name in names
    ]
    sets = [{"name": name, "counters": {"slices": {"value": "2"}}} for name in names if len(name) == 2]
    spec = {"driver": DRIVER, "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}}
    slices = [
        {**API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": {**spec, **more}}
        for name, more in (("devices", {"devices": devices}), ("counters", {"sharedCounters": sets}))
    ]
    node = {"name": "n", "allocatable": {"cpu": "8", "memory": "32Gi"}}
    return [{"name": "a", "provider": "lab", "nodes": [node], "objects": [GPU, *slices]}]


def together(**pods: int) -> str:
    """Returns an application of Deployments whose pods have one claim together, with so many pods each."""
    devices = {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}
    claim = {**API, "kind": "ResourceClaim", "metadata": {"name": "joint"}, "spec": {"devices": devices}}
    manifests = [claim]
    for name, count in pods.items():
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "joint"}],
            },
        }
        spec = {"replicas": count, "selector": {"matchLabels": {"app": name}}, "template": template}
        manifests.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
    apps = [{"name": "both", "manifests": manifests}]
    return json.dumps({"kind": "Application", "metadata": {"name": "both"}, "spec": {"apps": apps}})


def test_pods_that_have_a_claim_together_come_and_go(mesh: Mesh) -> None:
    def holders() -> dict[str, int]:
        """Returns the objects whose slots have the device, with the pods of all their slots."""
        claims = why(mesh, "both")["apps"]["both"].get("claims", ())
        return {
            claim["object"]: sum(slot.get("count", 1) for slot in claim["slots"])
            for claim in claims
            if any(slot.get("parts") for slot in claim["slots"])
        }

    def runs(revision: int) -> bool:
        found = why(mesh, "both")
        return bool(found["phase"] == "Running" and found["revision"] == revision and "pendingRevision" not in found)

    steps: list[tuple[dict[str, int], dict[str, int]]] = [
        ({"x": 2, "y": 1}, {"Deployment/x": 2}),
        ({"x": 4, "y": 2}, {"Deployment/x": 4}),
        ({"x": 1, "y": 2}, {"Deployment/x": 1}),
        ({"x": 3}, {"Deployment/x": 3}),
        ({"x": 3, "y": 2}, {"Deployment/x": 3}),
        ({"x": 0, "y": 2}, {"Deployment/y": 2}),
        ({"x": 2, "y": 2}, {"Deployment/y": 2}),
        ({"x": 1}, {"Deployment/x": 1}),
    ]
    for number, (pods, found) in enumerate(steps, 1):
        apply(mesh, together(**pods))
        until(lambda number=number: runs(number))  # type: ignore[misc]
        until(lambda found=found: holders() == found)  # type: ignore[misc]
        until(lambda: used(mesh, "lab/a") == {"g0": "1", "g1": "0"})
    path = "/v1/decisions?all=true&group=default/both/v1/default"
    until(lambda: len(mesh.http(path)["items"]) >= len(steps))
    outcomes = {found["outcome"] for found in mesh.http(path)["items"]}
    assert outcomes == {"Replaced", "Current"}, "none was displaced"


def test_pods_get_parts_of_cards_without_names_that_the_scheduler_gives_them(mesh: Mesh) -> None:
    """The first pod would get a whole card if one of the pods were to have the other: the group would be displaced for ever."""
    change(mesh, json.dumps({"clusters": cards("c0", "c0a", "c0b", "c1", "c1a", "c1b")}))
    apply(mesh, application("halves", 3, {"class": "gpu"}))
    until(lambda: why(mesh, "halves")["phase"] == "Running")
    halves = [f"{DRIVER}/n/{name}" for name in ("c0a", "c0b", "c1a")]
    assert places(mesh, "halves") == {"lab/a": halves}
    until(lambda: set(used_of_driver(mesh)) == set(halves))
    subject = "moorage.events.decisions.pending.default.halves.v1.default"
    assert "Displaced" not in str(mesh.http(f"/v1/events?follow=false&subject={subject}")["items"])
    change(mesh, json.dumps({"clusters": cards("c0", "c0a", "c0b", "c1")}))
    apply(mesh, application("cards", 3, {"class": "gpu"}))
    mesh.run("delete", "application", "halves")
    until(
        lambda: ("PartShort", "3", "2") in lacks(mesh, "cards"), "two get the cards, and nothing keeps them from these"
    )


def used_of_driver(mesh: Mesh) -> list[str]:
    items = mesh.http("/v1/parts?limit=100")["items"]
    return [i["id"] for i in items if (i.get("used") or {}).get("GPU_EXAMPLE_COM", "0") != "0"]


def test_devices_of_plugins_are_chosen_by_the_kubelet(mesh: Mesh) -> None:
    cards = json.dumps(
        {
            "kind": "ResourceClass",
            "metadata": {"name": "cards"},
            "spec": {
                "resourceSelector": [{"matchExpressions": [{"key": "Kind", "operator": "Eq", "values": ["amd-gpu"]}]}]
            },
        }
    )
    apply(mesh, cards)
    apply(mesh, application("plain", 1, {"class": "cards", "count": 2}))
    until(lambda: why(mesh, "plain")["phase"] == "Running")
    warnings = {warning["code"]: warning["message"] for warning in why(mesh, "plain")["warnings"]}
    assert "which amd.com/gpu" in warnings["ChosenByKubelet"]
