"""Up to 8 pods on up to 16 nodes the search is complete whatever its budget: compared with memoized backtracking."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moorage.fit import Assigned, Unassigned, assign
from moorage.fit.budget import BudgetExceeded
from moorage.fit.packing import EXACT_NODES, EXACT_PODS, PackingProblem, pack, search
from moorage_testkit.brute_force import shape
from moorage_testkit.fleets import fleet_of, node

Amounts = tuple[tuple[int, ...], ...]
#: States that backtracking may visit before an example is skipped. The search must decide all of them.
MAX_VISITED = 20_000


class TooLong(Exception):
    pass


def exists(problem: PackingProblem) -> bool:
    """Places pod by pod, the largest first; states with the same free amounts are visited once."""
    needs = [tuple(map(int, n)) for n, count in zip(problem.needs, problem.counts, strict=True) for _ in range(count)]
    able = [a for a, count in zip(problem.feasible, problem.counts, strict=True) for _ in range(count)]
    order = sorted(range(len(needs)), key=lambda pod: (-max(needs[pod]), needs[pod]))
    tried = 0

    @cache
    def placed(done: int, left: Amounts) -> bool:
        nonlocal tried
        tried += 1
        if tried > MAX_VISITED:
            raise TooLong
        if done == len(order):
            return True
        pod = order[done]
        for at, have in enumerate(left):
            rest = tuple(h - n for h, n in zip(have, needs[pod], strict=True))
            if able[pod][at] and min(rest) >= 0 and placed(done + 1, (*left[:at], rest, *left[at + 1 :])):
                return True
        return False

    return placed(0, tuple(tuple(map(int, have)) for have in problem.free))


@st.composite
def problems(draw: st.DrawFn) -> PackingProblem:
    """Half of them are built around a packing that leaves almost nothing free; few of the others have one."""
    count, nodes = draw(st.integers(1, EXACT_PODS)), draw(st.integers(5, EXACT_NODES))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    groups: list[int] = []
    while (left := count - sum(groups)) > 0:
        groups.append(int(rng.integers(1, min(left, 3) + 1)))
    needs = rng.integers(1, 12, (len(groups), 2))
    able = rng.random((len(groups), nodes)) < draw(st.sampled_from([0.3, 0.6, 0.9]))
    if draw(st.booleans()):
        free = rng.integers(0, 3, (nodes, 2))
        homes = rng.choice(nodes, size=draw(st.integers(1, 5)))
        for group, pods in enumerate(groups):
            for home in rng.choice(homes, size=pods):
                free[home] += needs[group]
                able[group, home] = True
    else:
        free = rng.integers(0, draw(st.sampled_from([9, 13, 16])), (nodes, 2))
    return PackingProblem(free, needs, groups, able)


@given(problems())
@settings(max_examples=500, deadline=None)
def test_a_packing_is_found_if_and_only_if_there_is_one(problem: PackingProblem) -> None:
    result = pack(problem, 0)
    if isinstance(result, int):
        assert search(problem, 0) is None
        try:
            assert not exists(problem)
        except TooLong:
            assume(False)
        return
    assert result.sum(axis=1).tolist() == problem.counts
    assert not result[~problem.feasible].any() and (result >= 0).all()
    assert (result.T @ problem.needs <= problem.free).all()


def test_the_hardest_problems_within_the_limits_are_decided() -> None:
    """All pods are different, nearly every node is feasible, and one pod too many is asked for."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        needs = rng.integers(20, 60, (EXACT_PODS, 3))
        problem = PackingProblem(
            rng.integers(30, 70, (EXACT_NODES, 3)), needs, [1] * EXACT_PODS, rng.random((EXACT_PODS, EXACT_NODES)) < 0.9
        )
        search(problem, 0)


def test_more_nodes_or_pods_than_promised_are_bounded() -> None:
    for pods, nodes in ((EXACT_PODS + 1, EXACT_NODES), (EXACT_PODS, EXACT_NODES + 1)):
        rng = np.random.default_rng(1)
        needs = rng.integers(40, 60, (pods, 3))
        problem = PackingProblem(rng.integers(50, 65, (nodes, 3)), needs, [1] * pods, np.ones((pods, nodes), np.bool_))
        with pytest.raises(BudgetExceeded):
            search(problem, 0)


@pytest.mark.parametrize("steps", [0, 1 << 30])
def test_an_assignment_within_the_limits_needs_no_budget(steps: int) -> None:
    """Each node suits exactly one of the pods, in the worst order."""
    nodes = [node(cpu=str(1 + i % 8), memory=str(8 - i % 8)) for i in range(EXACT_NODES)]
    fleet = fleet_of({"lab/a": nodes})
    group = [
        shape(f"Deployment/{i}", count=1, resources={"cpu": 1000 * (1 + i % 8), "memory": 8 - i % 8})
        for i in range(EXACT_PODS)
    ]
    result = assign(fleet, fleet.rows_of(0), group, steps=steps)
    assert isinstance(result, Assigned)
    more = [*group[1:], shape("Deployment/more", resources={"cpu": 8000, "memory": 8})]
    failure = assign(fleet, fleet.rows_of(0), more, steps=steps)
    assert isinstance(failure, Unassigned) and failure.code != "SearchBound"
