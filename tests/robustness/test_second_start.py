"""Kills all processes at once under load; a second `up` on the same state has every acknowledged write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from moorage.bus import subjects
from moorage_testkit.invariants import counting_pods
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, room
from moorage_testkit.polling import until

from .conftest import MakeMesh

CLUSTERS, CPU = 4, 4
FIT = CLUSTERS * CPU
FLEET = fleet(CLUSTERS, CPU)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def kill_everything(mesh: Mesh) -> None:
    mesh.read_endpoint()
    pids = [pid for pids in mesh.endpoint["pids"].values() for pid in pids]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the others end without it
            os.kill(pid, signal.SIGKILL)
    assert mesh.process is not None
    await asyncio.to_thread(mesh.process.wait)
    mesh.process = None
    await until(lambda: all(gone(pid) for pid in pids), 40, "all are dead")


async def test_acknowledged_writes_survive_a_kill_of_everything(make_mesh: MakeMesh, tmp_path: Path) -> None:
    mesh = make_mesh(FLEET, state=tmp_path)
    async with MeshClient(mesh) as driver:
        for name in ("stays", "changes", "ends"):
            await driver.apply(application(name))
            await driver.until_phase(name, "Running")
        await driver.ask(subjects.CONTROLLERS_SET, {"name": "hpa", "deadlineMs": 777})
        await driver.ask(subjects.CLUSTERS_SET, {"cluster": "lab/c-1", "labels": {"site": "north"}})
        decision = (await driver.why("stays"))["decision"]
        assert (await driver.apply(application("changes", image="j")))["revision"] == 2
        ended = await driver.ask(subjects.INTENTS_ACT, {"group": group("ends"), "verb": "terminate"})
        assert ended["accepted"]
        burst = [f"burst-{i}" for i in range(FIT + 4)]
        # Killed as soon as the last write is acknowledged: most groups are not decided by then.
        await asyncio.gather(*(driver.apply(application(name)) for name in burst))
        await kill_everything(mesh)
        acknowledged = driver.acknowledged

    again = Mesh(state=tmp_path)
    try:
        await asyncio.to_thread(again.start)
        async with MeshClient(again) as driver:
            groups = {item["group"]: item for item in (await driver.http("/v1/groups"))["items"]}
            assert {g: item.get("pendingRevision", item["revision"]) for g, item in groups.items()} == acknowledged
            assert groups[group("ends")]["state"] == "Terminated"

            async def settled() -> bool:
                phases = list((await driver.phases()).values())
                return (
                    phases.count("Running") == FIT and phases.count("Pending") == 6 and phases.count("Terminated") == 1
                )

            await eventually(settled, 40, "as many run as fit, the others wait")
            assert counting_pods(driver.ledger) == FIT
            assert (await driver.why("stays"))["decision"] == decision, "what ran runs on, undecided anew"
            assert (await driver.why("changes"))["revision"] == 2 and await driver.phase("changes") == "Running"
            hpa = await driver.http("/v1/controllers/hpa")
            assert hpa["deadlineMs"] == 777
            assert (await driver.http("/v1/clusters/lab/c-1"))["labels"]["site"] == "north"
            repeated = await driver.apply(application("stays"))
            assert repeated["outcome"] == "unchanged"
            await driver.delete(["stays", "changes", "ends", *burst])
            await until(lambda: not driver.ledger.claims, 40, "no claim is left")
            assert await driver.violations(room(FLEET)) == []
    finally:
        again.stop()
