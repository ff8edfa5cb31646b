"""Tests the permissions of every worker on a real broker."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec
import pytest

from moorage.bus import Bus, Incoming, NoAnswer, Settings
from moorage.mesh import Bucket, Stream
from moorage.mesh.discovery import installed
from moorage.mesh.permissions import agent_user, for_agent, for_user, machines_of
from moorage.mesh.subjects import LEDGER_COMMIT
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

AGENT = "lab/edge.1"
MACHINES = machines_of(AGENT)
MESH = installed()
KINDS, TABLE = MESH.users, MESH.subjects
COMMITTING = next(row.publishers for row in TABLE if row.pattern == LEDGER_COMMIT)
BUCKETS = [store.name for store in MESH.stores.values() if isinstance(store, Bucket)]


def written(kind: str) -> set[str]:
    """Returns the buckets that a worker may write."""
    spec = MESH.spec(kind)
    return {*(store.name for store in spec.owns), *spec.writes} & {*BUCKETS}


def used(kind: str) -> set[str]:
    """Returns the stores that a worker may read."""
    spec = MESH.spec(kind)
    return {*(store.name for store in spec.owns), *spec.writes, *spec.reads}


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    server = NatsServer(secure=True, users={agent_user(place): for_agent(MESH, place) for place in (AGENT, MACHINES)})
    server.start()
    yield server
    server.remove()


async def as_admin(broker: NatsServer) -> Bus:
    admin = await Bus.connect(broker.settings("admin"), worker="admin")
    await admin.provision(installed().stores.values())
    return admin


async def echo(incoming: Incoming) -> bytes:
    return incoming.subject.encode()


async def test_connecting_needs_a_key(broker: NatsServer) -> None:
    with pytest.raises(Exception, match=r"did not answer|[Aa]uthorization"):
        await Bus.connect(Settings(broker.url), worker="merger", timeout=1)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "admin"])
async def test_each_worker_can_use_its_subjects_and_stores(broker: NatsServer, kind: str) -> None:
    admin = await as_admin(broker)
    bus = await Bus.connect(broker.settings(kind), worker=kind)
    received: list[str] = []
    for row in TABLE:
        if kind in row.publishers and "*" not in row.pattern and ">" not in row.pattern and "<" not in row.pattern:
            await admin.subscribe(row.pattern, lambda subject, _: received.append(subject))
            await bus.publish(row.pattern, b"{}")
            await until(functools.partial(received.__contains__, row.pattern), what=f"{kind} says {row.pattern}")
    for bucket in written(kind):
        await bus.bucket(bucket).put("key", b"1")
    for bucket in used(kind) & {*BUCKETS}:
        await (await bus.bucket(bucket).mirror(lambda *_: None)).stop()
        await bus.bucket(bucket).get("key")
    for stream in (name for name in used(kind) if isinstance(MESH.stores[name], Stream)):
        await (await bus.log(stream).follow(1, lambda *_: None)).stop()
    await bus.announce(lambda: {"ok": True})
    answer = msgspec.json.decode(await admin.request(f"$SRV.PING.moorage-{kind}", b"", timeout=30))
    assert answer["name"] == f"moorage-{kind}"
    assert bus.counts.get("errors", 0) == 0, "the broker refused something this kind needs"
    await bus.close()
    await admin.close()


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "admin"])
async def test_no_worker_can_write_the_stores_of_another(broker: NatsServer, kind: str) -> None:
    admin = await as_admin(broker)
    bus = await Bus.connect(broker.settings(kind), worker=kind)
    for bucket in BUCKETS:
        if bucket not in written(kind):
            await bus.publish(f"$KV.{bucket}.mine", b"1")
    if kind not in COMMITTING:
        await bus.publish(LEDGER_COMMIT, b"{}")
    await bus.publish("$JS.API.STREAM.DELETE.MOORAGE_LEDGER", b"")
    await bus.settle()
    for bucket in BUCKETS:
        if bucket not in written(kind):
            assert await admin.bucket(bucket).get("mine") is None
    assert await admin.log("MOORAGE_LEDGER").last() == 0
    assert bus.counts["errors"] > 0
    await bus.close()
    await admin.close()


async def test_what_holds_slots_asks_for_those_of_its_own_cluster_only(broker: NatsServer) -> None:
    admin = await as_admin(broker)
    await admin.serve("moorage.machines.sync.>", echo)
    await admin.serve("moorage.reports.>", echo)
    machines = await Bus.connect(broker.settings(agent_user(MACHINES)), worker=agent_user(MACHINES))
    subject = "moorage.machines.sync.lab.edge=2E1"
    assert (await machines.request(subject, b"{}", timeout=30)).decode() == subject
    for other in ("moorage.machines.sync.lab.edge", "moorage.reports.lab.edge=2E1.agent"):
        with pytest.raises(NoAnswer):
            await machines.request(other, b"{}", timeout=0.3)
    received: list[str] = []
    await machines.subscribe("moorage.machines.changed.lab.edge=2E1", lambda subject, _: received.append(subject))
    await machines.subscribe("moorage.desired.changed.lab.edge=2E1", lambda subject, _: received.append(subject))
    for name in ("desired", "machines"):
        await admin.publish(f"moorage.{name}.changed.lab.edge=2E1", b"")
    await until(lambda: received == ["moorage.machines.changed.lab.edge=2E1"])
    agent = await Bus.connect(broker.settings(agent_user(AGENT)), worker=agent_user(AGENT))
    with pytest.raises(NoAnswer):
        await agent.request(subject, b"{}", timeout=0.3)
    for bus in (agent, machines, admin):
        await bus.close()


def test_an_agent_has_the_rights_of_machines_where_these_have_no_user() -> None:
    both, alone, other = for_agent(MESH, AGENT, machines=True), for_agent(MESH, AGENT), for_agent(MESH, MACHINES)
    for verb in ("publish", "subscribe"):
        inboxes = {"_INBOX.agent.lab.edge=2E1.>", "_INBOX.machines.lab.edge=2E1.>"}
        of_both = {*alone[verb]["allow"], *other[verb]["allow"]} - inboxes
        assert {*both[verb]["allow"]} - inboxes == of_both
    assert not {*alone["publish"]["allow"]} & {*other["publish"]["allow"]}


async def test_an_agent_can_publish_for_its_own_cluster_only(broker: NatsServer) -> None:
    admin = await as_admin(broker)
    await admin.serve("moorage.reports.>", echo)
    await admin.serve("moorage.desired.get.>", echo)
    agent = await Bus.connect(broker.settings("agent.lab.edge=2E1"), worker="agent.lab.edge=2E1")
    for subject in ("moorage.reports.lab.edge=2E1.agent", "moorage.desired.get.lab.edge=2E1"):
        assert (await agent.request(subject, b"{}", timeout=30)).decode() == subject
    for subject in ("moorage.reports.lab.edge.agent", "moorage.desired.get.lab.edge", "moorage.intents.apply"):
        with pytest.raises(NoAnswer):
            await agent.request(subject, b"{}", timeout=0.3)
    received: list[str] = []
    await agent.subscribe("moorage.desired.changed.*.*", lambda subject, _: received.append(subject))
    await agent.subscribe("moorage.desired.changed.lab.edge=2E1", lambda subject, _: received.append(subject))
    for cluster in ("edge", "edge=2E1"):
        await admin.publish(f"moorage.desired.changed.lab.{cluster}", b"")
    await until(lambda: received == ["moorage.desired.changed.lab.edge=2E1"])
    with pytest.raises(NoAnswer):
        await agent.bucket("moorage-groups").get("x")
    await agent.close()
    await admin.close()


async def test_a_custom_controller_cannot_answer_for_a_built_in(broker: NatsServer) -> None:
    admin = await as_admin(broker)
    own = await Bus.connect(broker.settings("controller"), worker="controller")
    await own.serve("moorage.controllers.hpa.candidates", echo)
    await own.serve("moorage.controllers.mine.candidates", echo)
    assert (
        await admin.request("moorage.controllers.mine.candidates", b"{}", timeout=30)
        == b"moorage.controllers.mine.candidates"
    )
    with pytest.raises(NoAnswer):
        await admin.request("moorage.controllers.hpa.candidates", b"{}", timeout=0.3)
    await own.close()
    await admin.close()


def test_every_subject_names_known_users() -> None:
    for row in TABLE:
        assert {*row.publishers, *row.subscribers} <= {*KINDS, "agent", "machines", "node"}, row.pattern


def test_unknown_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="no such user"):
        for_user(MESH, "nobody")
