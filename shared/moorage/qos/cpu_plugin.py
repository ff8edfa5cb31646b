"""The built-in plugin `cpu`: gives containers the CPUs of their role's pool, or CPUs for themselves, which leave every pool."""

from __future__ import annotations

import math
from collections.abc import Mapping

from moorage.model.object_names import CLAIM

from .bound_zones import roles_by_zone
from .cpu_choice import NotEnoughCpus, take_cpus
from .cpu_hints import cpu_hints
from .cpu_pools import CPU, CpuEntry, CpuPools, refused
from .cpusets import format_cpuset, parse_cpuset
from .messages import (
    AllocatableResource,
    AllocationRefused,
    ContainerType,
    HintsAnswer,
    PluginOptions,
    PodAllocations,
    PodSpec,
    Refusal,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceRequest,
    TopologyAwareQuantity,
    TopologyAwareResource,
    TopologyHint,
    ZoneMiss,
    nodes_of,
)
from .node_policy import RoleSpec
from .pod_answers import adoption_order, requests_of
from .topology_hints import Hint


class CpuPlugin(CpuPools):
    """The CPUs of a machine under a policy."""

    name = CPU
    options = PluginOptions()

    # --- hints

    def topology_hints(self, request: ResourceRequest) -> HintsAnswer:
        entry = self._entry(request)
        if entry is not None and entry.own and self._count(request) == _size(entry.own):
            return {CPU: [Hint(entry.bound or self.machine.cpus.nodes_with(parse_cpuset(entry.own)), True)]}
        if self._follows(request) is not None:
            return {}
        role = self._role(request)
        count = self._count(request)
        if role is not None and role.binds:
            zones = self._bindable(request, role, count)
            if not zones:
                raise AllocationRefused(self._no_zone(request, role, count))
            if entry is not None:  # where it is resized, it stays in its zone if it can
                zones = zones & entry.bound or zones
            return {CPU: [Hint(1 << zone, True) for zone in nodes_of(zones)]}
        if count:
            return self._native_hints(request, count)
        return {}

    def _native_hints(self, request: ResourceRequest, count: int) -> HintsAnswer:
        self._check_cores(request, count)
        free = self._usable(self.free() | self._own_of(request))
        if self.capacity(self.free()) < free.bit_count() and count > min(map(self._slack, self.pools()), default=count):
            found = [
                h
                for h in self._all_hints(free, count)
                if self.capacity(self.machine.cpus.cpus_of(h.zones) & free) >= count
            ]
        else:
            found = self._all_hints(free, count)
        if not found and not self._insists(request):
            return {}
        if not found:
            raise AllocationRefused(self._short(request, count))
        return {CPU: found}

    def _all_hints(self, free: int, count: int) -> list[Hint]:
        spec = self.policy.spec
        return cpu_hints(
            self.machine.cpus,
            count,
            free,
            align_by_socket=spec.cpu.align_by_socket,
            by_free=spec.preferred == "free",
        )

    def _bindable(self, request: ResourceRequest, role: RoleSpec, count: int) -> int:
        allowed = self.open_zones(request.role, request.pod_uid)
        own = self._own_of(request)
        if not role.exclusive or not count:
            pool = self._pool(role)
            return sum(1 << z for z, cpus in self.machine.cpus.numas.items() if allowed >> z & 1 and cpus & pool.cpus)
        self._check_cores(request, count)
        free = self.free()
        return sum(
            1 << zone
            for zone, cpus in self.machine.cpus.numas.items()
            if allowed >> zone & 1 and self.capacity(cpus & free) + (cpus & own).bit_count() >= count
        )

    # --- allocation

    def allocate(self, request: ResourceRequest) -> ResourceAllocation:
        entry = self._entry(request)
        if entry is None or self._is_resized(request, entry):
            entry = self._new_entry(request)
            self.entries.setdefault(request.pod_uid, {})[request.container] = entry
            self._count_exclusive()
        return {CPU: self._info(entry)}

    def _is_resized(self, request: ResourceRequest, entry: CpuEntry) -> bool:
        """Returns whether a container should have another number of CPUs for itself than it has."""
        count = self._count(request)
        if entry.own:
            return count != _size(entry.own)
        return bool(count) and not entry.cpus and entry.requested != request.requests.get(CPU, 0.0)

    def _new_entry(self, request: ResourceRequest) -> CpuEntry:
        count = self._count(request)
        role = self._role(request)
        entry = CpuEntry(
            namespace=request.namespace,
            pod_name=request.pod_name,
            role=request.role,
            container_type=int(request.container_type),
            requested=request.requests.get(CPU, 0.0),
        )
        leader = self._follows(request)
        if leader is not None:
            return self._beside(entry, leader, count if role is None else 0)
        if role is not None and role.binds:
            return self._bound(entry, request, role, count)
        if count:
            free = self.free() | self._own_of(request)
            if self.capacity(self.free()) + self._own_of(request).bit_count() >= count:
                return self._with_own(entry, request, free, count)
            if self._insists(request):
                raise AllocationRefused(self._short(request, count))
            before = self._entry(request)
            if before is not None and before.own:
                return before
        pool = self._pool(role)
        entry.pool, entry.original = pool.name, (pool.cpus & ~self._exclusive).bit_count()
        return entry

    def _beside(self, entry: CpuEntry, leader: int, count: int) -> CpuEntry:
        """An init container, or one beside the main one: it runs on the CPUs of the main ones. One that asks for fewer, without
        a role, gets some of them."""
        cpus = leader
        if 0 < count < leader.bit_count():
            cpus = take_cpus(self.machine.cpus, leader, count)
        entry.cpus, entry.original = format_cpuset(cpus), cpus.bit_count()
        return entry

    def _bound(self, entry: CpuEntry, request: ResourceRequest, role: RoleSpec, count: int) -> CpuEntry:
        zones = self._bindable(request, role, count)
        hint = request.hint.zones if request.hint is not None else None
        chosen = zones if hint is None else zones & hint
        if not chosen:
            raise AllocationRefused(self._no_zone(request, role, count))
        zone = (chosen & -chosen).bit_length() - 1
        entry.nodes = str(zone)
        if role.exclusive and count:
            return self._with_own(
                entry, request, self.machine.cpus.numas[zone] & (self.free() | self._own_of(request)), count
            )
        pool = self._pool(role)
        entry.pool, entry.original = pool.name, (pool.cpus & self.machine.cpus.numas[zone]).bit_count()
        return entry

    def _with_own(self, entry: CpuEntry, request: ResourceRequest, free: int, count: int) -> CpuEntry:
        """Gives CPUs to the container alone. Those that it has are kept where its number changes."""
        kept = self._own_of(request) & free
        if kept.bit_count() >= count:
            own = self._take(kept, count, request)
        else:
            mask = request.hint.zones if request.hint is not None else None
            aligned = free & self.machine.cpus.cpus_of(mask) & ~kept
            missing = count - kept.bit_count()
            first = min(missing, self.capacity(aligned))
            own = kept | self._take(aligned, first, request)
            rest = count - own.bit_count()
            if rest:
                own |= self._take(free & ~own, rest, request, own)
        entry.own = entry.cpus = format_cpuset(own)
        entry.original = count
        return entry

    def _take(self, cpus: int, count: int, request: ResourceRequest, taken: int = 0) -> int:
        """Takes so many of the CPUs, leaving each pool its minimum."""
        options = self.policy.spec.cpu
        usable = self._usable(cpus)
        pools = {name: (pool.cpus & ~taken, pool.least) for name, pool in self.pools().items()}
        for _ in range(len(pools) + 1):
            try:
                found = take_cpus(
                    self.machine.cpus,
                    usable,
                    count,
                    strategy=options.strategy,
                    group=options.group_size,
                    align_uncore=options.uncore,
                )
            except NotEnoughCpus:
                break
            for pool, least in pools.values():
                if pool & ~found != pool and (pool & ~found).bit_count() < least:
                    usable = _without_last(usable, pool, max(0, pool.bit_count() - least))
                    break
            else:
                return found
        raise AllocationRefused(self._pool_minimum(request, count))

    # --- what was given

    def remove_pod(self, uid: str) -> None:
        if self.entries.pop(uid, None) is not None:
            self._count_exclusive()

    def resources_allocation(self) -> PodAllocations:
        return {
            uid: {container: {CPU: self._info(entry)} for container, entry in containers.items()}
            for uid, containers in self.entries.items()
        }

    def _info(self, entry: CpuEntry) -> ResourceAllocationInfo:
        cpus = self.cpus_of(entry)
        nodes = entry.bound or (self.machine.cpus.nodes_with(cpus) if entry.own else 0)
        return ResourceAllocationInfo(
            oci_property_name="CpusetCpus",
            is_scalar_resource=True,
            allocated_quantity=float(cpus.bit_count()),
            allocation_result=format_cpuset(cpus),
            resource_hints=(TopologyHint(nodes=nodes_of(nodes), preferred=True),) if nodes else (),
            topology_assignments=self._per_zone(cpus) if entry.own else {},
        )

    def topology_aware_resources(self, uid: str, container: str) -> Mapping[str, TopologyAwareResource]:
        entry = self.entries.get(uid, {}).get(container)
        if entry is None:
            return {}
        cpus = self.cpus_of(entry)
        quantities = self._quantities(cpus)
        return {
            CPU: TopologyAwareResource(
                is_scalar_resource=True,
                aggregated_quantity=float(cpus.bit_count()),
                original_aggregated_quantity=float(entry.original or cpus.bit_count()),
                quantities=quantities,
                original_quantities=quantities,
            )
        }

    def allocatable(self) -> Mapping[str, AllocatableResource]:
        every = self.machine.cpus.all
        given = every & ~self.policy.reserved_cpus
        return {
            CPU: AllocatableResource(
                is_scalar_resource=True,
                aggregated_allocatable=float(given.bit_count()),
                allocatable=self._quantities(given),
                aggregated_capacity=float(every.bit_count()),
                capacity=self._quantities(every),
            )
        }

    def _quantities(self, cpus: int) -> tuple[TopologyAwareQuantity, ...]:
        return tuple(
            TopologyAwareQuantity(resource_value=float(count), node=zone)
            for zone, count in self._per_zone(cpus).items()
        )

    # --- after a restart without state

    def adopt(self, pods: Mapping[str, PodSpec], allocations: PodAllocations) -> list[str]:
        problems = []
        for uid, containers in allocations.items():
            pod = pods.get(uid)
            if pod is None:
                continue
            types = {container.name: int(container.type) for container in pod.containers}
            for container in adoption_order(pod, containers):
                info = containers[container].get(CPU)
                if info is None or container in self.entries.get(uid, {}):
                    continue
                entry = CpuEntry(namespace=pod.namespace, pod_name=pod.name, role=pod.role)
                entry.container_type = types.get(container, ContainerType.MAIN)
                entry.requested = requests_of(pod, container).get(CPU, 0.0)
                problem = self._adopt(entry, info, self._owned(uid))
                if problem:
                    problems.append(f"{pod.namespace}/{pod.name} {container}: {problem}")
                self.entries.setdefault(uid, {})[container] = entry
                self._count_exclusive()
        return problems

    def _adopt(self, entry: CpuEntry, info: ResourceAllocationInfo, leader: int) -> str:
        """Makes an entry say what a container was given. `leader`: CPUs that other containers of the pod have for themselves."""
        try:
            cpus = parse_cpuset(info.allocation_result)
        except ValueError as error:
            return str(error)
        role = self.policy.role(entry.role) if entry.role else None
        main = entry.container_type == ContainerType.MAIN
        if not main and not info.topology_assignments and cpus and not cpus & ~leader:
            entry.cpus, entry.original = format_cpuset(cpus), cpus.bit_count()
            return ""
        hinted = {node for hint in info.resource_hints for node in hint.nodes}
        if role is not None and role.binds and len(hinted) == 1:
            entry.nodes = str(next(iter(hinted)))
        # A cgroup does not say whose its CPUs are: those of a main container are as many as it asks for.
        asked = math.ceil(round(entry.requested, 3)) if main and role is not None and role.exclusive else 0
        if not info.topology_assignments and (not asked or asked != cpus.bit_count()):
            entry.pool = self._pool(role).name
            return ""
        if cpus & self._exclusive or cpus & ~self.machine.cpus.all:
            entry.pool = self._pool(role).name
            return f"CPUs {format_cpuset(cpus)} are given to another container, or not there; it shares a pool"
        entry.own = entry.cpus = format_cpuset(cpus)
        entry.original = cpus.bit_count()
        if role is not None and role.binds and not entry.nodes:
            entry.nodes = format_cpuset(self.machine.cpus.nodes_with(cpus))
        return ""

    # --- small questions

    def _entry(self, request: ResourceRequest) -> CpuEntry | None:
        return self.entries.get(request.pod_uid, {}).get(request.container)

    def _own_of(self, request: ResourceRequest) -> int:
        entry = self._entry(request)
        return parse_cpuset(entry.own) if entry is not None else 0

    def _owned(self, uid: str) -> int:
        """Returns the CPUs that containers of a pod have for themselves."""
        found = 0
        for entry in self.entries.get(uid, {}).values():
            found |= parse_cpuset(entry.own)
        return found

    def _follows(self, request: ResourceRequest) -> int | None:
        """Returns the CPUs of the pod's main containers for one that runs inside them; None: it has its own place."""
        role = self._role(request)
        kind = request.container_type
        if kind == ContainerType.MAIN or (role is None and kind == ContainerType.SIDECAR):
            return None
        cpus = 0
        for name, entry in self.entries.get(request.pod_uid, {}).items():
            if name != request.container and entry.own:
                cpus |= parse_cpuset(entry.own)
        if role is None and self._count(request) > cpus.bit_count():
            return None
        return cpus or None

    def _role(self, request: ResourceRequest) -> RoleSpec | None:
        if not request.role:
            return None
        role = self.policy.role(request.role)
        if role is None:
            raise AllocationRefused(refused("RoleUnknown", f"the policy has no role {request.role!r}"))
        return role

    def _count(self, request: ResourceRequest) -> int:
        """Returns the number of CPUs that the container should have for itself."""
        asked = request.requests.get(CPU, 0.0)
        role = self._role(request)
        if role is not None:
            return math.ceil(round(asked, 3)) if role.exclusive else 0
        return self.policy.native_cpus(request.qos_class, asked)

    def _insists(self, request: ResourceRequest) -> bool:
        return bool(request.role) or bool(request.labels.get(CLAIM))

    # --- refusals

    def _check_cores(self, request: ResourceRequest, count: int) -> None:
        threads = self.machine.cpus.cpus_per_core
        if self.policy.spec.cpu.full_cores_only and count % threads and self._insists(request):
            message = f"{count} CPUs are no whole cores of {threads} threads, and fullCoresOnly is set"
            raise AllocationRefused(
                Refusal(code="UnexpectedAdmissionError", message=message, resource=CPU, container=request.container)
            )

    def _short(self, request: ResourceRequest, count: int) -> Refusal:
        free = self.capacity(self.free())
        if free < count <= self._usable(self.free()).bit_count():
            return self._pool_minimum(request, count)
        return self._refusal(request, "TopologyAffinityError", f"{count} CPUs are needed, {free} are free", count, free)

    def _pool_minimum(self, request: ResourceRequest, count: int) -> Refusal:
        free = self.capacity(self.free())
        lacking = [f"{p.name} (min {p.least}, has {p.cpus.bit_count()})" for p in self.pools().values()]
        message = f"{count} exclusive CPUs would shrink a pool below its minimum: {', '.join(lacking)}"
        return self._refusal(request, "PoolMinimum", message, count, free)

    def _no_zone(self, request: ResourceRequest, role: RoleSpec, count: int) -> Refusal:
        there = roles_by_zone(self.entries, request.pod_uid)
        allowed = self.open_zones(request.role, request.pod_uid)
        most = max((n for z, n in self.free_by_zone().items() if allowed >> z & 1), default=0)
        free = self.free()
        enough = any(
            (self._usable(cpus & free)).bit_count() >= count
            for zone, cpus in self.machine.cpus.numas.items()
            if allowed >> zone & 1
        )
        if role.exclusive and count and enough and most < count:
            return self._pool_minimum(request, count)
        held = {z: roles for z, roles in there.items() if not allowed >> z & 1}
        message = (
            f"no NUMA node has {count} CPUs free for role {request.role}" if count else "no NUMA node has its pool"
        )
        if held:
            message += "; " + ", ".join(f"{z} is held by {' and '.join(sorted(r))}" for z, r in sorted(held.items()))
        return self._refusal(request, "TopologyAffinityError", message, count, most)

    def _refusal(self, request: ResourceRequest, code: str, message: str, count: int, free: int) -> Refusal:
        there = roles_by_zone(self.entries, request.pod_uid)
        allowed = self.open_zones(request.role, request.pod_uid) if request.role else self.machine.cpus.nodes
        role = self._role(request)
        nearest = [
            ZoneMiss(
                zone=zone,
                free=float(have),
                message=f"{have} of {count} CPUs"
                if allowed >> zone & 1 or role is None or not role.binds
                else f"held by {' and '.join(sorted(there.get(zone, ())))}",
            )
            for zone, have in sorted(self.free_by_zone().items(), key=lambda found: (-found[1], found[0]))
        ]
        return Refusal(
            code=code,
            message=message,
            resource=CPU,
            container=request.container,
            needed=float(count),
            free=float(free),
            nearest=tuple(nearest),
        )


def _size(cpus: str) -> int:
    return parse_cpuset(cpus).bit_count()


def _without_last(cpus: int, pool: int, keep: int) -> int:
    """Removes CPUs of the pool, the highest first, until only so many of them are left."""
    inside = nodes_of(cpus & pool)
    for cpu in inside[keep:]:
        cpus &= ~(1 << cpu)
    return cpus
