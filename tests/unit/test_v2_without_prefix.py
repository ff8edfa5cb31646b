"""The routes of `/v2` without the prefix are the same routes: handlers, rights and descriptions."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from moorage.gateway.middleware import Gateway
from moorage.gateway.route import TABLE, Route, add_routes, route_of
from moorage.gateway.routes import V1
from moorage.gateway.v2 import queries
from moorage.gateway.v2 import routes as v2


@pytest.fixture(scope="module")
def app() -> web.Application:
    app = web.Application()
    add_routes(app, V1)
    v2.add_v2_routes(app, cast("Gateway", SimpleNamespace(view=SimpleNamespace(resources=None))))
    return app


def resolved(app: web.Application, method: str, path: str) -> tuple[object, dict[str, str], Route | None]:
    request = make_mocked_request(method, path, app=app)
    match = asyncio.run(app.router.resolve(request))
    request._match_info = match
    match.add_app(app)
    return match.handler, dict(match), route_of(request)


@pytest.mark.parametrize(("method", "path"), [(row.method, row.path) for row in v2.table()])
def test_each_route_is_the_same_without_the_prefix(app: web.Application, method: str, path: str) -> None:
    row = app[TABLE][method, path]
    named = re.sub(r"\{(\w+)\}", r"a-\1", path)
    names = {name: f"a-{name}" for name in re.findall(r"\{(\w+)\}", path)}
    assert resolved(app, method, named) == (row.handler, names, row)
    assert resolved(app, method, named.removeprefix("/v2")) == (row.handler, names, row)


@pytest.mark.parametrize("prefix", ["", "/v2"])
@pytest.mark.parametrize("segment", queries.OF_APPS)
def test_what_belongs_to_an_app_is_found_with_a_slash_after_the_path(
    app: web.Application, prefix: str, segment: str
) -> None:
    (row,) = (row for (method, path), row in app[TABLE].items() if method == "GET" and path.endswith(f"/{segment}"))
    named = re.sub(r"\{(\w+)\}", r"a-\1", row.path).removeprefix("/v2")
    handler, names, found = resolved(app, "GET", f"{prefix}{named}/?app=web")
    assert (handler, found) == (row.handler, row)
    assert names["project"] == "a-project"


@pytest.mark.parametrize(
    "path",
    [
        "/cluster-providers/p/clusters/c/networks",
        "/cluster-providers/p/clusters/c/provider-networks/x",
        "/projects/p/composite-apps/c/v1/deployment-intent-groups/d/network-chains/x/y",
        "/networks",
        "/dtc-controllers/x",
    ],
)
def test_what_is_unsupported_is_so_without_the_prefix(app: web.Application, path: str) -> None:
    handler, names, row = resolved(app, "GET", f"/v2{path}")
    assert handler is queries.refuse_unsupported and row is None
    assert resolved(app, "GET", path) == (handler, names, row)
