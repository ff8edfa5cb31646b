"""The objects that a Machine has in its cluster: a StatefulSet and a Service per type, and one MachineNodePool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.model.machines import Machine
from moorage.model.object_names import NAMESPACE
from moorage.parsing import format_amount

from .names import (
    GROUP_VERSION,
    GUEST,
    MACHINE_GROUP,
    MACHINE_TYPE,
    NODE_POOL,
    POD_ROLE,
    RESERVATION,
    SLOT_GATE,
    object_name,
    pool_name,
    type_key,
)
from .sizes import Size, children_of

Object = dict[str, Any]
IMAGE = "alpine:3.15.0"


def labels(group: str, machine_type: str, role: str = GUEST) -> dict[str, str]:
    return {MACHINE_GROUP: group, MACHINE_TYPE: machine_type, POD_ROLE: role}


def types_on(sizes: Mapping[str, Size], named: Iterable[str]) -> list[str]:
    """Returns the types of a Node's entry, and those that live in their slots."""
    children = children_of(sizes)
    found: list[str] = []

    def add(machine_type: str) -> None:
        if machine_type in sizes and machine_type not in found:
            found.append(machine_type)
            for child in children[machine_type]:
                add(child)

    for machine_type in named:
        add(machine_type)
    return found


def sharing(machine: Machine, sizes: Mapping[str, Size], machine_type: str) -> list[str]:
    """Returns the types that share a Node with a type, itself first."""
    found = [machine_type]
    for node in machine.node_pool:
        there = types_on(sizes, node.machine_types)
        if machine_type in there:
            found += [name for name in there if name not in found]
    return found


def tolerations(machine: Machine, sizes: Mapping[str, Size], machine_type: str) -> list[Object]:
    own, *others = sharing(machine, sizes, machine_type)
    pairs = [(type_key(own), machine.group), (NODE_POOL, "ready"), *((type_key(t), machine.group) for t in others)]
    return tolerating(pairs)


def tolerating(taints: Iterable[tuple[str, str]]) -> list[Object]:
    """Returns tolerations for taints of Nodes, which are keys and values."""
    return [{"key": key, "effect": "NoSchedule", "operator": "Equal", "value": value} for key, value in taints]


def requirements(machine: Machine, sizes: Mapping[str, Size], machine_type: str) -> list[Object]:
    """Returns what the Node of a slot has to be."""
    pairs = [(type_key(machine_type), machine.group), (NODE_POOL, "ready")]
    label = sizes[machine_type].gpu_label
    return [{"key": k, "operator": "In", "values": [v]} for k, v in (*pairs, *([label] if label else []))]


def owner(machine: str, uid: str) -> Object:
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "Machine",
        "name": machine,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def service(machine: Machine, uid: str, machine_type: str, namespace: str = NAMESPACE) -> Object:
    marks = labels(machine.group, machine_type, RESERVATION)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(machine, uid, object_name(machine.group, machine_type), marks, namespace),
        "spec": {"selector": marks, "type": "ClusterIP", "clusterIP": "None"},
    }


def stateful_set(
    machine: Machine,
    sizes: Mapping[str, Size],
    uid: str,
    machine_type: str,
    image: str = IMAGE,
    namespace: str = NAMESPACE,
) -> Object:
    """Returns the StatefulSet without `replicas`."""
    name = object_name(machine.group, machine_type)
    marks = labels(machine.group, machine_type, RESERVATION)
    amounts = {k: format_amount(k, amount) for k, amount in sizes[machine_type].amounts.items()}
    term = {"matchExpressions": requirements(machine, sizes, machine_type)}
    template_spec = {
        "tolerations": tolerations(machine, sizes, machine_type),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
        "schedulingGates": [{"name": SLOT_GATE}],
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "sleeper",
                "image": image,
                "command": ["sleep"],
                "args": ["infinity"],
                "resources": {"requests": amounts, "limits": dict(amounts)},
            }
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(machine, uid, name, marks, namespace),
        "spec": {
            "selector": {"matchLabels": marks},
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": marks}, "spec": template_spec},
        },
    }


def node_pool(machine: Machine, uid: str) -> Object:
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "MachineNodePool",
        "metadata": {
            "name": pool_name(machine.name),
            "labels": {MACHINE_GROUP: machine.group},
            "ownerReferences": [owner(machine.name, uid)],
        },
        "spec": {
            "machineGroup": machine.group,
            "nodePool": [
                {
                    "name": node.name,
                    "mode": node.mode,
                    "taint": node.taint,
                    "machineType": [{"name": name} for name in node.machine_types],
                }
                for node in machine.node_pool
            ],
            "machineTypeStock": [{"name": t.name} for t in machine.types],
        },
    }


def _metadata(machine: Machine, uid: str, name: str, marks: dict[str, str], namespace: str) -> Object:
    return {
        "name": name,
        "namespace": namespace,
        "labels": marks,
        "ownerReferences": [owner(machine.name, uid)],
    }


def difference(desired: Any, actual: Any) -> Any:
    """Returns the merge patch that makes `actual` have all that is desired; None if it has. What is not desired stays: defaults, and
    what others added to objects. Lists have exactly the desired entries."""
    if isinstance(desired, dict):
        if not isinstance(actual, dict):
            return desired
        patch = {k: d for k, v in desired.items() if (d := difference(v, actual.get(k))) is not None}
        return patch or None
    if isinstance(desired, list):
        if isinstance(actual, list) and len(actual) == len(desired):
            pairs = zip(desired, actual, strict=True)
            if all(difference(wanted, there) is None for wanted, there in pairs):
                return None
        return desired
    return None if desired == actual and type(desired) is type(actual) else desired
