"""Reads what ResourceClaims ask for, in the versions of `resource.k8s.io` that there are, and checks it as the API server does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.cel import MAX_LENGTH, CelError, CelUnavailable, compile_selector
from moorage.model.part_requests import AttributeRelation, DeviceAsk, DeviceToleration, PartGroup, Relation
from moorage.parsing import parse_nanos

#: Limits of Kubernetes.
MAX_DEVICES, MAX_REQUESTS, MAX_CONSTRAINTS = 32, 32, 32
MAX_ALTERNATIVES, MAX_SELECTORS, MAX_TOLERATIONS = 8, 32, 16


class _Kube(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    pass


class _Cel(_Kube, frozen=True):
    expression: str = ""


class Selector(_Kube, frozen=True):
    cel: _Cel | None = None


class Toleration(_Kube, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Capacity(_Kube, frozen=True):
    requests: dict[str, str | int | float] | None = None


class Ask(_Kube, frozen=True):
    """One request, or one of its alternatives."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[Selector] | None = None
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    capacity: Capacity | None = None


class Request(Ask, frozen=True):
    """A request of a ResourceClaim. In v1beta1 the fields of `exactly` are the request's own."""

    exactly: Ask | None = None
    first_available: list[Ask] | None = None


class Constraint(_Kube, frozen=True):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimDevices(_Kube, frozen=True):
    requests: list[Request] | None = None
    constraints: list[Constraint] | None = None
    config: list[Any] | None = None


class ClaimSpec(_Kube, frozen=True):
    """The spec of a ResourceClaim, or of the claims of a template."""

    devices: ClaimDevices = ClaimDevices()


class ClaimError(NamedTuple):
    """An error in a claim, at a path below its spec."""

    path: tuple[str | int, ...]
    message: str


class ClaimNeeds(NamedTuple):
    groups: list[PartGroup]
    relations: list[Relation]


def read_claim(spec: Mapping[str, Any]) -> ClaimSpec:
    """Decodes a spec. Raises msgspec.ValidationError if fields have wrong types."""
    return msgspec.convert(spec, ClaimSpec)


def claim_needs(name: str, spec: ClaimSpec, shared: str = "") -> ClaimNeeds:
    """Returns what a claim asks for, as groups named NAME/REQUEST and relations between them. `shared`: names a claim that pods
    have together."""
    requests = spec.devices.requests or []
    groups = [
        PartGroup(suffix=f"{name}/{request.name}", devices=tuple(_asks(request)), shared=shared) for request in requests
    ]
    relations: list[Relation] = []
    for constraint in spec.devices.constraints or ():
        attribute = constraint.match_attribute or constraint.distinct_attribute or ""
        named = constraint.requests or [request.name for request in requests]
        relations.append(
            AttributeRelation(
                groups=tuple(f"{name}/{one}" for one in named),
                attribute=attribute,
                distinct=constraint.match_attribute is None,
            )
        )
    return ClaimNeeds(groups, relations)


def _asks(request: Request) -> Iterator[DeviceAsk]:
    if request.first_available:
        for alternative in request.first_available:
            yield _ask(alternative, alternative.name)
    else:
        yield _ask(request.exactly or request, "")


def _ask(ask: Ask, name: str) -> DeviceAsk:
    capacity = (ask.capacity.requests if ask.capacity is not None else None) or {}
    return DeviceAsk(
        name=name,
        device_class=ask.device_class_name,
        selectors=tuple(s.cel.expression if s.cel is not None else "" for s in ask.selectors or ()),
        count=1 if ask.count is None else ask.count,
        all=ask.allocation_mode == "All",
        admin=bool(ask.admin_access),
        tolerations=tuple(_toleration(one) for one in ask.tolerations or ()),
        capacity={key: str(value) for key, value in sorted(capacity.items())},
    )


def _toleration(given: Toleration) -> DeviceToleration:
    return DeviceToleration(
        key=given.key,
        operator="Exists" if given.operator == "Exists" else "Equal",
        value=given.value,
        effect=given.effect,
        seconds=given.toleration_seconds,
    )


def claim_errors(spec: ClaimSpec) -> Iterator[ClaimError]:
    """Yields what the API server would refuse, and expressions that do not compile."""
    devices = spec.devices
    requests = devices.requests or []
    at: tuple[str | int, ...] = ("devices", "requests")
    if len(requests) > MAX_REQUESTS:
        yield ClaimError(at, f"a claim has at most {MAX_REQUESTS} requests")
    names: set[str] = set()
    for i, request in enumerate(requests):
        if not request.name or request.name in names:
            yield ClaimError((*at, i, "name"), "each request has a name of its own")
        names.add(request.name)
        yield from _request_errors(request, (*at, i), names)
    if len(devices.constraints or ()) > MAX_CONSTRAINTS:
        yield ClaimError(("devices", "constraints"), f"a claim has at most {MAX_CONSTRAINTS} constraints")
    for i, constraint in enumerate(devices.constraints or ()):
        where = ("devices", "constraints", i)
        if (constraint.match_attribute is None) == (constraint.distinct_attribute is None):
            yield ClaimError(where, "a constraint has matchAttribute or distinctAttribute")
        elif "/" not in (constraint.match_attribute or constraint.distinct_attribute or ""):
            yield ClaimError(where, "the attribute of a constraint is named DOMAIN/NAME")
        for n, name in enumerate(constraint.requests or ()):
            if name not in names:
                yield ClaimError((*where, "requests", n), f"there is no request {name[:80]!r}")


def _request_errors(request: Request, at: tuple[str | int, ...], names: set[str]) -> Iterator[ClaimError]:
    alternatives = request.first_available or []
    if alternatives and request.exactly is not None:
        yield ClaimError(at, "a request has exactly or firstAvailable, not both")
    if len(alternatives) > MAX_ALTERNATIVES:
        yield ClaimError((*at, "firstAvailable"), f"a request has at most {MAX_ALTERNATIVES} alternatives")
    for n, alternative in enumerate(alternatives):
        where = (*at, "firstAvailable", n)
        full = f"{request.name}/{alternative.name}"
        if not alternative.name or full in names:
            yield ClaimError((*where, "name"), "each alternative has a name of its own")
        names.add(full)
        yield from _ask_errors(alternative, where)
        if alternative.admin_access:
            yield ClaimError((*where, "adminAccess"), "alternatives have no admin access")
    if not alternatives:
        only = request.exactly or request
        where = (*at, "exactly") if request.exactly else at
        yield from _ask_errors(only, where)
        if (only.count or 1) > MAX_DEVICES:
            yield ClaimError((*where, "count"), f"a claim has at most {MAX_DEVICES} devices")


def _ask_errors(ask: Ask, at: tuple[str | int, ...]) -> Iterator[ClaimError]:
    if not ask.device_class_name:
        yield ClaimError((*at, "deviceClassName"), "a DeviceClass must be named")
    if ask.allocation_mode not in ("", "ExactCount", "All"):
        yield ClaimError((*at, "allocationMode"), "allocationMode is ExactCount or All")
    if ask.count is not None and (ask.count < 1 or ask.allocation_mode == "All"):
        yield ClaimError((*at, "count"), "count is at least 1, and not given for All")
    yield from selector_errors(ask.selectors or (), (*at, "selectors"))
    if len(ask.tolerations or ()) > MAX_TOLERATIONS:
        yield ClaimError((*at, "tolerations"), f"a request has at most {MAX_TOLERATIONS} tolerations")
    for name, value in ((ask.capacity.requests if ask.capacity else None) or {}).items():
        try:
            if parse_nanos(str(value)) < 0:
                raise ValueError("an amount is not negative")
        except ValueError as error:
            yield ClaimError((*at, "capacity", "requests", name), str(error))


def selector_errors(selectors: Sequence[Selector], at: tuple[str | int, ...]) -> Iterator[ClaimError]:
    """Yields what is wrong with the selectors of a request or a DeviceClass."""
    if len(selectors) > MAX_SELECTORS:
        yield ClaimError(at, f"there are at most {MAX_SELECTORS} selectors")
    for i, selector in enumerate(selectors[:MAX_SELECTORS]):
        where = (*at, i, "cel", "expression")
        if selector.cel is None or not selector.cel.expression:
            yield ClaimError(where, "a selector has a CEL expression")
            continue
        if len(selector.cel.expression.encode()) > MAX_LENGTH:
            yield ClaimError(where, f"an expression has at most {MAX_LENGTH} bytes")
            continue
        try:
            compile_selector(selector.cel.expression)
        except (CelError, CelUnavailable) as error:
            yield ClaimError(where, str(error))
