"""The interface described by itself: the OpenAPI document and a page to read and try it, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from aiohttp import web

from .core.openapi import document
from .responses import encode
from .route import TABLE

_MADE = web.AppKey("openapi", dict[str, bytes])


def prepare(app: web.Application) -> None:
    app[_MADE] = {}


def _version() -> str:
    try:
        return version("moorage")
    except PackageNotFoundError:
        return "0"


async def openapi(request: web.Request) -> web.StreamResponse:
    made = request.app[_MADE]
    if not made:  # when it is first asked for: most gateways never are
        body = encode(document(request.app[TABLE].values(), _version()))
        made["body"] = body
        made["etag"] = b'"' + hashlib.blake2b(body, digest_size=12).hexdigest().encode() + b'"'
    headers = {"ETag": made["etag"].decode(), "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=made["body"], content_type="application/json", headers=headers)


async def docs(request: web.Request) -> web.StreamResponse:
    page, policy = _page()
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)


@cache
def _page() -> tuple[bytes, str]:
    """The page, and the policy under which only its own script and style run and only this gateway is asked."""
    text = (files("moorage.gateway") / "docs.html").read_text(encoding="utf-8")
    script, style = (_hashed(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _hashed(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert found is not None, f"the page has no {tag}"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
