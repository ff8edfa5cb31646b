"""Kills a worker exactly between two of its steps: after its restart the state is the same as without a kill, and every
event was published once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from moorage.bus import Bus, NoAnswer, subjects
from moorage.bus.failpoints import POINTS
from moorage.ledger import Ledger, open_ledger, read_snapshot
from moorage.model.claims import Claim, Commit, Decision, IntentRef
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.invariants import counting_pods
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, room
from moorage_testkit.servers import NatsServer

from .conftest import MakeMesh

CLUSTERS, GROUPS = 5, 7
FLEET = fleet(CLUSTERS, 1)
#: Failpoints while groups are placed, while one is changed and a cluster joins, and while all are removed.
CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "merger": (["merger.committed", "merger.answered"], ["merger.committed"], ["merger.withdrawn"]),
    "merger again": (["merger.committed"], ["inventory.kept"], ["merger.released"]),
    "intents": (["intents.stored"], ["intents.kept"], ["intents.stored", "intents.deleted"]),
    "intents and patcher": (["patcher.desired"], ["intents.attached"], ["patcher.concluded"]),
    "patcher": (["patcher.concluded"], ["patcher.asked"], ["patcher.confirmed"]),
    "inventory": (["inventory.reported"], ["inventory.numbered"], ["inventory.written"]),
    "nothing": ([], [], []),
}
SETTLING = ("merger.settling", "merger.settled")
CLASSES = ("intents.class.stored", "intents.class.deleted")
#: Those of other workers are reached in tests of their own.
WORKERS = ("intents.", "inventory.", "ledger.", "merger.", "patcher.")
assert {p for case in CASES.values() for points in case for p in points} | {"ledger.snapshot", *SETTLING, *CLASSES} == {
    point for point in POINTS if point.startswith(WORKERS)
}


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    return make_mesh(FLEET, "--workers", "merger=2", environment=failpoints.environment)


def intent(name: str, target: str) -> dict[str, Any]:
    """Returns an intent by which the pods need some memory, too."""
    consumer = {
        "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "container": "c",
        "needs": [{"resource": "memory", "requests": 10, "units": "MB"}],
    }
    spec = {"group": target, "app": "web", "consumers": [consumer]}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "HpaIntent", "metadata": {"name": name}, "spec": spec}


async def events(bus: Bus) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    log = bus.log("MOORAGE_EVENTS")
    tail = await log.follow(await log.first(), lambda _, data: found.append(msgspec.json.decode(data)))
    await tail.stop()
    return found


async def died(failpoints: Failpoints, points: list[str]) -> None:
    async def all_of_them() -> bool:
        return all(failpoints.happened(point) for point in points)

    await eventually(all_of_them, 40, f"somebody comes to {points}")


async def settled(driver: MeshClient) -> bool:
    phases = Counter((await driver.phases()).values())
    return phases == {"Running": CLUSTERS + 1, "Pending": GROUPS - CLUSTERS}


async def missing_events(driver: MeshClient, gone: list[str], left: str, labels: dict[str, str]) -> list[str]:
    """Returns decisions and withdrawals whose event is missing or published more than once."""
    published = await events(driver.bus)
    ids = Counter(event["id"] for event in published)
    placed = {e["id"] for e in published if ".decisions.placed." in e["subject"]}
    running = {(e["data"]["group"], e["data"]["decision"]) for e in published if ".decisions.running." in e["subject"]}
    revisions = {(e["data"]["group"], e["data"]["revision"]) for e in published if ".events.intents." in e["subject"]}
    found = [f"{ident} is stored {count} times" for ident, count in ids.items() if count > 1]
    for decision in driver.ledger.standing.values():
        if decision.id not in placed:
            found.append(f"{decision.group}: no event that {decision.id} was placed")
        if (decision.group, decision.id) not in running:
            found.append(f"{decision.group}: no event that {decision.id} runs")
    stored = {(item["group"], item["revision"]) for item in (await driver.http("/v1/groups"))["items"]}
    found += [f"{name}: no event of revision {number}" for name, number in stored - revisions]
    ends = Counter(e["data"]["group"] for e in published if ".intents.deleted." in e["subject"])
    found += [f"{name}: {ends[name]} events of its deletion" for name in gone if ends[name] != 1]
    fleet = [(*e["subject"].split(".")[3:6], e["data"]) for e in published if ".events.fleet." in e["subject"]]
    there = [c["id"] for c in (await driver.http("/v1/clusters"))["items"]]
    for change, clusters in (("joined", there), ("gone", [left] if left else [])):
        for cluster in clusters:
            data = [d for what, provider, name, d in fleet if (what, f"{provider}/{name}") == (change, cluster)]
            if data != [{"nodes": 1} if change == "joined" else {}]:
                found.append(f"{cluster} {change}: {data}")
    edits = [data["labels"] for change, *_, data in fleet if change == "edited"]
    if labels and edits.count(labels) != 1:
        found.append(f"labels {labels} are missing among {edits}")
    return found


async def assert_all_published(
    driver: MeshClient, gone: list[str] | None = None, left: str = "", labels: dict[str, str] | None = None
) -> None:
    last: list[str] = []

    async def nothing_missing() -> bool:
        nonlocal last
        last = await missing_events(driver, gone or [], left, labels or {})
        return not last

    try:
        await eventually(nothing_missing, 40, "every event was published")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


@pytest.mark.parametrize("case", CASES)
async def test_a_kill_between_two_steps_neither_loses_nor_repeats_anything(
    mesh: Mesh, driver: MeshClient, failpoints: Failpoints, case: str
) -> None:
    placing, changing, leaving = CASES[case]
    names = [f"f{list(CASES).index(case)}-{i}" for i in range(GROUPS)]

    for point in placing:
        failpoints.arm(point, 2 if point.startswith("merger") else 1)
    one = f"f{list(CASES).index(case)}-small"
    await asyncio.gather(*(driver.apply(application(name, cpu="800m")) for name in names))
    await driver.apply(application(one, cpu="50m"))
    await died(failpoints, placing)
    await eventually(lambda: settled(driver), 30, "as many run as fit")
    assert counting_pods(driver.ledger) == CLUSTERS + 1
    await assert_all_published(driver)

    for point in changing:
        failpoints.arm(point)
    await driver.apply(application(one, cpu="50m", image="another"))
    assert (await driver.ask(subjects.INTENTS_APPLY, intent(f"memory-{one}", group(one))))["accepted"]
    joining = f"new-{list(CASES).index(case)}"
    spare = {
        **FLEET["clusters"][0],
        "name": joining,
        "nodes": [{**FLEET["clusters"][0]["nodes"][0], "unschedulable": True}],
    }
    answer = await driver.ask(subjects.SIM_APPLY, {"clusters": [*FLEET["clusters"], spare]}, timeout=20)
    assert answer["accepted"], answer
    labels = {"case": str(list(CASES).index(case))}
    edit = {"cluster": f"lab/{FLEET['clusters'][0]['name']}", "labels": labels}
    assert (await driver.ask(subjects.CLUSTERS_SET, edit))["accepted"]
    await died(failpoints, changing)

    async def changed() -> bool:
        standing = driver.ledger.standing.get(group(one))
        return standing is not None and standing.revision == 3 and await settled(driver)

    await eventually(changed, 30, f"{one} runs as it is wanted now")

    async def joined() -> bool:
        return f"lab/{joining}" in {c["id"] for c in (await driver.http("/v1/clusters"))["items"]}

    await eventually(joined, 40, "the new cluster is part of the fleet")
    await assert_all_published(driver, labels=labels)

    for point in leaving:
        failpoints.arm(point)
    await driver.delete([*names, one])
    assert (await driver.ask(subjects.SIM_APPLY, FLEET, timeout=20))["accepted"]
    await died(failpoints, leaving)

    async def nothing_left() -> bool:
        return not driver.ledger.claims and not await driver.phases()

    await eventually(nothing_left, 40, "no claim and no group is left")
    await assert_all_published(driver, [group(name) for name in (*names, one)], f"lab/{joining}", labels)
    assert await driver.violations(room(FLEET)) == []


@pytest.mark.parametrize("point", SETTLING)
async def test_a_kill_around_a_settlement_leaves_nothing_unsettled(
    mesh: Mesh, driver: MeshClient, failpoints: Failpoints, point: str
) -> None:
    """Two pods run on two nodes; one node leaves, and comes back."""
    name = point.replace(".", "-")
    node = FLEET["clusters"][0]["nodes"][0]
    pair = {**FLEET["clusters"][0], "name": name, "nodes": [{**node, "name": "a"}, {**node, "name": "b"}]}
    both = {"clusters": [*FLEET["clusters"], pair]}
    one = {"clusters": [*FLEET["clusters"], {**pair, "nodes": pair["nodes"][:1]}]}
    assert (await driver.ask(subjects.SIM_APPLY, both, timeout=20))["accepted"]
    await driver.apply(application(name, cpu="800m", pods=2, on=f"lab/{name}"))

    await driver.until_phase(name, "Running", seconds=30)
    for fleet_document, phase in ((one, "Degraded"), (both, "Running")):
        failpoints.arm(point)
        assert (await driver.ask(subjects.SIM_APPLY, fleet_document, timeout=20))["accepted"]
        await died(failpoints, [point])
        await driver.until_phase(name, phase, seconds=30)
        displaced = phase == "Degraded"

        async def told(displaced: bool = displaced) -> bool:
            return (group(name) in driver.ledger.displaced) == displaced

        await eventually(told, 30, f"displaced is {displaced}")
    await driver.delete([name])

    async def nothing_left() -> bool:
        return not driver.ledger.claims

    await eventually(nothing_left, 40, "no claim is left")
    assert (await driver.ask(subjects.SIM_APPLY, FLEET, timeout=20))["accepted"]


async def test_a_store_that_is_killed_tells_each_change_of_a_class_once(
    mesh: Mesh, driver: MeshClient, failpoints: Failpoints
) -> None:
    stored, deleted = CLASSES
    key = {"key": "Kind", "operator": "Exists"}
    document: dict[str, Any] = {
        "kind": "ResourceClass",
        "metadata": {"name": "told"},
        "spec": {"resourceSelector": [{"matchExpressions": [key]}]},
    }
    changed = {**document, "metadata": {"name": "told", "labels": {"a": "b"}}}
    steps: list[tuple[str, str, dict[str, Any]]] = [
        (stored, subjects.INTENTS_APPLY, {**document, "again": True}),
        (stored, subjects.INTENTS_APPLY, {**changed, "again": True}),
        (deleted, subjects.INTENTS_DELETE, {"kind": "ResourceClass", "name": "told", "again": True}),
    ]

    async def done(subject: str, body: dict[str, Any]) -> bool:
        try:
            return bool((await driver.ask(subject, body))["accepted"])
        except NoAnswer:
            return False

    told: list[str] = []

    async def all_told(wanted: list[str]) -> bool:
        found = [e for e in await events(driver.bus) if e["data"].get("kind") == "ResourceClass"]
        found = [e for e in found if e["data"]["name"] == "told" and "allocatable" not in e["data"]]
        told[:] = [e["subject"].split(".")[3] for e in found]
        return told == wanted

    wanted: list[str] = []
    for (point, subject, body), change in zip(steps, ("created", "changed", "deleted"), strict=True):
        failpoints.arm(point)
        await eventually(partial(done, subject, body), 40, f"{subject} is answered")
        await died(failpoints, [point])
        wanted.append(change)
        await eventually(partial(all_told, wanted), 40, f"the class is {change}")
    # Another start finds nothing to tell.
    failpoints.arm("intents.stored")
    await driver.apply(application("restarts", cpu="50m"))
    await died(failpoints, ["intents.stored"])
    await driver.until_phase("restarts", "Running", seconds=30)
    await driver.delete(["restarts"])
    await asyncio.sleep(2)
    assert await all_told(wanted), told


def decided(number: int) -> Commit:
    ident = f"d{number}"
    intent = IntentRef(kind="Application", name=group(ident), revision=1)
    claim = Claim(id=f"c{number}", decision=ident, intent=intent, tenant="default", slots=[], cluster="lab/c-0")
    return Commit(id=f"m{number}", entries=[Decision(id=ident, group=group(ident), revision=1, claims=[claim])])


SNAPSHOT = """
import asyncio, sys
from moorage.bus import Bus, Settings
from moorage.ledger import open_ledger, write_snapshot

async def main():
    bus = await Bus.connect(Settings(sys.argv[1]), worker="merger")
    await write_snapshot(bus, (await open_ledger(bus)).ledger)
    await bus.close()

asyncio.run(main())
"""


async def snapshot(nats: NatsServer, environment: dict[str, str]) -> int:
    env = {**os.environ, **environment}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SNAPSHOT, nats.url, env=env)
    return await process.wait()


async def test_after_a_kill_between_snapshot_and_purge_followers_load_everything(
    nats: NatsServer, bus: Bus, failpoints: Failpoints
) -> None:
    log = bus.log("MOORAGE_LEDGER")
    for number in range(9):
        await log.append(msgspec.json.encode(decided(number)), expected=number)
        if number == 2:
            assert await snapshot(nats, {}) == 0
        if number in (5, 7):
            failpoints.arm("ledger.snapshot")
            assert await snapshot(nats, failpoints.environment) == -signal.SIGKILL
    assert (await read_snapshot(bus)).seq == 8 and await log.first() == 1
    found: Ledger = (await open_ledger(bus)).ledger
    assert found.seq == 9 and len(found.claims) == 9
    # The next worker removes what the killed ones left behind.
    assert await snapshot(nats, {}) == 0
    assert await log.first() == 9 and len(await bus.objects("moorage-snapshots").names()) == 2
    assert len((await open_ledger(bus)).ledger.claims) == 9
