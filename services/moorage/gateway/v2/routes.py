"""The routes of `/v2`, made from the table of kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from moorage.model.resources import CLUSTER, COMPOSITE_APP, GROUP, KINDS, Kind, Path

from ..serving import Gateway
from . import lifecycle, reading, writing
from .labels import Labels
from .resources import Resources

PREFIXES = ("/v2", "")
_CLOUD = next(kind for kind in KINDS if kind.segment == "logical-clouds")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KindHandler = Callable[[web.Request, Kind], Awaitable[web.StreamResponse]]


def _url(prefix: str, path: Path) -> str:
    return "/".join((prefix, *(f"{{{reading.field(part)}}}" if part.startswith("{") else part for part in path)))


def _bound(handler: KindHandler, kind: Kind) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request, kind)

    answer.__doc__ = handler.__doc__
    answer.__name__ = f"{handler.__name__}_{kind.segment}"
    return answer


def _step(verb: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await lifecycle.act(request, verb)

    answer.__doc__ = lifecycle.act.__doc__
    answer.__name__ = f"{verb}_group"
    return answer


def table() -> list[web.RouteDef]:
    routes: list[web.RouteDef] = []
    for prefix in PREFIXES:
        for kind in KINDS:
            one, many = _url(prefix, kind.path), _url(prefix, kind.collection)
            pairs = kind.segment == "kv-pairs"
            routes += [
                web.get(many, _bound(reading.members, kind)),
                web.post(many, _bound(writing.create, kind)),
                web.delete(many, _bound(writing.clear, kind)),
                web.get(one, _bound(reading.pairs if pairs else reading.one, kind)),
                web.delete(one, _bound(writing.delete, kind)),
            ]
            if kind.replaced:
                routes.append(web.put(one, _bound(writing.replace, kind)))
        group, cloud, cluster = (_url(prefix, k.path) for k in (GROUP, _CLOUD, CLUSTER))
        routes += [
            web.get(_url(prefix, COMPOSITE_APP.collection) + "/{app}", reading.versions),
            *(web.post(f"{group}/{verb}", _step(verb)) for verb in lifecycle.VERBS),
            web.get(group + "/status", lifecycle.show),
            web.post(group + "/status", lifecycle.watch),
            *(web.post(f"{cloud}/{verb}", lifecycle.cloud_act) for verb in lifecycle.CLOUD_VERBS),
            web.get(cloud + "/status", lifecycle.cloud_status),
            web.post(cloud + "/status", lifecycle.cloud_act),
            web.get(cluster + "/status", reading.cluster_status),
        ]
        # What these clients also know; last, since the first match counts.
        known = {
            GROUP.path: ("intents", "generic-placement-intents", "hpa-intents", "status", *lifecycle.VERBS),
            CLUSTER.path: ("labels", "kv-pairs", "status"),
        }
        for path, ours in known.items():
            segment = f"(?!(?:{'|'.join(ours)})(?:/|$))[^/]+"
            routes.append(web.route("*", f"{_url(prefix, path)}/{{elsewhere:{segment}(?:/.*)?}}", reading.elsewhere))
        top = "(?:dtc-controllers|sds-controllers|ca-certs|networks|provider-networks)(?:/.*)?"
        routes.append(web.route("*", f"{prefix}/{{elsewhere:{top}}}", reading.elsewhere))
    return routes


def add_to(app: web.Application, gateway: Gateway) -> None:
    app[reading.RESOURCES] = Resources(gateway.view)
    app.add_routes(table())


def start(gateway: Gateway) -> None:
    """What runs beside the requests."""
    Labels(gateway.view).start()
