"""Says what the slots of a machine type are for: everyone, windows, or a cluster alone; and what types live in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moorage.ledger import Ledger
from moorage.machine_groups import sizes
from moorage.machine_groups.sizes import slot_size
from moorage.machine_groups.windows import Span
from moorage.model.machine_slots import Dependent, ReservedSlots, reservation_claim
from moorage.model.machines import Machine, MachineType
from moorage.model.shapes import PODS

from .dependent_types import limits, places_alone, types_below
from .layout import NodeCounts, NodeKey
from .mesh_machines import SlotParts
from .slot_pods import SlotsInUse, ends_beside_windows, lent_slots
from .window_slots import by_window, less, set_aside, slots_before, times_of


class TypeReservations(NamedTuple):
    """`by_cluster`: what is reserved there; `parts`: what slots of the type, and of those that live in them, are for."""

    by_cluster: dict[str, ReservedSlots]
    parts: dict[str, SlotParts]


def reserve_type(
    machine: Machine,
    kind: MachineType,
    slots: NodeCounts,
    clusters: Sequence[str],
    ledger: Ledger,
    now: float,
    in_use: SlotsInUse,
    allowed: Mapping[str, NodeCounts],
) -> TypeReservations:
    """Divides the slots of a type on the nodes of these clusters. `allowed`: how many pods of the types that live in them nodes may have
    by the ledger."""
    name, key = kind.name, f"{machine.group}/{kind.name}"
    claims = {cluster: ledger.machines.reserved.get(reservation_claim(key, cluster)) for cluster in clusters}
    before = {cluster: reserved for cluster, reserved in claims.items() if reserved is not None}
    held: dict[str, NodeCounts] = {}  # by window
    for cluster, reserved in before.items():
        for window, nodes in reserved.windows.items():
            held.setdefault(window, {}).update(_on(cluster, nodes))
    aside = {
        node: count for cluster, reserved in before.items() for node, count in _on(cluster, reserved.offline).items()
    }
    offline = set_aside(slots, kind.offline_slots, in_use.alone[name], aside, in_use.promised[name])
    free = less(slots, offline)
    spans = [span for span in map(Span.of, kind.windows) if span.end > now]
    ends = ends_beside_windows(ledger, machine, name, clusters, in_use.promised[name])
    kept, windows = by_window(spans, free, held, ends)
    lent = lent_slots(ledger, key, clusters)
    earlier = slots_before(times_of(spans, now), free, spans, windows, lent, now)
    apart = places_alone(machine, name, offline, in_use.alone)
    most = limits(machine, name, less(free, kept), in_use.pods, allowed, apart)
    found = sizes(machine)
    below = sorted(types_below(machine, name))
    reservations = {
        cluster: ReservedSlots(
            machine=key,
            cluster=cluster,
            size=slot_size(found, name),
            children={f"{machine.group}/{other}": {**found[other].amounts, PODS: 1} for other in below},
            dependents={
                f"{machine.group}/{other}": Dependent(
                    parent=f"{machine.group}/{found[other].parent}",
                    per_parent=found[other].per_parent,
                    most=_in(cluster, most[other]) if other in most else None,
                )
                for other in below
            },
            slots=_some_in(cluster, slots),
            offline=_some_in(cluster, offline),
            kept=_some_in(cluster, kept),
            windows={window: _some_in(cluster, nodes) for window, nodes in windows.items()},
            before={time: _in(cluster, nodes) for time, nodes in earlier.items()},
            allow=machine.allow,
            window_projects={window.name: list(window.projects) for window in kind.windows if window.projects},
        )
        for cluster in clusters
    }
    parts = {name: SlotParts(offline, windows)} | {other: SlotParts(places, {}) for other, places in apart.items()}
    return TypeReservations(reservations, parts)


def changed(reserved: ReservedSlots, ledger: Ledger) -> bool:
    """Returns whether the ledger has to be told of a reservation."""
    before = ledger.machines.reserved.get(reserved.claim)
    return before != reserved and (bool(reserved.slots) or before is not None)


def _on(cluster: str, nodes: Mapping[str, int]) -> NodeCounts:
    return {NodeKey(cluster, node): count for node, count in nodes.items()}


def _in(cluster: str, nodes: NodeCounts) -> dict[str, int]:
    return {node.name: count for node, count in nodes.items() if node.cluster == cluster}


def _some_in(cluster: str, nodes: NodeCounts) -> dict[str, int]:
    return {node: count for node, count in _in(cluster, nodes).items() if count}
