"""Merges answers: filters, counted groups, contradicting counts, weighted scores, rules. Malformed answers are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.candidates import (
    Choice,
    FreeCapacity,
    Mask,
    PlacementProblem,
    WeightedAnswer,
    choose,
    decode_answer,
    merge,
)
from moorage.merger.core.responses import break_ties
from moorage.model.candidates import Answer, AppAnswer, AppsRule, CandidateGroup, Conflict, Level

IDS = {f"lab/c-{i}": i for i in range(6)}
APPS = ["a", "b", "c"]


def some(*numbers: int) -> list[str]:
    return [f"lab/c-{n}" for n in numbers]


def weighted(name: str, answer: Answer, weight: float = 1) -> WeightedAnswer:
    return WeightedAnswer(name, weight, decode_answer(answer, APPS, IDS, 6))


def answer_of(
    name: str, *groups: tuple[int | None, str, list[str]], weight: float = 1, app: str = "a", **margin: Any
) -> WeightedAnswer:
    sets = [CandidateGroup(count=count, mode=mode, clusters=clusters) for count, mode, clusters in groups]  # type: ignore[arg-type]
    return weighted(name, Answer(apps={app: AppAnswer(groups=sets, **margin)}), weight)


def merged(*answers: WeightedAnswer, replicas: tuple[int, ...] = (1, 1, 1)) -> PlacementProblem:
    return merge(replicas, np.ones(6, dtype=np.bool_), answers)


def members_of(mask: Mask) -> list[int]:
    return [int(i) for i in np.flatnonzero(mask)]


def chosen(problem: PlacementProblem) -> list[list[int]]:
    capacity = FreeCapacity(np.zeros((0, 6)), np.zeros((0, 6)), np.zeros((3, 0)))
    got = choose(problem, capacity, np.arange(6, dtype=np.int64))
    assert isinstance(got, Choice)
    return [sorted(clusters) for clusters in got.clusters]


def test_a_cluster_must_be_allowed_by_all_controllers() -> None:
    got = merged(
        answer_of("x", (None, "allow", some(0, 1, 2))), answer_of("y", (None, "deny", some(1))), answer_of("z")
    )
    assert members_of(got.masks[0]) == [0, 2]
    assert members_of(got.masks[1]) == [0, 1, 2, 3, 4, 5]
    assert got.replicas == [1, 1, 1]


def test_counted_groups_are_filtered_by_other_controllers() -> None:
    got = merged(
        answer_of("sets", (2, "allow", some(0, 1, 2)), (1, "allow", some(2, 3))),
        answer_of("hpa", (None, "deny", some(0))),
        replicas=(3, 1, 1),
    )
    assert got.replicas[0] == 3
    assert members_of(got.masks[0]) == [1, 2, 3]
    assert chosen(got)[0] == [1, 2, 3]


def test_count_zero_takes_every_cluster_of_the_group() -> None:
    got = merged(
        answer_of("labels", (0, "allow", some(0, 1, 2, 3))),
        answer_of("hpa", (None, "deny", some(3))),
        replicas=(0, 1, 1),
    )
    assert got.replicas[0] == 4 and not got.left_out
    assert members_of(got.every[0]) == [0, 1, 2, 3] and members_of(got.masks[0]) == [0, 1, 2]


def test_a_partial_group_takes_every_allowed_cluster() -> None:
    labels = answer_of("labels", (0, "allow", some(0, 1, 2, 3)))
    labels.answer.apps[0].groups[0] = labels.answer.apps[0].groups[0]._replace(partial=True)
    got = merged(labels, answer_of("hpa", (None, "deny", some(3))), replicas=(0, 1, 1))
    assert got.replicas[0] == 3 and not got.every
    assert members_of(got.left_out[0]) == [3]
    assert chosen(got)[0] == [0, 1, 2]


def test_different_counts_are_a_mismatch_and_equal_ones_are_not() -> None:
    got = merged(answer_of("x", (2, "allow", some(0, 1))), answer_of("y", (3, "deny", [])))
    assert [(c.app, c.counts) for c in got.count_mismatches] == [(0, {"x": 2, "y": 3, "the application": 1})]
    got = merged(answer_of("x", (2, "allow", some(0, 1))))
    assert [c.counts for c in got.count_mismatches] == [{"x": 2, "the application": 1}]
    got = merged(
        answer_of("x", (2, "allow", some(0, 1))),
        answer_of("y", (1, "allow", some(0)), (1, "allow", some(1))),
        replicas=(2, 1, 1),
    )
    assert not got.count_mismatches
    assert chosen(got)[0] == [0, 1]


def test_scores_are_weighted_means_and_a_missing_score_is_zero() -> None:
    level = [Level(value=0.5, clusters=some(0)), Level(value=1.0, clusters=some(1))]
    got = merged(
        answer_of("x", levels=level, weight=3),
        answer_of("y", levels=[Level(value=1.0, clusters=some(0))]),
        answer_of("z", weight=4),
    )
    scores = got.scores[0]
    assert scores is not None
    assert np.allclose(scores, [(1.5 + 1) / 8, 3 / 8, 0, 0, 0, 0])
    assert got.scores[1] is None


def test_rules_between_apps_are_merged() -> None:
    rules = [
        AppsRule(app="a", mode="allow", apps=["b"]),
        AppsRule(app="b", mode="with", apps=["a"]),
        AppsRule(app="b", mode="deny", apps=["c"], mandatory=False),
    ]
    got = merged(weighted("affinity", Answer(rules=rules)))
    assert got.apart == {(0, 2)}
    assert got.together == {(0, 1)}
    assert got.bonus == {(1, 2): -1.0}
    assert chosen(got) == [[0], [0], [1]]


def test_conflicts_are_united_and_irrelevant_ones_dropped() -> None:
    one = weighted(
        "hpa",
        Answer(conflicts=[Conflict(apps=("b", "a"), clusters=some(0)), Conflict(apps=("a", "b"), clusters=some(1))]),
    )
    got = merged(one, answer_of("x", (None, "deny", some(1))))
    assert members_of(got.conflicts[0, 1]) == [0, 1]
    assert not merged(one, answer_of("x", (None, "deny", some(0, 1)))).conflicts


@pytest.mark.parametrize(
    "answer",
    [
        Answer(apps={"nobody": AppAnswer()}),
        Answer(apps={"a": AppAnswer(groups=[CandidateGroup(mode="allow", count=-1)])}),
        Answer(apps={"a": AppAnswer(groups=[CandidateGroup(mode="allow")] * 100)}),
        Answer(conflicts=[Conflict(apps=("a", "a"), clusters=[])]),
        Answer(conflicts=[Conflict(apps=("a", "nobody"), clusters=[])]),
        Answer(rules=[AppsRule(app="nobody", mode="deny", apps=["a"])]),
        Answer(rules=[AppsRule(app="a", mode="deny", apps=["nobody"])]),
    ],
)
def test_an_invalid_answer_is_refused(answer: Answer) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_answer(answer, APPS, IDS, 6)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["apps", "a", "groups", "mode", "clusters", "conflicts", "levels", "rules", "value", "count"]
                ),
                x,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_junk_is_refused_or_decoded(junk: Any) -> None:
    try:
        answer = msgspec.json.decode(msgspec.json.encode(junk), type=Answer)
        decode_answer(answer, APPS, IDS, 6)
    except (msgspec.DecodeError, ValueError):
        pass


@given(st.lists(st.tuples(st.sampled_from(["allow", "deny"]), st.sets(st.integers(0, 5))), max_size=4))
def test_the_order_of_answers_does_not_matter(sets: list[tuple[str, set[int]]]) -> None:
    answers = [answer_of(f"v{i}", (None, mode, some(*members))) for i, (mode, members) in enumerate(sets)]
    expected = set(range(6))
    for mode, members in sets:
        expected &= members if mode == "allow" else set(range(6)) - members
    assert set(members_of(merged(*answers).masks[0])) == expected
    assert set(members_of(merged(*answers[::-1]).masks[0])) == expected


def test_priorities_break_ties_and_nothing_else() -> None:
    def best(priorities: dict[str, int], margin: float = 0.0) -> int:
        values = {"hpa": (0.6 + margin, 0.4), "labels": (0.4, 0.6)}
        answers = []
        for name, (first, second) in values.items():
            levels = [Level(value=first, clusters=some(0)), Level(value=second, clusters=some(1))]
            answers.append(weighted(name, Answer(apps={"a": AppAnswer(levels=levels)})))
        scores = merge([1, 1, 1], np.ones(6, dtype=np.bool_), break_ties(answers, priorities)).scores[0]
        assert scores is not None
        return int(np.argmax(np.rint(scores * 2**24)))

    assert best({"hpa": 0, "labels": 0}) == 0, "a tie: the first by name"
    assert best({"hpa": 1, "labels": 2}) == 1
    assert best({"hpa": 9, "labels": 2}) == 0
    assert best({"hpa": 1, "labels": 2}, margin=0.001) == 0, "a better score stays better by any margin"
