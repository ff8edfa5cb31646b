"""Compares fits and assignments with exhaustive enumeration on small fleets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.fit import (
    Assigned,
    FitCache,
    Unassigned,
    assign,
    by_weight,
    combinations,
    unsupported_reason,
)
from moorage.fit.budget import BudgetExceeded
from moorage.fit.packing import PackingProblem, greedy, resource_weights, search
from moorage.fleet import Fleet
from moorage.model.reports import NodeReport
from moorage.model.shapes import OptionalNeed, Requirement, Shape
from moorage_testkit.brute_force import (
    GPU,
    TAINT,
    clusters,
    exists,
    holds,
    need_of,
    placements,
    rows_in,
    shape,
    shapes,
)
from moorage_testkit.fleets import fleet_of, node, writer_of


def check_fit(fleet: Fleet, cache: FitCache, s: Shape) -> None:
    fit = cache.get(s)
    for cid in range(fleet.size):
        where = rows_in(fleet, cid)
        if not s.count and not s.per_node:
            assert fit.fits[cid] == any(fleet.usable[row] for row in where)
            continue
        assert fit.fits[cid] == exists(fleet, where, [s], [[]])
        order = by_weight(s)
        for subset in range(1 << len(order)):
            chosen = [i for rank, i in enumerate(order) if subset >> rank & 1]
            assert fit.granted(subset)[cid] == exists(fleet, where, [s], [chosen])


def test_optional_needs_that_fit_only_on_different_nodes_are_not_met_together() -> None:
    split = [node(name="n-0", cpu="4", resources={GPU: "1"}), node(name="n-1", cpu="64")]
    fleet = fleet_of({"lab/split": split, "lab/one": [node(cpu="12", resources={GPU: "1"})]})
    optional = [
        OptionalNeed(consumer="c", name="cpu", weight=5, resources={"cpu": 8000}),
        OptionalNeed(consumer="c", name=GPU, weight=6, resources={GPU: 1}),
    ]
    s = shape(resources={"cpu": 1000}, optional=optional)
    fit = FitCache(fleet).get(s)
    assert [fit.granted(subset).tolist() for subset in range(4)] == [[True, True]] * 3 + [[False, True]]


@given(st.lists(clusters, min_size=1, max_size=3), shapes)
def test_fit_equals_enumeration(fleet_nodes: list[list[NodeReport]], s: Shape) -> None:
    fleet = fleet_of({f"lab/{i}": many for i, many in enumerate(fleet_nodes)})
    check_fit(fleet, FitCache(fleet), s)


@given(
    st.lists(clusters, min_size=2, max_size=4),
    st.lists(shapes, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), clusters), max_size=4),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_cached_fits_follow_changes(
    first: list[list[NodeReport]], wanted: list[Shape], changes: list[tuple[int, list[NodeReport]]]
) -> None:
    from moorage.fleet import normalize_node

    writer = writer_of({f"lab/{i}": many for i, many in enumerate(first)})
    fleet = writer.fleet
    cache = FitCache(fleet, max_entries=2)
    for s in wanted:
        check_fit(fleet, cache, s)
    for cid, many in changes:
        for number, report in enumerate(many):
            report.name = report.labels["kubernetes.io/hostname"] = f"n-{number}"
        writer.put(cid, f"lab/{cid}", [normalize_node(report)[0] for report in many], whole=True, as_of=2.0)
        places = rows_in(fleet, cid)
        if places:
            fleet.take(places[0], {"cpu": 1000, "pods": 1})
        for s in wanted:
            check_fit(fleet, cache, s)


def test_an_unchanged_fit_is_the_same_object_and_read_only() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4")], "lab/b": [node(cpu="1")]})
    cache, s = FitCache(fleet), shape(resources={"cpu": 2000})
    fit = cache.get(s)
    assert fit.fits.tolist() == [True, False]
    assert cache.get(s) is fit
    with pytest.raises(ValueError):
        fit.fits[0] = False
    fleet.take(0, {"cpu": 3000})
    assert cache.get(s).fits.tolist() == [False, False]
    assert fit.fits.tolist() == [True, False], "an answer given earlier does not change"


@given(clusters, st.lists(shapes, min_size=1, max_size=3))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_assignments_are_exact(many: list[NodeReport], group: list[Shape]) -> None:
    fleet = fleet_of({"lab/a": many})
    where = fleet.rows_of(0)
    result = assign(fleet, where, group, steps=0)
    possible = exists(fleet, rows_in(fleet, 0), group, [[] for _ in group])
    if isinstance(result, Unassigned):
        # Nine pods are beyond what is promised to be complete.
        assert not possible or (result.code == "SearchBound" and sum(s.count for s in group) > 8)
        return
    assert possible
    rows = {fleet.node_name(row): row for row in rows_in(fleet, 0)}
    chosen = [[rows[slot.node] for slot in runs for _ in range(slot.count)] for runs in result.slots]
    assert holds(fleet, group, result.met, chosen)
    for s, runs, which in zip(group, result.slots, result.met, strict=True):
        assert all(slot.resources == {r: n for r, n in need_of(s, which).items() if n} for slot in runs)
        places = tuple(sorted(rows[slot.node] for slot in runs for _ in range(slot.count)))
        assert places in [tuple(sorted(way)) for way in placements(fleet, rows_in(fleet, 0), s, which)]
    # No combination of optional needs that is heavier could have been granted.
    if sum(s.count for s in group) <= 8:
        weight = sum(group[n].optional[i].weight for n, which in enumerate(result.met) for i in which)
        for needs in combinations(group):
            if sum(group[n].optional[i].weight for n, i in needs) > weight:
                wider = [[i for n, i in needs if n == number] for number in range(len(group))]
                assert not exists(fleet, rows_in(fleet, 0), group, wider)


def test_heavier_optional_needs_are_granted_first() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4", resources={GPU: "1"})]})
    light = shape("Deployment/l", optional=[OptionalNeed(consumer="l", name=GPU, weight=2, resources={GPU: 1})])
    heavy = shape("Deployment/h", optional=[OptionalNeed(consumer="h", name=GPU, weight=7, resources={GPU: 1})])
    result = assign(fleet, fleet.rows_of(0), [light, heavy])
    assert isinstance(result, Assigned)
    assert result.met == [[], [0]]


def test_all_pods_of_an_object_get_an_optional_need_or_none() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4", resources={GPU: "1"}), node(cpu="4", resources={GPU: "1"})]})
    optional = OptionalNeed(consumer="c", name=GPU, resources={GPU: 1})
    for count, met in ((2, [[0]]), (3, [[]])):
        result = assign(fleet, fleet.rows_of(0), [shape(count=count, optional=[optional])])
        assert isinstance(result, Assigned)
        assert result.met == met


@pytest.mark.parametrize(
    ("fields", "code", "resource", "needed", "best"),
    [
        ({"resources": {"cpu": 5000}}, "ResourceShort", "cpu", 5000, 4000),
        ({"resources": {GPU: 1}}, "ResourceShort", GPU, 1, 0),
        ({"resources": {"cpu": 3000}, "count": 3}, "CapacityShort", "", 3, 2),
        ({"resources": {"cpu": 4000, "memory": 9}}, "ResourceShort", "", 0, 0),
        ({"terms": [[Requirement(key="zone", operator="In", values=("c",))]]}, "LabelMissing", "", 0, 0),
        ({"terms": [[Requirement(key="zone", operator="In", values=("b",))]]}, "NodesUnusable", "", 0, 0),
        ({"devices": [{}]}, "Unsupported", "", 0, 0),
        ({"devices": [{"class": "a"}]}, "Unsupported", "", 0, 0),
        ({"per_node": True, "resources": {"cpu": 4000}}, "ResourceShort", "cpu", 4000, 3000),
    ],
)
def test_failures_name_the_missing_resource(
    fields: dict[str, Any], code: str, resource: str, needed: int, best: int
) -> None:
    fleet = fleet_of(
        {
            "lab/a": [
                node(cpu="4", memory="5"),
                node(cpu="3", memory="9"),
                node(cpu="9", memory="99", labels={"zone": "b"}, taints=[TAINT]),
                node(cpu="9", memory="99", labels={"zone": "a"}, ready=False),
            ]
        }
    )
    fitting = shape("Deployment/b", resources={"cpu": 1000})
    failure = assign(fleet, fleet.rows_of(0), [fitting, shape(**fields)])
    assert isinstance(failure, Unassigned)
    assert (failure.code, failure.shape, failure.resource, failure.needed, failure.best) == (
        code, 1, resource, needed, best,
    )  # fmt: skip


def test_pods_that_fit_alone_but_not_together() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="3", memory="3"), node(cpu="3", memory="3")]})
    group = [shape("Deployment/a", resources={"cpu": 2000}, count=2), shape("Deployment/b", resources={"cpu": 2000})]
    failure = assign(fleet, fleet.rows_of(0), group)
    assert isinstance(failure, Unassigned)
    assert failure.code == "PackingFails"


def test_unsupported_needs_are_refused_not_ignored() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="3")]})
    unsupported: tuple[dict[str, Any], ...] = ({"devices": [{}]},)
    for fields in unsupported:
        wanted = shape(**fields)
        assert unsupported_reason(wanted)
        assert not FitCache(fleet).get(wanted).fits.any()
    assert unsupported_reason(shape()) is None


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_the_search_is_complete_and_correct(
    needs: list[tuple[int, int]], free: list[tuple[int, int]], random: Any
) -> None:
    able = np.array([[random.random() < 0.8 for _ in free] for _ in needs])
    problem = PackingProblem(np.array(free), np.array(needs), [1] * len(needs), able)
    result = search(problem, 0)

    def place(at: int, left: list[list[int]]) -> bool:
        if at == len(needs):
            return True
        for number, have in enumerate(left):
            if able[at, number] and have[0] >= needs[at][0] and have[1] >= needs[at][1]:
                rest = [list(h) for h in left]
                rest[number] = [have[0] - needs[at][0], have[1] - needs[at][1]]
                if place(at + 1, rest):
                    return True
        return False

    assert (result is not None) == place(0, [list(f) for f in free])
    if result is not None:
        assert (result.sum(axis=1) == 1).all()
        assert (result <= able).all()
        assert (result.T @ problem.needs <= problem.free).all()


def test_the_search_finds_a_packing_that_greedy_misses() -> None:
    # The only packing is 6+5 on 11 and 5+4 on 9; best fit puts the 6 on 9.
    problem = PackingProblem(
        np.array([[11], [9]]), np.array([[5], [4], [6], [5]]), [1, 1, 1, 1], np.ones((4, 2), np.bool_)
    )
    assert isinstance(greedy(problem, [2, 0, 3, 1], resource_weights(problem)), int)
    assert search(problem, 0) is not None


def test_the_search_is_bounded_for_more_pods_than_promised() -> None:
    rng = np.random.default_rng(1)
    needs = rng.integers(20, 60, (24, 3))
    problem = PackingProblem(rng.integers(90, 110, (24, 3)), needs, [1] * 24, np.ones((24, 24), np.bool_))
    with pytest.raises(BudgetExceeded):
        search(problem, 2000)


@pytest.mark.parametrize("key", ["metadata.name", "kubernetes.io/hostname"])
@pytest.mark.parametrize("operator", ["In", "NotIn"])
def test_node_names_select_nodes_of_a_large_fleet(key: str, operator: str) -> None:
    fleet = fleet_of(
        {f"lab/{i}": [node(f"n-{i * j}", cpu="4", hostname=i % 2 == 0) for j in (1, 10)] for i in range(1, 90)}
    )
    check_fit(fleet, FitCache(fleet), shape(terms=[[Requirement(key=key, operator=operator, values=("n-2", "n-70"))]]))
