"""Keeps which devices are allocated, by the ResourceClaims of anyone. A claim that is allocated takes its devices even while no
pod has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from moorage.kube.objects import Key
from moorage.model.part_reports import DeviceReport
from moorage.parsing import parse_amount
from moorage.parts.device_parts import class_of

from .kube_types import AllocatedDevice, DeviceClaim


class DeviceName(NamedTuple):
    driver: str
    pool: str
    name: str


class DeviceClaims:
    """`mark` gets each device of which more or less is allocated than before."""

    def __init__(self, mark: Callable[[DeviceName], None]) -> None:
        self._mark = mark
        self._claims: dict[Key, tuple[AllocatedDevice, ...]] = {}
        self._holders: dict[DeviceName, set[Key]] = {}

    def put(self, key: Key, claim: DeviceClaim) -> None:
        # With admin access a device is seen, not taken.
        self._replace(key, tuple(result for result in claim.results if not result.admin_access))

    def drop(self, key: Key) -> None:
        self._replace(key, ())

    def _replace(self, key: Key, results: tuple[AllocatedDevice, ...]) -> None:
        before = self._claims.pop(key, ())
        if results:
            self._claims[key] = results
        if before == results:
            return
        for result in before:
            holders = self._holders.get(_name(result), set())
            holders.discard(key)
            if not holders:
                self._holders.pop(_name(result), None)
        for result in results:
            self._holders.setdefault(_name(result), set()).add(key)
        for name in {_name(result) for result in (*before, *results)}:
            self._mark(name)

    def in_use(self, devices: Iterable[DeviceReport]) -> dict[str, dict[str, str]]:
        """Returns what is allocated of devices, by id and class."""
        found: dict[str, dict[str, str]] = {}
        for device in devices:
            total: Counter[str] = Counter()
            for result in self._results(DeviceName(device.driver, device.pool, device.name)):
                total.update(_taken(device, result))
            if total:
                found[device.id] = {name: str(amount) for name, amount in sorted(total.items())}
        return found

    def _results(self, name: DeviceName) -> Iterator[AllocatedDevice]:
        for key in self._holders.get(name, ()):
            yield from (result for result in self._claims[key] if _name(result) == name)


def _name(result: AllocatedDevice) -> DeviceName:
    return DeviceName(result.driver, result.pool, result.device)


def _taken(device: DeviceReport, result: AllocatedDevice) -> dict[str, int]:
    """Returns what one allocation takes. Of a device that can be divided it takes all of the capacities that it does not say."""
    if not device.divisible:
        return {class_of(device.driver): 1}
    consumed = result.consumed_capacity or {}
    taken: dict[str, int] = {}
    for name, text in device.capacity.items():
        try:
            taken[class_of(name)] = parse_amount("", str(consumed.get(name, text)), True)
        except ValueError:
            continue  # inventory tells of amounts that cannot be read
    return taken
