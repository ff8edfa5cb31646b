"""Builds HTTP responses: JSON, problem documents (RFC 9457) for errors, and lists in pages."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from moorage.model.problems import Problem, Refused, Violation, invalid, with_defaults

from .rate_limits import BODY_LIMIT

encode = msgspec.json.Encoder().encode

#: Default and maximum number of items in a page.
PAGE, LARGEST_PAGE = 500, 5000
_UNLIMITED = 1 << 40


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=encode(value), status=status, content_type="application/json")


def problem_response(problem: Problem, **more: Any) -> web.Response:
    """Builds the response for a problem; `more` are additional members of the document."""
    body = encode({**with_defaults(problem), **more})
    response = web.Response(body=body, status=problem.status, content_type="application/problem+json")
    response["problem"] = problem
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="moorage"'
    if problem.status == 503:
        response.headers["Retry-After"] = "1"
    return response


def http_problem(error: web.HTTPException) -> Problem:
    """Converts aiohttp's own errors: unknown path, wrong method, body too large."""
    phrase = HTTPStatus(error.status).phrase
    code = {404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge"}.get(error.status, phrase.replace(" ", ""))
    detail = error.reason if error.reason != phrase else ""
    if isinstance(error, web.HTTPMethodNotAllowed):
        detail = f"{error.method} is not allowed; use {', '.join(sorted(error.allowed_methods))}"
    elif error.status == 413:
        detail = f"the body is too large: at most {BODY_LIMIT} bytes are accepted"
    return Problem(title=phrase, status=error.status, code=code, detail=detail)


def unavailable(detail: str) -> Problem:
    return Problem(title="Not available", status=503, code="Unavailable", detail=detail)


def bad_parameter(name: str, message: str) -> Refused:
    return Refused(invalid([Violation(path=f"?{name}", code="BadParameter", message=message)]))


def bool_parameter(request: web.Request, name: str, default: bool) -> bool:
    text = request.query.get(name, "").lower()
    if not text:
        return default
    if text in ("true", "1", "yes", "all"):
        return True
    if text in ("false", "0", "no"):
        return False
    raise bad_parameter(name, f"must be true or false, not {text[:50]!r}")


# --- pages -----------------------------------------------------------------------------------------------------------


def limit_of(request: web.Request, everything: int = _UNLIMITED) -> int:
    """Returns the requested limit; 0 requests everything."""
    text = request.query.get("limit", "")
    if not text:
        return PAGE
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise bad_parameter("limit", "must be a number; 0 means no limit")
    return min(int(text), LARGEST_PAGE) or everything


def start_of(request: web.Request) -> str:
    """Returns the key after which the page begins."""
    text = request.query.get("continue", "")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise bad_parameter("continue", "must be the value that the previous page returned") from None


def token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def page_of(request: web.Request, keys: Sequence[str]) -> tuple[Sequence[str], str]:
    """Returns the requested page of sorted keys, and the token of the next page ("" if there is none)."""
    limit, after = limit_of(request), start_of(request)
    begin = bisect_right(keys, after) if after else 0
    page = keys[begin : begin + limit]
    more = begin + limit < len(keys)
    return page, token_of(page[-1]) if more and page else ""


def list_response(items: Sequence[Any], token: str = "") -> web.Response:
    return json_response({"items": items, "continue": token} if token else {"items": items})
