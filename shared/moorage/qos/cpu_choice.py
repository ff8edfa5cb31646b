"""Chooses CPUs for a container, as the static policy of a kubelet's CPU manager does: packed, spread or distributed over NUMA
nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import sqrt
from typing import Literal

from .machine import CpuTopology
from .messages import nodes_of

CpuStrategy = Literal["packed", "spread", "distributed"]


class NotEnoughCpus(Exception):
    """Raised where fewer CPUs are available than requested."""

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(f"not enough cpus available to satisfy request: requested={requested}, available={available}")
        self.requested = requested
        self.available = available


class Accumulator:
    """CPUs that are taken one after the other. `available` are the others; `needed` is how many are missing."""

    def __init__(self, topology: CpuTopology, available: int, count: int, spread: bool = False) -> None:
        self.topology = topology
        self.available = available & topology.all
        self.needed = count
        self.taken = 0
        self._spread = spread
        self._numa_first = topology.num_sockets >= topology.num_numas

    @property
    def satisfied(self) -> bool:
        return self.needed < 1

    @property
    def failed(self) -> bool:
        return self.needed > self.available.bit_count()

    def take(self, cpus: int) -> None:
        self.taken |= cpus
        self.available &= ~cpus
        self.needed -= cpus.bit_count()

    # --- what is there, in the order in which it is taken: the fewest free CPUs first, then the lowest number

    def numas(self) -> list[int]:
        """NUMA nodes with free CPUs."""
        if self._numa_first:
            return self._sorted(self.topology.numas.items())
        return [numa for socket in self.sockets() for numa in self._sorted(self.topology.numas_in_socket[socket])]

    def sockets(self) -> list[int]:
        if not self._numa_first:
            return self._sorted(self.topology.sockets.items())
        return [socket for numa in self.numas() for socket in self._sorted(self.topology.sockets_in_numa[numa])]

    def cores(self) -> Iterator[int]:
        """Yields the cores with free CPUs, as it is now."""
        outer = self.topology.cores_in_socket if self._numa_first else self.topology.cores_in_numa
        available = self.available
        for number in self.sockets() if self._numa_first else self.numas():
            yield from self._sorted(outer[number], available)

    def uncores(self) -> list[int]:
        return [uncore for numa in self.numas() for uncore in self._sorted(self.topology.uncores_in_numa[numa])]

    def cpus(self) -> Iterator[int]:
        if self._spread:
            for socket in self.sockets():
                yield from nodes_of(self.topology.sockets[socket] & self.available)
            return
        available = self.available
        for core in self.cores():
            yield from nodes_of(self.topology.cores[core] & available)

    def _sorted(self, masks: Iterable[tuple[int, int]], available: int | None = None) -> list[int]:
        free = self.available if available is None else available
        return [n for _, n in sorted([((mask & free).bit_count(), n) for n, mask in masks if mask & free])]

    # --- taking

    def take_whole_numas(self) -> None:
        self._take_whole(self.numas(), self.topology.numas)

    def take_whole_sockets(self) -> None:
        self._take_whole(self.sockets(), self.topology.sockets)

    def take_whole_cores(self) -> None:
        self._take_whole(self.cores(), self.topology.cores)

    def _take_whole(self, numbers: Iterable[int], masks: Mapping[int, int]) -> None:
        before = self.available
        for number in numbers:
            mask = masks[number]
            if mask & before == mask and mask.bit_count() <= self.needed:
                self.take(mask)
                if self.needed < 1:
                    return

    def take_uncores(self) -> None:
        """Takes whole caches, then a part of one, if that is all that is missing."""
        topology = self.topology
        for uncore in self.uncores():
            if self.needed >= topology.cpus_per_uncore:
                self._take_whole(self.uncores(), topology.uncores)
            if self.satisfied:
                return
            cores = -(-self.needed // topology.cpus_per_core)
            within = [
                c for c, mask in sorted(topology.cores.items()) if mask & topology.uncores[uncore] & self.available
            ]
            part = 0
            for core in within[:cores]:
                part |= topology.cores[core] & self.available
            while part.bit_count() > self.needed:  # the last core is needed in part
                part ^= 1 << (part.bit_length() - 1)
            if part.bit_count() == self.needed:
                self.take(part)
                return

    def take_single_cpus(self) -> None:
        for cpu in self.cpus():
            self.take(1 << cpu)
            if self.needed < 1:
                return


def take_packed(
    topology: CpuTopology, available: int, count: int, *, spread: bool = False, align_uncore: bool = False
) -> int:
    """Takes whole NUMA nodes and sockets first, then caches if asked, cores (unless spread) and CPUs. Raises NotEnoughCpus."""
    acc = Accumulator(topology, available, count, spread)
    if acc.satisfied:
        return 0
    if acc.failed:
        raise NotEnoughCpus(count, acc.available.bit_count())
    steps = [acc.take_whole_numas, acc.take_whole_sockets]
    if topology.num_sockets < topology.num_numas:
        steps.reverse()
    if align_uncore:
        steps.append(acc.take_uncores)
    if not spread:
        steps.append(acc.take_whole_cores)
    for step in (*steps, acc.take_single_cpus):
        step()
        if acc.satisfied:
            return acc.taken
    raise NotEnoughCpus(count, acc.available.bit_count())


def take_distributed(topology: CpuTopology, available: int, count: int, group: int = 1, *, spread: bool = False) -> int:
    """Takes equal numbers of CPUs, in groups, from as few NUMA nodes as can give so many, those that leave the numbers of free
    CPUs most even. Where that is not possible, it packs. Raises NotEnoughCpus."""
    acc = Accumulator(topology, available, count, spread)
    if count % group:
        return take_packed(topology, available, count, spread=spread)
    if acc.satisfied:
        return 0
    if acc.failed:
        raise NotEnoughCpus(count, acc.available.bit_count())
    numas = acc.numas()
    free = [(topology.numas[numa] & acc.available).bit_count() for numa in numas]
    groups = -(-count // group)
    all_groups = -(-len(topology.cpus) // group)
    per_numa = -(-all_groups // len(topology.numas))
    for size in range(-(-groups // per_numa), min(groups, len(numas)) + 1):
        chosen = _most_even(free, count, group, size)
        if chosen is not None:
            return _hand_out(acc, [numas[i] for i in chosen[0]], [numas[i] for i in chosen[1]], count, group, spread)
    return take_packed(topology, available, count, spread=spread)


def _hand_out(
    acc: Accumulator, numas: Sequence[int], extra: Sequence[int], count: int, group: int, spread: bool
) -> int:
    topology = acc.topology
    each = count // len(numas) // group * group
    for numa in numas:
        acc.take(take_packed(topology, acc.available & topology.numas[numa], each, spread=spread))
    while acc.needed > 0:
        for numa in extra:
            free = acc.available & topology.numas[numa]
            if acc.needed > 0 and free.bit_count() >= group:
                acc.take(take_packed(topology, free, group, spread=spread))
    return acc.taken


def _most_even(
    free: Sequence[int], count: int, group: int, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the positions of `size` nodes that can give equal shares, and of those that give a group more, so that what
    stays free deviates least; None if no nodes can."""
    each = count // size // group * group
    rest = count - each * size
    able = [i for i, number in enumerate(free) if number >= each]
    best: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    least = float("inf")
    for combo in combinations(able, size):
        if least == 0:
            break
        if sum(free[i] // group for i in combo) * group < count:
            continue
        left = list(free)
        for i in combo:
            left[i] -= each
        deviation, extra = _best_rest(left, [i for i in combo if left[i] >= group], rest, group)
        if deviation < least:
            least, best = deviation, (combo, extra)
    return best


def _best_rest(left: Sequence[int], able: Sequence[int], rest: int, group: int) -> tuple[float, tuple[int, ...]]:
    """Chooses the nodes that give the rest in groups, preferring many of them."""
    if not rest:
        return _deviation(left), ()
    best: tuple[int, ...] = ()
    least = float("inf")
    for size in range(len(able), 0, -1):
        for subset in combinations(able, size):
            if least == 0:
                return least, best
            if sum(left[i] // group for i in subset) * group < rest:
                continue  # else handing out would never end
            after, open_rest = list(left), rest
            while open_rest > 0:
                for i in subset:
                    if open_rest > 0 and after[i] >= group:
                        after[i] -= group
                        open_rest -= group
            deviation = _deviation(after)
            if deviation < least:
                least, best = deviation, subset
    return least, best


def _deviation(numbers: Sequence[int]) -> float:
    """Returns the standard deviation, with three digits, so that equal ones are equal whatever the order of summing."""
    mean = round(sum(numbers) / len(numbers), 3)
    return round(sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers)), 3)


def take_cpus(
    topology: CpuTopology,
    available: int,
    count: int,
    *,
    strategy: CpuStrategy = "packed",
    group: int = 1,
    align_uncore: bool = False,
) -> int:
    """Takes CPUs with a strategy. Raises NotEnoughCpus."""
    if strategy == "distributed":
        return take_distributed(topology, available, count, group)
    return take_packed(topology, available, count, spread=strategy == "spread", align_uncore=align_uncore)
