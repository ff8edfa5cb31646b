"""Decides which confirmed removals allow the release of their claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moorage.fleet import Fleet
from moorage.ledger import Ledger


class Removal(NamedTuple):
    """An agent's confirmation that a claim's pods are removed. `as_of` is its time of the removal; None if the cluster left
    the fleet."""

    cluster: str
    as_of: float | None


class SortedRemovals(NamedTuple):
    releasable: list[str]  # claims that may be released
    unreported: dict[str, Removal]  # claims whose cluster has to report once more


def sort_removals(removals: Mapping[str, Removal], ledger: Ledger, fleet: Fleet) -> SortedRemovals:
    """Leaves out removals of claims that are not withdrawn, or that another cluster confirmed."""
    result = SortedRemovals([], {})
    for ident, removal in removals.items():
        active = ledger.claims.get(ident)
        if active is None or not active.withdrawn or active.claim.cluster != removal.cluster:
            continue
        if removal.as_of is None or _reported_without_pods(ident, removal.cluster, removal.as_of, fleet):
            result.releasable.append(ident)
        else:
            result.unreported[ident] = removal
    return result


def _reported_without_pods(ident: str, cluster: str, as_of: float, fleet: Fleet) -> bool:
    """Returns whether a report from after `as_of` shows no pod of the claim."""
    cid = fleet.ids.get(cluster)
    return cid is not None and fleet.as_of(cid) > as_of and not fleet.pods.present(ident, cid)
