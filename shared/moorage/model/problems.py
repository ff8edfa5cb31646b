"""Refusals: RFC 9457 problems with a stable code and every violation listed at once."""

from __future__ import annotations

from .base import Model, Value


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


class Refused(Exception):
    """Carries a problem through code that cannot go on; the edge turns it into an answer, never into a log line alone."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


def invalid(errors: list[Violation], detail: str = "") -> Problem:
    first = f"{errors[0].path}: {errors[0].message}" if errors else "the document is not valid"
    return Problem(title="Not valid", status=400, code="Invalid", detail=detail or first, errors=errors)


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
