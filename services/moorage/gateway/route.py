"""What a route is: beside path and handler, who may use it and what goes in and out. The application, the permissions
and the OpenAPI document are all made from these rows, so that none can say what another does not do."""

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
    """A parameter after the question mark."""

    name: str
    about: str
    type: Any = str
    example: Any = None


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    about: str
    reply: Any = None  # type of the answer's body; None: there is none
    status: int = 200
    also: tuple[int, ...] = ()  # other statuses that are no refusals
    body: Any = None  # type of the request's body
    takes: tuple[str, ...] = (JSON,)  # media types of the request's body
    gives: tuple[str, ...] = (JSON,)
    query: tuple[Query, ...] = ()
    refusals: tuple[int, ...] = ()  # beside those that follow from the rest
    role: Role | Literal["", "nobody"] = ""  # "": see `needed`; "nobody": open to those without a token
    tag: str = ""
    etag: Literal["", "gives", "takes"] = ""  # the answer has one; the request may name one in If-Match

    @property
    def open(self) -> bool:
        return self.role == "nobody"

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def needed(self) -> Role:
        """Unless said: reading is for viewers, changing a project for its editors, all else for administrators."""
        return self.role if self.role and self.role != "nobody" else role_for(self.method, self.path)


def role_for(method: str, path: str) -> Role:
    if method in ("GET", "HEAD"):
        return "viewer"
    return "editor" if "{project}" in path else "admin"


#: By method and path as aiohttp has them.
Table = dict[tuple[str, str], Route]
TABLE = web.AppKey("table", Table)


def add(app: web.Application, routes: tuple[Route, ...]) -> None:
    table = app.get(TABLE)
    if table is None:
        table = app[TABLE] = {}
    for route in routes:
        # HEAD comes with GET, as HTTP wants it.
        if route.method == "GET":
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
        table[route.method, route.path] = route


def path_of(request: web.Request) -> str:
    """As the row has it; empty where there is no such path."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def route_of(request: web.Request) -> Route | None:
    """None: no row says it (a path that is not there, or a route that was added otherwise)."""
    method = "GET" if request.method == "HEAD" else request.method
    table, path = request.app[TABLE], path_of(request)
    # What has no prefix is /v2, spelled as the design has it.
    return table.get((method, path)) or table.get((method, f"/v2{path}"))
