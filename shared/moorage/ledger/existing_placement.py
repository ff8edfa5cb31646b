"""Finds where a group's apps run already. Their room there is their own, however full the cluster is; so controllers are told
of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from moorage.fit import Mask
from moorage.fleet import Fleet
from moorage.model.candidates import OwnClaim
from moorage.model.claims import claim_id
from moorage.model.groups import Revision
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import Slot

from .families import CountedClaim, FamilyNodes, add
from .kept_places import daemon_set_fits, kept_slots, nodes_without_slot
from .ledger import Ledger
from .takeovers import Wanted

#: App → cluster → the claims there, per object the newest last.
OwnClaims = dict[str, dict[str, list[OwnClaim]]]


@dataclass(slots=True)
class ExistingPlacement:
    """Per app of a group, the clusters on which it runs, and those where it would run unchanged. None: no cluster. `own`: its
    claims."""

    current: list[Mask | None]
    unchanged: list[Mask | None]
    own: OwnClaims

    def unchanged_clusters(self, apps: Sequence[ShapedApp], fleet: Fleet) -> dict[str, list[str]]:
        """Returns the names of the clusters where apps would run unchanged, by app."""
        return {
            app.name: [fleet.names[c] for c in np.flatnonzero(mask).tolist()]
            for app, mask in zip(apps, self.unchanged, strict=True)
            if mask is not None
        }


def own_claims(idents: Iterable[str], group: str, ledger: Ledger) -> OwnClaims:
    """Returns these claims that have slots, with all others that are counted with them. Those of the group that lost their devices, and
    find no others there, do not count."""
    own: OwnClaims = {}
    for family in {ledger.claims[ident].family for ident in idents}:
        failed = ledger.failed_devices(group, family.cluster)
        claims = [
            OwnClaim(id=claim.id, object=claim.object, slots=slots, optional=claim.optional)
            for claim in ledger.family_of(family)
            if (slots := _with_devices(claim.slots, failed))
        ]
        if claims:
            own.setdefault(family.app, {}).setdefault(family.cluster, []).extend(claims)
    return own


def _with_devices(slots: list[Slot], failed: AbstractSet[str]) -> list[Slot]:
    if not failed:
        return slots
    return [slot for slot in slots if failed.isdisjoint(grant.part for grant in slot.devices)]


def own_amounts(claims: Sequence[OwnClaim], cid: int, fleet: Fleet) -> dict[str, int]:
    """Returns what these claims of one app on one cluster take with their pods."""
    total: dict[str, int] = {}
    by_object: dict[str, list[CountedClaim]] = {}
    for claim in claims:
        counted = CountedClaim.reported(claim.slots, claim.id, cid, fleet)
        by_object.setdefault(claim.object, []).append(counted)
    for counted_claims in by_object.values():
        family = FamilyNodes(counted_claims)
        for node in family.nodes().union(*(claim.live for claim in counted_claims)):
            add(total, family.open_on(node))
            add(total, family.pods(node))
    return total


def existing_placement(record: Revision, fleet: Fleet, ledger: Ledger) -> ExistingPlacement:
    current: list[Mask | None] = [None] * len(record.apps)
    unchanged: list[Mask | None] = [None] * len(record.apps)
    idents = _claims_of(record, ledger)
    if not idents:
        return ExistingPlacement(current, unchanged, {})
    clusters_of: dict[str, dict[str, bool]] = {}  # app → its clusters, and whether a claim there is not withdrawn
    for ident in idents:
        active = ledger.claims[ident]
        clusters = clusters_of.setdefault(active.claim.app, {})
        # A withdrawn claim makes a cluster no better than another, but its room may still be used.
        clusters[active.claim.cluster] = clusters.get(active.claim.cluster, False) or not active.withdrawn
    own = own_claims(idents, record.group, ledger)
    for number, app in enumerate(record.apps):
        for cluster, stands in clusters_of.get(app.name, {}).items():
            cid = fleet.ids.get(cluster)
            if cid is None:
                continue
            if stands:
                current[number] = _marked(current[number], cid, fleet.size)
            claims = own.get(app.name, {}).get(cluster, [])
            if all(_stays(wanted_on(record.group, app.name, s, cluster, claims), cid, fleet) for s in app.shapes):
                unchanged[number] = _marked(unchanged[number], cid, fleet.size)
    return ExistingPlacement(current, unchanged, own)


def _claims_of(record: Revision, ledger: Ledger) -> Collection[str]:
    """Returns the group's claims, and those of the group whose place it takes that are of the same objects."""
    mine, before = ledger.by_group.get(record.group, set()), record.succession
    if before is None:
        return mine
    return mine | {
        ident
        for ident in ledger.by_group.get(before.group, ())
        if (claim := ledger.claims[ident].claim).object in before.objects.get(claim.app, ())
    }


def wanted_on(group: str, app: str, shape: Shape, cluster: str, own: Sequence[OwnClaim]) -> Wanted:
    """Returns the object as it is wanted on the cluster, where the app has these claims."""
    claim = claim_id(group, app, shape.object, cluster, shape.template)
    mine = [one for one in own if one.object == shape.object]
    return Wanted(shape, claim, mine, [one for one in own if one.object != shape.object])


def _stays(wanted: Wanted, cid: int, fleet: Fleet) -> bool:
    """Returns whether the object's claim has a place for each pod already."""
    mine = wanted.mine
    if mine is None:
        return False
    if wanted.shape.per_node:
        return daemon_set_fits(mine, cid, fleet) and not nodes_without_slot(wanted.shape, mine, cid, fleet)
    return not kept_slots(mine.slots, mine.id, wanted.shape.count, cid, fleet)[1]


def _marked(mask: Mask | None, cid: int, size: int) -> Mask:
    if mask is None:
        mask = np.zeros(size, dtype=np.bool_)
    mask[cid] = True
    return mask
