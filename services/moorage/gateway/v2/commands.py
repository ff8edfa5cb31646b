"""HTTP handlers that create, replace and delete resources. The intent store executes the change; its answer is put into the
mirror at once."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from aiohttp import MultipartReader, web

from moorage.bus import subjects
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.v2_resources import CLUSTER, HPA_INTENT, Change, Path, ResourceKind
from moorage.parsing import yaml_json

from ..audit import request_id
from ..bus_client import call
from ..middleware import Gateway, gateway_of
from ..rate_limits import BODY_LIMIT
from ..route import JSON
from .label_sync import wait_for_label
from .queries import path_in, resources_of

_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")


async def create_resource(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.collection)
    body, file = await body_of(request)
    gateway = gateway_of(request)
    if kind.parent(kind.path) == CLUSTER.path:
        await _register_cluster(request, gateway, path[:4])
    change = Change(id=request_id(request), verb="create", path=list(path), body=body, file=file)
    return await _send_change(request, change, 201)


async def replace_resource(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.path)
    body, file = await body_of(request)
    change = Change(
        id=request_id(request), verb="replace", path=list(path), body=body, file=file, if_match=_if_match(request)
    )
    return await _send_change(request, change, 200)


async def delete_resource(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    path = path_in(request, kind.path)
    return await _send_removal(
        request, Change(id=request_id(request), verb="delete", path=list(path), if_match=_if_match(request))
    )


async def delete_collection(request: web.Request, kind: ResourceKind) -> web.StreamResponse:
    """Deletes all members of a collection, or none."""
    path = path_in(request, kind.collection)
    return await _send_removal(request, Change(id=request_id(request), verb="clear", path=list(path)))


async def _send_change(request: web.Request, change: Change, status: int) -> web.StreamResponse:
    gateway = gateway_of(request)
    reply = await call(gateway.bus, subjects.INTENTS_RESOURCE, change, timeout=10, again=_again(change))
    path: Path = tuple(reply["path"])
    seq = reply["seq"]
    body = gateway.view.put_resource(path, _encode(reply["body"]), seq)
    gateway.view.notify_resource(path)
    await _wait_if_label(gateway, path)
    if len(path) == 7 and status == 201 and path[5] == "deployment-intent-groups":
        await gateway.view.wait_for_group("/".join((path[1], path[3], path[4], path[6])))
    if len(path) > 7 and path[7] == HPA_INTENT.segment:
        body = _encode(resources_of(request).with_children(path, reply["body"]))
    response = web.Response(body=body, status=status, content_type=JSON)
    response.headers["ETag"] = f'"{seq}"'
    if status == 201:
        names = [part.replace("/", "%2F") for part in path[len(change.path) :]]
        response.headers["Location"] = "/".join((request.rel_url.raw_path.rstrip("/"), *names))
    for warning in reply.get("warnings", []):
        response.headers.add("Warning", _warning(warning))
    return response


async def _wait_if_label(gateway: Gateway, path: Path) -> None:
    if len(path) == 6 and path[4] == "labels":
        await wait_for_label(gateway.view, path)


def _warning(warning: dict[str, Any]) -> str:
    text = f"{warning['code']}: {warning['message']}".replace("\\", "\\\\").replace('"', '\\"')
    return f'299 moorage "{"".join(c if " " <= c <= "~" else "?" for c in text)}"'


async def _send_removal(request: web.Request, change: Change) -> web.StreamResponse:
    gateway = gateway_of(request)
    reply = await call(gateway.bus, subjects.INTENTS_RESOURCE, change, timeout=30, again=_again(change))
    for removed in reply["removed"]:
        path = tuple(removed)
        gateway.view.resources.drop(path, reply["seq"])
        gateway.view.notify_resource(path)
        await _wait_if_label(gateway, path)
        if len(path) == 7 and path[5] == "deployment-intent-groups":
            await gateway.view.wait_for_group("/".join((path[1], path[3], path[4], path[6])))
    return web.Response(status=204)


async def _register_cluster(request: web.Request, gateway: Gateway, path: Path) -> None:
    """Stores resources for a cluster that only the fleet has, before something is written below it."""
    resources = resources_of(request)
    for part in (path[:2], path[:4]):
        if resources.seq(part) is None and resources.exists(part):
            body = msgspec.Raw(_encode({"metadata": {"name": part[-1]}}))
            change = Change(id=request_id(request), verb="create", path=list(part[:-1]), body=body)
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
    """Returns the body as JSON, and an uploaded file in base64."""
    if request.content_type.startswith("multipart/"):
        return await _read_multipart(request)
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
        detail = f"the body must be one document; it has {len(found)}"
        raise Refused(Problem(title="Not readable", status=400, code="SeveralDocuments", detail=detail))
    return msgspec.Raw(_encode(found[0])) if found else _NULL


async def _read_multipart(request: web.Request) -> tuple[msgspec.Raw, str]:
    body, file = _NULL, ""
    remaining = BODY_LIMIT
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if isinstance(part, MultipartReader):
                detail = "multipart bodies must not be nested"
                raise Refused(Problem(title="Not readable", status=400, code="Undecodable", detail=detail))
            data = bytearray()
            while chunk := await part.read_chunk():
                remaining -= len(chunk)
                if remaining < 0:
                    raise web.HTTPRequestEntityTooLarge(BODY_LIMIT, BODY_LIMIT - remaining)
                data += chunk
            if part.name == "metadata":
                body = _json(bytes(data), True) if data.strip() else _NULL
            elif part.name in ("file", "files"):
                if file:
                    message = "only one file is allowed"
                    raise Refused(invalid([Violation(path="file", code="TooMany", message=message)]))
                if not data:
                    raise Refused(invalid([Violation(path="file", code="Empty", message="is empty")]))
                file = base64.b64encode(bytes(data)).decode()
    except (ValueError, AssertionError, EOFError) as error:
        detail = f"not valid multipart: {error}"[:500]
        raise Refused(Problem(title="Not readable", status=400, code="Undecodable", detail=detail)) from None
    return body, file
