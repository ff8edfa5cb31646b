"""Converts reported nodes to rows: amounts become integers, the hostname label a flag.

An unreadable amount or host port makes its node unusable, with a reason; the other nodes of the report are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from moorage.classes import DeviceSources
from moorage.model.part_reports import DeviceReport, ZoneReport
from moorage.model.reports import CpuManager, NodeReport, Taint
from moorage.model.shapes import EXCLUSIVE
from moorage.model.slots import PartAmounts
from moorage.parsing import CAPACITY_MAX, parse_amount
from moorage.parts import inside as parts_inside
from moorage.parts.device_parts import COUNTERS, named_counters, named_devices, path_in_layout
from moorage.parts.inside import AddedNames, Inside
from moorage.parts.layout import Layout, common_layout, path_of
from moorage.parts.reported_amounts import class_amount
from moorage.podspec import parse_host_port

from .delta import HOST, READY, REJECTED, SEPARATOR, UNSCHEDULABLE

HOSTNAME = "kubernetes.io/hostname"
PODS = "pods"
_MAX = CAPACITY_MAX


class NodeRow(NamedTuple):
    name: str
    flags: int
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    allocatable: dict[str, int]
    requested: dict[str, int]
    exclusive: int = -1
    extras: bytes = b""
    host_ports: tuple[str, ...] = ()  # in order
    inside: bytes = b""  # the source of its layout
    in_use: tuple[int, ...] = ()  # of each entry of the layout


def normalize_node(node: NodeReport, before: Inside | None = None) -> tuple[NodeRow, str]:
    """Returns the row of a node, and what is wrong with the node ("" if nothing is). `before`: what was reported of its inside,
    for what the report leaves out."""
    labels, flags, problem = node.labels, 0, ""
    if labels.get(HOSTNAME) == node.name:
        labels = {k: v for k, v in labels.items() if k != HOSTNAME}
        flags |= HOST
    flags |= (READY if node.ready else 0) | (UNSCHEDULABLE if node.unschedulable else 0)
    allocatable: dict[str, int] = {}
    requested: dict[str, int] = {}
    try:
        for name, text in node.allocatable.items():
            allocatable[name] = _bounded(name, text, False)
        for name, text in node.requested.items():
            requested[name] = _bounded(name, text, True)
        for amounts in (allocatable, requested):
            amounts.pop(EXCLUSIVE, None)  # derived from the CPU manager instead
        name = "hostPorts"
        host_ports = tuple(sorted({str(parse_host_port(text)) for text in node.host_ports}))
    except ValueError as error:
        allocatable, requested, flags, problem = {}, {}, flags | REJECTED, f"node {node.name}: {name}: {error}"
        host_ports = ()
    requested.setdefault(PODS, min(max(node.pod_count, 0), _MAX))
    exclusive = exclusive_cores(node.cpu_manager)
    extras = {k: v for k in ("devices", "machines", "created", "qos") if (v := getattr(node, k))}
    packed = msgspec.json.encode(extras) if extras else b""
    row = NodeRow(node.name, flags, labels, tuple(node.taints), allocatable, requested, exclusive, packed, host_ports)
    inside = inside_of(node, before or Inside(), allocatable)
    if inside.zones or inside.providers or inside.devices or inside.incomplete_pools:
        row, wrong = with_inside(row, inside, node.in_use)
        problem = problem or wrong
    if node.problems and not problem:
        problem = f"node {node.name}: {'; '.join(text[:200] for text in node.problems[:3])}"
    return row, problem


def inside_of(node: NodeReport, before: Inside, allocatable: Mapping[str, int]) -> Inside:
    """Returns what is inside a node: what it reports, and what was reported before of all else."""
    inside = Inside(
        zones=before.zones if node.zones is None else list(map(_static, node.zones)),
        providers=before.providers if node.providers is None else node.providers,
        devices=named_devices(node.name, node.devices),
        counters=named_counters(node.name, node.counters, node.devices) if node.devices else [],
        device_classes=node.device_classes if node.devices or node.incomplete_pools else [],
        incomplete_pools=node.incomplete_pools,
        invalid_pools=node.invalid_pools,
        topology_manager=node.topology_manager or before.topology_manager,
        cpu_manager=node.cpu_manager.policy if node.cpu_manager is not None else "",
        roles=node.qos.role_kinds if node.qos is not None and node.qos.gate else {},
    )
    if not (inside.zones or inside.providers or inside.devices):
        return inside
    return _with_amounts(inside, allocatable)


def with_additions(row: NodeRow, added: Mapping[str, AddedNames]) -> NodeRow:
    """Returns the row with these traits and aggregates of the node and its parts, by path, besides those that are reported."""
    inside = parts_inside.decode(row.inside)
    if inside.added == added:
        return row
    return row._replace(inside=parts_inside.encode(msgspec.structs.replace(inside, added=dict(added))))


def with_devices(row: NodeRow, sources: DeviceSources) -> NodeRow:
    """Returns the row with the kinds and properties of its devices, and with devices of the extended resources and huge pages of
    its node, but for those that devices of a DeviceClass serve. What these are used for is told by the node's own amounts."""
    before = parts_inside.decode(row.inside)
    labels = {**row.labels, HOSTNAME: row.name} if row.flags & HOST else row.labels
    served = before.extended_resources
    counted = {name: n for name, n in row.allocatable.items() if name not in served} if served else row.allocatable
    devices = sources.map(before.devices, counted, labels)
    if devices == before.devices:
        return row
    inside = _with_amounts(msgspec.structs.replace(before, devices=devices), row.allocatable)
    known = dict(zip(common_layout(row.inside).entry_at, row.in_use, strict=True)) if row.inside else {}
    source = parts_inside.encode(inside)
    in_use = tuple(known.get(entry, 0) for entry in common_layout(source).entry_at)
    return row._replace(inside=source, in_use=in_use)


def with_inside(row: NodeRow, inside: Inside, in_use: Mapping[str, Mapping[str, str]]) -> tuple[NodeRow, str]:
    """Returns the row with what is inside the node, and what is wrong with that."""
    source = parts_inside.encode(inside)
    layout = common_layout(source)
    amounts, problem = _used(layout, row.name, in_use)
    problems = [f"node {row.name}: {text}" for text in (*map(str, layout.dropped), problem) if text]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return row._replace(inside=source, in_use=amounts), "; ".join(problems[:3]) + more


def with_parts_of(row: NodeRow, node: NodeReport, pods: Iterable[PartAmounts] = ()) -> NodeRow:
    """Returns the row with the zones and devices that a node agent reports; what it says of their use replaces what was known
    of it, and is never less than what it says that `pods` take. Devices of drivers and resources that it does not report stay."""
    before = parts_inside.decode(row.inside)
    known = dict(zip(common_layout(row.inside).entry_at, row.in_use, strict=True))
    found = msgspec.structs.replace(node, providers=before.providers, zones=node.zones or None)
    inside = inside_of(found, before, row.allocatable)
    own = {_source_of(device) for device in inside.devices}
    others = [device for device in before.devices if _source_of(device) not in own]
    inside = msgspec.structs.replace(inside, devices=[*others, *inside.devices])
    if others:
        counters = {(c.driver, c.pool, c.name): c for c in (*before.counters, *inside.counters)}
        inside = msgspec.structs.replace(
            inside,
            counters=list(counters.values()),
            device_classes=inside.device_classes or before.device_classes,
            incomplete_pools=inside.incomplete_pools or before.incomplete_pools,
            invalid_pools=inside.invalid_pools or before.invalid_pools,
        )
    if node.cpu_manager is None:
        inside = msgspec.structs.replace(inside, cpu_manager=before.cpu_manager)
    over, _ = with_inside(row, _with_amounts(inside, row.allocatable), node.in_use)
    layout = common_layout(over.inside)
    own_paths = {path_in_layout(device) for device in inside.devices if _source_of(device) in own}
    own_zones = {f"/{parts_inside.zone_id(zone.id)}" for zone in node.zones or ()}

    def reports(path: str) -> bool:
        return path in own_paths or path in own_zones or path[1:] in node.in_use

    amounts = [
        amount if reports(path) else known.get((path, name), 0)
        for (path, name), amount in zip(layout.entry_at, over.in_use, strict=True)
    ]
    of_pods: PartAmounts = {}
    for parts in pods:
        for part, taken in parts.items():
            here = of_pods.setdefault(part, {})
            for name, amount in taken.items():
                here[name] = here.get(name, 0) + amount
    if of_pods:
        amounts = list(map(max, amounts, _by_entry(layout, row.name, of_pods)))
    return over._replace(in_use=tuple(amounts))


def _static(zone: ZoneReport) -> ZoneReport:
    """Returns the zone without what changes with each pod: use is told beside the structure."""
    return zone if zone.exclusive_free is None else msgspec.structs.replace(zone, exclusive_free=None)


def _source_of(device: DeviceReport) -> tuple[str, str]:
    """Returns who gives out the device: a driver, or whoever counts its resource."""
    return device.driver, "" if device.driver else device.resource or device.kind


def _with_amounts(inside: Inside, allocatable: Mapping[str, int]) -> Inside:
    """Returns what is inside a node with the node's own amounts of it."""
    names = sorted(parts_inside.classes_in(inside))
    return msgspec.structs.replace(inside, node={name: allocatable[name] for name in names if name in allocatable})


def _used(layout: Layout, node: str, in_use: Mapping[str, Mapping[str, str]]) -> tuple[tuple[int, ...], str]:
    """Returns what is used of each entry, and what is wrong with the amounts."""
    found: PartAmounts = {}
    problem = ""
    for ident, classes in in_use.items():
        for name, text in classes.items():
            try:
                resource, amount = class_amount(name, text, up=True)
                if amount < 0:
                    raise ValueError(f"{text!r} is negative")
            except ValueError as error:
                problem = f"part {ident[:80]!r}: in use: {name}: {error}"
                continue
            here = found.setdefault(ident, {})
            here[resource] = here.get(resource, 0) + amount
    return _by_entry(layout, node, found), problem


def _by_entry(layout: Layout, node: str, in_use: Mapping[str, Mapping[str, int]]) -> tuple[int, ...]:
    """Returns amounts of parts by entry. Those of parts that are not there count nowhere. What devices in use take of counters is
    added."""
    amounts = [0] * len(layout.entries)
    for ident, classes in in_use.items():
        path = f"/{ident}" if f"/{ident}" in layout.at else path_of(node, ident, layout)
        for name, amount in classes.items():
            at = layout.entry_at.get((path, name))
            if at is not None:
                amounts[at] = min(amounts[at] + amount, _MAX)
    for at, (part, name) in enumerate(layout.entries) if layout.inside.counters else ():
        for take in layout.parts[part].consumes.get(name, ()) if amounts[at] else ():
            if layout.parts[take.part].kind == COUNTERS:
                counter = layout.entry_at[layout.parts[take.part].path, take.resource]
                amounts[counter] = min(amounts[counter] + amounts[at] * take.amount, _MAX)
    return tuple(amounts)


def exclusive_cores(manager: CpuManager | None) -> int:
    """Returns the free exclusive cores; -1 if they are not reported. Only the static policy assigns whole cores."""
    if manager is None:
        return -1
    return min(max(manager.exclusive_free, 0), _MAX) if manager.policy == "static" else 0


def name_problem(name: str) -> str:
    """Returns what is wrong with a node's name, or "". A node with an invalid name has no row."""
    if not name or len(name) > 253 or SEPARATOR in name:
        return f"{name[:60]!r} is no name of a node"
    return ""


def _bounded(resource: str, text: str, up: bool) -> int:
    value = parse_amount(resource, text, up)
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    return min(value, _MAX)
