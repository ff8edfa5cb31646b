"""Writes Machines as the documents that they are read from."""

from __future__ import annotations

from typing import Any

from moorage.model.machines import Machine, MachineType, PoolNode, TypeSpec

from .names import GROUP_VERSION, MACHINE_GROUP


def document_of(machine: Machine) -> dict[str, Any]:
    """Returns the document of a Machine; read again it is the same Machine."""
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "Machine",
        "metadata": {"name": machine.name, "labels": {MACHINE_GROUP: machine.group}},
        "spec": spec_of(machine),
    }


def spec_of(machine: Machine) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "nodePool": [_node(node, machine.cluster) for node in machine.node_pool],
        "machineTypes": [_type(kind) for kind in machine.types],
    }
    if machine.cluster:
        spec["cluster"] = machine.cluster
    allow = {
        name: list(who)
        for name, who in (("projects", machine.allow.projects), ("namespaces", machine.allow.namespaces))
        if who
    }
    return spec | ({"allow": allow} if allow else {})


def _node(node: PoolNode, cluster: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": node.name, "mode": node.mode, "taint": node.taint}
    found["machineType"] = [{"name": name} for name in node.machine_types]
    return found | ({"cluster": node.cluster} if node.cluster and node.cluster != cluster else {})


def _type(kind: MachineType) -> dict[str, Any]:
    found: dict[str, Any] = {"name": kind.name, "spec": _size(kind.spec)}
    if kind.available >= 0:
        found["available"] = kind.available
    if kind.offline_slots:
        found["offlineSlots"] = kind.offline_slots
    if kind.windows:
        found["windows"] = [
            {"name": w.name, "slots": w.slots, "from": w.from_, "until": w.until}
            | ({"projects": list(w.projects)} if w.projects else {})
            for w in kind.windows
        ]
    return found


def _size(spec: TypeSpec) -> dict[str, Any]:
    found: dict[str, Any] = {name: text for name, text in (("cpu", spec.cpu), ("memory", spec.memory)) if text}
    if spec.gpu is not None:
        gpu = spec.gpu
        which = {name: getattr(gpu, name) for name in ("family", "product", "machine") if getattr(gpu, name)}
        found["gpu"] = {"type": gpu.type, "num": gpu.num, **which}
    if spec.host_limit != 1.0:
        found["hostLimit"] = spec.host_limit
    if spec.dependence is not None:
        found["dependence"] = {
            "machineType": spec.dependence.machine_type,
            "availableRatio": spec.dependence.available_ratio,
        }
    return found
