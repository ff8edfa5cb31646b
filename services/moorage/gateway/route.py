"""Route: a row of the route table with path, handler, required role and body types. The application, the permission checks
and the OpenAPI document are all made from these rows, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from aiohttp import web

from moorage.model.auth import Role

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"
YAML = "application/yaml"
TEXT = "text/plain"
SSE = "text/event-stream"


class Query(NamedTuple):
    """A query parameter."""

    name: str
    description: str
    type: Any = str
    example: Any = None


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    summary: str
    reply: Any = None  # type of the response body; None for no body
    status: int = 200
    also: tuple[int, ...] = ()  # other statuses of success
    body: Any = None  # type of the request body
    consumes: tuple[str, ...] = (JSON,)  # media types of the request body
    produces: tuple[str, ...] = (JSON,)  # media types of the response body
    query: tuple[Query, ...] = ()
    refusals: tuple[int, ...] = ()  # in addition to those that follow from the other fields
    role: Role | Literal["", "nobody"] = ""  # "": see `needed`; "nobody": needs no token
    role_detail: str = ""  # what needs another role
    tag: str = ""
    etag: Literal["", "response", "request"] = ""  # the response has an ETag; the request may have If-Match

    @property
    def open(self) -> bool:
        return self.role == "nobody"

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def needed(self) -> Role:
        """Returns the required role. By default, viewers read, editors change projects, and administrators change
        everything else."""
        return self.role if self.role and self.role != "nobody" else role_for(self.method, self.path)


def role_for(method: str, path: str) -> Role:
    if method in ("GET", "HEAD"):
        return "viewer"
    return "editor" if "{project}" in path else "admin"


#: The paths whose requests go to the placement worker, which checks the caller itself.
PASSED_ON = ("/placement", "/placement/{path:.*}")
_PASSED_ON = frozenset(path.replace(":.*", "") for path in PASSED_ON)  # as `path_of` returns them

#: Routes by method and path, spelled as aiohttp does.
Table = dict[tuple[str, str], Route]
TABLE = web.AppKey("table", Table)


def add_routes(app: web.Application, routes: tuple[Route, ...]) -> None:
    table = app.get(TABLE)
    if table is None:
        table = app[TABLE] = {}
    for route in routes:
        # add_get also adds HEAD, as HTTP requires.
        if route.method == "GET":
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
        table[route.method, route.path] = route


def path_of(request: web.Request) -> str:
    """Returns the path pattern of the matched route, "" if there is none."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def is_passed_on(request: web.Request) -> bool:
    return path_of(request) in _PASSED_ON


def route_of(request: web.Request) -> Route | None:
    """Returns the row of the matched route; None for unknown paths and for routes that are not in the table."""
    method = "GET" if request.method == "HEAD" else request.method
    path = path_of(request)
    table, path = request.app[TABLE], path.rstrip("/") or path
    # Paths without a prefix are those of /v2, as the EMCO design spells them.
    return table.get((method, path)) or table.get((method, f"/v2{path}"))
