"""Takes the room of claims and of decisions in flight from the free capacity of a fleet.

A slot counts in full until the newest report shows a live pod of its claim; the pod then counts where it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moorage.fleet import Fleet, FleetChange
from moorage.model.claims import Claim, Decision, Slot

from .ledger import Changes, Ledger

Amounts = dict[str, int]  # by resource
NodeAmounts = dict[str, Amounts]
ClaimAmounts = dict[str, tuple[str, NodeAmounts]]  # claim → its cluster and what it takes there


def uncovered(slots: Sequence[Slot], live: Mapping[str, int]) -> list[tuple[Slot, int]]:
    """Returns the slots that live pods (node → number) leave open, each with the number of its open places. Live pods cover
    slots on their own node first; the rest cover slots in order, on whatever node those are."""
    spare = dict(live)
    uncovered_on_node: list[int] = []
    for slot in slots:
        covered = min(slot.count, spare.get(slot.node, 0))
        if covered:
            spare[slot.node] -= covered
        uncovered_on_node.append(slot.count - covered)
    elsewhere = sum(spare.values())
    result: list[tuple[Slot, int]] = []
    for slot, count in zip(slots, uncovered_on_node, strict=True):
        covered = min(count, elsewhere)
        elsewhere -= covered
        if count > covered:
            result.append((slot, count - covered))
    return result


def amounts_by_node(slots: Iterable[tuple[Slot, int]]) -> NodeAmounts:
    """Sums up slots, each times a count."""
    total: NodeAmounts = {}
    for slot, count in slots:
        if slot.node:
            amounts = total.setdefault(slot.node, {})
            for name, amount in slot.resources.items():
                amounts[name] = amounts.get(name, 0) + amount * count
    return total


def excess(after: NodeAmounts, now: NodeAmounts) -> NodeAmounts:
    """Returns by how much `after` is more than `now`, node by node."""
    if not now:
        return after
    more: NodeAmounts = {}
    for node, amounts in after.items():
        have = now.get(node, {})
        extra = {name: amount - have.get(name, 0) for name, amount in amounts.items() if amount > have.get(name, 0)}
        if extra:
            more[node] = extra
    return more


class Capacity:
    """Keeps the fleet's free capacity in step with the ledger, with reports and with decisions in flight. Nothing else calls
    `fleet.take`. The room of a decision in flight is held under its id until it is folded or given back; it is computed again
    whenever a claim that it keeps takes another amount."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self.fleet, self.ledger = fleet, ledger
        self._claims: ClaimAmounts = {}
        self._in_flight: dict[str, ClaimAmounts] = {}  # decision → what its claims take beyond `_claims`
        self._claims_in_flight: dict[str, dict[str, Claim]] = {}  # claim → by decision, what the claim would become
        self._totals: dict[str, NodeAmounts] = {}  # by cluster
        # Nodes whose totals changed since the last flush, with the amounts of that flush. None: the fleet's row is new.
        self._dirty: dict[str, dict[str, Amounts | None]] = {}
        fleet.on_change.append(self._fleet_changed)
        self.reload(ledger)

    def close(self) -> None:
        self.fleet.on_change.remove(self._fleet_changed)

    def reload(self, ledger: Ledger) -> None:
        """Recounts all claims after the ledger was loaded from a snapshot."""
        self.ledger = ledger
        for ident in {*self._claims, *ledger.claims, *self._claims_in_flight}:
            self._recount(ident)
        self._flush()

    def folded(self, changes: Changes, decisions: Iterable[Decision] = ()) -> None:
        """Recounts the changed claims after a fold. What is held for `decisions` becomes their claims without looking free
        in between."""
        flights = [self._remove_from_flight(d.id) for d in decisions]
        for flight in flights:
            for ident in [i for i in flight if i in changes.claims and i not in self._claims]:
                self._claims[ident] = flight.pop(ident)  # its room is taken already
        for ident in changes.claims:
            self._recount(ident)
        for flight in flights:
            self._return(flight)
        self._flush()

    def hold(self, decision: Decision) -> None:
        """Takes what the decision would claim beyond what the same claims take now."""
        flight: ClaimAmounts = {}
        for claim in decision.claims:
            self._claims_in_flight.setdefault(claim.id, {})[decision.id] = claim
            amounts = self._excess(claim)
            flight[claim.id] = claim.cluster, amounts
            if amounts:
                self._shift(claim.cluster, {}, amounts)
        self._in_flight[decision.id] = flight
        self._flush()

    def give_back(self, decision: str) -> None:
        self._return(self._remove_from_flight(decision))
        self._flush()

    def fits(self, decision: str) -> bool:
        """Returns whether what is held for the decision exists and is usable, with everything else that is taken."""
        fleet = self.fleet
        for ident, (cluster, by_node) in self._in_flight.get(decision, {}).items():
            cid = fleet.ids.get(cluster)
            if not by_node:
                active = self.ledger.claims.get(ident)
                # A claim that stays as it is fits even where the cluster is not usable any more.
                stays = active is not None and not active.withdrawn
                if not stays and (cid is None or not fleet.usable_clusters[cid]):
                    return False
                continue
            if cid is None:
                return False
            for node, amounts in by_node.items():
                row = fleet.row_of(cid, node)
                if row is None or not fleet.usable[row]:
                    return False
                for name, amount in amounts.items():
                    free = fleet.free(name)
                    if amount > 0 and (free is None or free[row] < 0):
                        return False
        return True

    def displaced(self, claim: Claim) -> list[Slot] | None:
        """Returns the slots that the claim needs for its pods to stay where they are. None if they run where the claim says,
        or while not all of them are bound."""
        cid = self.fleet.ids.get(claim.cluster)
        if cid is None:
            return None
        live = self.fleet.live(claim.id, cid)
        places: dict[str, int] = {}
        for slot in claim.slots:
            places[slot.node] = places.get(slot.node, 0) + slot.count
        if not live or live == places or sum(live.values()) != sum(places.values()):
            return None
        spare = dict(live)
        stay: list[Slot] = []
        unused: list[Slot] = []
        for slot in claim.slots:
            used = min(slot.count, spare.get(slot.node, 0))
            if used:
                spare[slot.node] -= used
                stay.append(Slot(node=slot.node, count=used, resources=slot.resources))
            if slot.count > used:
                unused.append(Slot(count=slot.count - used, resources=slot.resources))
        for node, count in sorted((n, c) for n, c in spare.items() if c):
            while count:
                slot = unused[0]
                moved = min(count, slot.count)
                stay.append(Slot(node=node, count=moved, resources=slot.resources))
                count -= moved
                slot.count -= moved
                if not slot.count:
                    unused.pop(0)
        return stay

    # -- counting -----------------------------------------------------------------------------------------------------

    def _counted(self, claim: Claim) -> NodeAmounts:
        """Returns what the claim takes, or would take, by the newest report."""
        cid = self.fleet.ids.get(claim.cluster)
        live = self.fleet.live(claim.id, cid) if cid is not None else {}
        return amounts_by_node(uncovered(claim.slots, live) if live else ((s, s.count) for s in claim.slots))

    def _excess(self, claim: Claim) -> NodeAmounts:
        cluster, now = self._claims.get(claim.id, (claim.cluster, {}))
        counted = self._counted(claim)
        return excess(counted, now) if cluster == claim.cluster else counted

    def _recount(self, ident: str) -> None:
        cluster, before = self._claims.pop(ident, ("", {}))
        active = self.ledger.claims.get(ident)
        after: NodeAmounts = {}
        if active is not None:
            claim = active.claim
            after = self._counted(claim)
            self._claims[ident] = (claim.cluster, after)
            if cluster and cluster != claim.cluster:
                self._shift(cluster, before, {})
                before = {}
            cluster = claim.cluster
        if before != after:
            self._shift(cluster, before, after)
        for decision, claim in self._claims_in_flight.get(ident, {}).items():
            flight = self._in_flight[decision]
            _, before = flight[ident]
            after = self._excess(claim)
            if after != before:
                flight[ident] = claim.cluster, after
                self._shift(claim.cluster, before, after)

    def _remove_from_flight(self, decision: str) -> ClaimAmounts:
        flight = self._in_flight.pop(decision, {})
        for ident in flight:
            others = self._claims_in_flight[ident]
            del others[decision]
            if not others:
                del self._claims_in_flight[ident]
        return flight

    def _return(self, flight: ClaimAmounts) -> None:
        for cluster, amounts in flight.values():
            if amounts:
                self._shift(cluster, amounts, {})

    def _shift(self, cluster: str, before: NodeAmounts, after: NodeAmounts) -> None:
        totals = self._totals.setdefault(cluster, {})
        dirty = self._dirty.setdefault(cluster, {})
        for sign, by_node in ((-1, before), (1, after)):
            for node, amounts in by_node.items():
                total = totals.setdefault(node, {})
                if node not in dirty:
                    dirty[node] = total.copy()
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + sign * amount

    def _flush(self) -> None:
        """Brings the fleet up to date, once per change: room that is given back and taken again in one step never looks free
        in between."""
        dirty, self._dirty = self._dirty, {}
        for cluster, nodes in dirty.items():
            cid = self.fleet.ids.get(cluster)
            totals = self._totals[cluster]
            for node, before in nodes.items():
                after = {name: amount for name, amount in totals.get(node, {}).items() if amount}
                if after:
                    totals[node] = after
                else:
                    totals.pop(node, None)
                if cid is not None and after != before:
                    self._take(cid, node, before, after)
            if not totals:
                del self._totals[cluster]

    def _take(self, cid: int, node: str, before: Amounts | None, after: Amounts) -> None:
        """Takes the difference from the fleet's row. `before` None: from what the row has taken itself."""
        row = self.fleet.row_of(cid, node)
        if row is None:
            return
        taken = self.fleet.taken(row) if before is None else before
        more = {n: a - taken.get(n, 0) for n, a in after.items() if a > taken.get(n, 0)}
        less = {n: a - after.get(n, 0) for n, a in taken.items() if a > after.get(n, 0)}
        if more:
            self.fleet.take(row, more, 1)
        if less:
            self.fleet.take(row, less, -1)

    def _fleet_changed(self, change: FleetChange) -> None:
        if change.reset:
            for ident in {*self.ledger.claims, *self._claims_in_flight}:
                self._recount(ident)
            for cluster, totals in self._totals.items():
                self._dirty.setdefault(cluster, {}).update(dict.fromkeys(totals))
        else:
            for ident in change.claims:
                if ident in self.ledger.claims or ident in self._claims_in_flight:
                    self._recount(ident)
            for cid in change.node_sets.tolist():
                cluster = self.fleet.names[cid]
                if cluster in self._totals:
                    self._dirty.setdefault(cluster, {}).update(dict.fromkeys(self._totals[cluster]))
        self._flush()
