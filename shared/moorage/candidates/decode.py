"""Decodes one controller's answer strictly: masks, counted groups and scores per app, conflicts and rules by app number.

An answer that cannot be decoded raises ValueError; its controller then counts as one that answered with an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moorage.model.candidates import (
    MAX_ORDER,
    MAX_PREFERRED,
    Answer,
    AppAnswer,
    CandidateGroup,
    Conflict,
    WireSet,
)

from .cluster_sets import Mask, Ranks, Scores, decode_set, unpack_levels, unpack_ranks

#: Larger answers are refused, because they could only cost the merger time.
MAX_GROUPS = 64
MAX_PAIRS = 4096


class CountedGroup(NamedTuple):
    wanted: int  # 0: every cluster of the group
    mask: Mask
    partial: bool = False  # with 0: those of them that can take the app


class DecodedAppAnswer(NamedTuple):
    allowed: Mask | None  # None: every cluster
    groups: list[CountedGroup]  # empty: only a filter, the app's own count applies
    scores: Scores | None
    preferred: Ranks | None = None  # by the choice of alternatives
    order: Ranks | None = None


class DecodedRule(NamedTuple):
    """A rule for a pair of apps, the lower number first: apart or together on every cluster."""

    apps: tuple[int, int]
    apart: bool
    mandatory: bool


class DecodedAnswer(NamedTuple):
    apps: dict[int, DecodedAppAnswer]
    conflicts: dict[tuple[int, int], Mask]
    rules: list[DecodedRule]
    unknown: int  # cluster names and ids that this process does not know


def decode_answer(answer: Answer, apps: Sequence[str], ids: Mapping[str, int], size: int) -> DecodedAnswer:
    """Decodes an answer about these apps; `ids` and `size` are the dense cluster ids of this process."""
    if len(answer.conflicts) > MAX_PAIRS or len(answer.rules) > MAX_PAIRS:
        raise ValueError(f"more conflicts or rules than the {MAX_PAIRS} allowed")
    decoder = _Decoder(apps, ids, size)
    app_answers = {decoder.number(name): decoder.app_answer(app) for name, app in answer.apps.items()}
    conflicts: dict[tuple[int, int], Mask] = {}
    for conflict in answer.conflicts:
        pair, mask = decoder.conflict(conflict)
        conflicts[pair] = conflicts[pair] | mask if pair in conflicts else mask
    rules: dict[DecodedRule, None] = {}
    for rule in answer.rules:
        decoder.number(rule.app)
        if rule.mode == "allow":  # may share clusters with these apps only: apart from all others
            others = [name for name in apps if name != rule.app and name not in rule.apps]
        else:
            others = [name for name in rule.apps if name != rule.app]
        for other in others:
            rules[DecodedRule(decoder.pair(rule.app, other), rule.mode != "with", rule.mandatory)] = None
    return DecodedAnswer(app_answers, conflicts, list(rules), decoder.unknown)


class _Decoder:
    """Maps the names of one answer to numbers and masks, and counts the clusters that are unknown here."""

    def __init__(self, apps: Sequence[str], ids: Mapping[str, int], size: int) -> None:
        self._numbers = {name: i for i, name in enumerate(apps)}
        self._ids, self._size = ids, size
        self.unknown = 0

    def mask(self, wire: WireSet) -> Mask:
        decoded = decode_set(wire, self._ids, self._size)
        self.unknown += decoded.unknown
        return decoded.mask

    def number(self, name: str) -> int:
        if name not in self._numbers:
            raise ValueError(f"the answer names an app {name!r} that is not in the request")
        return self._numbers[name]

    def pair(self, a: str, b: str) -> tuple[int, int]:
        i, j = self.number(a), self.number(b)
        if i == j:
            raise ValueError(f"the answer sets app {a!r} against itself")
        return (i, j) if i < j else (j, i)

    def conflict(self, conflict: Conflict) -> tuple[tuple[int, int], Mask]:
        return self.pair(*conflict.apps), self.mask(conflict.clusters)

    def app_answer(self, app: AppAnswer) -> DecodedAppAnswer:
        if len(app.groups) > MAX_GROUPS:
            raise ValueError(f"{len(app.groups)} groups for one app; at most {MAX_GROUPS} are allowed")
        counted: list[CountedGroup] = []
        allowed: Mask | None = None
        for group in app.groups:
            if group.mode == "deny" and group.count is None and group.clusters == []:
                continue
            mask = self._group_mask(group)
            if group.count is None:
                allowed = mask if allowed is None else allowed & mask
            elif group.count < 0:
                raise ValueError(f"a group of {group.count} clusters")
            else:
                counted.append(CountedGroup(group.count, mask, group.partial))
        if counted:
            in_any_group = np.logical_or.reduce([group.mask for group in counted])
            allowed = in_any_group if allowed is None else allowed & in_any_group
        scores = unpack_levels(app.levels, self._ids, self._size) if app.levels else None
        preferred, order = (
            unpack_ranks(sets, self._ids, self._size, most) if sets else None
            for sets, most in ((app.preferred, MAX_PREFERRED), (app.order, MAX_ORDER))
        )
        return DecodedAppAnswer(allowed, counted, scores, preferred, order)

    def _group_mask(self, group: CandidateGroup) -> Mask:
        mask = self.mask(group.clusters)
        return ~mask if group.mode == "deny" else mask
