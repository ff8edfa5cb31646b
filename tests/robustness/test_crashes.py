"""Kills each worker, NATS and Redis at points that are seen on the bus, while many groups are placed and removed: the end
state is the same as without a kill. The last case kills nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple

import pytest
import redis as redis_client

from moorage.bus import subjects
from moorage_testkit.invariants import counting_pods
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, room
from moorage_testkit.polling import until

from .conftest import MakeMesh

CLUSTERS, CPU = 9, 2
GROUPS = 24
FIT = CLUSTERS * CPU
FLEET = fleet(CLUSTERS, CPU)

ACCEPTED = "moorage.events.intents.>"
HINTED = subjects.GROUPS_DECIDE
ASKED = (subjects.candidates("hpa"), subjects.batch(subjects.candidates("hpa")))
COMMITTED = subjects.LEDGER_COMMIT
PLACED = "moorage.events.decisions.placed.>"
DESIRED = "$KV.moorage-desired.>"
CHANGED = "moorage.desired.changed.>"
CONFIRMED = "moorage.desired.confirm.>"
REPORTED = "moorage.reports.>"
REMOVED = subjects.MERGER_REMOVED


class Fault(NamedTuple):
    """The processes that are killed when the nth message on one of the subjects is seen."""

    processes: str
    subject: str | tuple[str, str]
    nth: int = 1


#: Faults while groups are placed and while they are removed.
CASES: dict[str, tuple[list[Fault], list[Fault]]] = {
    "intents after its word, hpa asked; sim told": (
        [Fault("intents", ACCEPTED, 7), Fault("hpa", ASKED, 3)],
        [Fault("intents", ACCEPTED, 5), Fault("sim", CHANGED, 4)],
    ),
    "merger hinted, patcher with the decision": (
        [Fault("merger", HINTED, 9), Fault("patcher", PLACED, 4)],
        [Fault("merger", REMOVED, 3), Fault("patcher", CHANGED, 3)],
    ),
    "redis and gateway": (
        [Fault("redis", ASKED, 2), Fault("gateway", PLACED, 3)],
        [Fault("redis", REMOVED), Fault("gateway", REMOVED)],
    ),
    "nats hinted and withdrawn": ([Fault("nats", HINTED, 10)], [Fault("nats", COMMITTED)]),
    "inventory after the commit, sim between desired and applied": (
        [Fault("inventory", COMMITTED, 2), Fault("sim", CHANGED, 4)],
        [Fault("inventory", REMOVED), Fault("sim", CONFIRMED, 3)],
    ),
    "merger committing, labels and affinity asked; merger releasing": (
        [Fault("merger", COMMITTED, 2), Fault("labels affinity", ASKED, 2)],
        [Fault("merger", COMMITTED, 2), Fault("patcher", CONFIRMED, 2)],
    ),
    "redis emptied, patcher writing": (
        [Fault("FLUSHALL", ASKED, 2), Fault("patcher", DESIRED, 3)],
        [Fault("FLUSHALL", REMOVED)],
    ),
    "nats committing, sim between applied and confirmed": (
        [Fault("nats", COMMITTED, 2), Fault("sim", CONFIRMED, 3)],
        [Fault("nats", CONFIRMED, 3), Fault("inventory", REPORTED, 3)],
    ),
    "nothing": ([], []),
}


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(FLEET, "--workers", "merger=2")


def inject(mesh: Mesh, fault: Fault) -> None:
    if fault.processes == "FLUSHALL":
        with redis_client.Redis.from_url(mesh.settings.redis_url) as client:
            client.flushall()
        return
    mesh.read_endpoint()
    for pid in [pid for name in fault.processes.split() for pid in mesh.pids(name)]:
        with contextlib.suppress(ProcessLookupError):  # it ends by itself just now, as one that lost its lease does
            os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def with_faults(driver: MeshClient, faults: list[Fault]) -> AsyncIterator[None]:
    """Injects each fault at its point; the block ends when all have happened."""
    async with AsyncExitStack() as stack:
        came = [
            await stack.enter_async_context(driver.at(f.subject, partial(inject, driver.mesh, f), f.nth))
            for f in faults
        ]
        yield
        async with asyncio.timeout(60):
            for one in came:
                await one.wait()


def all_run(mesh: Mesh) -> bool:
    """Waits until every process runs again, ready or not."""
    mesh.read_endpoint()
    return all(mesh.endpoint["pids"].values())


async def settled(driver: MeshClient) -> bool:
    """Waits until exactly as many groups run as fit, and all others wait."""
    phases = list((await driver.phases()).values())
    return phases.count("Running") == FIT and phases.count("Pending") == GROUPS - FIT


async def pods(driver: MeshClient) -> int:
    return sum(item["pods"] for item in (await driver.ask(subjects.SIM_LIST, {}))["items"])


@pytest.mark.parametrize("case", CASES)
async def test_a_kill_at_any_point_has_the_same_end_state(mesh: Mesh, driver: MeshClient, case: str) -> None:
    placing, leaving = CASES[case]
    # Each case has names of its own, so that leftovers of one case do not affect another.
    names = [f"k{list(CASES).index(case)}-{i}" for i in range(GROUPS)]

    async with with_faults(driver, placing):
        await asyncio.gather(*(driver.apply(application(name)) for name in names))
    await eventually(lambda: settled(driver), 40, f"{FIT} of {GROUPS} run")

    groups = {item["group"]: item for item in (await driver.http("/v1/groups"))["items"]}
    assert {g: groups[g]["revision"] for g in driver.acknowledged} == driver.acknowledged, (
        "what was acknowledged is there"
    )
    assert set(driver.acknowledged) == {group(name) for name in names}
    assert counting_pods(driver.ledger) == FIT

    async def no_pod_more() -> bool:
        return await pods(driver) == FIT

    await eventually(no_pod_more, 40, f"{FIT} pods run")
    (waiting, *_) = (g for g, item in groups.items() if item["phase"] == "Pending")

    async def numbers() -> bool:
        """Returns the numbers of the reasons; simulates again if a controller was dead when it was asked."""
        return "ResourceShort" in {r["code"] for r in (await driver.why(waiting.split("/")[1]))["reasons"]}

    await eventually(numbers, 60, "the reasons have numbers")
    await until(lambda: all_run(mesh), 40, "everything was started again")
    async with with_faults(driver, leaving):
        await driver.delete(names)

    async def released() -> bool:
        return not driver.ledger.claims and not await pods(driver)

    await eventually(released, 40, "no claim and no pod is left")
    assert await driver.phases() == {}
    assert await driver.violations(room(FLEET)) == []
