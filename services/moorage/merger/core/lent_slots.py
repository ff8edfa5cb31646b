"""Lets pods that end before a window begins take the slots that it keeps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from moorage.fleet import Fleet
from moorage.ledger import OwnClaims
from moorage.model.candidates import OwnClaim
from moorage.model.groups import Revision
from moorage.model.machine_slots import gone_by, machine_of, slot_resource
from moorage.model.shapes import Shape, ShapedApp

#: Seconds from a decision until its pods have started. Those that are later get another slot.
START = 15.0


def with_lent_slots(record: Revision, own: OwnClaims, fleet: Fleet, now: float) -> Revision:
    """Returns the record with what its pods need of slots if they start now. `own`: what the group has already."""
    if not fleet.slot_times or not any(shape.runtime for app in record.apps for shape in app.shapes):
        return record
    apps = [app_with_lent_slots(app, fleet, now, own.get(app.name, {})) for app in record.apps]
    return msgspec.structs.replace(record, apps=apps)


def app_with_lent_slots(
    app: ShapedApp, fleet: Fleet, now: float, own: Mapping[str, Sequence[OwnClaim]] | None = None
) -> ShapedApp:
    if not any(shape.runtime and shape.machine in fleet.slot_times for shape in app.shapes):
        return app
    claims = [claim for found in (own or {}).values() for claim in found]
    return msgspec.structs.replace(app, shapes=[_shape(shape, claims, fleet, now) for shape in app.shapes])


def _shape(shape: Shape, claims: Sequence[OwnClaim], fleet: Fleet, now: float) -> Shape:
    plain = slot_resource(shape.machine)
    times = fleet.slot_times.get(shape.machine, ())
    if not shape.runtime or plain not in shape.resources:
        return shape
    held = {
        gone_by(name)
        for claim in claims
        for slot in claim.slots
        for name in slot.resources
        if claim.object == shape.object and machine_of(name) is not None
    }
    if held and (0 in held or max(held) > now):
        time = 0 if 0 in held else max(held)  # what runs keeps its slots
    else:
        at = bisect_left(times, now + START + shape.runtime)
        time = times[at] if at < len(times) else 0
    if not time:
        return shape
    resources = {
        slot_resource(shape.machine, before=time) if name == plain else name: n for name, n in shape.resources.items()
    }
    return msgspec.structs.replace(shape, key=f"{shape.key}<{time}", resources=resources)
