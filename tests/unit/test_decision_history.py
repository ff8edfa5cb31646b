"""Tests how past decisions ended, by entries of the history in whatever order they come."""

from __future__ import annotations

import random

from moorage.gateway.core.history import DecisionHistory
from moorage.model.claims import Decision
from moorage.model.records import History, PastDecision, PastEnd


def past(ident: str, seq: int, group: str = "g", revision: int = 1) -> PastDecision:
    return PastDecision(id=ident, group=group, revision=revision, seq=seq, decided=f"at {seq}", recorded=True)


def standing(*decisions: PastDecision) -> dict[str, Decision]:
    return {d.group: Decision(id=d.id, group=d.group, revision=d.revision, claims=[]) for d in decisions}


def outcomes(history: DecisionHistory, current: dict[str, Decision]) -> dict[str, tuple[str, str, str]]:
    return {item.past.id: (item.outcome, item.ended, item.replaced_by) for item in history.items(current)}


def test_each_end_is_told_whatever_the_order_of_the_entries() -> None:
    last, other = past("e", 9, revision=4), past("o", 3, "other")
    entries = [
        History(decisions=[past("a", 1)]),
        History(decisions=[past("b", 2)], records=7),
        History(ends=[PastEnd(group="g", revision=1, seq=4, ended="at 4")]),
        History(decisions=[past("c", 5, revision=2)]),
        History(ends=[PastEnd(decision="c", seq=6, ended="at 6", outcome="Displaced")]),
        History(decisions=[past("d", 8, revision=3)]),
        History(decisions=[last]),
        History(decisions=[other]),
    ]
    for seed in range(20):
        random.Random(seed).shuffle(entries)
        history = DecisionHistory(100)
        for entry in entries:
            history.add(entry)
        assert outcomes(history, standing(last, other)) == {
            "a": ("Replaced", "at 2", "b"),
            "b": ("Withdrawn", "at 4", ""),
            "c": ("Displaced", "at 6", ""),
            "d": ("Replaced", "at 9", "e"),
            "e": ("Current", "", ""),
            "o": ("Current", "", ""),
        }
        assert [item.past.id for item in history.items({}, "other")] == ["o"]
        found = history.find("b")
        assert found is not None and found.records == 7


def test_a_decision_that_stands_again_is_current_and_one_whose_end_was_lost_has_ended() -> None:
    history = DecisionHistory(100)
    first = past("a", 1)
    history.add(History(decisions=[first, past("b", 2)]))
    history.add(History(ends=[PastEnd(decision="b", seq=3, ended="at 3", outcome="Displaced")]))
    assert outcomes(history, standing(first)) == {"a": ("Current", "", ""), "b": ("Displaced", "at 3", "")}
    assert outcomes(history, {})["a"] == ("Replaced", "at 2", "b")
    history.add(History(decisions=[past("c", 7, "alone")]))
    assert outcomes(history, {})["c"] == ("Ended", "", "")
    unknown = past("later", 9, "alone")
    assert outcomes(history, standing(unknown))["c"] == ("Replaced", "", "later")


def test_only_the_newest_are_kept() -> None:
    history = DecisionHistory(10)
    for seq in range(100):
        history.add(History(decisions=[past(f"d{seq}", seq)], ends=[PastEnd(group="g", revision=1, seq=seq, ended="")]))
    assert [item.past.seq for item in history.items({})] == list(range(90, 100))
    assert history.find("d5") is None
