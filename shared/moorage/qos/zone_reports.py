"""Describes the zones of a node to the mesh: what they have, which roles may come, and what each pod takes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.model.part_reports import InventoryReport, RoleKind, ZoneReport, ZoneReserve
from moorage.model.reports import QosReport
from moorage.model.shapes import EXCLUSIVE

from .admission import PodRecord, pod_total
from .bound_zones import open_zones
from .cpusets import format_cpuset
from .machine import Machine
from .memory_plugin import HUGEPAGES
from .messages import ResourceAllocation, nodes_of
from .node_policy import NodePolicy, RoleSpec
from .role_locks import LOCK_TOTAL, ROLE_LOCK, lock_amount
from .role_parts import known_trait, reported, role_trait

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
    machine: Machine,
    policy: NodePolicy,
    there: Mapping[int, set[str]],
    offered: Mapping[str, int],
    exclusive_free: Mapping[int, int] | None = None,
) -> list[ZoneReport]:
    """Returns the zones, with the traits of the roles that are known and may come now. `there`: the roles that are bound to each
    zone. `offered`: the zones that have each of the resources that roles need without requesting them, for plugins that run.
    `exclusive_free`: the CPUs of each zone that pods can be given for themselves now; None: pods get none."""
    kept = _kept_for_pools(machine, policy)
    memory = {node.id: node.total for node in machine.memory}
    zones = sorted({*machine.cpus.numas, *memory})
    found = []
    for zone in zones:
        cpus = machine.cpus.numas.get(zone, 0)
        free = cpus & ~policy.reserved_cpus
        usable = machine.cpus.whole_cores(free) if policy.spec.cpu.full_cores_only else free
        reserved = min(cpus.bit_count() - usable.bit_count() + kept.get(zone, 0), cpus.bit_count())
        total = memory.get(zone, {})
        found.append(
            ZoneReport(
                id=zone,
                cpus=format_cpuset(cpus) or 0,
                memory=str(total.get("memory", 0)),
                reserved=ZoneReserve(cpus=reserved, memory=str(policy.reserved_memory.get(zone, 0))),
                inventories={
                    reported(ROLE_LOCK): InventoryReport(total=str(LOCK_TOTAL)),
                    **_exclusive(machine, policy, cpus.bit_count(), reserved, exclusive_free),
                    **{name: str(size) for name, size in sorted(total.items()) if name != "memory"},
                },
                exclusive_free=exclusive_free.get(zone, 0) if exclusive_free is not None else None,
                distances={f"numa-{other}": machine.distances[zones.index(zone)][zones.index(other)] for other in zones}
                if machine.distances
                else {},
                roles=sorted(there.get(zone, ())),
                traits=_traits(machine, policy, zone, there, offered),
            )
        )
    return found


def _exclusive(
    machine: Machine, policy: NodePolicy, cpus: int, reserved: int, free: Mapping[int, int] | None
) -> dict[str, InventoryReport]:
    """Returns the inventory of CPUs that pods can have for themselves, if they can."""
    if free is None:
        return {}
    step = machine.cpus.cpus_per_core if policy.spec.cpu.full_cores_only else 1
    return {EXCLUSIVE: InventoryReport(total=str(cpus), reserved=str(reserved), min_unit=step, step_size=step)}


def _traits(
    machine: Machine, policy: NodePolicy, zone: int, there: Mapping[int, set[str]], offered: Mapping[str, int]
) -> list[str]:
    found = []
    for name, role in sorted(policy.roles.items()):
        traits = [role_trait(name, space) for space in role.namespaces or ("",)]
        if not all(offered.get(resource, 0) >> zone & 1 for resource in role.implicit):
            continue
        found += [reported(known_trait(trait)) for trait in traits]
        if role.binds and not role.exclusive and not _has_pool(machine, policy, role, zone):
            continue
        if not role.binds or open_zones(policy, name, there, (zone,)):
            found += map(reported, traits)
    return found


def _has_pool(machine: Machine, policy: NodePolicy, role: RoleSpec, zone: int) -> bool:
    """Returns whether a zone has CPUs of the pool of a role. Without pools it has those that nobody has alone."""
    pool = policy.pool_of(role)
    return pool is None or bool(pool.cpus & machine.cpus.numas.get(zone, 0))


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
    """Returns what a pod takes of which zones: CPUs that it has alone, memory, huge pages, and the lock of its role."""
    found: ZoneAmounts = {}
    for allocation in _own_allocations(record):
        for resource in ("cpu", "memory"):
            info = allocation.get(resource)
            for zone, amount in info.topology_assignments.items() if info is not None else ():
                here = found.setdefault(zone, {})
                here[resource] = here.get(resource, 0) + amount
                if resource == "cpu":
                    here[EXCLUSIVE] = here.get(EXCLUSIVE, 0) + amount
    _add_pages(found, record)
    role: RoleSpec | None = policy.role(record.pod.role) if record.pod.role else None
    if role is not None:
        for zone in nodes_of(bound_zones(record, policy)):
            found.setdefault(zone, {})[_LOCK] = lock_amount(policy, record.pod.role)
    return found


def _add_pages(found: ZoneAmounts, record: PodRecord) -> None:
    """Adds the huge pages of a pod that has its memory of one zone."""
    zones = {zone for zone, amounts in found.items() if "memory" in amounts}
    if len(zones) == 1:
        pages = {name: n for name, n in pod_total(record.pod).items() if name.startswith(HUGEPAGES) and n}
        found[zones.pop()].update(pages)


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
        role_kinds=_kinds(policy) if enabled else {},
    )


def _kinds(policy: NodePolicy) -> dict[str, RoleKind]:
    """Returns what pods get by role; without a name, those without a role: whole CPUs of Guaranteed containers alone."""
    found = {name: _kind(policy, name, role) for name, role in sorted(policy.roles.items())}
    return {"": RoleKind(exclusive=policy.spec.native == "static"), **found}


def _kind(policy: NodePolicy, name: str, role: RoleSpec) -> RoleKind:
    """Returns what pods of a role get. CPUs of their own must be aligned unless the policy only tries to."""
    lock = lock_amount(policy, name) if role.binds else LOCK_TOTAL
    strict = policy.spec.topology_policy not in ("none", "best-effort")
    return RoleKind(
        exclusive=role.exclusive,
        one_zone=role.binds or (role.exclusive and strict),
        binds=role.binds,
        shares=lock < LOCK_TOTAL,
        lock=lock if lock < LOCK_TOTAL else 0,
    )
