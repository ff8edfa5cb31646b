"""Whether who asks may: one place for every "not allowed", by role and by project."""

from __future__ import annotations

from aiohttp import web

from moorage.model.auth import Caller, Role
from moorage.model.names import untoken
from moorage.model.problems import Problem, Refused

from .route import path_of, role_for, route_of

#: Who has the token that `endpoint.json` holds.
ADMINISTRATOR = Caller(name="administrator", role="admin")

_WHO = "who"


def who_of(request: web.Request) -> Caller:
    who: Caller = request[_WHO]
    return who


def remember(request: web.Request, who: Caller) -> None:
    request[_WHO] = who


def forbidden(detail: str) -> Refused:
    return Refused(Problem(title="Not allowed", status=403, code="Forbidden", detail=detail))


def must(who: Caller, role: Role, project: str = "") -> None:
    """`project`: the one it is about, if it is about one."""
    if not who.may(role):
        raise forbidden(f"{who.name} is {_a(who.role)}; this takes {_a(role)}")
    if project and not who.sees(project):
        raise forbidden(f"{who.name} is good for {', '.join(who.projects)}, not for project {project}")


def _a(role: str) -> str:
    return f"an {role}" if role[0] in "ae" else f"a {role}"


def check(request: web.Request, who: Caller) -> None:
    """By the route's row, or the rule where no row says it."""
    if request.match_info.http_exception is not None:  # no such path or method: that is what is said
        return
    route = route_of(request)
    role = route.needed if route is not None else role_for(request.method, path_of(request))
    must(who, role, request.match_info.get("project", ""))


def hears(who: Caller, subject: str) -> bool:
    """Whether an event may be shown: those of the projects one is good for; who changed what, to administrators."""
    tokens = subject.split(".")
    if len(tokens) < 5:
        return who.may("admin")
    if tokens[2] in ("intents", "decisions"):
        return who.sees(untoken(tokens[4]))
    return tokens[2] == "fleet" or who.may("admin")
