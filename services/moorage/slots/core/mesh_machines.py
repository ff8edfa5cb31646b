"""Machines that are documents of the mesh: which clusters their nodes are in, where their slots go, and what each cluster gets of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.machine_groups import Surroundings, read
from moorage.model.base import Model
from moorage.model.machines import Machine, MachineDocument, PoolNode
from moorage.model.problems import Refused, Violation, invalid
from moorage.model.reasons import Warn

from .layout import NodeKey

#: Returns the clusters that have a node of this name.
ClustersWith = Callable[[str], Sequence[str]]
API_VERSIONS = ("imperator.tenzen-y.io/v1alpha1", "moorage.dev/v1alpha1", "")


class StoredMachine(Model, kw_only=True):
    """A Machine as it was applied. Each of its nodes names its cluster."""

    machine: Machine
    uid: str
    generation: int = 1
    created: str = ""
    spec: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def clusters(self) -> list[str]:
        return sorted({node.cluster for node in self.machine.node_pool})


def accept(
    data: Mapping[str, Any],
    stored: Mapping[str, StoredMachine],
    of_clusters: Iterable[tuple[str, Machine]],
    clusters_with: ClustersWith,
) -> tuple[Machine, list[Warn]]:
    """Raises Refused with every violation. `of_clusters`: Machines that were made in clusters."""
    violations: list[Violation] = []
    if (version := str(data.get("apiVersion") or "")) not in API_VERSIONS:
        text = f"{version!r} is not {API_VERSIONS[0]}"
        violations.append(Violation(path="apiVersion", code="WrongKind", message=text))
    alone = read(data)
    if alone.machine is None:
        raise Refused(invalid([*violations, *alone.violations]))
    before = stored.get(alone.machine.name)
    pool = [_located(node, number, before, clusters_with) for number, node in enumerate(alone.machine.node_pool)]
    violations += [found for found in pool if isinstance(found, Violation)]
    machine = msgspec.structs.replace(
        alone.machine, node_pool=tuple(node for node in pool if isinstance(node, PoolNode)), cluster=""
    )
    if violations:
        raise Refused(invalid(violations))
    others = {one.name: one.machine for one in stored.values()}
    for cluster, made in of_clusters:
        here = tuple(msgspec.structs.replace(node, cluster=cluster) for node in made.node_pool)
        others[f"{cluster}/{made.name}"] = msgspec.structs.replace(made, name=f"{cluster}/{made.name}", node_pool=here)
    around = Surroundings(None, others, before.machine if before is not None else None)
    checked = read({**data, "spec": {**data["spec"], "nodePool": _pool(data, machine)}}, around)
    if checked.violations:
        raise Refused(invalid(checked.violations))
    return machine, checked.warnings


def _pool(data: Mapping[str, Any], machine: Machine) -> list[dict[str, Any]]:
    """Returns the entries of the pool, each with its cluster."""
    return [
        {**entry, "cluster": node.cluster}
        for entry, node in zip(data["spec"]["nodePool"], machine.node_pool, strict=True)
    ]


def _located(
    node: PoolNode, number: int, before: StoredMachine | None, clusters_with: ClustersWith
) -> PoolNode | Violation:
    """Returns the entry with its cluster: the one it names, else the only one that has such a node."""
    found = clusters_with(node.name)
    if before is not None:
        for known in before.machine.node_pool:
            if known.name == node.name and node.cluster in ("", known.cluster):
                return msgspec.structs.replace(node, cluster=known.cluster)
    path = f"spec.nodePool[{number}].name"
    if node.cluster:
        if node.cluster in found:
            return node
        text = f"cluster {node.cluster} has no node {node.name!r}"
        return Violation(path=path, code="UnknownNode", message=text)
    if len(found) == 1:
        return msgspec.structs.replace(node, cluster=found[0])
    text = (
        f"no cluster has a node {node.name!r}"
        if not found
        else f"{', '.join(found[:5])} have a node {node.name!r}; name the cluster in this entry or in spec.cluster"
    )
    return Violation(path=path, code="UnknownNode", message=text)


class SlotParts(NamedTuple):
    """Which slots of a type clusters give out alone, and those of each window, by node."""

    offline: Mapping[NodeKey, int]
    windows: Mapping[str, Mapping[NodeKey, int]]


def _in_cluster(nodes: Mapping[NodeKey, int], cluster: str) -> int:
    return sum(count for node, count in nodes.items() if node.cluster == cluster)


def share_of(
    stored: StoredMachine,
    cluster: str,
    slots: Mapping[str, Mapping[NodeKey, int]],
    short: Mapping[str, int],
    parts: Mapping[str, SlotParts],
) -> MachineDocument:
    """Returns the Machine as a cluster gets it: its own nodes, and of each type the slots there. What fits nowhere is counted in the
    first cluster."""
    machine = stored.machine
    first = stored.clusters[0]
    types = []
    for kind in machine.types:
        part = parts.get(kind.name, SlotParts({}, {}))
        here = _in_cluster(slots.get(kind.name, {}), cluster)
        if cluster == first:
            here += short.get(kind.name, 0)
        if kind.spec.dependence is not None:
            here = kind.available
        windows = tuple(
            msgspec.structs.replace(window, slots=count)
            for window in kind.windows
            if (count := _in_cluster(part.windows.get(window.name, {}), cluster))
        )
        offline = _in_cluster(part.offline, cluster)
        types.append(msgspec.structs.replace(kind, available=here, offline_slots=offline, windows=windows))
    pool = tuple(msgspec.structs.replace(node, cluster="") for node in machine.node_pool if node.cluster == cluster)
    own = msgspec.structs.replace(machine, node_pool=pool, types=tuple(types), cluster="")
    return MachineDocument(name=machine.name, machine=own, revision=stored.generation)
