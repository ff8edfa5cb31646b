"""Compares choices with exhaustive enumeration on small fleets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.candidates import (
    Choice,
    CountedGroup,
    FreeCapacity,
    Mask,
    NoChoice,
    PlacementProblem,
    choose,
    disjoint_sets,
    feasibility,
)
from moorage.candidates.dynamic_program import DynamicProgram
from moorage.candidates.feasibility import ClusterClasses
from moorage.candidates.local_search import improve
from moorage.candidates.lp_relaxation import Undecided
from moorage.candidates.objective import Objective, OwnRoom


def satisfied(groups: list[list[CountedGroup]], clusters: tuple[int, ...]) -> bool:
    """Returns whether every controller's groups can be filled with these clusters, by trying every order."""
    for controller in groups:
        places = [g for g in controller for _ in range(g.wanted)]
        if len(places) != len(clusters):
            return False
        if not any(all(g.mask[c] for g, c in zip(places, order, strict=True)) for order in permutations(clusters)):
            return False
    return True


@dataclass
class Problem:
    merged: PlacementProblem
    capacity: FreeCapacity
    failed: list[tuple[int, frozenset[int]]]
    current: list[Mask | None]
    own: list[OwnRoom]

    def value_at(self, c: int, apps: frozenset[int]) -> int | None:
        """The value of one cluster with these apps by the documented rules; None where they may not be there."""
        merged, capacity = self.merged, self.capacity
        total = 0
        for app in apps:
            scores, current = merged.scores[app], self.current[app]
            if not merged.masks[app][c]:
                return None
            total += round(float(scores[c]) * (1 << 22)) << 24 if scores is not None else 0
            total += 1 << 56 if current is not None and current[c] else 0
        if any(failed <= apps for where, failed in self.failed if where == c):
            return None
        for pair in combinations(sorted(apps), 2):
            if pair in merged.apart or (pair in merged.conflicts and merged.conflicts[pair][c]):
                return None
            total += round(merged.bonus.get(pair, 0.0) * (1 << 22)) << 24
        shares = []
        nothing = np.zeros(len(capacity.free))
        for r in range(len(capacity.free)):
            if not sum(capacity.needs[a][r] for a in apps):
                continue
            new = sum(max(0.0, capacity.needs[a][r] - self.own[a].get(c, nothing)[r]) for a in apps)
            share = (capacity.free[r][c] - new) / max(capacity.allocatable[r][c], 1)
            shares.append(share if new > 0 else max(share, 0.0))
        if shares:
            if min(shares) < 0:
                return None
            asking = sum(1 for a in apps if capacity.needs[a].any())
            total += round(min(1.0, min(shares)) * (1 << 20)) * asking
        return total

    def together(self, picks: Sequence[Sequence[int]]) -> bool:
        for a, b in self.merged.together:
            small, large = sorted((set(picks[a]), set(picks[b])), key=len)
            if not small <= large:
                return False
        return True

    def value_of(self, picks: Sequence[Sequence[int]]) -> int | None:
        """The value of a choice, or None where it breaks a rule."""
        at: dict[int, set[int]] = {}
        for app, clusters in enumerate(picks):
            if len(set(clusters)) != self.merged.replicas[app] or not satisfied(
                self.merged.groups[app], tuple(clusters)
            ):
                return None
            for c in clusters:
                at.setdefault(c, set()).add(app)
        values = [self.value_at(c, frozenset(apps)) for c, apps in at.items()]
        if None in values or not self.together(picks):
            return None
        return sum(v for v in values if v is not None)

    def best(self) -> int | None:
        """The value of the best choice, by trying them all."""
        merged = self.merged
        size = merged.masks[0].size
        value_at = cache(self.value_at)
        options = [
            [
                picks
                for picks in combinations(np.flatnonzero(merged.masks[app]).tolist(), replicas)
                if satisfied(merged.groups[app], picks)
            ]
            for app, replicas in enumerate(merged.replicas)
        ]
        best: int | None = None
        picked: list[tuple[int, ...]] = []

        def extend(at: list[frozenset[int]]) -> None:
            nonlocal best
            app = len(picked)
            if app == len(options):
                if self.together(picked):
                    total = sum(value_at(c, apps) or 0 for c, apps in enumerate(at) if apps)
                    best = total if best is None else max(best, total)
                return
            for picks in options[app]:
                after = [apps | {app} if c in picks else apps for c, apps in enumerate(at)]
                if all(value_at(c, after[c]) is not None for c in picks):
                    picked.append(picks)
                    extend(after)
                    picked.pop()

        extend([frozenset()] * size)
        return best

    def choose(self, steps: int = 60_000) -> Choice | NoChoice:
        ranks = np.arange(self.merged.masks[0].size, dtype=np.int64)
        return choose(
            self.merged,
            self.capacity,
            ranks,
            current=self.current,
            own=self.own,
            failed=self.failed,
            steps=steps,
        )

    def objective(self) -> Objective:
        ranks = np.arange(self.merged.masks[0].size, dtype=np.int64)
        return Objective(self.merged, self.capacity, ranks, self.current, self.own, self.failed)


@st.composite
def problems(
    draw: st.DrawFn, grouped: bool = False, apps: int = 3, size: int = 5, replicas: int = 2, rules: int = 1
) -> Problem:
    size, apps = draw(st.integers(1, size)), draw(st.integers(1, apps))
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, dtype=np.bool_))
    likely = st.lists(st.sampled_from([True, True, True, False]), min_size=size, max_size=size).map(
        lambda b: np.array(b, dtype=np.bool_)
    )
    level = st.lists(st.sampled_from([0.0, 0.2, 0.4, 1.0]), min_size=size, max_size=size).map(np.array)
    pairs = list(combinations(range(apps), 2))
    pair = st.sampled_from(pairs) if pairs else st.nothing()
    merged = PlacementProblem(
        replicas=[draw(st.integers(1, replicas)) for _ in range(apps)],
        masks=[draw(likely) for _ in range(apps)],
        scores=[draw(st.none() | level) for _ in range(apps)],
        groups=[[] for _ in range(apps)],
        conflicts={p: draw(mask) for p in pairs if draw(st.booleans())},
        apart=draw(st.sets(pair, max_size=rules)) if pairs else set(),
        together=draw(st.sets(pair, max_size=1)) if pairs else set(),
        bonus=draw(st.dictionaries(pair, st.sampled_from([-0.5, 0.3]), max_size=2)) if pairs else {},
    )
    if grouped:
        for app in range(apps):
            for _ in range(draw(st.integers(0, 2))):
                first = draw(st.integers(1, merged.replicas[app]))
                counts = [first, *[1] * (merged.replicas[app] - first)]
                merged.groups[app].append([CountedGroup(count, draw(likely)) for count in counts])
    resources = draw(st.integers(0, 2))
    amounts = st.lists(st.integers(0, 12) | st.integers(6, 12), min_size=size, max_size=size)
    capacity = FreeCapacity(
        free=np.array([draw(amounts) for _ in range(resources)], dtype=np.float64).reshape(resources, size),
        allocatable=np.full((resources, size), 12.0),
        needs=np.array(
            [[draw(st.integers(0, 6)) for _ in range(resources)] for _ in range(apps)], dtype=np.float64
        ).reshape(apps, resources),
    )
    failed = draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.frozensets(st.integers(0, apps - 1), min_size=1)), max_size=2)
    )
    current = [draw(st.none() | st.none() | mask) for _ in range(apps)]
    own: list[OwnRoom] = [
        {
            c: capacity.needs[app] * draw(st.sampled_from([0.5, 1.0, 2.0]))
            for c in np.flatnonzero(where & draw(mask)).tolist()
        }
        if where is not None
        else {}
        for app, where in enumerate(current)
    ]
    return Problem(merged, capacity, failed, current, own)


larger = problems(apps=4, size=6, replicas=3, rules=3)
larger_grouped = problems(grouped=True, apps=4, size=6, replicas=3, rules=2)


def check(problem: Problem) -> None:
    best, got = problem.best(), problem.choose()
    if best is None:
        assert isinstance(got, NoChoice)
        assert not got.truncated
        return
    assert isinstance(got, Choice)
    assert got.proven
    assert problem.value_of(got.clusters) == best


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_best_choice_is_found(problem: Problem) -> None:
    check(problem)


@settings(max_examples=300, deadline=None)
@given(problems(grouped=True))
def test_the_best_choice_with_counted_groups_is_found(problem: Problem) -> None:
    check(problem)


@settings(max_examples=200, deadline=None)
@given(larger | larger_grouped)
def test_the_best_choice_with_more_apps_and_replicas_is_found(problem: Problem) -> None:
    check(problem)


@settings(max_examples=200, deadline=None)
@given(larger | larger_grouped)
def test_the_dynamic_program_alone_finds_the_best(problem: Problem) -> None:
    objective = problem.objective()
    got = DynamicProgram(objective, objective.candidate_pools()).best()
    assert (None if got is None else problem.value_of(got)) == problem.best()


@settings(max_examples=300, deadline=None)
@given(larger | larger_grouped)
def test_cluster_classes_alone_decide_whether_there_is_a_choice(problem: Problem) -> None:
    objective = problem.objective()
    got = ClusterClasses(objective, objective.candidate_pools()).solve(10_000)
    assert not isinstance(got, Undecided)
    if got is None:
        assert problem.best() is None
    else:
        assert problem.value_of(got) is not None


@settings(max_examples=200, deadline=None)
@given(larger | larger_grouped)
def test_branching_without_neighbourhoods_decides_it(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feasibility, "_NEIGHBOURS", ())
        objective = problem.objective()
        got = ClusterClasses(objective, objective.candidate_pools()).solve(10_000)
    assert not isinstance(got, Undecided)
    assert (got is None) == (problem.best() is None)


@settings(max_examples=200, deadline=None)
@given(larger | larger_grouped)
def test_local_search_improves_a_choice_and_keeps_it_valid(problem: Problem) -> None:
    objective = problem.objective()
    pools = objective.candidate_pools()
    got = ClusterClasses(objective, pools).solve(10_000)
    if isinstance(got, list):
        before = problem.value_of(got)
        value, better = improve(objective, pools, got, 5_000)
        assert problem.value_of(better) == value
        assert before is not None
        assert value >= before


@settings(max_examples=200, deadline=None)
@given(problems(grouped=True) | larger | larger_grouped, st.integers(1, 60) | st.integers(1, 2_000))
def test_a_truncated_search_is_never_wrong(problem: Problem, steps: int) -> None:
    got = problem.choose(steps)
    if isinstance(got, Choice):
        assert problem.value_of(got.clusters) is not None
        assert not got.proven or problem.value_of(got.clusters) == problem.best()
    elif not got.truncated:
        assert problem.best() is None


def plain(size: int, replicas: list[int], resources: int = 3, seed: int = 1) -> tuple[PlacementProblem, FreeCapacity]:
    rng = np.random.default_rng(seed)
    merged = PlacementProblem(
        replicas=replicas,
        masks=[rng.random(size) < 0.5 for _ in replicas],
        scores=[np.floor(rng.random(size) * 3) / 3 for _ in replicas],
        groups=[[] for _ in replicas],
    )
    allocatable = rng.integers(50, 100, (resources, size)).astype(np.float64)
    return merged, FreeCapacity(
        np.floor(allocatable * rng.random((resources, size))), allocatable, np.full((len(replicas), resources), 2.0)
    )


def test_ties_go_to_the_most_free_cluster_then_to_the_first_name() -> None:
    merged, capacity = plain(6, [2])
    merged.masks[0][:] = True
    merged.scores[0] = None
    capacity.allocatable[:] = 100
    capacity.free[:] = [[50, 80, 50, 90, 50, 50]]
    ranks = np.array([5, 4, 3, 2, 1, 0], dtype=np.int64)
    got = choose(merged, capacity, ranks)
    assert isinstance(got, Choice)
    assert got.clusters == [[3, 1]]
    capacity.free[:] = 50
    got = choose(merged, capacity, ranks)
    assert isinstance(got, Choice)
    assert got.clusters == [[5, 4]]


def test_an_app_without_needs_gains_nothing_from_sharing() -> None:
    merged, capacity = plain(4, [1, 1, 1], resources=1)
    for mask in merged.masks:
        mask[:] = True
    merged.scores = [None, None, None]
    capacity.free[:], capacity.allocatable[:] = [[0, 0, 0, 2]], 12
    capacity.needs[:] = [[0], [0], [1]]
    check(Problem(merged, capacity, [], [None] * 3, [{}] * 3))


def test_among_equal_choices_the_first_app_gets_the_first_cluster() -> None:
    merged, capacity = plain(8, [1, 2, 1])
    merged.masks, merged.scores = [np.ones(8, dtype=np.bool_)] * 3, [None] * 3
    merged.apart |= {(0, 1), (0, 2), (1, 2)}
    capacity.free[:], capacity.allocatable[:] = 50, 100
    problem = Problem(merged, capacity, [], [None] * 3, [{}] * 3)
    objective = problem.objective()
    assert DynamicProgram(objective, objective.candidate_pools()).best() == [[0], [1, 2], [3]]
    got = problem.choose()
    assert isinstance(got, Choice)
    assert got.clusters == [[0], [1, 2], [3]]


def test_local_search_keeps_apps_apart() -> None:
    merged, capacity = plain(3, [1, 1])
    merged.masks = [np.ones(3, dtype=np.bool_)] * 2
    merged.scores = [np.array([1.0, 0.5, 0.0]), np.array([1.0, 0.2, 0.0])]
    merged.apart.add((0, 1))
    problem = Problem(merged, capacity, [], [None] * 2, [{}] * 2)
    objective = problem.objective()
    value, better = improve(objective, objective.candidate_pools(), [[2], [1]], 5_000)
    assert better == [[1], [0]]
    assert value == problem.best()


def test_hundreds_of_replicas_stay_where_they_are() -> None:
    stays = np.arange(300) % 3 == 0
    merged, capacity = plain(300, [100, 100])
    merged.masks = [np.ones(300, dtype=np.bool_)] * 2
    capacity.free[:] += 10
    merged.conflicts[0, 1] = ~stays
    got = Problem(merged, capacity, [], [stays] * 2, [{}] * 2).choose()
    assert isinstance(got, Choice)
    assert [sorted(clusters) for clusters in got.clusters] == [np.flatnonzero(stays).tolist()] * 2
    assert not got.proven, "sums this large do not distinguish free shares"


def test_staying_outranks_scores_and_needs_no_new_capacity() -> None:
    merged, capacity = plain(4, [1])
    merged.masks[0][:] = True
    merged.scores[0] = np.array([1.0, 0.0, 1.0, 1.0])
    capacity.free[:, 1] = 0
    current = np.array([False, True, False, False])
    got = choose(merged, capacity, np.arange(4, dtype=np.int64), current=[current], own=[{1: capacity.needs[0]}])
    assert isinstance(got, Choice)
    assert got.clusters == [[1]]


def test_eight_apps_and_many_classes_are_decided_in_time() -> None:
    merged, capacity = plain(512, [1] * 8)
    for pair in combinations(range(8), 2):
        merged.conflicts[pair] = np.random.default_rng(pair[1]).random(512) < 0.3
    merged.apart.add((0, 1))
    merged.together.add((2, 3))
    before = time.process_time()
    got = choose(merged, capacity, np.arange(512, dtype=np.int64))
    assert isinstance(got, Choice)
    assert time.process_time() - before < 6.0


def test_disjoint_sets_are_disjoint_where_apps_conflict() -> None:
    merged, _ = plain(40, [1, 3])
    merged.conflicts[0, 1] = np.random.default_rng(3).random(40) < 0.6
    a, b = disjoint_sets(merged)
    assert not np.any(a & b & merged.conflicts[0, 1])
    assert np.array_equal(a | b, merged.masks[0] | merged.masks[1])
