"""What every request goes through: the token, the time it took, and one form for whatever goes wrong."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMessage
from prometheus_client import CollectorRegistry, Counter, Histogram

from moorage.bus import Bus, BusError, NoAnswer
from moorage.mesh import Mesh
from moorage.model.auth import Caller
from moorage.model.problems import Problem, Refused, unreadable
from moorage.telemetry import SECONDS

from .audit_writer import AuditWriter
from .authorization import ADMINISTRATOR, check, remember
from .event_stream import EventStream
from .rate_limits import Limits, RateLimiter, TooMany
from .read_model import ReadModel
from .responses import of_http, refuse, unavailable
from .route import Handler, route_of
from .tokens import TokenStore

log = structlog.get_logger("gateway")


@dataclass
class Gateway:
    """What all routes share."""

    bus: Bus
    view: ReadModel
    stream: EventStream
    rejected: EventStream
    token: str
    mesh: Mesh
    ready: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def registry(self) -> CollectorRegistry:
        return self.bus.vitals.registry

    def __post_init__(self) -> None:
        #: By method, route and status: what counts them, looked up once.
        self.figures: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self.tokens = TokenStore(self.bus)
        self.lines = AuditWriter(self.bus)
        self.rates = RateLimiter(self.limits.rate)
        self.failures = RateLimiter(self.limits.failures)
        self.requests = Counter(
            "moorage_http_requests", "HTTP requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "moorage_http_request_duration_seconds",
            "Time to answer an HTTP request",
            ["method", "route"],
            registry=self.registry,
            buckets=SECONDS,
        )


GATEWAY = web.AppKey("gateway", Gateway)


def gateway_of(request: web.Request) -> Gateway:
    return request.app[GATEWAY]


@web.middleware
async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
    gateway = gateway_of(request)
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "none"
    started = time.perf_counter()
    status = 500
    try:
        response = await handler(request)
        status = response.status
    finally:
        figures = gateway.figures
        method = request.method if request.method in hdrs.METH_ALL else "other"  # whatever somebody may think of
        key = (method, route, status)
        counts = figures.get(key)
        if counts is None:
            requests = gateway.requests.labels(method, route, str(status)).inc
            counts = figures[key] = requests, gateway.seconds.labels(method, route).observe
        counts[0]()
        if route != "/v1/events":  # a stream lasts as long as its reader likes
            counts[1](time.perf_counter() - started)
    return response


@web.middleware
async def told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal is a problem document; what was not expected is logged and counted as such."""
    try:
        return await handler(request)
    except Refused as refusal:
        response = refuse(refusal.problem)
        if isinstance(refusal, TooMany):
            response.headers["Retry-After"] = str(math.ceil(refusal.wait))
        return response
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = refuse(of_http(error))
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadHttpMessage) as error:
        return refuse(unreadable(error))
    except NoAnswer as error:
        return refuse(unavailable(f"{error}; `moorage check` tells what is missing"))
    except (TimeoutError, BusError) as error:
        return refuse(unavailable(str(error) or "the mesh did not answer in time"))
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception as error:
        log.exception("request failed", method=request.method, path=request.path)
        gateway_of(request).bus.count("request_errors")
        return refuse(
            Problem(title="Internal error", status=500, code="Internal", detail=f"{type(error).__name__}; see the log")
        )


@web.middleware
async def known(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who asks must be known before anything is told, not even which paths there are; and then allowed."""
    route = route_of(request)
    if route is None or not route.open:
        who = _authenticated(request)
        remember(request, who)
        check(request, who)
    return await handler(request)


def _authenticated(request: web.Request) -> Caller:
    gateway = gateway_of(request)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip()
    if scheme.lower() == "bearer" and given:
        if hmac.compare_digest(given.encode(), gateway.token.encode()):
            return ADMINISTRATOR
        if (found := gateway.tokens.who(given)) is not None:
            ident, who = found
            if wait := gateway.rates.take(ident, time.monotonic()):
                detail = f"more than {gateway.limits.rate:g} requests a second with the token {who.name}"
                raise TooMany(detail, wait)
            request["token"] = ident
            return who
        if wait := gateway.failures.take(request.remote or "", time.monotonic()):
            raise TooMany("too many wrong tokens from this address", wait)
    missing = "the bearer token is not known, revoked or expired" if given else "no bearer token was given"
    raise Refused(Problem(title="Not authorised", status=401, code="Unauthorized", detail=missing))
