"""Reports of parts that make no sense, over NATS: what is wrong is left out and told, and the rest stands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.bus import subjects
from moorage.fleet import Fleet
from moorage.parts.layout import MAX_PARTS
from moorage_testkit.inventory_harness import InventoryHarness
from moorage_testkit.polling import until

A = "lab/a"
FINE = {"id": "fine", "inventories": {"VF": "4"}}
BELOW = {"id": "below", "parent": "bad", "inventories": {"VF": "1"}}
DEVICE = {"driver": "d.example.com", "pool": "n", "name": "x"}
ZONES = [{"id": 0, "inventories": {"cpu": "4"}}, {"id": 1, "inventories": {"cpu": "4"}}]


def bad(**fields: Any) -> dict[str, Any]:
    """A provider that makes no sense, and one that hangs on it."""
    return {"providers": [{"id": "bad", "inventories": {"VF": "1"}, **fields}, BELOW, FINE]}


#: What a node reports, and the words with which it is told. Of all of it the fine one stands.
NONSENSE: list[tuple[dict[str, Any], str]] = [
    (bad(parent="nowhere"), "part 'bad': its parent 'nowhere' is unknown or was dropped"),
    (bad(parent="below"), "part 'bad': its parents form a cycle"),
    (bad(parent="bad"), "part 'bad': its parents form a cycle"),
    (bad(inventories={"VF": "-1"}), "part 'bad': VF: '-1' is negative"),
    (bad(inventories={"VF": "NaN"}), "part 'bad': VF: 'NaN' is not a quantity"),
    (bad(inventories={"VF": "1e30"}), "part 'bad': VF: the amount is too large"),
    (bad(inventories={"VF": "1e400"}), "part 'bad': VF: '1e400' is not a quantity"),
    (bad(inventories={"VF": ""}), "part 'bad': VF: '' is not a quantity"),
    (bad(inventories={"VF": {"total": "2", "reserved": "3"}}), "part 'bad': VF: more is reserved than 2"),
    (bad(inventories={"VF": {"total": "2", "allocationRatio": -1}}), "part 'bad': VF: -1.0 is no allocation ratio"),
    (bad(inventories={"VF": {"total": "2", "allocationRatio": 1e300}}), "part 'bad': VF: 1e+300 is no allocation"),
    (bad(inventories={"VF": {"total": "1E", "allocationRatio": 1e6}}), "part 'bad': VF: the amount is too large"),
    (bad(inventories={"VF": {"total": "2", "minUnit": 0}}), "part 'bad': VF: minUnit and stepSize are at least 1"),
    (bad(inventories={"VF": {"total": "2", "minUnit": 3, "maxUnit": 2}}), "part 'bad': VF: maxUnit is less"),
    (
        bad(inventories={"VF": {"total": "2", "minUnit": 1 << 80}}),
        "part 'bad': VF: minUnit and stepSize are at least 1",
    ),
    (bad(inventories={"VF": {"total": "2", "stepSize": 1 << 80}}), "part 'bad': VF: minUnit and stepSize are at least"),
    (bad(inventories={"VF": {"total": "2", "maxUnit": 1 << 80}}), "part 'bad': VF: minUnit and stepSize are at least"),
    (bad(inventories={"MEMORY_MB": {"total": "2", "minUnit": 1 << 50}}), "part 'bad': MEMORY_MB: minUnit and stepSize"),
    (bad(inventories={"VF": "1", "CUSTOM_VF": "2"}), "part 'bad': VF: this class is given twice"),
    (bad(inventories={"V\x1fF": "1"}), "part 'bad': V\x1fF: this is no name of a class"),
    (bad(inventories={"": "1"}), "part 'bad': : this is no name of a class"),
    (bad(id="bad" * 200), "part 'badbad"),
    (bad(id="/bad"), "part '/bad': this is no id"),
    (bad(id="=d.example.com//bad"), "part 'd.example.com/bad': this is no id"),
    ({"providers": [FINE, {"id": ""}]}, "part '': this is no id"),
    ({"providers": [FINE, {"id": "fine", "inventories": {"VF": "9"}}]}, "part 'fine': another part has this id"),
    ({"providers": [FINE], "zones": [{"id": "any"}]}, "part 'any': this id is for what is tied to no zone"),
    ({"providers": [FINE], "zones": [{"id": 0, "cpus": "3-1"}]}, "part 'numa-0': cpus: '3-1' is no list of CPUs"),
    ({"providers": [FINE], "zones": [{"id": 0, "cpus": "0-3,2"}]}, "part 'numa-0': cpus: '0-3,2' names a CPU twice"),
    ({"providers": [FINE], "zones": [{"id": 0, "cpus": "0-99999999"}]}, "part 'numa-0': cpus:"),
    (
        {"providers": [FINE], "devices": [{**DEVICE, "consumes": {"card": {"memory": "1Gi"}}}]},
        "part 'd.example.com/x': it takes of the counter card/memory, which is not there",
    ),
    (
        {"providers": [FINE], "devices": [{**DEVICE, "name": "x/y"}]},
        "part 'd.example.com/x/y': this is no name of a device",
    ),
    ({"providers": [FINE], "devices": [{**DEVICE, "pool": "a//b"}]}, "part 'd.example.com/a/b/x': this is no name"),
    ({"providers": [FINE], "inUse": {"fine": {"VF": "-1"}}}, "part 'fine': in use: VF: '-1' is negative"),
    ({"providers": [FINE], "inUse": {"fine": {"VF": "many"}}}, "part 'fine': in use: VF: 'many' is not a quantity"),
]


def node(**fields: Any) -> dict[str, Any]:
    return {"name": "n", "uid": "n", "allocatable": {"cpu": "8", "pods": "10"}, **fields}


class Site:
    def __init__(self, inventories: InventoryHarness, fleet: Fleet) -> None:
        self.inventories, self.fleet = inventories, fleet
        self.told: list[str] = []
        self.seq = -1

    async def say(
        self, *nodes: dict[str, Any], kind: str = "full", source: str = "agent", **more: Any
    ) -> dict[str, Any]:
        self.seq += 1
        report = {"session": f"s-{source}", "seq": self.seq, "kind": kind, "asOf": 1.0, "nodes": list(nodes), **more}
        answer = await self.inventories.bus.request(
            subjects.reports(A, source), msgspec.json.encode(report), timeout=20
        )
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    def parts(self) -> set[str]:
        fleet = self.fleet
        cid = fleet.ids.get(A)
        row = None if cid is None else fleet.row_of(cid, "n")
        if row is None:
            return set()
        return {path[1:] for path in fleet.inside(row)[1].at if path}

    def tell(self, _subject: str, data: bytes) -> None:
        errors = msgspec.json.decode(data)["problem"]["errors"]
        self.told += [error["message"] for error in errors]


@pytest.fixture
async def site(inventories: InventoryHarness) -> Site:
    await inventories.inventory()
    made = Site(inventories, await inventories.follow())
    await inventories.bus.subscribe("moorage.rejected.>", made.tell)
    await inventories.report(A, "first", "full", nodes=[])
    await inventories.report(A, "first", "full", leaving=True)
    return made


async def test_nonsense_is_left_out_and_told_and_the_rest_stands(site: Site) -> None:
    for fields, words in NONSENSE:
        site.told.clear()
        answer = await site.say(node(**fields))
        assert "problem" not in answer and not answer.get("refused"), (fields, answer)
        await until(lambda words=words: any(f"node n: {words}" in text for text in site.told), 40, words)  # type: ignore[misc]
        await until(lambda: site.parts() == {"fine"}, 40, f"{words}: only one part stands, not {site.parts()}")
        await site.say(node())
        await until(lambda: not site.parts(), 40, "no parts")


async def test_more_parts_than_a_node_may_have(site: Site) -> None:
    many = [{"id": f"p{i}", "inventories": {"VF": "1"}} for i in range(MAX_PARTS + 10)]
    await site.say(node(providers=many))
    await until(lambda: len(site.parts()) == MAX_PARTS - 1, 40, "as many as it may have")
    await until(lambda: any(f"are more than {MAX_PARTS} parts of a node" in text for text in site.told), 40, "told")


async def test_what_is_no_report_changes_nothing(site: Site) -> None:
    await site.say(node(providers=[FINE]))
    await until(lambda: site.parts() == {"fine"}, 40, "a part")
    wrongs: tuple[dict[str, Any], ...] = (
        {"providers": 7},
        {"providers": [{"id": 7}]},
        {"providers": [{"id": "x", "inventories": {"VF": 1}}]},
        {"providers": [{"id": "x", "inventories": {"VF": {"total": "1", "maxUnit": 1.5}}}]},
        {"providers": [{"id": "x", "properties": {"p": {"version": 1}}}]},
        {"zones": [{"id": 1.5}]},
        {"devices": [{"consumes": []}]},
        {"inUse": {"fine": 1}},
        {"counted": "all"},
    )
    for wrong in wrongs:
        answer = await site.say(node(**wrong))
        assert answer["problem"]["code"] == "Undecodable" and answer["problem"]["errors"][0]["path"].startswith(
            "nodes["
        ), wrong
    assert site.parts() == {"fine"}
    await site.say(node(providers=[FINE, {"id": "next"}]))
    await until(lambda: site.parts() == {"fine", "next"}, 40, "reports go on")


async def test_of_two_sources_of_zones_the_node_s_own_counts_and_its_nonsense_is_told_too(site: Site) -> None:
    await site.say(node(zones=ZONES, providers=[FINE]))
    await until(lambda: site.parts() == {"numa-0", "numa-1", "any", "fine"}, 40, "the zones of the cluster's agent")
    own = {"name": "n", "zones": [{"id": 7, "inventories": {"cpu": "8"}}, {"id": 8, "inventories": {"cpu": "-1"}}]}
    site.seq = -1
    await site.say(own, source="node-n")
    await until(lambda: site.parts() == {"numa-7", "any", "fine"}, 40, "the node's own zones")
    await until(lambda: any("part 'numa-8': cpu: '-1' is negative" in text for text in site.told), 40, "told")
    other = {"name": "m", "zones": [{"id": 1, "inventories": {"cpu": "1"}}]}
    await site.say(other, source="node-n", kind="delta")
    await site.say(nodesGone=["n"], source="node-n", kind="delta")
    await until(lambda: site.parts() == {"numa-0", "numa-1", "any", "fine"}, 40, "as the cluster's agent reports")
