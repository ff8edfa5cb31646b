"""The decision log forgets groups that have ended. Whoever slept or died meanwhile brings nothing of them back, and a group that
is made again under the same name runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence

import msgspec
import pytest

from moorage.bus import new_id, subjects
from moorage.ledger import LOG, encode_commit
from moorage.ledger.ledger import FORGET_COMMITS, FORGET_SECONDS
from moorage.mesh import stores
from moorage.model.groups import EndedGroups, Withdraw
from moorage.model.names import group_tokens
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group
from moorage_testkit.polling import until

from .conftest import MakeMesh
from .test_stopped import active, states, stopped

#: Commits that are appended together.
AT_ONCE = 256


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(fleet(4, 8), "--workers", "merger=2")


async def commit_others(driver: MeshClient, commits: int) -> None:
    """Appends empty commits, as long after the last one as it takes to forget."""
    at = time.time() + 2 * FORGET_SECONDS
    for _ in range(0, commits, AT_ONCE):
        data = [encode_commit(new_id(), "test", at=at) for _ in range(AT_ONCE)]
        await asyncio.gather(*(driver.bus.request(subjects.LEDGER_COMMIT, one, timeout=30) for one in data))
    last = await driver.bus.log(LOG).last()
    await driver.folded(last)


async def known(driver: MeshClient, names: Sequence[str]) -> set[str]:
    """Returns what a merger knows of these groups."""
    asked = EndedGroups(groups=[group(name) for name in names])
    answer = await driver.bus.call(subjects.MERGER_ENDED, asked, EndedGroups)
    return {found.split("/")[1] for found in answer.groups}


async def running(driver: MeshClient, names: Sequence[str]) -> bool:
    phases = await driver.phases()
    return all(phases.get(group(name)) == "Running" for name in names)


async def forget_tombstones(driver: MeshClient, names: Sequence[str]) -> None:
    """Does what an intent store does minutes later."""
    bucket = driver.bus.bucket(stores.REVISIONS)
    for name in names:
        await bucket.delete(f"{group_tokens(group(name))}.deleted")


async def seq_of(driver: MeshClient, pid: int) -> int:
    return int((await states(driver, "merger")).get(pid, {}).get("seq", 0))


@pytest.mark.parametrize("holds_lease", [True, False])
async def test_a_merger_that_sleeps_meanwhile_brings_nothing_back(
    mesh: Mesh, driver: MeshClient, holds_lease: bool
) -> None:
    names = [f"{'holder' if holds_lease else 'other'}-{i}" for i in range(8)]
    again = names[:4]
    holder = await active(driver, "merger")
    sleeper = holder if holds_lease else next(pid for pid in mesh.pids("merger") if pid != holder)
    async with stopped(sleeper):
        # Some of the hints wait in the connection of the one that sleeps.
        await asyncio.gather(*(driver.apply(application(name)) for name in names))
        await eventually(lambda: running(driver, names), 40, "all run")
        await driver.delete(names)
        await eventually(lambda: have_left(driver, names), 40, "no claim is left")
        await commit_others(driver, FORGET_COMMITS + 1)
        assert not any(driver.ledger.knows(group(name)) for name in names)
        await forget_tombstones(driver, names)
        for name in again:
            assert (await driver.apply(application(name)))["revision"] == 1
        await eventually(lambda: running(driver, again), 30, "those that were made again run")
        seq = driver.ledger.seq

    async def caught_up() -> bool:
        return await seq_of(driver, sleeper) >= seq

    await eventually(caught_up, 30, "the merger that slept knows the log")
    await active(driver, "merger")
    for round_ in range(2):  # whatever it still had to do, it does before it answers these
        for name in [f"{names[0]}-after-{round_}-{i}" for i in range(4)]:
            await driver.apply(application(name))
            await driver.until_phase(name, "Running")
            await driver.delete([name])
    standing = driver.ledger.standing
    assert {name: standing[group(name)].revision for name in names if group(name) in standing} == dict.fromkeys(
        again, 1
    )
    assert await running(driver, again)
    await driver.delete(again)


async def have_left(driver: MeshClient, names: Sequence[str]) -> bool:
    return not any(group(name) in driver.ledger.by_group for name in names)


async def test_killed_while_it_is_forgotten(mesh: Mesh, driver: MeshClient) -> None:
    names = [f"killed-{i}" for i in range(4)]
    stays = "terminated-and-kept"
    await asyncio.gather(*(driver.apply(application(name)) for name in (*names, stays)))
    await eventually(lambda: running(driver, [*names, stays]), 30, "all run")
    await driver.ask(subjects.INTENTS_ACT, {"group": group(stays), "verb": "terminate"})
    await driver.until_phase(stays, "Terminated")
    await driver.delete(names)
    await eventually(lambda: have_left(driver, names), 40, "no claim is left")
    await commit_others(driver, FORGET_COMMITS // 2)
    for worker in ("merger", "patcher", "gateway", "intents"):
        mesh.kill(worker)
    await commit_others(driver, FORGET_COMMITS // 4)
    assert driver.ledger.knows(group(names[0]))
    for worker in ("merger", "patcher"):
        mesh.kill(worker)
    await commit_others(driver, FORGET_COMMITS // 4 + 2)
    assert not driver.ledger.knows(group(names[0]))

    async def forgotten() -> bool:
        return not await known(driver, names)

    for _ in range(4):  # whichever of the two mergers answers
        await eventually(forgotten, 30, "mergers that began in between have forgotten the groups, too")
    # It has ended all the same, although the log does not know it any more.
    await driver.until_phase(stays, "Terminated")
    answer = await driver.apply(application(names[0]))
    assert answer["revision"] == 2, "its tombstone is kept for longer"
    await driver.until_phase(names[0], "Running")
    assert (await driver.apply(application(stays)))["revision"] == 2
    await driver.until_phase(stays, "Running")
    await driver.delete([names[0], stays])


async def test_a_late_hint_to_withdraw_a_forgotten_group(mesh: Mesh, driver: MeshClient) -> None:
    """An intent store that slept sends the hint when a group of the same name runs at the same revision again."""
    name = "late"
    heard: list[Withdraw] = []
    subscription = await driver.bus.subscribe(
        subjects.GROUPS_WITHDRAW, lambda _, data: heard.append(msgspec.json.decode(data, type=Withdraw))
    )
    await driver.apply(application(name))
    await driver.until_phase(name, "Running")
    await driver.delete([name])
    await until(lambda: any(hint.group == group(name) for hint in heard), 40, "the hint comes")
    await subscription.unsubscribe()
    hint = next(hint for hint in heard if hint.group == group(name))
    await eventually(lambda: have_left(driver, [name]), 40, "no claim is left")
    await commit_others(driver, FORGET_COMMITS + 1)
    await forget_tombstones(driver, [name])
    await driver.bus.publish(subjects.GROUPS_WITHDRAW, hint)  # while there is none
    assert (await driver.apply(application(name)))["revision"] == 1
    await driver.until_phase(name, "Running")
    decision = driver.ledger.standing[group(name)].id
    for _ in range(4):
        await driver.bus.publish(subjects.GROUPS_WITHDRAW, hint)
    other = "another"
    await driver.apply(application(other))
    await driver.until_phase(other, "Running")
    await driver.delete([other])  # its withdrawal came after those of the hints
    assert driver.ledger.standing[group(name)].id == decision
    await driver.delete([name])


async def test_a_merger_that_dies_does_not_bring_back_what_was_deleted_without_it(
    mesh: Mesh, driver: MeshClient
) -> None:
    """A group whose record is gone does not stand for ever."""
    name = "orphan"
    await driver.apply(application(name))
    await driver.until_phase(name, "Running")
    pids = mesh.pids("merger")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await driver.bus.bucket(stores.GROUPS).delete(group_tokens(group(name)))
    mesh.kill("merger")
    await eventually(lambda: have_left(driver, [name]), 40, "it is withdrawn")
