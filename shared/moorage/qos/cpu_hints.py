"""Finds the sets of NUMA nodes that can give a container its CPUs, as the CPU manager of a kubelet does."""

from __future__ import annotations

from .machine import CpuTopology
from .messages import nodes_of
from .topology_hints import Hint


def cpu_hints(
    topology: CpuTopology,
    count: int,
    available: int,
    reusable: int = 0,
    *,
    align_by_socket: bool = False,
    by_free: bool = False,
) -> list[Hint]:
    """Returns the hints for `count` CPUs, the smallest sets first. Those are preferred that have as few nodes as the machine
    needs for so many, or, `by_free`, as what is available needs; aligned by socket, also those on as few sockets. All nodes of
    CPUs that may be used `again` are part of each set."""
    held = topology.nodes_with(reusable)
    free = available & ~reusable
    again = reusable.bit_count()
    per_node = {numa: (mask & free).bit_count() for numa, mask in topology.numas.items()}
    of_set: dict[int, int] = {0: 0}
    smallest, sockets = len(topology.numas), len(topology.sockets)
    fitting = []
    for found in topology.node_sets:
        mask = found.mask
        rest = of_set.get(mask & (mask - 1))
        number = (
            rest + per_node[(mask & -mask).bit_length() - 1]
            if rest is not None
            else sum(per_node[node] for node in nodes_of(mask))
        )
        of_set[mask] = number
        fits = number + again >= count and mask & held == held
        if found.size < smallest and (fits if by_free else found.cpus >= count):
            smallest = found.size
            sockets = min(sockets, found.sockets)
        if fits:
            fitting.append(found)
    return [
        found.preferred
        if found.size == smallest or (align_by_socket and found.sockets == sockets and _has_numa_per_socket(topology))
        else found.other
        for found in fitting
    ]


def _has_numa_per_socket(topology: CpuTopology) -> bool:
    return len(topology.numas) >= len(topology.sockets)
