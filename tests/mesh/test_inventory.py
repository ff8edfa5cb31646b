"""Sends reports over a real broker, and checks the fleet that followers read from a real Redis."""

from __future__ import annotations

import asyncio

from moorage.bus import subjects
from moorage.model.reports import Report
from moorage_testkit.fleets import node
from moorage_testkit.inventory_harness import InventoryHarness, content, free, nodes
from moorage_testkit.polling import until


async def test_reports_reach_a_follower_and_publish_events(inventories: InventoryHarness) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    reply = await inventories.report("lab/edge.1", "s", "full", nodes=nodes(), labels={"region": "eu"})
    assert (reply.resync, reply.refused, reply.period_ms) == (False, "", 2000)
    await until(lambda: free(fleet, "lab/edge.1", "n-1") == 4000)
    assert fleet.clusters.where(label={"region": "eu"}).sum() == 1
    await inventories.report(
        "lab/edge.1", "s", nodes=[node("n-1", cpu="4", requested={"cpu": "1500m"})], nodes_gone=["n-0"]
    )
    await until(lambda: free(fleet, "lab/edge.1", "n-1") == 2500)
    assert fleet.row_of(fleet.ids["lab/edge.1"], "n-0") is None
    as_of = fleet.as_of(fleet.ids["lab/edge.1"])
    await inventories.report("lab/edge.1", "s")
    await until(lambda: fleet.as_of(fleet.ids["lab/edge.1"]) > as_of, what="a heartbeat makes the rows newer")
    await until(lambda: len(inventories.events) >= 2)
    assert [event.subject.split(".")[3] for event in inventories.events[:2]] == ["joined", "changed"]
    late = await inventories.follow()
    await until(lambda: content(late) == content(fleet))


async def test_a_report_in_parts_counts_as_one(inventories: InventoryHarness) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    for part in range(3):
        report = Report(session="s", seq=0, part=(part, 3), kind="full", nodes=[node(f"n-{part}", cpu="1")])
        await inventories.bus.request(
            subjects.reports("lab/a", "agent"), report, timeout=30
        ) if part else await inventories.report("lab/a", "s", "full", part=(0, 3), nodes=report.nodes)
        if part < 2:
            assert not fleet.ids
    await until(lambda: len(fleet.ids) == 1)
    assert sorted(fleet.nodes_of(0)) == ["n-0", "n-1", "n-2"]


async def test_invalid_reports_are_rejected_and_invalid_nodes_named(inventories: InventoryHarness) -> None:
    rejected: list[bytes] = []
    await inventories.bus.subscribe("moorage.rejected.reports", lambda _, data: rejected.append(data))
    await inventories.inventory()
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=[*nodes(2), node("bad", cpu="lots")])
    await until(lambda: len(rejected) == 1)
    assert b"lots" in rejected[0]
    await until(lambda: len(fleet.ids) == 1)
    assert fleet.usable.sum() == 2
    for junk in (b"{", b"[]", b'{"session":1}', b"\xff" * 100, b'{"session":"s","seq":"x"}', b"[" * 100_000):
        answer = await inventories.bus.request(subjects.reports("lab/a", "agent"), junk, timeout=30)
        assert b'"problem"' in answer
    answer = await inventories.bus.request(
        subjects.reports("lab/" + "x" * 300, "agent"), Report(session="t", seq=0, kind="full")
    )
    assert b'"problem"' in answer
    assert not (await inventories.report("lab/a", "s")).resync


async def test_a_silent_cluster_becomes_stale_and_ready_again(inventories: InventoryHarness) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=nodes())
    await until(lambda: fleet.ids == {"lab/a": 0} and fleet.state(0) == "Stale", 10)
    assert not fleet.usable.any()
    await inventories.report("lab/a", "s")
    await until(lambda: fleet.state(0) == "Ready" and fleet.usable.sum() == 3)
    await until(lambda: len(inventories.events) >= 3)
    assert [event.subject.split(".")[3] for event in inventories.events] == ["joined", "stale", "ready"]


async def test_a_cluster_that_left_keeps_its_id(inventories: InventoryHarness) -> None:
    await inventories.inventory()
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=nodes())
    await inventories.report("lab/b", "t", "full", nodes=nodes())
    await inventories.report("lab/a", "s", "full", leaving=True)
    await until(lambda: set(fleet.ids) == {"lab/b"} and len(inventories.events) >= 3)
    assert inventories.events[-1].subject == "moorage.events.fleet.gone.lab.a"
    await inventories.report("lab/c", "u", "full", nodes=nodes())
    await inventories.report("lab/a", "s2", "full", nodes=nodes())
    await until(lambda: len(fleet.ids) == 3)
    assert fleet.ids["lab/a"] == 0


async def test_labels_and_cordons_survive_a_restart(inventories: InventoryHarness) -> None:
    first = await inventories.inventory()
    fleet = await inventories.follow()
    await inventories.report("lab/a", "s", "full", nodes=nodes(), labels={"region": "eu"})
    answer = await inventories.bus.request(
        subjects.CLUSTERS_SET, b'{"cluster":"lab/a","labels":{"tier":"1"},"cordoned":true}'
    )
    assert answer == b'{"accepted":true}'
    await until(lambda: bool(fleet.ids) and fleet.state(0) == "Cordoned")
    assert fleet.cluster_labels(0) == {"region": "eu", "tier": "1"}
    assert b'"NotFound"' in await inventories.bus.request(
        subjects.CLUSTERS_SET, b'{"cluster":"lab/none","cordoned":true}'
    )
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await inventories.inventory()
    await inventories.report("lab/a", "s", "full", nodes=nodes(), labels={"region": "eu"})
    late = await inventories.follow()
    assert late.state(0) == fleet.state(0) == "Cordoned"
    assert late.cluster_labels(0) == fleet.cluster_labels(0) == {"region": "eu", "tier": "1"}
