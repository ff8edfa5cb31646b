"""Reads what fleet files say of the devices of nodes, and of the counters that devices share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moorage.classes import read_value
from moorage.model.documents import Strict
from moorage.model.part_reports import CounterSetReport, DeviceReport, DeviceTaint, PropertyValue, Typed, ZoneReport
from moorage.model.problems import Violation
from moorage.parsing import parse_bandwidth, parse_nanos
from moorage.parts.device_parts import class_of, path_in_layout, unit_of
from moorage.parts.inside import Inside, encode, zone_id
from moorage.parts.layout import layout_of

from .value_rules import NAMED, Quantity, amount_errors, is_whole, property_errors, text_of, violation

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule", "None")
_TYPES = ("string", "quantity", "bandwidth", "version", "int", "bool")
#: The capacity of a device that can be shared and has no quantity among its properties.
_WHOLE = {"share": "1000"}
_NANO = 10**9


class DeviceTaintDocument(Strict, kw_only=True):
    key: str
    effect: str
    value: str = ""


class DeviceDocument(Strict, kw_only=True):
    name: str
    kind: str = ""
    vendor: str = ""
    quantity: int = 1
    properties: dict[str, Any] = {}
    zone: int | str = ""
    healthy: bool = True
    taints: list[DeviceTaintDocument] = []
    shared: bool = False
    consumes: dict[str, dict[str, Quantity]] = {}
    used: Quantity | dict[str, Quantity] = 0


Counters = Mapping[str, Mapping[str, Quantity]]


def device_reports(devices: Sequence[DeviceDocument]) -> list[DeviceReport]:
    """Returns the devices as reports have them, of documents in which `check_devices` found nothing wrong."""
    return [_report(device) for device in devices]


def counter_reports(counters: Counters) -> list[CounterSetReport]:
    return [
        CounterSetReport(name=name, counters={counter: text_of(amount) for counter, amount in amounts.items()})
        for name, amounts in counters.items()
    ]


def devices_in_use(devices: Sequence[DeviceDocument]) -> dict[str, dict[str, int]]:
    """Returns what others hold of devices from the start, by part and class."""
    found: dict[str, dict[str, int]] = {}
    for device in devices:
        report = _report(device)
        if isinstance(device.used, dict):
            held = {class_of(name): _whole(amount) for name, amount in device.used.items()}
        else:
            held = {unit_of(report)[0]: _whole(device.used)}
        if held := {name: amount for name, amount in held.items() if amount}:
            found[path_in_layout(report)[1:]] = held
    return found


def _report(device: DeviceDocument) -> DeviceReport:
    properties = {name: _value(value) for name, value in device.properties.items()}
    capacity = {name: text for name, value in properties.items() if (text := _capacity(value))} if device.shared else {}
    return DeviceReport(
        name=device.name,
        kind=device.kind,
        vendor=device.vendor,
        properties=properties,
        healthy=device.healthy,
        zone=zone_id(device.zone),
        quantity=device.quantity,
        capacity=(capacity or _WHOLE) if device.shared else {},
        taints=[DeviceTaint(key=taint.key, value=taint.value, effect=taint.effect) for taint in device.taints],
        divisible=device.shared,
        consumes={name: {c: text_of(n) for c, n in amounts.items()} for name, amounts in device.consumes.items()},
    )


def _value(value: Any) -> PropertyValue:
    """Returns a value as its type says, or as what it reads as. Raises ValueError for what is none."""
    if isinstance(value, list):
        return tuple(one for one in map(_value, value) if not isinstance(one, tuple))
    if isinstance(value, dict):
        if len(value) != 1 or next(iter(value)) not in _TYPES:
            raise ValueError(f"a typed value is one of {', '.join(_TYPES)} with its value, like {{version: '1.2'}}")
        kind, text = next(iter(value.items()))
        return read_value(_plain(text), kind)
    if isinstance(value, str):
        return read_value(value)
    if isinstance(value, bool | int | float):
        return value
    raise ValueError("must be a bool, a number, text, a list of these, or a typed value")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _capacity(value: PropertyValue) -> str:
    """Returns the amount of a property that is one; "" for others."""
    if not isinstance(value, Typed):
        return ""
    return value.quantity or (f"{parse_bandwidth(value.bandwidth) // _NANO}" if value.bandwidth else "")


def _whole(amount: Quantity) -> int:
    return -(-parse_nanos(text_of(amount)) // _NANO)


# --- rules ------------------------------------------------------------------------------------------------------------


def check_devices(devices: Sequence[DeviceDocument], counters: Counters, zones: set[str], path: str) -> list[Violation]:
    """Returns what is wrong with the devices and counters of a node with these zones."""
    errors = [*_counter_errors(counters, f"{path}.counters")]
    names: set[str] = set()
    for i, device in enumerate(devices):
        at = f"{path}.devices[{i}]"
        errors += _device_errors(device, counters, zones, at)
        name = f"{zone_id(device.zone)}/{device.name}"
        if name in names:
            errors.append(violation(f"{at}.name", "Duplicate", f"another device has the name {device.name}"))
        names.add(name)
    return errors or [*_layout_errors(devices, counters, path)]


def _counter_errors(counters: Counters, path: str) -> Iterator[Violation]:
    for name, amounts in counters.items():
        if not _NAME.fullmatch(name):
            yield violation(f"{path}.{name}", "BadName", f"{name!r} is not a name of a set of counters")
        for counter, amount in amounts.items():
            if not NAMED.fullmatch(counter):
                yield violation(f"{path}.{name}.{counter}", "BadName", f"{counter[:80]!r} is not a name of a counter")
            yield from amount_errors("", amount, f"{path}.{name}.{counter}")


def _device_errors(device: DeviceDocument, counters: Counters, zones: set[str], at: str) -> Iterator[Violation]:
    if not _NAME.fullmatch(device.name):
        yield violation(f"{at}.name", "BadName", f"{device.name!r} is not a name of a device")
    if not device.kind:
        yield violation(f"{at}.kind", "Required", "is required: what classes call Kind")
    for field, text in (("kind", device.kind), ("vendor", device.vendor)):
        if text and not NAMED.fullmatch(text):
            message = f"{text[:80]!r} must be 1 to 255 characters, none of them a control character"
            yield violation(f"{at}.{field}", "BadName", message)
    if not 0 <= device.quantity <= 1 << 40:
        yield violation(f"{at}.quantity", "OutOfRange", "must be 0 or more")
    if (zone := zone_id(device.zone)) and zone not in zones:
        yield violation(f"{at}.zone", "UnknownZone", f"no zone has the id {zone}")
    for name, value in device.properties.items():
        where = f"{at}.properties.{name}"
        try:
            capacity = _capacity(_value(value))
        except ValueError as error:
            yield violation(where, "BadValue", str(error))
            continue
        if capacity and device.shared:
            yield from amount_errors("", capacity, where)
    yield from property_errors(device.properties, f"{at}.properties")
    for i, taint in enumerate(device.taints):
        if not NAMED.fullmatch(taint.key):
            yield violation(f"{at}.taints[{i}].key", "Required", "must be 1 to 255 characters, like example.com/broken")
        if taint.effect not in EFFECTS:
            yield violation(f"{at}.taints[{i}].effect", "BadValue", f"must be one of {', '.join(EFFECTS)}")
    if device.shared and (device.consumes or device.quantity != 1):
        yield violation(f"{at}.shared", "Contradiction", "a shared device is one, and consumes nothing of counters")
    for name, amounts in device.consumes.items():
        for counter, amount in amounts.items():
            if counter not in counters.get(name, {}):
                message = f"the node has no counter {counter} in a set {name}"
                yield violation(f"{at}.consumes.{name}.{counter}", "UnknownCounter", message)
            yield from amount_errors("", amount, f"{at}.consumes.{name}.{counter}")
    used = device.used if isinstance(device.used, dict) else {"": device.used}
    if isinstance(device.used, dict) != device.shared and device.used:
        wanted = "amounts of its capacities" if device.shared else "a number of devices"
        yield violation(f"{at}.used", "WrongType", f"must be {wanted}")
    for name, amount in used.items():
        where = f"{at}.used{'.' + name if name else ''}"
        yield from amount_errors("", amount, where)
        if not name and not is_whole(amount):
            yield violation(where, "BadQuantity", "devices are counted in whole ones")


def _layout_errors(devices: Sequence[DeviceDocument], counters: Counters, path: str) -> Iterator[Violation]:
    """Yields what the parts that would be made of the devices say is wrong."""
    zones = [ZoneReport(id=zone) for zone in sorted({zone_id(device.zone) for device in devices} - {""})]
    inside = Inside(zones=zones, devices=device_reports(devices), counters=counter_reports(counters))
    layout = layout_of(encode(inside))
    for dropped in layout.dropped:
        yield violation(f"{path}.devices", "BadInventory", str(dropped))
    for i, (device, (part, held)) in enumerate(_held(devices)):
        inventories = layout.parts[layout.at[part]].inventories if part in layout.at else {}
        for name, amount in held.items():
            if name not in inventories or amount > inventories[name].capacity:
                message = f"more of {device.name} is in use than there is"
                yield violation(f"{path}.devices[{i}].used", "BadInventory", message)


def _held(devices: Sequence[DeviceDocument]) -> Iterator[tuple[DeviceDocument, tuple[str, dict[str, int]]]]:
    for device in devices:
        for part, held in devices_in_use([device]).items() or (("", {}),):
            yield device, (f"/{part}", held)
