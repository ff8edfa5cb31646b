"""Explains which devices a need selects: how many meet each of its conditions, and which one comes nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moorage.classes import CLUSTER, KIND
from moorage.model.part_reports import PropertyValue, Typed
from moorage.model.part_requests import DeviceAsk, PartGroup, PropertyCondition
from moorage.model.shapes import Shape
from moorage.parts.device_slots import class_name
from moorage.parts.device_table import EMPTY, DeviceTable
from moorage.parts.layout import part_id
from moorage.parts.properties import Properties, meets

from .asked_parts import Asked
from .inner_rows import nodes_by_layout
from .protocols import Mask, Rows
from .static_inside import StaticInside

#: Characters of an expression that are shown.
_SHOWN = 120


class ConditionCount(NamedTuple):
    """A condition, as it is written, and how many devices meet it. `errors`: of how many it cannot be told."""

    text: str
    meeting: int
    errors: int = 0


class NearestDevice(NamedTuple):
    """The device that fails the fewest conditions: its cluster and id, and what it has instead."""

    cluster: str
    part: str
    fails: str


class Selection(NamedTuple):
    conditions: list[ConditionCount]
    nearest: NearestDevice | None

    @property
    def errors(self) -> int:
        return max((one.errors for one in self.conditions), default=0)


class _Device(NamedTuple):
    number: int  # of devices that it stands for
    node: int
    path: str
    verdicts: list[bool | None]
    properties: Properties


def explain_selection(rows: Rows, ask: DeviceAsk, about: Mask) -> Selection:
    """Counts the devices of usable nodes of these clusters. Of alternatives of a class, the one is explained that the nearest device
    comes nearest to."""
    best = Selection([], None)
    fewest = -1
    for alternative in ask.properties or ((),):
        own = tuple(one for one in alternative if not _is_added(one))
        devices = _devices(rows, ask, own, about)
        texts = [_condition(one) for one in own] + [one[:_SHOWN] for one in _expressions(rows, ask, about)]
        counts = [
            ConditionCount(
                text,
                sum(device.number for device in devices if device.verdicts[i]),
                sum(device.number for device in devices if device.verdicts[i] is None),
            )
            for i, text in enumerate(texts)
        ]
        nearest = min(devices, key=lambda device: sum(not one for one in device.verdicts), default=None)
        failing = 0 if nearest is None else sum(not one for one in nearest.verdicts)
        if fewest < 0 or (nearest is not None and failing < fewest):
            fewest = failing
            best = Selection(counts, _named(rows, nearest, own, texts) if nearest is not None and failing else None)
    return best


def _expressions(rows: Rows, ask: DeviceAsk, about: Mask) -> Sequence[str]:
    """Returns the expressions of the DeviceClass and of the request, as the first cluster has the class."""
    if rows.layout is not None:
        used = np.unique(rows.layout[: rows.n][about[rows.cluster[: rows.n]]])
        for number in used.tolist():
            table = StaticInside.of(rows.parts.layouts.found[number]).table if number else EMPTY
            if (found := table.classes.get(class_name(ask, table))) is not None:
                return (*found.selectors, *ask.selectors)
    return ask.selectors


def _devices(rows: Rows, ask: DeviceAsk, own: Sequence[PropertyCondition], about: Mask) -> list[_Device]:
    ids = np.flatnonzero(rows.usable[: rows.n] & about[rows.cluster[: rows.n]])
    expressions = _expressions(rows, ask, about)
    found: list[_Device] = []
    if not len(ids):
        return found
    asked = Asked(Shape(key="", object="", groups=[PartGroup(devices=(ask,))]))
    for layout, at, _ in nodes_by_layout(rows, ids, lambda _: (), asked=[asked]):
        table = StaticInside.of(layout).table
        by_expression = [_verdicts(table, expression) for expression in expressions]
        for part in layout.parts:
            if part.device < 0:
                continue
            report = table.devices[part.device]
            number = (1 if report.divisible else report.quantity) * len(at)
            verdicts: list[bool | None] = [meets(part.properties, ((one,),)) for one in own]
            verdicts += [of[part.device] for of in by_expression]
            found.append(_Device(number, int(ids[at[0]]), part.path, verdicts, part.properties))
    return found


def _verdicts(table: DeviceTable, expression: str) -> Sequence[bool | None]:
    return table.verdicts((expression,))


def _named(rows: Rows, device: _Device, own: Sequence[PropertyCondition], texts: Sequence[str]) -> NearestDevice:
    properties = dict(device.properties)
    fails = []
    for i, verdict in enumerate(device.verdicts):
        if verdict:
            continue
        if i < len(own):
            value = properties.get(own[i].key)
            fails.append(f"{own[i].key} is {_text(value)}" if value is not None else f"{own[i].key} is missing")
        else:
            fails.append(f"{'an error in' if verdict is None else 'not'} {texts[i]}")
    node = rows.node_name(device.node)
    cluster = rows.names[int(rows.cluster[device.node])]
    return NearestDevice(cluster, part_id(node, device.path), " and ".join(fails))


def _is_added(one: PropertyCondition) -> bool:
    """Returns whether nobody wrote the condition: that it is a device, or on which clusters a class is another one."""
    return one.key == CLUSTER or (one.key == KIND and one.operator == "Exists")


def _condition(one: PropertyCondition) -> str:
    return f"{one.key} {one.operator} {','.join(one.values)}".rstrip()


def _text(value: PropertyValue) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if isinstance(value, Typed):
        return value.quantity or value.version or value.bandwidth or value.string
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
