"""How an app's objects are, and why one is not ready, in the words of whoever knows best: its pods, else its warnings."""

from __future__ import annotations

import asyncio

from moorage.kube import ApiError
from moorage.podspec import template

from .context import ClusterContext
from .core.cluster_state import CLAIM
from .core.readiness import Readiness, readiness_of
from .managed_object import ManagedObject
from .object_watches import Live, version

#: Events of what is not ready are asked for this often.
EVENTS_EVERY = 10.0


async def check_health(site: ClusterContext, thing: ManagedObject) -> tuple[Readiness, bool]:
    """How it is, and whether somebody tells when that changes."""
    if thing.refused:
        return Readiness("Failed", thing.refused), True
    ref = thing.ref
    try:
        kind = await site.kind(ref)
    except ApiError as error:
        return Readiness("Failed", error.message), True
    live = site.following.get(kind, ref.namespace, ref.name)
    followed = live is not None
    before = thing.left
    if live is None or (before is not None and version(before) > version(live)):
        live = before
        if live is not None and not followed and readiness_of(live).state != "Ready":
            live = thing.left = await site.api.get(kind.path(ref.namespace, ref.name)) or live
    if live is None:
        return Readiness("Progressing", "is not there yet"), followed
    seen = readiness_of(live)
    if seen.state == "Ready":
        thing.asked_why, thing.why = 0.0, ""
        return seen, followed
    return await _explained(site, thing, live, seen), followed


async def _explained(site: ClusterContext, thing: ManagedObject, live: Live, seen: Readiness) -> Readiness:
    body = template(thing.obj)
    claim = str(((body or {}).get("metadata", {}).get("labels") or {}).get(CLAIM, ""))
    stuck, message = site.view.trouble([claim] if claim else [])
    if stuck:
        return seen._replace(state="Failed", message=message)
    if not message and body is not None:
        message = await _warning(site, thing, live)
    return seen._replace(message=f"{seen.message}: {message}" if seen.message and message else message or seen.message)


async def _warning(site: ClusterContext, thing: ManagedObject, live: Live) -> str:
    now = asyncio.get_running_loop().time()
    first = not thing.asked_why
    if not first and now - thing.asked_why < EVENTS_EVERY:
        return thing.why
    thing.asked_why = now
    if first:  # what has only just begun need not be explained
        return ""
    selector = f"involvedObject.uid={live['metadata'].get('uid', '')},type=Warning"
    path = f"/api/v1/namespaces/{thing.ref.namespace}/events"
    try:
        found = await site.api.get(path, query={"fieldSelector": selector, "limit": "50"})
    except ApiError:
        return thing.why  # not allowed to: then without
    events = sorted(
        (found or {}).get("items") or (), key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or "")
    )
    if events:
        thing.why = str(events[-1].get("message", ""))
    return thing.why
