"""Checks the spec of a resource class: what is wrong with it, and what is allowed and seldom meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moorage.model.part_requests import Operator
from moorage.model.problems import Violation
from moorage.model.reasons import Warn
from moorage.model.resource_classes import PropertyRequirement, ResourceClassSpec
from moorage.parsing import has_ambiguous_unit, parse_nanos

from .selector import ALIASES, BUILT_IN
from .typed_values import readings

OPERATORS: tuple[str, ...] = Operator.__args__  # type: ignore[attr-defined]
#: Least and most values of each operator; None: any number.
_ARITY: dict[str, tuple[int, int | None]] = {
    "In": (1, None),
    "NotIn": (1, None),
    "Exists": (0, 0),
    "DoesNotExist": (0, 0),
}
_ONE = (1, 1)
_ORDERS = ("Gt", "GtEq", "Lt", "LtEq")
_KEY = re.compile(r"[^\s\x00-\x1f\x7f]{1,317}")
_DECIMAL = re.compile(r"[+-]?[0-9.]+[kMGTPE]", re.ASCII)
MAX_TERMS, MAX_REQUIREMENTS, MAX_VALUES, MAX_VALUE = 64, 64, 256, 4096


def class_problems(spec: ResourceClassSpec | None, path: str = "spec") -> Iterator[Violation]:
    """Yields all that is wrong with a spec, each with its path."""
    terms = (spec.resource_selector if spec is not None else None) or ()
    if len(terms) > MAX_TERMS:
        yield Violation(
            path=f"{path}.resourceSelector", code="TooMany", message=f"at most {MAX_TERMS} terms are allowed"
        )
    for at, requirement in _requirements(spec, path):
        yield from _wrong(requirement, at)
    for i, term in enumerate(terms):
        if term is not None and len(term.match_expressions or ()) > MAX_REQUIREMENTS:
            where = f"{path}.resourceSelector[{i}].matchExpressions"
            yield Violation(path=where, code="TooMany", message=f"at most {MAX_REQUIREMENTS} requirements are allowed")


def _requirements(spec: ResourceClassSpec | None, path: str) -> Iterator[tuple[str, PropertyRequirement]]:
    for i, term in enumerate((spec.resource_selector if spec is not None else None) or ()):
        for j, requirement in enumerate((term.match_expressions if term is not None else None) or ()):
            yield f"{path}.resourceSelector[{i}].matchExpressions[{j}]", requirement


def _wrong(requirement: PropertyRequirement, path: str) -> Iterator[Violation]:
    operator, values = requirement.operator, requirement.values or []
    if not requirement.key:
        yield Violation(path=f"{path}.key", code="Required", message="is required")
    elif _KEY.fullmatch(requirement.key) is None:
        message = "must be the name of a property: at most 317 characters without spaces"
        yield Violation(path=f"{path}.key", code="BadValue", message=message)
    if operator not in OPERATORS:
        message = f"{operator[:40]!r} is not one of {', '.join(OPERATORS)} (case matters)"
        code = "BadOperator" if operator else "Required"
        yield Violation(path=f"{path}.operator", code=code, message=message if operator else "is required")
        return
    least, most = _ARITY.get(operator, _ONE)
    if len(values) < least or (most is not None and len(values) > most):
        wanted = "no values" if most == 0 else "exactly one value" if most == 1 else "at least one value"
        message = f"{operator} takes {wanted}, not {len(values)}"
        yield Violation(path=f"{path}.values", code="BadArity", message=message)
    if len(values) > MAX_VALUES:
        yield Violation(path=f"{path}.values", code="TooMany", message=f"at most {MAX_VALUES} values are allowed")
    for i, value in enumerate(values):
        if len(value) > MAX_VALUE:
            message = f"has {len(value)} characters; at most {MAX_VALUE} are allowed"
            yield Violation(path=f"{path}.values[{i}]", code="TooLong", message=message)


def class_warnings(spec: ResourceClassSpec | None, path: str = "spec") -> Iterator[Warn]:
    """Yields what is allowed and seldom meant."""
    if not any(True for _ in _requirements(spec, path)):
        yield Warn(code="SelectsNothing", message=f"{path}.resourceSelector has no requirements, so it selects nothing")
    for at, requirement in _requirements(spec, path):
        yield from _suspicious(requirement, at)


def _suspicious(requirement: PropertyRequirement, path: str) -> Iterator[Warn]:
    key, operator = requirement.key, requirement.operator
    known = {name.lower(): name for name in BUILT_IN}
    if key.lower() in known and key not in BUILT_IN and key not in ALIASES:
        message = f"{path}.key: {key} is no built-in property; {known[key.lower()]} is (case matters)"
        yield Warn(code="KeyCase", message=message)
    for i, value in enumerate(requirement.values or ()):
        where = f"{path}.values[{i}]"
        if operator in ("Eq", "In", "NotIn") and _DECIMAL.fullmatch(value) and "number" in readings(value):
            binary = f"{value[:-1]}{value[-1].upper()}i"
            message = f"{where}: {value} is {parse_nanos(value) // 10**9} exactly, not {binary}"
            yield Warn(code="DecimalSuffix", message=f"{message}; sizes in bytes usually have a binary suffix")
        if operator in _ORDERS and isinstance(readings(value)["version"], str) and "bandwidth" not in readings(value):
            message = f"{where}: {value[:40]!r} has no order, so nothing is selected; write a number, size or version"
            yield Warn(code="NotOrdered", message=message)
        if has_ambiguous_unit(value):
            message = f"{where}: {value} is read as bits per second; write {value[:-3]}bps for bits, {value[:-3]}B/s for bytes"
            yield Warn(code="AmbiguousUnit", message=message)
