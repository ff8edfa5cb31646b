"""HTTP handlers that read resources and collections of `/v2`."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import yaml
from aiohttp import web

from moorage.mesh import stores
from moorage.model.problems import Problem, Refused, not_found
from moorage.model.v2_resources import CLUSTER, COMPOSITE_APP, PROJECT, Path, Resource, ResourceKind, key_of
from moorage.parsing.redaction import redact

from ..authorization import caller_of
from ..middleware import gateway_of
from ..responses import encode, json_response, limit_of, start_of, token_of
from .resources import ResourceView

RESOURCES = web.AppKey("resources", ResourceView)
#: Parameters of lists that answer the one resource of that name, as EMCO's do, by the segment of the collection.
FILTERS = {"hpa-intents": "intent", "hpa-resource-consumers": "consumer", "resource-requirements": "resource"}
#: Segments of collections with one resource for each app. Clients of EMCO ask for that of an app with a slash after the path.
OF_APPS = ("profiles", "app-intents")
_stored = msgspec.json.Decoder(Resource).decode


def resources_of(request: web.Request) -> ResourceView:
    return request.app[RESOURCES]


def field(part: str) -> str:
    """Converts `{app-intent}` to the name of a route's parameter."""
    return part[1:-1].replace("-", "_")


def path_in(request: web.Request, pattern: Path) -> Path:
    info = request.match_info
    return tuple(info[field(part)] if part.startswith("{") else part for part in pattern)


async def get_resource(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.path)
    resources = resources_of(request)
    if kind.upload and "octet-stream" in request.headers.get("Accept", "") and resources.exists(path):
        return await _file(request, path)
    return _found(resources, path)


def _found(resources: ResourceView, path: Path) -> web.StreamResponse:
    body = resources.body(path)
    if body is None:
        raise Refused(not_found("/".join(path)))
    response = json_response(body)
    seq = resources.seq(path)
    if seq is not None:
        response.headers["ETag"] = f'"{seq}"'
    return response


async def _file(request: web.Request, path: Path) -> web.StreamResponse:
    """Returns an uploaded file: a chart unchanged, manifests as YAML without the values of Secrets."""
    entry = await gateway_of(request).bus.bucket(stores.RESOURCES).get(key_of(path))
    found = _stored(entry.value) if entry is not None else None
    if found is not None and found.chart:
        return web.Response(body=base64.b64decode(found.chart), content_type="application/octet-stream")
    if found is not None and found.objects:
        text = yaml.dump_all(redact(found.objects), Dumper=yaml.CSafeDumper, sort_keys=False)
        return web.Response(body=text.encode(), content_type="application/octet-stream")
    if found is not None and found.values:
        return web.Response(body=encode(found.values), content_type="application/octet-stream")
    raise Refused(not_found(f"a file of {'/'.join(path)}"))


async def list_resources(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    collection = path_in(request, kind.collection)
    resources = resources_of(request)
    parent = kind.parent(collection)
    if parent and not resources.exists(parent):
        raise Refused(not_found("/".join(parent)))
    if (parameter := FILTERS.get(kind.segment)) and (name := request.query.get(parameter)) is not None:
        return _found(resources, (*collection, name))
    if kind.segment in OF_APPS and (app := request.query.get("app", request.query.get("app-name"))) is not None:
        return _of_app(request, collection, app)
    paths = resources.members(collection)
    if kind is PROJECT:
        who = caller_of(request)
        paths = [p for p in paths if who.sees(p[-1])]
    if kind is CLUSTER:
        if label := request.query.get("label"):
            return json_response([p[-1] for p in paths if resources.body((*p, "labels", label)) is not None])
        if request.query.get("withLabels", "").lower() == "true":
            return json_response([_with_labels(resources, p) for p in paths])
    return _page(request, resources, paths)


def _of_app(request: web.Request, collection: Path, app: str) -> web.StreamResponse:
    """Returns the resource of an app; of a placement intent only its `spec`, as EMCO does."""
    resources = resources_of(request)
    for path in resources.members(collection):
        spec = (resources.body(path) or {}).get("spec", {})
        if spec.get("app") == app:
            return json_response(spec) if collection[-1] == "app-intents" else _found(resources, path)
    raise Refused(not_found(f"the app {app} in {'/'.join(collection)}"))


def _with_labels(resources: ResourceView, path: Path) -> dict[str, Any]:
    labels = [{"clusterLabel": p[-1]} for p in resources.members((*path, "labels"))]
    return {**resources.body(path), "labels": labels}


async def list_versions(request: web.Request) -> web.StreamResponse:
    """Lists all versions of one composite app."""
    info = request.match_info
    resources = resources_of(request)
    collection = ("projects", info["project"], COMPOSITE_APP.segment)
    paths = resources.members_of_app(collection, info["app"])
    if not paths:
        raise Refused(not_found("/".join((*collection, info["app"]))))
    return _page(request, resources, paths)


def _page(request: web.Request, resources: ResourceView, paths: list[Path]) -> web.StreamResponse:
    """Returns an array, as EMCO clients expect; with `limit`, one page of it and the URL of the next in the header `Link`."""
    more = ""
    if "limit" in request.query or "continue" in request.query:
        after = tuple(start_of(request).split("\0")) if request.query.get("continue") else ()
        rest = [p for p in paths if p > after]
        paths = rest[: limit_of(request)]
        if len(rest) > len(paths):
            more = token_of("\0".join(paths[-1]))
    response = json_response([body for path in paths if (body := resources.body(path)) is not None])
    if more:
        response.headers["Link"] = f'<{request.rel_url.update_query({"continue": more})}>; rel="next"'
    return response


async def get_cluster_status(request: web.Request) -> web.StreamResponse:
    path = path_in(request, CLUSTER.path)
    fleet = gateway_of(request).view.fleet
    if not resources_of(request).exists(path):
        raise Refused(not_found("/".join(path)))
    cid = fleet.ids.get(f"{path[1]}/{path[3]}")
    known = cid is not None and cid < fleet.size and bool(fleet.known[cid])
    state = fleet.state(cid) if known and cid is not None else "Registered"
    connectivity = "available" if state in ("Ready", "Cordoned") else "unavailable"
    return json_response(
        {"name": path[3], "clusterProvider": path[1], "cluster": path[3], "connectivity": connectivity, "state": state}
    )


async def get_pairs(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    """Returns key-value pairs; with `key`, only the value of that key."""
    key = request.query.get("key")
    if key is None:
        return await get_resource(request, kind)
    path = path_in(request, kind.path)
    body = resources_of(request).body(path)
    if body is None:
        raise Refused(not_found("/".join(path)))
    for pair in body.get("spec", {}).get("kv", []):
        if key in pair:
            return json_response({"value": pair[key]})
    raise Refused(not_found(f"the key {key} of {'/'.join(path)}"))


async def refuse_unsupported(request: web.Request) -> web.StreamResponse:
    what = request.match_info["unsupported"]
    if any(word in what for word in _NETWORK):
        detail = f"{what}: networks (ncm, ovn, sfc) are not supported; use the networks of the clusters"
        raise Refused(
            Problem(title="Networks are not supported", status=501, code="NetworksUnsupported", detail=detail)
        )
    detail = f"{what} is not supported"
    raise Refused(Problem(title="Not supported", status=501, code="Unsupported", detail=detail))


_NETWORK = ("network", "traffic", "sfc", "ovn", "apply", "terminate")
