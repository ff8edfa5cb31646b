"""Followers of the fleet in Redis: gaps, invalid data, new generations and dropped label sets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from moorage.fleet import Epoch, Fleet, FleetFollower, FleetWriter, normalize_node, redis_store
from moorage.fleet.delta import FleetDelta, encode
from moorage.fleet.redis_store import CURRENT, STREAM, FleetStore
from moorage.model.reports import NodeReport
from moorage_testkit.fleets import node, provider, two_zones, writer_of
from moorage_testkit.inventory_harness import InventoryHarness, content, free, nodes
from moorage_testkit.polling import until
from moorage_testkit.servers import RedisServer


async def test_a_follower_reloads_after_a_gap_or_invalid_data(redis: RedisServer) -> None:
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
    # Silently: the stream was truncated, and nothing is ever appended to it again.
    await store.redis.delete(STREAM)
    snapshot = writer.snapshot(0, 1, 8)
    await store.redis.hset("moorage:fleet:1:clusters", "0", snapshot)
    await store.redis.set("moorage:fleet:1:counter", 8)
    await until(lambda: fleet.epoch == Epoch(1, 8))
    assert follower.loads == 4
    await follower.stop()
    await store.close()


async def test_followers_have_what_is_inside_nodes(redis: RedisServer) -> None:
    """Layouts travel with their first use, what is in use with each row; a follower that loads all has the same."""
    cards = [[provider("card", FPGA=str(i + 1))] for i in range(600)]
    reports = [node(f"n-{i}", cpu="8", providers=cards[i], in_use={"card": {"FPGA": "1"}}) for i in range(600)]
    writer, store, fleet = writer_of({"p/a": reports, "p/b": [node(cpu="4")]}), FleetStore(redis.url), Fleet()
    await store.rewrite(1, 1, writer)
    follower = FleetFollower(redis.url, fleet)
    await follower.start()

    def with_room(found: Fleet, name: str, amount: int) -> list[str]:
        columns = found.parts.classes.get(name)
        return [] if columns is None else sorted(found.part_id(row) for row in columns.with_room(amount).tolist())

    assert len(with_room(fleet, "FPGA", 300)) == 300
    made, _ = normalize_node(node("n-0", cpu="4", zones=two_zones("2"), in_use={"numa-1": {"cpu": "1"}}))
    writer.put(1, "p/b", [made])
    await store.write(1, writer.flush(1, 2))
    await until(lambda: with_room(fleet, "cpu", 2000) == ["n-0/any", "n-0/numa-0"])
    made, _ = normalize_node(node("n-0", cpu="4", zones=two_zones("2"), in_use={"numa-0": {"cpu": "1"}}))
    writer.put(1, "p/b", [made])
    await store.write(1, writer.flush(1, 3))
    await until(lambda: with_room(fleet, "cpu", 2000) == ["n-0/any", "n-0/numa-1"])
    assert follower.loads == 1
    other = await store.read(await store.current())
    for name, amount in (("cpu", 1500), ("FPGA", 1), ("FPGA", 599)):
        assert with_room(other, name, amount) == with_room(fleet, name, amount) == with_room(writer.fleet, name, amount)
    await follower.stop()
    await store.close()


async def test_unused_label_sets_are_dropped(inventories: InventoryHarness) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()

    def labelled(at: int) -> list[NodeReport]:
        return [node(f"n-{i}", cpu="4", labels={"at": f"{at}-{i}"}) for i in range(100)]

    await inventories.report("lab/a", "s", "full", nodes=labelled(0))
    await inventories.report("lab/b", "t", "full", nodes=nodes())
    longest = 0
    for at in range(1, 30):
        await inventories.report("lab/a", "s", nodes=labelled(at))
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
    assert inventories.followers[0].loads == 3
    late = await inventories.follow()
    await until(lambda: content(late) == content(fleet))
    assert fleet.epoch.generation == late.epoch.generation


async def test_a_follower_follows_the_newer_generation(redis: RedisServer) -> None:
    old, new = writer_of({"p/a": nodes(cpu="1")}), writer_of({"p/a": nodes(cpu="2")})
    store, fleet = FleetStore(redis.url), Fleet()
    await store.rewrite(1, 1, old)
    follower = FleetFollower(redis.url, fleet)
    await follower.start()
    await store.rewrite(2, 1, new)
    await until(lambda: fleet.epoch.generation == 2)
    assert free(fleet, "p/a", "n-0") == 2000
    # The old inventory has not noticed yet: its writes have no effect.
    row = old.row(0, "n-0")
    assert row is not None
    old.put(0, "p/a", [row._replace(allocatable={"cpu": 9000})])
    with pytest.raises(ResponseError, match="ID"):  # Redis refuses an older position in the stream
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


async def test_a_follower_can_start_before_the_inventory(redis: RedisServer) -> None:
    fleet, store = Fleet(), FleetStore(redis.url)
    follower = FleetFollower(redis.url, fleet)
    starting = asyncio.create_task(follower.start())
    await store.redis.xadd(STREAM, {"p": encode(FleetDelta(1, 1))}, id="1-1")
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    assert not done, "half a fleet is none"
    await store.rewrite(1, 2, FleetWriter())
    await asyncio.wait_for(starting, 30)
    assert follower.healthy
    await follower.stop()
    await store.close()


async def test_what_redis_keeps_does_not_grow_with_what_came_and_went(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest changes are kept, at most about a hundred beyond the bound; all other keys are of what is there now."""
    monkeypatch.setattr(redis_store, "STREAM_LENGTH", 200)
    writer, store = writer_of({"p/a": nodes()}), FleetStore(redis.url)
    await store.rewrite(1, 1, writer)

    async def come_and_go(first: int, last: int) -> tuple[int, int]:
        """Returns the bytes of the stream, and of all other keys."""
        for number in range(first, last):
            writer.put(0, "p/a", claims={f"claim-{number:06}": {"n-0": 1}, f"claim-{number - 1:06}": {}})
            await store.write(1, writer.flush(1, number))
        assert await store.redis.xlen(STREAM) <= 300
        used: dict[Any, int] = {k: await store.redis.memory_usage(k, samples=0) or 0 for k in await store.redis.keys()}
        return used.pop(STREAM.encode()), sum(used.values())

    stream, others = await come_and_go(2, 1000)
    later_stream, later_others = await come_and_go(1000, 3000)
    # Its blocks of a hundred changes are dropped whole.
    assert later_stream <= stream * 1.6 and later_others <= others * 1.1
    assert writer.fleet.pods.claims_of(0).keys() == {"claim-002999"}
    await store.close()
