"""Marks that Machines put on Nodes: labels, taints and an annotation. It is recorded on the Node, so that it can be taken off again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.machines import Condition, Machine, PoolNode
from moorage.parsing import parse_amount

from .names import DOMAIN, MACHINE_GROUP, NODE_MARKS, NODE_POOL, NODE_POOL_ALIAS, type_key
from .objects import types_on
from .sizes import Size

_HEALTH = {"Ready": "ready", "NotReady": "not-ready", "Maintenance": "maintenance"}
#: Taints with which Kubernetes says that a Node is not healthy.
_UNHEALTHY = frozenset(
    f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable", "network-unavailable")
)


class NodeView(NamedTuple):
    """A Node as marks, conditions and rooms of slots need it."""

    name: str
    uid: str
    version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    conditions: Mapping[str, str]
    unschedulable: bool
    allocatable: Mapping[str, int]

    @property
    def is_healthy(self) -> bool:
        return (
            self.conditions.get("Ready") == "True"
            and self.conditions.get("NetworkUnavailable", "False") == "False"
            and not self.unschedulable
            and not any(taint.get("key") in _UNHEALTHY for taint in self.taints)
        )


def node_view(node: Mapping[str, Any]) -> NodeView:
    meta, spec, state = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    allocatable = {}
    for name, quantity in (state.get("allocatable") or {}).items():
        try:
            allocatable[name] = parse_amount(name, str(quantity), False)
        except ValueError:
            continue
    return NodeView(
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        version=str(meta.get("resourceVersion", "")),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        taints=spec.get("taints") or [],
        conditions={c.get("type", ""): c.get("status", "") for c in state.get("conditions") or ()},
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=allocatable,
    )


class Recorded(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The annotation with what was put on a Node: keys of labels, and taints as KEY=VALUE."""

    group: str = ""
    labels: list[str] = []
    taints: list[str] = []


class Marks(NamedTuple):
    """The marks that a Node is to have."""

    group: str
    labels: Mapping[str, str]
    taints: Sequence[tuple[str, str]]


def condition(entry: PoolNode, node: NodeView | None) -> Condition:
    if entry.mode == "maintenance":
        return "Maintenance"
    return "Ready" if node is not None and node.is_healthy else "NotReady"


def marks(machine: Machine, sizes: Mapping[str, Size], entry: PoolNode, node: NodeView | None) -> Marks:
    state = condition(entry, node)
    names = types_on(sizes, entry.machine_types)
    labels = {type_key(name): machine.group for name in names}
    if state == "Ready":
        labels[NODE_POOL] = "ready"
    taints = [(type_key(name), machine.group) for name in names] + [(NODE_POOL, _HEALTH[state])] if entry.taint else []
    return Marks(machine.group, labels, taints)


def recorded(node: NodeView) -> Recorded:
    """Returns what was put on a Node. Of one that another program marked, it is what has our names."""
    text = node.annotations.get(NODE_MARKS)
    if text:
        try:
            return msgspec.json.decode(text, type=Recorded)
        except (msgspec.DecodeError, RecursionError):
            pass
    return Recorded(group="")


def marked_for(node: NodeView) -> str:
    """Returns the group for which a Node was marked, by whomever."""
    return recorded(node).group or node.annotations.get(MACHINE_GROUP, "")


def inherited(node: NodeView, group: str) -> Recorded:
    """Returns what the program before put on a Node of a group."""
    labels = [
        k for k, v in node.labels.items() if k.startswith(DOMAIN) and (v == group or k in (NODE_POOL, NODE_POOL_ALIAS))
    ]
    taints = [
        f"{t['key']}={t.get('value', '')}"
        for t in node.taints
        if str(t.get("key", "")).startswith(DOMAIN) and (t.get("value") == group or t.get("key") == NODE_POOL)
    ]
    return Recorded(group=group, labels=labels, taints=taints)


def node_patch(node: NodeView, wanted: Marks | None) -> dict[str, Any] | None:
    """Returns the merge patch that makes a Node have the wanted marks and none of those before; None if nothing differs. Labels and
    taints of others stay, and so do taints that are there already, with the time at which they were added."""
    before = recorded(node)
    if not before.group and node.annotations.get(MACHINE_GROUP):
        before = inherited(node, node.annotations[MACHINE_GROUP])
    if wanted is None and not before.group:
        return None
    labels: dict[str, str | None] = {k: None for k in before.labels if k in node.labels}
    annotations: dict[str, str | None] = {}
    if wanted is None:
        annotations = {k: None for k in (MACHINE_GROUP, NODE_MARKS) if k in node.annotations}
        taints: list[Mapping[str, Any]] = [t for t in node.taints if _text(t) not in before.taints]
    else:
        if NODE_POOL_ALIAS in node.labels:
            labels[NODE_POOL_ALIAS] = None
        if NODE_POOL in node.labels:
            labels[NODE_POOL] = None
        for key, value in wanted.labels.items():
            if node.labels.get(key) != value:
                labels[key] = value
            else:
                labels.pop(key, None)
        ours = [f"{key}={value}" for key, value in wanted.taints]
        taints = [t for t in node.taints if _text(t) in ours or _text(t) not in before.taints]
        # One key has one value of ours: without this an older state would stay beside the new one.
        taints = [t for t in taints if not (t.get("key") == NODE_POOL and _text(t) not in ours)]
        present = {_text(t) for t in taints if t.get("effect") == "NoSchedule"}
        taints = [t for t in taints if _text(t) not in ours or t.get("effect") == "NoSchedule"]
        taints += [
            {"key": k, "value": v, "effect": "NoSchedule"} for k, v in wanted.taints if f"{k}={v}" not in present
        ]
        record = Recorded(group=wanted.group, labels=sorted(wanted.labels), taints=ours)
        for key, text in ((MACHINE_GROUP, wanted.group), (NODE_MARKS, msgspec.json.encode(record).decode())):
            if node.annotations.get(key) != text:
                annotations[key] = text
    metadata = {k: v for k, v in (("labels", labels), ("annotations", annotations)) if v}
    patch: dict[str, Any] = {}
    if list(taints) != list(node.taints):
        patch["spec"] = {"taints": taints or None}
    if metadata or patch:
        patch["metadata"] = {**metadata, "resourceVersion": node.version}
    return patch or None


def _text(taint: Mapping[str, Any]) -> str:
    return f"{taint.get('key', '')}={taint.get('value', '')}"
