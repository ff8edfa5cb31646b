"""Candidates as people read them: the seed's form, the shorter of what is allowed and what is denied, cut where long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moorage.candidates import Mask, unpack
from moorage.fleet import Fleet
from moorage.model.candidates import Answer
from moorage.model.shapes import ShapedApp

SHOWN = 1000


def clusters_shown(mask: Mask, fleet: Fleet, count: int) -> dict[str, Any]:
    known = fleet.known
    allowed, denied = known & mask, known & ~mask
    deny = np.count_nonzero(denied) < np.count_nonzero(allowed)
    ids = np.flatnonzero(denied if deny else allowed).tolist()
    shown: dict[str, Any] = {
        "count": count,
        "mode": "deny" if deny else "allow",
        "clusters": sorted(fleet.names[c] for c in ids)[:SHOWN],
    }
    if len(ids) > SHOWN:
        shown["more"] = len(ids) - SHOWN
    return shown


def sets_shown(answer: Answer, apps: Sequence[ShapedApp], fleet: Fleet) -> dict[str, list[dict[str, Any]]]:
    shown: dict[str, list[dict[str, Any]]] = {}
    for app in apps:
        said = answer.apps.get(app.name)
        if said is None or not said.groups:
            shown[app.name] = [clusters_shown(fleet.known, fleet, app.replicas)]
            continue
        shown[app.name] = []
        for group in said.groups:
            mask = unpack(group.clusters, fleet.ids, fleet.size)
            count = app.replicas if group.count is None else group.count
            shown[app.name].append(clusters_shown(~mask if group.mode == "deny" else mask, fleet, count))
    return shown


def rules_shown(answer: Answer | None) -> list[dict[str, Any]]:
    if answer is None:
        return []
    return [{"app": r.app, "mode": r.mode, "apps": r.apps, "mandatory": r.mandatory} for r in answer.rules]
