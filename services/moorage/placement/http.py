"""Speaks HTTP for the operations: versions, callers, media types, errors, headers."""

from __future__ import annotations

import asyncio
import html
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from typing import Any

import msgspec
import structlog
from aiohttp import web

from moorage.model.auth import Audit
from moorage.web import AuditWriter, callers

from .callers import project_of
from .core import errors
from .core.call import Answer, Call, LongBody
from .core.errors import Refused
from .core.policy import Caller
from .core.routes import ROUTES, Route
from .core.schemas import CheckedBody, LargeBody
from .core.state import State
from .core.versions import HEADER, SERVICE, BadVersion, UnacceptableVersion, asked
from .metrics import CandidateMetrics
from .settings import PlacementSettings
from .steps import Operation

#: Runs an operation; the text is the id of the request, the flag says that nothing else may run meanwhile.
Commit = Callable[[Operation, str, bool], Awaitable[Answer]]

log = structlog.get_logger("placement")

_PATHS = [
    (re.compile("^" + re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path) + "$"), methods) for path, methods in ROUTES.items()
]
JSON = "application/json"
#: Bytes of a long answer that are sent at once.
_SENT_AT_ONCE = 1 << 18
HTML = "text/html"


class PlacementApi:
    """Answers requests. `commit` runs an operation and makes its change durable before the answer."""

    def __init__(
        self,
        state: State,
        commit: Commit,
        caller_of: Callable[[web.Request], Caller],
        settings: PlacementSettings,
        audit: AuditWriter | None = None,
        metrics: CandidateMetrics | None = None,
    ) -> None:
        self._state = state
        self._commit = commit
        self._caller_of = caller_of
        self._policy = settings.policy
        self._maximum = settings.maximum
        self._limit = settings.limit
        self._randomize = settings.randomize
        self._cors = settings.cors
        self._audit = audit
        self._metrics = metrics

    async def handle(self, request: web.Request) -> web.StreamResponse:
        request_id = f"req-{uuid.uuid4()}"
        origin = request.headers.get("origin", "")
        if self._cors and origin and request.method == "OPTIONS":
            return self._preflight(request, origin)
        version: int | None = None
        try:
            if request.path not in ("/", ""):
                request["caller"] = self._caller_of(request)
            version = self._version(request)
            response = await self._operate(request, version, request_id)
        except Refused as refused:
            response = self._refused(request, refused, version, request_id)
        except Exception:
            log.exception("a request failed", method=request.method, path=request.path, request=request_id)
            response = self._refused(request, Refused(500), version, request_id)
        if version is not None:
            response.headers[HEADER] = f"{SERVICE} 1.{version}"
            response.headers["vary"] = HEADER
        response.headers["x-openstack-request-id"] = request_id
        if self._cors and origin == self._cors:
            response.headers["access-control-allow-origin"] = origin
        self._record(request, response, request_id)
        return response

    def _preflight(self, request: web.Request, origin: str) -> web.Response:
        """Tells a browser whether pages of this origin may call."""
        headers = {"vary": "origin"}
        if origin == self._cors:
            headers["access-control-allow-origin"] = origin
            headers["access-control-allow-methods"] = request.headers.get("access-control-request-method", "")
            headers["access-control-allow-headers"] = request.headers.get("access-control-request-headers", "")
        return web.Response(headers={name: value for name, value in headers.items() if value})

    def _record(self, request: web.Request, response: web.Response, request_id: str) -> None:
        """Publishes an audit event for a change that was asked for."""
        if self._audit is None or request.method in ("GET", "HEAD", "OPTIONS"):
            return
        caller: Caller | None = request.get("caller")
        status = response.status
        self._audit.add(
            Audit(
                who=caller.user if caller is not None else "",
                role=",".join(sorted(caller.roles)) if caller is not None else "",
                address=callers(request)[-200:],
                method=request.method,
                path=f"/placement{request.path}"[:1000],
                status=status,
                outcome="done" if status < 400 else "refused" if status < 500 else "failed",
            ),
            request_id,
        )

    def _version(self, request: web.Request) -> int:
        try:
            return asked(request.headers.getall(HEADER, []), self._maximum)
        except BadVersion as error:
            raise Refused(400, str(error)) from None
        except UnacceptableVersion as error:
            raise Refused(406, str(error)) from None

    async def _operate(self, request: web.Request, version: int, request_id: str) -> web.Response:
        route, path = _route(request, version, self._maximum)
        try:
            body = await request.read() if request.can_read_body else b""
        except web.HTTPRequestEntityTooLarge as error:
            raise Refused(413, error.text or "") from None
        if body and "content-type" not in request.headers:
            raise Refused(400, "content-type header required when content-length > 0")
        _check_media(request, route)
        if route.rule:
            target = {"project_id": project_of(request)}
            if request["caller"].system or not self._policy.allows(route.rule, request["caller"], target):
                raise Refused(403, f"Policy does not allow {route.rule} to be performed.")
        start = random.random() if self._randomize else 0.0
        query = list(request.query.items())
        call = Call(
            self._state, version, path, query, body, time.time(), _prefix(request), limit=self._limit, start=start
        )
        began = time.perf_counter()
        try:
            answer = await self._commit(lambda: route.operation(call), request_id, route.alone)
        except LargeBody as large:
            call.body = await asyncio.to_thread(CheckedBody.of, large)
            answer = await self._commit(lambda: route.operation(call), request_id, route.alone)
        if self._metrics is not None and answer.search is not None:
            self._metrics.searched(answer.search, time.perf_counter() - began)
        if request.path in ("/", ""):
            answer.body = self._versions()
        if answer.location:
            answer.location = f"{_origin(request)}{answer.location}"
        return _response(answer, version)

    def _versions(self) -> dict[str, Any]:
        links = [{"rel": "self", "href": ""}]
        found = {
            "id": "v1.0",
            "max_version": f"1.{self._maximum}",
            "min_version": "1.0",
            "status": "CURRENT",
            "links": links,
        }
        return {"versions": [found]}

    def _refused(self, request: web.Request, refused: Refused, version: int | None, request_id: str) -> web.Response:
        error: dict[str, Any] = {
            "status": refused.status,
            "title": errors.TITLES[refused.status],
            "detail": refused.text(request.method),
            "request_id": request_id,
        }
        if version is not None and version >= 23:
            error["code"] = refused.code
        if refused.status == 406 and version is None:
            error |= {"max_version": f"1.{self._maximum}", "min_version": "1.0"}
        accepted = request.headers.get("accept", "")
        if accepted and not _accepts(accepted, JSON) and _accepts(accepted, HTML):
            return web.Response(status=refused.status, text=_page(error), content_type=HTML, headers=refused.headers)
        return web.Response(
            status=refused.status,
            body=msgspec.json.encode({"errors": [error]}),
            content_type=JSON,
            headers=refused.headers,
        )


def _origin(request: web.Request) -> str:
    """Returns the scheme and host that the client used."""
    scheme = request.headers.get("x-forwarded-proto", request.scheme)
    return f"{scheme}://{request.headers.get('x-forwarded-host', request.host)}"


def _prefix(request: web.Request) -> str:
    return request.headers.get("x-forwarded-prefix", "")


def _route(request: web.Request, version: int, newest: int) -> tuple[Route, dict[str, str]]:
    path = request.path if request.path == "/" else request.path.rstrip("/") or "/"
    for pattern, methods in _PATHS:
        match = pattern.match(path)
        if match is None:
            continue
        routes = methods.get(request.method)
        if routes is None:
            raise Refused(
                405,
                "The method specified is not allowed for this resource.",
                headers={"allow": ", ".join(methods)},
            )
        for route in routes:
            since = min(route.since, newest) if route.own else route.since
            if since <= version <= route.until:
                return route, match.groupdict()
        raise Refused(routes[0].unknown)
    raise Refused(404)


def _check_media(request: web.Request, route: Route) -> None:
    if route.has_body and request.content_type != JSON:
        given = request.headers.get("content-type", "None")
        raise Refused(415, f"The media type {given} is not supported, use {JSON}")
    accepted = request.headers.get("accept", "")
    if request.method == "GET" and accepted and not _accepts(accepted, JSON):
        raise Refused(406, f"Only {JSON} is provided")


def _page(error: dict[str, Any]) -> str:
    title = html.escape(f"{error['status']} {error['title']}")
    return f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{html.escape(error['detail'])}</p></body></html>"


def _accepts(accepted: str, media: str) -> bool:
    for item in accepted.split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        refused = any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.000") for p in parameters)
        if kind in ("*/*", media.partition("/")[0] + "/*", media) and not refused:
            return True
    return False


def _response(answer: Answer, version: int) -> web.Response:
    headers: dict[str, str] = {}
    if answer.location:
        headers["location"] = answer.location
    if version >= 15 and answer.modified is not None:
        headers["last-modified"] = formatdate(answer.modified, usegmt=True)
        headers["cache-control"] = "no-cache"
    if answer.body is None:
        return web.Response(status=answer.status, headers=headers)
    if isinstance(answer.body, LongBody):
        pieces, size = answer.body.pieces, sum(map(len, answer.body.pieces))
        if size <= _SENT_AT_ONCE:
            return web.Response(status=answer.status, body=b"".join(pieces), content_type=JSON, headers=headers)
        headers["content-length"] = str(size)
        return web.Response(status=answer.status, body=_sent_in_pieces(pieces), content_type=JSON, headers=headers)
    return web.Response(status=answer.status, body=msgspec.json.encode(answer.body), content_type=JSON, headers=headers)


async def _sent_in_pieces(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """Yields a long body in pieces that are sent one after the other, small ones together."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _SENT_AT_ONCE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
