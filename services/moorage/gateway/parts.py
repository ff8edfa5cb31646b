"""HTTP handlers that read the parts of nodes: what each has, what is in use of it, and who holds it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from aiohttp import web

from moorage.classes import CLUSTER, KIND, NAME, NODE, VENDOR, ClassCatalog, ClassIndex
from moorage.fit.static_inside import StaticInside
from moorage.fleet import Fleet, device_properties, selected_rows
from moorage.ledger.room import unshared_of
from moorage.model.names import project_of
from moorage.model.part_reports import DeviceTaint, PropertyValue
from moorage.model.part_requests import DeviceAsk
from moorage.model.problems import Refused, not_found
from moorage.model.slots import part_and_class, resource_of_part
from moorage.parsing import CAPACITY_MAX, format_amount
from moorage.parts.class_columns import Inventory
from moorage.parts.device_parts import path_in_layout
from moorage.parts.device_slots import selected_devices
from moorage.parts.layout import ANY, Layout, part_id, path_of, provider_uuid

from .authorization import caller_of
from .clusters import claims_on, known_cluster
from .core.schemas import HolderItem, PartInventory, PartItem
from .middleware import gateway_of
from .responses import json_response, list_response, page_of

#: Built-in properties of devices that other fields tell.
_TOLD = (NAME, NODE, CLUSTER)


class _Node(NamedTuple):
    """A node with parts. `first` is the row of its own part."""

    cid: int
    name: str
    first: int
    layout: Layout


def _nodes(fleet: Fleet, cid: int, only: str) -> Iterable[_Node]:
    """Yields the nodes of a cluster that have parts; of one name if it is given."""
    rows, firsts, layouts = fleet.parts.first_rows(cid, fleet.first_row(cid))
    for row, first, layout in zip(rows.tolist(), firsts.tolist(), layouts.tolist(), strict=True):
        name = fleet.node_name(row)
        if not only or name == only:
            yield _Node(cid, name, first, fleet.parts.layouts.found[layout])


async def list_parts(request: web.Request) -> web.StreamResponse:
    fleet = gateway_of(request).view.fleet
    cluster = request.query.get("cluster", "")
    if cluster and not known_cluster(fleet, cluster):
        raise Refused(not_found(f"cluster {cluster}"))
    cids = [fleet.ids[cluster]] if cluster else fleet.parts.clusters
    selected = _selected(request, cids)
    places: dict[str, tuple[_Node, int]] = {}
    for cid in cids:
        for node in _nodes(fleet, cid, request.query.get("node", "")):
            for i, part in enumerate(node.layout.parts[1:], 1):
                if part.is_elsewhere or (selected is not None and node.first + i not in selected):
                    continue
                places[f"{fleet.names[cid]}/{part_id(node.name, part.path)}"] = node, i
    page, token = page_of(request, sorted(places))
    holders = {cid: _holders(request, fleet.names[cid]) for cid in {places[key][0].cid for key in page}}
    classes = ClassesOfParts(gateway_of(request).view.catalog)
    return list_response([_item(fleet, *places[key], holders[places[key][0].cid], classes) for key in page], token)


def _selected(request: web.Request, cids: Iterable[int]) -> set[int] | None:
    """Returns the rows of parts that the class in the query selects, looked up as each cluster sees it; None without one."""
    name = request.query.get("class", "")
    if not name:
        return None
    view = gateway_of(request).view
    fleet, rows = view.fleet, set[int]()
    known = view.catalog.stored_class(name) is not None
    for cid in cids:
        found = view.catalog.class_in(name, fleet.names[cid])
        if found is not None:
            here = fleet.parts.rows_of(cid)
            of_cluster = np.arange(here.start, here.stop)
            rows.update(of_cluster[selected_rows(fleet, of_cluster, found.selector)].tolist())
            known = True
        elif (of_device_class := _of_device_class(fleet, cid, name)) is not None:
            rows.update(of_device_class)
            known = True
    if not known:
        raise Refused(not_found(f"ResourceClass {name}"))
    return rows


def _of_device_class(fleet: Fleet, cid: int, name: str) -> set[int] | None:
    """Returns the rows of parts that a cluster's own DeviceClass selects; None if it has none of this name."""
    ask, rows, known = DeviceAsk(device_class=name), set[int](), False
    for node in _nodes(fleet, cid, ""):
        if name not in StaticInside.of(node.layout).table.classes:
            continue
        layout = fleet.own_layout(int(fleet.parts.node[node.first]))
        known, selects = True, selected_devices(StaticInside.of(layout).table, ask)
        rows.update(
            node.first + at
            for at, part in enumerate(layout.parts)
            if part.device >= 0 and selects(part.device, part.properties)
        )
    return rows if known else None


class ClassesOfParts:
    """Tells by which classes parts are selected, as their clusters see these."""

    def __init__(self, catalog: ClassCatalog) -> None:
        self._catalog = catalog
        self._classes = {(one.name, one.cluster): one for one in catalog.classes}
        self._index = ClassIndex({str(at): one.selector for at, one in enumerate(self._classes.values())})

    def of(self, cluster: str, properties: Mapping[str, PropertyValue]) -> list[str]:
        if KIND not in properties or not self._classes:
            return []
        found = self._index.selecting(properties)
        return [
            one.name
            for at, one in enumerate(self._classes.values())
            if found[at] and self._catalog.class_in(one.name, cluster) is one
        ]


async def get_part(request: web.Request) -> web.StreamResponse:
    fleet, info = gateway_of(request).view.fleet, request.match_info
    cluster, ident = f"{info['provider']}/{info['cluster']}", info["id"]
    if known_cluster(fleet, cluster):
        cid = fleet.ids[cluster]
        named, all_nodes = _nodes(fleet, cid, ident.partition("/")[0]), _nodes(fleet, cid, "")
        for node in itertools.chain(named, all_nodes):  # ids of devices do not begin with their node
            at = node.layout.at.get(path_of(node.name, ident, node.layout), 0)
            if at and not node.layout.parts[at].is_elsewhere:
                classes = ClassesOfParts(gateway_of(request).view.catalog)
                return json_response(_item(fleet, node, at, _holders(request, cluster), classes))
    raise Refused(not_found(f"part {ident} of cluster {cluster}"))


def _item(
    fleet: Fleet, node: _Node, at: int, holders: dict[str, list[HolderItem]], classes: ClassesOfParts
) -> PartItem:
    properties = device_properties(fleet, node.first + at)
    part, cluster = node.layout.parts[at], fleet.names[node.cid]
    ident = part_id(node.name, part.path)
    told = _TOLD if KIND in properties else ()  # parts that are no devices may have others of these names
    used: dict[str, str] = {}
    for name in sorted(part.inventories):
        columns = fleet.parts.classes[name]
        position = columns.position(node.cid, node.first + at)
        if position is not None:
            left = unshared_of(fleet, int(fleet.parts.node[node.first]), resource_of_part(ident, name))
            amount = int(columns.capacity[position]) - (left or 0)
            # What the node counts, it counts for all pods.
            if columns.of_node[position] and (part.unit[0] == name or part.kind == ANY):
                amount = max(amount, _used_of_node(fleet, node, name))
            used[name] = format_amount(name, amount)
    return PartItem(
        id=ident,
        cluster=cluster,
        node="" if part.shared else node.name,
        nodes=[fleet.node_name(row) for row in fleet.parts.node[fleet.parts.reaching(node.cid, ident)].tolist()],
        parent=part_id(node.name, node.layout.parts[part.parent].path) if part.parent >= 0 else "",
        kind=part.kind,
        traits=sorted(part.traits),
        aggregates=sorted(part.aggregates),
        properties={name: value for name, value in sorted(properties.items()) if name not in told},
        health="Healthy" if part.healthy or part.closed else "Unhealthy",
        inventories={name: _inventory(name, found) for name, found in sorted(part.inventories.items())},
        used=used,
        holders=holders.get(ident, []),
        provider=provider_uuid(cluster, ident),
        vendor=str(properties.get(VENDOR, "")),
        taints=_taints(node, part.path),
        classes=classes.of(cluster, properties),
    )


def _used_of_node(fleet: Fleet, node: _Node, name: str) -> int:
    """Returns what pods and claims take of a resource of the node."""
    row = int(fleet.parts.node[node.first])
    allocatable, free = fleet.allocatable(name), fleet.free(name)
    return 0 if allocatable is None or free is None else int(allocatable[row] - free[row])


def _taints(node: _Node, path: str) -> list[DeviceTaint]:
    for device in node.layout.inside.devices:
        if device.taints and path_in_layout(device) == path:
            return device.taints
    return []


def _inventory(name: str, found: Inventory) -> PartInventory:
    limited = found.max_unit < CAPACITY_MAX
    return PartInventory(
        total=format_amount(name, found.total),
        reserved=format_amount(name, found.reserved) if found.reserved else "",
        min_unit=format_amount(name, found.min_unit) if found.min_unit > 1 else "",
        max_unit=format_amount(name, found.max_unit) if limited else "",
        step_size=format_amount(name, found.step_size) if found.step_size > 1 else "",
        allocation_ratio=found.allocation_ratio if found.allocation_ratio != 1 else None,
    )


def _holders(request: web.Request, cluster: str) -> dict[str, list[HolderItem]]:
    """Returns who holds parts of a cluster, by part: the claims and the consumers of the Placement interface that the caller
    may see."""
    view, who = gateway_of(request).view, caller_of(request)
    found: dict[str, dict[str, dict[str, int]]] = {}
    for active in claims_on(view, cluster):
        if not who.sees(project_of(active.group)):
            continue
        for slot in active.claim.slots:
            for ident, amounts in slot.parts.items():
                held = found.setdefault(ident, {}).setdefault(active.claim.id, {})
                for name, amount in amounts.items():
                    held[name] = held.get(name, 0) + amount * slot.count
    items = {
        ident: [HolderItem(claim=claim, amounts=_formatted(held)) for claim, held in sorted(claims.items())]
        for ident, claims in found.items()
    }
    allocations = view.ledger.allocations
    for consumer in sorted(allocations.by_cluster.get(cluster, ())):
        held_by = allocations.consumers[consumer]
        if not who.sees(held_by.project):
            continue
        of_parts: dict[str, dict[str, int]] = {}
        for amounts in held_by.taken[cluster].values():
            for name, amount in amounts.items():
                if (part := part_and_class(name)) is not None:
                    of_parts.setdefault(part[0], {})[part[1]] = amount
        for ident, held in of_parts.items():
            items.setdefault(ident, []).append(HolderItem(consumer=consumer, amounts=_formatted(held)))
    return items


def _formatted(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: format_amount(name, amount) for name, amount in sorted(amounts.items())}
