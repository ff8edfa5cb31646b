"""Serves the Placement interface below `/placement`: passes requests on to the active placement worker, which checks the token."""

from __future__ import annotations

import hmac
import ipaddress
import time

import aiohttp
import msgspec
import yarl
from aiohttp import web

from moorage.bus import NoAnswer
from moorage.model.placement_explanations import CandidatesExplained
from moorage.model.problems import Problem, Refused
from moorage.web import Leader, forward_to_leader, placement_leader, token_of

from .audit import mark_dry_run
from .middleware import Gateway, gateway_of
from .rate_limits import TooManyRequests
from .responses import bad_parameter, json_response

PREFIX = "/placement"


class _Error(msgspec.Struct):
    detail: str = ""


class _Errors(msgspec.Struct):
    errors: list[_Error] = []


_errors = msgspec.json.Decoder(_Errors).decode
_explained = msgspec.json.Decoder(CandidatesExplained).decode


async def explain(request: web.Request) -> web.StreamResponse:
    """Asks the placement worker, in its newest version, on behalf of the caller."""
    gateway = gateway_of(request)
    leader = await _leader(request)
    _check_caller(request, leader)
    url = f"{leader.url}/allocation_candidates/explain"
    url += f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
    headers = {
        "OpenStack-API-Version": "placement latest",
        "X-Auth-Token": "admin" if leader.unchecked else token_of(request),
    }
    try:
        async with gateway.session.get(yarl.URL(url, encoded=True), headers=headers) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NoAnswer(f"the placement worker at {leader.url}: {error}") from None
    if answer.status == 200:
        return json_response(_explained(body))
    if answer.status not in (400, 403, 406):
        raise NoAnswer(f"the placement worker at {leader.url}: {answer.status}")
    detail = "; ".join(" ".join(error.detail.split()) for error in _errors(body).errors)
    if answer.status == 403:
        raise Refused(Problem(title="Not allowed", status=403, code="Forbidden", detail=detail))
    raise bad_parameter("query", detail)


async def _leader(request: web.Request) -> Leader:
    leader = await placement_leader(gateway_of(request).bus)
    if leader is None:
        raise NoAnswer("the placement worker: none has become active")
    return leader


async def pass_on(request: web.Request) -> web.StreamResponse:
    gateway = gateway_of(request)
    mark_dry_run(request)  # the worker publishes the audit event
    leader = await _leader(request)
    _check_caller(request, leader)
    if not leader.unchecked:
        _limit_rate(gateway, request)
    path = request.raw_path.removeprefix(PREFIX)
    if not path.startswith("/"):
        path = f"/{path}"
    try:
        user = _user(gateway, request) if leader.unchecked else ""
        return await forward_to_leader(gateway.bus, leader, gateway.session, request, path, PREFIX, user)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NoAnswer(f"the placement worker at {leader.url}: {error}") from None


def _check_caller(request: web.Request, leader: Leader) -> None:
    """Refuses callers from elsewhere where the worker believes every caller."""
    if leader.unchecked and not _is_loopback(request.remote):
        detail = "the placement worker does not check callers (noauth2), so only this machine may call it"
        raise Refused(Problem(title="Not allowed", status=403, code="Forbidden", detail=detail))


def _user(gateway: Gateway, request: web.Request) -> str:
    """Returns the user of a request with a bearer token of the mesh and no user, where the worker believes what callers say: its
    commands have such a token."""
    if request.headers.get("x-auth-token") or not (given := token_of(request)):
        return ""
    if hmac.compare_digest(given.encode(), gateway.token.encode()):
        return "admin"
    found = gateway.tokens.authenticate(given)
    if found is None:
        return ""
    return "admin" if found[1].role == "admin" else found[1].name


def _limit_rate(gateway: Gateway, request: web.Request) -> None:
    """Raises TooManyRequests as on other paths: by token, and by address for wrong tokens, which the worker will refuse."""
    given = token_of(request)
    if not given or hmac.compare_digest(given.encode(), gateway.token.encode()):
        return
    now = time.monotonic()
    if (found := gateway.tokens.authenticate(given)) is not None:
        if wait := gateway.rates.take(found[0], now):
            detail = f"the token {found[1].name} is limited to {gateway.limits.rate:g} requests per second"
            raise TooManyRequests(detail, wait)
    elif wait := gateway.failures.take(request.remote or "", now):
        raise TooManyRequests("too many invalid tokens from this address", wait)


def _is_loopback(address: str | None) -> bool:
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False
