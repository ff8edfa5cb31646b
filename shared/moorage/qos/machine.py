"""Describes a machine: its CPUs with their cores, caches, NUMA nodes and sockets, and the memory of each node, as sets of bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from .messages import nodes_of
from .topology_hints import Hint

#: Up to so many NUMA nodes every set of them is a possible hint; beyond that the smaller ones and all together.
ALL_SETS_UP_TO = 10
MOST_SETS = 4096


class Cpu(NamedTuple):
    """A logical CPU. Numbers of cores, sockets and caches are unique on the machine."""

    id: int
    core: int
    socket: int
    numa: int
    uncore: int = 0


class MemoryNode(NamedTuple):
    """The memory of a NUMA node in bytes, by class: `memory`, `hugepages-2Mi`. What huge pages take is no `memory`."""

    id: int
    total: Mapping[str, int]


class CpuTopology:
    """The CPUs of a machine. Sets of CPUs and of NUMA nodes are numbers with one bit for each."""

    def __init__(self, cpus: Iterable[Cpu], sizes: tuple[int, int, int, int] | None = None) -> None:
        """`sizes`: the numbers of sockets, cores, NUMA nodes and caches where they are told apart from the CPUs."""
        self.cpus = tuple(sorted(cpus))
        self.all = 0
        self.cores: dict[int, int] = {}
        self.sockets: dict[int, int] = {}
        self.numas: dict[int, int] = {}
        self.uncores: dict[int, int] = {}
        self.by_id = {cpu.id: cpu for cpu in self.cpus}
        for cpu in self.cpus:
            bit = 1 << cpu.id
            self.all |= bit
            for masks, key in (
                (self.cores, cpu.core),
                (self.sockets, cpu.socket),
                (self.numas, cpu.numa),
                (self.uncores, cpu.uncore),
            ):
                masks[key] = masks.get(key, 0) | bit
        counted = (len(self.sockets), len(self.cores), len(self.numas), len(self.uncores))
        self.num_sockets, self.num_cores, self.num_numas, self.num_uncores = sizes or counted
        self.cores_in_numa = self._below(self.numas, self.cores)
        self.cores_in_socket = self._below(self.sockets, self.cores)
        self.sockets_in_numa = self._below(self.numas, self.sockets)
        self.numas_in_socket = self._below(self.sockets, self.numas)
        self.uncores_in_numa = self._below(self.numas, self.uncores)

    @staticmethod
    def _below(outer: Mapping[int, int], inner: Mapping[int, int]) -> dict[int, list[tuple[int, int]]]:
        """By outer number: the numbers and sets of the inner ones that it touches, ascending."""
        return {
            number: [(found, cpus) for found, cpus in sorted(inner.items()) if cpus & mask]
            for number, mask in outer.items()
        }

    @property
    def cpus_per_core(self) -> int:
        return len(self.cpus) // self.num_cores if self.num_cores else 1

    @property
    def cpus_per_uncore(self) -> int:
        return len(self.cpus) // self.num_uncores if self.num_uncores else 0

    @cached_property
    def nodes(self) -> int:
        """The NUMA nodes that have CPUs."""
        return sum(1 << numa for numa in self.numas)

    @cached_property
    def node_sets(self) -> list[NodeSet]:
        """The sets of NUMA nodes that hints may name: the smallest first, those of one size by their numbers."""
        return [self._node_set(mask) for mask in possible_sets(sorted(self.numas))]

    def _node_set(self, mask: int) -> NodeSet:
        cpus = self.cpus_of(mask)
        sockets = sum(1 for found in self.sockets.values() if found & cpus)
        return NodeSet(mask, mask.bit_count(), cpus.bit_count(), sockets, Hint(mask, True), Hint(mask, False))

    def cpus_of(self, nodes: int | None) -> int:
        """Returns the CPUs of these NUMA nodes; None: of all."""
        if nodes is None:
            return self.all
        mask = 0
        for node in nodes_of(nodes):
            mask |= self.numas.get(node, 0)
        return mask

    def nodes_with(self, cpus: int) -> int:
        """Returns the NUMA nodes of these CPUs."""
        mask = 0
        for numa, found in self.numas.items():
            if found & cpus:
                mask |= 1 << numa
        return mask

    def whole_cores(self, cpus: int) -> int:
        """Returns those of the CPUs whose cores are in the set in full."""
        mask = 0
        for core in self.cores.values():
            if core & cpus == core:
                mask |= core
        return mask


class NodeSet(NamedTuple):
    """A set of NUMA nodes with what a hint for it needs. The two hints are made once."""

    mask: int
    size: int
    cpus: int
    sockets: int
    preferred: Hint
    other: Hint


def possible_sets(nodes: Sequence[int]) -> list[int]:
    """Returns the sets of NUMA nodes that hints may name, the smallest first."""
    found: list[int] = []
    for size in range(1, len(nodes) + 1):
        if len(nodes) > ALL_SETS_UP_TO and size < len(nodes) and len(found) + _choose(len(nodes), size) > MOST_SETS:
            continue
        found.extend(sum(1 << node for node in chosen) for chosen in combinations(nodes, size))
    return found


def _choose(n: int, k: int) -> int:
    result = 1
    for i in range(min(k, n - k)):
        result = result * (n - i) // (i + 1)
    return result


class Machine(NamedTuple):
    """A machine as its plugins see it. `distances`: by NUMA node, in the order of `memory`, to every node."""

    cpus: CpuTopology
    memory: tuple[MemoryNode, ...]
    distances: tuple[tuple[int, ...], ...] = ()

    @property
    def zones(self) -> int:
        """One more than the largest number of a NUMA node."""
        return 1 + max((*(node.id for node in self.memory), *self.cpus.numas), default=0)
