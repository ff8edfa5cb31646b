"""Separates what only one device has, like a uuid or serial number, from the rest, so that nodes that differ in nothing else
share a layout.

Needs that name such properties are answered from the layout of each node instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from moorage.model.base import Value
from moorage.model.part_reports import DeviceReport, PropertyValue
from moorage.model.part_requests import PropertyCondition, PropertySelector
from moorage.parsing import parse_nanos

#: Separates what nodes have in common from the identities of their devices. JSON from an encoder has none.
SEPARATOR = b"\n"
#: Names of such properties and attributes, without their domain, in lower case and without `-` and `_`.
IDENTITIES = frozenset({"uuid", "guid", "serial", "serialnumber", "serialno", "mac", "macaddress", "wwn", "wwid"})
#: A text that may name one of these.
_MENTIONED = re.compile(rb"uuid|guid|serial|wwn|wwid|(?<![a-z])mac(?![a-z])|mac[-_]?address", re.IGNORECASE)


class DeviceIdentity(Value, kw_only=True, frozen=True):
    """The properties and attributes that one device alone has."""

    properties: dict[str, PropertyValue] = {}
    attributes: dict[str, PropertyValue] = {}


@lru_cache(4096)
def is_identity(name: str) -> bool:
    """Returns whether a property or attribute of this name is one device's alone."""
    return name.rpartition("/")[2].lower().replace("-", "").replace("_", "") in IDENTITIES


def split(devices: Sequence[DeviceReport]) -> tuple[list[DeviceReport], list[DeviceIdentity]]:
    """Returns the devices without their identities, and these; no identities if no device has any."""
    found = [DeviceIdentity(properties=_own(d.properties), attributes=_own(d.attributes)) for d in devices]
    if not any(one.properties or one.attributes for one in found):
        return list(devices), []
    common = [
        msgspec.structs.replace(device, properties=_without(device.properties), attributes=_without(device.attributes))
        for device in devices
    ]
    return common, found


def joined(devices: Sequence[DeviceReport], identities: Sequence[DeviceIdentity]) -> list[DeviceReport]:
    """Returns the devices with their identities."""
    return [
        msgspec.structs.replace(
            device,
            properties={**device.properties, **own.properties},
            attributes={**device.attributes, **own.attributes},
        )
        if own.properties or own.attributes
        else device
        for device, own in zip(devices, identities, strict=True)
    ]


def _own(values: Mapping[str, PropertyValue]) -> dict[str, PropertyValue]:
    return {name: value for name, value in values.items() if is_identity(name)}


def _without(values: Mapping[str, PropertyValue]) -> dict[str, PropertyValue]:
    return {name: value for name, value in values.items() if not is_identity(name)}


def names_identity(selector: PropertySelector) -> bool:
    return any(is_identity(one.key) for alternative in selector for one in alternative)


def may_select(selector: PropertySelector, source: bytes) -> bool:
    """Returns whether devices in a source may be selected: a value that an alternative asks of each identity is somewhere in it.
    Quick, so that few nodes need a closer look."""
    identities = source.partition(SEPARATOR)[2]
    if any(kind in identities for kind in _NOT_AS_WRITTEN):
        return True
    return any(all(_may_hold(one, identities) for one in alternative) for alternative in selector)


#: Kinds of values that are equal though they are written otherwise.
_NOT_AS_WRITTEN = (b'"version"', b'"bandwidth"')


def _may_hold(condition: PropertyCondition, identities: bytes) -> bool:
    if condition.operator not in ("In", "Eq") or not is_identity(condition.key):
        return True
    return any(_is_amount(value) or msgspec.json.encode(value)[1:-1] in identities for value in condition.values)


def _is_amount(value: str) -> bool:
    """Returns whether a value may be equal to one that is written otherwise."""
    try:
        parse_nanos(value)
    except ValueError:
        return False
    return True


def mentions_identity(text: bytes) -> bool:
    """Returns whether a text may name an identity."""
    return _MENTIONED.search(text) is not None
