"""The columns against a plain dict of the same fleet, whatever is done to both."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import BOUNDLESS, CORDONED, STALE, Fleet, FleetChange, FleetWriter, NodeRow
from moorage.fleet.delta import HOST, READY, UNSCHEDULABLE, FleetDelta, decode
from moorage.model.part_reports import ProviderReport, ZoneReport
from moorage.model.reports import Taint
from moorage.model.shapes import EXCLUSIVE
from moorage.parts.inside import Inside, encode
from moorage.parts.layout import layout_of
from moorage.podspec.host_ports import EVERY_IP, PREFIX
from moorage_testkit.fleets import fleet_of, node, writer_of

NODES = [f"n{i}" for i in range(9)]
TAINT = (Taint(key="k", effect="NoSchedule"),)

amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 100), max_size=3)
rows = st.builds(
    NodeRow,
    name=st.sampled_from(NODES),
    flags=st.sampled_from([READY, READY | HOST, READY | UNSCHEDULABLE, 0]),
    labels=st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=2),
    taints=st.sampled_from([(), TAINT]),
    allocatable=amounts,
    requested=amounts,
    exclusive=st.sampled_from([-1, -1, 0, 4]),
    extras=st.sampled_from([b"", b"", b'{"zones":[{"id":0}]}']),
    host_ports=st.sampled_from([(), (), ("80/TCP",), ("10.0.0.1:80/TCP", "53/UDP")]),
    inside=st.just(b""),
    in_use=st.just(()),
)
TWO_ZONES = Inside(
    zones=[ZoneReport(id=0, inventories={"cpu": "4"}), ZoneReport(id=1, inventories={"cpu": "4", "memory": "8"})],
    providers=[ProviderReport(id="numa-1/card", parent=1, inventories={"FPGA": "2"}, traits=["CUSTOM_FAST"])],
    node={"cpu": 8000},
)
ONE_CARD = Inside(providers=[ProviderReport(id="card", inventories={"FPGA": "1", "VF": "3"}, aggregates=["a"])])


def _with_parts(row: NodeRow, inside: Inside, amounts: list[int]) -> NodeRow:
    layout = layout_of(encode(inside))
    return row._replace(inside=layout.source, in_use=tuple(amounts[: len(layout.entries)]))


rows = st.one_of(
    rows,
    st.builds(
        _with_parts,
        rows,
        st.sampled_from([TWO_ZONES, TWO_ZONES, ONE_CARD]),
        st.lists(st.integers(0, 4), min_size=6, max_size=6),
    ),
)
claims = st.dictionaries(
    st.sampled_from(["c1", "c2"]),
    st.dictionaries(st.sampled_from([*NODES[:2], ""]), st.integers(1, 3), max_size=2),
    max_size=2,
)
puts = st.tuples(
    st.just("put"),
    st.integers(0, 3),
    st.lists(rows, max_size=9, unique_by=lambda row: row.name),
    st.booleans(),
    st.lists(st.sampled_from(NODES), max_size=3, unique=True),
    claims,
)
steps = st.one_of(
    puts,
    puts,
    st.tuples(st.just("state"), st.integers(0, 3), st.sampled_from([0, STALE, CORDONED])),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("flush")),
)


def ending_of(rows: list[NodeRow], claims: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Returns some of the bound pods: others with another number of rows."""
    found = {
        claim: {name: 1 for name, pods in nodes.items() if name and (pods + len(rows)) % 2}
        for claim, nodes in claims.items()
    }
    return {claim: nodes for claim, nodes in found.items() if nodes}


class Reference:
    def __init__(self) -> None:
        self.rows: dict[int, dict[str, NodeRow]] = {}
        self.states: dict[int, int] = {}
        self.claims: dict[int, dict[str, dict[str, int]]] = {}
        self.ending: dict[int, dict[str, dict[str, int]]] = {}

    def put(
        self, cid: int, rows: list[NodeRow], whole: bool, gone: list[str], claims: dict[str, dict[str, int]]
    ) -> None:
        mine = self.rows.setdefault(cid, {})
        self.states.setdefault(cid, 0)
        if whole:
            mine.clear()
            self.claims[cid] = {}
            self.ending[cid] = {}
        for name in gone:
            mine.pop(name, None)
        mine.update({row.name: row for row in rows})
        held = self.claims.setdefault(cid, {})
        held.update(claims)
        going = self.ending.setdefault(cid, {})
        for claim in claims:
            going.pop(claim, None)
        going.update(ending_of(rows, claims))
        for claim in [claim for claim, nodes in held.items() if not nodes]:
            del held[claim]

    def usable(self, cid: int, row: NodeRow) -> bool:
        return row.flags & ~HOST == READY and self.states[cid] == 0

    def exclusive(self, cid: int, row: NodeRow) -> int:
        if row.exclusive >= 0:
            return row.exclusive
        return 0 if any(other.exclusive >= 0 for other in self.rows[cid].values()) else BOUNDLESS


def assert_free_ports(fleet: Fleet, at: int, row: NodeRow) -> None:
    """The port's resource is free for every IP if nothing uses it, and for one IP if neither that nor every IP is used."""
    used = {text.rpartition("/")[0].rpartition(":")[0] for text in row.host_ports if "80/TCP" in text}
    everywhere, single = fleet.free(f"{PREFIX}80/TCP"), fleet.free(f"{PREFIX}10.0.0.1:80/TCP")
    assert everywhere is not None and single is not None
    assert (everywhere[at] == EVERY_IP) == (not used)
    assert (everywhere[at] >= 1 and single[at] == 1) == (not used & {"", "10.0.0.1"})


def assert_parts(fleet: Fleet, at: int, row: NodeRow) -> None:
    """The parts of a node are those of its layout, in preorder, with what is used of them."""
    parts, layout = fleet.parts, layout_of(row.inside)
    first, found = fleet.inside(at)
    assert found.source == row.inside
    for i, part in enumerate(layout.parts):
        here = first + i
        assert (fleet.part_id(here), fleet.part_row(at, row.name + part.path)) == (row.name + part.path, here)
        assert (parts.node[here], parts.root[here]) == (at, first)
        assert parts.parent[here] == (first + part.parent if i else -1)
        assert parts.traits.sets[parts.trait_set[here]] == part.traits
        assert parts.aggregates.sets[parts.aggregate_set[here]] == part.aggregates
        assert parts.kinds[parts.kind[here]] == part.kind
        below = {j for j, other in enumerate(layout.parts) if other.path.startswith(f"{part.path}/") or j == i}
        assert set(range(i, int(parts.leave[here]) - first)) == below
    for (at_part, name), used in zip(layout.entries, row.in_use, strict=True):
        columns = parts.classes[name]
        position = columns.position(int(fleet.cluster[at]), first + at_part)
        assert position is not None
        inventory = layout.parts[at_part].inventories[name]
        assert (columns.used[position], columns.capacity[position]) == (used, inventory.capacity)


def assert_equal(fleet: Fleet, reference: Reference) -> None:
    every = [row for mine in reference.rows.values() for row in mine.values()]
    assert int((fleet.parts.node[: fleet.parts.n] >= 0).sum()) == sum(len(layout_of(row.inside).parts) for row in every)
    entries = sum(int((columns.row[: columns.n] >= 0).sum()) for columns in fleet.parts.classes.values())
    assert entries == sum(len(row.in_use) for row in every)
    known = {cid for cid in range(fleet.size) if fleet.known[cid]}
    assert known == set(reference.rows)
    assert set(fleet.ids.values()) == known
    assert int((fleet.cluster[: fleet.n] >= 0).sum()) == sum(len(rows) for rows in reference.rows.values())
    assert not fleet.usable[fleet.cluster == -1].any()
    for cid, mine in reference.rows.items():
        assert sorted(fleet.nodes_of(cid)) == sorted(mine)
        assert bool(fleet.usable_clusters[cid]) == (reference.states[cid] == 0)
        places = fleet.places(cid)
        assert sorted(places.values()) == sorted(fleet.rows_of(cid).tolist())
        for name, row in mine.items():
            at = places[name]
            assert (fleet.cluster[at], fleet.node_name(at), fleet.row_of(cid, name)) == (cid, name, at)
            assert fleet.label_sets[fleet.labelset[at]] == row.labels
            assert fleet.taint_sets[fleet.taintset[at]] == row.taints
            assert fleet.port_sets[fleet.portset[at]] == row.host_ports
            assert_free_ports(fleet, at, row)
            assert_parts(fleet, at, row)
            assert bool(fleet.host_label[at]) == bool(row.flags & HOST)
            assert bool(fleet.usable[at]) == reference.usable(cid, row)
            assert bool(fleet.extras(at)) == bool(row.extras)
            for resource in ("cpu", "memory", "gpu"):
                free, allocatable = fleet.free(resource), fleet.allocatable(resource)
                expected = row.allocatable.get(resource, 0), row.requested.get(resource, 0)
                if free is None or allocatable is None:
                    assert expected == (0, 0)
                else:
                    assert (allocatable[at], allocatable[at] - free[at]) == expected
            exclusive = fleet.free(EXCLUSIVE)
            assert exclusive is not None
            assert exclusive[at] == reference.exclusive(cid, row)
        for resource in ("cpu", "gpu"):
            wanted = [row for row in mine.values() if reference.usable(cid, row)]
            free_sum, all_sum = fleet.sums(resource)
            assert all_sum[cid] == sum(row.allocatable.get(resource, 0) for row in wanted)
            left = (row.allocatable.get(resource, 0) - row.requested.get(resource, 0) for row in wanted)
            # Nodes that gave more than they have take nothing from the room that others offer.
            assert free_sum[cid] == sum(max(0, free) for free in left)
        for claim in ("c1", "c2"):
            nodes = reference.claims.get(cid, {}).get(claim, {})
            assert fleet.pods.live(claim, cid) == {name: pods for name, pods in nodes.items() if name}
            assert fleet.pods.present(claim, cid) == sum(nodes.values())
            assert fleet.pods.ending(claim, cid) == reference.ending.get(cid, {}).get(claim, {})


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=14))
def test_a_fleet_its_follower_and_a_loaded_one_are_what_was_put(script: list[Any]) -> None:
    writer, follower, reference = FleetWriter(), Fleet(), Reference()
    snapshots: dict[int, bytes] = {}
    counter = 0
    sums_asked = False
    for step in [*script, ("flush",)]:
        match step:
            case ("put", cid, rows, whole, gone, claims):
                gone = [name for name in gone if name not in {row.name for row in rows}]
                writer.put(
                    cid,
                    f"p/c{cid}",
                    rows,
                    whole=whole,
                    gone=gone,
                    claims=claims,
                    ending=ending_of(rows, claims),
                    as_of=1.0,
                )
                reference.put(cid, rows, whole, gone, claims)
            case ("state", cid, state) if cid in reference.states:
                writer.set_state(cid, state)
                reference.states[cid] = state
            case ("drop", cid) if cid in reference.states:
                writer.drop(cid)
                for held in (reference.rows, reference.states, reference.claims, reference.ending):
                    held.pop(cid, None)
            case ("flush",) if writer.pending:
                counter += 1
                flush = writer.flush(1, counter)
                patch = decode(flush.patch)
                follower.apply(patch)
                follower.apply(decode(flush.patch))  # twice is as good as once
                for cid, data in flush.snapshots.items():
                    if data is None:
                        snapshots.pop(cid, None)
                    else:
                        snapshots[cid] = data
                if not sums_asked:
                    follower.sums("cpu")  # kept from here on, not made anew
                    sums_asked = True
    assert_equal(writer.fleet, reference)
    assert_equal(follower, reference)
    loaded = Fleet()
    loaded.label_sets, loaded.taint_sets = list(follower.label_sets), list(follower.taint_sets)
    loaded.port_sets = list(follower.port_sets)
    loaded.apply(FleetDelta(layouts_from=1, layout_sets=follower.layout_sets[1:]))
    for data in snapshots.values():
        loaded.apply(decode(data))
    assert_equal(loaded, reference)
    writer.compact()
    assert_equal(writer.fleet, reference)
    follower.adopt(loaded)
    assert_equal(follower, reference)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(puts, st.sampled_from(NODES), st.integers(-5, 5)), max_size=8))
def test_what_is_claimed_stays_with_its_node_until_the_node_goes(script: list[Any]) -> None:
    writer, claimed = FleetWriter(), dict[tuple[int, str], int]()
    fleet = writer.fleet
    for (_, cid, rows, whole, _, _), name, amount in script:
        writer.put(cid, f"p/c{cid}", rows, whole=whole)
        for key in [key for key in claimed if key[0] == cid and fleet.row_of(*key) is None]:
            del claimed[key]
        at = fleet.row_of(cid, name)
        if at is not None:
            fleet.take(at, {"cpu": abs(amount)}, 1 if amount > 0 else -1)
            claimed[cid, name] = claimed.get((cid, name), 0) + amount
        for (c, n), total in claimed.items():
            row = fleet.row_of(c, n)
            assert row is not None
            assert fleet.taken(row).get("cpu", 0) == total


def test_a_change_reaches_only_its_own_cluster() -> None:
    fleet = fleet_of({f"p/c{i}": [node("n", cpu="8")] for i in range(5)})
    tick = fleet.tick
    assert fleet.changed_since(tick).tolist() == []  # type: ignore[union-attr]
    at = fleet.row_of(3, "n")
    assert at is not None
    fleet.take(at, {"cpu": 1000})
    assert fleet.changed_since(tick).tolist() == [3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "after", "better"),
    [
        ({"requested": {"cpu": "4"}}, {"requested": {"cpu": "2"}}, True),
        ({"requested": {"cpu": "2"}}, {"requested": {"cpu": "4"}}, False),
        ({"ready": False}, {"ready": True}, True),
        ({"ready": True}, {"ready": False}, False),
        ({"labels": {"a": "b"}}, {"labels": {"a": "c"}}, True),
        ({"taints": TAINT}, {"taints": ()}, True),
        ({"exclusive": 1}, {"exclusive": 3}, True),
        ({"host_ports": ["80/TCP"]}, {"host_ports": []}, True),
    ],
)
def test_a_row_improves_when_it_may_take_what_it_could_not(
    before: dict[str, Any], after: dict[str, Any], better: bool
) -> None:
    first = fleet_of({"p/a": [node("n", cpu="8", **before), node("m", cpu="8", exclusive=0)]})
    writer = FleetWriter(first)
    first.free(EXCLUSIVE)
    tick = first.tick
    second = FleetWriter(fleet_of({"p/a": [node("n", cpu="8", **after)]})).row(0, "n")
    assert second is not None
    assert writer.put(0, "p/a", [second])
    found = first.improved_since(tick)
    assert found is not None
    assert found.tolist() == ([first.row_of(0, "n")] if better else [])


def test_giving_back_improves_and_taking_does_not() -> None:
    fleet = fleet_of({"p/a": [node("n", cpu="8")]})
    tick = fleet.tick
    fleet.take(0, {"cpu": 1000})
    assert fleet.improved_since(tick).tolist() == []  # type: ignore[union-attr]
    fleet.take(0, {"cpu": 1000}, -1)
    assert fleet.improved_since(tick).tolist() == [0]  # type: ignore[union-attr]
    with pytest.raises(IndexError):
        fleet.take(1, {"cpu": 1})


def test_a_cluster_that_comes_back_improves_its_usable_rows() -> None:
    writer = writer_of({"p/a": [node("n", cpu="8"), node("m", cpu="8", ready=False)]}, stale=["p/a"])
    tick = writer.fleet.tick
    writer.set_state(0, 0)
    assert writer.fleet.improved_since(tick).tolist() == [0]  # type: ignore[union-attr]


def test_a_replaced_fleet_says_so_and_ticks_go_on() -> None:
    fleet = fleet_of({"p/a": [node("n", cpu="8")]})
    fleet.take(0, {"cpu": 1})
    seen: list[FleetChange] = []
    fleet.on_change.append(seen.append)
    tick = fleet.tick
    view = fleet.clusters
    fleet.adopt(fleet_of({"p/a": [node("n", cpu="8")], "q/b": [node("n", cpu="1")]}, labels={"q/b": {"region": "eu"}}))
    assert fleet.tick > tick
    assert fleet.changed_since(tick) is None
    assert fleet.improved_since(tick) is None
    assert [change.reset for change in seen] == [True]
    assert fleet.taken(0) == {}
    assert view.where(label={"region": "eu"}).tolist() == [False, True]
    assert fleet.clusters is view


def test_clusters_by_label_provider_and_name() -> None:
    fleet = fleet_of(
        {"p/a": [node(cpu="1")], "p/b": [], "q/c": [node(cpu="1")]},
        labels={"p/a": {"region": "eu", "tier": "1"}, "q/c": {"region": "eu"}},
        cordoned=["q/c"],
    )
    where = fleet.clusters.where
    assert where(label={"region": "eu"}).tolist() == [True, False, True]
    assert where(label={"region": "eu", "tier": "1"}).tolist() == [True, False, False]
    assert where(label={"tier": None}).tolist() == [True, False, False]
    assert where(provider="p").tolist() == [True, True, False]
    assert where(provider=["p", "q"], label={"region": "us"}).tolist() == [False, False, False]
    assert fleet.clusters.mask(["q/c", "nobody/x"]).tolist() == [False, False, True]
    assert fleet.clusters.named(where()) == ["p/a", "p/b", "q/c"]
    assert [fleet.state(i) for i in range(3)] == ["Ready", "Ready", "Cordoned"]


def test_label_sets_that_no_cluster_has_are_forgotten() -> None:
    writer = FleetWriter()
    clusters = writer.fleet.clusters
    for cid in range(3):
        writer.put(cid, f"p/c{cid}", labels={"n": str(cid), "x": "y"})
    for i in range(2000):
        writer.put(1, "p/c1", labels={"at": str(i)})
        assert clusters.where(label={"at": str(i)}).tolist() == [False, True, False]
        assert clusters.where(label={"x": "y"}).tolist() == [True, False, True]
    assert len(clusters._sets) < 100
    assert [clusters.labels(cid) for cid in (0, 1)] == [{"n": "0", "x": "y"}, {"at": "1999"}]


def test_a_dictionary_is_crowded_when_most_of_it_is_unused() -> None:
    writer = writer_of({"p/a": [node(f"n{i}", labels={"of": str(i)}) for i in range(300)]})
    fleet, found = writer.fleet, 0
    for i in range(3000):
        row = writer.row(0, f"n{i % 10}")
        assert row is not None
        writer.put(0, "p/a", [row._replace(labels={"at": str(i)})])
        if writer.crowded():
            found += 1
            writer.compact()
            assert len(fleet.label_sets) == 301
            assert not writer.crowded()
    assert found == 4
    assert [fleet.label_sets[fleet.labelset[fleet.row_of(0, name)]] for name in ("n9", "n299")] == [
        {"at": "2999"},
        {"of": "299"},
    ]
    many = writer_of({"p/a": [node(f"n{i}", labels={"of": str(i)}) for i in range(1500)]})
    assert not many.crowded(), "all of it is needed"


def test_a_callers_mask_is_its_own() -> None:
    fleet = fleet_of({"p/a": [], "p/b": []})
    mask = fleet.clusters.where(provider="p")
    mask[:] = False
    assert fleet.clusters.where(provider="p").all()
    assert fleet.known.all()


def test_freed_blocks_are_used_again() -> None:
    writer = writer_of({f"p/c{i}": [node(cpu="1") for _ in range(20)] for i in range(50)})
    rows = writer.fleet.n
    for _ in range(5):
        for cid in range(50):
            writer.drop(cid)
        for cid in range(50):
            made = [NodeRow(f"m{i}", READY, {}, (), {"cpu": 1}, {}) for i in range(20)]
            writer.put(cid, f"p/c{cid}", made, whole=True)
    assert writer.fleet.n == rows
    assert int(writer.fleet.usable.sum()) == 1000


def test_two_million_rows_stay_small() -> None:
    """Measured on a hundredth: rows cost what their columns cost, and names are no Python strings each."""
    writer = writer_of({f"p/c{i}": [node(cpu="1", memory="1Gi") for _ in range(20)] for i in range(1000)})
    fleet = writer.fleet
    columns = [value for value in vars(fleet).values() if isinstance(value, np.ndarray)]
    columns += [column for r in fleet.stored.values() for column in (r.allocatable, r.free)]
    names = sum(len(joined) + 60 for joined in fleet._nodes)
    assert (sum(column.nbytes for column in columns) + names) * 100 < 400e6


def test_adopting_takes_over_everything() -> None:
    fleet, other = Fleet(), Fleet()
    own = {"on_change", "clusters", "resets", "tick", "_reset_tick", "_sums", "slot_users", "slot_times"}
    for name in vars(other).keys() - own:
        setattr(other, name, copy(getattr(other, name)))  # so that no small value is the same object by chance
    fleet.adopt(other)
    assert {name for name in vars(fleet) if getattr(fleet, name) is not getattr(other, name)} <= own
    assert {
        name for name in vars(fleet.clusters) if getattr(fleet.clusters, name) is not getattr(other.clusters, name)
    } == {"_fleet"}


def test_columns_of_host_ports_that_nobody_claims_are_dropped() -> None:
    fleet = fleet_of({"p/a": [node("n", cpu="8", host_ports=["7/TCP"])]})
    fleet.take(0, {f"{PREFIX}6/TCP": EVERY_IP})
    for port in range(1, 1000):
        free = fleet.free(f"{PREFIX}{port}/TCP")
        assert free is not None
        assert free[0] == (0 if port in (6, 7) else EVERY_IP)
    assert len(fleet.resources) < 100
    assert fleet.free(f"{PREFIX}6/TCP")[0] == 0  # type: ignore[index]
