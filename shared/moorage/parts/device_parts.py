"""Makes parts of devices and of the counters that they have in common.

A device offers one unit of the class of its driver, or its capacities if it can be divided. Sets of counters that one device
takes of are one part, above all devices that take of them, so that what is taken of a part is taken of ancestors only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from moorage.classes import BUILT_IN, DRIVER, KIND, NUMA, VENDOR
from moorage.model.part_reports import CounterSetReport, DeviceReport, PropertyValue, Typed
from moorage.parsing import CAPACITY_MAX, parse_nanos

#: Begins the paths of devices, whose ids are not those of their node. The node's name in one is left out.
MARK = "="
COUNTERS = "counters"
#: Stands for the parent of parts that several nodes reach: they are roots of their own.
NO_NODE = "\0"
#: Effects of taints that keep pods away.
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
#: Attributes that tell the zone of a device, by their names without a domain.
_ZONE_OF = ("numa", "numaNode", "numaNodeID")
_UNITS = (10**9, 10**6, 1)


class DevicePart(NamedTuple):
    """`takes`: by class, the parts, classes and amounts there that one unit takes of. `unit`: the class that counts devices, and
    how much of it is one; no class for those that are divided, and for what is no device."""

    path: str
    parent: str
    kind: str
    inventories: Mapping[str, int]
    properties: Mapping[str, PropertyValue] = {}
    healthy: bool = True  # new pods may get it
    takes: Mapping[str, Sequence[tuple[str, str, int]]] = {}
    device: int = -1  # its place among the devices
    unit: tuple[str, int] = ("", 1)
    shared: bool = False  # several nodes reach it
    closed: bool = False  # it is healthy, but taints keep new pods away


class BadDevice(NamedTuple):
    path: str
    why: str


@lru_cache(4096)
def class_of(name: str) -> str:
    """Returns the class that a driver, counter or capacity is: its name in capitals."""
    return re.sub("[^A-Z0-9_]", "_", name.upper())[:255]


def unit_of(device: DeviceReport) -> tuple[str, int]:
    """Returns the class that counts devices that are not divided, and how much of it is one."""
    return device.resource or class_of(device.driver or device.kind), device.unit


def path_of_device(node: str, ident: str) -> str:
    """Returns the path of a device with an id DRIVER/POOL/NAME."""
    driver, _, rest = ident.partition("/")
    pool, _, name = rest.rpartition("/")
    return f"{MARK}{driver}//{name}" if pool == node else MARK + ident


def id_of_device(node: str, path: str) -> str:
    return path[len(MARK) :].replace("//", f"/{node}/", 1)


def named_devices(node: str, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Returns the devices that have a name, in the form that equal nodes have in common."""
    common = _common_pools(devices)
    return [
        msgspec.structs.replace(device, id="", pool=_own_pool(node, device, common))
        for device in devices
        if device.name and bool(device.driver) == bool(device.pool) and (device.driver or not device.shared)
    ]


def named_counters(
    node: str, counters: Iterable[CounterSetReport], devices: Iterable[DeviceReport]
) -> list[CounterSetReport]:
    common = _common_pools(devices)
    return [msgspec.structs.replace(found, pool=_own_pool(node, found, common)) for found in counters]


def _common_pools(devices: Iterable[DeviceReport]) -> set[tuple[str, str]]:
    """Returns the pools with devices that several nodes reach. They have the same name on each of them."""
    return {(device.driver, device.pool) for device in devices if device.shared}


def _own_pool(node: str, found: DeviceReport | CounterSetReport, common: Collection[tuple[str, str]]) -> str:
    """Returns the name of a pool; none for the node's own one."""
    return "" if found.pool == node and (found.driver, found.pool) not in common else found.pool


def device_parts(
    devices: Sequence[DeviceReport], counters: Sequence[CounterSetReport], zones: Iterable[str]
) -> Iterator[DevicePart | BadDevice]:
    """Yields the parts, those above others first, and the devices that make no sense. `zones`: the ids of the node's zones."""
    made = _Maker(devices, counters, frozenset(zones))
    yield from made.counter_parts()
    yield from made.device_parts()


_SetKey = tuple[str, str, str]  # driver, pool, set


class _Maker:
    def __init__(
        self, devices: Sequence[DeviceReport], counters: Sequence[CounterSetReport], zones: frozenset[str]
    ) -> None:
        self._devices, self._zones = devices, zones
        self._sets: dict[_SetKey, dict[str, int]] = {}
        self._bad: list[BadDevice] = []
        for found in counters:
            key = found.driver, found.pool, found.name
            path = _path(found.driver, found.pool, f"{COUNTERS}:{found.name}")
            if key in self._sets:
                self._bad.append(BadDevice(path, "another set of counters has this name"))
                continue
            try:
                self._sets[key] = {name: _amount(name, text) for name, text in found.counters.items()}
                _check_classes(found.counters)
            except ValueError as error:
                self._sets.pop(key, None)
                self._bad.append(BadDevice(path, str(error)))
        self._first = {key: key for key in self._sets}
        self._consumed: list[dict[tuple[_SetKey, str], int] | str] = [self._consumption(device) for device in devices]
        for consumed in self._consumed:
            if not isinstance(consumed, str):
                self._join({key for key, _ in consumed})
        self._members: dict[_SetKey, list[_SetKey]] = {}
        for key in self._sets:
            self._members.setdefault(self._head(key), []).append(key)
        self._unit = self._units()

    def _consumption(self, device: DeviceReport) -> dict[tuple[_SetKey, str], int] | str:
        """Returns what the device takes of each counter, or why that makes no sense."""
        found: dict[tuple[_SetKey, str], int] = {}
        for name, amounts in device.consumes.items():
            key = device.driver, device.pool, name
            for counter, text in amounts.items():
                if counter not in self._sets.get(key, {}):
                    return f"it takes of the counter {name[:80]}/{counter[:80]}, which is not there"
                try:
                    found[key, counter] = _amount(counter, text)
                except ValueError as error:
                    return str(error)
        return found

    def _head(self, key: _SetKey) -> _SetKey:
        while self._first[key] != key:
            key = self._first[key]
        return key

    def _join(self, keys: set[_SetKey]) -> None:
        heads = sorted({self._head(key) for key in keys})
        for other in heads[1:]:
            self._first[other] = heads[0]

    def _units(self) -> dict[tuple[_SetKey, str], int]:
        """Returns the largest unit in which all amounts of each counter are whole, in nano units."""
        amounts = {(key, counter): [amount] for key, set_ in self._sets.items() for counter, amount in set_.items()}
        for consumed in self._consumed:
            for counter_key, amount in () if isinstance(consumed, str) else consumed.items():
                amounts[counter_key].append(amount)
        return {key: next(u for u in _UNITS if all(not n % u for n in all_of)) for key, all_of in amounts.items()}

    def _class(self, key: _SetKey, counter: str) -> str:
        alone = len(self._members[self._head(key)]) == 1
        return class_of(counter if alone else f"{key[2]}_{counter}")

    def counter_parts(self) -> Iterator[DevicePart | BadDevice]:
        yield from self._bad
        zones: dict[_SetKey, set[str]] = {}
        shared = {
            self._head(key)
            for device, consumed in zip(self._devices, self._consumed, strict=True)
            if device.shared and not isinstance(consumed, str)
            for key, _ in consumed
        }
        for device, consumed in zip(self._devices, self._consumed, strict=True):
            for key, _ in () if isinstance(consumed, str) else consumed:
                zones.setdefault(self._head(key), set()).add(self._parent(device))
        for head, members in self._members.items():
            of = zones.get(head, set())
            amounts: dict[str, int] = {}
            for key in members:
                for counter, amount in self._sets[key].items():
                    name = self._class(key, counter)
                    # Names that differ only in what a class cannot have are one class, of which the least is there.
                    amount = min(amount // self._unit[key, counter], CAPACITY_MAX)
                    amounts[name] = min(amount, amounts.get(name, amount))
            parent = NO_NODE if head in shared else of.pop() if len(of) == 1 else ""
            yield DevicePart(self._part_of(head), parent, COUNTERS, amounts, shared=head in shared)

    def _part_of(self, head: _SetKey) -> str:
        return _path(head[0], head[1], f"{COUNTERS}:{head[2]}")

    def device_parts(self) -> Iterator[DevicePart | BadDevice]:
        for place, (device, consumed) in enumerate(zip(self._devices, self._consumed, strict=True)):
            path = _path_of(device)
            if not _is_name(device):
                yield BadDevice(path, "this is no name of a device")
                continue
            if isinstance(consumed, str):
                yield BadDevice(path, consumed)
                continue
            try:
                offered = _offered(device, consumed)
            except ValueError as error:
                yield BadDevice(path, str(error))
                continue
            heads = {self._head(key) for key, _ in consumed}
            parent = self._part_of(heads.pop()) if heads else self._parent(device)
            takes = [
                (parent, self._class(key, counter), amount // self._unit[key, counter])
                for (key, counter), amount in consumed.items()
                if amount
            ]
            effects = {taint.effect for taint in device.taints}
            yield DevicePart(
                path,
                parent,
                device.kind or device.driver,
                offered,
                {} if device.elsewhere else properties_of(device),
                device.healthy and not device.elsewhere and effects.isdisjoint(_KEEPS_AWAY),
                {next(iter(offered)) if not device.divisible else class_of(device.driver): takes} if takes else {},
                -1 if device.elsewhere else place,
                ("", 1) if device.divisible or device.elsewhere else (next(iter(offered)), device.unit),
                device.shared,
                device.healthy and not device.elsewhere and effects & set(_KEEPS_AWAY) == {"NoSchedule"},
            )

    def _parent(self, device: DeviceReport) -> str:
        return NO_NODE if device.shared else self._zone(device)

    def _zone(self, device: DeviceReport) -> str:
        """Returns the zone that the device is of, as far as it is known; else it is the node's."""
        if device.zone:
            return device.zone if device.zone in self._zones else ""
        for name, value in device.attributes.items():
            if name.rpartition("/")[2] in _ZONE_OF and isinstance(value, int) and not isinstance(value, bool):
                zone = f"numa-{value}"
                return zone if zone in self._zones else ""
        return ""


def _path_of(device: DeviceReport) -> str:
    """Returns the path; that of a device without a driver follows its node's name."""
    if device.driver:
        return _path(device.driver, device.pool, device.name)
    return f"{device.zone}/{device.name}" if device.zone else device.name


def path_in_layout(device: DeviceReport) -> str:
    """Returns the path of the device's part among those of its node."""
    path = _path_of(device)
    return path if path.startswith(MARK) else f"/{path}"


def _is_name(device: DeviceReport) -> bool:
    """Returns whether driver, pool and name can be told from the id."""
    if not device.driver:
        return not device.name.startswith(("/", MARK))
    segments = device.pool.split("/") if device.pool else ()  # empty: the node's own
    return "/" not in device.driver + device.name and all(segments)


def _path(driver: str, pool: str, name: str) -> str:
    return f"{MARK}{driver}/{pool}/{name}"


def _offered(device: DeviceReport, consumed: Collection[object]) -> dict[str, int]:
    if not device.divisible:
        name, _ = unit_of(device)
        if not 0 <= device.quantity <= CAPACITY_MAX // max(device.unit, 1) or device.unit < 1:
            raise ValueError(f"{device.quantity} is no number of devices")
        return {name: device.quantity * device.unit}
    names = [*device.capacity, device.driver] if consumed else list(device.capacity)
    _check_classes(names)
    found = {name: _amount(name, text) // _UNITS[0] for name, text in device.capacity.items()}
    offered = {class_of(name): min(amount, CAPACITY_MAX) for name, amount in found.items()}
    # Whoever has it first takes the counters, once for all.
    return offered | {class_of(device.driver): 1} if consumed else offered


def _check_classes(names: Collection[str]) -> None:
    if len({class_of(name) for name in names}) < len(names):
        raise ValueError("names of two amounts are one class")


def _amount(name: str, text: str) -> int:
    """Returns an amount in nano units."""
    try:
        amount = parse_nanos(text)
    except ValueError as error:
        raise ValueError(f"{name[:80]}: {error}") from error
    if amount < 0:
        raise ValueError(f"{name[:80]}: {text[:80]!r} is negative")
    return amount


def properties_of(device: DeviceReport) -> dict[str, PropertyValue]:
    """Returns attributes and capacities, each under its short and its qualified name, further properties, and the built-in
    ones but those that tell devices of one kind apart."""
    found: dict[str, PropertyValue] = {}
    given: dict[str, PropertyValue] = {name: Typed(quantity=text) for name, text in device.capacity.items()}
    given |= device.attributes
    for name, value in given.items():
        found.setdefault(name.rpartition("/")[2], value)
    for name, value in given.items():
        if "/" not in name:
            found[name] = value  # the driver's own one
        if device.driver or "/" in name:
            found[name if "/" in name else f"{device.driver}/{name}"] = value
    found |= device.properties
    for name in BUILT_IN:
        found.pop(name, None)
    found[KIND] = device.kind or device.driver
    if device.vendor:
        found[VENDOR] = device.vendor
    if device.driver:
        found[DRIVER] = device.driver
    if (numa := _numa(device)) is not None:
        found[NUMA] = numa
    return found


def _numa(device: DeviceReport) -> int | None:
    """Returns the number of the device's zone."""
    prefix, _, number = device.zone.rpartition("-")
    if prefix and number.isdecimal() and len(number) < 10:
        return int(number)
    for name, value in device.attributes.items():
        if name.rpartition("/")[2] in _ZONE_OF and isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
