"""Packings by dividing the pods of pairs of nodes: what is found holds, full nodes are found, hopeless problems are given up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.fit.packing import PackingProblem, search
from moorage.fit.pair_search import pair_search
from moorage_testkit.brute_force import planted_packing

UNLIMITED = 1 << 60


def placed(problem: PackingProblem, seconds: float, seed: int = 0) -> np.ndarray | None:
    """Returns the search's answer for problems with one pod per group, checked in integers."""
    largest = np.maximum(problem.free.max(axis=0, initial=1), 1)
    free = np.maximum(problem.free, 0)
    placement = pair_search(problem.needs / largest, free / largest, problem.feasible, seconds, seed)
    if placement is not None:
        assert problem.feasible[np.arange(len(placement)), placement].all()
        load = np.zeros_like(problem.free)
        np.add.at(load, placement, problem.needs)
        assert (load <= free).all()
    return placement


@pytest.mark.parametrize(
    ("pods", "nodes", "resources", "spare"),
    [(12, 4, 2, 0.0), (20, 6, 2, 0.0), (40, 3, 4, 0.05), (40, 8, 4, 0.05), (40, 12, 3, 0.05), (40, 12, 4, 0.1)],
)
def test_full_nodes_are_found(pods: int, nodes: int, resources: int, spare: float) -> None:
    rng = np.random.default_rng(pods)
    for _ in range(4):
        assert placed(planted_packing(rng, pods, nodes, resources, spare), 20) is not None


@given(st.integers(0, 1 << 32), st.integers(2, 4), st.integers(1, 3), st.floats(-0.2, 0.3))
def test_what_is_found_holds_and_what_is_impossible_is_not_found(
    seed: int, nodes: int, resources: int, spare: float
) -> None:
    rng = np.random.default_rng(seed)
    planted = planted_packing(rng, int(rng.integers(nodes, 8)), nodes, resources, max(0.0, spare))
    free = (planted.free * (1 + min(0.0, spare)) * 1.5).astype(np.int64)
    free[0] -= int(rng.integers(0, 2)) * 100_000  # an overfull node has nothing
    problem = planted._replace(free=free, feasible=rng.random(planted.feasible.shape) < 0.8)
    if placed(problem, 0.02, seed) is not None:
        assert search(problem, UNLIMITED) is not None


def test_pods_that_may_not_move_stay() -> None:
    """Each pod but one may run on one node only; the last fits beside the smaller one."""
    feasible = np.array([[True, False], [False, True], [True, True]])
    problem = PackingProblem(np.array([[4], [4]]), np.array([[3], [1], [3]]), [1, 1, 1], feasible)
    placement = placed(problem, 20)
    assert placement is not None
    assert placement.tolist() == [0, 1, 1]


def test_without_a_choice_nothing_is_searched() -> None:
    alone = PackingProblem(np.array([[9]]), np.array([[1]]), [1], np.ones((1, 1), np.bool_))
    nowhere = PackingProblem(np.array([[9], [9]]), np.array([[1]]), [1], np.zeros((1, 2), np.bool_))
    short = PackingProblem(np.array([[3], [3]]), np.array([[4], [4]]), [1, 1], np.ones((2, 2), np.bool_))
    nothing = PackingProblem(np.array([[3], [3]]), np.zeros((0, 1), np.int64), [], np.ones((0, 2), np.bool_))
    assert [placed(problem, 20) for problem in (alone, nowhere, short, nothing)] == [None] * 4


def test_pods_with_few_nodes_to_choose_from_are_packed() -> None:
    rng = np.random.default_rng(5)
    for _ in range(4):
        planted = planted_packing(rng, 30, 24, 2, 0.3)
        anywhere = search_anywhere(planted)
        feasible = rng.random(planted.feasible.shape) < 0.3
        feasible[np.arange(30), anywhere] = True  # so that one packing is left
        assert placed(planted._replace(feasible=feasible), 20) is not None


def search_anywhere(problem: PackingProblem) -> np.ndarray:
    placement = placed(problem, 20)
    assert placement is not None
    return placement
