"""Finds where a group's apps run already. Where an app would run unchanged, its room is its own, however full the cluster
is; so controllers are told these clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from moorage.fit import Mask
from moorage.fleet import Fleet
from moorage.model.claims import Slot, claim_id
from moorage.model.groups import Revision
from moorage.model.shapes import Shape, ShapedApp

from .ledger import Ledger


@dataclass(slots=True)
class ExistingPlacement:
    """Per app of a group, the clusters on which it runs, and those where it would run unchanged. None: no cluster."""

    current: list[Mask | None]
    unchanged: list[Mask | None]

    def unchanged_clusters(self, apps: Sequence[ShapedApp], fleet: Fleet) -> dict[str, list[str]]:
        """Returns the names of the clusters where apps would run unchanged, by app."""
        return {
            app.name: [fleet.names[c] for c in np.flatnonzero(mask).tolist()]
            for app, mask in zip(apps, self.unchanged, strict=True)
            if mask is not None
        }


def existing_placement(record: Revision, fleet: Fleet, ledger: Ledger) -> ExistingPlacement:
    current: list[Mask | None] = [None] * len(record.apps)
    unchanged: list[Mask | None] = [None] * len(record.apps)
    idents = ledger.by_group.get(record.group)
    if not idents:
        return ExistingPlacement(current, unchanged)
    clusters_of: dict[str, dict[str, bool]] = {}  # app → its clusters, and whether a claim there is not withdrawn
    for ident in idents:
        active = ledger.claims[ident]
        clusters = clusters_of.setdefault(active.claim.app, {})
        # A withdrawn claim makes a cluster no better than another, but its room may still be used.
        clusters[active.claim.cluster] = clusters.get(active.claim.cluster, False) or not active.withdrawn
    for number, app in enumerate(record.apps):
        for cluster, stands in clusters_of.get(app.name, {}).items():
            cid = fleet.ids.get(cluster)
            if cid is None:
                continue
            if stands:
                current[number] = _marked(current[number], cid, fleet.size)
            if all(kept_slots(record.group, app.name, shape, cluster, ledger)[1] == 0 for shape in app.shapes):
                unchanged[number] = _marked(unchanged[number], cid, fleet.size)
    return ExistingPlacement(current, unchanged)


def _marked(mask: Mask | None, cid: int, size: int) -> Mask:
    if mask is None:
        mask = np.zeros(size, dtype=np.bool_)
    mask[cid] = True
    return mask


def kept_slots(group: str, app: str, shape: Shape, cluster: str, ledger: Ledger) -> tuple[list[Slot], int]:
    """Returns the slots that the object's claim has already, and how many pods still need one. The hash of the template is
    part of the claim's id, so claims of one id have pods of one size."""
    active = ledger.claims.get(claim_id(group, app, shape.object, cluster, shape.template))
    if active is None or active.group != group:
        return [], shape.count
    if shape.per_node:
        return active.claim.slots, 0
    kept: list[Slot] = []
    missing = shape.count
    for slot in active.claim.slots:
        if missing and slot.count:
            count = min(missing, slot.count)
            kept.append(slot if count == slot.count else msgspec.structs.replace(slot, count=count))
            missing -= count
    return kept, missing
