"""Packings by sets of pods: what is found holds, full nodes are found, and hopeless problems are given up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.fit.packing import PackingProblem, search
from moorage.fit.set_search import MAX_PODS, SetSearch
from moorage_testkit.brute_force import planted_packing

UNLIMITED = 1 << 60


def assert_holds(problem: PackingProblem, placement: np.ndarray) -> None:
    group = np.repeat(np.arange(len(problem.counts)), problem.counts)
    assert len(placement) == len(group)
    load = np.zeros_like(problem.free)
    for pod, node in zip(group, placement, strict=True):
        assert problem.feasible[pod, node]
        load[node] += problem.needs[pod]
    assert (load <= np.maximum(problem.free, 0)).all()


@pytest.mark.parametrize(
    ("pods", "nodes", "resources", "spare"), [(20, 6, 2, 0.0), (40, 12, 4, 0.05), (40, 12, 4, 0.1)]
)
def test_full_nodes_are_found(pods: int, nodes: int, resources: int, spare: float) -> None:
    rng = np.random.default_rng(pods)
    found = 0
    for _ in range(6):
        problem = planted_packing(rng, pods, nodes, resources, spare)
        placement = SetSearch(problem).run(5)
        if placement is not None:
            assert_holds(problem, placement)
            found += 1
    assert found >= 5


@given(st.integers(0, 1 << 32), st.integers(2, 4), st.integers(1, 3), st.floats(-0.2, 0.3))
def test_what_is_found_holds_and_what_is_impossible_is_not_found(
    seed: int, nodes: int, resources: int, spare: float
) -> None:
    rng = np.random.default_rng(seed)
    planted = planted_packing(rng, int(rng.integers(nodes, 8)), nodes, resources, max(0.0, spare))
    counts = rng.integers(1, 3, len(planted.counts)).tolist()[:5]
    free = (planted.free * (1 + min(0.0, spare)) * 1.5).astype(np.int64)
    free[0] -= int(rng.integers(0, 2)) * 100_000  # an overfull node has nothing
    problem = PackingProblem(free, planted.needs[: len(counts)], counts, rng.random((len(counts), nodes)) < 0.8)
    placement = SetSearch(problem).run(0.5)
    if placement is not None:
        assert_holds(problem, placement)
        assert search(problem, UNLIMITED) is not None


def test_too_many_pods_or_too_little_room_are_left_to_others() -> None:
    many = PackingProblem(np.array([[1000]]), np.array([[1]]), [MAX_PODS + 1], np.ones((1, 1), np.bool_))
    short = PackingProblem(np.array([[3], [3]]), np.array([[2]]), [4], np.ones((1, 2), np.bool_))
    nothing = PackingProblem(np.array([[3]]), np.zeros((0, 1), np.int64), [], np.ones((0, 1), np.bool_))
    assert [SetSearch(problem).run(1) for problem in (many, short, nothing)] == [None, None, None]
