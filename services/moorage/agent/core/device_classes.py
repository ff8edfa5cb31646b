"""Keeps the DeviceClasses of the cluster, as they are reported beside its devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moorage.model.part_reports import DeviceClassReport
from moorage.podspec import PIN_PREFIX

from .kube_types import DeviceClass


class DeviceClasses:
    """Classes that pin claims to devices are nobody's to ask for, and are left out. `mark_all` is called when classes are not as before."""

    def __init__(self, mark_all: Callable[[], None]) -> None:
        self._mark_all = mark_all
        self._classes: dict[str, DeviceClassReport] = {}
        self._config: dict[str, list[Any]] = {}

    def put(self, name: str, found: DeviceClass) -> None:
        if name.startswith(PIN_PREFIX):
            return
        self._config[name] = found.spec.config or []
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

    def drop(self, name: str) -> None:
        if self._classes.pop(name, None) is not None:
            self._mark_all()

    def reports(self) -> list[DeviceClassReport]:
        return [self._classes[name] for name in sorted(self._classes)]
