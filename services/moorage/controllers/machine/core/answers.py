"""Allows the clusters with enough free slots of the machine types that an app needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from moorage.model.candidates import MAX_ORDER
from moorage.model.machine_slots import machine_of, opened_resource, slot_resource
from moorage.sdk import Allowed, Answer, Ask, Fleet, Mask, Reason, Shape, ShapedApp, allow, answer, deny

NAME = "machine"
SAMPLES = 5
#: Clusters in which as many pods have room in opened slots are in so many classes by what is free of all.
SHARES = 4


def candidates(ask: Ask, fleet: Fleet) -> Answer:
    return answer({app.name: _of_app(ask, app, fleet) for app in ask.apps}, ask, fleet, NAME)


def _of_app(ask: Ask, app: ShapedApp, fleet: Fleet) -> Allowed:
    wanted: dict[str, list[Shape]] = {}
    for shape in app.shapes:
        for resource in shape.resources:
            if machine_of(resource) is not None:
                wanted.setdefault(resource, []).append(shape)
    if not wanted:
        return deny()
    # Where the app runs already it has slots of its own; the joint assignment knows them.
    own = fleet.clusters.mask(ask.own.get(app.name, ())) | fleet.clusters.mask(ask.held.get(app.name, ()))
    allowed = fleet.known.copy()
    reasons: list[Reason] = []
    excluded: list[Mask] = []
    for resource, shapes in wanted.items():
        for shape in shapes if resource in fleet.slot_users else ():
            closed = allowed & _closed_to(ask.tenant, shape.namespace, resource, fleet)
            if closed.any():
                allowed &= ~closed
                reasons.append(_not_allowed(app.name, shape, resource, ask.tenant, closed, fleet))
                excluded.append(closed)
        needed = sum(1 if shape.per_node else shape.count for shape in shapes)
        free, known = _free_slots(fleet, resource)
        short = allowed & ~own & (free < needed)
        if not short.any():
            continue
        allowed &= ~short
        reasons.append(_reason(app.name, shapes[0], resource, needed, short, free, fleet, known=known))
        excluded.append(short)
    return allow(allowed, reasons=reasons, excluded=excluded, order=_opened_first(wanted, allowed, fleet))


def _opened_first(wanted: Mapping[str, Sequence[Shape]], allowed: Mask, fleet: Fleet) -> list[Mask]:
    """Returns the clusters by how many of the pods have room in slots that others of their types have opened, then by what is free of
    all slots; nothing where none has any."""
    if all(fleet.free(opened_resource(resource)) is None for resource in wanted):
        return []
    pods, in_opened, free = 0, np.zeros(fleet.size, np.int64), np.full(fleet.size, np.iinfo(np.int64).max)
    for resource, shapes in wanted.items():
        count = sum(shape.count for shape in shapes)
        free = np.minimum(free, _free_slots(fleet, resource)[0])
        if fleet.free(opened_resource(resource)) is not None:
            pods += count
            in_opened += np.minimum(_free_slots(fleet, opened_resource(resource))[0], count)
    if not (allowed & (in_opened > 0)).any():
        return []
    shares, most = (MAX_ORDER // SHARES - 1) * in_opened // pods, max(1, int(free[allowed].max()))
    rank = shares * SHARES + np.minimum(free * SHARES // (most + 1), SHARES - 1)
    return [allowed & (rank == value) for value in np.unique(rank[allowed])[::-1]]


def _closed_to(project: str, namespace: str, resource: str, fleet: Fleet) -> Mask:
    """Returns the clusters whose slots of a machine type are for others."""
    users = fleet.slot_users[resource]
    admitted = {every: all(rule.admits(project, namespace) for rule in every) for every in set(users.values())}
    return fleet.clusters.mask(cluster for cluster, every in users.items() if not admitted[every])


def _not_allowed(app: str, shape: Shape, resource: str, project: str, closed: Mask, fleet: Fleet) -> Reason:
    machine, window = machine_of(resource) or (resource, "")
    name = f"the window {window} of {machine}" if window else machine
    samples = [fleet.names[cid] for cid in np.flatnonzero(closed)[:SAMPLES].tolist()]
    rules = [r for r in fleet.slot_users[resource][samples[0]] if not r.admits(project, shape.namespace)]
    who = ", and of these ".join(rule.named() for rule in rules)
    own = f", namespace {shape.namespace}" if any(rule.namespaces for rule in rules) else ""
    return Reason(
        code="NotAllowed",
        app=app,
        consumer=_consumer(shape, resource),
        need=slot_resource(machine, window),
        clusters=int(closed.sum()),
        samples=samples,
        by=NAME,
        message=f"{name} is for {who} only; this is project {project}{own}",
    )


def _consumer(shape: Shape, resource: str) -> str:
    return next((need.consumer for need in shape.needs if machine_of(need.name) == machine_of(resource)), "")


def _free_slots(fleet: Fleet, resource: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], bool]:
    """Returns the free slots of usable nodes by cluster, and whether any cluster ever had one."""
    column = fleet.free(resource)
    if column is None:
        machine, _ = machine_of(resource) or ("", "")
        return np.zeros(fleet.size, np.int64), machine in fleet.slot_times  # windows may keep all of them
    rows = np.flatnonzero(fleet.usable[: fleet.n] & (fleet.cluster[: fleet.n] >= 0) & (column[: fleet.n] > 0))
    return np.bincount(fleet.cluster[rows], weights=column[rows], minlength=fleet.size).astype(np.int64), True


def _reason(
    app: str,
    shape: Shape,
    resource: str,
    needed: int,
    short: Mask,
    free: np.ndarray[tuple[int], np.dtype[np.int64]],
    fleet: Fleet,
    *,
    known: bool,
) -> Reason:
    found = machine_of(resource)
    assert found is not None  # only resources of machines come here
    machine, window = found
    name = f"{machine} in the window {window}" if window else machine
    best = int(free[short].max(initial=0))
    slots = f"{needed} slot{'s' if needed > 1 else ''} of {name}"
    has = f"the best of these clusters has {best} free" if known else "no cluster has any"
    message = f"needs {slots}; {has}"
    return Reason(
        code="SlotShort" if known else "MachineUnknown",
        app=app,
        consumer=_consumer(shape, resource),
        need=slot_resource(machine, window),
        clusters=int(short.sum()),
        samples=[fleet.names[cid] for cid in np.flatnonzero(short)[:SAMPLES].tolist()],
        needed=str(needed),
        free=str(best),
        by=NAME,
        message=message,
    )
