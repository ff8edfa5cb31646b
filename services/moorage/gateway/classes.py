"""HTTP handlers for resource classes and what belongs to them: sources of devices, quotas and grants."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from moorage.bus import subjects
from moorage.classes import BUILT_IN_SOURCES
from moorage.device_algorithms import DEFAULT, algorithm_names
from moorage.model.problems import Refused, Violation, invalid, not_found
from moorage.model.resource_classes import (
    DEVICE_SOURCE,
    FLEET_KINDS,
    RESOURCE_CLASS,
    FleetKind,
    FleetObject,
    ResourceClass,
    ResourceClassSpec,
    StoredMetadata,
    fleet_object_key,
)

from .audit import add_target, request_id
from .bus_client import call
from .clusters import known_cluster
from .core.class_explanation import amounts_of, explain_class
from .core.class_schemas import (
    ClassExplained,
    ClassStatusItem,
    DeviceAlgorithmEdit,
    DeviceAlgorithmItem,
    DevicesMoved,
    DevicesMoveEdit,
    ExplainClass,
    FleetObjectItem,
    ResourceClassItem,
)
from .core.selectors import parse, selects
from .etags import etag, if_match
from .middleware import gateway_of
from .read_model import ReadModel
from .responses import bad_parameter, json_response, list_response, page_of

_PLURALS = {kind.plural: kind for kind in FLEET_KINDS.values()}


def _kind_of(request: web.Request) -> FleetKind:
    return _PLURALS[request.path.split("/")[2]]


def _item(view: ReadModel, found: FleetObject) -> ResourceClassItem | FleetObjectItem:
    if found.kind != RESOURCE_CLASS.kind:
        return FleetObjectItem(kind=found.kind, metadata=found.metadata, spec=found.spec)
    meta, status = found.metadata, view.class_status
    total = amounts_of(status.total(meta.name, meta.cluster))
    return ResourceClassItem(
        kind=found.kind,
        metadata=meta,
        spec=found.spec,
        status=ClassStatusItem(
            allocatable=total.allocatable,
            requested=total.requested,
            free=total.free,
            clusters={name: amounts_of(count) for name, count in status.by_cluster(meta.name, meta.cluster).items()},
        ),
    )


def _built_in(kind: FleetKind, view: ReadModel) -> dict[str, FleetObjectItem]:
    """Returns the sources that are there from the start and whose place no stored one takes."""
    if kind is not DEVICE_SOURCE:
        return {}
    stored = {found.metadata.name for found in view.catalog.of_kind(kind.kind)}
    return {
        fleet_object_key(kind.kind, name): FleetObjectItem(
            kind=kind.kind, metadata=StoredMetadata(name=name), spec=msgspec.to_builtins(spec), built_in=True
        )
        for name, spec in BUILT_IN_SOURCES.items()
        if name not in stored
    }


async def list_objects(request: web.Request) -> web.StreamResponse:
    view, kind = gateway_of(request).view, _kind_of(request)
    built_in = _built_in(kind, view)
    stored = {found.key: found for found in view.catalog.of_kind(kind.kind)}
    keys = sorted([*built_in, *stored], key=lambda key: key.split(".")[::-1])
    if text := request.query.get("labelSelector", "").strip():
        try:
            requirements = parse(text)
        except ValueError as error:
            raise bad_parameter("labelSelector", str(error)) from None
        keys = [key for key in keys if key in stored and selects(requirements, stored[key].metadata.labels)]
    if cluster := request.query.get("cluster", ""):
        keys = [key for key in keys if key in stored and stored[key].metadata.cluster == cluster]
    if kind is RESOURCE_CLASS:
        view.class_status.refresh()
    page, token = page_of(request, sorted(keys))
    return list_response([built_in.get(key) or _item(view, stored[key]) for key in page], token)


async def get_object(request: web.Request) -> web.StreamResponse:
    view, kind, name = gateway_of(request).view, _kind_of(request), request.match_info["name"]
    cluster = request.query.get("cluster", "")
    key = fleet_object_key(kind.kind, name, cluster)
    found = view.catalog.objects.get(key)
    if found is None and (built_in := _built_in(kind, view).get(key)) is not None:
        return json_response(built_in)
    if found is None:
        raise Refused(not_found(f"{kind.kind} {name}" + (f" of cluster {cluster}" if cluster else "")))
    if kind is RESOURCE_CLASS:
        view.class_status.refresh()
    response = json_response(_item(view, found))
    response.headers["ETag"] = etag(view.catalog.revisions[key])
    response.headers["Cache-Control"] = "no-store"
    return response


async def delete_object(request: web.Request) -> web.StreamResponse:
    gateway, kind, name = gateway_of(request), _kind_of(request), request.match_info["name"]
    cluster = request.query.get("cluster", "")
    add_target(request, f"{kind.kind} {name}")
    body: dict[str, Any] = {"kind": kind.kind, "name": name, "cluster": cluster, "cause": request_id(request)}
    if (expected := if_match(request)) is not None:
        body["ifMatch"] = expected
    await call(gateway.bus, subjects.INTENTS_DELETE, body, again={**body, "again": True})
    await gateway.view.wait_for_fleet_object(fleet_object_key(kind.kind, name, cluster))
    return web.Response(status=204)


# --- explanations ------------------------------------------------------------------------------------------------------

_body = msgspec.json.Decoder(ExplainClass).decode


async def explain(request: web.Request) -> web.StreamResponse:
    gateway, body = gateway_of(request), _body(await request.read())
    view = gateway.view
    if bool(body.name) == (body.document is not None):
        message = "give either the name of a class or the document of one"
        raise Refused(invalid([Violation(path="class", code="OneOf", message=message)]))
    if body.cluster and not known_cluster(view.fleet, body.cluster):
        raise Refused(not_found(f"cluster {body.cluster}"))
    if body.document is not None:
        document = {"kind": RESOURCE_CLASS.kind, **body.document}
        if document["kind"] != RESOURCE_CLASS.kind:
            message = f"must be {RESOURCE_CLASS.kind}"
            raise Refused(invalid([Violation(path="document.kind", code="UnknownKind", message=message)]))
        ask = {**document, "unsaved": True}
        await call(gateway.bus, subjects.INTENTS_CHECK, ask, again=ask)
        return json_response(_explained(view, document, body.cluster))
    known = view.catalog.class_in(body.name, body.cluster)
    if known is None:
        raise Refused(not_found(f"{RESOURCE_CLASS.kind} {body.name}"))
    found = view.catalog.objects[fleet_object_key(RESOURCE_CLASS.kind, known.name, known.cluster)]
    spec = msgspec.convert(found.spec, ResourceClassSpec)
    cids = _clusters(view, body.cluster or known.cluster, view.catalog.overriding(known.name))
    return json_response(explain_class(view.fleet, known.name, spec, cids, body.cluster or known.cluster))


def _explained(view: ReadModel, document: dict[str, Any], cluster: str = "") -> ClassExplained:
    """Explains a class that is not stored; its document was found valid."""
    meta = document["metadata"]
    cluster = cluster or str(meta.get("cluster") or "")
    spec = msgspec.convert(document.get("spec") or {}, ResourceClassSpec)
    cids = _clusters(view, cluster, view.catalog.overriding(str(meta["name"])))
    return explain_class(view.fleet, str(meta["name"]), spec, cids, cluster)


def unsaved_class(document: dict[str, Any]) -> FleetObject:
    """Returns a resource class of a document that was found valid, as if it were stored."""
    found = msgspec.convert({"kind": RESOURCE_CLASS.kind, **document}, ResourceClass)
    meta = found.metadata
    spec = msgspec.to_builtins(found.spec) if found.spec is not None else {}
    stored = StoredMetadata(name=meta.name, cluster=meta.cluster, annotations=meta.annotations, uid="unsaved")
    return FleetObject(kind=RESOURCE_CLASS.kind, metadata=stored, spec=spec)


def explained_document(request: web.Request, document: dict[str, Any]) -> dict[str, Any]:
    """Returns what a document that is not stored would select, if it is a resource class."""
    if document.get("kind") != RESOURCE_CLASS.kind:
        return {}
    return {"explain": _explained(gateway_of(request).view, document)}


def _clusters(view: ReadModel, cluster: str, without: frozenset[str]) -> list[int]:
    """Returns the clusters where a class is what its name means."""
    fleet = view.fleet
    if cluster:
        return [fleet.ids[cluster]] if known_cluster(fleet, cluster) else []
    return [cid for cid in np.flatnonzero(fleet.known).tolist() if fleet.names[cid] not in without]


async def get_algorithm(request: web.Request) -> web.StreamResponse:
    return json_response(_algorithm(gateway_of(request).view))


async def put_algorithm(request: web.Request) -> web.StreamResponse:
    gateway = gateway_of(request)
    edit = msgspec.json.decode(await request.read(), type=DeviceAlgorithmEdit)
    add_target(request, f"algorithm for devices {edit.algorithm}")
    body = {"algorithm": edit.algorithm, "cause": request_id(request)}
    await call(gateway.bus, subjects.DEVICES_ALGORITHM, body, again=body)
    for _ in range(100):  # wait until it is mirrored, so that the caller can read it
        if gateway.view.catalog.algorithm == edit.algorithm:
            break
        await asyncio.sleep(0.01)
    return json_response(_algorithm(gateway.view))


async def move_devices(request: web.Request) -> web.StreamResponse:
    """Ends a mass failure of devices. It is not repeated: whoever does not answer may have done it."""
    gateway = gateway_of(request)
    edit = msgspec.json.decode(await request.read(), type=DevicesMoveEdit)
    add_target(request, f"devices of {edit.cluster}")
    if not known_cluster(gateway.view.fleet, edit.cluster):
        raise Refused(not_found(f"cluster {edit.cluster}"))
    body = {"cluster": edit.cluster, "kind": edit.kind, "cause": request_id(request)}
    found = await call(gateway.bus, subjects.DEVICES_MOVE, body, timeout=10)
    return json_response(DevicesMoved(cluster=edit.cluster, kinds=found["kinds"]))


def _algorithm(view: ReadModel) -> DeviceAlgorithmItem:
    return DeviceAlgorithmItem(algorithm=view.catalog.algorithm or DEFAULT, known=algorithm_names())
