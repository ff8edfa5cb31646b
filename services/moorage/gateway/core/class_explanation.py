"""Explains which devices a class selects: how many meet each requirement, and which one comes nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moorage.classes import Selector, class_warnings, compile_class, holds
from moorage.fleet import DeviceCount, Fleet, device_properties, format_units, selected_rows
from moorage.fleet.class_status import MILLI, Devices, devices_in
from moorage.model.part_requests import PropertyCondition
from moorage.model.resource_classes import ResourceClassSpec

from .class_schemas import ClassExplained, DeviceAmounts, NearestMiss, RequirementCount, TermCount

Mask = NDArray[np.bool_]
_ALL = slice(None)


def amounts_of(count: DeviceCount) -> DeviceAmounts:
    return DeviceAmounts(
        allocatable=format_units(count.allocatable),
        requested=format_units(count.requested),
        free=format_units(count.free),
    )


def explain_class(
    fleet: Fleet, name: str, spec: ResourceClassSpec | None, clusters: Sequence[int], cluster: str = ""
) -> ClassExplained:
    """Explains a class over the devices of some clusters; `cluster` is the only one of them if it was asked for."""
    selector = compile_class(spec)
    devices = devices_in(fleet, clusters)
    chosen = selected_rows(fleet, devices.rows, selector)
    healthy = chosen & devices.healthy
    total = _count(devices, healthy)
    diagnostics: Counter[str] = Counter()
    for number in np.unique(fleet.parts.property_set[devices.rows]).tolist():
        selector.matches(dict(fleet.parts.properties.sets[number]), diagnostics)
    of_cluster = {cid: healthy & (devices.clusters == cid) for cid in np.unique(devices.clusters[healthy]).tolist()}
    amounts = amounts_of(total)
    return ClassExplained(
        name=name,
        cluster=cluster,
        devices=_number(devices),
        terms=[_term(fleet, devices, alternative) for alternative in selector.alternatives],
        selected=_number(devices, chosen),
        healthy=_number(devices, healthy),
        allocatable=amounts.allocatable,
        requested=amounts.requested,
        free=amounts.free,
        clusters={fleet.names[cid]: amounts_of(_count(devices, here)) for cid, here in of_cluster.items()},
        warnings=list(class_warnings(spec)),
        diagnostics=dict(sorted(diagnostics.items())),
    )


def _count(devices: Devices, chosen: Mask) -> DeviceCount:
    return DeviceCount(int(devices.units[chosen].sum()), int(devices.taken[chosen].sum()))


def _number(devices: Devices, chosen: Mask | slice = _ALL) -> int:
    """Returns how many devices these are: of a group of equal ones all."""
    return int((devices.units[chosen] // MILLI).sum())


def _term(fleet: Fleet, devices: Devices, alternative: Sequence[PropertyCondition]) -> TermCount:
    remaining = np.ones(len(devices.rows), np.bool_)
    failed = np.zeros(len(devices.rows), np.int64)
    counts = []
    for one in alternative:
        met = selected_rows(fleet, devices.rows, Selector(((one,),)))
        remaining &= met
        failed += ~met
        counts.append(
            RequirementCount(
                key=one.key,
                operator=one.operator,
                values=list(one.values),
                matching=_number(devices, met),
                remaining=_number(devices, remaining),
            )
        )
    nearest = None
    if len(failed) and not remaining.any():
        nearest = _nearest(fleet, int(devices.rows[int(np.argmin(failed))]), alternative)
    return TermCount(requirements=counts, selected=_number(devices, remaining), nearest=nearest)


def _nearest(fleet: Fleet, row: int, alternative: Sequence[PropertyCondition]) -> NearestMiss:
    properties = device_properties(fleet, row)
    fails = list(dict.fromkeys(one.key for one in alternative if not holds(properties.get(one.key), one)))
    return NearestMiss(
        cluster=fleet.names[int(fleet.cluster[fleet.parts.node[row]])],
        part=fleet.part_id(row),
        fails=fails,
        properties={key: properties[key] for key in fails if key in properties},
    )
