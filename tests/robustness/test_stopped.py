"""Suspends workers (SIGSTOP) that resume after another one took over: never two are active at once, nothing is claimed
twice, and acknowledged writes stay."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest

from moorage.bus import subjects
from moorage.model.names import group_tokens
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.invariants import counting_pods
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, room
from moorage_testkit.polling import until

from .conftest import MakeMesh

CLUSTERS = 4
FLEET = fleet(CLUSTERS, 1)


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    pairs = [f"{kind}=2" for kind in ("merger", "inventory", "patcher", "intents")]
    options = [word for pair in pairs for word in ("--workers", pair)]
    return make_mesh(FLEET, *options, environment=failpoints.environment)


@asynccontextmanager
async def stopped(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def states(driver: MeshClient, worker: str) -> dict[int, dict[str, Any]]:
    """Returns the health of each process of a kind."""
    found: dict[int, dict[str, Any]] = {}

    def on_reply(_subject: str, data: bytes) -> None:
        stats = msgspec.json.decode(data)
        found[int(stats["metadata"]["pid"])] = stats["metadata"]

    inbox = driver.bus.nc.new_inbox()
    subscription = await driver.bus.subscribe(inbox, on_reply)
    await driver.bus.publish(f"$SRV.STATS.moorage-{worker}", b"", inbox)
    await asyncio.sleep(0.3)
    await subscription.unsubscribe()
    return found


async def active(driver: MeshClient, worker: str) -> int:
    """Returns the process that holds the lease."""
    holders: list[int] = []

    async def one() -> bool:
        roles = await states(driver, worker)
        holders[:] = [pid for pid, s in roles.items() if s.get("role") == "active" or "waiting" in s]
        return len(holders) == 1 and len(roles) == 2

    await eventually(one, 40, f"one {worker} of two is active")
    return holders[0]


async def running(driver: MeshClient, count: int) -> bool:
    return Counter((await driver.phases()).values())["Running"] == count


async def all_but_one_run(driver: MeshClient) -> bool:
    return Counter((await driver.phases()).values()) == {"Running": CLUSTERS, "Pending": 1}


async def cleared(driver: MeshClient, names: list[str]) -> None:
    await driver.delete(names)

    async def nothing_left() -> bool:
        return not driver.ledger.claims

    try:
        await eventually(nothing_left, 40, "no claim is left")
    except AssertionError as error:
        left = {ident: (active.group, active.withdrawn) for ident, active in driver.ledger.claims.items()}
        raise AssertionError(f"{error}: {left}; groups: {await driver.phases()}") from error
    assert await driver.violations(room(FLEET)) == []


async def test_the_leading_merger_is_suspended(mesh: Mesh, driver: MeshClient) -> None:
    names = [f"waits-{i}" for i in range(CLUSTERS + 2)]
    await asyncio.gather(*(driver.apply(application(name)) for name in names))
    await eventually(lambda: running(driver, CLUSTERS), 40, "as many run as fit")
    holder = await active(driver, "merger")
    placed = [name for name in names if await driver.phase(name) == "Running"]
    async with stopped(holder):
        # Half of the hints end in the queue of the suspended merger.
        await driver.delete(placed[:2])
        await eventually(lambda: running(driver, CLUSTERS), 30, "those that waited took the room")
        more = [f"more-{i}" for i in range(3)]
        await asyncio.gather(*(driver.apply(application(name)) for name in more))
        await driver.delete(placed[2:])
        await eventually(lambda: running(driver, CLUSTERS), 30, "those that came meanwhile took the room")
        assert counting_pods(driver.ledger) == CLUSTERS
        await eventually(lambda: another_waits(driver, holder), 40, "another merger looks after those that wait")
    await active(driver, "merger")  # one of them, not both
    await cleared(driver, [n for n in (*names, *more) if n not in placed])


async def another_waits(driver: MeshClient, one: int) -> bool:
    return any("waiting" in s for pid, s in (await states(driver, "merger")).items() if pid != one)


@pytest.mark.parametrize("point", ["merger.answered", "merger.committed"])
async def test_a_merger_is_suspended_between_two_steps(
    mesh: Mesh, driver: MeshClient, failpoints: Failpoints, point: str
) -> None:
    """It resumes with a proposal for capacity that others have taken since."""
    failpoints.arm(point, how="STOP")
    first = f"first-{point[7:9]}"
    await driver.apply(application(first))
    await until(lambda: bool(failpoints.happened(point)), 40, f"a merger comes to {point}")
    pid = failpoints.happened(point)
    try:
        others = [f"other-{point[7:9]}-{i}" for i in range(CLUSTERS)]
        await asyncio.gather(*(driver.apply(application(name)) for name in others))
        await eventually(lambda: running(driver, CLUSTERS), 30, "others took the room")
    finally:
        os.kill(pid, signal.SIGCONT)
    await active(driver, "merger")
    await eventually(lambda: all_but_one_run(driver), 40, "still as many run as fit")
    assert counting_pods(driver.ledger) == CLUSTERS
    await cleared(driver, [first, *others])


async def test_the_active_inventory_is_suspended(mesh: Mesh, driver: MeshClient) -> None:
    """The fleet changes while it is suspended; when it resumes it restores nothing old and assigns no id twice."""
    one = await active(driver, "inventory")
    new = [{**FLEET["clusters"][0], "name": f"new-{i}"} for i in range(3)]
    late = [{**FLEET["clusters"][0], "name": f"late-{i}"} for i in range(3)]
    first = FLEET["clusters"][0]
    async with stopped(one):
        answer = await driver.ask(subjects.SIM_APPLY, {"clusters": [*FLEET["clusters"], *new]}, timeout=20)
        assert answer["accepted"]
        await eventually(lambda: known(driver, new), 30, "the clusters that came are known")
        done = await driver.ask(subjects.CLUSTERS_SET, {"cluster": f"lab/{first['name']}", "labels": {"tier": "gold"}})
        assert done["accepted"]
    # These reports come at the very moment when both are running.
    await driver.ask(subjects.SIM_APPLY, {"clusters": [*FLEET["clusters"], *new, *late]}, timeout=20)
    await eventually(lambda: known(driver, [*new, *late]), 30, "the clusters that came since are known")
    assert await active(driver, "inventory") != one
    records: dict[str, Any] = {}

    def learn(key: str, value: bytes | None, _at: int) -> None:
        if value is not None:
            records[key] = msgspec.json.decode(value)

    mirror = await driver.bus.bucket("moorage-clusters").mirror(learn)
    await mirror.stop()
    ids = [record["id"] for record in records.values()]
    assert len(ids) == len(set(ids)) == CLUSTERS + 6, "a number is given once"
    assert records[f"lab.{first['name']}"]["labels"] == {"tier": "gold"}

    async def labelled() -> bool:
        return "tier" in (await driver.http(f"/v1/clusters/lab/{first['name']}"))["labels"]

    await eventually(labelled, 40, "its label is shown")
    await driver.ask(subjects.SIM_APPLY, FLEET, timeout=20)

    async def left() -> bool:
        return not any([await known(driver, [gone]) for gone in (*new, *late)])

    await eventually(left, 30, "those that went are gone")


async def known(driver: MeshClient, clusters: list[dict[str, Any]]) -> bool:
    there = {c["id"]: c["state"] for c in (await driver.http("/v1/clusters"))["items"]}
    return all(there.get(f"lab/{c['name']}") == "Ready" for c in clusters)


@pytest.mark.parametrize("point", ["patcher.asked", "patcher.concluded"])
async def test_the_active_patcher_is_suspended(
    mesh: Mesh, driver: MeshClient, failpoints: Failpoints, point: str
) -> None:
    """It is suspended while it works on a group, which has another revision when it resumes."""
    one = await active(driver, "patcher")
    name = f"patched-{point[8:10]}"
    failpoints.arm(point, how="STOP")
    await driver.apply(application(name, cpu="100m"))
    await until(lambda: failpoints.happened(point) == one, 40, f"the active one comes to {point}")
    try:
        await driver.until_phase(name, "Running", seconds=30)
        await driver.apply(application(name, cpu="100m", image="newer"))

        async def runs_the_newer() -> bool:
            return (await driver.why(name))["revision"] == 2 and await driver.phase(name) == "Running"

        await eventually(runs_the_newer, 30, "the newer revision runs")
    finally:
        os.kill(one, signal.SIGCONT)
    assert await active(driver, "patcher") != one
    for bucket in ("moorage-desired", "moorage-status"):
        entry = await driver.bus.bucket(bucket).get(group_tokens(group(name)))
        assert entry is not None
        stored = msgspec.json.decode(entry.value)
        assert stored["revision"] == 2 and stored["decision"] == driver.ledger.standing[group(name)].id
    await cleared(driver, [name])


async def test_an_intent_store_is_suspended(mesh: Mesh, driver: MeshClient) -> None:
    """Requests go to either store; a client of the suspended one repeats its request and is answered by the other."""
    one = mesh.pids("intents")[0]
    names = [f"asked-{i}" for i in range(CLUSTERS)]
    async with stopped(one):
        await asyncio.gather(*(driver.apply(application(name)) for name in names))
        await eventually(lambda: running(driver, CLUSTERS), 30, "all run")
    # The requests in its queue are handled a second time, and change nothing.
    await asyncio.gather(*(driver.apply(application(name)) for name in names))
    assert set(driver.acknowledged.values()) == {1}
    # Groups that are deleted before that would come back.
    await eventually(lambda: idle(one), 30, "the queue of the one that resumed is empty")
    await cleared(driver, names)


async def idle(pid: int) -> bool:
    """Returns whether a process takes hardly any time of the processor for a while."""
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(1)
    return sum(process.cpu_times()[:2]) - before < 0.05


async def waits_for(driver: MeshClient, name: str, kind: str) -> bool:
    return ("ControllerTimeout", kind) in {
        (r["code"], r.get("by")) for r in (await driver.why(name)).get("reasons", ())
    }


def concerning(kind: str, name: str) -> dict[str, Any]:
    """Returns a document about which the controller `kind` is asked, if it is one."""
    document = application(name)
    if kind == "labels":
        document["spec"]["apps"][0]["placement"] = {"allOf": [{"provider": "lab"}]}
    elif kind == "affinity":
        document["spec"]["apps"].append({"name": "beside", "manifests": []})
        document["spec"]["affinity"] = [{"together": ["web", "beside"]}]
    return document


async def silent(driver: MeshClient) -> bool:
    return {c["state"] for c in (await driver.http("/v1/clusters"))["items"]} == {"Stale"}


@pytest.mark.parametrize("kind", ["gateway", "redis", "labels", "affinity", "sim", "nats"])
async def test_a_worker_without_a_replica_is_suspended(mesh: Mesh, driver: MeshClient, kind: str) -> None:
    """There is only one process of each kind. Acknowledged groups are decided, meanwhile or after it resumes, and only once."""
    (pid,) = mesh.pids(kind)
    before = [f"{kind}-before-{i}" for i in range(2)]
    await asyncio.gather(*(driver.apply(application(name)) for name in before))
    await eventually(lambda: running(driver, len(before)), 40, "those that came before run")
    meanwhile = [f"{kind}-{i}" for i in range(CLUSTERS - len(before) + 1)]
    async with stopped(pid):
        applying = asyncio.gather(*(driver.apply(concerning(kind, name)) for name in meanwhile))
        if kind in ("gateway", "redis"):
            # They have no part in decisions.
            await applying
            await until(lambda: counting_pods(driver.ledger) == CLUSTERS, 40, "as many are placed as fit")
        elif kind in ("labels", "affinity"):
            await applying
            await eventually(lambda: waits_for(driver, meanwhile[0], kind), 40, f"{meanwhile[0]} waits for {kind}")
        elif kind == "sim":
            await applying
            await eventually(lambda: silent(driver), 30, "the clusters are known to be silent")
        else:
            await asyncio.sleep(5)  # the detection is not observable, but pings go out every two seconds
    await applying
    await eventually(lambda: all_but_one_run(driver), 40, "as many run as fit")
    assert counting_pods(driver.ledger) == CLUSTERS
    assert mesh.pids(kind) == [pid], "it was not started anew"
    await cleared(driver, [*before, *meanwhile])
