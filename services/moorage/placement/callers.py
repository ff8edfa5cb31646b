"""Tells who calls: by an access token of the mesh, or by whatever the caller says where nothing is checked."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from aiohttp import web

from moorage.web import TokenReader, token_of

from .core.errors import Refused
from .core.policy import Caller

CallerOf = Callable[[web.Request], Caller]
_ALL = frozenset({"admin", "service", "member", "reader"})


def project_of(request: web.Request) -> str:
    """Returns the project that a request asks about. Given several times, the last one counts, as it does for operations."""
    return request.query.getall("project_id", [""])[-1]


def by_token(tokens: TokenReader, administrator: str) -> CallerOf:
    """Callers present an access token as `X-Auth-Token` or as a bearer token."""

    def caller_of(request: web.Request) -> Caller:
        given = token_of(request)
        if administrator and hmac.compare_digest(given.encode(), administrator.encode()):
            return Caller("administrator", "", _ALL)
        found = tokens.authenticate(given)
        if found is None:
            raise Refused(401)
        who = found[1]
        roles = {"reader"}
        if who.role == "admin":
            roles |= {"admin", "service"}
        elif who.role == "editor" and not who.projects:
            roles |= {"service"}
        asked = project_of(request)
        project = asked if who.sees(asked) else ""
        return Caller(who.name, project, frozenset(roles))

    return caller_of


def unchecked(request: web.Request) -> Caller:
    """Believes the headers, as the service does in development (`noauth2`)."""
    given = request.headers.get("x-auth-token")
    if given is None:
        raise Refused(401)
    user, _, project = given.partition(":")
    named = request.headers.get("x-roles")
    roles = named.split(",") if named is not None else ["admin"] if user == "admin" else []
    return Caller(
        user,
        request.headers.get("x-project-id") or project or user,
        frozenset(role.strip().lower() for role in roles),
        bool(request.headers.get("openstack-system-scope")),
    )
