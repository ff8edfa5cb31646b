"""Workers that are killed in the middle of a move off a failed device: it is carried out all the same, once."""

from __future__ import annotations

import json

import pytest

from moorage_testkit.device_fleets import application, change, fleet, places, run, runs_on, until, used
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
