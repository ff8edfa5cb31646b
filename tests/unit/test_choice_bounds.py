"""Whether there is a choice is known up to eight apps on 64 classes of clusters, however many replicas, and in time."""

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

RING = [*pairwise(range(5)), (0, 4)]


def asked(
    masks: Sequence[Mask], replicas: Sequence[int], free: Sequence[float] | None = None
) -> tuple[PlacementProblem, FreeCapacity]:
    apps, size = len(masks), masks[0].size
    merged = PlacementProblem(list(replicas), list(masks), [None] * apps, [[] for _ in range(apps)])
    figures = np.array([free if free is not None else [50.0] * size])
    return merged, FreeCapacity(figures, np.full((1, size), 100.0), np.full((apps, 1), 2.0))


def everywhere(apps: int, size: int) -> list[Mask]:
    return [np.ones(size, dtype=np.bool_) for _ in range(apps)]


def ask(merged: PlacementProblem, room: FreeCapacity) -> Choice | NoChoice:
    return choose(merged, room, np.arange(merged.masks[0].size, dtype=np.int64))


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


def none_for_certain(got: Choice | NoChoice) -> None:
    assert isinstance(got, NoChoice)
    assert not got.cut


@contextmanager
def seconds(most: float) -> Iterator[None]:
    before = time.process_time()
    yield
    assert time.process_time() - before < most


@pytest.mark.parametrize("replicas", [3, 12, 20, 40, 120])
def test_two_apart_and_one_of_them_can_be_in_one_half_only(replicas: int) -> None:
    masks = everywhere(2, 2 * replicas)
    masks[1][replicas:] = False
    merged, room = asked(masks, [replicas, replicas])
    merged.apart.add((0, 1))
    with seconds(5):
        got = valid(merged, ask(merged, room))
    assert sorted(got.clusters[1]) == list(range(replicas))
    assert got.proven
    masks[0][-1] = False
    with seconds(5):
        none_for_certain(ask(merged, room))


def test_eight_apart_on_eight_clusters_and_one_has_no_choice() -> None:
    masks = everywhere(8, 8)
    masks[7][1:] = False
    merged, room = asked(masks, [1] * 8, [90, 80, 70, 60, 50, 40, 30, 20])
    merged.apart |= set(combinations(range(8), 2))
    with seconds(5):
        got = valid(merged, ask(merged, room))
    assert got.clusters[7] == [0]
    assert got.proven


def test_eight_apart_on_seven_clusters_have_none() -> None:
    merged, room = asked(everywhere(8, 7), [1] * 8)
    merged.apart |= set(combinations(range(8), 2))
    with seconds(5):
        none_for_certain(ask(merged, room))


@pytest.mark.parametrize("seed", range(10))
def test_eight_apart_on_64_clusters_are_proven_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    free = rng.integers(20, 100, 64).astype(np.float64).tolist()
    merged, room = asked([rng.random(64) < 0.5 for _ in range(8)], [1] * 8, free)
    merged.scores = [rng.integers(0, 3, 64) / 15] * 8
    merged.apart |= set(combinations(range(8), 2))
    with seconds(5):
        assert valid(merged, ask(merged, room)).proven


def test_eight_apart_with_many_replicas_share_64_classes_to_the_last_cluster() -> None:
    rng = np.random.default_rng(2)
    of = np.arange(256) % 64
    planned = rng.permutation(np.arange(256) % 8)
    masks = [(rng.random(64) < 0.4)[of] | np.isin(of, of[planned == app]) for app in range(8)]
    merged, room = asked(masks, [32] * 8)
    merged.apart |= set(combinations(range(8), 2))
    with seconds(20):
        valid(merged, ask(merged, room))
    merged.replicas[3] += 1
    with seconds(20):
        none_for_certain(ask(merged, room))


def test_a_ring_of_conflicts_needs_one_cluster_more_than_halves_would() -> None:
    # Of five in a ring two can share: 33 replicas each are 165, so 83 clusters, not 82.
    for size, possible in ((83, True), (82, False)):
        merged, room = asked(everywhere(5, size), [33] * 5)
        merged.conflicts = {pair: np.ones(size, dtype=np.bool_) for pair in RING}
        with seconds(20):
            got = ask(merged, room)
        if possible:
            valid(merged, got)
        else:
            none_for_certain(got)


@pytest.mark.parametrize("replicas", [1, 5, 33])
def test_what_fits_in_fractions_only_has_no_choice(replicas: int) -> None:
    """Five in a ring want half a cluster more than they have, so do three of which two fit together: they would share
    the last cluster, if clusters came in halves."""
    ring, threes = 5 * replicas // 2, 3 * replicas // 2
    size = ring + threes + 1
    first, second = np.arange(size) < ring, (np.arange(size) >= ring) & (np.arange(size) < ring + threes)
    masks = [~second] * 5 + [~first] * 3
    merged, room = asked(masks, [replicas] * 8)
    room.needs[5:] = 20
    merged.conflicts = {pair: np.ones(size, dtype=np.bool_) for pair in RING}
    merged.conflicts |= {(a, b): np.ones(size, dtype=np.bool_) for a in range(5) for b in range(5, 8)}
    with seconds(20):
        none_for_certain(ask(merged, room))
    merged.masks[:5] = [np.ones(size, dtype=np.bool_)] * 5  # where they get along, they share it
    merged.conflicts = {pair: where for pair, where in merged.conflicts.items() if pair in RING}
    with seconds(20):
        valid(merged, ask(merged, room))


def full(rng: np.random.Generator) -> tuple[PlacementProblem, FreeCapacity]:
    """Few classes of several clusters, filled with what fits, and sometimes one more is wanted than that."""
    apps, kinds, each = int(rng.integers(3, 6)), int(rng.integers(1, 4)), int(rng.integers(2, 6))
    of = np.arange(kinds * each) % kinds
    conflicts = {pair: (rng.random(kinds) < 0.45)[of] for pair in combinations(range(apps), 2)}
    replicas = [0] * apps
    for cluster in range(of.size):
        here: list[int] = []
        for app in rng.permutation(apps).tolist():
            if rng.random() < 0.9 and not any(conflicts[min(app, b), max(app, b)][cluster] for b in here):
                here.append(app)
                replicas[app] += 1
    replicas[int(rng.integers(apps))] += int(rng.integers(0, 2))
    merged, room = asked(everywhere(apps, of.size), [min(of.size, max(1, r)) for r in replicas])
    merged.conflicts = conflicts
    return merged, room


@pytest.mark.parametrize("others", [(), (0, 6, 20)])
def test_branching_on_classes_of_several_agrees_with_counting_up(
    others: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feasibility, "_OTHERS", others)
    rng, answers = np.random.default_rng(1), []
    for _ in range(150):
        merged, room = full(rng)
        nothing = [None] * len(merged.masks)
        worth = Objective(merged, room, np.arange(merged.masks[0].size, dtype=np.int64), nothing, nothing, [])
        found = ClusterClasses(worth, worth.candidate_pools()).solve(10_000)
        assert not isinstance(found, Undecided)
        assert (found is None) == (DynamicProgram(worth, worth.candidate_pools()).best() is None)
        answers.append(found is None)
    assert 20 < sum(answers) < 130


def test_counted_groups_of_many_apps_with_many_replicas() -> None:
    halves = np.arange(200) < 100
    merged, room = asked(everywhere(6, 200), [30] * 6)
    merged.apart |= set(combinations(range(6), 2))
    for app in range(6):
        merged.groups[app].append([CountedGroup(16, halves), CountedGroup(14, ~halves)])
    with seconds(20):
        got = valid(merged, ask(merged, room))
    assert [int(halves[clusters].sum()) for clusters in got.clusters] == [16] * 6
    for app in range(6):  # 102 of the first hundred
        merged.groups[app] = [[CountedGroup(17, halves), CountedGroup(13, ~halves)]]
    with seconds(20):
        none_for_certain(ask(merged, room))


def test_who_must_be_together_and_apart_from_the_others() -> None:
    merged, room = asked(everywhere(4, 60), [30, 30, 20, 10])
    merged.together |= {(0, 1)}
    merged.apart |= {(0, 2), (0, 3), (2, 3)}
    got = valid(merged, ask(merged, room))
    assert set(got.clusters[0]) == set(got.clusters[1])
    merged.replicas[3] = 11
    with seconds(5):
        none_for_certain(ask(merged, room))


def test_the_same_question_has_the_same_answer() -> None:
    rng = np.random.default_rng(4)
    merged, room = asked([rng.random(200) < 0.7 for _ in range(8)], [20] * 8, rng.integers(5, 99, 200).tolist())
    for pair in combinations(range(8), 2):
        merged.conflicts[pair] = rng.random(200) < 0.5
    with seconds(20):
        first = valid(merged, ask(merged, room))
        assert valid(merged, ask(merged, room)).clusters == first.clusters


def test_of_more_than_eight_what_is_not_found_may_be_there() -> None:
    merged, room = asked(everywhere(9, 8), [1] * 9)
    merged.apart |= set(combinations(range(9), 2))
    got = ask(merged, room)
    assert isinstance(got, NoChoice)
    assert got.cut
    merged, room = asked(everywhere(9, 9), [1] * 9)
    merged.apart |= set(combinations(range(9), 2))
    assert not valid(merged, ask(merged, room)).proven
