"""Reads NodePolicy documents: what roles get, the pools of CPUs, and what is reserved for the system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from moorage.model.problems import Refused, Violation, invalid, unreadable
from moorage.parsing import parse_amount
from moorage.parsing.yaml_json import parse_document

from .cpu_choice import CpuStrategy
from .cpusets import format_cpuset, parse_cpuset
from .machine import Machine
from .topology_hints import TopologyScope

#: A policy is a page of text; it is read from files that others write.
MAX_BYTES = 256 << 10
_MOST_VIOLATIONS = 50

AlignmentPolicy = Literal["none", "best-effort", "restricted", "single-numa-node", "numeric"]


class _Strict(
    msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, forbid_unknown_fields=True, frozen=True
):
    pass


class CpuOptions(_Strict, kw_only=True, frozen=True):
    """The choice of exclusive CPUs. `group_size`: distributed CPUs come in groups of so many."""

    strategy: CpuStrategy = "packed"
    group_size: int = 1
    full_cores_only: bool = False
    uncore: bool = False
    align_by_socket: bool = False


class PoolSpec(_Strict, kw_only=True, frozen=True):
    """CPUs that the containers of several roles share."""

    cpus: str
    min: int = 1
    default: bool = False
    mems: str = ""


class RoleSpec(_Strict, kw_only=True, frozen=True):
    """The CPUs of a role's containers: CPUs of a pool, or CPUs for themselves; with `numa: bind` of one NUMA node."""

    exclusive: bool = False
    numa: Literal["", "bind"] = ""
    shares_numa_with: tuple[str, ...] = ()
    implicit: tuple[str, ...] = ()
    pool: str = ""
    namespaces: tuple[str, ...] = ()

    @property
    def binds(self) -> bool:
        return self.numa == "bind"


class NicSpec(_Strict, kw_only=True, frozen=True):
    """A network interface that containers of a NUMA node share."""

    name: str
    numa: int = 0
    mbps: float = 0
    ipv4: str = ""
    ipv6: str = ""
    netns: str = ""


class ControlledPool(_Strict, kw_only=True, frozen=True):
    """The load that a pool should have, and the pools that give it CPUs."""

    usage: float = 0.6
    wait: float = 0.05
    donors: tuple[str, ...] = ()


class ControllerSpec(_Strict, kw_only=True, frozen=True):
    pools: dict[str, ControlledPool] = {}


class NodePolicySpec(_Strict, kw_only=True, frozen=True):
    topology_policy: AlignmentPolicy = "restricted"
    topology_scope: TopologyScope = "container"
    preferred: Literal["capacity", "free"] = "capacity"
    prefer_closest_numa: bool = False
    align_resources: tuple[str, ...] = ("cpu", "memory")
    native: Literal["static", "off"] = "static"
    cpu: CpuOptions = CpuOptions()
    reserved_cpus: str = ""
    reserved_memory: dict[str, str] = {}
    pools: dict[str, PoolSpec] = {}
    roles: dict[str, RoleSpec] = {}
    nics: tuple[NicSpec, ...] | None = None
    controller: ControllerSpec | None = None


class _Metadata(_Strict, kw_only=True, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class NodePolicyDocument(_Strict, kw_only=True, frozen=True):
    kind: Literal["NodePolicy"] = "NodePolicy"
    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    metadata: _Metadata = _Metadata()
    spec: NodePolicySpec = NodePolicySpec()


#: The roles of every node. A policy may replace them and add others.
BUILT_IN_ROLES: dict[str, RoleSpec] = {
    "online-micro_service": RoleSpec(pool="online"),
    "ETL": RoleSpec(pool="offline"),
    "storage-service": RoleSpec(exclusive=True, numa="bind"),
    "reranker": RoleSpec(exclusive=True, numa="bind"),
    "numa-enhancement": RoleSpec(
        exclusive=True, numa="bind", shares_numa_with=("numa-enhancement",), implicit=("NIC",)
    ),
}
#: Other names of roles.
ALIASES = {
    "numa-sharing && cpu-execlusive": "numa-enhancement",
    "numa-sharing && cpu-exclusive": "numa-enhancement",
}


class Pool(NamedTuple):
    """A pool as it is configured, before exclusive CPUs leave it. `mems`: the NUMA nodes of its memory; 0: not set."""

    name: str
    cpus: int
    least: int
    mems: int = 0
    default: bool = False


class NodePolicy(NamedTuple):
    """A policy with what it means on one machine."""

    spec: NodePolicySpec
    roles: Mapping[str, RoleSpec]
    pools: Mapping[str, Pool]
    reserved_cpus: int = 0
    reserved_memory: Mapping[int, int] = {}

    def role(self, name: str) -> RoleSpec | None:
        """Returns a role, by any of its names; None: there is none."""
        return self.roles.get(ALIASES.get(name, name))

    def pool_of(self, role: RoleSpec | None) -> Pool | None:
        """Returns the pool of a role, or the default pool, which is the first unless another is marked; None: there are no
        pools."""
        if role is not None and role.pool in self.pools:
            return self.pools[role.pool]
        marked = (pool for pool in self.pools.values() if pool.default)
        return next(marked, next(iter(self.pools.values()), None))

    def native_cpus(self, qos_class: str, requested: float) -> int:
        """Returns how many CPUs a container of a pod without a role has for itself, as a kubelet would give them."""
        asked = round(requested, 3)
        whole = self.spec.native == "static" and qos_class.lower() == "guaranteed" and asked == int(asked)
        return int(asked) if whole else 0

    def shares_numa(self, one: str, other: str) -> bool:
        """Returns whether pods of the two roles may be bound to one NUMA node: each lists the other."""
        a, b = ALIASES.get(one, one), ALIASES.get(other, other)
        first, second = self.roles.get(a), self.roles.get(b)
        return first is not None and second is not None and b in _names(first) and a in _names(second)


def _names(role: RoleSpec) -> set[str]:
    return {ALIASES.get(name, name) for name in role.shares_numa_with}


def node_policy(spec: NodePolicySpec = NodePolicySpec()) -> NodePolicy:  # noqa: B008 - frozen
    """Returns what a valid policy means."""
    return NodePolicy(
        spec,
        {**BUILT_IN_ROLES, **{ALIASES.get(name, name): role for name, role in spec.roles.items()}},
        {
            name: Pool(name, parse_cpuset(pool.cpus), pool.min, parse_cpuset(pool.mems), pool.default)
            for name, pool in spec.pools.items()
        },
        parse_cpuset(spec.reserved_cpus),
        {int(node): parse_amount("memory", amount, True) for node, amount in spec.reserved_memory.items()},
    )


def parse_node_policy(text: bytes, machine: Machine | None = None) -> NodePolicy:
    """Reads a policy for this machine. Raises Refused with every violation and its path."""
    if len(text) > MAX_BYTES:
        raise Refused(invalid([_violation("", "TooLarge", f"a NodePolicy has at most {MAX_BYTES} bytes")]))
    return convert_node_policy(parse_document(text), machine)


def convert_node_policy(data: Mapping[str, Any], machine: Machine | None = None) -> NodePolicy:
    """Checks a policy that is plain data already, as `parse_node_policy`."""
    document, errors = _convert(dict(data))
    errors += check_policy(document.spec, machine)
    if errors:
        raise Refused(invalid(errors))
    return node_policy(document.spec)


def _convert(data: dict[str, Any]) -> tuple[NodePolicyDocument, list[Violation]]:
    """Returns the document without what is wrong in it, and that."""
    errors: list[Violation] = []
    while True:
        try:
            return msgspec.convert(data, NodePolicyDocument), errors
        except msgspec.ValidationError as error:
            found = unreadable(error).errors[0]
            found = msgspec.structs.replace(found, path=_with_key(data, found))
            errors.append(found)
            if len(errors) >= _MOST_VIOLATIONS or not _without(data, found.path):
                raise Refused(invalid(errors)) from None


def _without(data: dict[str, Any], path: str) -> bool:
    """Removes what is at the path, or the nearest object above it that is there; returns whether something was removed."""
    keys = _keys(data, path)
    if not keys:
        return False
    target: Any = data
    for key in keys[:-1]:
        target = target[key]
    del target[keys[-1]]
    return True


def _with_key(data: dict[str, Any], found: Violation) -> str:
    """Returns the path of an error with the key of a map for the `[...]` that it has instead."""
    above, _, below = found.path.partition("[...]")
    keys = _keys(data, above)
    target: Any = data
    for key in keys:
        target = target[key]
    if above == found.path or not isinstance(target, dict):
        return found.path
    for key, value in target.items():
        alone: dict[str, Any] = {keys[-1]: {key: value}}
        for outer in reversed(keys[:-1]):
            alone = {outer: alone}
        try:
            msgspec.convert({"kind": "NodePolicy", **alone}, NodePolicyDocument)
        except msgspec.ValidationError as error:
            if unreadable(error).errors[0].path == found.path:
                return f"{above}.{key}{below}"
    return found.path


def _keys(data: Any, path: str) -> list[Any]:
    """Follows a path as far as it leads."""
    keys: list[Any] = []
    for part in path.replace("[", ".[").split("."):
        name = part.strip("[]")
        if not part:
            continue
        if part.startswith("[") and isinstance(data, list) and name.isdigit() and int(name) < len(data):
            key: Any = int(name)
        elif isinstance(data, dict) and name in data:
            key = name
        else:
            break
        keys.append(key)
        data = data[key]
    return keys


def _violation(path: str, code: str, message: str) -> Violation:
    return Violation(path=path, code=code, message=message)


def check_policy(spec: NodePolicySpec, machine: Machine | None) -> list[Violation]:
    """Returns what is wrong with a policy, on this machine if it is known."""
    return [
        *_reserved_errors(spec, machine),
        *_cpu_errors(spec.cpu),
        *_pool_errors(spec, machine),
        *_role_errors(spec),
        *_nic_errors(spec, machine),
        *_controller_errors(spec),
    ]


def _cpuset_errors(text: str, path: str, known: int | None, what: str) -> Iterator[Violation]:
    try:
        found = parse_cpuset(text)
    except ValueError as error:
        yield _violation(path, "BadValue", str(error))
        return
    if known is not None and found & ~known:
        yield _violation(path, "OutOfRange", f"the machine has no {what} {format_cpuset(found & ~known)}")


def _reserved_errors(spec: NodePolicySpec, machine: Machine | None) -> Iterator[Violation]:
    yield from _cpuset_errors(spec.reserved_cpus, "spec.reservedCpus", machine and machine.cpus.all, "CPUs")
    totals = {node.id: node.total.get("memory", 0) for node in machine.memory} if machine else None
    for node, amount in spec.reserved_memory.items():
        path = f"spec.reservedMemory.{node}"
        if not node.isdecimal() or (totals is not None and int(node) not in totals):
            yield _violation(path, "OutOfRange", f"the machine has no NUMA node {node}")
            continue
        try:
            size = parse_amount("memory", amount, True)
        except ValueError as error:
            yield _violation(path, "BadQuantity", str(error))
            continue
        if size < 0 or (totals is not None and size > totals[int(node)]):
            yield _violation(path, "OutOfRange", f"NUMA node {node} has not so much memory")


def _cpu_errors(options: CpuOptions) -> Iterator[Violation]:
    if options.group_size < 1:
        yield _violation("spec.cpu.groupSize", "OutOfRange", "must be 1 or more")


def _pool_errors(spec: NodePolicySpec, machine: Machine | None) -> Iterator[Violation]:
    taken: dict[str, int] = {}
    nodes = machine and sum(1 << node.id for node in machine.memory)
    for name, pool in spec.pools.items():
        path = f"spec.pools.{name}"
        wrong = [
            *_cpuset_errors(pool.cpus, f"{path}.cpus", machine and machine.cpus.all, "CPUs"),
            *_cpuset_errors(pool.mems, f"{path}.mems", nodes, "NUMA nodes"),
        ]
        yield from wrong
        if not name:
            yield _violation(path, "BadName", "a pool needs a name")
        if pool.min < 1:
            yield _violation(f"{path}.min", "OutOfRange", "must be 1 or more: a pool is never empty")
        if wrong:
            continue
        cpus = parse_cpuset(pool.cpus)
        if cpus.bit_count() < max(1, pool.min):
            yield _violation(f"{path}.cpus", "OutOfRange", f"has {cpus.bit_count()} CPUs, but min is {pool.min}")
        for other, found in taken.items():
            if found & cpus:
                yield _violation(
                    f"{path}.cpus", "Overlap", f"{format_cpuset(found & cpus)} are in the pool {other}, too"
                )
        taken[name] = cpus
    defaults = [name for name, pool in spec.pools.items() if pool.default]
    for name in defaults[1:]:
        yield _violation(f"spec.pools.{name}.default", "Duplicate", f"{defaults[0]} is the default pool already")


def _role_errors(spec: NodePolicySpec) -> Iterator[Violation]:
    known = {*BUILT_IN_ROLES, *spec.roles, *ALIASES}
    for name, role in spec.roles.items():
        path = f"spec.roles.{name}"
        if not name:
            yield _violation(path, "BadName", "a role needs a name")
        if role.exclusive and role.pool:
            yield _violation(f"{path}.pool", "BadValue", "an exclusive role has CPUs of its own, not those of a pool")
        if role.shares_numa_with and not role.binds:
            yield _violation(f"{path}.sharesNumaWith", "BadValue", "only roles with numa: bind share NUMA nodes")
        for i, other in enumerate(role.shares_numa_with):
            if other not in known:
                yield _violation(f"{path}.sharesNumaWith[{i}]", "UnknownRole", f"there is no role {other}")
        for i, resource in enumerate(role.implicit):
            if not resource:
                yield _violation(f"{path}.implicit[{i}]", "BadName", "must be the name of a resource")


def _nic_errors(spec: NodePolicySpec, machine: Machine | None) -> Iterator[Violation]:
    seen: set[str] = set()
    nodes = None if machine is None else {node.id for node in machine.memory} | set(machine.cpus.numas)
    for i, nic in enumerate(spec.nics or ()):
        path = f"spec.nics[{i}]"
        if not nic.name or nic.name in seen:
            yield _violation(f"{path}.name", "Duplicate" if nic.name else "BadName", f"{nic.name!r} cannot be used")
        seen.add(nic.name)
        if nic.numa < 0 or (nodes is not None and nic.numa not in nodes):
            yield _violation(f"{path}.numa", "OutOfRange", f"the machine has no NUMA node {nic.numa}")
        if nic.mbps < 0:
            yield _violation(f"{path}.mbps", "OutOfRange", "must not be negative")


def _controller_errors(spec: NodePolicySpec) -> Iterator[Violation]:
    if spec.controller is None:
        return
    for name, pool in spec.controller.pools.items():
        path = f"spec.controller.pools.{name}"
        if name not in spec.pools:
            yield _violation(path, "UnknownPool", f"there is no pool {name}")
        if not 0 < pool.usage <= 1:
            yield _violation(f"{path}.usage", "OutOfRange", "must be above 0 and at most 1")
        if not 0 < pool.wait <= 1:
            yield _violation(f"{path}.wait", "OutOfRange", "must be above 0 and at most 1")
        for i, donor in enumerate(pool.donors):
            if donor not in spec.pools or donor == name:
                yield _violation(f"{path}.donors[{i}]", "UnknownPool", f"{donor} is no other pool")
