"""HTTP handlers of access tokens: administrators create, list and revoke them."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from moorage.model.auth import Token
from moorage.model.names import is_name
from moorage.model.problems import Refused, Violation, invalid, not_found

from .audit import add_target
from .authorization import caller_of
from .middleware import gateway_of
from .responses import json_response, list_response, page_of
from .tokens import TokenRequest

#: Ten years; a token for longer should be one that does not expire.
_MAX_SECONDS = 10 * 366 * 86_400.0


def token_item(token: Token) -> dict[str, Any]:
    item: dict[str, Any] = {"name": token.name, "role": token.role, "projects": token.projects}
    item |= {key: text for key in ("created", "expires", "by") if (text := getattr(token, key))}
    return item


def _validate(spec: TokenRequest) -> None:
    errors = []
    if not is_name(spec.name):
        errors.append(Violation(path="name", code="BadName", message=f"{spec.name!r} is not a valid name"))
    for number, project in enumerate(spec.projects):
        if not is_name(project):
            path = f"projects[{number}]"
            errors.append(Violation(path=path, code="BadName", message=f"{project!r} is not a valid project name"))
    if spec.role == "admin" and spec.projects:
        message = "an administrator's token is always valid for all projects"
        errors.append(Violation(path="projects", code="NotForAdmins", message=message))
    if spec.expires_in is not None and not 0 < spec.expires_in <= _MAX_SECONDS:
        message = f"must be a number of seconds above 0, at most {_MAX_SECONDS:g}"
        errors.append(Violation(path="expiresIn", code="BadDuration", message=message))
    if errors:
        raise Refused(invalid(errors))


_decode = msgspec.json.Decoder(TokenRequest).decode


async def create_token(request: web.Request) -> web.StreamResponse:
    spec = _decode(await request.read())
    add_target(request, f"token {spec.name}")
    _validate(spec)
    token, text = await gateway_of(request).tokens.create(spec, caller_of(request).name)
    response = json_response({**token_item(token), "token": text}, 201)
    response.headers["Cache-Control"] = "no-store"
    response.headers["Location"] = f"/v1/tokens/{token.name}"
    return response


async def list_tokens(request: web.Request) -> web.StreamResponse:
    tokens = gateway_of(request).tokens
    page, more = page_of(request, tokens.names)
    return list_response([token_item(token) for name in page if (token := tokens.get(name)) is not None], more)


async def get_token(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    token = gateway_of(request).tokens.get(name)
    if token is None:
        raise Refused(not_found(f"token {name}"))
    return json_response(token_item(token))


async def revoke_token(request: web.Request) -> web.StreamResponse:
    await gateway_of(request).tokens.revoke(request.match_info["name"])
    return web.Response(status=204)


async def get_caller(request: web.Request) -> web.StreamResponse:
    who = caller_of(request)
    return json_response({"name": who.name, "role": who.role, "projects": list(who.projects)})
