"""Keeps the DeviceClasses of the cluster, as they are reported beside its devices."""

from __future__ import annotations

from collections.abc import Callable

from moorage.model.part_reports import DeviceClassReport

from .kube_types import DeviceClass

#: Begins the names of classes that pin claims to devices. They are nobody's to ask for, and are not reported.
PIN = "moorage-"


class DeviceClasses:
    """`mark_all` is called when classes are not as before."""

    def __init__(self, mark_all: Callable[[], None]) -> None:
        self._mark_all = mark_all
        self._classes: dict[str, DeviceClassReport] = {}

    def put(self, name: str, found: DeviceClass) -> None:
        if name.startswith(PIN):
            return
        selectors = [selector.cel.expression if selector.cel else "" for selector in found.spec.selectors or ()]
        report = DeviceClassReport(
            name=name, selectors=selectors, extended_resource=found.spec.extended_resource_name or ""
        )
        if self._classes.get(name) != report:
            self._classes[name] = report
            self._mark_all()

    def drop(self, name: str) -> None:
        if self._classes.pop(name, None) is not None:
            self._mark_all()

    def reports(self) -> list[DeviceClassReport]:
        return [self._classes[name] for name in sorted(self._classes)]
