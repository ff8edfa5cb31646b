"""The routes of `/v2`, made from the table of resource kinds. The same paths without a prefix have no rows of their own; they
use the same handlers and permissions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from moorage.model import v2_bodies
from moorage.model.v2_resources import CLUSTER, COMPOSITE_APP, GROUP, KINDS, Path, ResourceKind

from ..middleware import Gateway
from ..route import JSON, YAML, Handler, Query, Route, add_routes
from . import commands, lifecycle, queries
from .label_sync import LabelSync
from .resources import ResourceView

MULTIPART = "multipart/form-data"
BINARY = "application/octet-stream"
_CLOUD = next(kind for kind in KINDS if kind.segment == "logical-clouds")
KindHandler = Callable[[web.Request, ResourceKind], Awaitable[web.StreamResponse]]
_PAGED = (
    Query("limit", "Maximum number of items; the header Link has the URL of the next page.", int),
    Query("continue", "Start of the page; part of the URL in the previous page's header Link."),
)
_STATUS = (
    Query("output", "summary: without apps; all: with apps and their objects; detail: with the applied objects."),
    Query("app", "Only this app (repeatable)."),
    Query("cluster", "Only this cluster, PROVIDER/NAME or PROVIDER+NAME (repeatable)."),
    Query("resource", "Only objects of this name (repeatable)."),
)
_SUMMARIES = {
    "approve": "Approve a group, so that it can be instantiated.",
    "instantiate": "Place and deploy the group as its resources describe it now.",
    "update": "Update the running group to its current resources.",
    "migrate": "Replace the group by another approved group, and terminate it as soon as the other one runs.",
    "rollback": "Return the group to an earlier revision, which is placed again.",
    "stop": "Pause new decisions for the group; running objects stay.",
    "terminate": "Remove the group from its clusters.",
}
_BODIES = {"migrate": v2_bodies.Migrate, "rollback": v2_bodies.Rollback}


def _url(path: Path) -> str:
    return "/v2/" + "/".join(f"{{{queries.field(part)}}}" if part.startswith("{") else part for part in path)


def _bind(handler: KindHandler, kind: ResourceKind) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request, kind)

    return answer


def _step(verb: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await lifecycle.act(request, verb)

    return answer


def _kind_routes(kind: ResourceKind) -> list[Route]:
    item, collection, body, what = _url(kind.path), _url(kind.collection), kind.body, kind.about
    pairs = kind.segment == "kv-pairs"
    consumes = (JSON, YAML, MULTIPART) if kind.upload else (JSON, YAML)
    produces = (JSON, BINARY) if kind.upload else (JSON,)
    query: tuple[Query, ...] = _PAGED
    if kind is CLUSTER:
        query = (
            *_PAGED,
            Query("label", "Only the names of clusters with this label."),
            Query("withLabels", "Include the labels of each cluster.", bool),
        )
    if kind.segment in queries.FILTERS:
        query = (*_PAGED, Query(queries.FILTERS[kind.segment], "Return the one resource of this name, not a list."))
    if kind.segment in queries.OF_APPS:
        query = (*_PAGED, Query("app", "Return what belongs to this app, not a list; of an app-intent its `spec`."))
    key = (Query("key", "Only the value of this key."),) if pairs else ()
    list_reply: Any = list[Any] if kind is CLUSTER else list[body]  # type: ignore[valid-type]
    item_reply: Any = dict[str, Any] if pairs else body
    bad, tag = (404, 409, 503), kind.segment
    rows = [
        Route(
            "GET",
            collection,
            _bind(queries.list_resources, kind),
            f"All: {what}",
            list_reply,
            query=query,
            refusals=(404,),
            tag=tag,
        ),
        Route(
            "POST",
            collection,
            _bind(commands.create_resource, kind),
            f"Create {what}.",
            body,
            201,
            body=body,
            consumes=consumes,
            refusals=bad,
            tag=tag,
        ),
        Route(
            "DELETE",
            collection,
            _bind(commands.delete_collection, kind),
            f"Delete all, or none if one has children: {what}.",
            status=204,
            refusals=bad,
            tag=tag,
        ),
        Route(
            "GET",
            item,
            _bind(queries.get_pairs if pairs else queries.get_resource, kind),
            f"Get {what}.",
            item_reply,
            produces=produces,
            query=key,
            refusals=(404,),
            tag=tag,
            etag="response",
        ),
        Route(
            "DELETE",
            item,
            _bind(commands.delete_resource, kind),
            f"Delete {what} without children.",
            status=204,
            refusals=bad,
            tag=tag,
            etag="request",
        ),
    ]
    if kind.replaced:
        rows.append(
            Route(
                "PUT",
                item,
                _bind(commands.replace_resource, kind),
                f"Replace {what} without children.",
                body,
                body=body,
                consumes=consumes,
                refusals=bad,
                tag=tag,
                etag="request",
            )
        )
    return rows


def table() -> tuple[Route, ...]:
    rows = [row for kind in KINDS for row in _kind_routes(kind)]
    group, cloud, cluster = _url(GROUP.path), _url(_CLOUD.path), _url(CLUSTER.path)
    refusals, tag = (404, 409, 503), "life cycle"
    any_object = dict[str, Any]
    versions = _url(COMPOSITE_APP.collection) + "/{app}"
    rows.append(
        Route(
            "GET",
            versions,
            queries.list_versions,
            "List all versions of a composite app.",
            list[v2_bodies.CompositeApp],
        )._replace(query=_PAGED, refusals=(404,), tag=COMPOSITE_APP.segment)
    )
    rows += [
        Route(
            "POST", f"{group}/{verb}", _step(verb), _SUMMARIES[verb], any_object, 202, body=_BODIES.get(verb)
        )._replace(refusals=refusals, tag=tag)
        for verb in lifecycle.VERBS
    ]
    rows += [
        Route("GET", group + "/status", lifecycle.get_status, "Get the status of a group.", any_object)._replace(
            query=_STATUS, refusals=(404, 503), tag=tag
        ),
        Route(
            "POST", group + "/status", lifecycle.watch_status, "Get the URLs to watch a group.", any_object, 202
        )._replace(refusals=(404,), tag=tag),
        Route(
            "GET", cloud + "/status", lifecycle.get_cloud_status, "Get the status of a logical cloud.", any_object
        )._replace(refusals=(404,), tag=_CLOUD.segment),
        Route(
            "GET", cluster + "/status", queries.get_cluster_status, "Get the status of a cluster.", any_object
        )._replace(refusals=(404,), tag=CLUSTER.segment),
    ]
    for verb in (*lifecycle.CLOUD_VERBS, "status"):
        rows.append(
            Route(
                "POST",
                f"{cloud}/{verb}",
                lifecycle.act_on_cloud,
                "Accept the operation; logical clouds need none, because groups read them when they begin.",
                any_object,
                202,
            )._replace(refusals=(404,), tag=_CLOUD.segment)
        )
    return tuple(rows)


def _unsupported() -> list[web.RouteDef]:
    """Returns routes for EMCO paths that are not supported. They must come last, because the first match is used."""
    supported = {
        GROUP.path: ("intents", "generic-placement-intents", "hpa-intents", "status", *lifecycle.VERBS),
        CLUSTER.path: ("labels", "kv-pairs", "status"),
    }
    routes = []
    for prefix in ("/v2", ""):
        for path, segments in supported.items():
            segment = f"(?!(?:{'|'.join(segments)})(?:/|$))[^/]+"
            base = _url(path).removeprefix("/v2")
            routes.append(
                web.route("*", f"{prefix}{base}/{{unsupported:{segment}(?:/.*)?}}", queries.refuse_unsupported)
            )
        top = "(?:dtc-controllers|sds-controllers|networks|provider-networks)(?:/.*)?"
        routes.append(web.route("*", f"{prefix}/{{unsupported:{top}}}", queries.refuse_unsupported))
    return routes


def add_v2_routes(app: web.Application, gateway: Gateway) -> None:
    app[queries.RESOURCES] = ResourceView(gateway.view)
    # aiohttp tries paths one by one, and deep ones are requested most often.
    rows = sorted(table(), key=lambda row: -row.path.count("/"))
    add_routes(app, tuple(rows))
    for row in rows:
        path = row.path.removeprefix("/v2")
        if row.method == "GET":
            app.router.add_get(path, row.handler)
        else:
            app.router.add_route(row.method, path, row.handler)
        if row.method == "GET" and row.path.rpartition("/")[2] in queries.OF_APPS:
            for base in (row.path, path):
                app.router.add_get(f"{base}/", row.handler)
    app.add_routes(_unsupported())


def start(gateway: Gateway) -> None:
    """Starts background work."""
    LabelSync(gateway.view).start()
