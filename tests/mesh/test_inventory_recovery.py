"""Kills, suspends and restarts the inventory, Redis and the broker: no cluster vanishes, and every event is stored once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from moorage.bus import Bus, NoAnswer, subjects
from moorage.bus.kv import Bucket
from moorage.fleet import Fleet
from moorage.fleet.redis_store import STREAM, FleetStore, GenerationChanged
from moorage.inventory.core.cluster_ids import ClusterRecord
from moorage.model.names import cluster_tokens
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.inventory_harness import InventoryHarness, content, free, nodes
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer, RedisServer


async def test_an_emptied_redis_is_written_again(inventories: InventoryHarness, redis: RedisServer) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    for i in range(20):
        await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 20)
    client = Redis.from_url(redis.url)
    await client.flushall()
    await inventories.report("lab/c3", "s3", nodes=nodes(1, cpu="16"))
    await until(lambda: free(fleet, "lab/c3", "n-0") == 16000)
    late = await inventories.follow()
    await until(lambda: content(late) == content(fleet))
    assert len(late.ids) == 20
    await client.aclose()


async def test_a_killed_redis_is_written_again(inventories: InventoryHarness, redis: RedisServer) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    for i in range(5):
        await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 5)
    seen: list[int] = []
    fleet.on_change.append(lambda _: seen.append(len(fleet.ids)))
    redis.kill()
    await inventories.report("lab/c1", "s1", nodes=nodes(1, cpu="16"))  # reports are accepted all the same
    await inventories.report("lab/new", "new", "full", nodes=nodes())
    assert len(fleet.ids) == 5
    redis.start()
    await until(lambda: free(fleet, "lab/c1", "n-0") == 16000 and "lab/new" in fleet.ids, 15)
    late = await inventories.follow()
    await until(lambda: content(late) == content(fleet))
    assert min(seen) >= 5, "clusters never vanished"
    await until(lambda: all(follower.healthy for follower in inventories.followers))


async def test_a_redis_with_older_data_is_written_again(inventories: InventoryHarness, redis: RedisServer) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 1)
    client = Redis.from_url(redis.url)
    keys: list[Any] = [key async for key in client.scan_iter() if key != STREAM.encode()]
    dump = {key: await client.dump(key) or b"" for key in keys}
    await inventories.report("lab/a", "s", nodes=nodes(1, cpu="16"))
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
        except GenerationChanged:
            return False
        finally:
            await store.close()
        return free(late, "lab/a", "n-0") == 16000

    async with asyncio.timeout(60):
        while not await loaded():  # noqa: ASYNC110 - Redis announces nothing
            await asyncio.sleep(0.05)
    await inventories.report("lab/a", "s", nodes=nodes(1, cpu="8"))
    await until(lambda: free(fleet, "lab/a", "n-0") == 8000)
    await client.aclose()


async def test_a_killed_inventory_is_replaced_without_losing_clusters(inventories: InventoryHarness) -> None:
    process = inventories.process()
    fleet = await inventories.follow()
    for i in range(5):
        await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes(), labels={"region": "eu"})
    await until(lambda: len(fleet.ids) == 5)
    before = content(fleet)
    seen: list[int] = []
    fleet.on_change.append(lambda _: seen.append(int(fleet.usable.sum())))
    process.send_signal(signal.SIGKILL)
    await inventories.inventory()
    generation = fleet.epoch.generation
    assert (await inventories.report("lab/c0", "s0")).resync
    await until(lambda: fleet.epoch.generation > generation)
    for i in range(5):
        assert not (
            await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes(), labels={"region": "eu"})
        ).resync
    await until(lambda: content(fleet) == before)
    assert min(seen) == 15, "rows never vanished"


async def test_after_losing_everything_no_partial_fleet_is_published(
    inventories: InventoryHarness, redis: RedisServer
) -> None:
    first = await inventories.inventory()
    fleet = await inventories.follow()
    for i in range(4):
        await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 4)
    before = content(fleet)
    seen: list[int] = []
    fleet.on_change.append(lambda _: seen.append(int(fleet.usable.sum())))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    redis.kill()
    redis.start()
    await inventories.inventory()
    for i in range(3):
        await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    generation = fleet.epoch.generation
    assert content(fleet) == before
    await inventories.report("lab/c3", "s3", "full", nodes=nodes())
    await until(lambda: fleet.epoch.generation > generation)
    await until(lambda: content(fleet) == before, what="the same numbers too")
    assert set(seen) == {12}


async def test_a_cluster_that_never_reports_again_is_stale(inventories: InventoryHarness, redis: RedisServer) -> None:
    first = await inventories.inventory()
    fleet = await inventories.follow()
    for i in range(2):
        await inventories.report(f"lab/c{i}", f"s{i}", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 2)
    ids = dict(fleet.ids)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    redis.kill()
    redis.start()
    await inventories.inventory()
    generation = fleet.epoch.generation
    await inventories.report("lab/c0", "s0", "full", nodes=nodes())

    async def go_on() -> None:
        while True:
            await asyncio.sleep(0.5)
            await inventories.report("lab/c0", "s0")

    inventories.tasks.append(asyncio.create_task(go_on()))
    await until(lambda: fleet.epoch.generation > generation)
    assert fleet.ids == ids
    assert [fleet.state(ids["lab/c0"]), fleet.state(ids["lab/c1"])] == ["Ready", "Stale"]


async def test_of_two_inventories_one_is_active_and_the_other_takes_over(inventories: InventoryHarness) -> None:
    first, second = await inventories.inventory(), None
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=nodes())
    second = await inventories.inventory()
    await until(lambda: len(fleet.ids) == 1)
    generation = fleet.epoch.generation
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: fleet.epoch.generation > generation)
    assert not second.done()
    assert (await inventories.report("lab/a", "s")).resync
    await inventories.report("lab/a", "s", "full", nodes=nodes(1, cpu="16"))
    await until(lambda: free(fleet, "lab/a", "n-0") == 16000)


async def test_a_suspended_inventory_publishes_nothing_after_it_was_replaced(inventories: InventoryHarness) -> None:
    process = inventories.process()
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 1)
    generation = fleet.epoch.generation
    process.send_signal(signal.SIGSTOP)
    await inventories.inventory()
    await until(lambda: fleet.epoch.generation > generation, 15)
    generation = fleet.epoch.generation
    process.send_signal(signal.SIGCONT)
    await until(lambda: process.poll() is not None, 40, "it ends, to be started again")
    await inventories.report("lab/a", "s2", "full", nodes=nodes(1, cpu="16"), succeeds="s")
    await until(lambda: free(fleet, "lab/a", "n-0") == 16000)
    assert fleet.epoch.generation == generation
    assert inventories.followers[0].loads == 2


class Held:
    """Holds writes of a cluster id back, as if under way in the network, until told to deliver them."""

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


async def numbers(inventories: InventoryHarness) -> dict[str, int]:
    """Returns the ids as they are stored."""
    found: dict[str, int] = {}
    for name in ("first", "x", "y"):
        entry = await inventories.bus.bucket("moorage-clusters").get(cluster_tokens(f"lab/{name}"))
        assert entry is not None
        found[f"lab/{name}"] = msgspec.json.decode(entry.value, type=ClusterRecord).id
    return found


@pytest.mark.parametrize("again", [False, True], ids=["is heard", "a third one begins"])
async def test_a_cluster_id_written_late_is_not_assigned_twice(
    inventories: InventoryHarness, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    held = Held(monkeypatch, inventories.bus)
    first = await inventories.inventory()
    await inventories.report("lab/first", "s", "full", nodes=nodes())
    fleet = await inventories.follow()
    held.holding.add(cluster_tokens("lab/y"))
    request = asyncio.create_task(inventories.report("lab/y", "y", "full", nodes=nodes()))
    await until(lambda: bool(held.writes))
    request.cancel()
    first.cancel()
    await asyncio.gather(request, first, return_exceptions=True)
    second = await inventories.inventory()
    await inventories.report("lab/x", "x", "full", nodes=nodes())
    await until(lambda: "lab/x" in fleet.ids, 10)
    await held.arrive()
    if again:
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await inventories.inventory()
        await inventories.report("lab/first", "s2", "full", nodes=nodes(), succeeds="s")
        assert len(set((await numbers(inventories)).values())) == 3, "before anybody hears of it"
    await inventories.report("lab/y", "y2", "full", nodes=nodes(2))
    await inventories.report("lab/x", "x2", "full", nodes=nodes(), succeeds="x")
    await until(lambda: len(fleet.ids) == 3)
    assert fleet.ids == await numbers(inventories)
    assert (fleet.ids["lab/first"], fleet.ids["lab/x"]) == (0, 1)
    assert sorted(fleet.ids.values()) == [0, 1, fleet.ids["lab/y"]]
    assert [len(fleet.nodes_of(fleet.ids[name])) for name in ("lab/x", "lab/y")] == [3, 2]
    late = await inventories.follow()
    await until(lambda: content(late) == content(fleet))


async def test_an_event_is_published_once_after_a_kill_between_state_and_event(
    inventories: InventoryHarness, tmp_path: Path
) -> None:
    failpoints = Failpoints(tmp_path)
    process = inventories.process(**failpoints.environment)

    async def died() -> None:
        nonlocal process
        await until(lambda: process.poll() is not None, 40, "it comes to that point")
        process = inventories.process(**failpoints.environment)

    async def edit(body: bytes) -> None:
        while True:
            with contextlib.suppress(NoAnswer):
                assert await inventories.bus.request(subjects.CLUSTERS_SET, body, timeout=1) == b'{"accepted":true}'
                return
            await asyncio.sleep(0.02)

    async def full(session: str, count: int = 3) -> None:
        await inventories.report("lab/a", session, "full", nodes=nodes(count))

    expected: list[tuple[str, Any]] = [("joined", {"nodes": 3})]
    failpoints.arm("inventory.numbered")
    request = asyncio.create_task(full("s"))
    await died()
    await request  # to the next inventory
    await inventories.until_events("lab/a", *expected)
    failpoints.arm("inventory.kept")
    request = asyncio.create_task(edit(b'{"cluster":"lab/a","labels":{"tier":"1"},"cordoned":true,"cause":"who"}'))
    await died()
    await request
    expected.append(("edited", {"labels": {"tier": "1"}, "cordoned": True}))
    assert (await inventories.until_events("lab/a", *expected))[-1][1].cause == "who"
    failpoints.arm("inventory.written")
    await died()  # after some silence
    expected.append(("stale", {}))
    await inventories.until_events("lab/a", *expected)
    failpoints.arm("inventory.written")
    await full("s", 2)
    await died()
    expected.append(("ready", {"nodes": 2}))
    await inventories.until_events("lab/a", *expected)
    failpoints.arm("inventory.kept")
    leaving = asyncio.create_task(inventories.report("lab/a", "s", "full", leaving=True))
    await died()
    await leaving
    expected.append(("gone", {}))
    await inventories.until_events("lab/a", *expected)
    failpoints.arm("inventory.written")
    await full("t")
    await died()
    expected.append(("joined", {"nodes": 3}))
    await inventories.until_events("lab/a", *expected)


async def test_events_that_the_broker_lost_are_republished_once(
    inventories: InventoryHarness, nats: NatsServer
) -> None:
    await inventories.inventory()
    for name in ("a", "b", "c"):
        await inventories.report(f"lab/{name}", name, "full", nodes=nodes())
    await inventories.report("lab/c", "c", "full", leaving=True)
    silent: list[tuple[str, Any]] = [("joined", {"nodes": 3}), ("stale", {})]
    left: list[tuple[str, Any]] = [("joined", {"nodes": 3}), ("gone", {})]
    await inventories.until_events("lab/a", *silent)
    lost = [*(await inventories.until_events("lab/b", *silent)), *(await inventories.until_events("lab/c", *left))[1:]]
    before = {event.id: (event.subject, event.cause, event.data) for _, event in lost}
    for seq, _ in lost:  # as if the broker had them only in memory
        body = msgspec.json.encode({"seq": seq})
        assert b'"success":true' in await inventories.bus.request("$JS.API.STREAM.MSG.DELETE.MOORAGE_EVENTS", body)
    nats.kill()
    nats.start()
    again = [*(await inventories.until_events("lab/b", *silent)), *(await inventories.until_events("lab/c", *left))[1:]]
    assert {event.id: (event.subject, event.cause, event.data) for _, event in again} == before
    await inventories.until_events("lab/a", *silent)
