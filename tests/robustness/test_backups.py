"""Takes backups of a working mesh and restores them into an empty one; refuses damaged files and meshes that are not empty."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.bus import Bus, stream_backup
from moorage.cli.backup_archive import write
from moorage.cli.backup_streams import LEASES, take_snapshot
from moorage.ledger import open_ledger
from moorage.mesh.discovery import installed
from moorage.model.names import group_tokens
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, room
from moorage_testkit.servers import NatsServer

from .conftest import MakeMesh

STREAMS = installed().backed_up()

CLUSTERS, CPU = 3, 4
FLEET = fleet(CLUSTERS, CPU)


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(FLEET)


@pytest.fixture
async def clean(driver: MeshClient) -> AsyncIterator[MeshClient]:
    yield driver
    names = [name.split("/")[1] for name in await driver.phases()]
    if names:
        await driver.delete(names)


async def backed_up(mesh: Mesh, file: Path) -> None:
    done = await mesh.arun("backup", str(file))
    assert done.returncode == 0, done.stderr.decode()
    assert os.stat(file).st_mode & 0o777 == 0o600


def restore(file: Path | str, state: Path, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return Mesh(state=state).run("restore", str(file), data=data)


async def everything(driver: MeshClient) -> dict[str, Any]:
    """Returns what clients can read, without times."""
    seen: dict[str, Any] = {}
    for path in ("applications", "groups", "decisions", "controllers", "tokens"):
        seen[path] = (await driver.http(f"/v1/{path}"))["items"]
    seen["clusters"] = [{key: one[key] for key in ("id", "labels", "state")} for one in (await driver.http("/v1/clusters"))["items"]]  # fmt: skip
    seen["projects"] = await driver.http("/v2/projects")
    for name in await driver.phases():
        why = await driver.http(f"/v1/groups/{name}/why")
        seen[f"claims of {name}"] = [why.get("decision"), why.get("apps"), why["revision"], why["state"]]
    return seen


async def test_a_backup_restores_the_mesh(clean: MeshClient, mesh: Mesh, tmp_path: Path) -> None:
    driver = clean
    for name in ("stays", "changes", "ends"):
        await driver.apply(application(name))
    await driver.apply(application("large", cpu="3", on="lab/c-2"))
    for name in ("stays", "changes", "ends", "large"):
        await driver.until_phase(name, "Running")
    await driver.apply(application("changes", image="j"))
    await driver.apply(application("waits", cpu="3", on="lab/c-2"))
    await driver.until_phase("waits", "Pending")
    assert (await mesh.arun("controllers", "set", "hpa", "--deadline", "777ms")).returncode == 0
    assert (await mesh.arun("cluster", "cordon", "lab/c-1")).returncode == 0
    made = await mesh.arun("token", "create", "ci", "--role", "editor", "--project", "default")
    await driver.http("/v2/projects", {"metadata": {"name": "store"}, "spec": {}})
    await driver.delete(["ends"])
    await driver.until_phase("changes", "Running")

    async def shown() -> bool:
        found = {c["id"]: c["state"] for c in (await driver.http("/v1/clusters"))["items"]}
        return bool(found["lab/c-1"] == "Cordoned")

    async def rolled_out() -> bool:
        decisions = (await driver.http("/v1/decisions"))["items"]
        surging = [s for d in decisions for claim in d["claims"] for s in claim["slots"] if s.get("surge")]
        return not surging and not any(active.withdrawn for active in driver.ledger.claims.values())

    await eventually(shown, 40, "the cordon is seen")
    await eventually(rolled_out, 40, "the old pods are released")
    before = await everything(driver)
    last = driver.ledger.seq
    file = tmp_path / "mesh.backup"
    await backed_up(mesh, file)

    again = Mesh(state=tmp_path / "again")
    assert restore(file, again.state).returncode == 0
    try:
        await asyncio.to_thread(again.start)
        assert again.endpoint["token"] == mesh.endpoint["token"], "who had the token goes on"
        async with MeshClient(again) as driver:
            for name in ("stays", "changes", "large"):
                await driver.until_phase(name, "Running", seconds=40)
            await driver.until_phase("waits", "Pending")

            async def restored() -> bool:
                return await everything(driver) == before

            await eventually(restored, 40, f"clients read {before}")
            assert [s for s in range(1, driver.ledger.seq + 1) if s > last] == [], "nothing was decided anew"

            # The mesh works on: waiting groups are placed, deletions release, revision numbers continue, the token is valid.
            assert (await again.arun("cluster", "uncordon", "lab/c-1")).returncode == 0
            await driver.delete(["large"])
            await driver.until_phase("waits", "Running")
            assert driver.ledger.seq > last
            assert (await driver.apply(application("stays", image="k")))["revision"] == 2
            assert (await driver.apply(application("ends")))["revision"] > 1, "a name that was used does not begin anew"
            await driver.until_phase("stays", "Running")
            again.endpoint["token"] = made.stdout.decode().strip()
            assert {g["group"] for g in (await driver.http("/v1/groups"))["items"]} >= {group("stays")}
            assert not await driver.violations(room(FLEET))
            state = await stream_backup.state_of(driver.bus, LEASES)
            assert state is not None and state["first_seq"] > 1 << 40, "agents that live on heard smaller numbers"
    finally:
        await asyncio.to_thread(again.stop)


async def test_a_backup_taken_under_load_is_consistent(
    clean: MeshClient, mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two streams a group is placed and another one deleted. In the restored mesh every claim has its group, and
    every decision a stored revision."""
    driver = clean
    stream_copied = stream_backup.snapshot
    again = 0
    moments = ("MOORAGE_EVENTS", "KV_moorage-desired", "MOORAGE_LEDGER", "KV_moorage-groups", STREAMS[-1])
    for number, stream in enumerate(moments):
        await driver.apply(application(f"old-{number}", cpu="500m"))
        await driver.until_phase(f"old-{number}", "Running")
        once = [stream]

        async def copied(
            bus: Bus, name: str, write: Any, once: list[str] = once, number: int = number
        ) -> dict[str, Any]:
            nonlocal again
            copied = await stream_copied(bus, name, write)
            again += name == STREAMS[0]
            if once == [name]:
                once.clear()
                await driver.apply(application(f"new-{number}", cpu="500m"))
                await driver.until_phase(f"new-{number}", "Running")
                await driver.delete([f"old-{number}"])
            return copied

        monkeypatch.setattr(stream_backup, "snapshot", copied)
        file = tmp_path / f"{number}.backup"
        with ExitStack() as stack:
            made = await take_snapshot(mesh.settings, stack)
            with file.open("wb") as out:
                write(out, made.about, made.parts)
        monkeypatch.undo()
        await driver.delete([f"new-{number}"])
        await restore_into_broker(file, tmp_path / f"{number}")
    assert len(moments) < again <= 2 * len(moments), "some had to be done once more, each once"


async def restore_into_broker(file: Path, state: Path) -> None:
    nats = NatsServer()
    nats.start()
    try:
        other = Mesh(state=state)
        other.environment = {"MOORAGE_NATS_URL": nats.url, "MOORAGE_NATS_SEED": ""}
        done = await other.arun("restore", str(file))
        assert done.returncode == 0, done.stderr.decode()
        bus = await Bus.connect(nats.settings(), worker="admin")
        try:
            await consistent(bus)
        finally:
            await bus.close()
    finally:
        nats.remove()


async def consistent(bus: Bus) -> None:
    heads: dict[str, int] = {}

    def saw(key: str, value: bytes | None, _revision: int) -> None:
        if value is not None:
            heads[key] = msgspec.json.decode(value)["revision"]

    await (await bus.bucket("moorage-groups").mirror(saw)).stop()
    follower = await open_ledger(bus)
    ledger = follower.ledger
    assert not {group_tokens(name) for name in ledger.by_group} - heads.keys(), "claims without a group"
    newer = {g: d.revision for g, d in ledger.standing.items() if d.revision > heads[group_tokens(g)]}
    assert not newer, "decisions about revisions that are not there"
    statuses: dict[str, int] = {}

    def learn_status(key: str, value: bytes | None, _revision: int) -> None:
        if value is not None:
            statuses[key] = msgspec.json.decode(value).get("revision", 0)

    await (await bus.bucket("moorage-status").mirror(learn_status)).stop()
    assert all(revision <= heads.get(key, revision) for key, revision in statuses.items())
    await follower.stop()


async def test_damaged_files_are_refused_and_restore_nothing(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "mesh.backup"
    await backed_up(mesh, file)
    archive = file.read_bytes()
    rng = random.Random(4)
    used = len(archive.rstrip(b"\0"))  # the rest is only padding
    damaged = {f"cut at {at}": archive[:at] for at in (0, 1, 511, 512, 5000, used // 2, used - 1)}
    offsets = {i * 512 for i in range(used // 512)}
    body = [at for at in range(used) if archive[at] and at - at % 512 in offsets]
    for at in rng.sample(body, 12):
        damaged[f"changed at {at}"] = archive[:at] + bytes([archive[at] ^ 0x55]) + archive[at + 1 :]
    for what, content in damaged.items():
        place = tmp_path / "place"
        (bad := tmp_path / "bad").write_bytes(content)
        done = await asyncio.to_thread(restore, bad, place)
        if done.returncode == 0:  # a byte of padding or of a date in the tar, which has no meaning
            assert what.startswith("changed"), what
            continue
        assert done.returncode == 1, (what, done.stderr)
        assert b"damaged" in done.stderr or b"not a backup" in done.stderr, (what, done.stderr)
        assert not (place / "nats").exists() or not any((place / "nats").rglob("*.blk")), what
    assert restore("-", tmp_path / "piped", archive).returncode == 0


async def test_restore_needs_an_empty_mesh(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "mesh.backup"
    await backed_up(mesh, file)
    running = await mesh.arun("restore", str(file))
    assert running.returncode == 4 and b"already running" in running.stderr
    other = Mesh(state=tmp_path / "other")
    other.environment = {"MOORAGE_NATS_URL": mesh.endpoint["nats"], "MOORAGE_NATS_SEED": mesh.endpoint["natsSeed"]}
    beside = await other.arun("restore", str(file))
    assert beside.returncode == 4 and b"workers are running" in beside.stderr, beside.stderr
    place = tmp_path / "place"
    assert (await asyncio.to_thread(restore, file, place)).returncode == 0
    twice = await asyncio.to_thread(restore, file, place)
    assert twice.returncode == 4 and b"not empty" in twice.stderr
    missing = await asyncio.to_thread(restore, tmp_path / "nothing", place)
    assert missing.returncode == 2
    # Also of a stopped mesh: the broker is started for the backup, and the copy is the same.
    resting = Mesh(state=place)
    assert (await resting.arun("backup", str(tmp_path / "rest"))).returncode == 0
    assert (await asyncio.to_thread(restore, tmp_path / "rest", tmp_path / "third")).returncode == 0
    nobody = Mesh(state=tmp_path / "nobody")
    assert (await nobody.arun("backup", str(tmp_path / "none"))).returncode == 6


def test_streams_of_effects_are_copied_before_their_causes() -> None:
    assert STREAMS == [
        "MOORAGE_EVENTS",
        "OBJ_moorage-sim",
        "KV_moorage-status",
        "KV_moorage-desired",
        "OBJ_moorage-snapshots",
        "MOORAGE_LEDGER",
        "KV_moorage-groups",
        "KV_moorage-revisions",
        "KV_moorage-documents",
        "KV_moorage-resources",
        "KV_moorage-classes",
        "KV_moorage-controllers",
        "KV_moorage-clusters",
        "KV_moorage-providers",
        "KV_moorage-machines",
        "KV_moorage-tokens",
    ]
    assert {store.stream for store in installed().stores.values()} - {*STREAMS} == {
        LEASES,
        "KV_moorage-unusable-nodes",
        "MOORAGE_RECORDS",
        "MOORAGE_REJECTED",
    }


async def test_running_clusters_are_brought_to_the_state_of_the_backup(tmp_path: Path) -> None:
    """The mesh is lost and restored to an earlier state. Agents connect with their old keys; objects applied since are
    removed, groups of the backup keep running, and decisions continue."""
    first = Mesh(state=tmp_path / "first")
    document = tmp_path / "fleet.json"
    document.write_bytes(msgspec.json.encode(FLEET))
    first.state.mkdir()
    await asyncio.to_thread(first.start)
    with (tmp_path / "sim.log").open("wb") as log:
        command = [sys.executable, "-m", "moorage.cli", "fleet", "sim", str(document)]
        environment = {**os.environ, "MOORAGE_STATE": str(first.state)}
        clusters = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
    again = Mesh(state=tmp_path / "again")
    try:
        async with MeshClient(first) as driver:
            await eventually(lambda: free_cpu(driver, CPU * CLUSTERS), 40, "the clusters are there")
            await driver.apply(application("stays", pods=2))
            await driver.until_phase("stays", "Running")
            decision = (await driver.why("stays"))["decision"]
            file = tmp_path / "mesh.backup"
            await backed_up(first, file)
            await driver.apply(application("later"))
            await driver.until_phase("later", "Running")
            await driver.apply(application("stays", pods=2, image="later"))
            await driver.until_phase("stays", "Running")
            await eventually(lambda: free_cpu(driver, CPU * CLUSTERS - 3), 40, "all pods run")
        await asyncio.to_thread(first.stop)
        shutil.rmtree(first.state)
        assert (await asyncio.to_thread(restore, file, again.state)).returncode == 0
        await asyncio.to_thread(again.start)
        assert again.endpoint["nats"] == first.endpoint["nats"], "agents have this address"
        async with MeshClient(again) as driver:
            await eventually(
                lambda: free_cpu(driver, CPU * CLUSTERS - 2), 40, "what came later is gone from the clusters"
            )
            await driver.until_phase("stays", "Running")
            assert (await driver.why("stays"))["decision"] == decision
            await driver.apply(application("next"))
            await driver.until_phase("next", "Running")
            await driver.delete(["stays", "next"])
            await eventually(lambda: free_cpu(driver, CPU * CLUSTERS), 40, "nothing is left")
            assert clusters.poll() is None
    finally:
        clusters.terminate()
        clusters.wait(60)
        await asyncio.to_thread(first.stop)
        await asyncio.to_thread(again.stop)


async def free_cpu(driver: MeshClient, cores: int) -> bool:
    """Returns the free CPU after claims and after all pods that the clusters report."""
    found = (await driver.http("/v1/clusters"))["items"]
    ready = [one for one in found if one["state"] == "Ready"]
    return len(ready) == CLUSTERS and sum(int(one["free"]["cpu"]) for one in ready) == cores
