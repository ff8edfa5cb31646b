"""Past decisions as users look at them: listed with how they ended, shown with the answers that led to them, and replayed, also
after everything was restarted and the fleet has changed."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from moorage.bus import Bus, subjects
from moorage.bus.jetstream import api
from moorage.ledger.records import decode_batch, digest
from moorage.mesh import stores
from moorage.model.records import DecisionRecord, History
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

APPLICATION = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: %s, project: %s}
spec:
  apps:
    - name: web
      manifests:
        - apiVersion: apps/v1
          kind: Deployment
          metadata: {name: web}
          spec:
            replicas: %d
            selector: {matchLabels: {app: web}}
            template:
              metadata: {labels: {app: web}}
              spec: {containers: [{name: nginx, image: nginx, resources: {requests: {cpu: 500m}}}]}
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    mesh = Mesh("--example", "--workers", "merger=2")
    mesh.environment |= {"MOORAGE_RECORDS_BYTES": "64Mi", "MOORAGE_RECORDS_AGE": "36h"}
    with mesh:
        yield mesh


def ran(mesh: Mesh, *arguments: str, data: bytes | None = None, code: int = 0) -> str:
    done = mesh.run(*arguments, data=data)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    return done.stdout.decode()


def shown(mesh: Mesh, *arguments: str, code: int = 0) -> Any:
    return json.loads(ran(mesh, *arguments, "-o", "json", code=code))


def apply(mesh: Mesh, name: str, pods: int = 1, project: str = "default") -> str:
    """Returns the id of the decision."""
    ran(mesh, "apply", "-f", "-", data=(APPLICATION % (name, project, pods)).encode())
    ran(mesh, "wait", f"{project}/{name}/v1/default", "--for", "phase=Running", "--timeout", "90s")
    (decision,) = shown(mesh, "get", "decisions", "--group", f"{project}/{name}/v1/default")["items"]
    found: str = decision["id"]
    return found


def past(mesh: Mesh) -> dict[str, Any]:
    return {item["id"]: item for item in shown(mesh, "get", "decisions", "--all")["items"]}


def recorded(mesh: Mesh, *decisions: str) -> None:
    """Waits until these decisions are recorded, which they are beside what else is done."""
    wait_until(lambda: all(past(mesh).get(ident, {}).get("recorded") for ident in decisions), "they are recorded")


def test_past_decisions_are_listed_shown_and_replayed_after_a_restart(mesh: Mesh) -> None:
    first = apply(mesh, "shop")
    second = apply(mesh, "shop", pods=2)
    gone = apply(mesh, "gone")
    ran(mesh, "delete", "application", "gone", "--wait")
    recorded(mesh, first, second, gone)
    wait_until(lambda: past(mesh)[gone]["outcome"] == "Withdrawn")
    listed = past(mesh)
    assert (listed[first]["outcome"], listed[first]["replacedBy"]) == ("Replaced", second)
    assert listed[second]["outcome"] == "Current" and listed[second]["recorded"]
    assert listed[gone]["outcome"] == "Withdrawn" and listed[gone]["ended"] > listed[gone]["decided"]
    assert "Withdrawn" in ran(mesh, "get", "decisions", "--all", "--group", "gone")
    before = {ident: shown(mesh, "candidates", "--decision", ident) for ident in (first, second, gone)}
    for ident, found in before.items():
        assert found["recorded"] and found["decision"] == ident and found["choices"]
        chosen = found["choices"][-1]["apps"]["web"]["clusters"]
        assert chosen == listed[ident]["apps"]["web"] == [found["choices"][-1]["apps"]["web"]["best"][0]["cluster"]]
        assert f"{chosen[0]}  score" in ran(mesh, "candidates", "--decision", ident)
    mesh.stop()
    mesh.start()
    ran(mesh, "cluster", "cordon", before[first]["choices"][-1]["apps"]["web"]["clusters"][0])
    later = apply(mesh, "later")
    recorded(mesh, later)
    for ident in (first, second, gone, later):
        assert shown(mesh, "replay", ident)["same"]
        assert "the same decision" in ran(mesh, "replay", ident)
    for ident, found in before.items():
        now = shown(mesh, "candidates", "--decision", ident)
        assert now == found, "what led to a decision does not change"
    assert shown(mesh, "get", "decision", gone)["claims"][0]["slots"][0]["node"]
    assert shown(mesh, "get", "decision", gone)["outcome"] == "Withdrawn"
    checked = next(row for row in shown(mesh, "check")["items"] if row["kind"] == "records")
    assert checked["state"] == "ok" and checked["detail"].startswith("since 20")


def test_a_falsified_record_is_found(mesh: Mesh) -> None:
    decision = apply(mesh, "honest")
    recorded(mesh, decision)

    async def falsify() -> None:
        bus = await Bus.connect(mesh.settings, worker="admin")
        try:
            entries: list[History] = []
            log = bus.log(stores.RECORDS)
            consumer = await log.follow(
                1,
                lambda _, data: entries.append(msgspec.json.decode(data, type=History)),
                keys=subjects.RECORDS_HISTORY,
            )
            await consumer.stop()
            (entry,) = (e for e in entries if any(past.id == decision for past in e.decisions))
            data = await log.get(entry.records)
            assert data is not None
            batch = decode_batch(data)
            record = msgspec.msgpack.decode(batch.records[decision], type=DecisionRecord)
            record.decision.claims[0].slots[0].node = "somewhere-else"
            batch.records[decision] = msgspec.msgpack.encode(record)
            batch.digests[decision] = digest(batch.records[decision])
            changed = zlib.compress(msgspec.msgpack.encode(batch))
            entry.records = await bus.log(stores.RECORDS, subjects.RECORDS_DECISIONS).append(changed)
            await bus.log(stores.RECORDS, subjects.RECORDS_HISTORY).append(entry)
        finally:
            await bus.close()

    asyncio.run(falsify())
    wait_until(lambda: mesh.run("replay", decision).returncode == 1, "the other record is known")
    found = shown(mesh, "replay", decision, code=1)
    (difference,) = found["differences"]
    assert "somewhere-else" in difference["recorded"] and "somewhere-else" not in difference["computed"]
    assert difference["what"].startswith("web Deployment/web on ")
    assert "somewhere-else" in ran(mesh, "replay", decision, code=1)


def test_what_does_not_exist_or_is_misspelt_is_refused(mesh: Mesh) -> None:
    ran(mesh, "replay", "nothing", code=3)
    ran(mesh, "candidates", "--decision", "nothing", code=3)
    ran(mesh, "candidates", code=2)
    ran(mesh, "candidates", "shop", "--decision", "x", code=2)
    ran(mesh, "get", "clusters", "--all", code=2)


def test_a_token_sees_decisions_of_its_projects_only(mesh: Mesh) -> None:
    own, other = apply(mesh, "mine", project="blue"), apply(mesh, "theirs", project="red")
    recorded(mesh, own, other)
    token = ran(mesh, "token", "create", "blue", "--role", "viewer", "--project", "blue").strip()
    environment = {"MOORAGE_URL": mesh.endpoint["http"], "MOORAGE_TOKEN": token}
    mesh.environment |= environment
    try:
        listed = {item["id"] for item in shown(mesh, "get", "decisions", "--all")["items"]}
        assert own in listed and other not in listed
        ran(mesh, "replay", own)
        ran(mesh, "replay", other, code=5)
        ran(mesh, "candidates", "--decision", other, code=5)
    finally:
        for name in environment:
            del mesh.environment[name]


def test_age_and_size_are_settings(mesh: Mesh) -> None:
    async def config() -> dict[str, Any]:
        bus = await Bus.connect(mesh.settings, worker="admin")
        try:
            found: dict[str, Any] = (await api(bus, f"STREAM.INFO.{stores.RECORDS}"))["config"]
            return found
        finally:
            await bus.close()

    found = asyncio.run(config())
    assert (found["max_bytes"], found["max_age"]) == (64 << 20, 36 * 3600 * 10**9)
    assert found["discard"] == "old" and found["persist_mode"] == "async"
