"""Tight clusters: packings that greedy passes miss are found, and what is said to be impossible is impossible."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.fit import Assigned, Unassigned, assign
from moorage.fit.budget import BudgetExceeded
from moorage.fit.hard_packing import integer_program, pack_hard, solve
from moorage.fit.packing import Packed, PackingProblem, PackingSolutions, pack, search
from moorage_testkit.brute_force import planted_packing, shape
from moorage_testkit.fleets import fleet_of, node

UNLIMITED = 1 << 60


def holds(problem: PackingProblem, packed: Packed) -> bool:
    within = (packed.T @ problem.needs <= problem.free).all()
    return bool(within and (packed.sum(axis=1) == problem.counts).all() and not packed[~problem.feasible].any())


@pytest.mark.parametrize(("pods", "nodes", "resources"), [(8, 3, 2), (12, 4, 3), (20, 6, 2), (32, 8, 2), (40, 10, 2)])
def test_planted_packings_are_found(pods: int, nodes: int, resources: int) -> None:
    rng = np.random.default_rng(pods)
    for _ in range(6):
        problem = planted_packing(rng, pods, nodes, resources, 0.1)
        packed = pack_hard(problem, 20)
        assert packed is not None
        assert holds(problem, packed)


@given(st.integers(0, 1 << 32), st.integers(2, 4), st.integers(1, 3), st.floats(-0.2, 0.1))
def test_the_integer_program_agrees_with_the_complete_search(
    seed: int, nodes: int, resources: int, spare: float
) -> None:
    rng = np.random.default_rng(seed)
    planted = planted_packing(rng, int(rng.integers(nodes, 8)), nodes, resources, max(0.0, spare))
    counts = rng.integers(1, 3, len(planted.counts)).tolist()[:5]
    feasible = rng.random((len(counts), nodes)) < 0.8
    free = (planted.free * (1 + min(0.0, spare)) * 1.5).astype(np.int64)
    problem = PackingProblem(free, planted.needs[: len(counts)], counts, feasible)
    expected, found = search(problem, UNLIMITED), integer_program(problem, 60)
    assert (found is None) == (expected is None)
    assert found is None or holds(problem, found)


def test_equal_pods_are_counted_not_listed() -> None:
    free = np.array([[1000, 3001], [1000, 2999], [999, 3000]], np.int64)
    problem = PackingProblem(free, np.array([[1, 3], [2, 1]]), [800, 1000], np.ones((2, 3), np.bool_))
    packed = pack_hard(problem, 20)
    assert packed is not None
    assert holds(problem, packed)


def test_it_gives_up_in_time() -> None:
    problem = planted_packing(np.random.default_rng(2), 60, 12, 4, 0.0)
    began = time.perf_counter()
    with pytest.raises(BudgetExceeded):
        pack_hard(problem, 0.2)
    assert time.perf_counter() - began < 40


def test_hard_problems_are_named_solved_elsewhere_and_used() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        problem = planted_packing(rng, 14, 5, 2, 0.02)
        solutions = PackingSolutions()
        try:
            pack(problem, 100, solutions)
        except BudgetExceeded:
            break
    else:
        pytest.fail("every problem was easy")
    assert len(solutions.unsolved) == 1
    solutions.add(solve(solutions.unsolved, 20))
    assert not solutions.unsolved
    packed = pack(problem, 100, solutions)
    assert not isinstance(packed, int)
    assert holds(problem, packed)


def test_a_bound_says_how_long_it_tried_and_that_it_may_fit() -> None:
    problem = planted_packing(np.random.default_rng(3), 60, 12, 4, 0.0)
    rows = fleet_of(
        {"c": [node(f"n-{i}", cpu=str(cpu), memory=str(memory)) for i, (cpu, memory) in enumerate(problem.free[:, :2])]}
    )
    shapes = [shape(resources={"cpu": int(cpu) * 1000, "memory": int(memory)}) for cpu, memory in problem.needs[:, :2]]
    solutions = PackingSolutions()
    first = assign(rows, rows.rows_of(0), shapes, solutions=solutions)
    if isinstance(first, Assigned):
        pytest.fail("the greedy pass found it")
    solutions.add(solve(solutions.unsolved, 0.05))
    result = assign(rows, rows.rows_of(0), shapes, solutions=solutions)
    assert isinstance(result, Unassigned)
    assert result.code == "SearchBound"
    assert "it may fit" in result.message
