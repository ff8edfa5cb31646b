"""Reads documents from request bodies."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from moorage.parsing import yaml_json

from .rate_limits import BODY_LIMIT


async def read_documents(request: web.Request) -> list[dict[str, Any]]:
    """Reads a JSON document, an array of them, or YAML with one or several."""
    raw = await request.read()
    found = yaml_json.parse_documents(raw, allow_yaml="yaml" in request.content_type, max_bytes=BODY_LIMIT)
    if len(found) == 1:
        if isinstance(found[0], list) and found[0]:
            found = found[0]
        elif len(raw) > yaml_json.MAX_BYTES:
            raise yaml_json.too_large(len(raw), yaml_json.MAX_BYTES)
    documents = [yaml_json.require_object(value) for value in found]
    for document in documents:
        document.pop("status", None)  # `get` shows it, but it cannot be written
    return documents
