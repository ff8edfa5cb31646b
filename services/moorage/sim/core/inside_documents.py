"""Reads what fleet files say of the inside of nodes: zones, providers and the kubelet that aligns pods with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from moorage.model.documents import Strict
from moorage.model.part_names import is_class
from moorage.model.part_reports import (
    InventoryReport,
    PropertyValue,
    ProviderReport,
    TopologyManager,
    ZoneReport,
    ZoneReserve,
)
from moorage.model.problems import Violation
from moorage.parsing import format_amount
from moorage.parts import kubelet
from moorage.parts.inside import Inside, encode, zone_id
from moorage.parts.layout import ANY, MAX_DEPTH, MAX_PARTS, InnerPart, layout_of
from moorage.parts.reported_amounts import class_amount, class_of
from moorage.qos.cpusets import parse_cpuset
from moorage.qos.topology_hints import TopologyPolicy, TopologyScope

from .node_zones import NodeTopology, SimulatedZone
from .value_rules import (
    Quantity,
    aggregate_errors,
    amount_errors,
    is_counted,
    is_too_large,
    property_errors,
    text_of,
    trait_errors,
    violation,
)

_MAX_ZONE, _MAX_DISTANCE = (1 << 16) - 1, (1 << 16) - 1
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_POLICIES: dict[str, TopologyPolicy] = {
    "none": "none",
    "best-effort": "best-effort",
    "restricted": "restricted",
    "single-numa-node": "single-numa-node",
}
_SCOPES: dict[str, TopologyScope] = {"container": "container", "pod": "pod"}


class InventoryDocument(Strict, kw_only=True):
    total: Quantity
    reserved: Quantity = 0
    min_unit: int = 1
    max_unit: int = 0
    step_size: int = 1
    allocation_ratio: float = 1.0


class ZoneReserveDocument(Strict, kw_only=True):
    cpus: int | str = ""
    memory: Quantity = ""


class ZoneDocument(Strict, kw_only=True):
    id: int | str
    parent: int | str = ""
    resources: dict[str, Quantity | InventoryDocument] = {}
    used: dict[str, Quantity] = {}
    cpus: int | str = ""
    memory: Quantity = ""
    reserved: ZoneReserveDocument | None = None
    distances: list[int] | dict[str, int] = []
    traits: list[str] = []
    aggregates: list[str] = []


class ProviderDocument(Strict, kw_only=True):
    name: str
    zone: int | str = ""
    inventories: dict[str, Quantity | InventoryDocument] = {}
    used: dict[str, Quantity] = {}
    traits: list[str] = []
    aggregates: list[str] = []
    properties: dict[str, PropertyValue] = {}
    healthy: bool = True
    providers: list[ProviderDocument] = []


class TopologyManagerDocument(Strict, kw_only=True):
    policy: str = "none"
    scope: str = "container"


class NodeInside(NamedTuple):
    """The inside of a kind of nodes as reports have it, with the amounts in use from the start."""

    zones: list[ZoneReport]
    providers: list[ProviderReport]
    manager: TopologyManager | None
    used: dict[str, dict[str, int]]  # by part, without the node's name, and class

    @property
    def fields(self) -> dict[str, object]:
        """Returns the fields of a node's row."""
        given = {"zones": self.zones, "providers": self.providers, "topologyManager": self.manager}
        return {name: value for name, value in given.items() if value}

    @property
    def node_use(self) -> dict[str, int]:
        """Returns what is in use from the start of the node's own amounts."""
        total: dict[str, int] = {}
        for amounts in self.used.values():
            for name, amount in amounts.items():
                if not is_class(name):
                    total[name] = total.get(name, 0) + amount
        return total

    @property
    def texts(self) -> dict[str, dict[str, str]]:
        """Returns what is in use from the start, as reports have it."""
        return {ident: {n: format_amount(n, a) for n, a in amounts.items()} for ident, amounts in self.used.items()}

    def topology(self, static_cpu: bool) -> NodeTopology | None:
        """Returns the zones as the kubelet of a simulated node has them; None without zones."""
        if not self.zones:
            return None
        parts = {part.path[1:]: part for part in layout_of(encode(Inside(zones=self.zones))).parts}
        manager = self.manager or TopologyManager()
        zones = tuple(
            SimulatedZone(ident, _capacities(parts[ident]), self.used.get(ident, {}))
            for zone in self.zones
            if zone.kind == "zone" and (ident := zone_id(zone.id)) in parts
        )
        others = {ident: amounts for ident, amounts in self.used.items() if ident not in {zone.id for zone in zones}}
        return NodeTopology(
            kubelet.TopologyManager(_POLICIES[manager.policy], _SCOPES[manager.scope], static_cpu), zones, others
        )


def _capacities(part: InnerPart) -> dict[str, int]:
    return {name: inventory.capacity for name, inventory in part.inventories.items()}


def inside_of(
    zones: Sequence[ZoneDocument], providers: Sequence[ProviderDocument], manager: TopologyManagerDocument | None
) -> NodeInside:
    """Returns what is inside a node, of a document that `check_inside` has found valid."""
    used = {zone_id(zone.id): _amounts(zone.used) for zone in zones if zone.used}
    found: list[ProviderReport] = []
    for path, parent, provider in _walk(providers):
        found.append(
            ProviderReport(
                id=path,
                parent=parent,
                inventories=_inventories(provider.inventories),
                traits=provider.traits,
                aggregates=provider.aggregates,
                properties=provider.properties,
                healthy=provider.healthy,
            )
        )
        if provider.used:
            used[path] = _amounts(provider.used)
    return NodeInside(
        [_zone(zone, zones) for zone in zones],
        found,
        None if manager is None else TopologyManager(policy=manager.policy, scope=manager.scope),
        used,
    )


def _zone(zone: ZoneDocument, zones: Sequence[ZoneDocument]) -> ZoneReport:
    distances = zone.distances
    return ZoneReport(
        id=zone.id,
        parent=zone.parent,
        inventories=_inventories(zone.resources),
        cpus=zone.cpus,
        memory=text_of(zone.memory),
        reserved=ZoneReserve(cpus=zone.reserved.cpus, memory=text_of(zone.reserved.memory)) if zone.reserved else None,
        distances={zone_id(other.id): far for other, far in zip(zones, distances, strict=False)}
        if isinstance(distances, list)
        else distances,
        traits=zone.traits,
        aggregates=zone.aggregates,
    )


def _walk(providers: Iterable[ProviderDocument]) -> Iterator[tuple[str, str, ProviderDocument]]:
    """Yields path, parent and provider of all providers, a parent before its children."""
    open_parts = [(zone_id(provider.zone), provider) for provider in reversed(list(providers))]
    while open_parts:
        parent, provider = open_parts.pop()
        path = f"{parent}/{provider.name}" if parent else provider.name
        yield path, parent, provider
        open_parts.extend((path, child) for child in reversed(provider.providers))


def _inventories(given: Mapping[str, Quantity | InventoryDocument]) -> dict[str, str | InventoryReport]:
    return {
        name: InventoryReport(
            total=text_of(found.total),
            reserved=text_of(found.reserved),
            min_unit=found.min_unit,
            max_unit=found.max_unit,
            step_size=found.step_size,
            allocation_ratio=found.allocation_ratio,
        )
        if isinstance(found, InventoryDocument)
        else text_of(found)
        for name, found in given.items()
    }


def _amounts(used: Mapping[str, Quantity]) -> dict[str, int]:
    return dict(class_amount(name, text_of(amount), up=True) for name, amount in used.items())


def check_inside(
    zones: Sequence[ZoneDocument],
    providers: Sequence[ProviderDocument],
    manager: TopologyManagerDocument | None,
    node: Mapping[str, int],
    path: str,
) -> list[Violation]:
    """Returns what is wrong with the inside of a node that has these amounts."""
    errors: list[Violation] = []
    if manager is not None and manager.policy not in _POLICIES:
        errors.append(violation(f"{path}.topologyManager.policy", "BadValue", f"must be one of {', '.join(_POLICIES)}"))
    if manager is not None and manager.scope not in _SCOPES:
        errors.append(violation(f"{path}.topologyManager.scope", "BadValue", "must be container or pod"))
    parents = {zone_id(zone.id): zone_id(zone.parent) for zone in zones}
    structure = [*_zone_errors(zones, parents, path), *_provider_errors(providers, set(parents), f"{path}.providers")]
    at = dict(_locations(zones, providers, path))
    if len(at) + 2 > MAX_PARTS:
        structure.append(violation(path, "OutOfRange", f"at most {MAX_PARTS} parts of a node"))
    return [*errors, *structure, *(() if structure else _amount_errors(zones, providers, node, at, path))]


def _locations(
    zones: Sequence[ZoneDocument], providers: Sequence[ProviderDocument], path: str
) -> Iterator[tuple[str, str]]:
    """Yields the id of each part with the path where the document has it."""
    for i, zone in enumerate(zones):
        yield zone_id(zone.id), f"{path}.zones[{i}]"
    open_parts = [(zone_id(p.zone), p, f"{path}.providers[{i}]") for i, p in enumerate(providers)]
    while open_parts:
        parent, provider, at = open_parts.pop()
        ident = f"{parent}/{provider.name}" if parent else provider.name
        yield ident, at
        open_parts.extend((ident, child, f"{at}.providers[{i}]") for i, child in enumerate(provider.providers))


def _zone_errors(zones: Sequence[ZoneDocument], parents: Mapping[str, str], path: str) -> Iterator[Violation]:
    known: set[str] = set()
    held: dict[str, int] = {}  # CPUs of zones by what these are parts of
    for i, zone in enumerate(zones):
        at, ident = f"{path}.zones[{i}]", zone_id(zone.id)
        if ident == ANY or not _NAME.fullmatch(ident) or (isinstance(zone.id, int) and not 0 <= zone.id <= _MAX_ZONE):
            yield violation(f"{at}.id", "BadName", f"{zone.id!r} is not an id of a zone")
        elif ident in known:
            yield violation(f"{at}.id", "Duplicate", f"another zone has the id {ident}")
        known.add(ident)
        cpus = _cpus(zone)
        if cpus & held.get(parents[ident], 0):
            yield violation(f"{at}.cpus", "BadInventory", "another zone has some of these CPUs, too")
        held[parents[ident]] = held.get(parents[ident], 0) | cpus
        distances = zone.distances if isinstance(zone.distances, list) else list(zone.distances.values())
        if any(not 0 <= distance <= _MAX_DISTANCE for distance in distances) or (
            isinstance(zone.distances, list) and len(distances) not in (0, len(zones))
        ):
            message = f"must be one distance, 0 to {_MAX_DISTANCE}, to each zone"
            yield violation(f"{at}.distances", "BadValue", message)
        for other in zone.distances if isinstance(zone.distances, dict) else ():
            if zone_id(other) not in parents:
                yield violation(f"{at}.distances.{other}", "UnknownZone", f"no zone has the id {other}")
        above, seen = parents[ident], {ident}
        while above in parents and above not in seen:
            seen.add(above)
            above = parents[above]
        if above == ident:
            yield violation(f"{at}.parent", "Cycle", f"{ident} is among its own parents")
        elif parents[ident] and parents[ident] not in parents:
            yield violation(f"{at}.parent", "UnknownZone", f"no zone has the id {parents[ident]}")


def _cpus(zone: ZoneDocument) -> int:
    """Returns the CPUs that the zone lists; none if it has a number of them, or no list that can be read."""
    try:
        return parse_cpuset(zone.cpus) if isinstance(zone.cpus, str) else 0
    except ValueError:
        return 0


def _provider_errors(
    providers: Sequence[ProviderDocument], zones: set[str], path: str, depth: int = 1
) -> Iterator[Violation]:
    names = set(zones) if depth == 1 else set()
    for i, provider in enumerate(providers):
        at, zone = f"{path}[{i}]", zone_id(provider.zone)
        if not _NAME.fullmatch(provider.name) or (provider.name == ANY and not zone and depth == 1):
            yield violation(f"{at}.name", "BadName", f"{provider.name!r} is not a name of a provider")
        name = f"{zone}/{provider.name}" if zone else provider.name
        if name in names:
            yield violation(f"{at}.name", "Duplicate", f"another part has the name {name}")
        names.add(name)
        if zone and depth > 1:
            yield violation(f"{at}.zone", "BadValue", "only the outermost provider has a zone")
        elif zone and zone not in zones:
            yield violation(f"{at}.zone", "UnknownZone", f"no zone has the id {zone}")
        if provider.providers and depth >= MAX_DEPTH - 1:
            yield violation(f"{at}.providers", "OutOfRange", f"at most {MAX_DEPTH} parts deep")
        else:
            yield from _provider_errors(provider.providers, zones, f"{at}.providers", depth + 1)


def _amount_errors(
    zones: Sequence[ZoneDocument],
    providers: Sequence[ProviderDocument],
    node: Mapping[str, int],
    at: Mapping[str, str],
    path: str,
) -> Iterator[Violation]:
    unreadable = [*_unreadable(zones, providers, at)]
    yield from unreadable
    if unreadable:
        return
    found = inside_of(zones, providers, None)
    layout = layout_of(encode(Inside(zones=found.zones, providers=found.providers, node=dict(node))))
    of_zones = {zone_id(zone.id) for zone in zones}
    for ident, why in layout.dropped:
        yield violation(f"{at[ident]}.{'resources' if ident in of_zones else 'inventories'}", "BadInventory", why)
    for part in layout.parts[1:]:
        for name, amount in found.used.get(part.path[1:], {}).items():
            if name not in part.inventories or amount > part.inventories[name].capacity:
                where = f"{at[part.path[1:]]}.used.{name}"
                yield violation(where, "BadInventory", "more is in use than there is")
    if not layout.dropped:
        yield from _sum_errors(layout.parts, node, at, path)


def _unreadable(
    zones: Sequence[ZoneDocument], providers: Sequence[ProviderDocument], at: Mapping[str, str]
) -> Iterator[Violation]:
    """Yields names and amounts of which no parts can be made."""
    for zone in zones:
        where = at[zone_id(zone.id)]
        yield from trait_errors(zone.traits, f"{where}.traits")
        yield from aggregate_errors(zone.aggregates, f"{where}.aggregates")
        yield from _inventory_errors(zone.resources, f"{where}.resources")
        if is_too_large("memory", zone.memory):
            yield violation(f"{where}.memory", "BadInventory", f"{text_of(zone.memory)[:80]} is too large")
        yield from _use_errors(zone.used, f"{where}.used")
    for ident, _, provider in _walk(providers):
        where = at[ident]
        yield from trait_errors(provider.traits, f"{where}.traits")
        yield from aggregate_errors(provider.aggregates, f"{where}.aggregates")
        yield from property_errors(provider.properties, f"{where}.properties")
        yield from _inventory_errors(provider.inventories, f"{where}.inventories")
        yield from _use_errors(provider.used, f"{where}.used")


def _inventory_errors(inventories: Mapping[str, Quantity | InventoryDocument], path: str) -> Iterator[Violation]:
    """Yields what a report could not say; all else that is wrong with an inventory, the parts made of it tell."""
    for name, given in inventories.items():
        if isinstance(given, InventoryDocument) and not math.isfinite(given.allocation_ratio):
            message = f"{given.allocation_ratio} is no allocation ratio"
            yield violation(f"{path}.{name}.allocationRatio", "BadInventory", message)
        amounts = (given.total, given.reserved) if isinstance(given, InventoryDocument) else (given,)
        for amount in amounts:
            if is_too_large(name, amount):
                yield violation(f"{path}.{name}", "BadInventory", f"{text_of(amount)[:80]} is too large")
            elif not is_counted(name, amount):
                yield violation(f"{path}.{name}", "BadInventory", f"{name} is counted in whole ones")


def _use_errors(used: Mapping[str, Quantity], path: str) -> Iterator[Violation]:
    known: set[str] = set()
    for name, amount in used.items():
        yield from amount_errors(name, amount, f"{path}.{name}")
        if class_of(name)[0] in known:
            yield violation(f"{path}.{name}", "Duplicate", "the use of this class is given twice")
        known.add(class_of(name)[0])


def _sum_errors(
    parts: Sequence[InnerPart], node: Mapping[str, int], at: Mapping[str, str], path: str
) -> Iterator[Violation]:
    """Yields where parts have together more of a Kubernetes resource than what they are parts of."""
    together: dict[tuple[int, str], int] = {}
    for part in parts:
        for name, inventory in part.inventories.items():
            if part.path[1:] in at and not is_class(name):
                takes = part.consumes.get(name)
                nearest = takes[0].part if takes else 0
                together[nearest, name] = together.get((nearest, name), 0) + inventory.total - inventory.reserved
    for (above, name), total in together.items():
        have = parts[above].inventories[name].total if above else node.get(name, 0)
        if total > have:
            where, of = (at[parts[above].path[1:]], parts[above].path[1:]) if above else (f"{path}.zones", "the node")
            texts = format_amount(name, total), format_amount(name, have)
            yield violation(where, "BadInventory", f"parts have {texts[0]} {name} together, {of} has {texts[1]}")
