"""Selects clusters by the terms of placement intents, as one filter or as several sets with counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from moorage.model.documents import PlacementIntentSpec, PlacementSet, Term
from moorage.sdk import (
    Allowed,
    Answer,
    AppAnswer,
    Ask,
    CandidateGroup,
    Fleet,
    Mask,
    Reason,
    allow,
    answer,
    deny,
    pack,
)
from moorage.selectors import select_clusters

NAME = "labels"
KIND = "PlacementIntent"
SAMPLES = 5

_decoder = msgspec.json.Decoder(PlacementIntentSpec)


@lru_cache(4096)
def _spec(raw: bytes) -> PlacementIntentSpec:
    return _decoder.decode(raw)


def decide(ask: Ask, fleet: Fleet) -> Answer:
    """Allows for each app the clusters that pass all of its filters. Its sets are alternatives within them."""
    specs = [_spec(bytes(intent.spec)) for intent in ask.intents if intent.kind == KIND]
    filtered: dict[str, Allowed] = {}
    counted: dict[str, AppAnswer] = {}
    for app in ask.apps:
        own = [spec for spec in specs if spec.app == app.name]
        if not own:
            filtered[app.name] = deny()
            continue
        filters = [spec for spec in own if spec.all_of or spec.any_of]
        sets = [found for spec in own for found in spec.sets]
        allowed = fleet.known.copy()
        for spec in filters:
            allowed &= select_clusters(spec.all_of, spec.any_of, fleet)
        if sets:
            counted[app.name] = _counted(ask, fleet, app.name, allowed, filters, sets)
        else:
            reasons = _excluded(ask, fleet, app.name, allowed, _described(filters))
            filtered[app.name] = allow(allowed, reasons=reasons)
    result = answer(filtered, ask, fleet, NAME)
    result.apps.update(counted)
    return result


def _counted(
    ask: Ask, fleet: Fleet, app: str, within: Mask, filters: Sequence[PlacementIntentSpec], sets: Sequence[PlacementSet]
) -> AppAnswer:
    """Returns a group of candidates for each set. `within`: the clusters that pass the filters."""
    found = AppAnswer()
    bounds = f" within {_described(filters)}" if filters else ""
    union = np.zeros(fleet.size, np.bool_)
    masks = [select_clusters(one.all_of, one.any_of, fleet) & within for one in sets]
    # A set whose count is all of its clusters takes them, so a set of count 0 (every cluster) need not ask for them again.
    taken, every = np.zeros(fleet.size, np.bool_), np.zeros(fleet.size, np.bool_)
    for one, mask in zip(sets, masks, strict=True):
        if not (one.count or one.partial):
            every |= mask
        if one.count and np.count_nonzero(mask) == one.count:
            taken |= mask
    for one, mask in zip(sets, masks, strict=True):
        union |= mask
        if one.count == 0 and mask.any():
            # A partial set must not relax a cluster that another set requires.
            left = mask & ~taken & ~every if one.partial else mask & ~taken
            mask, taken = left, taken | left
            if not mask.any():
                continue
        found.groups.append(CandidateGroup(mode="allow", clusters=pack(mask), count=one.count, partial=one.partial))
        have = int(np.count_nonzero(mask))
        if have < max(1, one.count):
            found.reasons.append(
                Reason(
                    code="NotEnoughClusters",
                    message=f"the placement {_described([one])}{bounds} selects {have} cluster{'' if have == 1 else 's'}",
                    app=app,
                    needed=str(max(1, one.count)),
                    free=str(have),
                    samples=fleet.clusters.named(mask, SAMPLES),
                    by=NAME,
                )
            )
    found.reasons += _excluded(ask, fleet, app, union, _described(sets) + bounds)
    return found


def _excluded(ask: Ask, fleet: Fleet, app: str, allowed: Mask, placement: str) -> list[Reason]:
    out = fleet.known & ~allowed
    if not out.any() or not (ask.explain or not allowed.any()):
        return []
    return [
        Reason(
            code="PlacementExcludes",
            message=f"not selected by the placement {placement}",
            app=app,
            clusters=int(np.count_nonzero(out)),
            samples=fleet.clusters.named(out, SAMPLES),
            by=NAME,
        )
    ]


def _described(wanted: Iterable[PlacementSet | PlacementIntentSpec]) -> str:
    """Returns the terms as text: `region=eu and (lab/edge-1 or provider lab)`."""
    texts = list(dict.fromkeys(_both(one.all_of, one.any_of) for one in wanted))
    return "; ".join(texts)


def _both(all_of: Sequence[Term], any_of: Sequence[Term]) -> str:
    parts = [_term(term) for term in all_of]
    if any_of:
        parts.append("(" + " or ".join(_term(term) for term in any_of) + ")")
    return " and ".join(parts) or "of every cluster"


def _term(term: Term) -> str:
    parts = [f"{key}={value}" for key, value in term.label.items()]
    if term.provider:
        parts.append(f"provider {term.provider}")
    if term.cluster:
        parts.append(term.cluster)
    if term.all_of or term.any_of:
        parts.append(_both(term.all_of, term.any_of))
    return " and ".join(parts) or "nothing"
