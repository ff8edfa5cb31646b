"""Derives the zones of a node, how its kubelet aligns pods with them, and which pods they count, from its
NodeResourceTopology."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from moorage.model.part_reports import InventoryReport, TopologyManager, ZoneReport
from moorage.parsing import format_amount, parse_amount

from .kube_types import Topology, TopologyResource
from .pod_fingerprint import VERSION, fingerprint

_NUMBERED = re.compile(r"node-([0-9]{1,9})", re.ASCII)
#: The policies of objects that have no attributes.
_OLD_POLICIES = {
    "SingleNUMANode": "single-numa-node",
    "Restricted": "restricted",
    "BestEffort": "best-effort",
    "None": "none",
}
#: Without a fingerprint, a pod is counted once the object is so much newer than its start.
COUNTED_AFTER = timedelta(minutes=1)


def zones_of(topology: Topology) -> list[ZoneReport]:
    """Returns the zones with what pods can be given of them; `node-1` has the id `numa-1`, as node agents name it."""
    return [
        ZoneReport(
            id=_id(zone.name),
            kind="zone" if zone.type == "Node" else (zone.type or "zone").lower(),
            parent=_id(zone.parent),
            inventories={found.name: _inventory(found) for found in zone.resources or ()},
            distances={_id(cost.name): int(cost.value) for cost in zone.costs or () if _is_distance(cost.value)},
        )
        for zone in topology.zones or ()
    ]


def _inventory(resource: TopologyResource) -> str | InventoryReport:
    """Returns what pods can be given, and what is reserved beside it."""
    given, all_ = (_text(amount) for amount in (resource.allocatable, resource.capacity))
    if not given or not all_ or given == all_:
        return given or all_ or "0"
    try:
        reserved = parse_amount(resource.name, all_, False) - parse_amount(resource.name, given, False)
    except ValueError:
        return given  # inventory tells of amounts that cannot be read
    if reserved <= 0:
        return given
    return InventoryReport(total=all_, reserved=format_amount(resource.name, reserved))


def use_of_zones(topology: Topology) -> dict[str, dict[str, str]]:
    """Returns what is taken of each zone, by its id and resource."""
    found: dict[str, dict[str, str]] = {}
    for zone in topology.zones or ():
        for resource in zone.resources or ():
            total = resource.allocatable if resource.allocatable is not None else resource.capacity
            try:
                amounts = [parse_amount(resource.name, _text(given), False) for given in (total, resource.available)]
            except ValueError:
                continue
            if amounts[0] > amounts[1]:
                used = format_amount(resource.name, amounts[0] - amounts[1])
                found.setdefault(_id(zone.name), {})[resource.name] = used
    return found


def topology_manager_of(topology: Topology) -> TopologyManager | None:
    """Returns the policy and the scope of the node's kubelet; None if they are not told."""
    policy, scope = attribute(topology, "topologyManagerPolicy"), attribute(topology, "topologyManagerScope")
    if policy:
        return TopologyManager(policy=policy, scope=scope or "container")
    for given in topology.topology_policies or ():
        level = re.sub("(Container|Pod)Level$", "", given)
        if level in _OLD_POLICIES:
            return TopologyManager(
                policy=_OLD_POLICIES[level], scope="pod" if given.endswith("PodLevel") else "container"
            )
    return None


def attribute(topology: Topology | None, name: str) -> str:
    """Returns the value of an attribute; "" if there is none."""
    attributes = (topology.attributes if topology is not None else None) or ()
    return next((found.value for found in attributes if found.name == name), "")


class NamedPod(Protocol):
    @property
    def name_hash(self) -> int: ...
    @property
    def exclusive(self) -> bool: ...
    @property
    def cores(self) -> int: ...
    @property
    def requests(self) -> Iterable[tuple[str, int]]: ...


def counted_pods(topology: Topology, on_node: Collection[NamedPod], started: Mapping[str, str]) -> list[str]:
    """Returns those of the pods `started` (uid → time of the start) that the zones count, of all pods on the node. Zones in which less
    is taken than these pods have for themselves count none, whatever they say."""
    if _is_less_taken(topology, on_node):
        return []
    told = attribute(topology, "nodeTopologyPodsFingerprint")
    if told.startswith(VERSION):
        every = attribute(topology, "nodeTopologyPodsFingerprintMethod") != "with-exclusive-resources"
        if told == fingerprint(pod.name_hash for pod in on_node if every or pod.exclusive):
            return sorted(started)
    newest = max((t for f in topology.metadata.managed_fields or () if (t := _time(f.time)) is not None), default=None)
    if newest is None:
        return []
    return sorted(u for u, at in started.items() if (t := _time(at)) is not None and t + COUNTED_AFTER <= newest)


def _is_less_taken(topology: Topology, on_node: Iterable[NamedPod]) -> bool:
    own: Counter[str] = Counter()
    for pod in on_node:
        own["cpu"] += 1000 * pod.cores if attribute(topology, "cpuManagerPolicy") != "none" else 0
        own.update({name: amount for name, amount in pod.requests if "/" in name})
    told = {found.name for zone in topology.zones or () for found in zone.resources or ()}
    taken: Counter[str] = Counter()
    for amounts in use_of_zones(topology).values():
        taken.update({name: parse_amount(name, text, True) for name, text in amounts.items()})
    return any(taken[name] < amount for name, amount in own.items() if name in told)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _id(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return f"numa-{int(numbered[1])}" if numbered else name


def _text(amount: str | float | None) -> str:
    return "" if amount is None else amount if isinstance(amount, str) else repr(amount)


def _is_distance(value: float) -> bool:
    return not isinstance(value, bool) and value == int(value) >= 0
