"""Who asked for which change, and what became of it: an event each, also for what was refused. Never what was in it:
documents may hold what is not for everybody."""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web

from moorage.bus import new_id
from moorage.model.auth import Audit, Caller
from moorage.model.problems import Problem

from .middleware import gateway_of
from .route import Handler

_NOTES, _ID = "audit", "id"
#: Long lists of documents are cut here: an event is a line.
_MOST = 50


def id_of(request: web.Request) -> str:
    """Names the request: its audit event has this id, and what it sets off names it as its cause."""
    ident: str = request[_ID]
    return ident


def concerns(request: web.Request, what: str) -> None:
    """A document or the like that the body names."""
    what = what[:300]
    notes: dict[str, Any] = request[_NOTES]
    if len(notes["what"]) < _MOST:
        notes["what"].append(what)


def changes_nothing(request: web.Request) -> None:
    """It was only asked what would be."""
    request[_NOTES]["dry"] = True


@web.middleware
async def audited(request: web.Request, handler: Handler) -> web.StreamResponse:
    request[_ID] = new_id()
    notes: dict[str, Any] = {"what": [], "dry": False}
    request[_NOTES] = notes
    response = await handler(request)
    if request.method in ("GET", "HEAD") or notes["dry"] or request.match_info.http_exception is not None:
        return response
    who: Caller | None = request.get("who")
    status = response.status
    outcome: Literal["done", "refused", "failed"] = "done" if status < 400 else "refused" if status < 500 else "failed"
    problem: Problem | None = response.get("problem")
    line = Audit(
        who=who.name if who is not None else "",
        role=who.role if who is not None else "",
        address=request.remote or "",
        method=request.method,
        path=request.path[:1000],
        status=status,
        outcome=outcome,
        code=problem.code if problem is not None else "",
        what=notes["what"],
    )
    gateway_of(request).lines.add(line, request[_ID])
    return response
