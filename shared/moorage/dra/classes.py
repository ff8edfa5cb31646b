"""Keeps the DeviceClasses of the cluster, as they are reported beside its devices."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from moorage.model.part_reports import DeviceClassReport, DeviceReport
from moorage.parts.device_table import DeviceTable, tolerated
from moorage.podspec import PIN_PREFIX

from .objects import DeviceClass


class DeviceClasses:
    """Classes that pin claims to devices are nobody's to ask for, and are left out. `mark_all` is called when classes are not as before."""

    def __init__(self, mark_all: Callable[[], None]) -> None:
        self._mark_all = mark_all
        self._classes: dict[str, DeviceClassReport] = {}
        self._config: dict[str, list[Any]] = {}
        self._uids: dict[str, str] = {}
        self._created: dict[str, str] = {}

    def put(self, name: str, found: DeviceClass) -> None:
        if name.startswith(PIN_PREFIX):
            return
        self._config[name], self._uids[name] = found.spec.config or [], found.metadata.uid
        self._created[name] = found.metadata.creation_timestamp or ""
        selectors = [selector.cel.expression if selector.cel else "" for selector in found.spec.selectors or ()]
        report = DeviceClassReport(
            name=name, selectors=selectors, extended_resource=found.spec.extended_resource_name or ""
        )
        if self._classes.get(name) != report:
            self._classes[name] = report
            self._mark_all()

    def spec(self, name: str) -> dict[str, Any] | None:
        """Returns selectors and configuration of a class, in the form of manifests; None if there is no such class."""
        found = self._classes.get(name)
        if found is None:
            return None
        selectors = [{"cel": {"expression": expression}} for expression in found.selectors]
        return {"selectors": selectors} | ({"config": self._config[name]} if self._config[name] else {})

    def uid(self, name: str) -> str:
        """Returns the uid of a class; "" if there is no such class."""
        return self._uids.get(name, "")

    def extended_resources(self, devices: Sequence[DeviceReport], in_use: Container[str]) -> dict[str, int]:
        """Returns, by extended resource, how many of a node's devices the classes select that are asked for by it, and that nobody
        has. `in_use` has the ids of those that somebody has."""
        classes = self._serving() if devices else {}
        if not classes:
            return {}
        table = DeviceTable(devices)
        found: dict[str, int] = {}
        for resource, name in classes.items():
            one = self._classes[name]
            selected = table.verdicts(tuple(one.selectors))
            free = sum(
                bool(verdict) and device.id not in in_use and not device.shared and tolerated(device.taints, ())
                for device, verdict in zip(devices, selected, strict=True)
            )
            found[resource] = free
        return found

    def serving(self, resource: str) -> str:
        """Returns the class of which devices serve an extended resource; "" if none does."""
        return self._serving().get(resource, "")

    def _serving(self) -> dict[str, str]:
        """Returns, by extended resource, the class that serves it: of several the newest, of equally old ones the first by name."""
        found: dict[str, str] = {}
        for name in sorted(self._classes):
            resource = self._classes[name].extended_resource
            if resource and (resource not in found or self._created[name] > self._created[found[resource]]):
                found[resource] = name
        return found

    def drop(self, name: str) -> None:
        self._config.pop(name, None)
        self._uids.pop(name, None)
        self._created.pop(name, None)
        if self._classes.pop(name, None) is not None:
            self._mark_all()

    def reports(self, allocatable: Mapping[str, object] | None = None) -> list[DeviceClassReport]:
        """Returns the classes as they are for a node. Extended resources that it has itself, as `allocatable` says, no class serves
        there."""
        serving = self._serving()
        own = {name for name, amount in (allocatable or {}).items() if str(amount) != "0"}
        return [
            found
            if not found.extended_resource
            or (serving[found.extended_resource] == name and found.extended_resource not in own)
            else msgspec.structs.replace(found, extended_resource="")
            for name, found in sorted(self._classes.items())
        ]
