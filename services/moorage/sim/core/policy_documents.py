"""Reads the zones and the NodePolicy of a node in a fleet document, for nodes that have a node agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from moorage.model.problems import Refused, Violation
from moorage.parsing import parse_amount
from moorage.qos.cpusets import format_cpuset, parse_cpuset
from moorage.qos.machine import Cpu, CpuTopology, Machine, MemoryNode
from moorage.qos.node_policy import NodePolicy, convert_node_policy

from .inside_documents import ZoneDocument
from .policy_zones import PolicyTopology

_NUMBERED = re.compile(r"(?:numa-)?([0-9]{1,4})", re.ASCII)
_SPECIAL = ("kind", "apiVersion", "metadata", "spec")


def policy_topology(zones: Sequence[ZoneDocument], policy: dict[str, Any]) -> PolicyTopology:
    """Returns the machine and policy of a document that `check_policy_document` has found valid."""
    return PolicyTopology(*_read(zones, policy))


def check_policy_document(zones: Sequence[ZoneDocument], policy: dict[str, Any], path: str) -> list[Violation]:
    """Returns what is wrong with the zones as those of a node agent, or with its policy."""
    if not zones:
        return [Violation(path=path, code="Required", message="a node with a nodePolicy needs zones")]
    try:
        _read(zones, policy)
    except Refused as refused:
        inner = "" if "spec" in policy or "kind" in policy else "spec."
        return [
            Violation(
                path=f"{path}.{error.path.removeprefix(inner)}".rstrip("."), code=error.code, message=error.message
            )
            for error in refused.problem.errors
        ]
    except ValueError as error:
        return [Violation(path=path.removesuffix(".nodePolicy") + ".zones", code="BadValue", message=str(error))]
    return []


def _read(zones: Sequence[ZoneDocument], policy: dict[str, Any]) -> tuple[NodePolicy, Machine]:
    machine, reserved, memory = _machine(zones)
    document: dict[str, Any] = dict(policy) if any(key in policy for key in _SPECIAL) else {"spec": policy}
    given = document.get("spec")
    if not isinstance(given, dict):
        given = {}
    spec = {**given}
    if reserved and "reservedCpus" not in spec:
        spec["reservedCpus"] = format_cpuset(reserved)
    if memory and "reservedMemory" not in spec:
        spec["reservedMemory"] = {str(node): str(size) for node, size in memory.items()}
    if isinstance(document.get("spec", {}), dict):
        document["spec"] = spec
    document.setdefault("kind", "NodePolicy")
    return convert_node_policy(document, machine), machine


def _machine(zones: Sequence[ZoneDocument]) -> tuple[Machine, int, dict[int, int]]:
    """Returns the machine, and the CPUs and memory that are reserved in its zones. A number of CPUs means the next ones."""
    cpus: list[Cpu] = []
    nodes: list[MemoryNode] = []
    reserved, memory, after = 0, {}, 0
    for zone in zones:
        found = _NUMBERED.fullmatch(str(zone.id))
        if found is None:
            raise ValueError(f"the zone {zone.id!r} has no number; a node agent knows zones by theirs")
        number = int(found[1])
        count = zone.cpus if isinstance(zone.cpus, int) else None
        mask = ((1 << count) - 1) << after if count is not None else parse_cpuset(str(zone.cpus))
        after = max(after, mask.bit_length())
        cpus += [Cpu(cpu, cpu, number, number, number) for cpu in range(mask.bit_length()) if mask >> cpu & 1]
        nodes.append(MemoryNode(number, {"memory": parse_amount("memory", str(zone.memory or 0), False)}))
        if zone.reserved is not None:
            reserved |= _first(mask, zone.reserved.cpus)
            if zone.reserved.memory:
                memory[number] = parse_amount("memory", str(zone.reserved.memory), True)
    if len({cpu.id for cpu in cpus}) < len(cpus) or len({node.id for node in nodes}) < len(nodes):
        raise ValueError("two zones have the same number, or CPUs in common")
    distances = tuple(tuple(zone.distances) for zone in zones if isinstance(zone.distances, list) and zone.distances)
    return Machine(CpuTopology(cpus), tuple(nodes), distances if len(distances) == len(zones) else ()), reserved, memory


def _first(cpus: int, reserved: int | str) -> int:
    """Returns the reserved CPUs of a zone: those of a list, or so many, the lowest first."""
    if isinstance(reserved, str):
        return parse_cpuset(reserved) & cpus
    found = 0
    for _ in range(reserved):
        lowest = cpus & ~found & -(cpus & ~found)
        found |= lowest
    return found
