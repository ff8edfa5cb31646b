"""One controller's answer, read strictly: masks, counted groups and scores per app, conflicts and rules by app number.

Whatever cannot be read raises ValueError: the controller then counts as one that answered with an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moorage.model.candidates import Answer, AppAnswer, WireSet

from .cluster_sets import Mask, Scores, read, unpack_levels

#: More groups, conflicts or rules than this are no answer but an attack on the merger's time.
MAX_GROUPS = 64
MAX_PAIRS = 4096


class CountedGroup(NamedTuple):
    wanted: int  # 0: every one of them
    mask: Mask


class DecodedAppAnswer(NamedTuple):
    allowed: Mask | None  # None: every cluster
    groups: list[CountedGroup]  # empty: only a filter, the app's own count holds
    scores: Scores | None


class AffinityRule(NamedTuple):
    """`apart` or together on every cluster, for one pair of apps; lower number first."""

    apps: tuple[int, int]
    apart: bool
    mandatory: bool


class DecodedAnswer(NamedTuple):
    apps: dict[int, DecodedAppAnswer]
    conflicts: dict[tuple[int, int], Mask]
    rules: list[AffinityRule]
    unknown: int  # names and ids nobody here knows


def decode_answer(answer: Answer, apps: Sequence[str], ids: Mapping[str, int], size: int) -> DecodedAnswer:
    numbers = {name: i for i, name in enumerate(apps)}
    unknown = 0

    def mask_of(wire: WireSet) -> Mask:
        nonlocal unknown
        got = read(wire, ids, size)
        unknown += got.unknown
        return got.mask

    def number(name: str) -> int:
        if name not in numbers:
            raise ValueError(f"the answer names an app {name!r} that was not asked about")
        return numbers[name]

    def pair(a: str, b: str) -> tuple[int, int]:
        i, j = number(a), number(b)
        if i == j:
            raise ValueError(f"the answer sets app {a!r} against itself")
        return (i, j) if i < j else (j, i)

    def opinion(app: AppAnswer) -> DecodedAppAnswer:
        if len(app.groups) > MAX_GROUPS:
            raise ValueError(f"{len(app.groups)} groups for one app; at most {MAX_GROUPS} are allowed")
        groups: list[CountedGroup] = []
        plain: Mask | None = None
        for group in app.groups:
            if group.mode == "deny" and group.count is None and group.clusters == []:
                continue
            mask = mask_of(group.clusters)
            if group.mode == "deny":
                np.logical_not(mask, out=mask)
            if group.count is None:
                plain = mask if plain is None else plain & mask
            elif group.count < 0:
                raise ValueError(f"a group of {group.count} clusters")
            else:
                groups.append(CountedGroup(group.count, mask))
        if groups:
            allowed = np.logical_or.reduce([g.mask for g in groups])
            plain = allowed if plain is None else plain & allowed
        return DecodedAppAnswer(plain, groups, unpack_levels(app.levels, ids, size) if app.levels else None)

    if len(answer.conflicts) > MAX_PAIRS or len(answer.rules) > MAX_PAIRS:
        raise ValueError("more conflicts or rules than an answer may have")
    opinions = {number(name): opinion(app) for name, app in answer.apps.items()}
    conflicts: dict[tuple[int, int], Mask] = {}
    for conflict in answer.conflicts:
        key, mask = pair(*conflict.apps), mask_of(conflict.clusters)
        conflicts[key] = conflicts[key] | mask if key in conflicts else mask
    rules: dict[AffinityRule, None] = {}
    for rule in answer.rules:
        number(rule.app)
        if rule.mode == "allow":  # may share with these only: apart from all the others
            others = [name for name in apps if name != rule.app and name not in rule.apps]
        else:
            others = [name for name in rule.apps if name != rule.app]
        for other in others:
            rules[AffinityRule(pair(rule.app, other), rule.mode != "with", rule.mandatory)] = None
    return DecodedAnswer(opinions, conflicts, list(rules), unknown)
