"""Serves the OpenAPI document, a page to read and try it, and the page at `/`. They load nothing from other hosts."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from aiohttp import web

from moorage.telemetry import version_of_moorage

from .core.openapi import document
from .responses import encode, json_response
from .route import TABLE

_CACHE = web.AppKey("openapi", dict[str, bytes])


def prepare(app: web.Application) -> None:
    app[_CACHE] = {}


async def get_openapi(request: web.Request) -> web.StreamResponse:
    cache = request.app[_CACHE]
    if not cache:  # made on first request, because most gateways never get one
        body = encode(document(request.app[TABLE].values(), version_of_moorage()))
        cache["body"] = body
        cache["etag"] = b'"' + hashlib.blake2b(body, digest_size=12).hexdigest().encode() + b'"'
    headers = {"ETag": cache["etag"].decode(), "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=cache["body"], content_type="application/json", headers=headers)


async def get_version(request: web.Request) -> web.StreamResponse:
    return json_response({"version": version_of_moorage()})


async def get_docs(request: web.Request) -> web.StreamResponse:
    return _page("docs.html")


async def get_start(request: web.Request) -> web.StreamResponse:
    return _page("start.html")


def _page(name: str) -> web.Response:
    page, policy = _content(name)
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)


@cache
def _content(name: str) -> tuple[bytes, str]:
    """Returns a page and a content security policy that allows only its own script and style, and requests to this
    gateway."""
    text = (files("moorage.gateway") / name).read_text(encoding="utf-8").replace("VERSION", version_of_moorage())
    script, style = (_content_hash(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _content_hash(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    if found is None:
        return "'none'"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
