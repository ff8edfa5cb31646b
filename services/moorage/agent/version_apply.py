"""Applies a new version of an app: creates and updates its objects in order, each recorded before it is changed."""

from __future__ import annotations

import asyncio

import structlog

from moorage.bus.failpoints import reached
from moorage.kube import ApiError, apply_order
from moorage.model.desired_state import DesiredApp

from .core.guest_namespaces import guest_namespaces, is_enabled
from .core.owned_objects import Manifest, Ref, owner_of
from .core.readiness import readiness_of
from .managed_app import ManagedApp, run_all
from .managed_object import ManagedObject

log = structlog.get_logger("agent")

#: Seconds that custom resources wait until their kind is served.
ESTABLISH_TIMEOUT = 15.0


async def apply_version(app: ManagedApp, desired: DesiredApp, objects: dict[Ref, Manifest]) -> list[Ref]:
    """Returns the recorded objects that the new version no longer has."""
    recorded = dict.fromkeys(app.record.content.refs)
    guests = guest_namespaces((ref.namespace, obj) for ref, obj in objects.items())
    objects = {**await _missing_namespaces(app, objects, guests), **objects}
    fresh = [ref for ref in objects if ref not in recorded]
    app.objects = {ref: _managed(app, ref, obj) for ref, obj in objects.items()}
    app.cluster.objects_changed()
    for ref, managed in app.objects.items():
        managed.enables_machines = ref.kind == "Namespace" and ref.name in guests
    orders = sorted({apply_order(ref.kind) for ref in objects})
    first = await _creatable(app, [app.objects[ref] for ref in fresh if apply_order(ref.kind) == orders[0]])
    app.record.set_refs([*recorded, *fresh], desired.version)
    tried = await run_all([*(_create(app, desired, managed) for managed in first), app.store_record()])
    created = {ref for ref in tried if ref is not None}
    reached("agent.recorded")
    untried = set(fresh) - {managed.ref for managed in first}
    for order in orders:
        together = [managed for ref, managed in app.objects.items() if apply_order(ref.kind) == order]
        app.check_current(desired)
        await run_all(
            app.apply(desired, managed, fresh=managed.ref in untried)
            for managed in together
            if managed.ref not in created
        )
        await _wait_established(app, desired, together)
    reached("agent.applied")
    app.check_current(desired)
    kept = {ref.place for ref in objects}
    return [ref for ref in recorded if ref.place not in kept]


def _managed(app: ManagedApp, ref: Ref, obj: Manifest) -> ManagedObject:
    managed = app.objects.get(ref) or ManagedObject(ref, obj)
    managed.obj = obj
    return managed


async def _creatable(app: ManagedApp, managed: list[ManagedObject]) -> list[ManagedObject]:
    """Selects objects that may be created before the record is stored: as far as watches show they do not exist, and a
    successor would find them by their marks."""
    cluster = app.cluster
    kinds = [(one, await cluster.findable_kind(one.ref)) for one in managed]
    absent = [
        (one, kind)
        for one, kind in kinds
        if kind is not None and cluster.watches.get(kind, one.ref.namespace, one.ref.name) is None
    ]
    try:
        if absent:
            await cluster.records.ownership.add_kinds(kind for _, kind in absent)
    except ApiError as error:
        log.warning("the ConfigMap of marks cannot be written", error=error.message)
        return []
    return [one for one, _ in absent]


async def _create(app: ManagedApp, desired: DesiredApp, managed: ManagedObject) -> Ref | None:
    """Creates one object. Returns None if it exists: it is not changed before the record is stored."""
    async with app.write_limit(managed.ref):
        app.check_current(desired)
        try:
            if not await app.writer.create(managed):
                return None
            managed.accepted()
            reached("agent.made")
        except ApiError as error:
            managed.refuse(error)
        return managed.ref


async def _missing_namespaces(app: ManagedApp, objects: dict[Ref, Manifest], guests: set[str]) -> dict[Ref, Manifest]:
    """Makes manifests for namespaces that objects are in, that no manifest defines and that do not exist, or that an agent
    made for other apps and that guests of this one need enabled."""
    defined = {ref.name for ref in objects if ref.kind == "Namespace"}
    missing: dict[Ref, Manifest] = {}
    for name in sorted({ref.namespace for ref in objects} - defined - {"default"}):
        ref = Ref("v1", "Namespace", "default", name)
        live = None
        if ref not in app.record.content.refs:
            live = await app.cluster.api.get(f"/api/v1/namespaces/{name}")
        if live is None or (name in guests and owner_of(live) and not is_enabled(live)):
            missing[ref] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    return missing


async def _wait_established(app: ManagedApp, desired: DesiredApp, together: list[ManagedObject]) -> None:
    """Waits until the kinds that these CustomResourceDefinitions define are served."""
    loop = asyncio.get_running_loop()
    end = loop.time() + ESTABLISH_TIMEOUT
    for managed in together:
        if managed.ref.kind != "CustomResourceDefinition" or managed.refused:
            continue
        kind = await app.cluster.kind(managed.ref)
        while loop.time() < end:
            live = await app.cluster.api.get(kind.path("", managed.ref.name))
            if live is not None and readiness_of(live).state == "Ready":
                break
            await asyncio.sleep(0.2)
            app.check_current(desired)
