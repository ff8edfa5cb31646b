"""POST, PUT and DELETE of resources: the intent store does it, and what it answers is seen here at once."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from aiohttp import MultipartReader, web

from moorage.bus import subjects
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.v2_resources import CLUSTER, Change, Path, ResourceKind
from moorage.parsing import yaml_json

from ..audit import id_of
from ..bus_client import call
from ..middleware import Gateway, gateway_of
from ..rate_limits import BODY_LIMIT
from ..route import JSON
from .label_sync import settled
from .queries import path_in, resources_of

_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")


async def create(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.collection)
    body, file = await body_of(request)
    gateway = gateway_of(request)
    if kind.parent(kind.path) == CLUSTER.path:
        await _adopted(request, gateway, path[:4])
    change = Change(id=id_of(request), verb="create", path=list(path), body=body, file=file)
    return await _changed(request, change, 201)


async def replace(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.path)
    body, file = await body_of(request)
    change = Change(
        id=id_of(request), verb="replace", path=list(path), body=body, file=file, if_match=_if_match(request)
    )
    return await _changed(request, change, 200)


async def delete(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.path)
    return await _removed(
        request, Change(id=id_of(request), verb="delete", path=list(path), if_match=_if_match(request))
    )


async def clear(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    """The whole collection or nothing."""
    path = path_in(request, kind.collection)
    return await _removed(request, Change(id=id_of(request), verb="clear", path=list(path)))


async def _changed(request: web.Request, change: Change, status: int) -> web.StreamResponse:
    gateway = gateway_of(request)
    reply = await call(gateway.bus, subjects.INTENTS_RESOURCE, change, timeout=10, again=_again(change))
    path: Path = tuple(reply["path"])
    seq = reply["seq"]
    body = gateway.view.put_resource(path, _encode(reply["body"]), seq)
    gateway.view.tell_resource(path)
    await _settled(gateway, path)
    if len(path) == 7 and status == 201 and path[5] == "deployment-intent-groups":
        await gateway.view.caught_up("/".join((path[1], path[3], path[4], path[6])))
    response = web.Response(body=body, status=status, content_type=JSON)
    response.headers["ETag"] = f'"{seq}"'
    if status == 201:
        own = [part.replace("/", "%2F") for part in path[len(change.path) :]]
        response.headers["Location"] = "/".join((request.rel_url.raw_path.rstrip("/"), *own))
    for warning in reply.get("warnings", []):
        response.headers.add("Warning", _warning(warning))
    return response


async def _settled(gateway: Gateway, path: Path) -> None:
    if len(path) == 6 and path[4] == "labels":
        await settled(gateway.view, path)


def _warning(warning: dict[str, Any]) -> str:
    text = f"{warning['code']}: {warning['message']}".replace("\\", "\\\\").replace('"', '\\"')
    return f'299 moorage "{"".join(c if " " <= c <= "~" else "?" for c in text)}"'


async def _removed(request: web.Request, change: Change) -> web.StreamResponse:
    gateway = gateway_of(request)
    reply = await call(gateway.bus, subjects.INTENTS_RESOURCE, change, timeout=30, again=_again(change))
    for removed in reply["removed"]:
        path = tuple(removed)
        gateway.view.resources.drop(path, reply["seq"])
        gateway.view.tell_resource(path)
        await _settled(gateway, path)
        if len(path) == 7 and path[5] == "deployment-intent-groups":
            await gateway.view.caught_up("/".join((path[1], path[3], path[4], path[6])))
    return web.Response(status=204)


async def _adopted(request: web.Request, gateway: Gateway, path: Path) -> None:
    """A cluster that the fleet has is registered when something is to be written below it."""
    resources = resources_of(request)
    for part in (path[:2], path[:4]):
        if resources.seq(part) is None and resources.exists(part):
            body = msgspec.Raw(_encode({"metadata": {"name": part[-1]}}))
            change = Change(id=id_of(request), verb="create", path=list(part[:-1]), body=body)
            try:
                reply = await call(gateway.bus, subjects.INTENTS_RESOURCE, change, timeout=10)
            except Refused as refusal:
                if refusal.problem.code != "AlreadyExists":
                    raise
            else:
                gateway.view.put_resource(part, _encode(reply["body"]), reply["seq"])


def _again(change: Change) -> Change:
    return msgspec.structs.replace(change, again=True)


def _if_match(request: web.Request) -> int | None:
    text = request.headers.get("If-Match", "").strip()
    if not text or text == "*":
        return None
    text = text.removeprefix("W/").strip('"')
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


# --- bodies ----------------------------------------------------------------------------------------------------------


async def body_of(request: web.Request) -> tuple[msgspec.Raw, str]:
    """The body as JSON, and a file beside it in base64."""
    if request.content_type.startswith("multipart/"):
        return await _parts(request)
    raw = await request.read()
    if not raw.strip():
        return _NULL, ""
    return _json(raw, "yaml" in request.content_type), ""


def _json(raw: bytes, maybe_yaml: bool) -> msgspec.Raw:
    try:
        yaml_json.parse_json(raw)
        return msgspec.Raw(raw)
    except Refused as refusal:
        if not maybe_yaml or refusal.problem.code != "Undecodable":
            raise
    found = yaml_json.parse_yaml(raw, BODY_LIMIT)
    if len(found) > 1:
        detail = f"a body is one document, this one has {len(found)}"
        raise Refused(Problem(title="Not readable", status=400, code="SeveralDocuments", detail=detail))
    return msgspec.Raw(_encode(found[0])) if found else _NULL


async def _parts(request: web.Request) -> tuple[msgspec.Raw, str]:
    body, file = _NULL, ""
    room = BODY_LIMIT
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if isinstance(part, MultipartReader):
                detail = "not multipart: a part has parts"
                raise Refused(Problem(title="Not readable", status=400, code="Undecodable", detail=detail))
            data = bytearray()
            while chunk := await part.read_chunk():
                room -= len(chunk)
                if room < 0:
                    raise web.HTTPRequestEntityTooLarge(BODY_LIMIT, BODY_LIMIT - room)
                data += chunk
            if part.name == "metadata":
                body = _json(bytes(data), True) if data.strip() else _NULL
            elif part.name in ("file", "files"):
                if file:
                    message = "comes twice; one is taken"
                    raise Refused(invalid([Violation(path="file", code="TooMany", message=message)]))
                if not data:
                    raise Refused(invalid([Violation(path="file", code="Empty", message="is empty")]))
                file = base64.b64encode(bytes(data)).decode()
    except (ValueError, AssertionError, EOFError) as error:
        detail = f"not multipart: {error}"[:500]
        raise Refused(Problem(title="Not readable", status=400, code="Undecodable", detail=detail)) from None
    return body, file
