"""Publishes an audit event for every change that is requested, also for refused ones: caller, path and outcome. The content of
documents is left out, because not everybody may see it."""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web

from moorage.bus import new_id
from moorage.model.auth import Audit, Caller
from moorage.model.problems import Problem

from .middleware import gateway_of
from .route import Handler

_NOTES, _ID = "audit", "id"
#: Targets named in one event; more are left out.
_MAX_TARGETS = 50


def request_id(request: web.Request) -> str:
    """Returns the id of the request's audit event, which is also the cause of everything that the request sets off."""
    ident: str = request[_ID]
    return ident


def add_target(request: web.Request, target: str) -> None:
    """Adds to the audit event a document or other object that the body names."""
    notes: dict[str, Any] = request[_NOTES]
    if len(notes["what"]) < _MAX_TARGETS:
        notes["what"].append(target[:300])


def mark_dry_run(request: web.Request) -> None:
    """Marks a request that changes nothing, so that it is not audited."""
    request[_NOTES]["dry"] = True


@web.middleware
async def audit_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
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
    gateway_of(request).audit.add(line, request[_ID])
    return response
