"""`ETag` and `If-Match`: the number under which a document stands in its bucket, so that what somebody else changed in
between is never overwritten unseen."""

from __future__ import annotations

import re

from aiohttp import web

from moorage.model.problems import Problem, Refused

_FORM = re.compile(r'"([0-9]{1,18})"', re.ASCII)


def etag(revision: int) -> str:
    return f'"{revision}"'


def bad_match(detail: str) -> Refused:
    return Refused(Problem(title="Not readable", status=400, code="BadIfMatch", detail=detail))


def expected_of(request: web.Request) -> int | None:
    """What If-Match names; 0 = anything, as long as it is there (`*`)."""
    text = request.headers.get("If-Match")
    if text is None:
        return None
    if text.strip() == "*":
        return 0
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise bad_match(f"If-Match {text[:50]!r} is not an ETag that was answered here")
    return int(match[1])
