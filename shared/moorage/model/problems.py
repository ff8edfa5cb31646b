"""Refusals: RFC 9457 problems with a stable code and every violation listed at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .base import Model, Value

#: What msgspec says: what is wrong, and where. A key that is wrong stands where its map does.
_SAID = re.compile(r"(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)
_CODES = {"contains unknown": ("UnknownField", "unknown field"), "missing required": ("Required", "is required")}
#: Codes of messages that say nothing: kept for an operator, since they may be the sign of a fault elsewhere.
UNREADABLE = ("Undecodable", "TooDeep", "TooLarge", "Empty", "SeveralDocuments")
#: Fields that every message may have.
ENVELOPE = ("id", "cause", "traceparent")


class Violation(Value, kw_only=True, frozen=True):
    """One thing that is wrong, where (`spec.apps[0].consumers[1].needs[0].requests`), and what to do."""

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


def whole(problem: Problem) -> dict[str, Any]:
    """With its defaults: a reader need not know them."""
    return {
        "type": problem.type,
        "title": problem.title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "errors": problem.errors,
    }


class Refused(Exception):
    """Carries a problem through code that cannot go on; the edge turns it into an answer, never into a log line alone."""

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
    """What cannot be decoded: no JSON, or not of the form that is wanted, and then where it is not."""
    errors = [_unfit(error)] if isinstance(error, msgspec.ValidationError) else []
    detail = str(error)[:500] or "nested too deeply"
    return Problem(title="Not readable", status=400, code="Undecodable", detail=detail, errors=errors)


def _unfit(error: msgspec.ValidationError) -> Violation:
    said = _SAID.fullmatch(str(error))
    assert said is not None
    what, path = said["what"], (said["path"] or "").removeprefix(".")
    if (field := _FIELD.fullmatch(what)) is None:
        code = "WrongType" if what.startswith("Expected") else "BadValue"
        return Violation(path=path, code=code, message=what[:500])
    code, message = _CODES[field["how"]]
    return Violation(path=f"{path}.{field['field']}" if path else field["field"], code=code, message=message)


def unknown_fields(given: Mapping[str, Any], known: Iterable[str]) -> list[Violation]:
    """What a message or a body has and nobody reads."""
    message = f"unknown field; known are {', '.join(sorted(known))}"
    return [Violation(path=f, code="UnknownField", message=message) for f in sorted({*given} - {*known})]


def not_found(what: str) -> Problem:
    return Problem(title="Not found", status=404, code="NotFound", detail=f"{what} does not exist")


def wrong_state(detail: str) -> Problem:
    return Problem(title="Wrong state", status=409, code="WrongState", detail=detail)


def conflict(detail: str) -> Problem:
    return Problem(title="Conflict", status=409, code="Conflict", detail=detail)


def changed_since(expected: int, found: int | None) -> Problem:
    """What If-Match named does not stand any more, or never did; `expected` 0: anything would have done."""
    now = "there is none" if found is None else f'it is "{found}" now'
    detail = f"it was to be there, and {now}" if not expected else f'it was to be "{expected}", and {now}'
    return Problem(title="Changed since", status=412, code="Changed", detail=detail)
