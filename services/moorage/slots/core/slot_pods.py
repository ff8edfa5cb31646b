"""Reads from the ledger who has slots: guests that were made in clusters, and applications of the mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from moorage.ledger import Ledger
from moorage.ledger.families import Family
from moorage.machine_groups.windows import Span
from moorage.model.machine_slots import gone_by, machine_of, reservation_claim, slot_resource
from moorage.model.machines import Machine, MachineType
from moorage.model.slots import Slot

from .dependent_types import in_use
from .layout import NodeCounts, NodeKey


class SlotsInUse(NamedTuple):
    """The slots of a Machine that somebody has, by type and node. `pods`: who got them from the mesh; `promised`: slots of each type that
    these take, also of those in which theirs live; `alone`: those that clusters gave out alone."""

    pods: dict[str, NodeCounts]
    promised: dict[str, NodeCounts]
    alone: dict[str, NodeCounts]

    @classmethod
    def read(cls, ledger: Ledger, machine: Machine, clusters: Iterable[str], now: float) -> SlotsInUse:
        names = list(clusters)
        pods = pods_in_slots(ledger, machine, names, alone=False, now=now)
        return cls(pods, in_use(machine, pods), given_alone(ledger, machine, names))

    def used(self) -> dict[str, NodeCounts]:
        """Returns all of them. Pods of types that share slots share none between those of the mesh and those given out alone."""
        return {
            kind: {node: nodes.get(node, 0) + alone.get(node, 0) for node in {**nodes, **alone}}
            for kind, nodes in self.promised.items()
            for alone in [self.alone.get(kind, {})]
        }


def pods_in_slots(
    ledger: Ledger, machine: Machine, clusters: Iterable[str], *, alone: bool = True, now: float = inf
) -> dict[str, NodeCounts]:
    """Returns how many slots of each type guests and applications have, by node. `alone`: also those that clusters gave them alone. `now`: of
    slots that one has after the other as many as are used at once from then on."""
    return {
        kind.name: {
            node: count
            for cluster in clusters
            for node, count in _of_type(ledger, f"{machine.group}/{kind.name}", kind, cluster, now, alone=alone).items()
        }
        for kind in machine.types
    }


def given_alone(ledger: Ledger, machine: Machine, clusters: Iterable[str]) -> dict[str, NodeCounts]:
    """Returns how many slots of each type clusters gave out alone, by node, also to pods of types that live in them."""
    pods: dict[str, NodeCounts] = {kind.name: {} for kind in machine.types}
    for cluster in clusters:
        for kind in machine.types:
            counts = pods[kind.name]
            for slot in ledger.machines.guests_of(reservation_claim(f"{machine.group}/{kind.name}", cluster)):
                if slot.alone:
                    node = NodeKey(cluster, slot.node)
                    counts[node] = counts.get(node, 0) + 1
    return in_use(machine, pods)


def ends_beside_windows(
    ledger: Ledger, machine: Machine, name: str, clusters: Iterable[str], promised: NodeCounts
) -> dict[NodeKey, list[float]]:
    """Returns when those are over who have slots of a type that no window keeps for them. `promised`: all slots that somebody has, also by
    pods of types that live in them."""
    ends: dict[NodeKey, list[float]] = {}
    others, key = dict(promised), f"{machine.group}/{name}"
    for cluster in clusters:
        claim = reservation_claim(key, cluster)
        for slot in ledger.machines.guests_of(claim):
            if slot.claim == claim and not slot.alone:
                node = NodeKey(cluster, slot.node)
                others[node] = others.get(node, 0) - 1
                if not slot.pool:
                    ends.setdefault(node, []).append(slot.until or inf)
        for ident in ledger.machines.within.get(claim, ()):
            for used in ledger.claims[ident].claim.slots:
                if slot_resource(key) not in used.resources:  # it is one of a window, or for some time only
                    node = NodeKey(cluster, used.node)
                    others[node] = others.get(node, 0) - used.count
                    if time := _gone_by(used):
                        ends.setdefault(node, []).extend([time] * used.count)
    for node, count in others.items():
        if count > 0:
            ends.setdefault(node, []).extend([inf] * count)
    return ends


def lent_slots(ledger: Ledger, key: str, clusters: Iterable[str]) -> dict[int, NodeCounts]:
    """Returns the slots of a type that somebody has who is gone by a time, by that time and node."""
    found: dict[int, NodeCounts] = {}
    for cluster in clusters:
        claim = reservation_claim(key, cluster)
        taken = [(slot.before, slot.node, 1) for slot in ledger.machines.guests_of(claim) if slot.takes]
        for ident in ledger.machines.within.get(claim, ()):
            taken += [(_gone_by(slot), slot.node, slot.count) for slot in ledger.claims[ident].claim.slots]
        for time, name, count in taken:
            if time:
                node, there = NodeKey(cluster, name), found.setdefault(time, {})
                there[node] = there.get(node, 0) + count
    return found


def times_of_claims(ledger: Ledger, claims: Iterable[str]) -> dict[str, int]:
    """Returns the claims whose pods have to be gone by a time."""
    times = {ident: max(map(_gone_by, ledger.claims[ident].claim.slots), default=0) for ident in claims}
    return {ident: time for ident, time in times.items() if time}


def _gone_by(slot: Slot) -> int:
    return max(map(gone_by, slot.resources), default=0)


def _of_type(ledger: Ledger, key: str, kind: MachineType, cluster: str, now: float, *, alone: bool) -> NodeCounts:
    spans = {window.name: Span.of(window)[1:3] for window in kind.windows} if now < inf else {}

    def times(resource: str) -> tuple[float, float]:
        """Returns from when until when somebody has a slot."""
        _, window = machine_of(resource) or ("", "")
        return spans.get(window, (0.0, (gone_by(resource) if now < inf else 0) or inf))

    claim = reservation_claim(key, cluster)
    found: dict[tuple[float, float], NodeCounts] = {}
    within = claims_within(ledger, claim)
    for slot in ledger.machines.guests_of(claim):
        if slot.alone and not alone:
            continue
        # A cluster that was cut off may have given a pod of an application another slot than the mesh.
        if slot.claim == claim or (slot.alone and slot.node not in within.get(slot.claim, {})):
            node, there = NodeKey(cluster, slot.node), found.setdefault(times(next(iter(slot.takes), "")), {})
            there[node] = there.get(node, 0) + 1
    claims: dict[tuple[float, float], dict[str, dict[str, int]]] = {}
    for ident, nodes in within.items():
        resources = {name for slot in ledger.claims[ident].claim.slots for name in slot.resources if machine_of(name)}
        claims.setdefault(times(max(resources, default="")), {})[ident] = nodes
    for when, some in claims.items():
        there = found.setdefault(when, {})
        for name, count in slots_of_objects(ledger, some).items():
            node = NodeKey(cluster, name)
            there[node] = there.get(node, 0) + count
    moments = [now, *(begin for begin, _ in found if begin > now)] if now < inf else [0.0]
    most: NodeCounts = {}
    everywhere = {node for there in found.values() for node in there}
    for moment in moments:
        for node in everywhere:
            there_then = sum(n.get(node, 0) for (begin, end), n in found.items() if begin <= moment < end)
            most[node] = max(there_then, most.get(node, 0))
    return {node: count for node, count in most.items() if count}


def slots_of_objects(ledger: Ledger, claims: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Returns how many slots claims have by node. An update takes over the slots of the claim before it, and both are there until the older
    pods are gone."""
    of_object: dict[Family, dict[str, int]] = {}
    for ident, nodes in claims.items():
        most = of_object.setdefault(ledger.claims[ident].family, {})
        for name, count in nodes.items():
            most[name] = max(count, most.get(name, 0))
    found: dict[str, int] = {}
    for nodes in of_object.values():
        for name, count in nodes.items():
            found[name] = found.get(name, 0) + count
    return found


def claims_within(ledger: Ledger, reservation: str) -> dict[str, dict[str, int]]:
    """Returns the applications that the mesh placed into slots of a reservation: their claims, with the slots by node."""
    found: dict[str, dict[str, int]] = {}
    for ident in sorted(ledger.machines.within.get(reservation, ())):
        nodes = found.setdefault(ident, {})
        for slot in ledger.claims[ident].claim.slots:
            nodes[slot.node] = nodes.get(slot.node, 0) + slot.count
    return found
