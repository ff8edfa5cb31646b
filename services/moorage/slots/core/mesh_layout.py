"""Lays out the slots of a Machine of the mesh on the nodes of all its clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorage.fleet import Fleet
from moorage.ledger import Ledger
from moorage.model.machine_slots import ReservedSlots, reservation_claim
from moorage.model.machines import MachineDocument

from .layout import PATIENCE, NodeCounts, NodeKey, PooledNode, lay_out
from .mesh_machines import SlotParts, StoredMachine, share_of
from .planner import FleetRoom, Planner, is_usable
from .slot_pods import SlotsInUse
from .state import ClusterMachines
from .type_reservations import changed, reserve_type


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
        divided = reserve_type(machine, kind, layout.slots, stored.clusters, ledger, now, in_use, allowed)
        found.changed += [one for one in divided.by_cluster.values() if changed(one, ledger)]
        parts |= divided.parts
    slots = {name: layout.slots for name, layout in layouts.items()}
    short = {name: layout.short for name, layout in layouts.items()}
    found.shares = {cluster: share_of(stored, cluster, slots, short, parts) for cluster in stored.clusters}
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
