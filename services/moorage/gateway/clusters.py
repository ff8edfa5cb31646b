"""HTTP handlers that read clusters and nodes: labels, state, allocatable resources, and those free after claims."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from aiohttp import web

from moorage.bus import time_text
from moorage.fit.inner_rows import nodes_by_layout
from moorage.fleet import Fleet
from moorage.ledger import ActiveClaim
from moorage.model.names import project_of
from moorage.model.part_reports import ZoneReport
from moorage.model.problems import Refused, not_found
from moorage.model.shapes import EXCLUSIVE
from moorage.parsing import format_amount
from moorage.parts.inside import zone_id

from .authorization import caller_of
from .groups import select_by_labels
from .middleware import gateway_of
from .read_model import ReadModel
from .responses import json_response, list_response, page_of


class _Amounts(NamedTuple):
    allocatable: dict[str, str]
    free: dict[str, str]
    used: dict[str, str]


def _amounts(fleet: Fleet, cid: int) -> _Amounts:
    """Sums allocatable and used amounts over all nodes, and free over usable nodes (0 on a cordoned or stale cluster).
    Resources that no node has are left out."""
    found = _Amounts({}, {}, {})
    rows = fleet.rows_of(cid)
    for name, column in fleet.stored.items():
        if total := int(column.allocatable[rows].sum()):
            free_by_cluster, _ = fleet.sums(name)
            found.allocatable[name] = format_amount(name, total)
            found.free[name] = format_amount(name, max(0, int(free_by_cluster[cid])))
            found.used[name] = format_amount(name, total - int(column.free[rows].sum()))
    return found


def _times(fleet: Fleet, cid: int) -> dict[str, str]:
    """Returns when a cluster joined, if that is known, and when it reported last."""
    times = {"created": fleet.joined_at(cid), "lastReport": fleet.as_of(cid)}
    return {name: time_text(seconds) for name, seconds in times.items() if seconds > 0}


def cluster_item(fleet: Fleet, cid: int) -> dict[str, Any]:
    return {
        "id": fleet.names[cid],
        "state": fleet.state(cid),
        "seq": fleet.seq(cid),
        "labels": fleet.cluster_labels(cid),
        "nodes": len(fleet.rows_of(cid)),
        **_amounts(fleet, cid)._asdict(),
        **_times(fleet, cid),
    }


def _known(fleet: Fleet) -> list[str]:
    return sorted(name for name in fleet.ids if known_cluster(fleet, name))


def known_cluster(fleet: Fleet, cluster: str) -> bool:
    cid = fleet.ids.get(cluster)
    return cid is not None and cid < fleet.size and bool(fleet.known[cid])


def _cluster(request: web.Request, provider: str, name: str) -> int:
    fleet = gateway_of(request).view.fleet
    if not known_cluster(fleet, f"{provider}/{name}"):
        raise Refused(not_found(f"cluster {provider}/{name}"))
    return fleet.ids[f"{provider}/{name}"]


def cluster_of(request: web.Request) -> str:
    """Returns the cluster in the path, which must be in the fleet or have active claims."""
    provider, name = request.match_info["provider"], request.match_info["name"]
    if not claims_on(gateway_of(request).view, f"{provider}/{name}"):
        _cluster(request, provider, name)
    return f"{provider}/{name}"


def claims_on(view: ReadModel, cluster: str) -> list[ActiveClaim]:
    """Returns the active claims on a cluster."""
    return [view.ledger.claims[ident] for ident in sorted(view.ledger.by_cluster.get(cluster, ()))]


async def list_clusters(request: web.Request) -> web.StreamResponse:
    fleet = gateway_of(request).view.fleet
    keys = select_by_labels(request, _known(fleet), lambda name: fleet.cluster_labels(fleet.ids[name]))
    page, token = page_of(request, keys)
    if request.query.get("view") == "name":
        return list_response([{"id": name, "state": fleet.state(fleet.ids[name])} for name in page], token)
    return list_response([cluster_item(fleet, fleet.ids[name]) for name in page], token)


async def get_cluster(request: web.Request) -> web.StreamResponse:
    """Returns a cluster with its active claims."""
    cid = _cluster(request, request.match_info["provider"], request.match_info["name"])
    view = gateway_of(request).view
    who = caller_of(request)
    item = cluster_item(view.fleet, cid)
    item["claims"] = [
        {
            "id": active.claim.id,
            "group": active.group,
            "app": active.claim.app,
            "object": active.claim.object,
            "withdrawn": active.withdrawn,
        }
        for active in claims_on(view, item["id"])
        if who.sees(project_of(active.group))
    ]
    return json_response(item)


def node_item(fleet: Fleet, cid: int, name: str, row: int) -> dict[str, Any]:
    allocatable: dict[str, str] = {}
    free: dict[str, str] = {}
    used: dict[str, str] = {}
    for resource, column in fleet.stored.items():
        if total := int(column.allocatable[row]):
            allocatable[resource] = format_amount(resource, total)
            free[resource] = format_amount(resource, max(0, int(column.free[row])))
            used[resource] = format_amount(resource, total - int(column.free[row]))
    labels = dict(fleet.label_sets[int(fleet.labelset[row])])
    if fleet.host_label[row]:
        labels["kubernetes.io/hostname"] = name
    return {
        "name": name,
        "cluster": fleet.names[cid],
        "usable": bool(fleet.usable[row]),
        "labels": labels,
        "taints": list(fleet.taint_sets[int(fleet.taintset[row])]),
        "allocatable": allocatable,
        "free": free,
        **({"hostPorts": list(ports)} if (ports := fleet.port_sets[int(fleet.portset[row])]) else {}),
        "used": used,
        **_times(fleet, cid),  # a node that does not report its age is as old as its cluster here
        **{key: value for key, value in fleet.extras(row).items() if value},
        **_inside(fleet, row),
    }


def _inside(fleet: Fleet, row: int) -> dict[str, Any]:
    """Returns the zones, providers and topology manager that a node reports, those that there are."""
    inside = fleet.inside(row)[1].inside
    zones = _with_exclusive(fleet, row, inside.zones)
    found = {"zones": zones, "providers": inside.providers, "topologyManager": inside.topology_manager}
    return {name: value for name, value in found.items() if value}


def _with_exclusive(fleet: Fleet, row: int, zones: list[ZoneReport]) -> list[ZoneReport]:
    """Returns the zones with the CPUs that pods could have for themselves, without those that are claimed."""
    if not any(EXCLUSIVE in zone.inventories for zone in zones):
        return zones
    ((layout, _, free),) = nodes_by_layout(fleet, np.array([row], np.intp))
    entries = [layout.entry_at.get((f"/{zone_id(zone.id)}", EXCLUSIVE)) for zone in zones]
    return [
        zone if entry is None else msgspec.structs.replace(zone, exclusive_free=max(0, int(free[0, entry])))
        for zone, entry in zip(zones, entries, strict=True)
    ]


async def list_nodes(request: web.Request) -> web.StreamResponse:
    fleet = gateway_of(request).view.fleet
    if text := request.query.get("cluster"):
        provider, _, name = text.partition("/")
        names = [fleet.names[_cluster(request, provider, name)]]
    else:
        names = _known(fleet)
    rows: dict[str, tuple[int, str, int]] = {}
    for cluster_name in names:
        cid = fleet.ids[cluster_name]
        for node_name, row in fleet.places(cid).items():
            rows[f"{cluster_name}/{node_name}"] = (cid, node_name, row)

    def labels(key: str) -> dict[str, str]:
        _, name, row = rows[key]
        found = fleet.label_sets[int(fleet.labelset[row])]
        return {**found, "kubernetes.io/hostname": name} if fleet.host_label[row] else found

    page, token = page_of(request, select_by_labels(request, sorted(rows), labels))
    return list_response([node_item(fleet, *rows[key]) for key in page], token)


async def get_node(request: web.Request) -> web.StreamResponse:
    info = request.match_info
    fleet = gateway_of(request).view.fleet
    cid = _cluster(request, info["provider"], info["cluster"])
    row = fleet.row_of(cid, info["name"])
    if row is None:
        raise Refused(not_found(f"node {info['name']} of cluster {info['provider']}/{info['cluster']}"))
    return json_response(node_item(fleet, cid, info["name"], row))
