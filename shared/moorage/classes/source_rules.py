"""Checks sources of devices, quotas and grants."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moorage.model.problems import Violation
from moorage.model.resource_classes import ClassGrantSpec, DeviceQuotaSpec, DeviceSourceSpec, PropertySource
from moorage.parsing import parse_bandwidth, parse_nanos

TYPES = ("quantity", "bandwidth", "version", "int", "bool", "string")
MAX_COUNT = 1 << 40
MAX_ENTRIES = 1024
#: A name, in which `*` stands for any text.
_PATTERN = re.compile(r"[A-Za-z0-9*](?:[A-Za-z0-9*._/-]{0,315}[A-Za-z0-9*])?", re.ASCII)


def source_problems(spec: DeviceSourceSpec, path: str = "spec") -> Iterator[Violation]:
    match = spec.match
    if bool(match.driver) == bool(match.resource):
        yield Violation(path=f"{path}.match", code="OneOf", message="needs either a driver or a resource")
    for name, text in (("driver", match.driver), ("resource", match.resource)):
        if text and (_PATTERN.fullmatch(text) is None or text.count("*") > 1):
            message = f"{text[:80]!r} is no name; it may have one '*'"
            yield Violation(path=f"{path}.match.{name}", code="BadValue", message=message)
    if len(spec.properties) > 64:
        yield Violation(path=f"{path}.properties", code="TooMany", message="at most 64 properties are allowed")
    for name, source in spec.properties.items():
        yield from _source(source, f"{path}.properties.{name}", match.resource)


def _source(source: PropertySource, path: str, resource: str) -> Iterator[Violation]:
    given = [n for n in ("attribute", "capacity", "label", "name", "value") if getattr(source, n)]
    if len(given) != 1:
        message = "needs one of attribute, capacity, label, name and value"
        yield Violation(path=path, code="OneOf", message=message)
    elif given[0] in ("attribute", "capacity") and resource:
        message = (
            f"only devices of a driver have an {given[0]}" if given[0] == "attribute" else "only those of a driver"
        )
        yield Violation(path=f"{path}.{given[0]}", code="NotOfResource", message=message)
    elif source.name and "*" not in resource:
        message = "needs a '*' in spec.match.resource, whose text it is"
        yield Violation(path=f"{path}.name", code="NoPattern", message=message)
    if source.type and source.type not in TYPES:
        message = f"{source.type[:40]!r} is not one of {', '.join(TYPES)}"
        yield Violation(path=f"{path}.type", code="BadValue", message=message)
    if source.units and not _is_unit(source.units):
        message = f"{source.units[:40]!r} is no unit; write it like Mi, G or Gbps"
        yield Violation(path=f"{path}.units", code="BadValue", message=message)


def _is_unit(text: str) -> bool:
    for parse in (parse_nanos, parse_bandwidth):
        try:
            parse(f"1{text}")
        except ValueError:
            continue
        return True
    return False


def quota_problems(spec: DeviceQuotaSpec, path: str = "spec") -> Iterator[Violation]:
    yield from _names(spec.projects, f"{path}.projects")
    if not spec.devices:
        yield Violation(path=f"{path}.devices", code="Required", message="needs at least one entry")
    seen: set[str] = set()
    for i, item in enumerate(spec.devices):
        at = f"{path}.devices[{i}]"
        if item.class_ != "*" and (_PATTERN.fullmatch(item.class_) is None or "*" in item.class_):
            message = f"{item.class_[:80]!r} is no name of a class; '*' stands for all devices"
            yield Violation(path=f"{at}.class", code="InvalidName", message=message)
        if item.class_ in seen:
            yield Violation(path=f"{at}.class", code="Duplicate", message=f"{item.class_[:80]} is listed twice")
        seen.add(item.class_)
        if not 0 <= item.count <= MAX_COUNT:
            yield Violation(path=f"{at}.count", code="OutOfRange", message=f"must be 0 to {MAX_COUNT}")


def grant_problems(spec: ClassGrantSpec, path: str = "spec") -> Iterator[Violation]:
    yield from _names(spec.projects, f"{path}.projects")
    yield from _names(spec.classes, f"{path}.classes")
    for i, name in enumerate(spec.algorithms):
        if _PATTERN.fullmatch(name) is None:
            message = f"{name[:80]!r} is no name of an algorithm"
            yield Violation(path=f"{path}.algorithms[{i}]", code="InvalidName", message=message)


def _names(names: list[str], path: str) -> Iterator[Violation]:
    if not names:
        yield Violation(path=path, code="Required", message="needs at least one entry; '*' stands for all")
    if len(names) > MAX_ENTRIES:
        yield Violation(
            path=path, code="TooMany", message=f"has {len(names)} entries; at most {MAX_ENTRIES} are allowed"
        )
    for i, name in enumerate(names):
        if _PATTERN.fullmatch(name) is None:
            message = f"{name[:80]!r} is no name; '*' in it stands for any text"
            yield Violation(path=f"{path}[{i}]", code="InvalidName", message=message)
