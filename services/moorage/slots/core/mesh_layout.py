"""Lays out the slots of a Machine of the mesh on the nodes of all its clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from moorage.fleet import Fleet
from moorage.ledger import Ledger
from moorage.machine_groups import sizes
from moorage.machine_groups.sizes import slot_size
from moorage.machine_groups.windows import Span
from moorage.model.machine_slots import ReservedSlots, reservation_claim
from moorage.model.machines import MachineDocument, MachineType

from .dependent_types import limits, places_alone
from .layout import PATIENCE, NodeCounts, NodeKey, PooledNode, TypeLayout, lay_out
from .mesh_machines import SlotParts, StoredMachine, share_of
from .planner import FleetRoom, Planner, children_sizes, dependents, is_usable, window_projects
from .slot_pods import SlotsInUse, ends_beside_windows, lent_slots
from .state import ClusterMachines
from .window_slots import by_window, less, set_aside, slots_before, times_of


@dataclass(slots=True)
class MeshLayout:
    """`changed`: reservations that differ from the ledger's; `why`: by machine type, why it has fewer slots than wanted."""

    changed: list[ReservedSlots] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    shares: dict[str, MachineDocument] = field(default_factory=dict)


def lay_out_over_clusters(
    stored: StoredMachine, clusters: Mapping[str, ClusterMachines], fleet: Fleet, ledger: Ledger, now: float
) -> MeshLayout:
    machine, found = stored.machine, MeshLayout()
    held: dict[str, NodeCounts] = {}
    in_use = SlotsInUse.read(ledger, machine, stored.clusters, now)
    allowed: dict[str, NodeCounts] = {}
    for cluster in stored.clusters:
        planner = Planner(fleet, ledger, clusters.get(cluster, ClusterMachines(cluster)), now)
        for kind in machine.types:
            reserved = ledger.machines.reserved.get(reservation_claim(f"{machine.group}/{kind.name}", cluster))
            for node, count in reserved.slots.items() if reserved is not None else ():
                held.setdefault(kind.name, {})[NodeKey(cluster, node)] = count
            for name, places in planner.allowed(machine, kind.name).items():
                allowed.setdefault(name, {}).update(places)
    nodes = [_pooled(stored, number, clusters, fleet, now) for number in range(len(machine.node_pool))]
    layouts = lay_out(machine, nodes, held, in_use.used(), FleetRoom(fleet, ledger, machine))
    parts: dict[str, SlotParts] = {}
    for kind in machine.types:
        layout = layouts.get(kind.name)
        if layout is None:
            continue
        key = f"{machine.group}/{kind.name}"
        if layout.short:
            found.why[key] = f"{layout.maximum - layout.short} of {layout.maximum} slots fit; {layout.why}"
        parts |= _reserve(key, kind, layout, stored, ledger, now, found, in_use, allowed)
    slots = {name: layout.slots for name, layout in layouts.items()}
    short = {name: layout.short for name, layout in layouts.items()}
    found.shares = {cluster: share_of(stored, cluster, slots, short, parts) for cluster in stored.clusters}
    return found


def _reserve(
    key: str,
    kind: MachineType,
    layout: TypeLayout,
    stored: StoredMachine,
    ledger: Ledger,
    now: float,
    found: MeshLayout,
    in_use: SlotsInUse,
    allowed: Mapping[str, NodeCounts],
) -> dict[str, SlotParts]:
    """Notes the reservations of a type that change. Returns which of its slots are for what, also those of types that live in them."""
    promised = in_use.promised[kind.name]
    offline = set_aside(
        layout.slots,
        kind.offline_slots,
        in_use.alone[kind.name],
        _set_aside_now(key, stored.clusters, ledger),
        promised,
    )
    spans = [span for span in map(Span.of, kind.windows) if span.end > now]
    ends = ends_beside_windows(ledger, stored.machine, kind.name, stored.clusters, promised)
    held = _windows_now(key, stored.clusters, ledger)
    free = less(layout.slots, offline)
    kept, windows = by_window(spans, free, held, ends)
    lent = lent_slots(ledger, key, stored.clusters)
    before_windows = slots_before(times_of(spans, now), free, spans, windows, lent, now)
    apart = places_alone(stored.machine, kind.name, offline, in_use.alone)
    most = limits(
        stored.machine,
        kind.name,
        less(free, kept),
        in_use.pods,
        allowed,
        apart,
    )
    size = slot_size(sizes(stored.machine), kind.name)
    for cluster in stored.clusters:
        wanted = ReservedSlots(
            machine=key,
            cluster=cluster,
            size=size,
            children=children_sizes(stored.machine, kind.name),
            dependents=dependents(stored.machine, kind.name, most, cluster),
            slots=_in(cluster, layout.slots),
            offline=_in(cluster, offline),
            kept=_in(cluster, kept),
            windows={name: here for name, nodes in windows.items() if (here := _in(cluster, nodes))},
            before={time: _all_in(cluster, there) for time, there in before_windows.items()},
            allow=stored.machine.allow,
            window_projects=window_projects(kind),
        )
        before = ledger.machines.reserved.get(wanted.claim)
        if before != wanted and (wanted.slots or before is not None):
            found.changed.append(wanted)
    return {kind.name: SlotParts(offline, windows)} | {name: SlotParts(places, {}) for name, places in apart.items()}


def _set_aside_now(key: str, clusters: Iterable[str], ledger: Ledger) -> NodeCounts:
    """Returns the slots of a type that clusters give out alone by the ledger."""
    found: NodeCounts = {}
    for cluster in clusters:
        reserved = ledger.machines.reserved.get(reservation_claim(key, cluster))
        found |= {NodeKey(cluster, n): c for n, c in reserved.offline.items()} if reserved is not None else {}
    return found


def _windows_now(key: str, clusters: Iterable[str], ledger: Ledger) -> dict[str, NodeCounts]:
    """Returns the slots of each window by the ledger."""
    found: dict[str, NodeCounts] = {}
    for cluster in clusters:
        reserved = ledger.machines.reserved.get(reservation_claim(key, cluster))
        for window, nodes in (reserved.windows if reserved is not None else {}).items():
            found.setdefault(window, {}).update({NodeKey(cluster, n): c for n, c in nodes.items()})
    return found


def _pooled(
    stored: StoredMachine, number: int, clusters: Mapping[str, ClusterMachines], fleet: Fleet, now: float
) -> PooledNode:
    """Returns the node as its cluster reports it; a cluster that does not report Machines holds no slots."""
    node = stored.machine.node_pool[number]
    key = NodeKey(node.cluster, node.name)
    cluster, cid = clusters.get(node.cluster), fleet.ids.get(node.cluster)
    if cluster is None or not cluster.known or cid is None:
        return PooledNode(key, node.machine_types, node.mode == "ready", False)
    report = cluster.nodes.get(node.name)
    if report is None:  # it is not in the pool there yet
        ready = node.mode == "ready" and is_usable(fleet, key)
        return PooledNode(key, node.machine_types, ready, ready)
    ready = report.condition == "Ready" and node.mode == "ready"
    waits = report.condition == "NotReady" and node.mode == "ready" and now - report.since < PATIENCE
    return PooledNode(key, node.machine_types, ready or waits, ready and is_usable(fleet, key))


def _all_in(cluster: str, nodes: NodeCounts) -> dict[str, int]:
    return {node.name: count for node, count in nodes.items() if node.cluster == cluster}


def _in(cluster: str, nodes: NodeCounts) -> dict[str, int]:
    return {node.name: count for node, count in nodes.items() if node.cluster == cluster and count}
