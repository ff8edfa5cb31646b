"""kill -9 of a worker at the very place between two of its steps: after it is started again the state is what it would have
been, and everything that happened was also said, once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import Any

import msgspec
import pytest

from moorage.bus import Bus, subjects
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
#: What dies while groups are placed, while one is changed and a cluster joins, and while all are taken away.
CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "merger": (["merger.committed", "merger.answered"], ["merger.committed"], ["merger.withdrawn"]),
    "merger again": (["merger.committed"], ["inventory.kept"], ["merger.released"]),
    "intents": (["intents.stored"], ["intents.kept"], ["intents.stored", "intents.deleted"]),
    "intents and patcher": (["patcher.desired"], ["intents.attached"], ["patcher.concluded"]),
    "patcher": (["patcher.concluded"], ["patcher.asked"], ["patcher.confirmed"]),
    "inventory": (["inventory.reported"], ["inventory.numbered"], ["inventory.written"]),
    "nothing": ([], [], []),
}
assert {p for case in CASES.values() for points in case for p in points} | {"ledger.snapshot"} == {
    p for p in POINTS if not p.startswith("agent.")
}


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    return make_mesh(FLEET, "--workers", "merger=2", environment=failpoints.environment)


def intent(name: str, target: str) -> dict[str, Any]:
    """That the pods need a little memory, too."""
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

    await eventually(all_of_them, 20, f"somebody comes to {points}")


async def settled(driver: MeshClient) -> bool:
    phases = Counter((await driver.phases()).values())
    return phases == {"Running": CLUSTERS + 1, "Pending": GROUPS - CLUSTERS}


async def untold(driver: MeshClient, gone: list[str], left: str, labels: dict[str, str]) -> list[str]:
    """What stands, or stands no longer, and was not said, or more than once."""
    said = await events(driver.bus)
    ids = Counter(event["id"] for event in said)
    placed = {e["id"] for e in said if ".decisions.placed." in e["subject"]}
    running = {(e["data"]["group"], e["data"]["decision"]) for e in said if ".decisions.running." in e["subject"]}
    revisions = {(e["data"]["group"], e["data"]["revision"]) for e in said if ".events.intents." in e["subject"]}
    found = [f"{ident} is kept {count} times" for ident, count in ids.items() if count > 1]
    for decision in driver.ledger.standing.values():
        if decision.id not in placed:
            found.append(f"{decision.group}: nobody said that {decision.id} was placed")
        if (decision.group, decision.id) not in running:
            found.append(f"{decision.group}: nobody said that {decision.id} runs")
    stored = {(item["group"], item["revision"]) for item in (await driver.http("/v1/groups"))["items"]}
    found += [f"{name}: nobody said that there is a revision {number}" for name, number in stored - revisions]
    ends = Counter(e["data"]["group"] for e in said if ".intents.deleted." in e["subject"])
    found += [f"{name}: it was said {ends[name]} times that it is deleted" for name in gone if ends[name] != 1]
    fleet = [(*e["subject"].split(".")[3:6], e["data"]) for e in said if ".events.fleet." in e["subject"]]
    there = [c["id"] for c in (await driver.http("/v1/clusters"))["items"]]
    for change, clusters in (("joined", there), ("gone", [left] if left else [])):
        for cluster in clusters:
            data = [d for what, provider, name, d in fleet if (what, f"{provider}/{name}") == (change, cluster)]
            if data != [{"nodes": 1} if change == "joined" else {}]:
                found.append(f"{cluster} {change}: {data}")
    edits = [data["labels"] for change, *_, data in fleet if change == "edited"]
    if labels and edits.count(labels) != 1:
        found.append(f"labels {labels} were said among {edits}")
    return found


async def all_is_told(
    driver: MeshClient, gone: list[str] | None = None, left: str = "", labels: dict[str, str] | None = None
) -> None:
    last: list[str] = []

    async def nothing_missing() -> bool:
        nonlocal last
        last = await untold(driver, gone or [], left, labels or {})
        return not last

    try:
        await eventually(nothing_missing, 15, "everything that happened was said")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


@pytest.mark.parametrize("case", CASES)
async def test_killed_between_two_steps_nothing_is_lost_and_nothing_twice(
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
    await all_is_told(driver)

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
        stands = driver.ledger.standing[group(one)]
        return stands.revision == 3 and await settled(driver)

    await eventually(changed, 30, f"{one} runs as it is wanted now")

    async def joined() -> bool:
        return f"lab/{joining}" in {c["id"] for c in (await driver.http("/v1/clusters"))["items"]}

    await eventually(joined, 20, "the new cluster is part of the fleet")
    await all_is_told(driver, labels=labels)

    for point in leaving:
        failpoints.arm(point)
    await driver.delete([*names, one])
    assert (await driver.ask(subjects.SIM_APPLY, FLEET, timeout=20))["accepted"]
    await died(failpoints, leaving)

    async def nothing_left() -> bool:
        return not driver.ledger.claims and not await driver.phases()

    await eventually(nothing_left, 20, "no claim and no group is left")
    await all_is_told(driver, [group(name) for name in (*names, one)], f"lab/{joining}", labels)
    assert await driver.violations(room(FLEET)) == []


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


async def test_killed_between_a_snapshot_and_the_purge_readers_find_all(
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
    # The next one tidies up what the dead ones left behind.
    assert await snapshot(nats, {}) == 0
    assert await log.first() == 9 and len(await bus.objects("moorage-snapshots").names()) == 2
    assert len((await open_ledger(bus)).ledger.claims) == 9
