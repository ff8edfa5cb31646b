"""Reads how ready an app's objects are, and why one is not: from its pods, else from its warning events."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from moorage.dra.quotas import PINNED_BY_TEMPLATE
from moorage.kube import ApiError
from moorage.podspec import CLAIM, template

from .context import ClusterContext
from .core.drift import resource_version
from .core.owned_objects import Live
from .core.readiness import Readiness, readiness_of
from .managed_object import ManagedObject

#: Seconds between two reads of the events of an object that is not ready.
EVENTS_INTERVAL = 10.0


class ObjectHealth(NamedTuple):
    """`watched`: a change will be reported without asking."""

    readiness: Readiness
    watched: bool


async def check_health(cluster: ClusterContext, managed: ManagedObject) -> ObjectHealth:
    if managed.refused:
        return ObjectHealth(Readiness("Failed", managed.refused, code=managed.refusal_code), True)
    ref = managed.ref
    try:
        kind = await cluster.kind(ref)
    except ApiError as error:
        return ObjectHealth(Readiness("Failed", error.message), True)
    live = cluster.watches.get(kind, ref.namespace, ref.name)
    watched = live is not None
    before = managed.live
    if live is None or (before is not None and resource_version(before) > resource_version(live)):
        live = before
        if live is not None and not watched and readiness_of(live).state != "Ready":
            live = managed.live = await cluster.api.get(kind.path(ref.namespace, ref.name)) or live
    if live is None:
        return ObjectHealth(Readiness("Progressing", "does not exist yet"), watched)
    readiness = readiness_of(live)
    if readiness.state == "Ready" and managed.notice:
        readiness = readiness._replace(message=managed.notice, code=PINNED_BY_TEMPLATE)
    if readiness.state == "Ready":
        managed.warned_at, managed.warning = 0.0, ""
        return ObjectHealth(readiness, watched)
    return ObjectHealth(await _explained(cluster, managed, live, readiness), watched)


async def _explained(cluster: ClusterContext, managed: ManagedObject, live: Live, readiness: Readiness) -> Readiness:
    pod_template = template(managed.obj)
    claim = str(((pod_template or {}).get("metadata", {}).get("labels") or {}).get(CLAIM, ""))
    stuck, message = cluster.state.trouble([claim] if claim else [])
    if stuck:
        return readiness._replace(state="Failed", message=message)
    if not message and pod_template is not None:
        message = await _warning(cluster, managed, live)
    return readiness._replace(message=": ".join(part for part in (readiness.message, message) if part))


async def _warning(cluster: ClusterContext, managed: ManagedObject, live: Live) -> str:
    """Returns the newest warning event's message."""
    now = asyncio.get_running_loop().time()
    first = not managed.warned_at
    if not first and now - managed.warned_at < EVENTS_INTERVAL:
        return managed.warning
    managed.warned_at = now
    if first:  # an object that was only just applied needs no explanation
        return ""
    selector = f"involvedObject.uid={live['metadata'].get('uid', '')},type=Warning"
    path = f"/api/v1/namespaces/{managed.ref.namespace}/events"
    try:
        found = await cluster.api.get(path, query={"fieldSelector": selector, "limit": "50"})
    except ApiError:
        return managed.warning  # without the right to read events there is no explanation
    events = sorted(
        (found or {}).get("items") or (), key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or "")
    )
    if events:
        managed.warning = str(events[-1].get("message", ""))
    return managed.warning
