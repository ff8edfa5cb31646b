"""Refusals as RFC 9457 problems, with a stable code and all violations at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .base import Model, Value

#: An error of msgspec: what is wrong, and where. For a wrong key the path is that of its map.
_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)
_CODES = {"contains unknown": ("UnknownField", "unknown field"), "missing required": ("Required", "is required")}
#: Codes of unreadable messages. They are kept for an operator, since they may show a fault of the sender.
UNREADABLE = ("Undecodable", "TooDeep", "TooLarge", "Empty", "SeveralDocuments")
#: Fields that every message may have.
ENVELOPE = ("id", "cause", "traceparent")


class Violation(Value, kw_only=True, frozen=True):
    """One error in a document, with its path (`spec.apps[0].consumers[1].needs[0].requests`)."""

    path: str
    code: str
    message: str


class Problem(Model, kw_only=True):
    title: str
    status: int
    code: str
    type: str = "about:blank"
    detail: str = ""
    errors: list[Violation] = []


def with_defaults(problem: Problem) -> dict[str, Any]:
    """Returns all fields of a problem, with defaults, for readers that do not know them."""
    return {
        "type": problem.type,
        "title": problem.title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "errors": problem.errors,
    }


class Refused(Exception):
    """Carries a problem up to the code that answers a request with it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


class _Refusal(msgspec.Struct):
    problem: Problem | None = None


_refusal = msgspec.json.Decoder(_Refusal).decode


def problem_in(answer: bytes) -> Problem | None:
    """Returns the problem of an answer that refuses a request; None for any other answer."""
    if b'"problem"' not in answer:
        return None
    try:
        return _refusal(answer).problem
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return unreadable(error)


def invalid(errors: list[Violation], detail: str = "") -> Problem:
    first = f"{errors[0].path}: {errors[0].message}" if errors else "the document is not valid"
    return Problem(title="Not valid", status=400, code="Invalid", detail=detail or first, errors=errors)


def unreadable(error: Exception) -> Problem:
    """Returns the problem for a message that is not JSON, or not of the expected form (with the path)."""
    errors = [_violation(error)] if isinstance(error, msgspec.ValidationError) else []
    detail = str(error)[:500] or "nested too deeply"
    return Problem(title="Not readable", status=400, code="Undecodable", detail=detail, errors=errors)


def _violation(error: msgspec.ValidationError) -> Violation:
    match = _ERROR.fullmatch(str(error))
    assert match is not None
    what, path = match["what"], (match["path"] or "").removeprefix(".")
    if (field := _FIELD.fullmatch(what)) is None:
        code = "WrongType" if what.startswith("Expected") else "BadValue"
        return Violation(path=path, code=code, message=what[:500])
    code, message = _CODES[field["how"]]
    return Violation(path=f"{path}.{field['field']}" if path else field["field"], code=code, message=message)


def unknown_fields(given: Mapping[str, Any], known: Iterable[str]) -> list[Violation]:
    """Returns a violation for each field that is not known."""
    message = f"unknown field; known are {', '.join(sorted(known))}"
    return [Violation(path=f, code="UnknownField", message=message) for f in sorted({*given} - {*known})]


def not_found(what: str) -> Problem:
    return Problem(title="Not found", status=404, code="NotFound", detail=f"{what} does not exist")


def wrong_state(detail: str) -> Problem:
    return Problem(title="Wrong state", status=409, code="WrongState", detail=detail)


def still_reports(cluster: str) -> str:
    """Returns why a cluster cannot be deleted, and how to take it out of the fleet."""
    return (
        f"{cluster} still reports, so it is not lost; `moorage cluster drain {cluster}` moves its groups, then stop its agent "
        "(`moorage cluster leave`) or its simulator (remove it from the fleet file)"
    )


def conflict(detail: str) -> Problem:
    return Problem(title="Conflict", status=409, code="Conflict", detail=detail)


def changed_since(expected: int, found: int | None) -> Problem:
    """Returns the problem for an If-Match that does not hold. `expected` is 0 for `If-Match: *`."""
    now = "it does not exist" if found is None else f'it is "{found}" now'
    detail = f"If-Match needs it to exist, but {now}" if not expected else f'If-Match is "{expected}", but {now}'
    return Problem(title="Changed since", status=412, code="Changed", detail=detail)
