"""The middlewares of all requests: metrics, error responses and authentication; and the state that handlers share."""

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
from moorage.web import AuditWriter, make_session

from .authorization import ADMINISTRATOR, check_route, set_caller
from .decision_records import DecisionRecords
from .event_stream import EventStream
from .rate_limits import Limits, RateLimiter, TooManyRequests
from .read_model import ReadModel
from .responses import http_problem, problem_response, unavailable
from .route import Handler, is_passed_on, route_of
from .tokens import TokenStore

log = structlog.get_logger("gateway")


@dataclass
class Gateway:
    """State shared by all handlers."""

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
        return self.bus.process_health.registry

    def __post_init__(self) -> None:
        #: Metrics of a method, route and status; looked up once, because binding labels is slow.
        self.bound_metrics: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self.tokens = TokenStore(self.bus)
        self.audit = AuditWriter(self.bus)
        self.session = make_session()
        self.records = DecisionRecords(self.bus)
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
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    gateway = gateway_of(request)
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "none"
    started = time.perf_counter()
    status = 500
    try:
        response = await handler(request)
        status = response.status
        if status >= 400:
            _log_error(request, response)
    finally:
        method = request.method if request.method in hdrs.METH_ALL else "other"  # bounds the number of label values
        key = (method, route, status)
        bound = gateway.bound_metrics.get(key)
        if bound is None:
            count = gateway.requests.labels(method, route, str(status)).inc
            bound = gateway.bound_metrics[key] = count, gateway.seconds.labels(method, route).observe
        bound[0]()
        if route != "/v1/events":  # a stream lasts until its client leaves
            bound[1](time.perf_counter() - started)
    return response


def _log_error(request: web.Request, response: web.StreamResponse) -> None:
    """Logs one line for a request that is answered with an error."""
    problem: Problem | None = response.get("problem")
    fields = {"method": request.method, "path": request.path[:1000], "status": response.status}
    if problem is not None:
        fields |= {"code": problem.code, "detail": problem.detail}
    log.info("request refused" if response.status < 500 else "request failed", **fields)


@web.middleware
async def render_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Converts exceptions to problem documents; unexpected ones are logged and counted."""
    try:
        return await handler(request)
    except Refused as refusal:
        response = problem_response(refusal.problem)
        if isinstance(refusal, TooManyRequests):
            response.headers["Retry-After"] = str(math.ceil(refusal.wait))
        return response
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = problem_response(http_problem(error))
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadHttpMessage) as error:
        return problem_response(unreadable(error))
    except NoAnswer as error:
        return problem_response(unavailable(f"{error}; run `moorage check` for details"))
    except (TimeoutError, BusError) as error:
        return problem_response(unavailable(str(error) or "the mesh did not answer in time"))
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception as error:
        log.exception("request failed", method=request.method, path=request.path)
        gateway_of(request).bus.count("request_errors")
        return problem_response(
            Problem(title="Internal error", status=500, code="Internal", detail=f"{type(error).__name__}; see the log")
        )


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Authenticates and authorizes the caller. Without a token, even unknown paths are answered with 401."""
    route = route_of(request)
    if is_passed_on(request):
        return await handler(request)
    if route is None or not route.open:
        who = _authenticated(request)
        set_caller(request, who)
        check_route(request, who)
    return await handler(request)


def _authenticated(request: web.Request) -> Caller:
    gateway = gateway_of(request)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip()
    if scheme.lower() == "bearer" and given:
        if hmac.compare_digest(given.encode(), gateway.token.encode()):
            return ADMINISTRATOR
        if (found := gateway.tokens.authenticate(given)) is not None:
            ident, who = found
            if wait := gateway.rates.take(ident, time.monotonic()):
                detail = f"the token {who.name} is limited to {gateway.limits.rate:g} requests per second"
                raise TooManyRequests(detail, wait)
            request["token"] = ident
            return who
        if wait := gateway.failures.take(request.remote or "", time.monotonic()):
            raise TooManyRequests("too many invalid tokens from this address", wait)
    detail = "the bearer token is unknown, revoked or expired" if given else "a bearer token is required"
    raise Refused(Problem(title="Not authorized", status=401, code="Unauthorized", detail=detail))
