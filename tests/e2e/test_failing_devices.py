"""Devices of a simulated fleet that fail: pods get others of their node, of their cluster, or of another cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_testkit.device_fleets import DRIVER, Json, application, change, fleet, places, run, runs_on, until, why
from moorage_testkit.mesh import Mesh


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file: Path = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(fleet())
    with Mesh("--fleet", str(file)) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(mesh: Mesh) -> Iterator[None]:
    yield
    for item in mesh.http("/v1/applications")["items"]:
        mesh.run("delete", "application", item["metadata"]["name"])
    change(mesh, fleet())


def reason(mesh: Mesh, name: str, code: str) -> Json:
    until(lambda: code in [r["code"] for r in why(mesh, name).get("reasons") or ()], f"{name} says {code}")
    return next(r for r in why(mesh, name)["reasons"] if r["code"] == code)


def events(mesh: Mesh, subject: str) -> list[Json]:
    return [event["data"] for event in mesh.http(f"/v1/events?follow=false&subject={subject}")["items"]]


def test_slots_leave_failed_devices_for_others_of_their_node_and_then_of_their_cluster(mesh: Mesh) -> None:
    closed = {"o/g0": "NoSchedule", "o/g1": "NoSchedule"}
    change(mesh, fleet(closed))
    run(mesh, "apply", "-f", "-", data=application("mover", 1))
    until(lambda: places(mesh, "mover"), "it is placed")
    runs_on(mesh, "mover", "lab/a", *places(mesh, "mover")["lab/a"])
    (first,) = places(mesh, "mover")["lab/a"]
    node = first.partition("/")[0]
    (other,) = {"n", "m"} - {node}
    assert "decisions.moved" not in run(mesh, "describe", "application", "mover")
    # Kubernetes ends the pod of a taint; nobody but the mesh ends that of a device that is gone.
    change(mesh, fleet({**closed, first: "NoExecute"}))
    (second,) = {f"{node}/g0", f"{node}/g1"} - {first}
    runs_on(mesh, "mover", "lab/a", second)
    change(mesh, fleet({**closed, first: "NoExecute", second: "gone", f"{other}/g0": "NoSchedule"}))
    runs_on(mesh, "mover", "lab/a", f"{other}/g1")
    wanted = [
        ({f"{DRIVER}/{first}": "it has the taint broken:NoExecute"}, [f"{DRIVER}/{second}"], {"node": 1}),
        ({f"{DRIVER}/{second}": "it is gone"}, [f"{DRIVER}/{other}/g1"], {"cluster": 1}),
    ]

    def moved() -> list[tuple[Json, list[str], Json]]:
        found = [e for e in events(mesh, "moorage.events.decisions.moved.>") if e["group"].startswith("default/mover/")]
        return [(m["left"], m["taken"], m["outcome"]) for e in found for m in e["moves"]]

    until(lambda: moved() == wanted, "both moves are told")
    shown = run(mesh, "describe", "application", "mover")
    assert "decisions.moved" in shown and f"Deployment/mover leaves {DRIVER}/{second} (it is gone)" in shown

    def told(change: str) -> set[str]:
        return {part for e in events(mesh, "moorage.events.fleet.devices.lab.a") for part in e.get(change, ())}

    until(lambda: f"{DRIVER}/{first}" in told("failed"), "the failure is told")
    until(lambda: f"{DRIVER}/{second}" in told("removed"), "the removal is told")
    until(lambda: f"{DRIVER}/{other}/g0" in told("closed"), "the taint is told")
    assert f"{DRIVER}/{other}/g0" not in told("failed"), "its pods stay"


def test_a_slot_that_moves_has_the_class_of_that_time(mesh: Mesh) -> None:
    """The same for devices of a resource class, of which decisions look up the selector."""
    condition = {"key": "Kind", "operator": "In", "values": [DRIVER]}
    document = {"kind": "ResourceClass", "spec": {"resourceSelector": [{"matchExpressions": [condition]}]}}
    document["metadata"] = {"name": "fast", "annotations": {"moorage.dev/algorithm": "best-fit"}}

    def decision() -> Json:
        (found,) = mesh.http("/v1/decisions?group=default/of-class/v1/default")["items"]
        return dict(found)

    def classes() -> Json:
        (claim,) = decision()["claims"]
        assert {grant["resourceClass"] for slot in claim["slots"] for grant in slot["devices"]} == {"fast"}
        found: Json = claim["classes"]["fast"]
        return found

    def uid() -> str:
        return str(mesh.http("/v1/resource-classes/fast")["metadata"]["uid"])

    run(mesh, "apply", "-f", "-", data=json.dumps(document))
    run(mesh, "apply", "-f", "-", data=application("of-class", 1, "fast"))
    until(lambda: places(mesh, "of-class"), "it is placed")
    ((cluster, (first,)),) = places(mesh, "of-class").items()
    runs_on(mesh, "of-class", cluster, first)
    before, decided, old = classes(), decision()["id"], uid()
    assert (before["uid"], before["algorithm"]) == (old, "best-fit")
    run(mesh, "delete", "resourceclass", "fast")
    run(mesh, "apply", "-f", "-", data=json.dumps(document))
    assert classes() == before and uid() != old
    change(mesh, fleet({first: "NoExecute"}))
    until(lambda: places(mesh, "of-class")[cluster] != [first], "the slot leaves the device")
    runs_on(mesh, "of-class", cluster, *places(mesh, "of-class")[cluster])
    # Its cluster has another device, so no further decision was needed.
    assert decision()["id"] == decided and classes() == {**before, "uid": uid()}
    run(mesh, "delete", "resourceclass", "fast")


def test_where_the_cluster_has_no_other_device_the_app_moves(mesh: Mesh) -> None:
    closed = {f"{node}/{name}": "NoSchedule" for node in ("n", "m", "o") for name in ("g0", "g1")}
    change(mesh, fleet({part: effect for part, effect in closed.items() if part != "n/g0"}))
    run(mesh, "apply", "-f", "-", data=application("leaver", 1))
    runs_on(mesh, "leaver", "lab/a", "n/g0")
    # Nothing in the fleet fits: it says so, with the device.
    change(mesh, fleet({**closed, "n/g0": "NoExecute"}))
    found = reason(mesh, "leaver", "DeviceFailed")
    assert found["needed"] == "1" and f"{DRIVER}/n/g0 (it has the taint broken:NoExecute)" in found["message"]
    until(lambda: why(mesh, "leaver")["phase"] == "Degraded", "it is degraded")
    left = {part: effect for part, effect in closed.items() if part != "o/g1"}
    change(mesh, fleet({**left, "n/g0": "NoExecute"}))
    runs_on(mesh, "leaver", "lab/b", "o/g1")


def test_when_most_devices_fail_at_once_nothing_moves_until_somebody_says_so(mesh: Mesh) -> None:
    closed = {
        "o/g0": "NoSchedule",
        "o/g1": "NoSchedule",
        "n/g1": "NoSchedule",
        "m/g0": "NoSchedule",
        "m/g1": "NoSchedule",
    }
    change(mesh, fleet(closed))
    run(mesh, "apply", "-f", "-", data=application("stays", 1))
    runs_on(mesh, "stays", "lab/a", "n/g0")
    restarts = {"n/g0": "NoExecute", "n/g1": "NoExecute", "m/g0": "NoExecute"}
    change(mesh, fleet({**restarts, "o/g0": "NoSchedule"}))
    found = reason(mesh, "stays", "MassFailure")
    assert (found["needed"], found["free"]) == ("3", "1") and "moorage devices move lab/a" in found["message"]
    time.sleep(1)
    assert places(mesh, "stays") == {"lab/a": ["n/g0"]}
    # They are back, and it goes on where it was.
    change(mesh, fleet({"o/g0": "NoSchedule"}))
    runs_on(mesh, "stays", "lab/a", "n/g0")
    wanted = [
        {"kind": DRIVER, "massFailure": "began", "failed": 3, "of": 4},
        {"kind": DRIVER, "massFailure": "ended"},
    ]

    def told() -> list[Json]:
        return [e for e in events(mesh, "moorage.events.fleet.devices.lab.a") if "massFailure" in e]

    until(lambda: told() == wanted, "its begin and end are told")
    change(mesh, fleet({**restarts, "o/g0": "NoSchedule"}))
    reason(mesh, "stays", "MassFailure")
    assert "no mass failure" in run(mesh, "devices", "move", "lab/a", "--kind", "another")
    assert DRIVER in run(mesh, "devices", "move", "lab/a")
    runs_on(mesh, "stays", "lab/a", "m/g1")
    until(lambda: "/v1/devices/move" in json.dumps(events(mesh, "moorage.events.audit.>")), "it is in the audit log")
    assert mesh.run("devices", "move", "lab/nowhere").returncode != 0
