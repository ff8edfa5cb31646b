"""HTTP handlers that change clusters: labels, cordons, deletion, and simulated clusters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from aiohttp import web

from moorage.bus import Bus, subjects
from moorage.model.problems import Refused, still_reports, wrong_state

from .audit import request_id
from .bus_client import call
from .clusters import claims_on, cluster_of, known_cluster
from .core.schemas import ClusterEdit, Misbehaviour
from .document_bodies import read_documents
from .middleware import gateway_of
from .read_model import ReadModel
from .responses import bool_parameter, encode, json_response


async def patch_cluster(request: web.Request) -> web.StreamResponse:
    """Cordons or uncordons a cluster, or sets its labels."""
    gateway, info = gateway_of(request), request.match_info
    cluster = f"{info['provider']}/{info['name']}"
    edit = msgspec.json.decode(await request.read(), type=ClusterEdit)
    body: dict[str, Any] = {"cluster": cluster, "cause": request_id(request)}
    if edit.cordoned is not None:
        body["cordoned"] = edit.cordoned
    if edit.labels is not None:
        body["labels"] = edit.labels
    return json_response({"id": cluster, **await call(gateway.bus, subjects.CLUSTERS_SET, body, again=body)})


async def delete_cluster(request: web.Request) -> web.StreamResponse:
    """Deletes a lost cluster. With `abandonClaims` the caller asserts that nothing runs there any more: pending removals then
    count as done, and groups with claims there are placed again."""
    gateway, cluster = gateway_of(request), cluster_of(request)
    _check_lost(gateway.view, cluster)
    claims = claims_on(gateway.view, cluster)
    if claims and not bool_parameter(request, "abandonClaims", False):
        groups = sorted({active.group for active in claims})
        listed = ", ".join(groups[:5]) + (f" and {len(groups) - 5} more" if len(groups) > 5 else "")
        detail = (
            f"{cluster} has active claims of {listed}, whose pods may still be running there; if they are not, "
            f"`moorage delete cluster {cluster} --abandon-claims` (abandonClaims=true) places these groups again"
        )
        raise Refused(wrong_state(detail))
    order = {"cluster": cluster, "forget": True, "cause": request_id(request)}
    await call(gateway.bus, subjects.CLUSTERS_SET, order, again=order)
    for group in sorted({active.group for active in claims if not active.withdrawn}):
        step = {"group": group, "verb": "redecide", "cause": request_id(request)}
        with contextlib.suppress(Refused):  # a group that is stopped or terminated meanwhile needs no decision
            await call(gateway.bus, subjects.INTENTS_ACT, step, again={**step, "repeat": True})
    for _ in range(100):  # wait until the deletion is mirrored, so that the caller no longer sees the cluster
        if not known_cluster(gateway.view.fleet, cluster):
            break
        await asyncio.sleep(0.01)
    return web.Response(status=204)


def _check_lost(view: ReadModel, cluster: str) -> None:
    """Raises Refused if the cluster reports, as the inventory would, before anything else is advised."""
    fleet = view.fleet
    if view.follower.healthy and known_cluster(fleet, cluster) and fleet.state(fleet.ids[cluster]) != "Stale":
        raise Refused(wrong_state(still_reports(cluster)))


async def apply_fleet(bus: Bus, document: dict[str, Any]) -> dict[str, Any]:
    return await call(bus, subjects.SIM_APPLY, encode(document), timeout=600)


async def put_fleet(request: web.Request) -> web.StreamResponse:
    documents = await read_documents(request)
    if len(documents) != 1:
        raise Refused(wrong_state("the body must be one Fleet document"))
    return json_response(await apply_fleet(gateway_of(request).bus, documents[0]))


async def list_sim_clusters(request: web.Request) -> web.StreamResponse:
    """Returns a page of at most 10,000 clusters; `continue` in it is that of the next page."""
    after = {"continue": request.query["continue"]} if request.query.get("continue") else {}
    return json_response(await call(gateway_of(request).bus, subjects.SIM_LIST, after))


async def inject_fault(request: web.Request) -> web.StreamResponse:
    info = request.match_info
    body = msgspec.to_builtins(msgspec.json.decode(await request.read(), type=Misbehaviour))
    body["cluster"] = f"{info['provider']}/{info['name']}"
    return json_response(await call(gateway_of(request).bus, subjects.SIM_FAULT, body))
