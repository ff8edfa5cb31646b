"""Decides when an app may be removed from a cluster it has left, and which withdrawn claims are confirmed as removed."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from moorage.ledger import Ledger
from moorage.model.claims import Decision
from moorage.model.desired_state import DesiredRecord
from moorage.model.status import ClaimsRemoved

from .desired_state import claims_of
from .group_status import Confirmed


def may_remove(decision: Decision | None, app: str, version: int, confirmed: Confirmed) -> bool:
    """Returns whether the app runs in all its new places: the new place comes first, then the removal of the old one."""
    clusters = {c.cluster for c in decision.claims if c.app == app} if decision is not None else set()
    for cluster in clusters:
        status = confirmed.get((app, cluster))
        if status is None or status.version < version or any(o.state != "Ready" for o in status.objects):
            return False
    return True


def removed_claims(
    ledger: Ledger, group: str, desired: DesiredRecord | None, confirmed: Confirmed
) -> list[ClaimsRemoved]:
    """Lists withdrawn claims whose removal the agent of their cluster has confirmed."""
    decision = ledger.standing.get(group)
    if desired is None or desired.decision != (decision.id if decision is not None else ""):
        return []
    by_cluster: dict[str, ClaimsRemoved] = {}
    for active in claims_of(ledger, group):
        claim = active.claim
        status = confirmed.get((claim.app, claim.cluster))
        if active.withdrawn and status is not None and status.version >= desired.version:
            removed = by_cluster.setdefault(claim.cluster, ClaimsRemoved(claims=[], cluster=claim.cluster))
            removed.claims.append(claim.id)
            removed.as_of = max(removed.as_of, status.as_of)
    return list(by_cluster.values())


def abandoned_claims(ledger: Ledger, group: str, left: AbstractSet[str]) -> list[ClaimsRemoved]:
    """Lists withdrawn claims on clusters that left the fleet: no agent is there to confirm anything."""
    by_cluster: dict[str, ClaimsRemoved] = {}
    for active in claims_of(ledger, group):
        cluster = active.claim.cluster
        if active.withdrawn and cluster in left:
            removed = by_cluster.setdefault(cluster, ClaimsRemoved(claims=[], cluster=cluster, gone=True))
            removed.claims.append(active.claim.id)
    return list(by_cluster.values())
