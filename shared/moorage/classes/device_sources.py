"""Maps devices to kind, vendor and properties, as sources of devices say: those of DRA drivers, and those that extended resources
and huge pages of nodes count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TypeVar

import msgspec

from moorage.model.part_reports import DeviceReport, PropertyValue, Typed
from moorage.model.resource_classes import DeviceSourceSpec, PropertySource, SourceMatch
from moorage.parsing import parse_bandwidth, parse_nanos, parse_version

HUGE_PAGES = "hugepages-"
#: Extended resources of an old form of Kubernetes; the kind is what follows.
OPAQUE = "pod.alpha.kubernetes.io/opaque-int-resource-"
_INT = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_SUFFIXED = re.compile(r"[0-9.+-]+(?:[numkMGTPE]|[KMGTPE]i)", re.ASCII)
_NANO = 10**9
_Value = TypeVar("_Value")


def read_value(text: str, kind: str = "") -> PropertyValue:
    """Returns the value that a text is: a bool, an int, a quantity with a suffix, a bandwidth with a unit, else a string.
    `kind` says what it is instead; raises ValueError if it is not that."""
    match kind:
        case "string":
            return text
        case "quantity":
            parse_nanos(text)
            return Typed(quantity=text)
        case "bandwidth":
            if _is(parse_bandwidth, text):
                return Typed(bandwidth=text)
            parse_nanos(text)
            return Typed(bandwidth=f"{text}bps")
        case "version":
            parse_version(text)
            return Typed(version=text)
        case "int":
            if _INT.fullmatch(text) is None:
                raise ValueError(f"{text[:80]!r} is no int")
            return int(text)
        case "bool":
            if text not in ("true", "false"):
                raise ValueError(f"{text[:80]!r} is neither true nor false")
            return text == "true"
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _SUFFIXED.fullmatch(text) and _is(parse_nanos, text):
        return Typed(quantity=text)
    return Typed(bandwidth=text) if _is(parse_bandwidth, text) else text


def _is(parse: object, text: str) -> bool:
    try:
        parse(text)  # type: ignore[operator]
    except ValueError:
        return False
    return True


class DeviceSources:
    """Sources in the order in which they are looked at: the first that matches a device maps it."""

    def __init__(self, specs: Iterable[DeviceSourceSpec]) -> None:
        self._specs = list(specs)
        self._of_resource = lru_cache(4096)(self._find_of_resource)

    def of_driver(self, driver: str) -> DeviceSourceSpec | None:
        return next((s for s in self._specs if s.match.driver and fnmatchcase(driver, s.match.driver)), None)

    def _find_of_resource(self, resource: str) -> DeviceSourceSpec | None:
        return next((s for s in self._specs if s.match.resource and fnmatchcase(resource, s.match.resource)), None)

    def map(
        self, devices: Iterable[DeviceReport], allocatable: Mapping[str, int], labels: Mapping[str, str]
    ) -> list[DeviceReport]:
        """Returns the devices of a node with kind, vendor and properties, and those that its extended resources and huge pages
        count, unless something on the node tells them one by one."""
        mapped = [self._mapped(device, labels) for device in devices if not device.resource or not _is_counted(device)]
        told = {device.resource for device in mapped}
        return mapped + [device for device in self._counted(allocatable, labels) if device.resource not in told]

    def _mapped(self, device: DeviceReport, labels: Mapping[str, str]) -> DeviceReport:
        if device.resource and not device.driver:
            return self._told(device, labels)
        source = self.of_driver(device.driver) if device.driver and not device.kind else None
        if source is None:
            return device
        properties = dict(_properties(source, device, "", labels))
        return msgspec.structs.replace(
            device, kind=source.kind, vendor=device.vendor or source.vendor, properties=properties | device.properties
        )

    def _told(self, device: DeviceReport, labels: Mapping[str, str]) -> DeviceReport:
        """Maps a device that a node's agent tells. What its plugin says of it are texts."""
        own = {n: read_value(value) if isinstance(value, str) else value for n, value in device.properties.items()}
        source = self._of_resource(device.resource)
        if source is None:
            return msgspec.structs.replace(device, properties=own) if own != device.properties else device
        kind = source.kind if device.kind in ("", device.resource) else device.kind
        properties = dict(_properties(source, None, device.resource, labels))
        return msgspec.structs.replace(
            device, kind=kind or device.kind, vendor=device.vendor or source.vendor, properties=properties | own
        )

    def _counted(self, allocatable: Mapping[str, int], labels: Mapping[str, str]) -> Iterator[DeviceReport]:
        for resource in sorted(allocatable):
            amount = allocatable[resource]
            if amount <= 0 or ("/" not in resource and not resource.startswith(HUGE_PAGES)):
                continue
            source = self._of_resource(resource)
            opaque = resource.startswith(OPAQUE)
            if source is None and not opaque:
                continue
            unit = _page(resource)
            if not unit or amount < unit:
                continue
            source = source or DeviceSourceSpec(
                match=SourceMatch(resource=resource), kind=resource.removeprefix(OPAQUE)
            )
            yield DeviceReport(
                name=resource,
                resource=resource,
                quantity=amount // unit,
                unit=unit,
                kind=source.kind or resource,
                vendor=source.vendor,
                properties=dict(_properties(source, None, resource, labels)),
            )


def _is_counted(device: DeviceReport) -> bool:
    """Returns whether the device stands for all that an extended resource or huge pages of the node count."""
    return not device.zone and device.name == device.resource


def _page(resource: str) -> int:
    """Returns how much of the resource one device is: a page of its size, else one. 0: it cannot be told."""
    if not resource.startswith(HUGE_PAGES):
        return 1
    try:
        return parse_nanos(resource.removeprefix(HUGE_PAGES)) // _NANO
    except ValueError:
        return 0


def _properties(
    source: DeviceSourceSpec, device: DeviceReport | None, resource: str, labels: Mapping[str, str]
) -> Iterator[tuple[str, PropertyValue]]:
    """Yields what can be read; a value that is missing or of another type is a missing property."""
    for name, one in sorted(source.properties.items()):
        found = _raw(one, source.match, device, resource, labels)
        if found is None:
            continue
        if not isinstance(found, str):
            if not (one.type or one.units):
                yield name, found
                continue
            found = _text(found)
        try:
            yield name, read_value(found + one.units, one.type or _type_of(one.units)) if found else found
        except ValueError:
            continue


def _type_of(units: str) -> str:
    """Returns the type of values with these units; empty: what they read as."""
    if not units:
        return ""
    return "quantity" if _is(parse_nanos, f"1{units}") else "bandwidth"


def _text(value: PropertyValue) -> str:
    if isinstance(value, Typed):
        return value.quantity or value.version or value.bandwidth or value.string
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _raw(
    source: PropertySource,
    match: SourceMatch,
    device: DeviceReport | None,
    resource: str,
    labels: Mapping[str, str],
) -> PropertyValue | None:
    if source.label:
        return labels.get(source.label)
    if source.value:
        return source.value
    if source.name:
        before, _, after = match.resource.partition("*")
        return resource[len(before) : len(resource) - len(after)]
    if device is None:
        return None
    if source.capacity:
        text = _own(device.capacity, source.capacity, device.driver)
        return None if text is None else Typed(quantity=text)
    return _own(device.attributes, source.attribute, device.driver)


def _own(values: Mapping[str, _Value], name: str, driver: str) -> _Value | None:
    """Returns the value of a name, qualified or not; one without a domain is the driver's own."""
    found = values.get(name)
    return values.get(f"{driver}/{name}", values.get(name.removeprefix(f"{driver}/"))) if found is None else found


def _labels(vendor: str, **properties: tuple[str, str]) -> dict[str, PropertySource]:
    """Returns properties by label of the vendor and type."""
    return {name: PropertySource(label=f"{vendor}/{label}", type=kind) for name, (label, kind) in properties.items()}


_NVIDIA_LABELS = _labels(
    "nvidia.com",
    model=("gpu.product", "string"),
    family=("gpu.family", "string"),
    cuda=("cuda.runtime-version.full", "version"),
    driverVersion=("cuda.driver-version.full", "version"),
)
_MEMORY = PropertySource(capacity="memory")
_PROFILE = PropertySource(name=True, type="string")
_SIZE = PropertySource(name=True, type="quantity")
_NVIDIA_MEMORY = {"memory": PropertySource(label="nvidia.com/gpu.memory", units="Mi")}
#: Sources that are there from the start, by name. A stored one of the same name takes its place.
BUILT_IN_SOURCES: Mapping[str, DeviceSourceSpec] = {
    "amd": DeviceSourceSpec(
        match=SourceMatch(resource="amd.com/gpu"),
        kind="amd-gpu",
        vendor="amd",
        properties={
            "memory": PropertySource(label="amd.com/gpu.vram", type="quantity"),
            "model": PropertySource(label="amd.com/gpu.product-name", type="string"),
            "family": PropertySource(label="amd.com/gpu.family", type="string"),
        },
    ),
    "amd-dra": DeviceSourceSpec(
        match=SourceMatch(driver="gpu.amd.com"),
        kind="amd-gpu",
        vendor="amd",
        properties={"memory": _MEMORY, "model": PropertySource(attribute="productName")},
    ),
    "hugepages": DeviceSourceSpec(
        match=SourceMatch(resource="hugepages-*"), kind="huge-pages", properties={"size": _SIZE}
    ),
    "intel": DeviceSourceSpec(match=SourceMatch(resource="gpu.intel.com/*"), kind="intel-gpu", vendor="intel"),
    "intel-dra": DeviceSourceSpec(
        match=SourceMatch(driver="gpu.intel.com"),
        kind="intel-gpu",
        vendor="intel",
        properties={"memory": _MEMORY, "model": PropertySource(attribute="model")},
    ),
    "nvidia": DeviceSourceSpec(
        match=SourceMatch(resource="nvidia.com/gpu"),
        kind="nvidia-gpu",
        vendor="nvidia",
        properties=_NVIDIA_MEMORY | _NVIDIA_LABELS,
    ),
    "nvidia-dra": DeviceSourceSpec(
        match=SourceMatch(driver="gpu.nvidia.com"),
        kind="nvidia-gpu",
        vendor="nvidia",
        properties={"memory": _MEMORY, "model": PropertySource(attribute="productName")},
    ),
    "nvidia-mig": DeviceSourceSpec(
        match=SourceMatch(resource="nvidia.com/mig-*"),
        kind="nvidia-mig",
        vendor="nvidia",
        properties={"profile": _PROFILE} | _NVIDIA_LABELS,
    ),
}


def with_built_in(stored: Mapping[str, DeviceSourceSpec]) -> DeviceSources:
    """Returns the stored sources, by name, before those that are there from the start."""
    others = {name: spec for name, spec in BUILT_IN_SOURCES.items() if name not in stored}
    return DeviceSources(spec for found in (stored, others) for _, spec in sorted(found.items()))


BUILT_IN_ONLY = with_built_in({})
