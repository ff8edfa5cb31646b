"""Keeps which CPUs of a machine pools share, and which containers have for themselves."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from moorage.model.base import Model

from .bound_zones import open_zones, roles_by_zone
from .cpusets import format_cpuset, parse_cpuset
from .machine import Machine
from .messages import AllocationRefused, ContainerType, Refusal
from .node_policy import NodePolicy, Pool, RoleSpec
from .state_file import BadState, seal, unseal

CPU = "cpu"
DEFAULT_POOL = "default"


class CpuEntry(Model, kw_only=True):
    """The CPUs of a container. `own`: the CPUs that nobody else may use; `cpus`: those of `own` and of the pod's other containers
    that it runs on. Without them it runs on those of the pool."""

    namespace: str = ""
    pod_name: str = ""
    role: str = ""
    container_type: int = ContainerType.MAIN
    requested: float = 0.0
    pool: str = ""
    own: str = ""
    cpus: str = ""
    nodes: str = ""  # that it is bound to
    original: int = 0  # how many it was given first

    @property
    def bound(self) -> int:
        return parse_cpuset(self.nodes)


class _State(Model, kw_only=True):
    pod_entries: dict[str, dict[str, CpuEntry]] = {}
    pools: dict[str, str] = {}
    configured: dict[str, str] = {}


class CpuPools:
    """The CPUs of a machine under a policy. An exclusive set leaves every pool; no pool falls below its minimum."""

    def __init__(self, policy: NodePolicy, machine: Machine) -> None:
        self.policy = policy
        self.machine = machine
        self.entries: dict[str, dict[str, CpuEntry]] = {}
        self._exclusive = 0
        self._pools = configured_pools(policy, machine)

    @property
    def exclusive(self) -> int:
        """The CPUs that containers have for themselves."""
        return self._exclusive

    def pools(self) -> dict[str, Pool]:
        """Returns the pools without exclusive CPUs."""
        return {name: pool._replace(cpus=pool.cpus & ~self._exclusive) for name, pool in self._pools.items()}

    def whole_pools(self) -> dict[str, Pool]:
        """Returns the pools as they are when no container has CPUs for itself."""
        return dict(self._pools)

    def free(self) -> int:
        """The CPUs that containers can be given for themselves."""
        return self.machine.cpus.all & ~self.policy.reserved_cpus & ~self._exclusive

    def _usable(self, cpus: int) -> int:
        return self.machine.cpus.whole_cores(cpus) if self.policy.spec.cpu.full_cores_only else cpus

    def capacity(self, cpus: int) -> int:
        """Returns how many of these free CPUs can be given away before a pool falls below its minimum."""
        usable = self._usable(cpus)
        count = usable.bit_count()
        for pool in self.pools().values():
            slack = max(0, pool.cpus.bit_count() - pool.least)
            count -= max(0, (usable & pool.cpus).bit_count() - slack)
        threads = self.machine.cpus.cpus_per_core if self.policy.spec.cpu.full_cores_only else 1
        return count // threads * threads

    def free_by_zone(self) -> dict[int, int]:
        """Returns how many CPUs containers can be given for themselves in each NUMA node."""
        free = self.free()
        return {zone: self.capacity(free & cpus) for zone, cpus in self.machine.cpus.numas.items()}

    def open_zones(self, role: str, uid: str = "") -> int:
        """Returns the NUMA nodes to which pods of a role can be bound."""
        return open_zones(self.policy, role, roles_by_zone(self.entries, uid), self.machine.cpus.numas)

    def _slack(self, name: str) -> int:
        pool = self.pools()[name]
        return max(0, pool.cpus.bit_count() - pool.least)

    def cpus_of(self, entry: CpuEntry) -> int:
        """Returns the CPUs that a container runs on now."""
        if entry.cpus:
            return parse_cpuset(entry.cpus)
        pool = self._pools.get(entry.pool) or self._default()
        cpus = pool.cpus & ~self._exclusive or self.policy.reserved_cpus
        if entry.nodes:
            cpus = cpus & self.machine.cpus.cpus_of(entry.bound) or cpus
        return cpus

    def _per_zone(self, cpus: int) -> dict[int, int]:
        counts = {zone: (mask & cpus).bit_count() for zone, mask in self.machine.cpus.numas.items()}
        return {zone: count for zone, count in counts.items() if count}

    def set_pools(self, wanted: Mapping[str, int]) -> None:
        """Gives pools other CPUs, in one step; raises AllocationRefused with all pools as they were."""
        after = dict(self._pools)
        for name, cpus in wanted.items():
            if name not in after:
                raise AllocationRefused(refused("UnexpectedAdmissionError", f"there is no pool {name}"))
            after[name] = after[name]._replace(cpus=cpus)
        seen = 0
        for pool in after.values():
            if pool.cpus & ~self.machine.cpus.all:
                strange = format_cpuset(pool.cpus & ~self.machine.cpus.all)
                raise AllocationRefused(refused("UnexpectedAdmissionError", f"the machine has no CPUs {strange}"))
            if pool.cpus & seen:
                twice = format_cpuset(pool.cpus & seen)
                raise AllocationRefused(refused("UnexpectedAdmissionError", f"CPUs {twice} would be in two pools"))
            seen |= pool.cpus
            left = (pool.cpus & ~self._exclusive).bit_count()
            if left < pool.least:
                message = f"pool {pool.name} would have {left} CPUs, and needs {pool.least}"
                raise AllocationRefused(
                    Refusal(
                        code="PoolMinimum", message=message, resource=CPU, needed=float(pool.least), free=float(left)
                    )
                )
        self._pools = after

    def set_policy(self, policy: NodePolicy) -> None:
        """Takes over another policy. What containers have for themselves they keep; pools that changed begin anew."""
        before = {name: pool.cpus for name, pool in configured_pools(self.policy, self.machine).items()}
        configured = configured_pools(policy, self.machine)
        if {name: pool.cpus for name, pool in configured.items()} == before:
            configured = {name: p._replace(cpus=self._pools[name].cpus) for name, p in configured.items()}
        self.policy, self._pools = policy, configured

    def _count_exclusive(self) -> None:
        self._exclusive = 0
        for containers in self.entries.values():
            for entry in containers.values():
                if entry.own:
                    self._exclusive |= parse_cpuset(entry.own)

    def _pool(self, role: RoleSpec | None) -> Pool:
        name = role.pool if role is not None else ""
        return self._pools.get(name) or self._default()

    def _default(self) -> Pool:
        pool = self.policy.pool_of(None)
        return self._pools[pool.name if pool is not None else DEFAULT_POOL]

    def encode(self) -> bytes:
        free = self.free()
        return seal(
            {
                "machineState": {
                    str(zone): {
                        "reserved_cpuset": format_cpuset(cpus & self.policy.reserved_cpus),
                        "allocated_cpuset": format_cpuset(cpus & self._exclusive),
                        "default_cpuset": format_cpuset(cpus & free),
                    }
                    for zone, cpus in sorted(self.machine.cpus.numas.items())
                },
                "pod_entries": self.entries,
                "pools": {name: format_cpuset(pool.cpus) for name, pool in self._pools.items()},
                "configured": {
                    name: format_cpuset(pool.cpus) for name, pool in configured_pools(self.policy, self.machine).items()
                },
            }
        )

    def restore(self, content: bytes) -> None:
        found = unseal(content)
        try:
            state = msgspec.convert(
                {
                    "podEntries": found.get("pod_entries", {}),
                    "pools": found.get("pools", {}),
                    "configured": found.get("configured", {}),
                },
                _State,
            )
            own = [parse_cpuset(e.own) for cs in state.pod_entries.values() for e in cs.values()]
            for containers in state.pod_entries.values():
                for entry in containers.values():
                    parse_cpuset(entry.cpus), parse_cpuset(entry.nodes)
            pools = {name: parse_cpuset(cpus) for name, cpus in state.pools.items()}
        except (msgspec.ValidationError, ValueError) as error:
            raise BadState(f"the state of the CPUs is not of the expected form: {error}") from None
        taken = 0
        for cpus in own:
            if cpus & taken or cpus & ~self.machine.cpus.all:
                raise BadState("the state gives CPUs twice, or some that this machine does not have")
            taken |= cpus
        self.entries = state.pod_entries
        configured = configured_pools(self.policy, self.machine)
        same = {name: format_cpuset(pool.cpus) for name, pool in configured.items()} == state.configured
        if same and pools.keys() == configured.keys():
            configured = {name: pool._replace(cpus=pools[name]) for name, pool in configured.items()}
        self._pools = configured
        self._count_exclusive()


def refused(code: str, message: str) -> Refusal:
    return Refusal(code=code, message=message, resource=CPU)


def configured_pools(policy: NodePolicy, machine: Machine) -> dict[str, Pool]:
    if policy.pools:
        return dict(policy.pools)
    every, reserved = machine.cpus.all, policy.reserved_cpus
    # Where all other CPUs are given away, containers of this pool run on those that are reserved.
    return {DEFAULT_POOL: Pool(DEFAULT_POOL, every & ~reserved or every, 0 if reserved else 1, default=True)}
