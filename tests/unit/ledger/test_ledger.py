"""Compares the folded log with its rules, written down plainly."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.ledger import Ledger, decode_commit, encode_commit, encode_entry
from moorage.ledger.entries import HANDLERS
from moorage.model.claims import (
    Commit,
    Decision,
    Entry,
    Reassignment,
    Release,
    Settlement,
    Slot,
    Withdrawal,
    decision_document,
)

from .claims import GROUPS, claim, pods


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    commits = []
    for number in range(draw(st.integers(1, 12))):
        commit = Commit(id=f"c{number}")
        for _ in range(draw(st.integers(0, 3))):
            group = draw(st.sampled_from(GROUPS))
            idents = [f"{group[2]}{i}" for i in draw(st.sets(st.integers(0, 3), max_size=3))]
            match draw(st.integers(0, 4)):
                case 0:
                    held = [
                        claim(i, pods("n-0", draw(st.integers(1, 2))), decision=f"d{number}") for i in sorted(idents)
                    ]
                    d = Decision(id=f"d{number}", group=group, revision=draw(st.integers(1, 4)), claims=held)
                    if all(other.group != group for other in commit.entries_of(Decision)):
                        commit.entries.append(d)
                case 1:
                    commit.entries.append(Withdrawal(group=group, revision=draw(st.integers(1, 4))))
                case 2:
                    commit.entries.append(Release(claims=idents))
                case 3:
                    settled = Settlement(
                        cluster=draw(st.sampled_from(["lab/one", "lab/two"])),
                        epoch=f"1.{draw(st.integers(0, 9))}",
                        slots={i: [pods("n-2")] for i in idents},
                        ended=draw(st.lists(st.sampled_from([f"d{i}" for i in range(number + 1)]), max_size=2)),
                    )
                    commit.entries.append(settled)
                case _:
                    commit.entries.extend(Reassignment(claim=i, slots=[pods("n-1")]) for i in idents[:1])
        commits.append(commit)
    return commits


class Plain:
    """The rules of the log, one by one and without any index: group → (revision, claims), and what was withdrawn."""

    def __init__(self) -> None:
        self.standing: dict[str, tuple[int, dict[str, list[Slot]]]] = {}
        self.ended: dict[str, int] = {}
        self.leaving: dict[str, list[Slot]] = {}
        self.settled: dict[str, tuple[int, int]] = {}
        self.ids: dict[str, str] = {}  # group → id of its standing decision

    def fold(self, commit: Commit) -> None:
        for w in commit.entries_of(Withdrawal):
            self.ended[w.group] = max(self.ended.get(w.group, 0), w.revision)
            if w.group in self.standing and self.standing[w.group][0] <= w.revision:
                self.leaving.update(self.standing.pop(w.group)[1])
        for r in commit.entries_of(Release):
            for ident in r.claims:
                self.leaving.pop(ident, None)
        for t in commit.entries_of(Settlement):
            self.settle(t)
        for entry in commit.entries:
            match entry:
                case Decision():
                    self.decide(entry)
                case Reassignment():
                    self.reassign(entry)

    def decide(self, d: Decision) -> None:
        before = self.standing.get(d.group, (0, {}))
        if d.revision <= self.ended.get(d.group, 0) or before[0] > d.revision:
            return
        new = {c.id: c.slots for c in d.claims}
        self.leaving.update({i: s for i, s in before[1].items() if i not in new})
        for ident in new:
            self.leaving.pop(ident, None)
        self.standing[d.group] = (d.revision, new)
        self.ids[d.group] = d.id

    def settle(self, t: Settlement) -> None:
        generation, _, counter = t.epoch.partition(".")
        epoch = (int(generation), int(counter))
        if epoch < self.settled.get(t.cluster, (0, 0)):
            return
        self.settled[t.cluster] = epoch
        if t.cluster != "lab/one":
            return  # no claim is there
        for ident, slots in t.slots.items():
            self.reassign(Reassignment(claim=ident, slots=slots))
        for group in list(self.standing):
            # A decision without claims is on no cluster.
            if self.ids[group] in t.ended and (self.standing[group][1] or self.is_leaving(group)):
                self.leaving.update(self.standing.pop(group)[1])

    def is_leaving(self, group: str) -> bool:
        return any(ident.startswith(group[2]) for ident in self.leaving)

    def reassign(self, a: Reassignment) -> None:
        if a.claim in self.leaving:
            self.leaving[a.claim] = a.slots
        for _, claims in self.standing.values():
            if a.claim in claims:
                claims[a.claim] = a.slots


def assert_same(ledger: Ledger, plain: Plain) -> None:
    assert {g: (d.revision, {c.id: c.slots for c in d.claims}) for g, d in ledger.standing.items()} == plain.standing
    assert {i: h.claim.slots for i, h in ledger.claims.items() if h.withdrawn} == plain.leaving
    assert ledger.ended_revisions == plain.ended
    assert {i for s in ledger.by_group.values() for i in s} == set(ledger.claims)
    assert {i for s in ledger.by_cluster.values() for i in s} == set(ledger.claims)


@settings(max_examples=400, deadline=None)
@given(histories())
def test_the_fold_keeps_the_rules(history: list[Commit]) -> None:
    ledger, plain = Ledger(), Plain()
    for seq, commit in enumerate(history, 1):
        before = {ident: active.claim.cluster for ident, active in ledger.claims.items()}
        changes = ledger.fold(seq, commit)
        plain.fold(commit)
        assert_same(ledger, plain)
        assert changes.claims >= before.keys() ^ ledger.claims.keys()
        assert changes.released == before.keys() - ledger.claims.keys()
        assert changes.released_on >= {before[ident] for ident in changes.released}


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(0, 12))
def test_a_snapshot_and_the_tail_are_the_whole_log(history: list[Commit], cut: int) -> None:
    whole, early = Ledger(), Ledger()
    for seq, commit in enumerate(history, 1):
        whole.fold(seq, commit)
        if seq <= cut:
            early.fold(seq, msgspec.json.decode(msgspec.json.encode(commit), type=Commit))
    again = Ledger.decode(early.encode())
    for seq, commit in enumerate(history, 1):
        if seq > again.seq:
            again.fold(seq, commit)
    assert again.standing == whole.standing
    assert again.claims == whole.claims
    assert again.ended_revisions == whole.ended_revisions
    assert list(again.commits) == list(whole.commits)


def test_terminate_and_place_cannot_cross() -> None:
    ledger = Ledger()
    decision = Decision(id="d", group=GROUPS[0], revision=3, claims=[claim("k", pods("n-0"))])
    ledger.fold(1, Commit(id="a", entries=[Withdrawal(group=GROUPS[0], revision=3)]))
    changes = ledger.fold(2, Commit(id="b", entries=[decision]))
    assert changes.refused == ("d",)
    assert not ledger.claims


def test_every_kind_of_entry_has_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(Entry))


@given(histories())
def test_a_commit_is_read_as_it_was_written(history: list[Commit]) -> None:
    for commit in history:
        data = encode_commit(commit.id, commit.by, [encode_entry(entry) for entry in commit.entries])
        assert data == msgspec.json.encode(commit)
        assert decode_commit(data) == commit


def test_the_kind_of_an_entry_is_written_with_it() -> None:
    decision = Decision(id="d", group="g", revision=2, claims=[])
    entries: list[Entry] = [
        Withdrawal(group="g", revision=1),
        Release(claims=["k"]),
        Reassignment(claim="k", slots=[]),
        Settlement(cluster="lab/one", epoch="1.2", slots={"k": []}, ended=["e"]),
        decision,
    ]
    written = json.loads(encode_commit("c", "m", [encode_entry(entry) for entry in entries]))
    assert written == {
        "id": "c",
        "by": "m",
        "entries": [
            {"kind": "withdrawal", "group": "g", "revision": 1},
            {"kind": "release", "claims": ["k"]},
            {"kind": "reassign", "claim": "k", "slots": []},
            {"kind": "settlement", "cluster": "lab/one", "epoch": "1.2", "slots": {"k": []}, "ended": ["e"]},
            {"kind": "decision", "id": "d", "group": "g", "revision": 2, "claims": []},
        ],
    }
    assert decision_document(decision) == {"id": "d", "group": "g", "revision": 2, "claims": []}


class TestFormerFormat:
    """A log and a snapshot from before entries had a kind, with what that release folded them to."""

    FORMER = json.loads((Path(__file__).parents[1] / "data/ledger_of_four_lists.json").read_text())

    @classmethod
    def folded(cls) -> object:
        """Returns the result, without two fields of slots that no release ever filled."""

        def cleaned(value: object) -> object:
            if isinstance(value, dict):
                return {k: cleaned(v) for k, v in value.items() if k not in ("providers", "numa")}
            return [cleaned(v) for v in value] if isinstance(value, list) else value

        return cleaned(cls.FORMER["folded"])

    def fold(self, ledger: Ledger) -> None:
        for seq, line in enumerate(self.FORMER["commits"], 1):
            if seq <= ledger.seq:
                continue
            changes = ledger.fold(seq, decode_commit(line["commit"].encode()))._asdict()
            assert {name: list(found) for name, found in changes.items() if name == "refused" and found} | {
                name: sorted(found) for name, found in changes.items() if name not in ("seq", "refused") and found
            } == line["changes"]
        assert {
            "standing": {group: decision_document(decision) for group, decision in ledger.standing.items()},
            "claims": {
                ident: {"group": a.group, "withdrawn": a.withdrawn, "claim": msgspec.to_builtins(a.claim)}
                for ident, a in ledger.claims.items()
            },
            "ended": ledger.ended_revisions,
            "commits": list(ledger.commits),
        } == self.folded()

    def test_a_log_of_four_lists_is_read(self) -> None:
        self.fold(Ledger())

    def test_a_snapshot_and_the_tail_are_read(self) -> None:
        ledger = Ledger.decode(base64.b64decode(self.FORMER["snapshot"]))
        assert ledger.seq == self.FORMER["snapshotSeq"]
        self.fold(ledger)


@given(st.binary(max_size=300))
def test_junk_is_no_snapshot(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, ValueError)):
        Ledger.decode(data)


def test_commits_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="follow"):
        Ledger().fold(2, Commit(id="x"))
