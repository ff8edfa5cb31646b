"""Keeps which objects of a cluster settling may have to move: those with stray pods, and those that are not at rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .active_claims import ActiveClaim
from .families import CountedClaim, Family, FamilyNodes, differs_from_pods, strays_have_open_slots
from .ledger import Ledger
from .part_moves import parts_moved


class UnsettledObjects:
    def __init__(self) -> None:
        self._strayed: dict[str, set[Family]] = {}  # cluster → objects with both a stray pod and an open slot
        self._in_motion: dict[str, set[Family]] = {}  # cluster → objects that are not at rest

    def strayed(self, cluster: str) -> Collection[Family]:
        """Returns the objects there with both a stray pod and an open slot, or with a pod that has other parts than its slot."""
        return self._strayed.get(cluster, ())

    def in_motion(self, cluster: str) -> Collection[Family]:
        """Returns the objects there that are not at rest: all but those with one claim that stays, each slot of which has its pod.
        Settling changes nothing about an object at rest. DaemonSets never are, as their slots follow the nodes."""
        return self._in_motion.get(cluster, ())

    def mark_strays(self, family: Family, claims: Sequence[CountedClaim], nodes: FamilyNodes | None) -> None:
        """Notes whether pods of the object are where it has no slots, or take other parts than these. `nodes`: its claims by node;
        None where that is not so."""
        # The slots of a DaemonSet follow its nodes, so any difference to its pods may unsettle the cluster.
        per_node = family.object.startswith("DaemonSet/")
        if nodes is not None and (
            (differs_from_pods(nodes) if per_node else strays_have_open_slots(nodes))
            or any(claim.named and parts_moved(claim.slots, claim.named) for claim in claims)
        ):
            self._strayed.setdefault(family.cluster, set()).add(family)
        elif (families := self._strayed.get(family.cluster)) is not None:
            families.discard(family)
            if not families:
                del self._strayed[family.cluster]

    def mark_motion(self, family: Family, ledger: Ledger, *, covered: bool) -> None:
        """Notes whether the object is at rest. `covered`: each of its slots has its pod."""
        idents = ledger.families.get(family, ())
        if idents and not (covered and _stays(family, ledger.claims[idents[0]])):
            self._in_motion.setdefault(family.cluster, set()).add(family)
        elif (families := self._in_motion.get(family.cluster)) is not None:
            families.discard(family)
            if not families:
                del self._in_motion[family.cluster]


def _stays(family: Family, active: ActiveClaim) -> bool:
    """Returns whether nothing is expected to change about an object's only claim once each of its slots has a pod."""
    surge = any(slot.surge for slot in active.claim.slots)
    return not (active.withdrawn or active.claim.vacated or surge or family.object.startswith("DaemonSet/"))
