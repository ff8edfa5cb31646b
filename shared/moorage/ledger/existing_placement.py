"""What a group has already: whoever is asked where its apps may go is told, for where they run unchanged their room is
their own, however full the cluster is."""

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
    """What the ledger knows of the group: per app where it runs, and where unchanged."""

    stay: list[Mask | None]
    held: list[Mask | None]

    def named(self, apps: Sequence[ShapedApp], fleet: Fleet) -> dict[str, list[str]]:
        return {
            app.name: [fleet.names[c] for c in np.flatnonzero(mask).tolist()]
            for app, mask in zip(apps, self.held, strict=True)
            if mask is not None
        }


def existing_placement(record: Revision, fleet: Fleet, ledger: Ledger) -> ExistingPlacement:
    stay: list[Mask | None] = [None] * len(record.apps)
    held: list[Mask | None] = [None] * len(record.apps)
    mine = ledger.by_group.get(record.group)
    if not mine:
        return ExistingPlacement(stay, held)
    places: dict[str, dict[str, bool]] = {}
    for ident in mine:
        counted = ledger.claims[ident]
        where = places.setdefault(counted.claim.app, {})
        # A withdrawn claim's place is no better than another, but its room is still its own.
        where[counted.claim.cluster] = where.get(counted.claim.cluster, False) or not counted.withdrawn
    for number, app in enumerate(record.apps):
        for cluster, stands in places.get(app.name, {}).items():
            cid = fleet.ids.get(cluster)
            if cid is None:
                continue
            if stands:
                stay[number] = _marked(stay[number], cid, fleet.size)
            if all(kept_slots(record.group, app.name, shape, cluster, ledger)[1] == 0 for shape in app.shapes):
                held[number] = _marked(held[number], cid, fleet.size)
    return ExistingPlacement(stay, held)


def _marked(mask: Mask | None, cid: int, size: int) -> Mask:
    if mask is None:
        mask = np.zeros(size, dtype=np.bool_)
    mask[cid] = True
    return mask


def kept_slots(group: str, app: str, shape: Shape, cluster: str, ledger: Ledger) -> tuple[list[Slot], int]:
    """The slots that the same claim has already, and how many pods still need one. The hash of the template is in the
    claim's id, so equal ids need equal room."""
    counted = ledger.claims.get(claim_id(group, app, shape.object, cluster, shape.template))
    if counted is None or counted.group != group:
        return [], shape.count
    if shape.per_node:
        return counted.claim.slots, 0
    kept: list[Slot] = []
    left = shape.count
    for slot in counted.claim.slots:
        if left and slot.count:
            count = min(left, slot.count)
            kept.append(slot if count == slot.count else msgspec.structs.replace(slot, count=count))
            left -= count
    return kept, left
