"""Up to eight apps on 64 classes of clusters it is decided in time whether a choice exists, with any number of replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise

import numpy as np
import pytest

from moorage.candidates import Choice, CountedGroup, FreeCapacity, Mask, NoChoice, PlacementProblem, choose, feasibility
from moorage.candidates.dynamic_program import DynamicProgram
from moorage.candidates.feasibility import ClusterClasses
from moorage.candidates.lp_relaxation import Undecided
from moorage.candidates.objective import Objective
from moorage_testkit.seeds import seeds

RING = [*pairwise(range(5)), (0, 4)]


def problem_of(
    masks: Sequence[Mask], replicas: Sequence[int], free: Sequence[float] | None = None
) -> tuple[PlacementProblem, FreeCapacity]:
    apps, size = len(masks), masks[0].size
    merged = PlacementProblem(list(replicas), list(masks), [None] * apps, [[] for _ in range(apps)])
    free_amounts = np.array([free if free is not None else [50.0] * size])
    return merged, FreeCapacity(free_amounts, np.full((1, size), 100.0), np.full((apps, 1), 2.0))


def everywhere(apps: int, size: int) -> list[Mask]:
    return [np.ones(size, dtype=np.bool_) for _ in range(apps)]


def ask(merged: PlacementProblem, capacity: FreeCapacity) -> Choice | NoChoice:
    return choose(merged, capacity, np.arange(merged.masks[0].size, dtype=np.int64))


def valid(merged: PlacementProblem, got: Choice | NoChoice) -> Choice:
    assert isinstance(got, Choice)
    for app, clusters in enumerate(got.clusters):
        assert len(set(clusters)) == len(clusters) == merged.replicas[app]
        assert merged.masks[app][clusters].all()
    for a, b in combinations(range(len(got.clusters)), 2):
        both = set(got.clusters[a]) & set(got.clusters[b])
        assert not ((a, b) in merged.apart and both)
        assert not ((a, b) in merged.conflicts and merged.conflicts[a, b][list(both)].any())
    return got


def assert_infeasible(got: Choice | NoChoice) -> None:
    assert isinstance(got, NoChoice)
    assert not got.truncated


@contextmanager
def seconds(most: float) -> Iterator[None]:
    before = time.process_time()
    yield
    assert time.process_time() - before < most


@pytest.mark.parametrize("replicas", [3, 12, 20, 40, 120])
def test_two_apps_apart_one_of_them_confined_to_one_half(replicas: int) -> None:
    masks = everywhere(2, 2 * replicas)
    masks[1][replicas:] = False
    merged, capacity = problem_of(masks, [replicas, replicas])
    merged.apart.add((0, 1))
    with seconds(15):
        got = valid(merged, ask(merged, capacity))
    assert sorted(got.clusters[1]) == list(range(replicas))
    assert got.proven
    masks[0][-1] = False
    with seconds(15):
        assert_infeasible(ask(merged, capacity))


def test_eight_apps_apart_on_eight_clusters_one_confined_to_one() -> None:
    masks = everywhere(8, 8)
    masks[7][1:] = False
    merged, capacity = problem_of(masks, [1] * 8, [90, 80, 70, 60, 50, 40, 30, 20])
    merged.apart |= set(combinations(range(8), 2))
    with seconds(15):
        got = valid(merged, ask(merged, capacity))
    assert got.clusters[7] == [0]
    assert got.proven


def test_eight_apps_apart_on_seven_clusters_are_infeasible() -> None:
    merged, capacity = problem_of(everywhere(8, 7), [1] * 8)
    merged.apart |= set(combinations(range(8), 2))
    with seconds(15):
        assert_infeasible(ask(merged, capacity))


@pytest.mark.parametrize("seed", seeds(10, 200))
def test_eight_apps_apart_on_64_clusters_are_proven_optimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    free = rng.integers(20, 100, 64).astype(np.float64).tolist()
    merged, capacity = problem_of([rng.random(64) < 0.5 for _ in range(8)], [1] * 8, free)
    merged.scores = [rng.integers(0, 3, 64) / 15] * 8
    merged.apart |= set(combinations(range(8), 2))
    with seconds(15):
        assert valid(merged, ask(merged, capacity)).proven


def test_eight_apps_apart_with_many_replicas_use_64_classes_to_the_last_cluster() -> None:
    rng = np.random.default_rng(2)
    class_of = np.arange(256) % 64
    planned = rng.permutation(np.arange(256) % 8)
    masks = [(rng.random(64) < 0.4)[class_of] | np.isin(class_of, class_of[planned == app]) for app in range(8)]
    merged, capacity = problem_of(masks, [32] * 8)
    merged.apart |= set(combinations(range(8), 2))
    with seconds(60):
        valid(merged, ask(merged, capacity))
    merged.replicas[3] += 1
    with seconds(60):
        assert_infeasible(ask(merged, capacity))


def test_a_ring_of_conflicts_needs_one_cluster_more_than_its_relaxation() -> None:
    # Two of five in a ring can share a cluster: 33 replicas each are 165, which need 83 clusters, not 82.
    for size, possible in ((83, True), (82, False)):
        merged, capacity = problem_of(everywhere(5, size), [33] * 5)
        merged.conflicts = {pair: np.ones(size, dtype=np.bool_) for pair in RING}
        with seconds(60):
            got = ask(merged, capacity)
        if possible:
            valid(merged, got)
        else:
            assert_infeasible(got)


@pytest.mark.parametrize("replicas", [1, 5, 33])
def test_a_choice_that_exists_only_in_fractions_is_infeasible(replicas: int) -> None:
    """Five apps in a ring want half a cluster more than they have, and so do three of which two fit together: in the
    relaxation they share the last cluster."""
    ring, threes = 5 * replicas // 2, 3 * replicas // 2
    size = ring + threes + 1
    first, second = np.arange(size) < ring, (np.arange(size) >= ring) & (np.arange(size) < ring + threes)
    masks = [~second] * 5 + [~first] * 3
    merged, capacity = problem_of(masks, [replicas] * 8)
    capacity.needs[5:] = 20
    merged.conflicts = {pair: np.ones(size, dtype=np.bool_) for pair in RING}
    merged.conflicts |= {(a, b): np.ones(size, dtype=np.bool_) for a in range(5) for b in range(5, 8)}
    with seconds(60):
        assert_infeasible(ask(merged, capacity))
    merged.masks[:5] = [np.ones(size, dtype=np.bool_)] * 5  # without conflicts between them they do share it
    merged.conflicts = {pair: where for pair, where in merged.conflicts.items() if pair in RING}
    with seconds(60):
        valid(merged, ask(merged, capacity))


def full(rng: np.random.Generator) -> tuple[PlacementProblem, FreeCapacity]:
    """Few classes of several clusters, filled with apps that fit, and sometimes one more replica than that."""
    apps, kinds, each = int(rng.integers(3, 6)), int(rng.integers(1, 4)), int(rng.integers(2, 6))
    class_of = np.arange(kinds * each) % kinds
    conflicts = {pair: (rng.random(kinds) < 0.45)[class_of] for pair in combinations(range(apps), 2)}
    replicas = [0] * apps
    for cluster in range(class_of.size):
        here: list[int] = []
        for app in rng.permutation(apps).tolist():
            if rng.random() < 0.9 and not any(conflicts[min(app, b), max(app, b)][cluster] for b in here):
                here.append(app)
                replicas[app] += 1
    replicas[int(rng.integers(apps))] += int(rng.integers(0, 2))
    merged, capacity = problem_of(everywhere(apps, class_of.size), [min(class_of.size, max(1, r)) for r in replicas])
    merged.conflicts = conflicts
    return merged, capacity


@pytest.mark.parametrize("others", [(), (0, 6, 20)])
def test_branching_on_classes_agrees_with_the_dynamic_program(
    others: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feasibility, "_NEIGHBOURS", others)
    rng, answers = np.random.default_rng(1), []
    for _ in range(150):
        merged, capacity = full(rng)
        apps = len(merged.masks)
        ranks = np.arange(merged.masks[0].size, dtype=np.int64)
        objective = Objective(merged, capacity, ranks, [None] * apps, [{}] * apps, [])
        chosen = ClusterClasses(objective, objective.candidate_pools()).solve(10_000)
        assert not isinstance(chosen, Undecided)
        assert (chosen is None) == (DynamicProgram(objective, objective.candidate_pools()).best() is None)
        answers.append(chosen is None)
    assert 20 < sum(answers) < 130


def test_counted_groups_of_many_apps_with_many_replicas_are_met() -> None:
    halves = np.arange(200) < 100
    merged, capacity = problem_of(everywhere(6, 200), [30] * 6)
    merged.apart |= set(combinations(range(6), 2))
    for app in range(6):
        merged.groups[app].append([CountedGroup(16, halves), CountedGroup(14, ~halves)])
    with seconds(60):
        got = valid(merged, ask(merged, capacity))
    assert [int(halves[clusters].sum()) for clusters in got.clusters] == [16] * 6
    for app in range(6):  # together 102 of the first hundred
        merged.groups[app] = [[CountedGroup(17, halves), CountedGroup(13, ~halves)]]
    with seconds(60):
        assert_infeasible(ask(merged, capacity))


def test_apps_together_and_apart_from_others() -> None:
    merged, capacity = problem_of(everywhere(4, 60), [30, 30, 20, 10])
    merged.together |= {(0, 1)}
    merged.apart |= {(0, 2), (0, 3), (2, 3)}
    got = valid(merged, ask(merged, capacity))
    assert set(got.clusters[0]) == set(got.clusters[1])
    merged.replicas[3] = 11
    with seconds(15):
        assert_infeasible(ask(merged, capacity))


def test_the_same_problem_has_the_same_choice() -> None:
    rng = np.random.default_rng(4)
    merged, capacity = problem_of(
        [rng.random(200) < 0.7 for _ in range(8)], [20] * 8, rng.integers(5, 99, 200).tolist()
    )
    for pair in combinations(range(8), 2):
        merged.conflicts[pair] = rng.random(200) < 0.5
    with seconds(60):
        first = valid(merged, ask(merged, capacity))
        assert valid(merged, ask(merged, capacity)).clusters == first.clusters


def test_for_more_than_eight_apps_a_choice_that_is_not_found_may_exist() -> None:
    merged, capacity = problem_of(everywhere(9, 8), [1] * 9)
    merged.apart |= set(combinations(range(9), 2))
    got = ask(merged, capacity)
    assert isinstance(got, NoChoice)
    assert got.truncated
    merged, capacity = problem_of(everywhere(9, 9), [1] * 9)
    merged.apart |= set(combinations(range(9), 2))
    assert not valid(merged, ask(merged, capacity)).proven
