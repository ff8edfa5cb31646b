"""Reports over a real broker into a real Redis, and what followers see of it when either is emptied, restarted or cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from moorage.bus import Bus, NoAnswer, Settings, subjects
from moorage.bus.kv import Bucket
from moorage.fleet import Epoch, Fleet, FleetFollower, FleetWriter
from moorage.fleet.delta import FleetDelta, encode
from moorage.fleet.redis_store import CURRENT, STREAM, Changed, FleetStore
from moorage.inventory.core.cluster_ids import ClusterRecord
from moorage.inventory.worker import main
from moorage.model.events import Event
from moorage.model.names import cluster_tokens
from moorage.model.reports import NodeReport, Report, ReportReply
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer, RedisServer

START = "import asyncio; from moorage.bus import Settings; from moorage.inventory.worker import main; asyncio.run(main(Settings.from_env()))"


class Site:
    """A mesh of inventories and followers only; agents are what tests say."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus, self.settings = bus, settings
        self.tasks: list[asyncio.Task[None]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.followers: list[FleetFollower] = []
        self.events: list[Event] = []
        self.seqs: dict[str, int] = {}
        self.session = itertools.count()

    async def inventory(self) -> asyncio.Task[None]:
        task = asyncio.create_task(main(self.settings))
        self.tasks.append(task)
        return task

    def process(self, **more: str) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            **more,
            "MOORAGE_NATS_URL": self.settings.nats_url,
            "MOORAGE_REDIS_URL": self.settings.redis_url,
        }
        process = subprocess.Popen([sys.executable, "-c", START], env=env)
        self.processes.append(process)
        return process

    async def follow(self) -> Fleet:
        fleet = Fleet()
        follower = FleetFollower(self.settings.redis_url, fleet)
        self.followers.append(follower)
        await asyncio.wait_for(follower.start(), 20)
        return fleet

    async def kept(self, cluster: str) -> list[tuple[int, Event]]:
        """What was said of its states, with the numbers in the log."""
        found: list[tuple[int, Event]] = []
        log = self.bus.log("MOORAGE_EVENTS")
        tail = await log.follow(1, lambda seq, data: found.append((seq, msgspec.json.decode(data, type=Event))))
        await tail.stop()
        mine = f"moorage.events.fleet.*.{cluster_tokens(cluster)}".split("*")
        of = [(n, e) for n, e in found if e.subject.startswith(mine[0]) and e.subject.endswith(mine[1])]
        return [(n, e) for n, e in of if ".changed." not in e.subject]

    async def until_kept(self, cluster: str, *wanted: tuple[str, Any]) -> list[tuple[int, Event]]:
        """Exactly these, once each."""
        end = time.monotonic() + 20
        while True:
            try:
                kept = await self.kept(cluster)
            except NoAnswer:  # asked of a broker that was about to die
                assert time.monotonic() < end
                continue
            said = [(e.subject.split(".")[3], msgspec.json.decode(e.data)) for _, e in kept]
            said = [(change, {} if change == "stale" else data) for change, data in said]
            if said == list(wanted) or time.monotonic() > end:
                assert said == list(wanted)
                assert len({e.id for _, e in kept}) == len(kept)
                return kept
            await asyncio.sleep(0.05)

    async def say(self, cluster: str, session: str, kind: str = "delta", **more: Any) -> ReportReply:
        """As agents do: again until somebody answers, in full when asked to."""
        self.seqs[session] = seq = self.seqs.get(session, -1) + 1
        report = Report(session=session, seq=seq, kind=kind, as_of=time.time(), **more)  # type: ignore[arg-type]
        end = time.monotonic() + 20
        while True:
            try:
                answer = await self.bus.request(subjects.reports(cluster, "agent"), report, timeout=2)
                if b'"problem"' not in answer:
                    return msgspec.json.decode(answer, type=ReportReply)
            except NoAnswer:
                pass
            assert time.monotonic() < end, "nobody takes reports"
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for process in self.processes:  # first, so that none outlives an error below
            process.kill()
            process.wait()
        for follower in self.followers:
            await follower.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest_asyncio.fixture
async def site(nats: NatsServer, redis: RedisServer, bus: Bus) -> AsyncIterator[Site]:
    site = Site(bus, nats.settings(redis_url=redis.url))
    await bus.subscribe(
        "moorage.events.fleet.>", lambda _, data: site.events.append(msgspec.json.decode(data, type=Event))
    )
    yield site
    await site.close()


def nodes(count: int = 3, cpu: str = "4") -> list[NodeReport]:
    return [node(f"n-{i}", cpu=cpu, memory="8Gi") for i in range(count)]


def free(fleet: Fleet, cluster: str, name: str, resource: str = "cpu") -> int | None:
    cid = fleet.ids.get(cluster)
    row = None if cid is None else fleet.row_of(cid, name)
    column = fleet.free(resource)
    return None if row is None or column is None else int(column[row])


def content(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cid in fleet.ids.items():
        rows = {}
        for row_name, row in fleet.places(cid).items():
            amounts = {n: (int(r.allocatable[row]), int(r.free[row])) for n, r in fleet.stored.items()}
            labels = fleet.label_sets[fleet.labelset[row]]
            rows[row_name] = (bool(fleet.usable[row]), labels, {n: a for n, a in amounts.items() if any(a)})
        found[name] = (cid, fleet.state(cid), fleet.cluster_labels(cid), rows)
    return found


async def test_reports_reach_a_follower_and_say_so(site: Site) -> None:
    await site.inventory()
    fleet = await site.follow()
    reply = await site.say("lab/edge.1", "s", "full", nodes=nodes(), labels={"region": "eu"})
    assert (reply.resync, reply.refused, reply.period_ms) == (False, "", 2000)
    await until(lambda: free(fleet, "lab/edge.1", "n-1") == 4000)
    assert fleet.clusters.where(label={"region": "eu"}).sum() == 1
    await site.say("lab/edge.1", "s", nodes=[node("n-1", cpu="4", requested={"cpu": "1500m"})], nodes_gone=["n-0"])
    await until(lambda: free(fleet, "lab/edge.1", "n-1") == 2500)
    assert fleet.row_of(fleet.ids["lab/edge.1"], "n-0") is None
    as_of = fleet.as_of(fleet.ids["lab/edge.1"])
    await site.say("lab/edge.1", "s")
    await until(lambda: fleet.as_of(fleet.ids["lab/edge.1"]) > as_of, what="a heartbeat makes the rows newer")
    await until(lambda: len(site.events) >= 2)
    assert [event.subject.split(".")[3] for event in site.events[:2]] == ["joined", "changed"]
    late = await site.follow()
    assert content(late) == content(fleet)


async def test_parts_count_together(site: Site) -> None:
    await site.inventory()
    fleet = await site.follow()
    for part in range(3):
        report = Report(session="s", seq=0, part=(part, 3), kind="full", nodes=[node(f"n-{part}", cpu="1")])
        await site.bus.request(subjects.reports("lab/a", "agent"), report) if part else await site.say(
            "lab/a", "s", "full", part=(0, 3), nodes=report.nodes
        )
        if part < 2:
            assert not fleet.ids
    await until(lambda: len(fleet.ids) == 1)
    assert sorted(fleet.nodes_of(0)) == ["n-0", "n-1", "n-2"]


async def test_a_bad_report_is_refused_and_kept_and_one_bad_node_is_named(site: Site) -> None:
    rejected: list[bytes] = []
    await site.bus.subscribe("moorage.rejected.reports", lambda _, data: rejected.append(data))
    await site.inventory()
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=[*nodes(2), node("bad", cpu="lots")])
    await until(lambda: len(rejected) == 1)
    assert b"lots" in rejected[0]
    await until(lambda: len(fleet.ids) == 1)
    assert fleet.usable.sum() == 2
    for junk in (b"{", b"[]", b'{"session":1}', b"\xff" * 100, b'{"session":"s","seq":"x"}', b"[" * 100_000):
        answer = await site.bus.request(subjects.reports("lab/a", "agent"), junk)
        assert b'"problem"' in answer
    answer = await site.bus.request(
        subjects.reports("lab/" + "x" * 300, "agent"), Report(session="t", seq=0, kind="full")
    )
    assert b'"problem"' in answer
    assert not (await site.say("lab/a", "s")).resync


async def test_redis_is_emptied_and_everything_stands_again(site: Site, redis: RedisServer) -> None:
    await site.inventory()
    fleet = await site.follow()
    for i in range(20):
        await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 20)
    client = Redis.from_url(redis.url)
    await client.flushall()
    await site.say("lab/c3", "s3", nodes=nodes(1, cpu="16"))
    await until(lambda: free(fleet, "lab/c3", "n-0") == 16000)
    end = time.monotonic() + 2
    late = await site.follow()
    assert time.monotonic() < end, "whole again within one report period"
    assert content(late) == content(fleet)
    assert len(late.ids) == 20
    await client.aclose()


async def test_redis_is_killed_and_loses_its_memory(site: Site, redis: RedisServer) -> None:
    await site.inventory()
    fleet = await site.follow()
    for i in range(5):
        await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 5)
    seen: list[int] = []
    fleet.on_change.append(lambda _: seen.append(len(fleet.ids)))
    redis.kill()
    await site.say("lab/c1", "s1", nodes=nodes(1, cpu="16"))  # reports are taken all the same
    await site.say("lab/new", "new", "full", nodes=nodes())
    assert len(fleet.ids) == 5
    redis.start()
    await until(lambda: free(fleet, "lab/c1", "n-0") == 16000 and "lab/new" in fleet.ids, 15)
    late = await site.follow()
    assert content(late) == content(fleet)
    assert min(seen) >= 5, "clusters never vanished"
    assert all(follower.healthy for follower in site.followers)


async def test_redis_comes_back_with_an_older_memory(site: Site, redis: RedisServer) -> None:
    await site.inventory()
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 1)
    client = Redis.from_url(redis.url)
    keys: list[Any] = [key async for key in client.scan_iter() if key != STREAM.encode()]
    dump = {key: await client.dump(key) or b"" for key in keys}
    await site.say("lab/a", "s", nodes=nodes(1, cpu="16"))
    await until(lambda: free(fleet, "lab/a", "n-0") == 16000)
    async with client.pipeline(transaction=True) as pipe:
        pipe.flushall()
        for key, value in dump.items():
            pipe.restore(key, 0, value)
        await pipe.execute()

    async def loaded() -> bool:
        store, late = FleetStore(redis.url), Fleet()
        try:
            current = await store.current()
            late = await store.read(current) if current.generation else late
        except Changed:
            return False
        finally:
            await store.close()
        return free(late, "lab/a", "n-0") == 16000

    async with asyncio.timeout(5):
        while not await loaded():  # noqa: ASYNC110 - Redis does not say when
            await asyncio.sleep(0.05)
    await site.say("lab/a", "s", nodes=nodes(1, cpu="8"))
    await until(lambda: free(fleet, "lab/a", "n-0") == 8000)
    await client.aclose()


async def test_a_killed_inventory_is_replaced_and_no_cluster_vanishes(site: Site) -> None:
    process = site.process()
    fleet = await site.follow()
    for i in range(5):
        await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes(), labels={"region": "eu"})
    await until(lambda: len(fleet.ids) == 5)
    before = content(fleet)
    seen: list[int] = []
    fleet.on_change.append(lambda _: seen.append(int(fleet.usable.sum())))
    process.send_signal(signal.SIGKILL)
    await site.inventory()
    generation = fleet.epoch.generation
    assert (await site.say("lab/c0", "s0")).resync
    await until(lambda: fleet.epoch.generation > generation)
    for i in range(5):
        assert not (await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes(), labels={"region": "eu"})).resync
    assert content(fleet) == before
    assert min(seen) == 15, "rows never vanished"


async def test_inventory_and_redis_lose_everything_and_nothing_half_is_published(
    site: Site, redis: RedisServer
) -> None:
    first = await site.inventory()
    fleet = await site.follow()
    for i in range(4):
        await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 4)
    before = content(fleet)
    seen: list[int] = []
    fleet.on_change.append(lambda _: seen.append(int(fleet.usable.sum())))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    redis.kill()
    redis.start()
    await site.inventory()
    for i in range(3):
        await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    generation = fleet.epoch.generation
    assert content(fleet) == before
    await site.say("lab/c3", "s3", "full", nodes=nodes())
    await until(lambda: fleet.epoch.generation > generation)
    assert content(fleet) == before  # the same numbers too
    assert set(seen) == {12}


async def test_a_cluster_that_never_reports_again_is_stale_not_forgotten(site: Site, redis: RedisServer) -> None:
    first = await site.inventory()
    fleet = await site.follow()
    for i in range(2):
        await site.say(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 2)
    ids = dict(fleet.ids)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    redis.kill()
    redis.start()
    await site.inventory()
    await site.say("lab/c0", "s0", "full", nodes=nodes())
    generation = fleet.epoch.generation
    await until(lambda: fleet.epoch.generation > generation)
    assert fleet.ids == ids
    assert [fleet.state(ids["lab/c0"]), fleet.state(ids["lab/c1"])] == ["Ready", "Stale"]


async def test_of_two_inventories_one_speaks_and_the_other_takes_over(site: Site) -> None:
    first, second = await site.inventory(), None
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=nodes())
    second = await site.inventory()
    await until(lambda: len(fleet.ids) == 1)
    generation = fleet.epoch.generation
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: fleet.epoch.generation > generation)
    assert not second.done()
    assert (await site.say("lab/a", "s")).resync
    await site.say("lab/a", "s", "full", nodes=nodes(1, cpu="16"))
    await until(lambda: free(fleet, "lab/a", "n-0") == 16000)


async def test_an_inventory_that_was_stopped_and_wakes_up_says_nothing_any_more(site: Site) -> None:
    process = site.process()
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 1)
    generation = fleet.epoch.generation
    process.send_signal(signal.SIGSTOP)
    await site.inventory()
    await until(lambda: fleet.epoch.generation > generation, 15)
    generation = fleet.epoch.generation
    process.send_signal(signal.SIGCONT)
    await until(lambda: process.poll() is not None, 10, "it ends, to be started again")
    await site.say("lab/a", "s2", "full", nodes=nodes(1, cpu="16"), succeeds="s")
    await until(lambda: free(fleet, "lab/a", "n-0") == 16000)
    assert fleet.epoch.generation == generation
    assert site.followers[0].loads == 2


class Held:
    """Writes of a number that are under way in the network, until told to arrive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bus: Bus) -> None:
        self._records, self.writes = bus.bucket("moorage-clusters"), list[tuple[str, bytes]]()
        self.holding: set[str] = set()
        create = Bucket.create

        async def held(bucket: Bucket, key: str, value: bytes) -> int:
            if key not in self.holding:
                return await create(bucket, key, value)
            self.writes.append((key, value))
            self.holding.discard(key)
            await asyncio.sleep(60)
            raise NoAnswer(key)

        monkeypatch.setattr(Bucket, "create", held)

    async def arrive(self) -> None:
        for key, value in self.writes:
            await self._records.create(key, value)


async def numbers(site: Site) -> dict[str, int]:
    """As they are written down."""
    found: dict[str, int] = {}
    for name in ("first", "x", "y"):
        entry = await site.bus.bucket("moorage-clusters").get(cluster_tokens(f"lab/{name}"))
        assert entry is not None
        found[f"lab/{name}"] = msgspec.json.decode(entry.value, type=ClusterRecord).id
    return found


@pytest.mark.parametrize("again", [False, True], ids=["is heard", "a third one begins"])
async def test_a_number_that_is_written_too_late_is_nobody_else_s(
    site: Site, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    held = Held(monkeypatch, site.bus)
    first = await site.inventory()
    await site.say("lab/first", "s", "full", nodes=nodes())
    fleet = await site.follow()
    held.holding.add(cluster_tokens("lab/y"))
    asking = asyncio.create_task(site.say("lab/y", "y", "full", nodes=nodes()))
    await until(lambda: bool(held.writes))
    asking.cancel()
    first.cancel()
    await asyncio.gather(asking, first, return_exceptions=True)
    second = await site.inventory()
    await site.say("lab/x", "x", "full", nodes=nodes())
    await until(lambda: "lab/x" in fleet.ids, 10)
    await held.arrive()
    if again:
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await site.inventory()
        await site.say("lab/first", "s2", "full", nodes=nodes(), succeeds="s")
        assert len(set((await numbers(site)).values())) == 3, "before anybody hears of it"
    await site.say("lab/y", "y2", "full", nodes=nodes(2))
    await site.say("lab/x", "x2", "full", nodes=nodes(), succeeds="x")
    await until(lambda: len(fleet.ids) == 3)
    assert fleet.ids == await numbers(site)
    assert (fleet.ids["lab/first"], fleet.ids["lab/x"]) == (0, 1)
    assert sorted(fleet.ids.values()) == [0, 1, fleet.ids["lab/y"]]
    assert [len(fleet.nodes_of(fleet.ids[name])) for name in ("lab/x", "lab/y")] == [3, 2]
    late = await site.follow()
    assert content(late) == content(fleet)


async def test_a_silent_cluster_is_stale_and_comes_back(site: Site) -> None:
    await site.inventory()
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=nodes())
    await until(lambda: fleet.ids == {"lab/a": 0} and fleet.state(0) == "Stale", 10)
    assert not fleet.usable.any()
    await site.say("lab/a", "s")
    await until(lambda: fleet.state(0) == "Ready" and fleet.usable.sum() == 3)
    await until(lambda: len(site.events) >= 3)
    assert [event.subject.split(".")[3] for event in site.events] == ["joined", "stale", "ready"]


async def test_a_cluster_leaves_and_its_number_stays_its_own(site: Site) -> None:
    await site.inventory()
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=nodes())
    await site.say("lab/b", "t", "full", nodes=nodes())
    await site.say("lab/a", "s", "full", leaving=True)
    await until(lambda: set(fleet.ids) == {"lab/b"} and len(site.events) >= 3)
    assert site.events[-1].subject == "moorage.events.fleet.gone.lab.a"
    await site.say("lab/c", "u", "full", nodes=nodes())
    await site.say("lab/a", "s2", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 3)
    assert fleet.ids["lab/a"] == 0


async def test_an_operator_labels_and_cordons_and_a_restart_remembers(site: Site) -> None:
    first = await site.inventory()
    fleet = await site.follow()
    await site.say("lab/a", "s", "full", nodes=nodes(), labels={"region": "eu"})
    answer = await site.bus.request(subjects.CLUSTERS_SET, b'{"cluster":"lab/a","labels":{"tier":"1"},"cordoned":true}')
    assert answer == b'{"accepted":true}'
    await until(lambda: bool(fleet.ids) and fleet.state(0) == "Cordoned")
    assert fleet.cluster_labels(0) == {"region": "eu", "tier": "1"}
    assert b'"NotFound"' in await site.bus.request(subjects.CLUSTERS_SET, b'{"cluster":"lab/none","cordoned":true}')
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await site.inventory()
    await site.say("lab/a", "s", "full", nodes=nodes(), labels={"region": "eu"})
    assert fleet.state(0) == "Cordoned"
    assert fleet.cluster_labels(0) == {"region": "eu", "tier": "1"}


async def test_killed_between_a_state_and_its_event_it_is_said_once(site: Site, tmp_path: Path) -> None:
    failpoints = Failpoints(tmp_path)
    process = site.process(**failpoints.environment)

    async def died() -> None:
        nonlocal process
        await until(lambda: process.poll() is not None, 20, "it comes to that point")
        process = site.process(**failpoints.environment)

    async def edit(body: bytes) -> None:
        while True:
            with contextlib.suppress(NoAnswer):
                assert await site.bus.request(subjects.CLUSTERS_SET, body, timeout=1) == b'{"accepted":true}'
                return
            await asyncio.sleep(0.02)

    async def full(session: str, count: int = 3) -> None:
        await site.say("lab/a", session, "full", nodes=nodes(count))

    said: list[tuple[str, Any]] = [("joined", {"nodes": 3})]
    failpoints.arm("inventory.numbered")
    telling = asyncio.create_task(full("s"))
    await died()
    await telling  # to the next one
    await site.until_kept("lab/a", *said)
    failpoints.arm("inventory.kept")
    telling = asyncio.create_task(edit(b'{"cluster":"lab/a","labels":{"tier":"1"},"cordoned":true,"cause":"who"}'))
    await died()
    await telling
    said.append(("edited", {"labels": {"tier": "1"}, "cordoned": True}))
    assert (await site.until_kept("lab/a", *said))[-1][1].cause == "who"
    failpoints.arm("inventory.written")
    await died()  # after some silence
    said.append(("stale", {}))
    await site.until_kept("lab/a", *said)
    failpoints.arm("inventory.written")
    await full("s", 2)
    await died()
    said.append(("ready", {"nodes": 2}))
    await site.until_kept("lab/a", *said)
    failpoints.arm("inventory.kept")
    leaving = asyncio.create_task(site.say("lab/a", "s", "full", leaving=True))
    await died()
    await leaving
    said.append(("gone", {}))
    await site.until_kept("lab/a", *said)
    failpoints.arm("inventory.written")
    await full("t")
    await died()
    said.append(("joined", {"nodes": 3}))
    await site.until_kept("lab/a", *said)


async def test_what_a_broker_lost_of_events_is_said_again_once(site: Site, nats: NatsServer) -> None:
    await site.inventory()
    for name in ("a", "b", "c"):
        await site.say(f"lab/{name}", name, "full", nodes=nodes())
    await site.say("lab/c", "c", "full", leaving=True)
    silent: list[tuple[str, Any]] = [("joined", {"nodes": 3}), ("stale", {})]
    left: list[tuple[str, Any]] = [("joined", {"nodes": 3}), ("gone", {})]
    await site.until_kept("lab/a", *silent)
    lost = [*(await site.until_kept("lab/b", *silent)), *(await site.until_kept("lab/c", *left))[1:]]
    before = {event.id: (event.subject, event.cause, event.data) for _, event in lost}
    for seq, _ in lost:  # as if it had had them only in memory
        body = msgspec.json.encode({"seq": seq})
        assert b'"success":true' in await site.bus.request("$JS.API.STREAM.MSG.DELETE.MOORAGE_EVENTS", body)
    nats.kill()
    nats.start()
    again = [*(await site.until_kept("lab/b", *silent)), *(await site.until_kept("lab/c", *left))[1:]]
    assert {event.id: (event.subject, event.cause, event.data) for _, event in again} == before
    await site.until_kept("lab/a", *silent)


async def test_a_follower_that_finds_a_gap_or_nonsense_loads_whole(redis: RedisServer) -> None:
    writer, store, fleet = writer_of({"p/a": nodes()}), FleetStore(redis.url), Fleet()
    await store.rewrite(1, 1, writer)
    follower = FleetFollower(redis.url, fleet)
    await follower.start()
    assert (follower.loads, fleet.ids) == (1, {"p/a": 0})

    async def change(counter: int, cpu: int) -> None:
        row = writer.row(0, "n-0")
        assert row is not None
        writer.put(0, "p/a", [row._replace(allocatable={"cpu": cpu})])
        await store.write(1, writer.flush(1, counter))

    await change(2, 5000)
    await until(lambda: free(fleet, "p/a", "n-0") == 5000)
    assert follower.loads == 1
    writer.flush(1, 3)  # lost
    await change(4, 6000)
    await until(lambda: free(fleet, "p/a", "n-0") == 6000)
    assert follower.loads == 2
    await store.redis.xadd(STREAM, {"p": b"nonsense"}, id="1-5")
    await store.redis.set("moorage:fleet:1:counter", 5)
    await until(lambda: follower.loads == 3)
    await change(6, 7000)
    await until(lambda: free(fleet, "p/a", "n-0") == 7000)
    # Quietly: the stream was cut and nothing is ever added to it again.
    await store.redis.delete(STREAM)
    snapshot = writer.snapshot(0, 1, 8)
    await store.redis.hset("moorage:fleet:1:clusters", "0", snapshot)
    await store.redis.set("moorage:fleet:1:counter", 8)
    await until(lambda: fleet.epoch == Epoch(1, 8))
    assert follower.loads == 4
    await follower.stop()
    await store.close()


async def test_labels_that_change_all_the_time_are_forgotten(site: Site) -> None:
    await site.inventory()
    fleet = await site.follow()

    def labelled(at: int) -> list[NodeReport]:
        return [node(f"n-{i}", cpu="4", labels={"at": f"{at}-{i}"}) for i in range(100)]

    await site.say("lab/a", "s", "full", nodes=labelled(0))
    await site.say("lab/b", "t", "full", nodes=nodes())
    longest = 0
    for at in range(1, 30):
        await site.say("lab/a", "s", nodes=labelled(at))
        cid = fleet.ids["lab/a"] if fleet.ids else 0
        await until(
            lambda at=at, cid=cid: (  # type: ignore[misc]
                (row := fleet.row_of(cid, "n-99")) is not None
                and fleet.label_sets[fleet.labelset[row]] == {"at": f"{at}-99"}
            )
        )
        longest = max(longest, len(fleet.label_sets))
        assert {fleet.label_sets[fleet.labelset[row]].get("at") for row in fleet.rows_of(cid)} == {
            f"{at}-{i}" for i in range(100)
        }
        assert free(fleet, "lab/b", "n-0") == 4000
    assert longest < 1300
    assert site.followers[0].loads == 3
    late = await site.follow()
    assert content(late) == content(fleet)
    assert fleet.epoch.generation == late.epoch.generation


async def test_a_follower_believes_the_newer_of_two_generations(redis: RedisServer) -> None:
    old, new = writer_of({"p/a": nodes(cpu="1")}), writer_of({"p/a": nodes(cpu="2")})
    store, fleet = FleetStore(redis.url), Fleet()
    await store.rewrite(1, 1, old)
    follower = FleetFollower(redis.url, fleet)
    await follower.start()
    await store.rewrite(2, 1, new)
    await until(lambda: fleet.epoch.generation == 2)
    assert free(fleet, "p/a", "n-0") == 2000
    # The old one has not noticed yet: its writes change nothing for anybody.
    row = old.row(0, "n-0")
    assert row is not None
    old.put(0, "p/a", [row._replace(allocatable={"cpu": 9000})])
    with pytest.raises(ResponseError, match="ID"):  # Redis refuses an older place in the stream
        await store.write(1, old.flush(1, 2))
    row = new.row(0, "n-1")
    assert row is not None
    new.put(0, "p/a", [row._replace(allocatable={"cpu": 3000})])
    await store.write(2, new.flush(2, 2))
    await until(lambda: free(fleet, "p/a", "n-1") == 3000)
    assert free(fleet, "p/a", "n-0") == 2000
    assert await store.redis.get(CURRENT) == b"2-1"
    await follower.stop()
    await store.close()


async def test_a_follower_starts_before_there_is_a_fleet(redis: RedisServer) -> None:
    fleet, store = Fleet(), FleetStore(redis.url)
    follower = FleetFollower(redis.url, fleet)
    starting = asyncio.create_task(follower.start())
    await store.redis.xadd(STREAM, {"p": encode(FleetDelta(1, 1))}, id="1-1")
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    assert not done, "half a fleet is none"
    await store.rewrite(1, 2, FleetWriter())
    await asyncio.wait_for(starting, 5)
    assert follower.healthy
    await follower.stop()
    await store.close()
