"""Every user of NATS and Redis tries everything: what it needs is allowed, and all else is refused."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry

from moorage.cli.state_dir import StateDirectory
from moorage.cli.up.brokers import redis_server, redis_url, write_redis_conf
from moorage.cli.up.credentials import Credentials
from moorage.mesh import Bucket, ObjectStore, SubjectRow
from moorage.mesh.discovery import installed
from moorage.mesh.permissions import for_agent
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer, free_port, wait_for_port

MESH = installed()
KINDS, TABLE = MESH.users, MESH.subjects
BUILTIN_CONTROLLERS = [spec.name for spec in MESH.builtin_controllers]
BUCKETS = [store.name for store in MESH.stores.values() if isinstance(store, Bucket)]
OBJECTS = [store.name for store in MESH.stores.values() if isinstance(store, ObjectStore)]
WORKERS = [kind for kind in KINDS if kind != "admin"]
OWN, AGENT = "lab.edge=2E1", "agent.lab.edge=2E1"
#: Clusters of others with names similar to that of the agent's.
FOREIGN = ["lab.edge", "lab.edge=2E11", "other.edge=2E1", "*.*", "lab.*", "*.edge=2E1"]
NAMES = [*BUILTIN_CONTROLLERS, "mine", "*"]
EVERY_STREAM = [store.stream for store in MESH.stores.values()]
#: The only writers of each store; every worker may write its own lease.
OWNERS = {
    "moorage-groups": {"intents"},
    "moorage-revisions": {"intents"},
    "moorage-documents": {"intents"},
    "moorage-resources": {"intents"},
    "moorage-classes": {"intents"},
    "moorage-machines": {"slots"},
    "moorage-controllers": {"intents"},
    "moorage-clusters": {"inventory"},
    "moorage-leases": {"inventory", "merger", "patcher", "placement", "slots"},
    "moorage-desired": {"patcher"},
    "moorage-status": {"patcher"},
    "moorage-tokens": {"gateway"},
    "moorage-providers": {"placement"},
    "moorage-unusable-nodes": {"merger"},
    "moorage-snapshots": {"merger"},
    "moorage-sim": {"sim"},
}
READING = ["STREAM.INFO.{}", "CONSUMER.CREATE.{}.c", "CONSUMER.CREATE.{}.c.x", "DIRECT.GET.{}", "STREAM.MSG.GET.{}"]
ENDING = ["STREAM.DELETE.{}", "STREAM.UPDATE.{}", "STREAM.CREATE.{}", "STREAM.MSG.DELETE.{}", "STREAM.RESTORE.{}"]


@pytest.fixture(scope="module")
def broker() -> Iterator[NatsServer]:
    server = NatsServer(secure=True, users={AGENT: for_agent(MESH, "lab/edge.1")})
    server.start()
    yield server
    server.remove()


class User:
    """Tries subjects, and records which of them the broker refused."""

    def __init__(self) -> None:
        self.client = Client()
        self._refused: set[str] = set()

    async def on_error(self, error: Exception) -> None:
        found = re.search(r'permissions violation for (?:publish|subscription) to "([^"]+)"', str(error))
        if found is None:
            raise error
        self._refused.add(found[1])

    async def _answers(self) -> set[str]:
        # The broker reports refusals before it answers a later PING.
        await self.client.flush()
        await self.client.flush()
        found, self._refused = self._refused, set()
        return found

    async def may_say(self, subjects: Iterable[str]) -> set[str]:
        every = set(subjects)
        for subject in every:
            await self.client.publish(subject, b"{}")
        refused = await self._answers()
        return {subject for subject in every if subject.lower() not in refused}

    async def may_hear(self, subjects: Iterable[str]) -> set[str]:
        async def ignore(_: Msg) -> None:
            pass

        every = set(subjects)
        for subject in every:
            await self.client.subscribe(subject, cb=ignore)
        refused = await self._answers()
        return {subject for subject in every if subject.lower() not in refused}


@asynccontextmanager
async def connected(broker: NatsServer, name: str) -> AsyncIterator[User]:
    user = User()
    user.client = await nats.connect(broker.url, nkeys_seed_str=broker.seeds[name], error_cb=user.on_error)
    try:
        yield user
    finally:
        await user.client.close()


def subjects_of(row: SubjectRow, clusters: Iterable[str], names: Iterable[str] = NAMES) -> list[tuple[str, str]]:
    """Returns the subjects of a row, each with the controller or cluster that it names."""
    if "<provider>" in row.pattern:
        made = [(row.pattern.replace("<provider>.<cluster>", cluster), cluster) for cluster in clusters]
    elif row.pattern.startswith("moorage.controllers.*."):
        made = [(row.pattern.replace("*", name, 1), name) for name in names]
    else:
        made = [(row.pattern, "")]
    return [(re.sub(r"\.\*$", ".source", subject).replace(">", "some.thing"), of) for subject, of in made]


def used(kind: str) -> set[str]:
    """Returns the stores that a worker may read."""
    spec = MESH.spec(kind)
    return {*(store.name for store in spec.owns), *spec.writes, *spec.reads}


def may(kind: str, of: str, row: SubjectRow, listed: tuple[str, ...]) -> bool:
    if kind not in listed:
        return False
    if row.pattern.startswith("moorage.controllers.*."):
        if kind in BUILTIN_CONTROLLERS:
            return of == kind
        if kind == "controller":
            return of not in BUILTIN_CONTROLLERS
    return True


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_publishes_the_subjects_of_its_spec_only(broker: NatsServer, kind: str) -> None:
    rows = [(row, subject, of) for row in TABLE for subject, of in subjects_of(row, [OWN], NAMES[:-1])]
    # Two rows may match one subject.
    allowed = {subject for row, subject, of in rows if may(kind, of, row, row.publishers)}
    async with connected(broker, kind) as user:
        assert await user.may_say(subject for _, subject, _ in rows) == allowed


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_subscribes_to_the_subjects_of_its_spec_only(broker: NatsServer, kind: str) -> None:
    rows = [(row, subject, of) for row in TABLE for subject, of in subjects_of(row, [OWN, "*.*"])]
    # The log is read through the stream, by consumers that nobody else can publish to.
    allowed = {subject for row, subject, of in rows if not row.streamed and may(kind, of, row, row.subscribers)}
    async with connected(broker, kind) as user:
        assert await user.may_hear(subject for _, subject, _ in rows) == allowed


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_reads_its_own_inbox_only(broker: NatsServer, kind: str) -> None:
    inboxes = {f"_INBOX.{other}.x" for other in [*KINDS, AGENT]}
    wide = {">", "_INBOX.>", "moorage.>", "$JS.>", "$KV.>", "$O.>", "$SYS.>"}
    async with connected(broker, kind) as user:
        assert await user.may_hear(inboxes | wide) == {f"_INBOX.{kind}.x"}
        assert await user.may_say({*inboxes, "$SYS.REQ.SERVER.PING", "elsewhere"}) == set()


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_writes_its_own_stores_only(broker: NatsServer, kind: str) -> None:
    keys = {f"$KV.{bucket}.key": bucket for bucket in BUCKETS}
    keys |= {f"$O.{bucket}.{part}.x": bucket for bucket in OBJECTS for part in "CM"}
    async with connected(broker, kind) as user:
        assert await user.may_say(keys) == {key for key, bucket in keys.items() if kind in OWNERS[bucket]}


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_reads_the_streams_of_its_spec_only(broker: NatsServer, kind: str) -> None:
    kept = {MESH.stores[name].stream for name in used(kind)}
    asked = {f"$JS.API.{verb.format(stream)}": stream for stream in EVERY_STREAM for verb in READING}
    async with connected(broker, kind) as user:
        assert await user.may_say(asked) == {subject for subject, stream in asked.items() if stream in kept}


def test_only_workers_that_serve_http_read_access_tokens() -> None:
    assert {kind for kind in WORKERS if "moorage-tokens" in used(kind)} == {"gateway", "placement"}


@pytest.mark.parametrize("kind", [*WORKERS, AGENT])
async def test_streams_are_purged_by_their_owner_only(broker: NatsServer, kind: str) -> None:
    purges = {f"$JS.API.STREAM.PURGE.{stream}" for stream in EVERY_STREAM}
    ends = {f"$JS.API.{verb.format(stream)}" for stream in EVERY_STREAM for verb in ENDING}
    # The log is purged up to a snapshot, older objects are deleted, and revisions of deleted groups are forgotten.
    own = {
        "intents": {"KV_moorage-revisions"},
        "merger": {"MOORAGE_LEDGER", "OBJ_moorage-snapshots"},
        "sim": {"OBJ_moorage-sim"},
    }.get(kind, set())
    async with connected(broker, kind) as user:
        assert await user.may_say(purges | ends) == {f"$JS.API.STREAM.PURGE.{stream}" for stream in own}


async def test_an_agent_uses_the_subjects_of_its_own_cluster_only(broker: NatsServer) -> None:
    publishable: set[str] = set()
    subscribable: set[str] = set()
    every: set[str] = set()
    for row in TABLE:
        for subject, of in subjects_of(row, [OWN, *FOREIGN]):
            every.add(subject)
            if of == OWN and "agent" in row.publishers:
                publishable.add(subject)
            if of == OWN and "agent" in row.subscribers:
                subscribable.add(subject)
    assert len(publishable) == 3 and len(subscribable) == 1
    async with connected(broker, AGENT) as agent:
        # The protocol never publishes to a pattern.
        assert await agent.may_say(subject for subject in every if "*" not in subject) == publishable
        assert await agent.may_hear(every) == subscribable


async def test_an_agent_reads_its_inbox_and_no_stream(broker: NatsServer) -> None:
    inboxes = {f"_INBOX.{kind}.x" for kind in KINDS} | {"_INBOX.>", "_INBOX.agent.>", "_INBOX.agent.lab.edge.x"}
    reading = {f"$JS.API.{verb.format(stream)}" for stream in EVERY_STREAM for verb in READING}
    writing = {*(f"$KV.{bucket}.x" for bucket in BUCKETS), *(f"$O.{bucket}.C.x" for bucket in OBJECTS)}
    async with connected(broker, AGENT) as agent:
        own = f"_INBOX.{AGENT}.x"
        assert await agent.may_hear({*inboxes, own, ">", "moorage.>", "$KV.>", "$JS.>"}) == {own}
        assert await agent.may_say(inboxes | reading | writing) == set()


async def test_only_the_responder_of_a_request_can_reply(broker: NatsServer) -> None:
    async with connected(broker, "merger") as merger, connected(broker, "hpa") as hpa:
        got: list[bytes] = []

        async def keep(msg: Msg) -> None:
            got.append(msg.data)

        async def answer(msg: Msg) -> None:
            await hpa.client.publish(msg.reply, b"an answer")

        await merger.client.subscribe("_INBOX.merger.answers", cb=keep)
        await hpa.client.subscribe("moorage.controllers.hpa.candidates", cb=answer)
        await merger.client.flush()
        await hpa.client.flush()
        assert await hpa.may_say(["_INBOX.merger.answers"]) == set()
        await merger.client.publish("moorage.controllers.hpa.candidates", b"{}", reply="_INBOX.merger.answers")
        await until(lambda: got == [b"an answer"])


# -- Redis ------------------------------------------------------------------------------------------------------------

FORBIDDEN_TO_READERS = """
    SET a 1 | DEL a | UNLINK a | HSET h f v | XADD s * f v | EXPIRE a 1 | RENAME a b | MSET a 1 | APPEND a 1
    EVAL return(1) 0 | FLUSHDB"""
FORBIDDEN_TO_ALL = """
    FLUSHALL | SHUTDOWN NOSAVE | CONFIG GET * | CONFIG SET dir /tmp | ACL LIST | ACL WHOAMI | DEBUG SLEEP 0 | SAVE
    REPLICAOF NO ONE | MONITOR | CLIENT KILL TYPE normal | MODULE LIST | BGREWRITEAOF | SWAPDB 0 1 | SLOWLOG RESET"""


def commands(text: str) -> list[str]:
    return [one.strip() for line in text.splitlines() for one in line.split("|") if one.strip()]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Runs a Redis as `moorage up` configures it, and returns a client per user."""
    state = StateDirectory(tmp_path_factory.mktemp("redis"))
    state.make()
    secrets, port = Credentials.open(state, KINDS), free_port()
    write_redis_conf(state, port, secrets)
    with (state.logs / "redis.log").open("ab") as out:
        process = subprocess.Popen([redis_server(), str(state.redis_conf)], stdout=out, stderr=out)
    try:
        wait_for_port(port, process, "redis-server")
        made = {user: Redis.from_url(redis_url(port, secrets, user)) for user in secrets.redis}
        made["nobody"] = Redis(port=port, retry=Retry(NoBackoff(), 0))
        made["default"].set("a", "0")
        yield made
        for client in made.values():
            client.close()
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("user", "forbidden"),
    [("reader", FORBIDDEN_TO_READERS + FORBIDDEN_TO_ALL), ("inventory", FORBIDDEN_TO_ALL)],
    ids=["reader", "inventory"],
)
def test_redis_users_have_the_commands_they_need_only(clients: dict[str, Any], user: str, forbidden: str) -> None:
    allowed = []
    for command in commands(forbidden):
        try:
            clients[user].execute_command(*command.split())
        except NoPermissionError:
            continue
        except ResponseError as error:  # Valkey refuses DEBUG before it looks at the user
            if "not allowed" in str(error):
                continue
            raise
        allowed.append(command)
    assert allowed == []
    assert clients["default"].get("a") == b"0" and clients["default"].dbsize() == 1


def test_redis_readers_read_and_the_inventory_writes(clients: dict[str, Any]) -> None:
    inventory, reader = clients["inventory"], clients["reader"]
    with inventory.pipeline(transaction=True) as pipe:
        pipe.hset("h", "f", "v").xadd("s", {"f": "v"}).incr("n").expire("n", 100)
        pipe.execute()
    assert reader.hgetall("h") == {b"f": b"v"} and reader.hmget("h", ["f"]) == [b"v"] and reader.hkeys("h") == [b"f"]
    assert len(reader.xrevrange("s", count=1)) == 1 and reader.xread({"s": "0"})
    assert reader.ping() and reader.info()["redis_version"]
    assert list(inventory.scan_iter(match="h*")) == [b"h"]
    assert inventory.unlink("h", "s", "n") == 3


def test_redis_needs_a_password(clients: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError):
        clients["nobody"].get("a")
