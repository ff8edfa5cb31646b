"""Tests what the decision log forgets of groups that have ended: for all followers at the same commit, and never so that something
of a forgotten group comes back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.ledger import Ledger
from moorage.ledger import ledger as rules
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Slot, Withdrawal

COMMITS, SECONDS = 6, 3.0
NAMES = ["p/a/v1/default", "p/b/v1/default", "p/c/v1/default"]


@pytest.fixture(autouse=True)
def short_memory() -> Iterator[None]:
    """Shorter than in the product; as the settings of a module, because hypothesis repeats a test with its fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "FORGET_COMMITS", COMMITS)
        patch.setattr(rules, "FORGET_SECONDS", SECONDS)
        yield


def claim(group: str) -> Claim:
    intent = IntentRef(kind="Application", name="a", revision=1)
    slots = [Slot(node="n", resources={"cpu": 1})]
    return Claim(id=f"k-{group[2]}", decision="", intent=intent, tenant="p", slots=slots, cluster="lab/one", app="x")


def decision(group: str, revision: int, based_on: int = 0, ident: str = "d") -> Decision:
    return Decision(id=ident, group=group, revision=revision, claims=[claim(group)], based_on=based_on)


class Log:
    """Appends commits at a time of its own, and folds them."""

    def __init__(self) -> None:
        self.ledger, self.commits, self.time = Ledger(), list[Commit](), 1000.0

    def append(self, *entries: Entry) -> rules.Changes:
        self.commits.append(Commit(id=str(len(self.commits)), at=self.time, entries=list(entries)))
        return self.ledger.fold(len(self.commits), self.commits[-1])

    def end(self, group: str, revision: int) -> None:
        self.append(decision(group, revision))
        self.append(Withdrawal(group=group, revision=revision))
        self.append(Release(claims=[claim(group).id]))

    def pass_by(self, commits: int, seconds: float) -> list[str]:
        self.time += seconds
        return [group for _ in range(commits) for group in self.append().forgotten]


def test_it_takes_both_the_commits_and_the_time() -> None:
    log = Log()
    log.end(NAMES[0], 3)
    assert log.pass_by(COMMITS + 5, SECONDS - 0.1) == []
    assert log.pass_by(1, 0.1) == [NAMES[0]]
    assert not log.ledger.knows(NAMES[0])
    log.end(NAMES[0], 1)
    assert log.pass_by(COMMITS - 1, SECONDS) == []
    assert log.pass_by(1, 0.0) == [NAMES[0]]


def test_nothing_is_forgotten_while_anything_counts() -> None:
    log = Log()
    log.append(decision(NAMES[0], 2))
    log.append(Withdrawal(group=NAMES[0], revision=2))
    assert log.pass_by(50, 1000) == []  # its claim is not released
    log.append(Release(claims=[claim(NAMES[0]).id]))
    log.append(decision(NAMES[0], 3))
    assert log.pass_by(50, 1000) == []  # it stands again
    assert log.ledger.ended_revisions == {NAMES[0]: 2}


def test_a_second_withdrawal_begins_the_time_anew() -> None:
    log = Log()
    log.end(NAMES[0], 2)
    log.pass_by(COMMITS - 1, SECONDS)
    log.append(Withdrawal(group=NAMES[0], revision=2))
    assert log.pass_by(COMMITS - 1, SECONDS) == []
    assert log.pass_by(1, 0) == [NAMES[0]]


def test_a_group_of_the_same_name_begins_at_one_again() -> None:
    log = Log()
    log.end(NAMES[0], 5)
    assert log.append(decision(NAMES[0], 1)).refused == ("d",)
    log.pass_by(COMMITS, SECONDS)
    assert log.append(decision(NAMES[0], 1, based_on=len(log.commits))).refused == ()
    assert log.ledger.standing[NAMES[0]].revision == 1


def test_what_is_based_on_a_forgotten_commit_folds_to_nothing() -> None:
    log = Log()
    log.append()
    log.end(NAMES[0], 5)  # the proposer saw nothing of it
    log.pass_by(COMMITS, SECONDS)
    assert log.append(decision(NAMES[0], 5, based_on=1)).refused == ("d",)
    log.append(decision(NAMES[0], 1, based_on=len(log.commits)))
    assert log.append(Withdrawal(group=NAMES[0], revision=5, based_on=2)).groups == frozenset()
    assert log.ledger.standing[NAMES[0]].revision == 1


def test_a_clock_that_is_set_back_keeps_nothing_for_ever() -> None:
    log = Log()
    log.time = 1e9
    log.end(NAMES[0], 1)
    log.time = 1000.0
    assert log.pass_by(COMMITS + 1, 0) == [NAMES[0]]


def test_what_is_remembered_does_not_grow_with_what_ever_was() -> None:
    log, sizes = Log(), list[int]()
    for number in range(3000):
        log.time += 0.5
        log.end(f"p/{number:06}/v1/default", 1)
        if number % 1000 == 999:
            log.ledger.commits.clear()
            sizes.append(len(log.ledger.encode()))
            assert len(log.ledger.ended_revisions) <= max(COMMITS, SECONDS / 0.5) + 1
    assert max(sizes) <= sizes[0] + 8


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    commits, time = list[Commit](), 1000.0
    for number in range(draw(st.integers(1, 40))):
        time += draw(st.sampled_from([0.0, 0.5, 1.0, 5.0, -0.2]))
        entries: list[Entry] = []
        for _ in range(draw(st.integers(0, 2))):
            group = draw(st.sampled_from(NAMES))
            match draw(st.integers(0, 2)):
                case 0:
                    based_on = draw(st.integers(0, number + 1))
                    entries.append(decision(group, draw(st.integers(1, 3)), based_on, f"d{number}.{len(entries)}"))
                case 1:
                    entries.append(Withdrawal(group=group, revision=draw(st.integers(1, 3))))
                case _:
                    entries.append(Release(claims=[claim(group).id]))
        commits.append(Commit(id=str(number), at=time, entries=entries))
    return commits


def idle(ledger: Ledger) -> object:
    return msgspec.msgpack.decode(ledger.encode()).get("idle")


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(0, 40))
def test_a_snapshot_and_the_tail_forget_at_the_same_commits(history: list[Commit], cut: int) -> None:
    whole, early = Ledger(), Ledger()
    tail: list[tuple[int, rules.Changes]] = []
    for seq, commit in enumerate(history, 1):
        changes = whole.fold(seq, commit)
        if seq <= cut:
            early.fold(seq, commit)
        else:
            tail.append((seq, changes))
    again = Ledger.decode(early.encode())
    for seq, changes in tail:
        assert again.fold(seq, msgspec.json.decode(msgspec.json.encode(history[seq - 1]), type=Commit)) == changes
    assert idle(again) == idle(whole)
    assert again.ended_revisions == whole.ended_revisions


@settings(max_examples=300, deadline=None)
@given(histories())
def test_what_is_forgotten_is_what_the_rule_says(history: list[Commit]) -> None:
    ledger = Ledger()
    since: dict[str, tuple[int, float]] = {}
    ended: dict[str, int] = {}
    for seq, commit in enumerate(history, 1):
        changes = ledger.fold(seq, commit)
        withdrawn = {entry.group: entry.revision for entry in commit.entries_of(Withdrawal)}
        for entry in commit.entries_of(Withdrawal):
            ended[entry.group] = max(ended.get(entry.group, 0), entry.revision)
        rule = []
        for group in NAMES:
            counts = group in ledger.standing or group in ledger.by_group
            if group not in ended or counts:
                since.pop(group, None)
            elif group in withdrawn or group not in since:
                since[group] = seq, commit.at
            elif seq - since[group][0] >= COMMITS and not 0 <= commit.at - since[group][1] < SECONDS:
                rule.append(group)
        # A group waits for those that ended before it, which a clock may hold up for a moment.
        assert set(changes.forgotten) <= set(rule)
        for group in changes.forgotten:
            del since[group], ended[group]
        assert ledger.ended_revisions == ended
        if all(a.at <= b.at for a, b in pairwise(history)):
            assert set(changes.forgotten) == set(rule)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 25), st.booleans())
def test_a_merger_that_slept_brings_nothing_back(before: int, asleep: int, after: int, late: int, again: bool) -> None:
    """A merger gets a hint, sleeps while the group is withdrawn, released and forgotten, and commits whenever it wakes up."""
    log = Log()
    log.pass_by(before, 1)
    based_on = max(log.ledger.seq, 1)
    log.pass_by(asleep, 1)
    log.append(decision(NAMES[0], 2), *([decision(NAMES[1], 1)] if again else []))
    log.pass_by(after, 1)
    log.append(Withdrawal(group=NAMES[0], revision=2), Release(claims=[claim(NAMES[0]).id]))
    log.pass_by(late, 1)
    log.append(decision(NAMES[0], 2, based_on, "late"))
    assert NAMES[0] not in log.ledger.standing
    assert not any(active.group == NAMES[0] and not active.withdrawn for active in log.ledger.claims.values())
