"""HTTP handlers that change groups, intents and controllers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from moorage.bus import subjects
from moorage.model.controllers import Controller
from moorage.model.names import project_of
from moorage.model.problems import (
    Refused,
    Violation,
    invalid,
    not_found,
    unknown_fields,
)

from .audit import add_target, request_id
from .authorization import caller_of, require
from .bus_client import call
from .core.schemas import ControllerEdit
from .etags import if_match
from .events import group_of
from .groups import controller_item, document_key, intent_kind, known_group
from .middleware import gateway_of
from .responses import json_response

VERBS = ("approve", "instantiate", "update", "redecide", "migrate", "rollback", "stop", "terminate")
_PARAMETERS = {"revision", "target"}  # of rollback and migrate
_object = msgspec.json.Decoder(dict[str, Any]).decode


async def act(request: web.Request) -> web.StreamResponse:
    gateway, group, verb = gateway_of(request), group_of(request), request.match_info["verb"]
    if verb not in VERBS:
        raise Refused(not_found(f"operation {verb} (known are {', '.join(VERBS)})"))
    if gateway.view.record(group) is None:
        raise Refused(not_found(f"group {group}"))
    raw = await request.read()
    parameters = _object(raw) if raw.strip() else {}
    if errors := unknown_fields(parameters, _PARAMETERS):
        raise Refused(invalid(errors))
    if "/" in (target := str(parameters.get("target", ""))):
        require(caller_of(request), "editor", project_of(target))
    order = {**parameters, "group": group, "verb": verb, "cause": request_id(request)}
    again = {**order, "repeat": True}
    reply = await call(gateway.bus, subjects.INTENTS_ACT, order, timeout=60, again=again, patience=3)
    await gateway.view.wait_for_group(group)
    return json_response({"group": group, **reply}, 202)


async def delete_group(request: web.Request) -> web.StreamResponse:
    return await _delete(request, known_group(request).record.group)


async def delete_application(request: web.Request) -> web.StreamResponse:
    info = request.match_info
    group = f"{info['project']}/{info['name']}/v1/default"
    if gateway_of(request).view.record(group) is None:
        raise Refused(not_found(f"application {info['name']} of project {info['project']}"))
    return await _delete(request, group)


async def _delete(request: web.Request, group: str) -> web.StreamResponse:
    """Asks the intent store to terminate a group and to delete it afterwards, which it does even if the gateway ends. The
    request may be repeated."""
    gateway = gateway_of(request)
    order: dict[str, Any] = {"group": group, "verb": "leave", "cause": request_id(request)}
    if (expected := if_match(request)) is not None:
        order["ifMatch"] = expected
    try:
        reply = await call(gateway.bus, subjects.INTENTS_ACT, order, again=order)
    except Refused as refusal:
        if refusal.problem.status != 404:
            raise
        reply = {"outcome": "deleted"}  # it existed when the request arrived
    await gateway.view.wait_for_group(group)
    if reply["outcome"] == "deleted":
        return web.Response(status=204)
    return json_response({"group": group, "phase": "Terminating"}, 202)


async def delete_intent(request: web.Request) -> web.StreamResponse:
    gateway, info = gateway_of(request), request.match_info
    kind = intent_kind(gateway.view, info["kind"])
    body: dict[str, Any] = {
        "kind": kind,
        "project": info["project"],
        "name": info["name"],
        "cause": request_id(request),
    }
    if (expected := if_match(request)) is not None:
        body["ifMatch"] = expected
    await call(gateway.bus, subjects.INTENTS_DELETE, body, again={**body, "again": True})
    await gateway.view.wait_for_document(document_key(kind, info["project"], info["name"]))
    return web.Response(status=204)


async def put_controller(request: web.Request) -> web.StreamResponse:
    gateway, name = gateway_of(request), request.match_info["name"]
    edit = msgspec.json.decode(await request.read(), type=ControllerEdit)
    if edit.name not in (None, name):
        message = f"is {edit.name!r}, but the path has {name!r}"
        raise Refused(invalid([Violation(path="name", code="NameMismatch", message=message)]))
    add_target(request, f"controller {name}")
    body = {**msgspec.to_builtins(edit), "name": name, "cause": request_id(request)}
    reply = msgspec.convert(await call(gateway.bus, subjects.CONTROLLERS_SET, body, again=body), _ControllerReply)
    for _ in range(100):  # wait until it is mirrored, so that the caller can read it
        if gateway.view.controllers.get(name) == reply.controller:
            break
        await asyncio.sleep(0.01)
    return web.Response(status=204) if reply.controller is None else json_response(controller_item(reply.controller))


class _ControllerReply(msgspec.Struct):
    controller: Controller | None = None
