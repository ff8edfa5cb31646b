"""Workers that are killed in the middle of a move off a failed device: it is carried out all the same, once."""

from __future__ import annotations

import json

import pytest

from moorage_testkit.device_fleets import application, change, fleet, places, run, runs_on, until, used, why
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.mesh import Mesh

from .conftest import MakeMesh

CLOSED = {"o/g0": "NoSchedule", "o/g1": "NoSchedule"}


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    return make_mesh(json.loads(fleet(CLOSED)), "--workers", "merger=2", environment=failpoints.environment)


@pytest.mark.parametrize("point", ["merger.settling", "merger.settled", "patcher.asked", "patcher.desired"])
def test_a_move_survives_whoever_makes_it(mesh: Mesh, failpoints: Failpoints, point: str) -> None:
    """The merger between ledger and desired state, and the patcher before and after it stores that."""
    name = point.replace(".", "-")
    run(mesh, "apply", "-f", "-", data=application(name, 1))
    until(lambda: places(mesh, name), "it is placed")
    (first,) = places(mesh, name)["lab/a"]
    runs_on(mesh, name, "lab/a", first)
    node = first.partition("/")[0]
    (other,) = {f"{node}/g0", f"{node}/g1"} - {first}
    failpoints.arm(point)
    change(mesh, fleet({**CLOSED, first: "NoExecute"}))
    until(lambda: failpoints.happened(point), f"somebody comes to {point}")
    runs_on(mesh, name, "lab/a", other)
    subject = f"moorage.events.decisions.moved.default.{name}.v1.default"
    until(lambda: mesh.http(f"/v1/events?follow=false&subject={subject}")["items"], "it is told")
    (event,) = mesh.http(f"/v1/events?follow=false&subject={subject}")["items"]
    (move,) = event["data"]["moves"]
    assert [part.partition("/")[2] for part in (*move["left"], *move["taken"])] == [first, other]
    run(mesh, "delete", "application", name)
    until(lambda: not used(mesh), "its device is given back")
    change(mesh, fleet(CLOSED))


ZONES, CORES = 2, 4
NESTED_CLASSES = ("numa-node", "single-core")


def nested() -> str:
    """Returns the fleet with one more cluster, whose node has zones with exclusive cores: a whole zone, or its cores one by one."""
    zones = [
        {"name": f"zone-{z}", "kind": "numa-node", "consumes": {f"cores-{z}": {"cores": CORES}}} for z in range(ZONES)
    ]
    cores = [
        {"name": f"core-{z}-{i}", "kind": "single-core", "consumes": {f"cores-{z}": {"cores": 1}}}
        for z in range(ZONES)
        for i in range(CORES)
    ]
    node = {
        "name": "p",
        "allocatable": {"cpu": "16", "memory": "32Gi"},
        "counters": {f"cores-{z}": {"cores": CORES} for z in range(ZONES)},
        "devices": [*zones, *cores],
    }
    found = json.loads(fleet(CLOSED))
    found["clusters"].append({"name": "c", "provider": "lab", "nodes": [node]})
    return json.dumps(found)


def resource_class(kind: str) -> str:
    conditions = [{"key": "Kind", "operator": "Eq", "values": [kind]}]
    spec = {"resourceSelector": [{"matchExpressions": conditions}]}
    return json.dumps({"kind": "ResourceClass", "metadata": {"name": kind}, "spec": spec})


def zones_of(mesh: Mesh, name: str) -> list[str]:
    """Returns the zones of which an app has all or a core, once for each device."""
    return [part.rpartition("/")[2].split("-")[1] for part in places(mesh, name).get("lab/c", ())]


def runs_with(mesh: Mesh, name: str, devices: int) -> None:
    until(lambda: len(zones_of(mesh, name)) == devices, f"{name} has its devices")
    until(lambda: why(mesh, name)["phase"] == "Running", f"{name} runs")


@pytest.mark.parametrize("point", ["merger.answered", "merger.committed", "patcher.desired"])
def test_a_whole_and_what_it_consists_of_are_never_both_given(mesh: Mesh, failpoints: Failpoints, point: str) -> None:
    """Each decision loses a worker. A zone that is given away as a whole has no core left, and the other way round."""
    change(mesh, nested())
    run(mesh, "apply", "-f", "-", data="\n---\n".join(map(resource_class, NESTED_CLASSES)))
    of = point.replace(".", "-")
    whole, cores, late = (f"{what}-{of}" for what in ("whole", "cores", "late"))
    for name, pods, kind in ((whole, 1, "numa-node"), (cores, 3, "single-core")):
        failpoints.arm(point)
        run(mesh, "apply", "-f", "-", data=application(name, pods, kind))
        until(lambda: failpoints.happened(point), f"somebody comes to {point}")
        runs_with(mesh, name, pods)
    (taken,) = zones_of(mesh, whole)
    assert set(zones_of(mesh, cores)) == {str(1 - int(taken))}
    run(mesh, "apply", "-f", "-", data=application(late, 1, "numa-node"))
    until(lambda: "PartShort" in {reason["code"] for reason in why(mesh, late).get("reasons") or ()}, "no zone is free")
    run(mesh, "delete", "application", cores)
    until(lambda: zones_of(mesh, late) == [str(1 - int(taken))], "the zone is free as a whole again")
    for name in (whole, late):
        run(mesh, "delete", "application", name)
    until(lambda: mesh.http("/v1/applications")["items"] == [], "all are gone")
    change(mesh, fleet(CLOSED))
