"""Tells which devices of a node are selected, which values they have in common, and how much is taken of their capacities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from moorage.cel import CelDevice, SelectorCache
from moorage.cel.analysis import ATTRIBUTES
from moorage.cel.devices import CelValue, version
from moorage.model.part_reports import (
    CapacityPolicy,
    DeviceClassReport,
    DeviceReport,
    DeviceTaint,
    PropertyValue,
    Typed,
)
from moorage.model.part_requests import DeviceToleration
from moorage.parsing import parse_nanos

from .device_parts import class_of
from .identities import is_identity
from .properties import Properties

_NANO = 10**9
#: Effects of taints that keep pods away.
KEEPS_AWAY = ("NoSchedule", "NoExecute")
_selectors = SelectorCache(4096)


class DeviceTable:
    """The devices of a layout, in the order in which they are looked at, and the DeviceClasses of the cluster. `incomplete`:
    there are pools of which no device counts."""

    def __init__(
        self, devices: Sequence[DeviceReport] = (), classes: Iterable[DeviceClassReport] = (), incomplete: bool = False
    ) -> None:
        self.devices = devices
        self.classes = {found.name: found for found in classes}
        #: By extended resource, the DeviceClass that serves it.
        self.serving = {
            found.extended_resource: name for name, found in self.classes.items() if found.extended_resource
        }
        self.incomplete = incomplete
        self._verdicts: dict[tuple[str, ...], list[bool | None]] = {}
        self._values: dict[tuple[int, str], frozenset[object] | None] = {}

    @cached_property
    def has_alike(self) -> bool:
        """Returns whether it matters which devices no selector tells apart."""
        return any(device.alike for device in self.devices)

    @cached_property
    def _as_cel(self) -> list[CelDevice | None]:
        """Returns the devices as expressions see them; None for those whose capacities cannot be read."""
        return [_cel_device(device) for device in self.devices]

    def verdicts(self, expressions: tuple[str, ...]) -> list[bool | None]:
        """Returns for each device whether all expressions select it; None if one of them has an error before that is known."""
        known = self._verdicts.get(expressions)
        if known is None:
            compiled = [_selectors.get(expression) for expression in expressions]
            known = self._verdicts[expressions] = [_verdict(compiled, device) for device in self._as_cel]
        return known

    def values(self, device: int, attribute: str) -> frozenset[object] | None:
        """Returns the values of an attribute by its qualified name; None if the device does not have it."""
        key = device, attribute
        if key not in self._values:
            self._values[key] = self._read_values(self.devices[device], attribute)
        return self._values[key]

    @staticmethod
    def _read_values(found: DeviceReport, attribute: str) -> frozenset[object] | None:
        value = found.attributes.get(attribute)
        if value is None:
            domain, slash, own = attribute.partition("/")
            value = found.attributes.get(own) if slash and domain == found.driver else None
        if value is None:
            return None
        return frozenset(map(_identity, value if isinstance(value, tuple) else (value,)))

    def taken(self, device: int, asked: Mapping[str, str], share: int = 0) -> dict[str, int] | None:
        """Returns what one pod takes of the device's capacities, by class; None if the device cannot give it. `share`: thousandths of
        what is not asked for by name.

        Of a device that is not divided nothing is taken, but it must have what is asked for. Of one without a driver, whose
        capacities are properties, nothing is taken beside what is asked for by name."""
        found = self.devices[device]
        if any(name not in found.capacity for name in asked):
            return None
        if share:
            if not found.divisible:
                return None
            asked = {**_shares(found.capacity, share), **asked}
        taken: dict[str, int] = {}
        for name, text in found.capacity.items():
            if asked and name not in asked and not found.driver:
                continue
            try:
                total = parse_nanos(text)
                amount = _granted(asked.get(name), total, found.policies.get(name))
            except ValueError:
                return None
            if amount is None or amount > total:
                return None
            if found.divisible:
                taken[class_of(name)] = -(-amount // _NANO)
        return taken


def reads_identity(expression: str) -> bool:
    """Returns whether an expression reads an attribute that only one device has."""
    selector = _selectors.get(expression)
    names = selector.analysis.names if selector is not None else ()
    return any(one.root == ATTRIBUTES and (one.name == "*" or is_identity(one.name)) for one in names)


def _shares(capacity: Mapping[str, str], share: int) -> dict[str, str]:
    """Returns thousandths of all capacities, rounded up to whole units."""
    shares: dict[str, str] = {}
    for name, text in capacity.items():
        try:
            shares[name] = str(-(-parse_nanos(text) * share // (1000 * _NANO)))
        except ValueError:
            continue  # what cannot be read is not given at all
    return shares


def property_values(properties: Properties, name: str) -> frozenset[object] | None:
    """Returns the values of a property; None if it is missing."""
    found = next((value for key, value in properties if key == name), None)
    if found is None:
        return None
    return frozenset(map(_identity, found if isinstance(found, tuple) else (found,)))


def _verdict(selectors: Sequence[object], device: CelDevice | None) -> bool | None:
    for selector in selectors:
        found = None if selector is None or device is None else selector.matches(device)  # type: ignore[attr-defined]
        if not found:
            return None if found is None else False
    return True


def _cel_device(device: DeviceReport) -> CelDevice | None:
    attributes = {name: _cel_value(value) for name, value in device.attributes.items()}
    try:
        return CelDevice.of(device.driver, attributes, device.capacity, device.divisible)
    except ValueError:
        return None


def _cel_value(value: PropertyValue) -> CelValue:
    if isinstance(value, tuple):
        return [_cel_value(one) for one in value]
    if isinstance(value, Typed):
        return version(value.version)
    return value


def _identity(value: PropertyValue) -> object:
    return type(value).__name__, value


def _granted(asked: str | None, total: int, policy: CapacityPolicy | None) -> int | None:
    """Returns how much is given of a capacity, in nano units: what is asked for, rounded up as the policy says. None if the
    policy does not allow it."""
    if asked is None:
        return parse_nanos(policy.default) if policy is not None and policy.default else total
    amount = parse_nanos(asked)
    if policy is None:
        return amount
    if policy.values:
        values = [parse_nanos(value) for value in policy.values]
        fitting = [value for value in values if value >= amount]
        return fitting[0] if fitting else None
    if policy.minimum:
        least = parse_nanos(policy.minimum)
        step = -(-parse_nanos(policy.step) // _NANO) * _NANO if policy.step else 0
        if amount < least:
            amount = least
        elif step:
            least = -(-least // _NANO) * _NANO
            amount = least + -(-(-(-amount // _NANO) * _NANO - least) // step) * step
    if policy.maximum and amount > parse_nanos(policy.maximum):
        return None
    return amount


def tolerated(taints: Iterable[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> bool:
    """Returns whether no taint keeps a pod with these tolerations away."""
    return all(taint.effect not in KEEPS_AWAY or any(tolerates(one, taint) for one in tolerations) for taint in taints)


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.value == taint.value


EMPTY = DeviceTable()
