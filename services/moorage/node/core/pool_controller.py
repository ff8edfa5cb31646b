"""Moves whole cores between pools by how long their containers wait for CPUs and how much they use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from moorage.qos.machine import CpuTopology
from moorage.qos.messages import nodes_of
from moorage.qos.node_policy import ControlledPool, ControllerSpec, Pool

#: A pool shrinks by a core after it wanted less for so long.
SHRINK_AFTER = 30.0
#: Older measurements say nothing.
MOST_AGE = 3.0


class PoolLoad(NamedTuple):
    """A measurement of a pool: the part of its CPUs that is used, the part of the time that containers wait for a CPU (None
    where nothing tells), and when it was made."""

    usage: float
    wait: float | None
    time: float


class _Remembered(NamedTuple):
    """The size that a pool needed because its containers waited, with the CPUs that they used then."""

    size: int
    used: float


class PoolController:
    """Decides once a second. It does not read a clock."""

    def __init__(self, spec: ControllerSpec, topology: CpuTopology) -> None:
        self._spec = spec
        self._topology = topology
        self._less_since: dict[str, float] = {}
        self._waited: dict[str, _Remembered] = {}

    def decide(self, now: float, pools: Mapping[str, Pool], loads: Mapping[str, PoolLoad]) -> dict[str, int]:
        """Returns the pools that should have other CPUs; {} where all stay as they are."""
        after = {name: pool.cpus for name, pool in pools.items()}
        for name, controlled in self._spec.pools.items():
            load = loads.get(name)
            if name not in pools or load is None or now - load.time > MOST_AGE:
                self._less_since.pop(name, None)
                continue
            size = after[name].bit_count()
            want = self._want(name, size, controlled, load)
            if want > size:
                self._less_since.pop(name, None)
                self._grow(name, want - size, controlled, pools, after, loads, now)
            elif not self._can_shrink(name, size, want, pools[name], load):
                self._less_since.pop(name, None)
            elif now - self._less_since.setdefault(name, now) >= SHRINK_AFTER:
                self._less_since[name] = now
                self._shrink(name, controlled, pools, after)
        return {name: cpus for name, cpus in after.items() if cpus != pools[name].cpus}

    def _want(self, name: str, size: int, controlled: ControlledPool, load: PoolLoad) -> int:
        """Returns how many CPUs a pool should have."""
        want = math.ceil(round(load.usage * size / controlled.usage, 6))
        if load.wait is not None and load.wait > controlled.wait:
            more = max(self._topology.cpus_per_core, math.ceil(size / 10))
            want = max(want, size + more)
            self._waited[name] = _Remembered(want, load.usage * size)
        return want

    def _can_shrink(self, name: str, size: int, want: int, pool: Pool, load: PoolLoad) -> bool:
        """A core less must still be what is wanted, and not what was too small for as much load."""
        left = size - self._topology.cpus_per_core
        known = self._waited.get(name)
        if known is not None and left < known.size and load.usage * size > 0.9 * known.used:
            return False
        return left >= want and left >= pool.least

    def _grow(
        self,
        name: str,
        missing: int,
        controlled: ControlledPool,
        pools: Mapping[str, Pool],
        after: dict[str, int],
        loads: Mapping[str, PoolLoad],
        now: float,
    ) -> None:
        for donor in controlled.donors:
            if donor not in after:
                continue
            least = max(pools[donor].least, self._needed_by(donor, after[donor].bit_count(), loads, now))
            while missing > 0:
                core = self._core_of(after[donor], toward=after[name], shares=pools[name].cpus)
                if not core or after[donor].bit_count() - core.bit_count() < least:
                    break
                after[donor] &= ~core
                after[name] |= core
                missing -= core.bit_count()

    def _needed_by(self, donor: str, size: int, loads: Mapping[str, PoolLoad], now: float) -> int:
        """A donor that is controlled, too, keeps what it uses itself."""
        controlled, load = self._spec.pools.get(donor), loads.get(donor)
        if controlled is None or load is None or now - load.time > MOST_AGE:
            return 0
        if load.wait is not None and load.wait > controlled.wait:
            return size
        return math.ceil(round(load.usage * size / controlled.usage, 6))

    def _shrink(self, name: str, controlled: ControlledPool, pools: Mapping[str, Pool], after: dict[str, int]) -> None:
        """Gives a core to the first donor, from the NUMA node of which the pool has most."""
        donor = next((donor for donor in controlled.donors if donor in after), None)
        if donor is None:
            return
        zones = self._topology.numas
        fullest = max(zones, key=lambda zone: ((zones[zone] & after[name]).bit_count(), zone))
        cores = self._whole_cores(after[name] & zones[fullest])
        if cores:
            after[name] &= ~cores[-1]
            after[donor] |= cores[-1]

    def _core_of(self, donor: int, toward: int, shares: int) -> int:
        """Returns a whole core of the donor in the NUMA node where the pool is farthest below its share; 0: there is none."""
        zones = self._topology.numas
        total = max(1, shares.bit_count())

        def lacking(zone: int) -> tuple[float, int]:
            share = (zones[zone] & shares).bit_count() / total
            return (zones[zone] & toward).bit_count() - share * toward.bit_count(), zone

        for zone in sorted(zones, key=lacking):
            cores = self._whole_cores(donor & zones[zone])
            if cores:
                return cores[0]
        return 0

    def _whole_cores(self, cpus: int) -> list[int]:
        """Returns the cores that are in the set in full, the lowest first."""
        found = []
        for cpu in nodes_of(cpus):
            core = self._topology.cores[self._topology.by_id[cpu].core]
            if core & cpus == core and core not in found:
                found.append(core)
        return found
