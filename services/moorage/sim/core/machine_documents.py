"""Makes Machines of what a fleet document says about the nodes of a cluster: one of each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moorage.machine_groups import read
from moorage.machine_groups.names import GROUP_VERSION, MACHINE_GROUP, NODE_POOL, type_key
from moorage.model.documents import Strict
from moorage.model.machines import Machine
from moorage.model.problems import Violation
from moorage.model.reports import Taint

#: The label that nodes with GPUs of a machine type have, where their document names none.
_GPU_MACHINE = "simulated"


class MachineSlotsDocument(Strict, kw_only=True):
    """Slots of a machine type that a node holds. `gpu`: a number of nvidia.com/gpu, or as in a Machine."""

    group: str
    type: str
    slots: int = 1
    cpu: str | int | float = ""
    memory: str | int | float = ""
    gpu: Any = None
    mode: str = "ready"
    taint: bool = False


#: The name of a node and its slots.
NodeSlots = tuple[str, Sequence[MachineSlotsDocument]]


def check_machines(nodes: Sequence[NodeSlots], path: str) -> list[Violation]:
    """Returns what is wrong with the Machines of a cluster."""
    errors: list[Violation] = []
    sizes: dict[tuple[str, str], dict[str, Any]] = {}
    groups: dict[str, str] = {}
    for node, slots in nodes:
        for one in slots:
            if sizes.setdefault((one.group, one.type), _size(one)) != _size(one):
                text = f"two sizes of the machine type {one.group}/{one.type}"
                errors.append(Violation(path=path, code="Contradiction", message=text))
            if groups.setdefault(node, one.group) != one.group:
                text = f"node {node} is in the groups {groups[node]} and {one.group}; it may be in one"
                errors.append(Violation(path=path, code="NodeTaken", message=text))
            if one.slots < 0:
                errors.append(Violation(path=path, code="OutOfRange", message="slots must not be negative"))
    if errors:
        return _distinct(errors)
    for group in sorted(set(groups.values())):
        found = read(_document(group, nodes))
        errors += [
            Violation(path=path, code=v.code, message=f"machine group {group}: {v.path}: {v.message}")
            for v in found.violations
        ]
    return _distinct(errors)


def machines_of(nodes: Sequence[NodeSlots]) -> tuple[Machine, ...]:
    """Returns the Machines of a cluster, whose document was checked."""
    groups = sorted({one.group for _, slots in nodes for one in slots})
    found = [read(_document(group, nodes)).machine for group in groups]
    return tuple(machine for machine in found if machine is not None)


def node_labels(slots: Sequence[MachineSlotsDocument]) -> dict[str, str]:
    """Returns the labels that a node of a pool has."""
    labels: dict[str, str] = {}
    for one in slots:
        gpu = _gpu(one)
        for which in ("family", "product", "machine"):
            if gpu is not None and which in gpu:
                labels[f"{str(gpu['type']).partition('/')[0]}/gpu.{which}"] = str(gpu[which])
        if one.mode == "ready":
            labels |= {type_key(one.type): one.group, NODE_POOL: "ready"}
    return labels


def node_taints(slots: Sequence[MachineSlotsDocument]) -> tuple[Taint, ...]:
    """Returns the taints that keep pods off a node that are no guests."""
    wanted: dict[str, str] = {}
    for one in slots:
        if one.taint:
            wanted |= {type_key(one.type): one.group, NODE_POOL: "ready" if one.mode == "ready" else "maintenance"}
    return tuple(Taint(key=key, value=value, effect="NoSchedule") for key, value in wanted.items())


def _document(group: str, nodes: Sequence[NodeSlots]) -> dict[str, Any]:
    pool: list[dict[str, Any]] = []
    available: dict[str, int] = {}
    sizes: dict[str, dict[str, Any]] = {}
    for node, slots in nodes:
        mine = [one for one in slots if one.group == group]
        if not mine:
            continue
        types = list(dict.fromkeys(one.type for one in mine))
        entry = {"name": node, "mode": mine[0].mode, "taint": any(one.taint for one in mine)}
        pool.append({**entry, "machineType": [{"name": name} for name in types]})
        for one in mine:
            available[one.type] = available.get(one.type, 0) + one.slots
            sizes[one.type] = _size(one)
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "Machine",
        "metadata": {"name": group, "labels": {MACHINE_GROUP: group}},
        "spec": {
            "nodePool": pool,
            "machineTypes": [
                {"name": name, "spec": sizes[name], "available": count} for name, count in available.items()
            ],
        },
    }


def _size(one: MachineSlotsDocument) -> dict[str, Any]:
    size: dict[str, Any] = {"cpu": str(one.cpu), "memory": str(one.memory)}
    gpu = _gpu(one)
    return size | ({"gpu": gpu} if gpu is not None else {})


def _gpu(one: MachineSlotsDocument) -> dict[str, Any] | None:
    if one.gpu is None:
        return None
    given = dict(one.gpu) if isinstance(one.gpu, dict) else {"num": one.gpu}
    given.setdefault("type", "nvidia.com/gpu")
    if not any(which in given for which in ("family", "product", "machine")):
        given["machine"] = _GPU_MACHINE
    return given


def _distinct(errors: Sequence[Violation]) -> list[Violation]:
    return list(dict.fromkeys(errors))
