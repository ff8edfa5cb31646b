"""HTTP handlers that read Machines, their slots and their guests."""

from __future__ import annotations

import msgspec
from aiohttp import web

from moorage.bus import new_id
from moorage.mesh import subjects
from moorage.model.machine_views import GuestView, MachinesAsk, MachinesShown
from moorage.model.names import project_of
from moorage.model.problems import Refused, not_found

from .audit import add_target, request_id
from .authorization import caller_of
from .bus_client import call, fetch
from .middleware import gateway_of
from .responses import json_response, list_response, page_of

_decode = msgspec.json.Decoder(MachinesShown).decode


async def _shown(request: web.Request, ask: MachinesAsk) -> MachinesShown:
    return _decode(await fetch(gateway_of(request).bus, subjects.MACHINES_LIST, ask))


async def list_machines(request: web.Request) -> web.StreamResponse:
    found = {m.metadata["name"]: m for m in (await _shown(request, MachinesAsk(id=new_id(), kind="machines"))).machines}
    page, token = page_of(request, sorted(found))
    return list_response([found[name] for name in page], token)


async def get_machine(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    for machine in (await _shown(request, MachinesAsk(id=new_id(), kind="machines"))).machines:
        if machine.metadata["name"] == name:
            return json_response(machine)
    raise Refused(not_found(f"machine {name}"))


async def delete_machine(request: web.Request) -> web.StreamResponse:
    gateway, name = gateway_of(request), request.match_info["name"]
    add_target(request, f"Machine {name}")
    body = {"kind": "Machine", "name": name, "cause": request_id(request)}
    await call(gateway.bus, subjects.INTENTS_DELETE, body, again={**body, "again": True})
    return web.Response(status=204)


async def list_slots(request: web.Request) -> web.StreamResponse:
    slots = (await _shown(request, _ask(request, "slots"))).slots
    found = {f"{number:09}": slot for number, slot in enumerate(slots)}
    page, token = page_of(request, sorted(found))
    return list_response([found[key] for key in page], token)


async def list_guests(request: web.Request) -> web.StreamResponse:
    who = caller_of(request)

    def sees(guest: GuestView) -> bool:
        return not guest.group or who.sees(project_of(guest.group))

    guests = [guest for guest in (await _shown(request, _ask(request, "guests"))).guests if sees(guest)]
    found = {f"{guest.cluster}/{guest.namespace}/{guest.name}/{guest.uid}": guest for guest in guests}
    page, token = page_of(request, sorted(found))
    return list_response([found[key] for key in page], token)


def _ask(request: web.Request, kind: str) -> MachinesAsk:
    ask = MachinesAsk(
        id=new_id(),
        kind="slots" if kind == "slots" else "guests",
        machine=request.query.get("machine", ""),
        cluster=request.query.get("cluster", ""),
    )
    return ask
