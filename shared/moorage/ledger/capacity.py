"""Keeps what claims count for taken from the fleet's free, in step with ledger, reports and decisions in flight.

A slot counts in full unless the newest report shows a live pod of its claim, which then counts where it really is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moorage.fleet import Fleet, FleetChange
from moorage.model.claims import Claim, Decision, Slot

from .ledger import Changes, Ledger

Amounts = dict[str, int]
Wanted = dict[str, Amounts]  # node → what is taken there
Taken = dict[str, tuple[str, Wanted]]  # claim → cluster and what it takes


def uncovered(slots: Sequence[Slot], live: Mapping[str, int]) -> list[tuple[Slot, int]]:
    """How many pods of each run still count. Live pods stand for slots on their own node first, the rest for slots in
    order, wherever those are."""
    spare = dict(live)
    left: list[int] = []
    for slot in slots:
        own = min(slot.count, spare.get(slot.node, 0))
        if own:
            spare[slot.node] -= own
        left.append(slot.count - own)
    elsewhere = sum(spare.values())
    result: list[tuple[Slot, int]] = []
    for slot, count in zip(slots, left, strict=True):
        covered = min(count, elsewhere)
        elsewhere -= covered
        if count > covered:
            result.append((slot, count - covered))
    return result


def _add(total: Wanted, node: str, resources: Mapping[str, int], times: int) -> None:
    mine = total.setdefault(node, {})
    for name, amount in resources.items():
        mine[name] = mine.get(name, 0) + amount * times


def wanted_by(runs: Iterable[tuple[Slot, int]]) -> Wanted:
    total: Wanted = {}
    for slot, count in runs:
        if slot.node:
            _add(total, slot.node, slot.resources, count)
    return total


def beyond(after: Wanted, now: Wanted) -> Wanted:
    """What is more, node by node."""
    if not now:
        return after
    more: Wanted = {}
    for node, amounts in after.items():
        have = now.get(node, {})
        extra = {name: amount - have.get(name, 0) for name, amount in amounts.items() if amount > have.get(name, 0)}
        if extra:
            more[node] = extra
    return more


class Capacity:
    """The only one that calls `fleet.take`. Decisions in flight are held under their own id until they are folded or
    given back. What they may use of claims that count already is seen anew whenever one of those counts otherwise."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self.fleet, self.ledger = fleet, ledger
        self._claims: Taken = {}
        self._flights: dict[str, Taken] = {}  # decision → what its claims take beyond that
        self._flying: dict[str, dict[str, Claim]] = {}  # claim → what decisions in flight make of it
        self._totals: dict[str, Wanted] = {}
        # Nodes whose totals moved since the fleet was told, with what it was told; None: it has forgotten.
        self._dirty: dict[str, dict[str, Amounts | None]] = {}
        fleet.on_change.append(self._fleet_changed)
        self.reload(ledger)

    def close(self) -> None:
        self.fleet.on_change.remove(self._fleet_changed)

    def reload(self, ledger: Ledger) -> None:
        """Another ledger altogether, from a snapshot."""
        self.ledger = ledger
        for ident in {*self._claims, *ledger.claims, *self._flying}:
            self._recount(ident)
        self._flush()

    def folded(self, changes: Changes, decisions: Iterable[Decision] = ()) -> None:
        """After each fold. What was held for the decisions becomes their claims without being given back in between."""
        flights = [self._landed(d.id) for d in decisions]
        for flight in flights:
            for ident in [i for i in flight if i in changes.claims and i not in self._claims]:
                self._claims[ident] = flight.pop(ident)  # they count already
        for ident in changes.claims:
            self._recount(ident)
        for flight in flights:
            self._return(flight)
        self._flush()

    def hold(self, decision: Decision) -> None:
        """Takes what a decision in flight would claim beyond what the same claims take."""
        flight: Taken = {}
        for claim in decision.claims:
            self._flying.setdefault(claim.id, {})[decision.id] = claim
            wanted = self._beyond_what_counts(claim)
            flight[claim.id] = claim.cluster, wanted
            if wanted:
                self._shift(claim.cluster, {}, wanted)
        self._flights[decision.id] = flight
        self._flush()

    def give_back(self, decision: str) -> None:
        self._return(self._landed(decision))
        self._flush()

    def fits(self, decision: str) -> bool:
        """Whether what is held for a decision is really there and may be used, all others that count included."""
        fleet = self.fleet
        for ident, (cluster, wanted) in self._flights.get(decision, {}).items():
            cid = fleet.ids.get(cluster)
            if not wanted:
                held = self.ledger.claims.get(ident)
                stays = held is not None and not held.withdrawn  # whatever became of that place
                if not stays and (cid is None or not fleet.usable_clusters[cid]):
                    return False
                continue
            if cid is None:
                return False
            for node, amounts in wanted.items():
                row = fleet.row_of(cid, node)
                if row is None or not fleet.usable[row]:
                    return False
                for name, amount in amounts.items():
                    free = fleet.free(name)
                    if amount > 0 and (free is None or free[row] < 0):
                        return False
        return True

    def displaced(self, claim: Claim) -> list[Slot] | None:
        """The slots a claim would have if its pods stayed where they are; None while they are where it says, or while
        not all of them are bound."""
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
        lost: list[Slot] = []
        for slot in claim.slots:
            own = min(slot.count, spare.get(slot.node, 0))
            if own:
                spare[slot.node] -= own
                stay.append(Slot(node=slot.node, count=own, resources=slot.resources))
            if slot.count > own:
                lost.append(Slot(count=slot.count - own, resources=slot.resources))
        for node, count in sorted((n, c) for n, c in spare.items() if c):
            while count:
                run = lost[0]
                here = min(count, run.count)
                stay.append(Slot(node=node, count=here, resources=run.resources))
                count -= here
                run.count -= here
                if not run.count:
                    lost.pop(0)
        return stay

    # -- keeping step -------------------------------------------------------------------------------------------------

    def _counted(self, claim: Claim) -> Wanted:
        """What a claim takes, or would, as the newest report has it."""
        cid = self.fleet.ids.get(claim.cluster)
        live = self.fleet.live(claim.id, cid) if cid is not None else {}
        return wanted_by(uncovered(claim.slots, live) if live else ((s, s.count) for s in claim.slots))

    def _beyond_what_counts(self, claim: Claim) -> Wanted:
        cluster, now = self._claims.get(claim.id, (claim.cluster, {}))
        wanted = self._counted(claim)
        return beyond(wanted, now) if cluster == claim.cluster else wanted

    def _recount(self, ident: str) -> None:
        cluster, before = self._claims.pop(ident, ("", {}))
        held = self.ledger.claims.get(ident)
        after: Wanted = {}
        if held is not None:
            claim = held.claim
            after = self._counted(claim)
            self._claims[ident] = (claim.cluster, after)
            if cluster and cluster != claim.cluster:
                self._shift(cluster, before, {})
                before = {}
            cluster = claim.cluster
        if before != after:
            self._shift(cluster, before, after)
        for decision, claim in self._flying.get(ident, {}).items():
            flight = self._flights[decision]
            _, before = flight[ident]
            wanted = self._beyond_what_counts(claim)
            if wanted != before:
                flight[ident] = claim.cluster, wanted
                self._shift(claim.cluster, before, wanted)

    def _landed(self, decision: str) -> Taken:
        flight = self._flights.pop(decision, {})
        for ident in flight:
            others = self._flying[ident]
            del others[decision]
            if not others:
                del self._flying[ident]
        return flight

    def _return(self, flight: Taken) -> None:
        for cluster, wanted in flight.values():
            if wanted:
                self._shift(cluster, wanted, {})

    def _shift(self, cluster: str, before: Wanted, after: Wanted) -> None:
        totals = self._totals.setdefault(cluster, {})
        dirty = self._dirty.setdefault(cluster, {})
        for sign, wanted in ((-1, before), (1, after)):
            for node, amounts in wanted.items():
                mine = totals.setdefault(node, {})
                if node not in dirty:
                    dirty[node] = mine.copy()
                for name, amount in amounts.items():
                    mine[name] = mine.get(name, 0) + sign * amount

    def _flush(self) -> None:
        """Once per change: what is given back here and taken there in one step never looks free in between."""
        dirty, self._dirty = self._dirty, {}
        for cluster, nodes in dirty.items():
            cid = self.fleet.ids.get(cluster)
            totals = self._totals[cluster]
            for node, told in nodes.items():
                wanted = {name: amount for name, amount in totals.get(node, {}).items() if amount}
                if wanted:
                    totals[node] = wanted
                else:
                    totals.pop(node, None)
                if cid is not None and wanted != told:
                    self._settle(cid, node, wanted, told)
            if not totals:
                del self._totals[cluster]

    def _settle(self, cid: int, node: str, wanted: Amounts, told: Amounts | None) -> None:
        """Makes the fleet's row take what is wanted of it."""
        row = self.fleet.row_of(cid, node)
        if row is None:
            return
        taken = self.fleet.taken(row) if told is None else told
        more = {n: a - taken.get(n, 0) for n, a in wanted.items() if a > taken.get(n, 0)}
        less = {n: a - wanted.get(n, 0) for n, a in taken.items() if a > wanted.get(n, 0)}
        if more:
            self.fleet.take(row, more, 1)
        if less:
            self.fleet.take(row, less, -1)

    def _fleet_changed(self, change: FleetChange) -> None:
        if change.reset:
            for ident in {*self.ledger.claims, *self._flying}:
                self._recount(ident)
            for cluster, totals in self._totals.items():
                self._dirty.setdefault(cluster, {}).update(dict.fromkeys(totals))
        else:
            for ident in change.claims:
                if ident in self.ledger.claims or ident in self._flying:
                    self._recount(ident)
            for cid in change.node_sets.tolist():
                cluster = self.fleet.names[cid]
                if cluster in self._totals:
                    self._dirty.setdefault(cluster, {}).update(dict.fromkeys(self._totals[cluster]))
        self._flush()
