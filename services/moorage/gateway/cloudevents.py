"""Events in the structured mode of CloudEvents 1.0, for readers that know no other form."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from moorage.model.events import Event
from moorage.model.names import untoken

from .responses import bad_parameter

ONE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
_AREAS = {"intents": 4, "decisions": 4, "fleet": 2, "audit": 1, "placement": 1}  # tokens of what it is about


def wanted(request: web.Request) -> bool:
    """Returns whether CloudEvents are requested, by Accept or by a parameter: a browser's EventSource cannot set headers."""
    text = request.query.get("format", "")
    if text not in ("", "cloudevents", "plain"):
        raise bad_parameter("format", f"{text[:50]!r} is not a format; use cloudevents or plain")
    accepts = request.headers.get("Accept", "").lower()
    return text == "cloudevents" or (not text and (ONE in accepts or BATCH in accepts))


def structured(event: Event) -> dict[str, Any]:
    """`moorage.events.decisions.placed.p.a.v.g` is of type `dev.moorage.decisions.placed`, about `p/a/v/g`."""
    tokens = event.subject.removeprefix("moorage.events.").removeprefix("moorage.").split(".")
    area, change, about = tokens[0], tokens[1] if len(tokens) > 1 else "", tokens[2:]
    if area == "placement" and about:
        change, about = f"{change}.{about[0]}", about[1:]  # provider.created
    made: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": f"/moorage/{area}",
        "type": ".".join(part for part in ("dev.moorage", area, change) if part),
        "time": event.time,
        "datacontenttype": "application/json",
        "natssubject": event.subject,
    }
    if len(about) == _AREAS.get(area):
        made["subject"] = "/".join(untoken(part) for part in about)
    if event.cause:
        made["cause"] = event.cause
    if event.traceparent:
        made["traceparent"] = event.traceparent
    made["data"] = event.data
    return made
