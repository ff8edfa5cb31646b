"""The choice against every choice there is, on small fleets."""

from __future__ import annotations

import time
from itertools import combinations, permutations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.candidates import Choice, Group, Merged, NoChoice, Room, choose, disjoint


def seated(groups: list[list[Group]], clusters: tuple[int, ...]) -> bool:
    """Every controller's groups can be filled with these clusters: by trying every order."""
    for one in groups:
        seats = [g for g in one for _ in range(g.wanted)]
        if len(seats) != len(clusters):
            return False
        if not any(all(g.mask[c] for g, c in zip(seats, order, strict=True)) for order in permutations(clusters)):
            return False
    return True


def worth(
    merged: Merged, room: Room, picks: tuple[tuple[int, ...], ...], nogoods: list[tuple[int, frozenset[int]]]
) -> int | None:
    """What a choice is worth by the rules as written, or None where it breaks one."""
    at: dict[int, list[int]] = {}
    total = 0
    for app, clusters in enumerate(picks):
        if not seated(merged.groups[app], clusters):
            return None
        for c in clusters:
            if not merged.masks[app][c]:
                return None
            at.setdefault(c, []).append(app)
            scores = merged.scores[app]
            total += round(float(scores[c]) * (1 << 24)) << 25 if scores is not None else 0
    for a, b in merged.together:
        small, large = sorted((set(picks[a]), set(picks[b])), key=len)
        if not small <= large:
            return None
    for c, apps in at.items():
        if any(failed <= set(apps) for where, failed in nogoods if where == c):
            return None
        for pair in combinations(apps, 2):
            if pair in merged.apart or (pair in merged.conflicts and merged.conflicts[pair][c]):
                return None
            total += round(merged.bonus.get(pair, 0.0) * (1 << 24)) << 25
        need = sum(room.needs[a] for a in apps)
        shares = [(room.free[r][c] - n) / max(room.allocatable[r][c], 1) for r, n in enumerate(need) if n]
        if shares:
            if min(shares) < 0:
                return None
            asking = sum(1 for a in apps if room.needs[a].any())
            total += round(min(1.0, min(shares)) * (1 << 20)) * asking
    return total


@st.composite
def questions(draw: st.DrawFn, grouped: bool = False) -> tuple[Merged, Room, list[tuple[int, frozenset[int]]]]:
    size, apps = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, dtype=np.bool_))
    likely = st.lists(st.sampled_from([True, True, False]), min_size=size, max_size=size).map(
        lambda b: np.array(b, dtype=np.bool_)
    )
    level = st.lists(st.sampled_from([0.0, 0.2, 0.4, 1.0]), min_size=size, max_size=size).map(np.array)
    pairs = list(combinations(range(apps), 2))
    pair = st.sampled_from(pairs) if pairs else st.nothing()
    merged = Merged(
        replicas=[draw(st.integers(1, 2)) for _ in range(apps)],
        masks=[draw(likely) for _ in range(apps)],
        scores=[draw(st.none() | level) for _ in range(apps)],
        groups=[[] for _ in range(apps)],
        conflicts={p: draw(mask) for p in pairs if draw(st.booleans())},
        apart=draw(st.sets(pair, max_size=1)) if pairs else set(),
        together=draw(st.sets(pair, max_size=1)) if pairs else set(),
        bonus=draw(st.dictionaries(pair, st.sampled_from([-0.5, 0.3]), max_size=2)) if pairs else {},
    )
    if grouped:
        for app in range(apps):
            for _ in range(draw(st.integers(0, 2))):
                merged.groups[app].append([Group(1, draw(likely)) for _ in range(merged.replicas[app])])
    asked = draw(st.integers(0, 2))
    figure = st.lists(st.integers(0, 12), min_size=size, max_size=size)
    room = Room(
        free=np.array([draw(figure) for _ in range(asked)], dtype=np.float64).reshape(asked, size),
        allocatable=np.full((asked, size), 12.0),
        needs=np.array(
            [[draw(st.integers(0, 6)) for _ in range(asked)] for _ in range(apps)], dtype=np.float64
        ).reshape(apps, asked),
    )
    nogoods = draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.frozensets(st.integers(0, apps - 1), min_size=1)), max_size=2)
    )
    return merged, room, nogoods


def check(merged: Merged, room: Room, nogoods: list[tuple[int, frozenset[int]]]) -> None:
    size = merged.masks[0].size
    ranks = np.arange(size, dtype=np.int64)
    options = [list(combinations(range(size), r)) for r in merged.replicas]
    values = [v for picks in product(*options) if (v := worth(merged, room, picks, nogoods)) is not None]
    got = choose(merged, room, ranks, nogoods=nogoods)
    if not values:
        assert isinstance(got, NoChoice)
        assert not got.cut
        return
    assert isinstance(got, Choice)
    assert got.proven
    assert worth(merged, room, tuple(tuple(c) for c in got.clusters), nogoods) == max(values)


@settings(max_examples=400, deadline=None)
@given(questions())
def test_the_best_choice_is_found(question: tuple[Merged, Room, list[tuple[int, frozenset[int]]]]) -> None:
    check(*question)


@settings(max_examples=300, deadline=None)
@given(questions(grouped=True))
def test_with_counted_groups(question: tuple[Merged, Room, list[tuple[int, frozenset[int]]]]) -> None:
    check(*question)


@settings(max_examples=150, deadline=None)
@given(questions(grouped=True), st.integers(1, 60))
def test_cut_off_it_is_never_wrong(question: tuple[Merged, Room, list[tuple[int, frozenset[int]]]], steps: int) -> None:
    merged, room, nogoods = question
    got = choose(merged, room, np.arange(merged.masks[0].size, dtype=np.int64), nogoods=nogoods, steps=steps)
    if isinstance(got, Choice):
        assert worth(merged, room, tuple(tuple(c) for c in got.clusters), nogoods) is not None


def plain(size: int, replicas: list[int], resources: int = 3, seed: int = 1) -> tuple[Merged, Room]:
    rng = np.random.default_rng(seed)
    merged = Merged(
        replicas=replicas,
        masks=[rng.random(size) < 0.5 for _ in replicas],
        scores=[np.floor(rng.random(size) * 3) / 3 for _ in replicas],
        groups=[[] for _ in replicas],
    )
    whole = rng.integers(50, 100, (resources, size)).astype(np.float64)
    return merged, Room(
        np.floor(whole * rng.random((resources, size))), whole, np.full((len(replicas), resources), 2.0)
    )


def test_ties_go_to_the_most_free_then_to_the_name() -> None:
    merged, room = plain(6, [2])
    merged.masks[0][:] = True
    merged.scores[0] = None
    room.allocatable[:] = 100
    room.free[:] = [[50, 80, 50, 90, 50, 50]]
    ranks = np.array([5, 4, 3, 2, 1, 0], dtype=np.int64)
    got = choose(merged, room, ranks)
    assert isinstance(got, Choice)
    assert got.clusters == [[3, 1]]
    room.free[:] = 50
    got = choose(merged, room, ranks)
    assert isinstance(got, Choice)
    assert got.clusters == [[5, 4]]


def test_an_app_that_asks_for_nothing_gains_nothing_from_company() -> None:
    merged, room = plain(4, [1, 1, 1], resources=1)
    for mask in merged.masks:
        mask[:] = True
    merged.scores = [None, None, None]
    room.free[:], room.allocatable[:] = [[0, 0, 0, 2]], 12
    room.needs[:] = [[0], [0], [1]]
    check(merged, room, [])


def test_what_stays_outranks_scores_and_needs_no_new_room() -> None:
    merged, room = plain(4, [1])
    merged.masks[0][:] = True
    merged.scores[0] = np.array([1.0, 0.0, 1.0, 1.0])
    room.free[:, 1] = 0
    stay = np.array([False, True, False, False])
    got = choose(merged, room, np.arange(4, dtype=np.int64), stay=[stay], held=[stay])
    assert isinstance(got, Choice)
    assert got.clusters == [[1]]


def test_eight_apps_and_many_classes_are_decided_in_time() -> None:
    merged, room = plain(512, [1] * 8)
    for pair in combinations(range(8), 2):
        merged.conflicts[pair] = np.random.default_rng(pair[1]).random(512) < 0.3
    merged.apart.add((0, 1))
    merged.together.add((2, 3))
    before = time.process_time()
    got = choose(merged, room, np.arange(512, dtype=np.int64))
    assert isinstance(got, Choice)
    assert time.process_time() - before < 2.0


def test_disjoint_sets_are_disjoint_where_it_matters() -> None:
    merged, _ = plain(40, [1, 3])
    merged.conflicts[0, 1] = np.random.default_rng(3).random(40) < 0.6
    a, b = disjoint(merged)
    assert not np.any(a & b & merged.conflicts[0, 1])
    assert np.array_equal(a | b, merged.masks[0] | merged.masks[1])
