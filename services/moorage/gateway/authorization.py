"""Decides by role and project what a caller may do."""

from __future__ import annotations

from aiohttp import web

from moorage.model.auth import Caller, Role
from moorage.model.names import untoken
from moorage.model.problems import Problem, Refused

from .route import path_of, role_for, route_of

#: The caller with the token of `endpoint.json`.
ADMINISTRATOR = Caller(name="administrator", role="admin")

_WHO = "who"


def caller_of(request: web.Request) -> Caller:
    who: Caller = request[_WHO]
    return who


def set_caller(request: web.Request, who: Caller) -> None:
    request[_WHO] = who


def forbidden(detail: str) -> Refused:
    return Refused(Problem(title="Not allowed", status=403, code="Forbidden", detail=detail))


def require(who: Caller, role: Role, project: str = "") -> None:
    """Raises Refused unless the caller has the role and, if one is given, access to the project."""
    if not who.may(role):
        raise forbidden(f"{who.name} has the role {who.role}; this needs the role {role}")
    if project and not who.sees(project):
        raise forbidden(f"the token {who.name} is valid for {', '.join(who.projects)}, but not for project {project}")


def check_route(request: web.Request, who: Caller) -> None:
    """Checks the role that the route needs, by its row in the table or by the general rule, and the project in the path."""
    if request.match_info.http_exception is not None:  # an unknown path or method gets its own error
        return
    route = route_of(request)
    role = route.needed if route is not None else role_for(request.method, path_of(request))
    require(who, role, request.match_info.get("project", ""))


def may_see_event(who: Caller, subject: str) -> bool:
    """Returns whether a caller may see an event: those of its projects and of the fleet; those of the Placement interface if it
    may use that; audit events need an administrator."""
    tokens = subject.split(".")
    if len(tokens) < 5:
        return who.may("admin")
    if tokens[2] in ("intents", "decisions"):
        return who.sees(untoken(tokens[4]))
    if tokens[2] == "placement":
        return who.may("admin") or (who.may("editor") and not who.projects)
    return tokens[2] in ("fleet", "classes") or who.may("admin")
