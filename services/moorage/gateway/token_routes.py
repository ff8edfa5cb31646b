"""Access tokens over HTTP: made, listed and revoked by administrators."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from moorage.model.auth import Token
from moorage.model.names import is_name
from moorage.model.problems import Refused, Violation, invalid, not_found

from .audit import concerns
from .authorization import who_of
from .middleware import gateway_of
from .responses import answer, listed, page_of
from .tokens import TokenRequest

#: Ten years: who wants more wants "never", and says so.
_LONGEST = 10 * 366 * 86_400.0


def token_item(held: Token) -> dict[str, Any]:
    item: dict[str, Any] = {"name": held.name, "role": held.role, "projects": held.projects}
    item |= {key: text for key in ("created", "expires", "by") if (text := getattr(held, key))}
    return item


def _checked(wanted: TokenRequest) -> None:
    wrong = []
    if not is_name(wanted.name):
        wrong.append(Violation(path="name", code="BadName", message=f"{wanted.name!r} is not a name"))
    for number, project in enumerate(wanted.projects):
        if not is_name(project):
            path = f"projects[{number}]"
            wrong.append(Violation(path=path, code="BadName", message=f"{project!r} is not a project's name"))
    if wanted.role == "admin" and wanted.projects:
        message = "an administrator's token is good for all projects"
        wrong.append(Violation(path="projects", code="NotForAdmins", message=message))
    if wanted.expires_in is not None and not 0 < wanted.expires_in <= _LONGEST:
        message = f"is a number of seconds above 0, at most {_LONGEST:g}"
        wrong.append(Violation(path="expiresIn", code="BadDuration", message=message))
    if wrong:
        raise Refused(invalid(wrong))


_requests = msgspec.json.Decoder(TokenRequest).decode


async def create(request: web.Request) -> web.StreamResponse:
    wanted = _requests(await request.read())
    concerns(request, f"token {wanted.name}")
    _checked(wanted)
    made, text = await gateway_of(request).tokens.create(wanted, who_of(request).name)
    response = answer({**token_item(made), "token": text}, 201)
    response.headers["Cache-Control"] = "no-store"
    response.headers["Location"] = f"/v1/tokens/{made.name}"
    return response


async def many(request: web.Request) -> web.StreamResponse:
    tokens = gateway_of(request).tokens
    page, more = page_of(request, tokens.names)
    return listed([token_item(held) for name in page if (held := tokens.get(name)) is not None], more)


async def one(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    held = gateway_of(request).tokens.get(name)
    if held is None:
        raise Refused(not_found(f"token {name}"))
    return answer(token_item(held))


async def revoke(request: web.Request) -> web.StreamResponse:
    await gateway_of(request).tokens.revoke(request.match_info["name"])
    return web.Response(status=204)


async def whoami(request: web.Request) -> web.StreamResponse:
    who = who_of(request)
    return answer({"name": who.name, "role": who.role, "projects": list(who.projects)})
