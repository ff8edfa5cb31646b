"""Types that live in slots of another on a real cluster: guests made with kubectl and an application of the mesh share slots, while the worker
`slots` is killed each time it has given some."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage.machine_groups.names import MACHINE_GROUP, MACHINE_TYPE
from moorage_testkit.failpoints import Failpoints

from .test_machines_fleet import MACHINES, RUNNING, TEAM, Fleet, application, document, fleet, until

HALF = {"name": "half", "spec": {"dependence": {"machineType": "small", "availableRatio": 0.5}}, "available": 5}


class Cluster:
    """The only cluster of a mesh, with three slots, in which at most five halves live."""

    def __init__(self, found: Fleet, failpoints: Failpoints) -> None:
        self.fleet, self.failpoints = found, failpoints
        (self.real,) = found.clusters

    def running(self) -> Counter[str]:
        """Returns how many guests are on the Node by type: never more than slots hold."""
        pods = self.real.call("GET", RUNNING)["items"]
        guests = [p["metadata"]["labels"] for p in pods if p["spec"].get("nodeName")]
        counts = Counter(
            labels[MACHINE_TYPE] for labels in guests if labels["imperator.tenzen-y.io/pod-role"] == "guest"
        )
        assert counts["small"] + math.ceil(counts["half"] / 2) <= 3 and counts["half"] <= 5, counts
        return counts

    def usage(self) -> dict[str, tuple[int, int, int, int]]:
        return self.real.usage("shared")

    def guest(self, name: str, kind: str) -> None:
        self.real.pod(TEAM, name, {MACHINE_GROUP: "shared", MACHINE_TYPE: kind})

    def killed_while(self, change: Callable[[], object], **wanted: int) -> None:
        """Makes a change for which slots are given, kills `slots` once they are in the log, and waits for the guests."""
        self.failpoints.arm("slots.committed")
        change()
        until(lambda: self.failpoints.happened("slots.committed"), 60, "slots was killed")
        until(lambda: self.running() == wanted, 90, f"{wanted} run")


def check(cluster: Cluster) -> None:
    found = cluster.fleet
    machine = document(3, cluster.real.plane.name)
    machine["spec"]["machineTypes"].append(HALF)
    found.apply(machine)
    until(lambda: cluster.real.find(f"{MACHINES}/shared"), 60, "its Machine is written")
    until(lambda: cluster.usage() == {"small": (3, 3, 0, 0), "half": (5, 5, 0, 0)}, 60, "slots are held")
    halves = application("halves", 3)
    halves["spec"]["apps"][0]["consumers"][0]["needs"] = [{"machine": "shared/half"}]
    cluster.killed_while(lambda: found.apply(halves), half=3)
    cluster.killed_while(lambda: cluster.guest("mine", "half"), half=4)
    until(lambda: cluster.usage() == {"small": (3, 1, 2, 0), "half": (5, 1, 4, 0)}, 60, "they are counted")
    cluster.killed_while(lambda: cluster.guest("whole", "small"), half=4, small=1)
    # There are no more than five halves, and no room is left for one.
    cluster.guest("late", "half")
    until(lambda: cluster.usage() == {"small": (3, 0, 3, 0), "half": (5, 0, 4, 1)}, 60, "it waits")
    cluster.killed_while(lambda: cluster.real.delete_pod(TEAM, "whole"), half=5)
    until(lambda: cluster.usage() == {"small": (3, 0, 3, 0), "half": (5, 0, 5, 0)}, 60, "all are used")

    def delete() -> None:
        done = found.mesh.run("delete", "application", "halves")
        assert done.returncode == 0, done.stderr.decode()

    cluster.guest("waits", "small")
    cluster.killed_while(delete, half=2, small=1)
    cluster.real.delete_pod(TEAM, "mine")
    cluster.real.delete_pod(TEAM, "late")
    until(lambda: cluster.usage() == {"small": (3, 2, 1, 0), "half": (5, 4, 0, 0)}, 60, "slots are whole again")

    def guests() -> list[tuple[str, str]]:
        return [(guest["name"], guest["state"]) for guest in found.mesh.http("/v1/guests")["items"]]

    until(lambda: guests() == [("waits", "used")], 60, "the mesh knows")


@pytest.mark.long
def test_guests_and_an_application_share_slots_while_the_worker_that_gives_them_is_killed(tmp_path: Path) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    with fleet("edge", environment=failpoints.environment) as found:
        check(Cluster(found, failpoints))
