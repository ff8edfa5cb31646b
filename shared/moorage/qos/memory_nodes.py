"""Gives containers memory and huge pages of NUMA nodes, as the static policy of a kubelet's memory manager does: from as few
nodes as the machine needs. A node that serves containers alone joins no group of nodes meanwhile, and one of a group serves no
container alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .machine import possible_sets
from .messages import nodes_of
from .topology_hints import Hint


class NoMemory(Exception):
    """Raised where no nodes, or not those of the hint, can give what is requested."""


class Block(NamedTuple):
    """The memory of one class that a container has, and the nodes that it was taken from, together."""

    nodes: int
    name: str
    size: int


@dataclass(slots=True)
class NodeMemory:
    """A NUMA node, amounts in bytes by class. `group`: the nodes that serve containers together with it; of one that serves
    none, or alone, itself. `assignments` counts blocks."""

    id: int
    allocatable: dict[str, int]
    reserved: dict[str, int] = field(default_factory=dict)
    assignments: int = 0
    group: int = 0

    def free(self, name: str) -> int:
        return self.allocatable.get(name, 0) - self.reserved.get(name, 0)


class MemoryNodes:
    """The memory of a machine. Calls that fail change nothing."""

    def __init__(self, allocatable: Mapping[int, Mapping[str, int]]) -> None:
        self.nodes = {
            node: NodeMemory(node, dict(amounts), group=1 << node) for node, amounts in sorted(allocatable.items())
        }
        self._sets = possible_sets(sorted(self.nodes))

    def hints(
        self, requested: Mapping[str, int], reusable: Mapping[int, Mapping[str, int]] | None = None
    ) -> list[Hint]:
        """Returns the sets of nodes that can give all that is requested, the smallest first. `reusable`: what init containers
        of the pod leave, by the nodes that it was taken from."""
        smallest = len(self.nodes)
        fitting = []
        for mask in self._sets:
            nodes = [self.nodes[node] for node in nodes_of(mask)]
            if any(sum(n.allocatable.get(name, 0) for n in nodes) < size for name, size in requested.items()):
                continue
            smallest = min(smallest, len(nodes))
            again = (reusable or {}).get(mask, {})
            if self._may_serve(nodes, mask) and all(
                sum(n.free(name) for n in nodes) + again.get(name, 0) >= size for name, size in requested.items()
            ):
                fitting.append(mask)
        return [Hint(mask, mask.bit_count() == smallest) for mask in fitting]

    def alone(self, requested: Mapping[str, int]) -> int:
        """Returns the nodes that can give all that is requested alone."""
        return sum(
            1 << node.id
            for node in self.nodes.values()
            if node.group.bit_count() == 1 and all(node.free(name) >= size for name, size in requested.items())
        )

    @staticmethod
    def _may_serve(nodes: Iterable[NodeMemory], mask: int) -> bool:
        if not mask & (mask - 1):
            return all(node.group.bit_count() == 1 for node in nodes)
        return all(not node.assignments or node.group == mask for node in nodes)

    def choose(
        self, hint: Hint, requested: Mapping[str, int], reusable: Mapping[int, Mapping[str, int]] | None = None
    ) -> int:
        """Returns the nodes for a request whose hint names some, all that are needed, or none. Raises NoMemory."""
        mask, preferred = hint.zones, hint.preferred
        if mask is None:
            found = self.hints(requested, reusable)
            if not found:
                raise NoMemory("no NUMA nodes with enough memory are available")
            best = _best(found)
            if preferred and not best.preferred:
                raise NoMemory("no NUMA nodes that would be preferred have enough memory")
            mask = best.zones or 0
        mask &= sum(1 << node for node in self.nodes)
        if not mask or any(
            sum(self.nodes[n].free(name) for n in nodes_of(mask)) + (reusable or {}).get(mask, {}).get(name, 0) < size
            for name, size in requested.items()
        ):
            wider = [h for h in self.hints(requested, reusable) if (h.zones or 0) & mask == mask]
            if not wider:
                raise NoMemory("the NUMA nodes of the hint lack memory, and no others can be added")
            best = _best(wider)
            if preferred and not best.preferred:
                raise NoMemory("the NUMA nodes of the hint lack memory, and more are not preferred")
            mask = best.zones or 0
        # A single node that is in a group is no hint; where the policy insisted on it all the same, it leaves the group.
        if mask & (mask - 1) and not self._may_serve([self.nodes[n] for n in nodes_of(mask)], mask):
            raise NoMemory("these NUMA nodes serve containers in other groups")
        return mask

    def take(
        self, mask: int, requested: Mapping[str, int], reusable: Mapping[int, Mapping[str, int]] | None = None
    ) -> list[Block]:
        """Takes memory of these nodes, the lowest first, and returns the blocks."""
        blocks = []
        for name, size in sorted(requested.items()):
            blocks.append(Block(mask, name, size))
            self._fill(mask, name, max(0, size - (reusable or {}).get(mask, {}).get(name, 0)))
        return blocks

    def _fill(self, mask: int, name: str, size: int) -> None:
        for number in nodes_of(mask):
            node = self.nodes[number]
            node.assignments += 1
            node.group = mask
            given = max(0, min(size, node.free(name)))
            if given:
                node.reserved[name] = node.reserved.get(name, 0) + given
                size -= given

    def release(self, blocks: Iterable[Block]) -> None:
        """Gives blocks back, to the lowest of their nodes first."""
        for mask, name, left in blocks:
            for number in nodes_of(mask):
                node = self.nodes.get(number)
                if node is None:
                    continue  # the block is from a time when the machine had more nodes
                node.assignments -= 1
                if not node.assignments:
                    node.group = 1 << number
                given = min(left, node.reserved.get(name, 0))
                if given:
                    node.reserved[name] -= given
                    left -= given


def _best(hints: Iterable[Hint]) -> Hint:
    return min(hints, key=lambda hint: (not hint.preferred, (hint.zones or 0).bit_count(), hint.zones or 0))
