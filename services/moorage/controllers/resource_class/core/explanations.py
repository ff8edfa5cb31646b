"""Explains which clusters lack devices for a need: how many there are, are selected, are healthy, tolerated and free."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moorage.fit.device_counts import DeviceCounts, count_devices
from moorage.model.part_requests import DeviceAsk
from moorage.sdk import Fleet, Mask, Reason, Shape

SAMPLES = 5


class _Step(NamedTuple):
    code: str
    what: str


#: What a device must be besides what it is before, by field of `DeviceCounts`.
_STEPS = {
    "selected": _Step("PartMissing", "is selected by"),
    "healthy": _Step("PartMissing", "is healthy for"),
    "tolerated": _Step("DeviceTainted", "has no taint, or one that is tolerated, for"),
    "free": _Step("PartShort", "is free for"),
}


def device_reasons(fleet: Fleet, app: str, shape: Shape, about: Mask) -> list[tuple[Reason, Mask]]:
    """Returns the reasons why clusters cannot serve needs of one pod, each with its clusters; a cluster is counted once."""
    left, found = about.copy(), []
    for group in shape.groups:
        if not group.devices or group.optional:
            continue
        counts = [(ask, count_devices(fleet, ask, left)) for ask in group.devices]
        lacking = left.copy()
        for ask, of_ask in counts:
            lacking &= of_ask.most_free < ask.count
        if not lacking.any():
            continue
        ask, of_ask = counts[-1]
        if all(_is_unknown(one) and not of_one.known for one, of_one in counts):
            names = " or ".join(one.resource_class or one.device_class for one, _ in counts)
            message = f"no class is called {names}, and no cluster has a DeviceClass of this name"
            found.append((_reason("ClassNotFound", app, shape, group.suffix, message, lacking, fleet), lacking))
        else:
            found += _by_step(fleet, app, shape, group.suffix, ask, of_ask, lacking)
        left &= ~lacking
    return found


def _is_unknown(ask: DeviceAsk) -> bool:
    return bool(ask.resource_class or ask.device_class) and not ask.properties


def _by_step(
    fleet: Fleet, app: str, shape: Shape, need: str, ask: DeviceAsk, counts: DeviceCounts, lacking: Mask
) -> list[tuple[Reason, Mask]]:
    found = []
    name = ask.resource_class or ask.device_class or need
    left = lacking.copy()
    for field, step in _STEPS.items():
        column = getattr(counts, field)
        clusters = left & (column < ask.count)
        if clusters.any():
            sums = " ".join(
                f"{int(getattr(counts, each)[clusters].sum())} {each}," for each in ("there", *_STEPS)
            ).rstrip(",")
            best = int(column[clusters].max())
            message = (
                f"fewer than {ask.count} devices are {field} for {need} ({name}): {sums}; at most {best} in one cluster"
            )
            reason = _reason(step.code, app, shape, need, message, clusters, fleet)
            reason.needed, reason.free = str(ask.count), str(best)
            found.append((reason, clusters))
        left &= ~clusters
    if left.any():
        best = int(counts.most_free[left].max())
        message = f"no node has {ask.count} devices free at once for {need} ({name}); at most {best}"
        reason = _reason("PartShort", app, shape, need, message, left, fleet)
        reason.needed, reason.free = str(ask.count), str(best)
        found.append((reason, left))
    return found


def _reason(code: str, app: str, shape: Shape, need: str, message: str, clusters: Mask, fleet: Fleet) -> Reason:
    consumers = dict.fromkeys(one.consumer for one in shape.needs if one.group == need and one.consumer)
    return Reason(
        code=code,
        message=message,
        app=app,
        need=need,
        consumer=", ".join(consumers) or shape.object.partition("/")[2],
        clusters=int(np.count_nonzero(clusters)),
        samples=fleet.clusters.named(clusters, SAMPLES),
    )
