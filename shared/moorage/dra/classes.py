"""Keeps the DeviceClasses of the cluster, as they are reported beside its devices."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

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

    def put(self, name: str, found: DeviceClass) -> None:
        if name.startswith(PIN_PREFIX):
            return
        self._config[name], self._uids[name] = found.spec.config or [], found.metadata.uid
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
        classes = [found for found in self._classes.values() if found.extended_resource]
        if not classes or not devices:
            return {}
        table = DeviceTable(devices)
        found: dict[str, int] = {}
        for one in sorted(classes, key=lambda one: one.name):
            selected = table.verdicts(tuple(one.selectors))
            free = sum(
                bool(verdict) and device.id not in in_use and not device.shared and tolerated(device.taints, ())
                for device, verdict in zip(devices, selected, strict=True)
            )
            found.setdefault(one.extended_resource, free)
        return found

    def drop(self, name: str) -> None:
        self._config.pop(name, None)
        self._uids.pop(name, None)
        if self._classes.pop(name, None) is not None:
            self._mark_all()

    def reports(self) -> list[DeviceClassReport]:
        return [self._classes[name] for name in sorted(self._classes)]
