"""`ETag` and `If-Match`: the number under which a document stands in its bucket, so that what somebody else changed in
between is never overwritten unseen."""

from __future__ import annotations

import re

from aiohttp import web

from moorage.bus import Bus
from moorage.model.problems import Problem, Refused, changed_since

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


async def must_match(request: web.Request, bus: Bus, bucket: str, key: str) -> None:
    """For what is done in several steps: it is looked at once, before the first."""
    expected = expected_of(request)
    if expected is None:
        return
    entry = await bus.bucket(bucket).get(key)
    if entry is None or expected not in (0, entry.revision):
        raise Refused(changed_since(expected, None if entry is None else entry.revision))
