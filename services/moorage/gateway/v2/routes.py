"""The routes of `/v2`, made from the table of kinds. The same without a prefix, as the design has them, are no rows of
their own: they do and allow the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from moorage.model import v2_bodies
from moorage.model.v2_resources import CLUSTER, COMPOSITE_APP, GROUP, KINDS, Path, ResourceKind

from ..middleware import Gateway
from ..route import JSON, YAML, Handler, Query, Route, add
from . import commands, lifecycle, queries
from .label_sync import LabelSync
from .resources import ResourceView

MULTIPART = "multipart/form-data"
BINARY = "application/octet-stream"
_CLOUD = next(kind for kind in KINDS if kind.segment == "logical-clouds")
KindHandler = Callable[[web.Request, ResourceKind], Awaitable[web.StreamResponse]]
_PARTS = (
    Query("limit", "How many at most; where the next part begins is in the header Link.", int),
    Query("continue", "Where this part begins, as the header Link of the one before has it."),
)
_STATUS = (
    Query("output", "summary, all or detail: without apps, with their objects, with these as they are applied."),
    Query("app", "Only this app; may be repeated."),
    Query("cluster", "Only this cluster, PROVIDER/NAME or PROVIDER+NAME; may be repeated."),
    Query("resource", "Only objects of this name; may be repeated."),
)
_STEPS = {
    "approve": "The group may be instantiated",
    "instantiate": "What the resources say now is decided and deployed",
    "update": "What the resources say now takes the place of what runs",
    "migrate": "Another group, approved, takes this one's place: it ends as soon as the other runs",
    "rollback": "An earlier revision again; room for it is looked for anew",
    "stop": "Nothing new is decided for the group; what runs stays",
    "terminate": "The group is taken off its clusters",
}
#: What these steps are told.
_SAID = {"migrate": v2_bodies.Migrate, "rollback": v2_bodies.Rollback}


def _url(path: Path) -> str:
    return "/v2/" + "/".join(f"{{{queries.field(part)}}}" if part.startswith("{") else part for part in path)


def _bound(handler: KindHandler, kind: ResourceKind) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request, kind)

    return answer


def _step(verb: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await lifecycle.act(request, verb)

    return answer


def _of_kind(kind: ResourceKind) -> list[Route]:
    one, many, body, what = _url(kind.path), _url(kind.collection), kind.body, kind.about
    pairs = kind.segment == "kv-pairs"
    takes = (JSON, YAML, MULTIPART) if kind.upload else (JSON, YAML)
    gives = (JSON, BINARY) if kind.upload else (JSON,)
    query: tuple[Query, ...] = _PARTS
    if kind is CLUSTER:
        query = (
            *_PARTS,
            Query("label", "Only the names of those with this label."),
            Query("withLabels", "With the labels of each.", bool),
        )
    key = (Query("key", "Only the value of this key."),) if pairs else ()
    listed: Any = list[Any] if kind is CLUSTER else list[body]  # type: ignore[valid-type]
    shown: Any = dict[str, Any] if pairs else body
    bad, tag = (404, 409, 503), kind.segment
    rows = [
        Route(
            "GET", many, _bound(queries.members, kind), f"All: {what}", listed, query=query, refusals=(404,), tag=tag
        ),
        Route(
            "POST",
            many,
            _bound(commands.create, kind),
            f"Make {what}",
            body,
            201,
            body=body,
            takes=takes,
            refusals=bad,
            tag=tag,
        ),
        Route(
            "DELETE",
            many,
            _bound(commands.clear, kind),
            f"Remove all, or none where one has children: {what}",
            status=204,
            refusals=bad,
            tag=tag,
        ),
        Route(
            "GET",
            one,
            _bound(queries.pairs if pairs else queries.one, kind),
            f"Show {what}",
            shown,
            gives=gives,
            query=key,
            refusals=(404,),
            tag=tag,
            etag="gives",
        ),
        Route(
            "DELETE",
            one,
            _bound(commands.delete, kind),
            f"Remove {what} that has no children",
            status=204,
            refusals=bad,
            tag=tag,
            etag="takes",
        ),
    ]
    if kind.replaced:
        rows.append(
            Route(
                "PUT",
                one,
                _bound(commands.replace, kind),
                f"Change {what} that has no children",
                body,
                body=body,
                takes=takes,
                refusals=bad,
                tag=tag,
                etag="takes",
            )
        )
    return rows


def table() -> tuple[Route, ...]:
    rows = [row for kind in KINDS for row in _of_kind(kind)]
    group, cloud, cluster = _url(GROUP.path), _url(_CLOUD.path), _url(CLUSTER.path)
    refusals, tag = (404, 409, 503), "life cycle"
    some = dict[str, Any]
    versions = _url(COMPOSITE_APP.collection) + "/{app}"
    rows.append(
        Route(
            "GET", versions, queries.versions, "All versions of a composite app", list[v2_bodies.CompositeApp]
        )._replace(query=_PARTS, refusals=(404,), tag=COMPOSITE_APP.segment)
    )
    rows += [
        Route("POST", f"{group}/{verb}", _step(verb), _STEPS[verb], some, 202, body=_SAID.get(verb))._replace(
            refusals=refusals, tag=tag
        )
        for verb in lifecycle.VERBS
    ]
    rows += [
        Route("GET", group + "/status", lifecycle.show, "How the group is", some)._replace(
            query=_STATUS, refusals=(404, 503), tag=tag
        ),
        Route("POST", group + "/status", lifecycle.watch, "Where to watch the group", some, 202)._replace(
            refusals=(404,), tag=tag
        ),
        Route("GET", cloud + "/status", lifecycle.cloud_status, "A logical cloud's clusters", some)._replace(
            refusals=(404,), tag=_CLOUD.segment
        ),
        Route("GET", cluster + "/status", queries.cluster_status, "Whether a cluster reports", some)._replace(
            refusals=(404,), tag=CLUSTER.segment
        ),
    ]
    for verb in (*lifecycle.CLOUD_VERBS, "status"):
        rows.append(
            Route(
                "POST", f"{cloud}/{verb}", lifecycle.cloud_act, "Done at once: nothing runs for it", some, 202
            )._replace(refusals=(404,), tag=_CLOUD.segment)
        )
    return tuple(rows)


def _elsewhere() -> list[web.RouteDef]:
    """What these clients also know; last, since the first match counts."""
    known = {
        GROUP.path: ("intents", "generic-placement-intents", "hpa-intents", "status", *lifecycle.VERBS),
        CLUSTER.path: ("labels", "kv-pairs", "status"),
    }
    routes = []
    for prefix in ("/v2", ""):
        for path, ours in known.items():
            segment = f"(?!(?:{'|'.join(ours)})(?:/|$))[^/]+"
            at = _url(path).removeprefix("/v2")
            routes.append(web.route("*", f"{prefix}{at}/{{elsewhere:{segment}(?:/.*)?}}", queries.elsewhere))
        top = "(?:dtc-controllers|sds-controllers|networks|provider-networks)(?:/.*)?"
        routes.append(web.route("*", f"{prefix}/{{elsewhere:{top}}}", queries.elsewhere))
    return routes


def add_to(app: web.Application, gateway: Gateway) -> None:
    app[queries.RESOURCES] = ResourceView(gateway.view)
    # Paths that fit are looked for one by one, and what is deep is what is asked for most.
    rows = sorted(table(), key=lambda row: -row.path.count("/"))
    add(app, tuple(rows))
    for row in rows:
        path = row.path.removeprefix("/v2")
        if row.method == "GET":
            app.router.add_get(path, row.handler)
        else:
            app.router.add_route(row.method, path, row.handler)
    app.add_routes(_elsewhere())


def start(gateway: Gateway) -> None:
    """What runs beside the requests."""
    LabelSync(gateway.view).start()
