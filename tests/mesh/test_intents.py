"""Tests the intent store with a real broker: acknowledged writes are stored exactly once, also with concurrent writers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

import moorage.cli.example
from moorage.bus import Bus, Incoming, NoAnswer, jetstream, kv, subjects
from moorage.bus.kv import Bucket
from moorage.intents import store, tombstones
from moorage.intents.worker import main
from moorage.mesh.discovery import installed
from moorage.model.groups import Decide, EndedGroups, GroupRecord, Withdraw
from moorage.model.names import group_tokens
from moorage.model.problems import Refused, conflict
from moorage.model.status import GroupStatus
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

EXAMPLE = yaml.safe_load((Path(next(iter(moorage.cli.example.__path__))) / "application.yaml").read_text())
GROUP = "default/app1/v1/default"


def application(name: str = "shop", **changes: Any) -> dict[str, Any]:
    app = {
        "name": "web",
        "manifests": [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web"},
                "spec": {"template": {"spec": {"containers": [{"name": "nginx"}]}}},
            }
        ],
        **changes,
    }
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [app]},
    }


def hpa(name: str = "more", group: str = "shop", app: str = "web", cpu: Any = 2) -> dict[str, Any]:
    consumer = {
        "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "container": "nginx",
        "needs": [{"resource": "cpu", "requests": cpu}],
    }
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "HpaIntent",
        "metadata": {"name": name},
        "spec": {"group": group, "app": app, "consumers": [consumer]},
    }


class Mesh:
    """A client that records everything the intent store publishes."""

    def __init__(self, bus: Bus, nats: NatsServer) -> None:
        self.bus, self.nats = bus, nats
        self.decides: list[Decide] = []
        self.withdraws: list[Withdraw] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.workers: list[asyncio.Task[None]] = []
        self.groups: Bucket = bus.bucket("moorage-groups")

    async def listen(self) -> None:
        decide, withdraw = msgspec.json.Decoder(Decide), msgspec.json.Decoder(Withdraw)
        await self.bus.subscribe(subjects.GROUPS_DECIDE, lambda _s, d: self.decides.append(decide.decode(d)))
        await self.bus.subscribe(subjects.GROUPS_WITHDRAW, lambda _s, d: self.withdraws.append(withdraw.decode(d)))
        await self.bus.subscribe(
            "moorage.events.intents.>", lambda s, d: self.events.append((s, msgspec.json.decode(d)))
        )

    async def start(self) -> asyncio.Task[None]:
        """Starts one more worker and waits until it answers."""
        task = asyncio.create_task(main(self.nats.settings("intents"), mesh=installed()))
        self.workers.append(task)
        want = len(self.workers)

        async def ready() -> int:
            found: list[bytes] = []
            inbox = f"_INBOX.admin.ready.{want}"
            sub = await self.bus.subscribe(
                inbox, lambda _s, d: found.append(d) if d else None
            )  # empty: no worker answers
            await self.bus.publish("$SRV.PING.moorage-intents", b"", reply=inbox)
            for _ in range(20):
                if len(found) < want:
                    await asyncio.sleep(0.01)
            await sub.unsubscribe()
            return len(found)

        async with asyncio.timeout(60):
            while await ready() < want:
                if task.done():
                    task.result()
        return task

    async def stop(self, task: asyncio.Task[None]) -> None:
        self.workers.remove(task)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def ask(self, subject: str, payload: Any) -> Any:
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        return msgspec.json.decode(await self.bus.request(subject, data, timeout=30))

    async def apply(self, document: Any) -> Any:
        return await self.ask(subjects.INTENTS_APPLY, document)

    async def act(self, verb: str, group: str = "shop") -> Any:
        return await self.ask(subjects.INTENTS_ACT, {"group": group, "verb": verb})

    async def record(self, group: str = "default/shop/v1/default") -> GroupRecord | None:
        entry = await self.groups.get(group_tokens(group))
        return None if entry is None else msgspec.json.decode(entry.value, type=GroupRecord)

    async def the_record(self, group: str = "default/shop/v1/default") -> GroupRecord:
        record = await self.record(group)
        assert record is not None
        return record


@pytest.fixture
def broker(secure_nats: NatsServer) -> Iterator[NatsServer]:
    yield secure_nats


@pytest_asyncio.fixture
async def mesh(broker: NatsServer) -> AsyncIterator[Mesh]:
    bus = await Bus.connect(broker.settings("admin"), worker="admin")
    await bus.provision(installed().stores.values())
    mesh = Mesh(bus, broker)
    await mesh.listen()
    await mesh.start()
    yield mesh
    for task in list(mesh.workers):
        await mesh.stop(task)
    await bus.close()


async def test_an_application_is_stored_announced_and_published(mesh: Mesh) -> None:
    answer = await mesh.apply(EXAMPLE)
    assert answer == {
        "accepted": True,
        "name": "app1",
        "group": GROUP,
        "revision": 1,
        "outcome": "created",
        "state": "Instantiated",
    }
    await until(lambda: bool(mesh.decides and mesh.events))
    record = await mesh.the_record(GROUP)
    assert record.state == "Instantiated" and record.document == EXAMPLE and record.created
    assert mesh.decides[0].record == record.resolved
    assert [len(a.shapes) for a in record.resolved.apps] == [2, 2]
    subject, event = mesh.events[0]
    assert subject == f"moorage.events.intents.accepted.{group_tokens(GROUP)}"
    assert event["data"] == {"group": GROUP, "revision": 1, "state": "Instantiated"}
    assert mesh.decides[0].id == event["id"]  # so that the effects name the event as their cause


async def test_applying_the_same_again_is_unchanged_and_writes_nothing(mesh: Mesh) -> None:
    await mesh.apply(application())
    before = await mesh.groups.get(group_tokens("default/shop/v1/default"))
    reordered = dict(reversed(list(application().items())))
    for document in (application(), reordered, yaml.safe_dump(application()).encode()):
        answer = await mesh.apply(document)
        assert (answer["outcome"], answer["revision"]) == ("unchanged", 1)
    assert await mesh.groups.get(group_tokens("default/shop/v1/default")) == before
    await until(lambda: len(mesh.decides) == 1)


async def test_a_change_makes_a_new_revision_and_keeps_the_old_one(mesh: Mesh) -> None:
    await mesh.apply(application())
    first = await mesh.the_record()
    answer = await mesh.apply(application(replicas=2))
    assert (answer["outcome"], answer["revision"]) == ("updated", 2)
    kept = await mesh.bus.bucket("moorage-revisions").get(group_tokens("default/shop/v1/default") + ".1")
    assert kept is not None and msgspec.json.decode(kept.value, type=GroupRecord) == first
    second = await mesh.the_record()
    assert second.resolved.instantiated == first.resolved.instantiated
    await until(lambda: [d.record.revision for d in mesh.decides] == [1, 2])


async def test_old_revisions_are_kept_up_to_a_number_before_the_one_that_runs(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps all revisions while there is no status, or none ran in full: the one that runs may be as old as the first."""
    for task in list(mesh.workers):
        await mesh.stop(task)
    monkeypatch.setenv("MOORAGE_REVISIONS_KEPT", "5")
    await mesh.start()
    revisions, statuses = mesh.bus.bucket("moorage-revisions"), mesh.bus.bucket("moorage-status")
    name = "default/shop/v1/default"

    images = iter(range(1000))

    async def change(count: int) -> None:
        for _ in range(count):
            document = application()
            container = document["spec"]["apps"][0]["manifests"][0]["spec"]["template"]["spec"]["containers"][0]
            container["image"] = f"nginx:{next(images)}"
            assert (await mesh.apply(document))["accepted"]

    async def kept() -> list[int]:
        keys = await revisions.keys(f"{group_tokens(name)}.*")
        return sorted(int(key.rpartition(".")[2]) for key in keys)

    async def run(revision: int, *, reached: bool = True) -> None:
        status = GroupStatus(group=name, revision=revision, phase="Running", decision="d", version=1, reached=reached)
        await statuses.put(group_tokens(name), msgspec.json.encode(status))

    async def now_kept(*expected: int) -> None:
        async def are() -> bool:
            return await kept() == list(expected)

        await eventually(are, 20, f"revisions {expected} are kept")

    await change(20)
    newest = (await mesh.the_record()).revision
    assert newest == 20 and await kept() == list(range(1, 20))
    await run(20, reached=False)
    await change(10)
    await asyncio.sleep(0.2)  # nothing is to happen
    assert await kept() == list(range(1, 30))
    await run(12)
    await change(10)
    await now_kept(*range(7, 40))
    refused = await mesh.ask(subjects.INTENTS_ACT, {"group": "shop", "verb": "rollback", "revision": 3})
    assert refused["problem"]["status"] == 404
    assert (
        "the oldest is 7" in refused["problem"]["detail"] and "MOORAGE_REVISIONS_KEPT" in refused["problem"]["detail"]
    )
    done = await mesh.ask(subjects.INTENTS_ACT, {"group": "shop", "verb": "rollback", "revision": 7})
    assert done["accepted"] and done["revision"] == 41
    await run(41)
    await change(9)
    await now_kept(*range(36, 50))


async def test_life_cycle_steps_refuse_wrong_states(mesh: Mesh) -> None:
    assert (await mesh.act("terminate"))["problem"]["status"] == 404
    await mesh.apply(application())
    for verb in ("approve", "instantiate", "delete"):
        problem = (await mesh.act(verb))["problem"]
        assert (problem["status"], problem["code"]) == (409, "WrongState") and "Instantiated" in problem["detail"]
    assert (await mesh.act("fly"))["problem"]["code"] == "UnknownVerb"
    assert (await mesh.act("update"))["outcome"] == "unchanged"
    assert (await mesh.act("terminate"))["state"] == "Terminated"
    await until(lambda: [w.revision for w in mesh.withdraws] == [1])
    assert (await mesh.act("terminate"))["problem"]["code"] == "WrongState"
    again = await mesh.apply(application())
    assert (again["revision"], again["state"]) == (2, "Instantiated")
    await mesh.act("terminate")
    assert (await mesh.act("instantiate"))["revision"] == 3
    await mesh.act("terminate")
    await mesh.act("approve")
    # Everything up to revision 3 is withdrawn, so the next revision must be greater, however it is made.
    assert (await mesh.apply(application()))["revision"] == 4


async def test_a_deleted_group_restarts_above_its_withdrawn_revision(mesh: Mesh) -> None:
    await mesh.apply(application())
    await mesh.apply(application(replicas=2))
    await mesh.act("terminate")
    deleted = await mesh.ask(subjects.INTENTS_DELETE, {"kind": "Application", "project": "default", "name": "shop"})
    assert deleted["outcome"] == "deleted" and await mesh.record() is None
    assert (await mesh.ask(subjects.INTENTS_DELETE, {"kind": "Application", "name": "shop"}))["problem"][
        "status"
    ] == 404
    await mesh.start()
    answers = [await mesh.apply(application("shop")) for _ in range(6)]
    assert [(a["outcome"], a["revision"]) for a in answers] == [("created", 3)] + [("unchanged", 3)] * 5


async def test_standalone_intents_are_accepted_before_and_after_the_group(mesh: Mesh) -> None:
    early = await mesh.apply(hpa("early", cpu=2))
    assert (early["outcome"], early["revision"]) == ("created", 0)
    await mesh.apply(application())
    record = await mesh.the_record()
    assert list(record.intents) == ["HpaIntent/early"]
    assert record.resolved.apps[0].shapes[0].resources["cpu"] == 2000
    late = await mesh.apply(hpa("late", group="default/shop/v1/default", cpu="500m"))
    assert (late["outcome"], late["revision"]) == ("created", 2)
    # The needs of two consumers of one container add up in one pod.
    assert (await mesh.the_record()).resolved.apps[0].shapes[0].resources["cpu"] == 2500
    assert (await mesh.apply(hpa("late", cpu="500m", group="default/shop/v1/default")))["outcome"] == "unchanged"
    deleted = await mesh.ask(subjects.INTENTS_DELETE, {"kind": "HpaIntent", "name": "early"})
    assert (deleted["outcome"], deleted["revision"]) == ("deleted", 3)
    assert (await mesh.the_record()).resolved.apps[0].shapes[0].resources["cpu"] == 500
    missing = await mesh.ask(subjects.INTENTS_DELETE, {"kind": "HpaIntent", "name": "early"})
    assert missing["problem"]["status"] == 404


async def test_an_intent_that_contradicts_the_group_is_not_stored(mesh: Mesh) -> None:
    await mesh.apply(application())
    refused = await mesh.apply(hpa("wrong", app="nowhere"))
    assert (refused["accepted"], refused["problem"]["code"]) == (False, "UnknownApp")
    documents = mesh.bus.bucket("moorage-documents")
    assert await documents.get("HpaIntent.default.wrong") is None
    document = application("other")
    document["spec"]["apps"][0]["consumers"] = [
        {"object": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"}}
    ]
    refused = await mesh.apply(document)
    assert (refused["problem"]["status"], refused["problem"]["code"]) == (409, "ConsumerMatchesNothing")
    assert "Deployment/web (apps/v1)" in refused["problem"]["detail"]
    assert await mesh.record("default/other/v1/default") is None


async def test_check_answers_like_apply_and_stores_nothing(mesh: Mesh) -> None:
    checked = await mesh.ask(subjects.INTENTS_CHECK, application())
    assert (checked["outcome"], checked["record"]["revision"]) == ("created", 1)
    assert await mesh.record() is None and not mesh.decides
    await mesh.apply(application())
    unchanged = await mesh.ask(subjects.INTENTS_CHECK, application())
    assert unchanged["outcome"] == "unchanged"
    assert unchanged["record"]["resolved"] == msgspec.to_builtins(await mesh.the_record())["resolved"]
    changed = await mesh.ask(subjects.INTENTS_CHECK, hpa())
    assert (changed["outcome"], changed["record"]["revision"]) == ("updated", 2)
    assert (await mesh.the_record()).revision == 1


async def test_two_stores_write_one_group_concurrently(mesh: Mesh) -> None:
    await mesh.start()
    await mesh.apply(application(replicas=100))
    answers = await asyncio.gather(*(mesh.apply(application(replicas=n)) for n in range(1, 13)))
    assert all(a["accepted"] for a in answers)
    # Every acknowledged change got a revision of its own: none was overwritten.
    assert sorted(a["revision"] for a in answers) == list(range(2, 14))
    last = next(n for n, a in enumerate(answers, 1) if a["revision"] == 13)
    record = await mesh.the_record()
    assert (record.revision, record.resolved.apps[0].replicas) == (13, last)
    # A revision is kept as it was acknowledged.
    acknowledged = {1: 100} | {answer["revision"]: n for n, answer in enumerate(answers, 1)}
    revisions = mesh.bus.bucket("moorage-revisions")
    for revision in range(1, 13):
        kept = await revisions.get(f"{group_tokens(record.group)}.{revision}")
        assert kept is not None
        found = msgspec.json.decode(kept.value, type=GroupRecord)
        assert (found.revision, found.resolved.apps[0].replicas) == (revision, acknowledged[revision])


async def test_a_kept_revision_is_the_newest_that_was_stored_of_it(mesh: Mesh) -> None:
    await mesh.apply(application())
    revisions, key = mesh.bus.bucket("moorage-revisions"), group_tokens("default/shop/v1/default")
    # As if a store that knew an earlier record of this revision had died between its two writes.
    earlier = msgspec.structs.replace(await mesh.the_record(), state="Approved")
    await revisions.put(f"{key}.1", msgspec.json.encode(earlier))
    assert (await mesh.act("terminate"))["accepted"]
    terminated = await mesh.the_record()
    assert (terminated.revision, terminated.state) == (1, "Terminated")
    assert (await mesh.apply(application(replicas=2)))["revision"] == 2
    kept = await revisions.get(f"{key}.1")
    assert kept is not None and msgspec.json.decode(kept.value, type=GroupRecord) == terminated


async def test_two_stores_write_many_groups_concurrently(mesh: Mesh) -> None:
    await mesh.start()
    answers = await asyncio.gather(*(mesh.apply(application(f"shop-{n % 100}")) for n in range(200)))
    assert sorted(a["outcome"] for a in answers) == ["created"] * 100 + ["unchanged"] * 100
    await until(lambda: len({d.record.group for d in mesh.decides}) == 100)


async def test_a_restarted_store_completes_interrupted_writes(mesh: Mesh) -> None:
    await mesh.apply(application())
    await mesh.stop(mesh.workers[0])
    # As if the store had died between its two writes: the intent is stored, but not resolved into the group.
    await mesh.bus.bucket("moorage-documents").put("HpaIntent.default.more", msgspec.json.encode(hpa()))
    await mesh.start()
    async with asyncio.timeout(60):
        while (record := await mesh.the_record()).revision == 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert list(record.intents) == ["HpaIntent/more"]
    await until(lambda: [d.record.revision for d in mesh.decides] == [1, 2])
    assert (await mesh.apply(application()))["outcome"] == "unchanged"


async def test_the_store_survives_a_restart_of_the_broker(mesh: Mesh, broker: NatsServer) -> None:
    await mesh.apply(application())
    broker.kill()
    broker.start()

    async def applied(document: Any) -> Any:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Exception):
                    answer = await mesh.apply(document)
                    if answer["accepted"] or answer["problem"]["status"] != 503:
                        return answer
                await asyncio.sleep(0.1)

    assert (await applied(application()))["outcome"] == "unchanged"
    assert (await applied(application(replicas=3)))["revision"] == 2


async def test_operator_settings_outlive_the_registration_of_a_controller(mesh: Mesh) -> None:
    controllers = mesh.bus.bucket("moorage-controllers")

    async def stored(name: str) -> Any:
        entry = await controllers.get(name)
        return None if entry is None else msgspec.json.decode(entry.value)

    register, leave = "moorage.controllers.only-eu.register", "moorage.controllers.only-eu.leave"
    assert (await mesh.ask(register, {"deadlineMs": 200}))["accepted"]
    assert await stored("only-eu") == {"name": "only-eu", "deadlineMs": 200}
    await mesh.ask(subjects.CONTROLLERS_SET, {"name": "only-eu", "policy": "required", "deadlineMs": 300})
    await mesh.ask(register, {"deadlineMs": 200, "weight": 2})
    assert await stored("only-eu") == {
        "name": "only-eu",
        "deadlineMs": 300,
        "policy": "required",
        "weight": 2,
        "pinned": ["deadline_ms", "policy"],
    }
    await mesh.ask(leave, {})
    assert (await stored("only-eu"))["placement"] is False
    await mesh.ask(register, {})
    assert (await stored("only-eu"))["policy"] == "required"
    await mesh.ask(subjects.CONTROLLERS_SET, {"name": "plain", "deadlineMs": 100})
    assert (await stored("plain"))["deadlineMs"] == 100
    await mesh.ask("moorage.controllers.v=2E1.register", {})
    assert (await stored("v=2E1"))["name"] == "v.1"
    await mesh.ask("moorage.controllers.v=2E1.leave", {})
    assert await stored("v=2E1") is None
    refused = await mesh.ask(subjects.CONTROLLERS_SET, {"name": "plain", "deadlineMs": -1, "weight": -3})
    assert [e["path"] for e in refused["problem"]["errors"]] == ["deadlineMs", "weight"]
    await mesh.ask(subjects.CONTROLLERS_SET, {"name": "plain", "remove": True})
    assert await stored("plain") is None


async def test_a_registered_kind_is_validated_by_its_schema_and_resolved(mesh: Mesh) -> None:
    document = {"kind": "ColourIntent", "metadata": {"name": "c"}, "spec": {"group": "shop", "colour": "blue"}}
    assert (await mesh.apply(document))["problem"]["errors"][0]["code"] == "UnknownKind"
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "size": {"type": "integer"}},
        "additionalProperties": False,
        "required": ["colour"],
    }
    assert (await mesh.ask("moorage.controllers.colours.register", {"kinds": {"ColourIntent": schema}}))["accepted"]
    broken = {**document, "spec": {"group": "shop", "colour": "pink", "size": "big"}}
    paths = {e["path"] for e in (await mesh.apply(broken))["problem"]["errors"]}
    assert paths == {"spec.colour", "spec.size"}
    assert (await mesh.apply(document))["accepted"]
    await mesh.apply(application())
    intents = (await mesh.the_record()).resolved.intents
    assert [(i.kind, msgspec.json.decode(i.spec)["colour"]) for i in intents] == [("ColourIntent", "blue")]
    bad = await mesh.ask("moorage.controllers.x.register", {"kinds": {"HpaIntent": {}, "X": {"type": 3}}})
    assert {e["path"] for e in bad["problem"]["errors"]} == {"kinds.HpaIntent", "kinds.X"}
    concerns = {"concerns": ["parts", "ColourIntent", "zones"], "actionConcerns": [""]}
    bad = await mesh.ask("moorage.controllers.x.register", concerns)
    assert {e["path"] for e in bad["problem"]["errors"]} == {"concerns[2]", "actionConcerns[0]"}


async def test_unreadable_messages_are_answered_and_stored_as_rejected(mesh: Mesh) -> None:
    rejected: list[bytes] = []
    await mesh.bus.subscribe("moorage.rejected.>", lambda _s, d: rejected.append(d))
    for subject in (subjects.INTENTS_APPLY, subjects.INTENTS_CHECK, subjects.INTENTS_DELETE, subjects.INTENTS_ACT):
        for junk in (b"", b"\xff\xfe", b"[1,2]", b"{", b"[" * 100_000, b"{}" + b" " * (1 << 20), b'{"kind": 3}'):
            answer = await mesh.ask(subject, junk)
            assert not answer.get("accepted")
            assert answer["problem"]["status"] in (400, 413), (subject, junk[:20], answer)
    await until(lambda: len(rejected) >= 16)
    assert (await mesh.apply(application()))["accepted"]


async def test_the_store_can_be_cancelled_at_any_moment_of_its_start(mesh: Mesh) -> None:
    for step in range(25):
        task = asyncio.create_task(main(mesh.nats.settings("intents"), mesh=installed()))
        await asyncio.sleep(step * 0.002)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done, f"cancelled {step * 2} ms after its start, it still runs"


async def test_a_deletion_during_a_broker_crash_is_published_once(mesh: Mesh, broker: NatsServer) -> None:
    async def stored_events() -> list[tuple[int, dict[str, Any]]]:
        found: list[tuple[int, dict[str, Any]]] = []
        log = mesh.bus.log("MOORAGE_EVENTS")
        tail = await log.follow(1, lambda seq, data: found.append((seq, msgspec.json.decode(data))))
        await tail.stop()
        return [(seq, event) for seq, event in found if ".intents.deleted." in event["subject"]]

    for name in ("shop", "stays", "again"):
        await mesh.apply(application(name))
    # As if a store had died before it deleted this record.
    tombstone = b'{"revision":1,"told":"x","cause":"who"}'
    await mesh.bus.bucket("moorage-revisions").put(f"{group_tokens('default/stays/v1/default')}.deleted", tombstone)
    for name in ("again", "shop"):
        await mesh.act("terminate", name)
        request = {"kind": "Application", "project": "default", "name": name, "cause": "who"}
        assert (await mesh.ask(subjects.INTENTS_DELETE, request))["outcome"] == "deleted"
    await mesh.apply(application("again"))
    await until(lambda: sum(".deleted." in subject for subject, _ in mesh.events) == 2)
    before = await stored_events()
    for seq, _ in before:  # as if the broker had them only in memory
        assert (await mesh.ask("$JS.API.STREAM.MSG.DELETE.MOORAGE_EVENTS", {"seq": seq}))["success"]
    broker.kill()
    broker.start()
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(NoAnswer):
                if after := await stored_events():
                    break
            await asyncio.sleep(0.1)
    # The oldest come first; those that are stored are not published again.
    ((_, republished),), (_, first) = after, before[1]
    assert {**republished, "time": ""} == {**first, "time": ""} and republished["data"][
        "group"
    ] == "default/shop/v1/default"


async def delete_elsewhere(mesh: Mesh, group: str) -> None:
    """Deletes a group as another store does."""
    tokens = group_tokens(group)
    entry = await mesh.groups.get(tokens)
    assert entry is not None
    revision = msgspec.json.decode(entry.value)["revision"]
    await mesh.bus.bucket("moorage-revisions").put(f"{tokens}.deleted", b'{"revision":%d}' % revision)
    await mesh.groups.delete(tokens, entry.revision)


@pytest.mark.parametrize("is_acknowledged", [False, True])
async def test_a_late_request_does_not_bring_a_deleted_group_back(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, is_acknowledged: bool
) -> None:
    """A client that gets no answer asks again, another store answers, and the client deletes what it made."""
    update, group = kv.Bucket.update, "default/shop/v1/default"
    waits, deleted = asyncio.Event(), asyncio.Event()

    async def slow(bucket: Bucket, key: str, value: bytes, revision: int) -> int:
        at = await update(bucket, key, value, revision)
        if key == group_tokens(group) and not waits.is_set():
            waits.set()
            await deleted.wait()
            if not is_acknowledged:
                raise NoAnswer("the acknowledgement is lost")
        return at

    monkeypatch.setattr(kv.Bucket, "update", slow)
    first = asyncio.create_task(mesh.apply(application()))
    await waits.wait()
    again = asyncio.create_task(mesh.apply(application()))
    await asyncio.sleep(store.MIRRORED + 2)
    await delete_elsewhere(mesh, group)
    deleted.set()
    assert (await first)["revision"] == 1
    assert (await again)["problem"]["status"] == 409
    assert await mesh.record() is None
    assert (await mesh.apply(application()))["revision"] == 2, "a new request makes a new one"


async def test_a_killed_store_loses_nothing_acknowledged(mesh: Mesh) -> None:
    await mesh.stop(mesh.workers[0])
    settings = mesh.nats.settings("intents")
    program = "import asyncio; from moorage.bus import Settings; from moorage.intents.worker import main\nfrom moorage.mesh.discovery import installed\n"
    program += f"asyncio.run(main(Settings({settings.nats_url!r}, {settings.nats_seed!r}), mesh=installed()))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    acknowledged: set[int] = set()
    in_flight = asyncio.Semaphore(32)  # fewer than all, so that a fast store is killed before it has written everything

    async def apply_until_answered(number: int) -> None:
        """Repeats the idempotent request like a client until there is an answer."""
        while True:
            async with in_flight:
                with contextlib.suppress(NoAnswer):
                    data = msgspec.json.encode(application(f"shop-{number}"))
                    answer = msgspec.json.decode(await mesh.bus.request(subjects.INTENTS_APPLY, data, timeout=1))
                    if (answer.get("problem") or {}).get("status") == 503:
                        continue  # so many clients repeat their requests that it is busy
                    assert answer.get("accepted") and answer["revision"] == 1, answer
                    acknowledged.add(number)
                    if len(acknowledged) == 20:
                        process.kill()
                    return
            await asyncio.sleep(0.05)

    clients = [asyncio.create_task(apply_until_answered(n)) for n in range(300)]
    await process.wait()
    before = set(acknowledged)
    for number in before:
        assert (await mesh.the_record(f"default/shop-{number}/v1/default")).state == "Instantiated"
    await mesh.start()
    await asyncio.gather(*clients)
    for number in range(300):
        assert (await mesh.the_record(f"default/shop-{number}/v1/default")).revision == 1
    assert len(before) < 300


@pytest.mark.parametrize(
    ("subject", "command"),
    [
        (subjects.CONTROLLERS_SET, {"name": "strange"}),
        ("moorage.controllers.strange.register", {}),
        ("moorage.controllers.strange.leave", {}),
        (subjects.INTENTS_ACT, {"group": "shop", "verb": "approve"}),
        (subjects.INTENTS_DELETE, {"kind": "HpaIntent", "name": "more"}),
        (subjects.INTENTS_RESOURCE, {"verb": "create", "path": ["projects"]}),
    ],
)
async def test_commands_refuse_unknown_fields(mesh: Mesh, subject: str, command: dict[str, Any]) -> None:
    envelope = {"id": "1", "cause": "2", "traceparent": "3"}
    problem = (await mesh.ask(subject, {**command, **envelope, "bogus": 1}))["problem"]
    assert problem["status"] == 400
    assert [(e["path"], e["code"]) for e in problem["errors"]] == [("bogus", "UnknownField")]
    answer = await mesh.ask(subject, {**command, **envelope})
    assert answer["accepted"] or answer["problem"]["code"] != "Undecodable", answer


async def test_documents_may_carry_envelope_fields(mesh: Mesh) -> None:
    envelope = {"id": "1", "cause": "2", "traceparent": "3"}
    assert (await mesh.apply({**application(), **envelope}))["outcome"] == "created"
    assert (await mesh.apply({**application(), "bogus": 1}))["problem"]["errors"][0]["path"] == "bogus"
    assert (await mesh.apply({**application(), "cause": 1}))["problem"]["errors"][0]["path"] == "cause"
    assert "id" not in (await mesh.the_record()).document


async def test_all_refusals_have_one_form(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(answer: Any, status: int, code: str) -> None:
        assert answer["accepted"] is False
        assert {"type", "title", "status", "code", "detail", "errors"} == set(answer["problem"])
        assert (answer["problem"]["status"], answer["problem"]["code"]) == (status, code)

    refusal(await mesh.apply(b"{"), 400, "Undecodable")
    refusal(await mesh.apply(b" " * (1 << 20)), 413, "TooLarge")
    refusal(await mesh.apply({"kind": "Application"}), 400, "Invalid")

    async def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("moorage.intents.store.GroupStore.apply", broken)
    refusal(await mesh.apply(application()), 500, "Internal")

    go = asyncio.Event()

    async def slow(*_: Any, **__: Any) -> Any:
        await go.wait()
        raise Refused(conflict("it was slow"))

    monkeypatch.setattr("moorage.intents.store.GroupStore.apply", slow)
    asks = [asyncio.ensure_future(mesh.apply(application(f"a{n}"))) for n in range(520)]
    await until(lambda: sum(ask.done() for ask in asks) >= 8)
    go.set()
    answers = await asyncio.gather(*asks)
    busy = [a for a in answers if a["problem"]["code"] == "Busy"]
    assert len(busy) >= 8
    refusal(busy[0], 503, "Busy")


class Log:
    """Answers as mergers do which deleted groups the decision log still knows."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.asked = 0

    async def answer(self, incoming: Incoming) -> EndedGroups:
        self.asked += 1
        return EndedGroups(groups=[g for g in msgspec.json.decode(incoming.data)["groups"] if g in self.known])


async def messages(mesh: Mesh, bucket: str) -> int:
    return int((await jetstream.stream_state(mesh.bus, f"KV_{bucket}", 30.0))["messages"])


async def test_nothing_is_left_of_deleted_groups_that_the_log_forgot(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the workers nor in the broker; a group of the same name begins at 1 then, and above the last revision before."""
    monkeypatch.setattr(tombstones, "KEPT", 0.0)
    monkeypatch.setattr(tombstones, "SWEEP", 0.1)
    monkeypatch.setitem(kv._MARKER, "Nats-TTL", "1s")
    for task in list(mesh.workers):  # started before the times were short
        await mesh.stop(task)
    await mesh.start()
    await mesh.start()
    log = Log("default/known/v1/default")
    await mesh.bus.serve(subjects.MERGER_ENDED, log.answer)
    names = ["known", *(f"gone-{i}" for i in range(30))]
    for name in names:
        assert (await mesh.apply(application(name)))["revision"] == 1
        assert (await mesh.apply(application(name, replicas=2)))["revision"] == 2
        await mesh.act("terminate", name)
        assert (await mesh.act("delete", name))["accepted"]

    async def only_the_known_one() -> bool:
        # Its tombstone and its older revision.
        return (await messages(mesh, "moorage-groups"), await messages(mesh, "moorage-revisions")) == (0, 2)

    await eventually(only_the_known_one, 30, "nothing is left of the others")
    seen = log.asked
    await until(lambda: log.asked >= seen + 6, 10)
    assert await only_the_known_one()
    assert (await mesh.apply(application("gone-0")))["revision"] == 1
    assert (await mesh.apply(application("known")))["revision"] == 3
    await mesh.act("terminate", "known")
    assert (await mesh.act("delete", "known"))["accepted"]
    log.known.clear()

    async def nothing() -> bool:
        return not await messages(mesh, "moorage-revisions")

    await eventually(nothing, 30, "nothing is left of the last one")
    assert (await mesh.apply(application("known")))["revision"] == 1


async def test_tombstones_stay_while_no_merger_answers(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "KEPT", 0.0)
    monkeypatch.setattr(tombstones, "SWEEP", 0.05)
    for task in list(mesh.workers):
        await mesh.stop(task)
    await mesh.start()
    await mesh.apply(application())
    await mesh.act("terminate")
    assert (await mesh.act("delete"))["accepted"]
    await asyncio.sleep(0.5)  # ten looks
    assert (await mesh.apply(application()))["revision"] == 2
