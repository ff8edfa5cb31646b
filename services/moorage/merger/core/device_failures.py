"""Tells which devices of a cluster failed, since when, and whether so many did at once that nothing moves. Time is passed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.fleet import Fleet
from moorage.ledger.ledger import DEVICE_FAILED, MASS_FAILURE
from moorage.model.claims import Shortfall
from moorage.model.part_reports import DeviceReport, DeviceTaint
from moorage.model.part_requests import DeviceToleration
from moorage.parts.device_table import tolerated
from moorage.parts.layout import Layout, layout_of, part_id

#: Seconds for which a device may be missing in reports: drivers replace what they publish in several steps.
GONE_AFTER = 2.0
#: Seconds for which a device may be unhealthy until slots on it move, if no setting says otherwise.
UNHEALTHY_AFTER = 30.0
#: More than half of the devices of a kind that fail within so many seconds are a mass failure, if they are as many.
MASS_WINDOW, MASS_LEAST = 60.0, 2
#: Stands for all kinds of devices where an operator names none.
ALL_KINDS = ""


class FailedDevice(NamedTuple):
    """A device with its faults, each with the time since when. Slots stay on it until `held_until`: a mass failure just ended."""

    part: str
    node: str
    kind: str
    gone: float | None = None
    unhealthy: float | None = None
    taints: tuple[tuple[DeviceTaint, float], ...] = ()
    held_until: float = 0.0

    @property
    def since(self) -> float:
        """Returns when it failed; a taint that does not end pods is no failure."""
        found = [t for taint, t in self.taints if taint.effect == "NoExecute"]
        found += [t for t in (self.gone, self.unhealthy) if t is not None]
        return min(found, default=float("inf"))


class MassFailure(NamedTuple):
    """The number of devices of a kind that failed, of how many."""

    failed: int
    of: int


class Leaving(NamedTuple):
    """The reason why pods leave a device, or will at a time."""

    why: str
    at: float


#: Returns why pods with these tolerations leave a device now; empty if they do not.
Judge = Callable[[FailedDevice, Sequence[DeviceToleration]], str]


class Failures(NamedTuple):
    """The failures of one cluster at one moment. `masses`: kinds of devices that nothing leaves."""

    failed: Mapping[str, FailedDevice] = {}
    masses: Mapping[str, MassFailure] = {}
    why: Judge = lambda _device, _tolerations: ""


class _Known(NamedTuple):
    node: str
    kind: str
    driver: str


@dataclass(slots=True)
class _Cluster:
    """The devices of one cluster. `recorded`: failures that do not count for another mass failure: they were known or counted before."""

    table: list[bytes] | None = None
    rows: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    numbers: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # of layouts
    wrong: dict[str, dict[str, DeviceReport | None]] = field(default_factory=dict)  # node → part
    known: dict[str, _Known] = field(default_factory=dict)  # part → where it is
    of_node: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, FailedDevice] = field(default_factory=dict)
    masses: dict[str, MassFailure] = field(default_factory=dict)  # by kind
    recorded: set[str] = field(default_factory=set)


class Recorded(NamedTuple):
    """The failures of a cluster in the ledger: devices that failed, and kinds of devices of which too many did."""

    failed: AbstractSet[str] = frozenset()
    masses: Mapping[str, MassFailure] = {}

    @classmethod
    def of(cls, shortfalls: Iterable[Shortfall]) -> Recorded:
        found = list(shortfalls)
        masses = {s.resource: MassFailure(s.needed, s.needed + s.free) for s in found if s.code == MASS_FAILURE}
        return cls({part for s in found if s.code == DEVICE_FAILED for part in s.devices}, masses)


class DeviceFailures:
    """The devices of clusters whose claims name any. `unhealthy_after`: seconds."""

    def __init__(self, unhealthy_after: float = UNHEALTHY_AFTER) -> None:
        self.unhealthy_after = unhealthy_after
        self._clusters: dict[int, _Cluster] = {}
        self._waits: dict[int, set[float]] = {}  # cluster → seconds for which pods tolerate taints

    def forget(self, cid: int) -> None:
        self._clusters.pop(cid, None)
        self._waits.pop(cid, None)

    def update(self, cid: int, fleet: Fleet, held: Mapping[str, str], recorded: Recorded, now: float) -> None:
        """Reads the cluster's newest rows. `held`: the devices that slots name, with their nodes."""
        first = cid not in self._clusters
        cluster = self._clusters.setdefault(cid, _Cluster(masses=dict(recorded.masses)))
        reported = self._read(cluster, cid, fleet, held)
        self._note(cluster, reported, held, now)
        failed = [device for device in cluster.failed.values() if device.since <= now]
        if first and all(device.part in recorded.failed for device in failed if device.part in held):
            # It failed before this merger looked; pods that had it are gone from it, or wait.
            cluster.recorded = {device.part for device in failed}
        cluster.recorded &= cluster.failed.keys()
        self._find_masses(cluster, now)

    def on(self, cid: int, now: float) -> Failures:
        """Returns the failures of the cluster."""
        found = self._clusters.get(cid)
        if found is None or not found.failed:
            return Failures()
        return Failures(found.failed, found.masses, lambda device, given: self._leaving(cid, device, given, now))

    def end_masses(self, cid: int, kind: str = ALL_KINDS) -> list[str]:
        """Lets what failed move, of this kind or of all kinds. Returns the kinds with a mass failure."""
        cluster = self._clusters.get(cid)
        if cluster is None:
            return []
        kinds = [k for k in sorted(cluster.masses) if kind in (ALL_KINDS, k)]
        for k in kinds:
            del cluster.masses[k]
            cluster.recorded |= {device.part for device in cluster.failed.values() if device.kind == k}
        return kinds

    def next(self, cid: int, now: float) -> float | None:
        """Returns when time alone makes pods leave a device, or ends what is remembered."""
        found = self._clusters.get(cid)
        if found is None:
            return None
        times: list[float] = []
        for device in found.failed.values():
            own = [device.gone + GONE_AFTER] if device.gone is not None else []
            own += [device.unhealthy + self.unhealthy_after] if device.unhealthy is not None else []
            for _, since in device.taints:
                own += [since + seconds for seconds in self._waits.get(cid, ())]
            times += [max(time, device.held_until) for time in own] + [device.held_until]
        return min((time for time in times if time > now), default=None)

    def _leaving(self, cid: int, device: FailedDevice, tolerations: Sequence[DeviceToleration], now: float) -> str:
        found = list(self._reasons(cid, device, tolerations))  # all of them: each may have a time to wait for
        return next((why for why, at in found if max(at, device.held_until) <= now), "")

    def _reasons(self, cid: int, device: FailedDevice, tolerations: Sequence[DeviceToleration]) -> Iterator[Leaving]:
        for taint, since in device.taints:
            if taint.effect != "NoExecute":
                continue
            of_taint = [one for one in tolerations if tolerated([taint], [one])]
            limits = [one.seconds for one in of_taint if one.seconds is not None]
            if of_taint and not limits:
                continue
            seconds = max(0, min(limits)) if limits else 0
            if seconds:
                self._waits.setdefault(cid, set()).add(float(seconds))
            value = f"={taint.value}" if taint.value else ""
            yield Leaving(f"it has the taint {taint.key}{value}:NoExecute", since + seconds)
        if device.gone is not None:
            yield Leaving("it is gone", device.gone + GONE_AFTER)
        if device.unhealthy is not None:
            words = f"it is unhealthy for {self.unhealthy_after:g} s"
            yield Leaving(words, device.unhealthy + self.unhealthy_after)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(
        self, cluster: _Cluster, cid: int, fleet: Fleet, held: Mapping[str, str]
    ) -> dict[str, DeviceReport | None]:
        """Returns the devices that something is wrong with; None for those that are gone. Only nodes whose inside is another one are
        looked at."""
        rows = fleet.rows_of(cid)
        numbers = fleet.layout[rows] if fleet.layout is not None else np.zeros(len(rows), np.int32)
        if cluster.table is not fleet.layout_sets or not np.array_equal(rows, cluster.rows):
            changed = np.arange(len(rows))
            self._forget_nodes(cluster, set(fleet.names_at(cid, rows)))
        else:
            changed = np.flatnonzero(numbers != cluster.numbers)
        cluster.table, cluster.rows, cluster.numbers = fleet.layout_sets, rows.copy(), numbers.copy()
        for node, row in zip(fleet.names_at(cid, rows[changed]), rows[changed].tolist(), strict=True):
            self._read_node(cluster, node, fleet.inside(row)[1])
        kinds = {known.driver: known.kind for known in cluster.known.values()}
        for part, node in held.items():
            if part not in cluster.known and node in cluster.of_node:
                # It was gone before this merger looked.
                driver = part.partition("/")[0]
                cluster.known[part] = _Known(node, kinds.get(driver, driver), driver)
                cluster.of_node[node].add(part)
                cluster.wrong.setdefault(node, {})[part] = None
        return {part: device for of_node in cluster.wrong.values() for part, device in of_node.items()}

    def _forget_nodes(self, cluster: _Cluster, there: set[str]) -> None:
        """Forgets the devices of nodes that are gone: their slots are handled with the node."""
        for node in cluster.of_node.keys() - there:
            for part in cluster.of_node.pop(node):
                del cluster.known[part]
            cluster.wrong.pop(node, None)

    def _read_node(self, cluster: _Cluster, node: str, layout: Layout) -> None:
        parts = {part_id(node, path): device for path, device in _devices_of(layout.source)}
        of_node = cluster.of_node.setdefault(node, set())
        for part, device in parts.items():
            cluster.known[part] = _Known(node, device.kind or device.driver, device.driver)
        of_node.update(parts)
        wrong: dict[str, DeviceReport | None] = {
            part: device for part, device in parts.items() if not device.healthy or device.taints
        }
        missing: dict[str, DeviceReport | None] = dict.fromkeys(of_node - parts.keys())
        if layout.inside.incomplete_pools:  # what is missing may be being published
            missing = {part: device for part, device in cluster.wrong.get(node, {}).items() if part in missing}
        cluster.wrong[node] = wrong | missing

    def _note(
        self,
        cluster: _Cluster,
        reported: Mapping[str, DeviceReport | None],
        held: Mapping[str, str],
        now: float,
    ) -> None:
        """Notes since when things are wrong. A device that is gone for good is forgotten once no slot names it."""
        failed: dict[str, FailedDevice] = {}
        for part, device in reported.items():
            known, before = cluster.known[part], cluster.failed.get(part)
            since = dict(before.taints) if before is not None else {}
            gone = unhealthy = None
            if device is None:
                gone = before.gone if before is not None and before.gone is not None else now
                if part not in held and gone + MASS_WINDOW < now and known.kind not in cluster.masses:
                    del cluster.known[part], cluster.wrong[known.node][part]
                    cluster.of_node[known.node].discard(part)
                    continue
            elif not device.healthy:
                unhealthy = before.unhealthy if before is not None and before.unhealthy is not None else now
            taints = tuple((taint, since.get(taint, now)) for taint in device.taints) if device is not None else ()
            until = before.held_until if before is not None else 0.0
            failed[part] = FailedDevice(part, known.node, known.kind, gone, unhealthy, taints, until)
        cluster.failed = failed

    def _find_masses(self, cluster: _Cluster, now: float) -> None:
        total: dict[str, int] = {}
        for known in cluster.known.values():
            total[known.kind] = total.get(known.kind, 0) + 1
        failed: dict[str, list[FailedDevice]] = {}
        for device in cluster.failed.values():
            if device.since <= now:
                failed.setdefault(device.kind, []).append(device)
        for kind in {*failed, *cluster.masses}:
            down, of = failed.get(kind, []), total.get(kind, 0)
            fresh = [d for d in down if d.since > now - MASS_WINDOW and d.part not in cluster.recorded]
            if kind not in cluster.masses:
                begins = len(fresh) >= MASS_LEAST and 2 * len(fresh) > of
                if begins:
                    cluster.masses[kind] = MassFailure(len(down), of)
                continue
            # A merger that started later does not know of devices that were gone by then.
            of_then = max(of, cluster.masses[kind].of)
            missing = of_then - (of - len(down))
            if 2 * missing > of_then:
                cluster.masses[kind] = MassFailure(missing, of_then)
            else:
                # Most are back, and the others have as long as an unhealthy device.
                del cluster.masses[kind]
                for device in down:
                    cluster.failed[device.part] = device._replace(held_until=now + self.unhealthy_after)
                    cluster.recorded.add(device.part)


@lru_cache(4096)
def _devices_of(source: bytes) -> tuple[tuple[str, DeviceReport], ...]:
    """Returns the devices of a layout by their paths."""
    layout = layout_of(source)
    return tuple((part.path, layout.inside.devices[part.device]) for part in layout.parts if part.device >= 0)
