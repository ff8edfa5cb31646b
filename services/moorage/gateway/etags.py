"""`ETag` and `If-Match` carry a document's revision in its bucket, so that a write never silently overwrites a change made by
somebody else."""

from __future__ import annotations

import re

from aiohttp import web

from moorage.model.problems import Problem, Refused

_FORM = re.compile(r'"([0-9]{1,18})"', re.ASCII)


def etag(revision: int) -> str:
    return f'"{revision}"'


def bad_if_match(detail: str) -> Refused:
    return Refused(Problem(title="Not readable", status=400, code="BadIfMatch", detail=detail))


def if_match(request: web.Request) -> int | None:
    """Returns the revision that If-Match names, 0 for `*` (any existing one), None without the header."""
    text = request.headers.get("If-Match")
    if text is None:
        return None
    if text.strip() == "*":
        return 0
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise bad_if_match(f"If-Match {text[:50]!r} is not an ETag of this gateway")
    return int(match[1])
