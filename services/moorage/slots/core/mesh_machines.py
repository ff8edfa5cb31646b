"""Machines that are documents of the mesh: which clusters their nodes are in, where their slots go, and what each cluster gets of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.machine_groups import Surroundings, read
from moorage.machine_groups.names import MACHINE_GROUP
from moorage.machine_groups.written import document_of
from moorage.model.base import Model
from moorage.model.machines import Machine, MachineDocument
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
    name = str(_mapping(data.get("metadata")).get("name"))
    before = stored[name].machine if name in stored else None
    others = {one.name: one.machine for one in stored.values()}
    for cluster, made in of_clusters:
        here = tuple(msgspec.structs.replace(node, cluster=cluster) for node in made.node_pool)
        others[f"{cluster}/{made.name}"] = msgspec.structs.replace(made, name=f"{cluster}/{made.name}", node_pool=here)
    located, unknown = _located(data, before, clusters_with)
    around = Surroundings(None, others, before)
    found = read(located, around)
    if found.machine is None and before is not None:
        known = read(located, around._replace(stored=True))
        if known.machine is not None and msgspec.structs.replace(known.machine, cluster="") == before:
            found = known  # it is applied as it is
    violations += [*unknown, *found.violations]
    if found.machine is None or violations:
        raise Refused(invalid(violations))
    return msgspec.structs.replace(found.machine, cluster=""), found.warnings


def is_pool_of(machine: Machine, data: Mapping[str, Any]) -> bool:
    """Returns whether a MachineNodePool says nothing else than its Machine does. Its entries need not name their clusters."""
    spec, labels = _mapping(data.get("spec")), _mapping(_mapping(data.get("metadata")).get("labels"))
    groups = (labels.get(MACHINE_GROUP), spec.get("machineGroup"), spec.get("machineGroupName"))
    if any(group not in (None, machine.group) for group in groups):
        return False
    own = document_of(machine)
    pool, _ = _located({"spec": {"nodePool": spec.get("nodePool")}}, machine, lambda _node: ())
    found = read({**own, "spec": {**own["spec"], **pool["spec"]}}, Surroundings(stored=True)).machine
    types = [{"name": kind.name} for kind in machine.types]
    stock = spec.get("machineTypeStock", types)
    return found == machine and isinstance(stock, list) and sorted(stock, key=str) == sorted(types, key=str)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _located(
    data: Mapping[str, Any], before: Machine | None, clusters_with: ClustersWith
) -> tuple[dict[str, Any], list[Violation]]:
    """Returns the document with the cluster of each entry of its pool: the one it names, else that in which its node was before, else the
    only one that has such a node. Entries that cannot be read stay as they are."""
    spec = _mapping(data.get("spec"))
    entries = spec.get("nodePool")
    if not isinstance(entries, list):
        return dict(data), []
    known: dict[str, list[str]] = {}
    for node in before.node_pool if before is not None else ():
        known.setdefault(node.name, []).append(node.cluster)
    pool, violations = [], []
    for number, entry in enumerate(entries):
        found = entry
        if isinstance(entry, Mapping) and isinstance(name := entry.get("name"), str) and name:
            named = entry.get("cluster") or spec.get("cluster") or ""
            where = next((cluster for cluster in known.get(name, ()) if named in ("", cluster)), "")
            if not where and isinstance(named, str):
                located = _cluster_of(name, named, f"spec.nodePool[{number}].name", clusters_with)
                if isinstance(located, Violation):
                    violations.append(located)
                else:
                    where = located
            found = {**entry, "cluster": where} if where else entry
        pool.append(found)
    return {**data, "spec": {**spec, "nodePool": pool}}, violations


def _cluster_of(node: str, named: str, path: str, clusters_with: ClustersWith) -> str | Violation:
    """Returns the cluster of a node that is new in a pool."""
    found = clusters_with(node)
    if named:
        if named in found:
            return named
        return Violation(path=path, code="UnknownNode", message=f"cluster {named} has no node {node!r}")
    if len(found) == 1:
        return found[0]
    text = (
        f"no cluster has a node {node!r}"
        if not found
        else f"{', '.join(found[:5])} have a node {node!r}; name the cluster in this entry or in spec.cluster"
    )
    return Violation(path=path, code="UnknownNode", message=text)


class SlotParts(NamedTuple):
    """The slots of a type that clusters give out alone, and those of each window, by node."""

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
        # The cluster may have given out more slots of a dependent type alone than there are now.
        offline = min(_in_cluster(part.offline, cluster), max(0, here))
        types.append(msgspec.structs.replace(kind, available=here, offline_slots=offline, windows=windows))
    pool = tuple(msgspec.structs.replace(node, cluster="") for node in machine.node_pool if node.cluster == cluster)
    own = msgspec.structs.replace(machine, node_pool=pool, types=tuple(types), cluster="")
    return MachineDocument(name=machine.name, machine=own, revision=stored.generation)
