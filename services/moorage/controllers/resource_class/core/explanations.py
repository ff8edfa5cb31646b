"""Explains which clusters lack devices for a need: how many there are, meet each condition, are healthy, tolerated and free, and
which one comes nearest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from moorage.fit.device_counts import DeviceCounts, count_devices
from moorage.fit.device_selection import explain_selection
from moorage.model.part_requests import DeviceAsk
from moorage.sdk import Fleet, Mask, Reason, Shape

SAMPLES = 5


#: What a device must be besides what it is before, by field of `DeviceCounts`, and the code of the reason if too few are.
_STEPS = {"selected": "PartMissing", "healthy": "PartMissing", "tolerated": "DeviceTainted", "free": "PartShort"}


def device_reasons(fleet: Fleet, app: str, shape: Shape, about: Mask) -> list[tuple[Reason, Mask]]:
    """Returns the reasons why clusters cannot serve needs of one pod, each with its clusters; a cluster is counted once."""
    left, found = about.copy(), []
    for group in shape.groups:
        if not group.devices or group.optional:
            continue
        counts = [(ask, count_devices(fleet, ask, left)) for ask in group.devices]
        lacking = left.copy()
        for ask, of_ask in counts:
            lacking &= of_ask.lacks(ask)
        if not lacking.any():
            continue
        ask, of_ask = counts[-1]
        need = _Need(fleet, app, shape, group.suffix)
        if all(_is_unknown(one) and not of_one.known for one, of_one in counts):
            names = " or ".join(one.resource_class or one.device_class for one, _ in counts)
            message = f"no class is called {names}, and no cluster that offers devices has a DeviceClass of this name"
            found.append((need.reason("ClassNotFound", message, lacking), lacking))
        else:
            found += _by_step(need, ask, of_ask, lacking)
        left &= ~lacking
    return found


def _is_unknown(ask: DeviceAsk) -> bool:
    return bool(ask.resource_class or ask.device_class) and not ask.properties


class _Need(NamedTuple):
    """A need of a shape of an app."""

    fleet: Fleet
    app: str
    shape: Shape
    name: str

    def reason(self, code: str, message: str, clusters: Mask) -> Reason:
        consumers = dict.fromkeys(one.consumer for one in self.shape.needs if one.group == self.name and one.consumer)
        return Reason(
            code=code,
            message=message,
            app=self.app,
            need=self.name,
            consumer=", ".join(consumers) or self.shape.object.partition("/")[2],
            clusters=int(np.count_nonzero(clusters)),
            samples=self.fleet.clusters.named(clusters, SAMPLES),
        )


def _by_step(need: _Need, ask: DeviceAsk, counts: DeviceCounts, lacking: Mask) -> list[tuple[Reason, Mask]]:
    found = []
    left = lacking.copy()
    for field, code in _STEPS.items():
        column = getattr(counts, field)
        clusters = left & (column < ask.count)
        left &= ~clusters
        apart = _apart(field, counts, clusters) if clusters.any() else ()
        found += [(_of_step(need, ask, counts, field, code, part), part) for part in apart]
    if left.any():
        found.append((_of_nodes(need, ask, counts, left), left))
    return found


def _of_nodes(need: _Need, ask: DeviceAsk, counts: DeviceCounts, clusters: Mask) -> Reason:
    """Returns the reason of clusters that have enough devices, but on no node."""
    code, needed, best = "PartShort", ask.count, int(counts.most_free[clusters].max())
    if not ask.all:
        message = f"no node has {needed} devices free at once for {_named(need, ask)}; at most {best}"
    elif (nearest := counts.nearest) is None:
        code, text = _of_pools(counts, clusters) or (code, "")
        message = f"all devices of a node are asked for {_named(need, ask)}, and of no node all are known{text}"
    else:
        code = "DeviceTainted" if nearest.tolerated < nearest.selected else code
        needed, best = nearest.selected, nearest.free
        message = (
            f"all devices of a node are asked for {_named(need, ask)}; nearest is {nearest.node}: {needed} selected, "
            f"{nearest.tolerated} healthy and tolerated, {best} free"
        )
    reason = need.reason(code, message, clusters)
    reason.needed, reason.free = str(needed), str(best)
    return reason


def _of_pools(counts: DeviceCounts, clusters: Mask) -> tuple[str, str] | None:
    """Returns the code and the words for pools of which no device counts, if there are any."""
    for column, code, why in (
        (counts.invalid, "PoolInvalid", "make no sense"),
        (counts.incomplete, "PoolIncomplete", "lack slices"),
    ):
        if nodes := int(column[clusters].sum()):
            return code, f"; pools of {nodes} node{'s' * (nodes > 1)} {why}, and none of their devices counts"
    return None


def _apart(field: str, counts: DeviceCounts, clusters: Mask) -> Iterator[Mask]:
    """Yields the clusters with pools that make no sense, those with pools of which slices are missing, and the others, where that may
    be why there are too few devices."""
    for column in (counts.invalid, counts.incomplete) if field == "selected" else ():
        having = clusters & (column > 0)
        if having.any():
            yield having
            clusters = clusters & ~having
    if clusters.any():
        yield clusters


def _of_step(need: _Need, ask: DeviceAsk, counts: DeviceCounts, field: str, code: str, clusters: Mask) -> Reason:
    sums = ", ".join(f"{int(getattr(counts, each)[clusters].sum())} {each}" for each in ("there", *_STEPS))
    best = int(getattr(counts, field)[clusters].max())
    wanted = f"{ask.count} devices are" if ask.count > 1 else "1 device is"
    message = f"fewer than {wanted} {field} for {_named(need, ask)}: {sums}; at most {best} in one cluster"
    if field == "selected":
        selection = explain_selection(need.fleet, ask, clusters)
        message += "".join(f"; {one.meeting} meet {one.text}" for one in selection.conditions)
        if selection.nearest is not None:
            message += f"; nearest is {selection.nearest.cluster} {selection.nearest.part}: {selection.nearest.fails}"
        if selection.errors:
            code = "SelectorError"
            message += f"; an expression has an error on {selection.errors}, as where an attribute is missing"
    if field == "free" and counts.counter is not None and (starved := int(counts.starved[clusters].sum())):
        short = counts.counter
        message += f"; of {starved} more the counters are used up: nearest is {short.part}, {short.name} {short.free} of {short.needed}"
    if field == "free" and (lack := counts.capacity) is not None:
        message += f"; nearest is {lack.part}: "
        message += f"{lack.name} {lack.free} of {lack.needed}" if lack.free >= 0 else f"it has no capacity {lack.name}"
    if (pools := _of_pools(counts, clusters)) is not None:
        code = pools[0] if field == "selected" else code
        message += pools[1]
    reason = need.reason(code, message, clusters)
    reason.needed, reason.free = str(ask.count), str(best)
    return reason


def _named(need: _Need, ask: DeviceAsk) -> str:
    name = ask.resource_class or ask.device_class
    return f"{need.name} ({name})" if name and name != need.name else need.name
