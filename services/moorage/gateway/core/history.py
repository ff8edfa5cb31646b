"""Tells of past decisions how they ended: by a newer decision, by a withdrawal, or for want of room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from moorage.collections import LruDict
from moorage.model.claims import Decision
from moorage.model.records import History, PastDecision, PastEnd

Outcome = Literal["Current", "Replaced", "Withdrawn", "Displaced", "Ended"]


class RecordedDecision(NamedTuple):
    """A decision of the history. `records`: the sequence of the message with its record; 0 if it has none."""

    past: PastDecision
    records: int


class EndedDecision(NamedTuple):
    """A decision, how and when it ended, and the one that replaced it."""

    past: PastDecision
    outcome: Outcome
    ended: str = ""
    replaced_by: str = ""


class DecisionHistory:
    """The newest entries of the history, at most `limit` decisions and as many ends."""

    def __init__(self, limit: int) -> None:
        self._decisions = LruDict[str, RecordedDecision](limit)
        self._ends = LruDict[tuple[str, int, int], PastEnd](limit)
        self._displaced = LruDict[str, PastEnd](limit)  # by decision

    def add(self, entries: History) -> None:
        for past in entries.decisions:
            self._decisions[past.id] = RecordedDecision(past, entries.records if past.recorded else 0)
        for end in entries.ends:
            if end.decision:
                self._displaced[end.decision] = end
                continue
            self._ends[end.group, end.revision, end.seq] = end

    def find(self, decision: str) -> RecordedDecision | None:
        return self._decisions.get(decision)

    def items(self, standing: Mapping[str, Decision], group: str = "") -> list[EndedDecision]:
        """Returns all decisions, or those of one group, in the order of the log. `standing` are the current ones."""
        decisions = [d.past for d in self._decisions.values() if not group or d.past.group == group]
        ends = [end for end in self._ends.values() if not group or end.group == group]
        return list(_with_outcomes(decisions, ends, self._displaced, standing))


def _with_outcomes(
    decisions: Iterable[PastDecision],
    ends: Iterable[PastEnd],
    displaced: Mapping[str, PastEnd],
    standing: Mapping[str, Decision],
) -> Iterator[EndedDecision]:
    """Goes back through the log: what comes after a decision of the same group ended it, unless it was displaced before."""
    entries: list[PastDecision | PastEnd] = [*decisions, *ends]
    entries.sort(key=lambda entry: entry.seq, reverse=True)
    after: dict[str, PastDecision | PastEnd] = {}  # group → its next entry
    found: list[EndedDecision] = []
    for entry in entries:
        following = after.get(entry.group)
        after[entry.group] = entry
        if isinstance(entry, PastEnd):
            continue
        current = standing.get(entry.group)
        if current is not None and current.id == entry.id:
            found.append(EndedDecision(entry, "Current"))
        elif (end := displaced.get(entry.id)) is not None:
            found.append(EndedDecision(entry, end.outcome, end.ended))
        elif isinstance(following, PastEnd) and following.revision >= entry.revision:
            found.append(EndedDecision(entry, following.outcome, following.ended))
        elif isinstance(following, PastDecision):
            found.append(EndedDecision(entry, "Replaced", following.decided, following.id))
        elif current is not None:
            found.append(EndedDecision(entry, "Replaced", "", current.id))
        else:
            found.append(EndedDecision(entry, "Ended"))
    return reversed(found)
