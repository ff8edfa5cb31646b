"""Clusters fall silent, are slow, refuse objects, lose pods or replay old reports: phases and reasons show it, claims are
kept while the state is unknown, and everything recovers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorage.bus import subjects
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, room

from .conftest import MakeMesh

FLEET = fleet(5, 8)
#: Longer than any test: tests end faults by applying the fleet again.
FOR_EVER = 600


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(FLEET)


async def fault(driver: MeshClient, cluster: str, what: str, seconds: float = FOR_EVER) -> None:
    asked = {"cluster": cluster, "fault": what, "seconds": seconds}
    answer = await driver.ask(subjects.SIM_FAULT, asked)
    assert answer.get("accepted"), answer


async def end_faults(driver: MeshClient) -> None:
    answer = await driver.ask(subjects.SIM_APPLY, FLEET, timeout=20)
    assert answer.get("accepted"), answer


async def cluster(driver: MeshClient, ident: str) -> dict[str, Any]:
    found: dict[str, Any] = await driver.http(f"/v1/clusters/{ident}")
    return found


async def until_state(driver: MeshClient, ident: str, state: str) -> None:
    async def reached() -> bool:
        reported: str = (await cluster(driver, ident))["state"]
        return reported == state

    await eventually(reached, 40, f"{ident} is {state}")


async def why(driver: MeshClient, name: str, code: str) -> dict[str, Any]:
    """Waits for a reason with this code and returns the first."""
    found: list[dict[str, Any]] = []

    async def has_reason() -> bool:
        found[:] = [r for r in (await driver.why(name)).get("reasons", []) if r["code"] == code]
        return bool(found)

    await eventually(has_reason, 40, f"{name} says {code}")
    return found[0]


async def ended(driver: MeshClient, *names: str) -> None:
    await driver.delete(names)

    async def free() -> bool:
        clusters = [await cluster(driver, f"lab/c-{i}") for i in range(5)]
        return not driver.ledger.claims and {c["free"]["cpu"] for c in clusters} == {"8"}

    await eventually(free, 40, "all room is free again")
    assert await driver.violations(room(FLEET)) == []


async def test_a_silent_cluster_keeps_its_claims_and_gets_no_new_ones(driver: MeshClient) -> None:
    here = "lab/c-0"
    await driver.apply(application("before", on=here))
    await driver.until_phase("before", "Running")
    claims = dict(driver.ledger.claims)
    await fault(driver, here, "silent")
    await until_state(driver, here, "Stale")
    await driver.apply(application("during", on=here))
    await driver.apply(application("anywhere"))
    await driver.until_phase("during", "Pending")
    assert here in (await why(driver, "during", "ClusterStale"))["samples"]
    await driver.until_phase("anywhere", "Running")
    assert (await driver.why("anywhere"))["apps"]["web"]["clusters"] != [here]
    assert claims.keys() <= driver.ledger.claims.keys(), "nobody knows that its pods are gone"
    # Removals on it wait, and its claims stay.
    await driver.ask(subjects.INTENTS_ACT, {"group": "default/before/v1/default", "verb": "terminate"})
    await driver.until_phase("before", "Terminating")
    assert claims.keys() <= driver.ledger.claims.keys()
    await end_faults(driver)
    await until_state(driver, here, "Ready")
    await driver.until_phase("during", "Running")
    await driver.until_phase("before", "Terminated")
    await ended(driver, "before", "during", "anywhere")


async def test_a_slow_cluster_completes(driver: MeshClient) -> None:
    here = "lab/c-1"
    await fault(driver, here, "slow")
    await driver.apply(application("slow", on=here))
    await driver.until_phase("slow", "Deploying", "Running")  # it deploys for two seconds only
    assert not (await driver.why("slow")).get("reasons")
    await driver.until_phase("slow", "Running")
    assert (await cluster(driver, here))["state"] == "Ready", "late is not silent"
    await end_faults(driver)
    await ended(driver, "slow")


async def test_a_cluster_that_refuses_objects_degrades_the_group_until_it_accepts(driver: MeshClient) -> None:
    here = "lab/c-2"
    await fault(driver, here, "refuse")
    await driver.apply(application("refused", on=here))
    await driver.until_phase("refused", "Degraded")
    reason = await why(driver, "refused", "ApplyFailed")
    assert reason["cluster"] == here and "denied" in reason["message"]
    await end_faults(driver)
    await driver.until_phase("refused", "Running")

    async def no_reasons() -> bool:
        return not (await driver.why("refused")).get("reasons")

    await eventually(no_reasons, 40, "nothing is wrong any more")
    await ended(driver, "refused")


async def test_lost_pods_degrade_the_group_and_their_claim_stays(driver: MeshClient) -> None:
    here = "lab/c-3"
    await driver.apply(application("lost", pods=8, on=here))
    await driver.until_phase("lost", "Running")
    await fault(driver, here, "lose-pods", 10)  # long enough to be seen
    await driver.until_phase("lost", "Degraded")
    # An eviction frees nothing: the slots of missing pods count in full.
    await driver.apply(application("greedy", on=here))
    await driver.until_phase("greedy", "Pending")
    assert (await why(driver, "greedy", "ResourceShort"))["free"] == "0"
    await driver.until_phase("lost", "Running")
    assert await driver.phase("greedy") == "Pending"
    await driver.delete(["lost"])
    await driver.until_phase("greedy", "Running")
    await ended(driver, "greedy")


async def test_replayed_reports_change_nothing(driver: MeshClient) -> None:
    """A full cluster repeatedly replays reports from when it was empty."""
    here = "lab/c-4"
    await driver.apply(application("full", pods=8, on=here))
    await driver.until_phase("full", "Running")

    async def seen() -> bool:
        found = await cluster(driver, here)
        return bool(found["free"]["cpu"] == "0")

    await eventually(seen, 40, "it is full")
    reports = 0

    def count() -> None:
        nonlocal reports
        reports += 1

    await driver.bus.subscribe("moorage.reports.lab.c-4.>", lambda _subject, _data: count())
    await fault(driver, here, "replay")
    await driver.apply(application("tempted", on=here))
    await driver.until_phase("tempted", "Pending")

    async def several() -> bool:
        return reports >= 4

    await eventually(several, 40, "old reports came again")
    found = await cluster(driver, here)
    assert found["free"]["cpu"] == "0"
    assert (await driver.phase("full"), await driver.phase("tempted")) == ("Running", "Pending")
    await end_faults(driver)
    await driver.delete(["full"])
    await driver.until_phase("tempted", "Running")
    await ended(driver, "tempted")


async def test_all_faults_at_once_recover(driver: MeshClient) -> None:
    names = [f"all-{i}" for i in range(20)]
    for number, what in enumerate(("silent", "slow", "refuse", "replay")):
        await fault(driver, f"lab/c-{number}", what, 4)
    await asyncio.gather(*(driver.apply(application(name, pods=2)) for name in names))
    await fault(driver, "lab/c-4", "lose-pods", 2)

    async def well() -> bool:
        return set((await driver.phases()).values()) == {"Running"}

    await eventually(well, 40, "all 20, which fill the fleet, run")
    await ended(driver, *names)
