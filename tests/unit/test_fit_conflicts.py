"""Conflicts are proven: none is reported where both fit, and all are found on clusters small enough to be searched."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.fit import ConflictCache, FitCache, conflicts
from moorage.fleet import Fleet
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage_testkit.brute_force import clusters, exists, rows_in, shape, shapes
from moorage_testkit.fleets import fleet_of, node

shape_lists = st.lists(shapes, min_size=1, max_size=2)


def fits_alone(fleet: Fleet, group: list[Shape]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([exists(fleet, rows_in(fleet, cid), group, [[] for _ in group]) for cid in range(fleet.size)])


@given(st.lists(clusters, min_size=1, max_size=3), shape_lists, shape_lists)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_conflicts_are_exactly_those_of_enumeration(
    many: list[list[NodeReport]], a: list[Shape], b: list[Shape]
) -> None:
    fleet = fleet_of({f"lab/{i}": nodes for i, nodes in enumerate(many)})
    both = fits_alone(fleet, a) & fits_alone(fleet, b)
    found = conflicts(fleet, a, b, both)
    assert not (found & ~both).any()
    truth = both & ~fits_alone(fleet, a + b)
    assert not (found & ~truth).any(), "a conflict that is not there"
    if sum(s.count for s in a + b) <= 8:
        assert (found == truth).all(), "a conflict that was missed"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_every_stage_is_correct(free: list[tuple[int, int]], seed: int) -> None:
    """Random pods on random clusters, large enough that the greedy pass fails now and then."""
    rng = np.random.default_rng(seed)
    fleet = fleet_of(
        {f"lab/{i}": [node(cpu=str(c), memory=str(m)) for c, m in rng.permutation(free)] for i in range(3)}
    )
    group = [
        shape(f"Deployment/{i}", resources={"cpu": 1000 * int(c), "memory": int(m)}, count=int(n))
        for i, (c, m, n) in enumerate(
            zip(rng.integers(1, 6, 4), rng.integers(0, 6, 4), rng.permutation([1, 1, 1, 2]), strict=True)
        )
    ]
    both = fits_alone(fleet, group[:2]) & fits_alone(fleet, group[2:])
    found = conflicts(fleet, group[:2], group[2:], both)
    assert (found == (both & ~fits_alone(fleet, group))).all()


def test_pods_on_every_node_leave_less_for_others() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4"), node(cpu="4")], "lab/b": [node(cpu="5"), node(cpu="4")]})
    agent = shape("DaemonSet/agent", resources={"cpu": 1000}, per_node=True)
    large = shape("Deployment/large", resources={"cpu": 4000})
    both = np.ones(2, np.bool_)
    assert conflicts(fleet, [agent], [large], both).tolist() == [True, False]
    assert conflicts(fleet, [agent], [agent, agent, agent, agent], both).tolist() == [True, True]


def test_cached_conflicts_follow_changes() -> None:
    fleet = fleet_of({f"lab/{i}": [node(cpu="4")] for i in range(8)})
    fits, cache = FitCache(fleet), ConflictCache(fleet)
    a, b = [shape("Deployment/a", resources={"cpu": 1000})], [shape("Deployment/b", resources={"cpu": 2000})]

    def now() -> list[int]:
        both = fits.get(a[0]).fits & fits.get(b[0]).fits
        found = cache.get(a, b, both)
        assert (found == conflicts(fleet, a, b, both)).all()
        assert cache.get(a, b, both) is found
        return [int(cid) for cid in np.flatnonzero(found)]

    assert now() == []
    fleet.take(int(fleet.rows_of(3)[0]), {"cpu": 2000})
    assert now() == [3]
    fleet.take(int(fleet.rows_of(3)[0]), {"cpu": 1000})
    assert now() == [], "where one no longer fits fits_alone there is no conflict to report"
    fleet.take(int(fleet.rows_of(3)[0]), {"cpu": 1000}, -1)
    fleet.take(int(fleet.rows_of(5)[0]), {"cpu": 2000})
    assert now() == [3, 5]
