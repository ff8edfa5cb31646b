"""Describes the zones of a node to the mesh: what they have, which roles may come, and what each pod takes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.model.part_reports import InventoryReport, ZoneReport, ZoneReserve
from moorage.model.reports import QosReport

from .admission import PodRecord
from .bound_zones import open_zones
from .cpusets import format_cpuset
from .machine import Machine
from .messages import ResourceAllocation, nodes_of
from .node_policy import NodePolicy, RoleSpec
from .role_parts import LOCK_TOTAL, ROLE_LOCK, known_trait, lock_amount, reported, role_trait

#: What a pod takes of zones, by zone and class, in the text of reports.
ZoneAmounts = dict[int, dict[str, float]]
_LOCK = reported(ROLE_LOCK)


def roles_there(pods: Iterable[tuple[str, ZoneAmounts]]) -> dict[int, set[str]]:
    """Returns the roles that are bound to each zone, from the role of each pod and what it takes."""
    found: dict[int, set[str]] = {}
    for role, amounts in pods:
        for zone, classes in amounts.items():
            if _LOCK in classes:
                found.setdefault(zone, set()).add(role)
    return found


def zone_reports(
    machine: Machine, policy: NodePolicy, there: Mapping[int, set[str]], offered: Mapping[str, int]
) -> list[ZoneReport]:
    """Returns the zones, with the traits of the roles that are known and may come now. `there`: the roles that are bound to each
    zone. `offered`: the zones that have each of the resources that roles need without requesting them, for plugins that run."""
    kept = _kept_for_pools(machine, policy)
    memory = {node.id: node.total for node in machine.memory}
    zones = sorted({*machine.cpus.numas, *memory})
    found = []
    for zone in zones:
        cpus = machine.cpus.numas.get(zone, 0)
        reserved = (cpus & policy.reserved_cpus).bit_count() + kept.get(zone, 0)
        total = memory.get(zone, {})
        found.append(
            ZoneReport(
                id=zone,
                cpus=format_cpuset(cpus) or 0,
                memory=str(total.get("memory", 0)),
                reserved=ZoneReserve(
                    cpus=min(reserved, cpus.bit_count()), memory=str(policy.reserved_memory.get(zone, 0))
                ),
                inventories={
                    reported(ROLE_LOCK): InventoryReport(total=str(LOCK_TOTAL)),
                    **{name: str(size) for name, size in sorted(total.items()) if name != "memory"},
                },
                distances={f"numa-{other}": machine.distances[zones.index(zone)][zones.index(other)] for other in zones}
                if machine.distances
                else {},
                roles=sorted(there.get(zone, ())),
                traits=_traits(policy, zone, there, offered),
            )
        )
    return found


def _traits(policy: NodePolicy, zone: int, there: Mapping[int, set[str]], offered: Mapping[str, int]) -> list[str]:
    found = []
    for name, role in sorted(policy.roles.items()):
        traits = [role_trait(name, space) for space in role.namespaces or ("",)]
        if not all(offered.get(resource, 0) >> zone & 1 for resource in role.implicit):
            continue
        found += [reported(known_trait(trait)) for trait in traits]
        if not role.binds or open_zones(policy, name, there, (zone,)):
            found += map(reported, traits)
    return found


def _kept_for_pools(machine: Machine, policy: NodePolicy) -> dict[int, int]:
    """Returns how many CPUs of each zone stay in pools: their minima, in the zones where they have most."""
    kept: dict[int, int] = {}
    for pool in policy.pools.values():
        left = pool.least
        free = pool.cpus & ~policy.reserved_cpus
        sizes = {zone: (cpus & free).bit_count() for zone, cpus in machine.cpus.numas.items()}
        left -= (pool.cpus & policy.reserved_cpus).bit_count()
        for zone, size in sorted(sizes.items(), key=lambda found: (-found[1], found[0])):
            share = max(0, min(left, size))
            kept[zone] = kept.get(zone, 0) + share
            left -= share
    return kept


def bound_zones(record: PodRecord, policy: NodePolicy) -> int:
    """Returns the zones to which a pod is bound by its role."""
    role = policy.role(record.pod.role) if record.pod.role else None
    if role is None or not role.binds:
        return 0
    mask = 0
    for allocation in record.containers.values():
        for info in allocation.values():
            for hint in info.resource_hints:
                mask |= sum(1 << node for node in set(hint.nodes))
    return mask


def zone_amounts(record: PodRecord, policy: NodePolicy) -> ZoneAmounts:
    """Returns what a pod takes of which zones: CPUs that it has alone, memory, and the lock of its role."""
    found: ZoneAmounts = {}
    for allocation in _own_allocations(record):
        for resource in ("cpu", "memory"):
            info = allocation.get(resource)
            for zone, amount in info.topology_assignments.items() if info is not None else ():
                here = found.setdefault(zone, {})
                here[resource] = here.get(resource, 0) + amount
    role: RoleSpec | None = policy.role(record.pod.role) if record.pod.role else None
    if role is not None:
        for zone in nodes_of(bound_zones(record, policy)):
            found.setdefault(zone, {})[_LOCK] = lock_amount(record.pod.role, role)
    return found


def _own_allocations(record: PodRecord) -> Iterable[ResourceAllocation]:
    """Yields each allocation once: one for a pod as a whole stands at each of its containers."""
    return list(record.containers.values())[:1] if record.whole else record.containers.values()


def amount_texts(amounts: Mapping[str, float]) -> dict[str, str]:
    """Returns amounts as reports have them."""
    return {
        name: f"{amount:.10g}" if amount < 1e9 else str(int(amount))
        for name, amount in sorted(amounts.items())
        if amount
    }


def qos_report(policy: NodePolicy, *, enabled: bool = True) -> QosReport:
    """Describes how the agent gives resources."""
    return QosReport(
        gate=enabled,
        topology_policy=policy.spec.topology_policy,
        topology_scope=policy.spec.topology_scope,
        roles=sorted(policy.roles) if enabled else [],
    )
