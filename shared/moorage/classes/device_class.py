"""Writes a resource class as a DeviceClass of Kubernetes, whose CEL expression selects the same devices."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from moorage.model.part_requests import PropertyCondition
from moorage.model.resource_classes import DeviceSourceSpec, PropertySource

from .conditions import ORDERS
from .selector import DRIVER, KIND, NUMA, VENDOR, Selector
from .typed_values import readings

_SIGNS = {"Gt": ">", "GtEq": ">=", "Lt": "<", "LtEq": "<="}
_NUMA = "resource.kubernetes.io/numaNode"
API_VERSION = "resource.k8s.io/v1"


class DeviceClass(NamedTuple):
    """`unsaid`: what the expression cannot say, so that it selects more or less than the class."""

    manifest: dict[str, Any]
    unsaid: list[str]


def device_class(name: str, selector: Selector, sources: Iterable[DeviceSourceSpec]) -> DeviceClass:
    """Returns the DeviceClass of a selector; `sources` tell which drivers have a kind, and where its properties come from."""
    writer = _Writer([source for source in sources if source.match.driver])
    terms = [term for alternative in selector.alternatives for term in writer.terms(alternative)]
    expression = " || ".join(f"({term})" for term in terms) if len(terms) > 1 else "".join(terms) or "false"
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    return DeviceClass(manifest, list(dict.fromkeys(writer.unsaid)))


class _Writer:
    def __init__(self, sources: list[DeviceSourceSpec]) -> None:
        self._sources = sources
        self.unsaid: list[str] = []

    def terms(self, alternative: Iterable[PropertyCondition]) -> Iterator[str]:
        """Yields an expression for each driver whose devices an alternative may select."""
        conditions = list(alternative)
        others = [one for one in conditions if one.key not in (KIND, VENDOR, DRIVER)]
        drivers = self._drivers([one for one in conditions if one.key in (KIND, VENDOR, DRIVER)])
        own = self._with_own_names({one.key for one in others}) if drivers == [""] else []
        for driver in [*own, *drivers]:
            said = [f"device.driver == {_quoted(driver)}"] if driver else []
            if own and not driver:
                said = [f"!(device.driver in [{', '.join(map(_quoted, own))}])"]
            said += [text for one in others if (text := self._condition(one, driver))]
            yield " && ".join(said) or "true"

    def _with_own_names(self, keys: Collection[str]) -> list[str]:
        """Returns the drivers whose sources say where some of these properties come from."""
        found = {source.match.driver for source in self._sources if not source.properties.keys().isdisjoint(keys)}
        if patterns := sorted(driver for driver in found if "*" in driver):
            self.unsaid.append(f"what the DeviceSources of {', '.join(patterns)} say of properties is left out")
        return sorted(driver for driver in found if "*" not in driver)

    def _drivers(self, conditions: list[PropertyCondition]) -> list[str]:
        """Returns the drivers whose devices meet conditions on kind, vendor and driver; "" is any driver."""
        if not conditions:
            return [""]
        known = {
            source.match.driver: {KIND: source.kind or source.match.driver, VENDOR: source.vendor}
            for source in self._sources
        }
        for one in conditions:  # a driver without a source is a kind of its own
            for text in one.values if one.key in (KIND, DRIVER) and one.operator in ("In", "Eq") else ():
                if "." in text:
                    known.setdefault(text, {KIND: text, VENDOR: ""})
        found = [
            driver
            for driver, values in sorted(known.items())
            if "*" not in driver and all(_holds(values | {DRIVER: driver}, one) for one in conditions)
        ]
        if not any(one.operator in ("In", "Eq") for one in conditions):
            self.unsaid.append("devices of drivers without a DeviceSource are left out")
        elif not found:
            names = ", ".join(f"{one.key} {one.operator} {list(one.values)}" for one in conditions)
            self.unsaid.append(f"no DRA driver is known for {names}; add a DeviceSource that names its driver")
        return found

    def _condition(self, one: PropertyCondition, driver: str) -> str:
        what = f"{one.key} {one.operator} {', '.join(one.values)}".strip()
        place = self._place(one, driver)
        if place is None:
            self.unsaid.append(f"{what}: no attribute or capacity of a device tells it")
            return ""
        path, is_capacity = place
        there = f"has({path})"
        if one.operator in ("Exists", "DoesNotExist"):
            if not driver and "/" not in one.key:
                there = f"({there} || has({_path('capacity', one.key, driver)}))"
            return there if one.operator == "Exists" else f"!{there}"
        if one.operator in ORDERS:
            compared = self._order(one, path, is_capacity)
            if not compared:
                self.unsaid.append(f"{what}: DRA has no such type")
                return ""
            return f"{there} && {compared}"
        among = " || ".join(_equal(path, text, is_capacity) for text in one.values)
        return f"(!{there} || !({among}))" if one.operator == "NotIn" else f"{there} && ({among})"

    def _place(self, one: PropertyCondition, driver: str) -> tuple[str, bool] | None:
        """Returns the path of a property in an expression, and whether it is a capacity."""
        if one.key == NUMA:
            return _path("attributes", _NUMA, driver), False
        source = next((s for s in self._sources if driver and fnmatchcase(driver, s.match.driver)), None)
        mapped: PropertySource | None = source.properties.get(one.key) if source is not None else None
        if mapped is not None and (mapped.attribute or mapped.capacity):
            kind = "capacity" if mapped.capacity else "attributes"
            return _path(kind, mapped.attribute or mapped.capacity, driver), bool(mapped.capacity)
        if mapped is not None or one.key in ("Name", "Node", "Cluster"):
            return None
        is_capacity = bool(one.values) and all(_is_size(text) for text in one.values)
        return _path("capacity" if is_capacity else "attributes", one.key, driver), is_capacity

    def _order(self, one: PropertyCondition, path: str, is_capacity: bool) -> str:
        text, sign = one.values[0], _SIGNS[one.operator]
        read: Mapping[Any, object] = readings(text)
        if is_capacity:
            return f"{path}.compareTo(quantity({_quoted(text)})) {sign} 0" if "number" in read else ""
        if text.lstrip("+-").isdecimal():
            return f"type({path}) == int && {path} {sign} {int(text)}"
        if isinstance(version := read.get("version"), tuple):
            padded = ".".join(map(str, (*version, 0, 0, 0)[: max(3, len(version))]))
            return f"{path}.compareTo(semver({_quoted(padded)})) {sign} 0"
        return ""


def _holds(values: Mapping[str, str], one: PropertyCondition) -> bool:
    value = values.get(one.key, "")
    match one.operator:
        case "Exists":
            return bool(value)
        case "DoesNotExist":
            return not value
        case "In" | "Eq":
            return value in one.values
        case "NotIn":
            return value not in one.values
    return False


def _path(kind: str, name: str, driver: str) -> str:
    """Returns the path of an attribute or capacity. What has no domain is in that of the device's driver, whichever it is."""
    domain, slash, own = name.partition("/")
    if not slash:
        domain, own = driver, name
    return f"device.{kind}[{_quoted(domain) if domain else 'device.driver'}].{own}"


def _equal(path: str, text: str, is_capacity: bool) -> str:
    if is_capacity:
        return f"{path}.compareTo(quantity({_quoted(text)})) == 0"
    if text in ("true", "false"):
        return f"({path} == {text} || {path} == {_quoted(text)})"
    if text.lstrip("+-").isdecimal():
        return f"({path} == {int(text)} || {path} == {_quoted(text)})"
    return f"{path} == {_quoted(text)}"


def _is_size(text: str) -> bool:
    return not text[-1:].isdecimal() and "number" in readings(text)


def _quoted(text: str) -> str:
    return json.dumps(text)
