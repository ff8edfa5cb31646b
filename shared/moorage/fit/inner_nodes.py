"""Decides which pods nodes of one cluster hold inside, each for itself, or together where they reach the same parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import Shape
from moorage.model.slots import PodPlace, part_and_class
from moorage.parts import Budget
from moorage.parts.device_parts import MARK
from moorage.parts.device_slots import selected_devices
from moorage.parts.layout import Layout, path_of
from moorage.parts.node_assignment import FreePod, distribute_pods

from .asked_parts import Asked, asks_parts
from .budget import BudgetExceeded
from .class_scope import depends_on_cluster, within_cluster
from .inner_rows import EMPTY, in_trees, nodes_by_layout, open_pods_on
from .node_state import STEPS, NodeState, assign_together, place_on
from .protocols import Ids, Rows
from .shared_slots import SharedNodes
from .static_inside import StaticInside, consumed_entries

#: Parts that nodes of one search have: with more, it ends after fewer steps, as each takes longer.
_PARTS = 256


class InnerNodes:
    """The inside of the nodes of one cluster, for the pods of several shapes together. `taken`: by row, what is not free
    any more, parts among it."""

    def __init__(
        self, rows: Rows, where: Ids, shapes: Sequence[Shape], taken: Mapping[int, Mapping[str, int]] | None = None
    ) -> None:
        self._slots = SharedNodes(rows, where, shapes, taken or {})
        if len(where) and any(map(depends_on_cluster, shapes)):
            shapes = [within_cluster(shape, rows.names[int(rows.cluster[where[0]])]) for shape in shapes]
        self.rows, self.where, self.shapes = rows, where, shapes
        self._taken = taken or {}
        self._inside: list[tuple[Layout, list[int]]] = [(EMPTY, [])] * len(where)
        asked = [Asked(shape) for shape in shapes if shape.groups]
        self._by_layout = [*nodes_by_layout(rows, where, asked=asked)]
        for layout, at, free in self._by_layout:
            for position, amounts in zip(at.tolist(), free.tolist(), strict=True):
                self._inside[position] = layout, amounts
        self._states: dict[int, NodeState] = {}  # made when they are asked
        self.allowed = [in_trees(rows, shape, where) for shape in shapes]
        self._askings: dict[tuple[int, tuple[int, ...]], Asked] = {}
        self._known: dict[object, list[list[PodPlace]] | None] = {}
        self._together: dict[object, dict[int, list[list[PodPlace]]] | None] = {}

    @cached_property
    def _shared_taken(self) -> dict[int, dict[str, int]]:
        """Returns what is not free any more of parts that several nodes reach, by node: what the others take of it."""
        if not self._taken or not len(self.where):
            return {}
        shared = self.rows.parts.shared_in(int(self.rows.cluster[self.where[0]])) if self.rows.parts.n else {}
        found: dict[int, dict[str, int]] = {}
        for row, taken in self._taken.items():
            for name, amount in taken.items() if shared else ():
                of_part = part_and_class(name)
                for part_row in shared.get(of_part[0], ()) if of_part is not None else ():
                    other = int(self.rows.parts.node[part_row])
                    if other != row:
                        here = found.setdefault(other, {})
                        here[name] = here.get(name, 0) + amount
        return found

    @cached_property
    def in_common(self) -> dict[int, frozenset[str]]:
        """Returns the nodes that reach parts which others of these nodes reach, too, with the paths of these parts. Only parts that
        matter to the shapes count."""
        if not len(self.where) or not self.rows.parts.n:
            return {}
        by_nodes: dict[bytes, list[str]] = {}
        sets: dict[bytes, list[int]] = {}
        for ident, part_rows in self.rows.parts.shared_in(int(self.rows.cluster[self.where[0]])).items():
            if len(part_rows) < 2:
                continue
            reaching = np.flatnonzero(np.isin(self.where, self.rows.parts.node[part_rows]))
            nodes = reaching.tolist()
            if len(nodes) > 1 and self._matters(MARK + ident, nodes):
                sets[key := reaching.tobytes()] = nodes
                by_nodes.setdefault(key, []).append(MARK + ident)
        found: dict[int, set[str]] = {}
        for key, paths in by_nodes.items():
            for at in sets[key]:
                found.setdefault(at, set()).update(paths)
        return {at: frozenset(paths) for at, paths in found.items()}

    def _matters(self, path: str, nodes: Sequence[int]) -> bool:
        """Returns whether a pod of a shape may get the part at one of these nodes."""
        layouts = {id(layout): layout for layout in (self._inside[at][0] for at in nodes)}
        for layout in layouts.values():
            part = layout.parts[layout.at[path]]
            table = StaticInside.of(layout).table
            for group in (group for shape in self.shapes for group in shape.groups):
                if not part.inventories.keys().isdisjoint(group.resources) and part.healthy:
                    return True
                if part.device >= 0 and any(
                    selected_devices(table, ask)(part.device, part.properties) is not False for ask in group.devices
                ):
                    return True
        return False

    def digest(self) -> bytes:
        """Returns a short form of what is free inside the nodes, equal for equal ones in every process."""
        found = hashlib.blake2b(digest_size=16)
        for number, row in enumerate(self.where.tolist() if self._taken else ()):
            found.update(repr((number, sorted(self._taken.get(row, {}).items()))).encode())
        for layout, at, free in sorted(self._by_layout, key=lambda one: one.layout.source):
            found.update(_digest_of(layout.source) + at.tobytes() + free.tobytes())
        return found.digest()

    def node_state(self, at: int) -> NodeState:
        """Returns the state of a node; the same object for nodes that hold the same."""
        found = self._states.get(at)
        if found is None:
            (layout, amounts), row = self._inside[at], int(self.where[at])
            taken = self._taken.get(row)
            lost = _lost(layout, self.rows.node_name(row), taken) if taken else {}
            if of_others := self._shared_taken.get(row):
                for entry, amount in _lost(layout, self.rows.node_name(row), of_others).items():
                    lost[entry] = lost.get(entry, 0) + amount
            free = tuple(a - lost.get(entry, 0) for entry, a in enumerate(amounts)) if lost else tuple(amounts)
            found = self._states[at] = NodeState.of(layout, free, open_pods_on(self.rows, row))
        return found

    @property
    def shares_slots(self) -> bool:
        return bool(self._slots)

    def state_key(self, at: int) -> object:
        """Returns a key that is equal for nodes that hold the same."""
        return id(self.node_state(at)), self._slots.state(at)

    def asked(self, number: int, granted: Iterable[int]) -> Asked:
        key = number, tuple(granted)
        found = self._askings.get(key)
        if found is None:
            found = self._askings[key] = Asked(self.shapes[number], key[1])
        return found

    def assign(self, at: int, counts: Sequence[int], granted: Sequence[Sequence[int]]) -> list[list[PodPlace]] | None:
        """Returns the parts of each pod, by shape, if the node holds so many pods of each. Raises BudgetExceeded."""
        if not self._slots.holds(at, counts):
            return None
        asking = [n for n, count in enumerate(counts) if count and asks_parts(self.shapes[n], self.rows)]
        for n in asking:
            allowed = self.allowed[n]
            if allowed is not None and not allowed[at]:
                return None
        state = self.node_state(at)
        key = (id(state), tuple((n, counts[n], tuple(granted[n])) for n in asking))
        if key not in self._known:
            pods = [(self.asked(n, granted[n]), counts[n]) for n in asking]
            given = state.assign(pods)
            self._known[key] = None
            if given is not None:
                self._known[key] = [
                    [state.place(asked, parts) for parts in kind] for (asked, _), kind in zip(pods, given, strict=True)
                ]
        found = self._known[key]
        if found is None:
            return None
        node = self.rows.node_name(int(self.where[at]))
        result: list[list[PodPlace]] = [[PodPlace({}, {})] * count for count in counts]
        for n, places in zip(asking, found, strict=True):
            result[n] = [place_on(node, place) for place in places]
        return result

    def assign_all(
        self, packed: NDArray[np.int64], granted: Sequence[Sequence[int]]
    ) -> dict[int, list[list[PodPlace]]] | None:
        """Returns the parts of each pod, by node and shape, of these pods per shape and node; None if a node does not hold its
        pods, or nodes not theirs together. Raises BudgetExceeded."""
        found: dict[int, list[list[PodPlace]]] = {}
        nodes = np.flatnonzero(packed.any(axis=0)).tolist()
        for together in self._reaching_the_same(nodes):
            if len(together) == 1:
                places = self.assign(together[0], packed[:, together[0]].tolist(), granted)
                if places is None:
                    return None
                found[together[0]] = places
                continue
            of_nodes = self._assign_together(together, packed, granted)
            if of_nodes is None:
                return None
            found |= of_nodes
        return found

    def assign_held(
        self, packed: NDArray[np.int64], granted: Sequence[Sequence[int]]
    ) -> dict[int, list[list[PodPlace]]] | None:
        """Returns what `assign_all` does. Pods get what the scheduler will give them, which may look like what others of their shape
        get on other nodes: all are pinned to the same devices."""
        found = self.assign_all(packed, granted)
        seen = self._alike(found) if found is not None and len(found) > 1 else {}
        shapes = self.shapes
        while any(not numbers.issubset(shapes[n].alike) for n, numbers in seen.items()):
            shapes = [
                msgspec.structs.replace(shape, alike=sorted(seen.get(n, set()).union(shape.alike)))
                for n, shape in enumerate(shapes)
            ]
            try:
                held = InnerNodes(self.rows, self.where, shapes, self._taken).assign_all(packed, granted)
            except BudgetExceeded:
                held = None
            if held is None:
                break  # nothing keeps them from each other's devices: slots will follow the pods
            found, seen = held, self._alike(held)
        return found

    def _alike(self, places: Mapping[int, Sequence[Sequence[PodPlace]]]) -> dict[int, set[int]]:
        """Returns the numbers of devices that selectors cannot tell apart, by the shape whose pods get some."""
        numbers: dict[int, set[int]] = {}
        for at, by_shape in places.items():
            layout, node = self._inside[at][0], self.rows.node_name(int(self.where[at]))
            if not StaticInside.of(layout).table.has_alike:
                continue
            for n, parts in enumerate({g.part for place in of for g in place.devices} for of in by_shape):
                if found := {layout.alike(path_of(node, part, layout)) for part in parts} - {0}:
                    numbers.setdefault(n, set()).update(found)
        return numbers

    def holds_all(self, packed: NDArray[np.int64], granted: Sequence[Sequence[int]]) -> bool:
        return self.assign_all(packed, granted) is not None

    def _reaching_the_same(self, nodes: Sequence[int]) -> list[list[int]]:
        """Splits nodes into sets of which no two reach the same part."""
        in_common = self.in_common
        if not in_common:
            return [[at] for at in nodes]
        sets: list[tuple[set[str], list[int]]] = []
        for at in nodes:
            paths, joined = set(in_common.get(at, ())), [at]
            others: list[tuple[set[str], list[int]]] = []
            for other, members in sets:
                if paths.isdisjoint(other):
                    others.append((other, members))
                else:
                    paths |= other
                    joined = members + joined
            sets = [*others, (paths, joined)]
        return [sorted(members) for _, members in sets]

    def _assign_together(
        self, nodes: Sequence[int], packed: NDArray[np.int64], granted: Sequence[Sequence[int]]
    ) -> dict[int, list[list[PodPlace]]] | None:
        key = tuple(
            (at, tuple((n, count, tuple(granted[n])) for n, count in enumerate(packed[:, at].tolist()) if count))
            for at in nodes
        )
        if key in self._together:
            return self._together[key]
        self._together[key] = None
        asking: list[list[int]] = []
        for at in nodes:
            if not self._slots.holds(at, packed[:, at].tolist()):
                return None
            asking.append([n for n in range(len(packed)) if packed[n, at] and asks_parts(self.shapes[n], self.rows)])
            if any((allowed := self.allowed[n]) is not None and not allowed[at] for n in asking[-1]):
                return None
        pods = [
            [(self.asked(n, granted[n]), int(packed[n, at])) for n in there]
            for at, there in zip(nodes, asking, strict=True)
        ]
        states = [self.node_state(at) for at in nodes]
        try:
            shares = assign_together(states, pods)
        except BudgetExceeded:
            del self._together[key]
            raise
        if shares is None:
            return None
        found: dict[int, list[list[PodPlace]]] = {}
        for at, state, there, asked, given in zip(nodes, states, asking, pods, shares, strict=True):
            node = self.rows.node_name(int(self.where[at]))
            found[at] = [[PodPlace({}, {})] * int(count) for count in packed[:, at]]
            for n, (one, _), kind in zip(there, asked, given, strict=True):
                found[at][n] = [place_on(node, state.place(one, share)) for share in kind]
        self._together[key] = found
        return found

    def holds(self, at: int, counts: Sequence[int], granted: Sequence[Sequence[int]]) -> bool:
        return self.assign(at, counts, granted) is not None

    def most(self, at: int, counts: Sequence[int], number: int, limit: int, granted: Sequence[Sequence[int]]) -> int:
        """Returns how many pods of a shape the node holds beside these pods, at most `limit`."""
        asks = asks_parts(self.shapes[number], self.rows) or self._slots.concerns(number)
        if not asks or limit <= 0:
            return max(limit, 0)

        def holds(count: int) -> bool:
            more = list(counts)
            more[number] += count
            return self.holds(at, more, granted)

        return _largest(limit, holds)


class InnerGroups:
    """The inside of the nodes of a packing problem, by the groups of the problem. `numbers`: the shape of each group;
    `fixed`: pods per shape and node that are there whatever the packing."""

    def __init__(
        self,
        nodes: InnerNodes,
        numbers: Sequence[int],
        fixed: NDArray[np.int64],
        granted: Sequence[Sequence[int]],
    ) -> None:
        self._nodes, self._numbers, self._fixed, self._granted = nodes, numbers, fixed, granted

    def _counts(self, node: int, pods: Sequence[int]) -> list[int]:
        counts: list[int] = self._fixed[:, node].tolist()
        for number, count in zip(self._numbers, pods, strict=True):
            counts[number] += count
        return counts

    def holds(self, node: int, pods: Sequence[int]) -> bool:
        """Returns whether the node holds so many pods of each group. Raises BudgetExceeded."""
        return self._nodes.holds(node, self._counts(node, pods), self._granted)

    def most(self, node: int, pods: Sequence[int], group: int, limit: int) -> int:
        """Returns how many pods of a group the node holds beside these, at most `limit`. Raises BudgetExceeded."""
        return self._nodes.most(node, self._counts(node, pods), self._numbers[group], limit, self._granted)

    def most_beside(self, packed: NDArray[np.int64], node: int, group: int, limit: int) -> int:
        """Returns how many pods of a group, at most `limit`, the node holds beside these pods per group and node. Raises
        BudgetExceeded."""
        if node not in self.in_common:
            return self.most(node, packed[:, node].tolist(), group, limit)
        trial = packed.copy()

        def holds(count: int) -> bool:
            trial[group, node] = packed[group, node] + count
            return self.holds_all(trial)

        return _largest(limit, holds)

    def state(self, node: int) -> object:
        """Returns a key that is equal for nodes that hold the same, and reach the same parts as others."""
        return self._nodes.state_key(node), self.in_common.get(node)

    @property
    def in_common(self) -> Mapping[int, frozenset[str]]:
        """Returns the nodes that reach the same parts as others, with these parts. Such nodes are not independent of each other."""
        return self._nodes.in_common

    def distribute(
        self, counts: Sequence[int], room: NDArray[np.int64], needs: NDArray[np.int64], feasible: NDArray[np.bool_]
    ) -> NDArray[np.int64] | None:
        """Returns pods per group and node that fit together, or None as the proof that there are none. `room`: what nodes have free,
        of which a pod of each group needs so much. Raises BudgetExceeded."""
        nodes, common = self._nodes, self.in_common
        if nodes.shares_slots:
            raise BudgetExceeded  # parts and shared slots are not searched together
        where = self._distinct(counts, room, feasible)
        numbers = [*self._numbers, *np.flatnonzero(self._fixed.any(axis=1)).tolist()]
        asked = {n: nodes.asked(n, self._granted[n]) for n in numbers}
        states = [nodes.node_state(at) for at in where]
        if any(one.shared for one in asked.values()):
            raise BudgetExceeded  # which pod gets the devices that several have together depends on the node
        requests = [[asked[n].request(state.static) for state in states] for n in numbers]
        trees = [state.with_node([of[i] for of in requests]) for i, state in enumerate(states)]
        names = [f"\0{column}" for column in range(room.shape[1])]
        pods = [
            FreePod(
                [r if feasible[g, at] else None for r, at in zip(requests[g], where, strict=True)],
                dict(zip(names, needs[g].tolist(), strict=True)),
                count,
            )
            for g, count in enumerate(counts)
        ]
        for of, n in zip(requests[len(counts) :], numbers[len(counts) :], strict=True):
            for i, at in enumerate(where):
                there = [request if i == j else None for j, request in enumerate(of)]
                pods.append(FreePod(there, {}, int(self._fixed[n, at])))
        rooms = [dict(zip(names, np.maximum(room[at], 0).tolist(), strict=True)) for at in where]
        shared = {state.layout.parts[part].path for state in states for part in state.layout.shared}
        budget = Budget(max(256, STEPS * _PARTS // max(_PARTS, sum(len(tree.parts) for tree in trees))))
        found = distribute_pods(trees, rooms, pods, shared if common else (), budget)
        if found is None and not budget.spent:
            return None
        packed = np.zeros((len(counts), len(room)), np.int64)
        if found is not None:
            packed[:, where] = found[: len(counts)]
        if found is None or not self.holds_all(packed):
            raise BudgetExceeded  # steps are used up, or a kubelet does not admit what its zones could hold
        return packed

    def holds_all(self, packed: NDArray[np.int64]) -> bool:
        """Returns whether the nodes together hold these pods per group and node. Raises BudgetExceeded."""
        counts = self._fixed.copy()
        counts[self._numbers] += packed
        return self._nodes.holds_all(counts, self._granted)

    def _distinct(self, counts: Sequence[int], room: NDArray[np.int64], feasible: NDArray[np.bool_]) -> list[int]:
        """Returns the nodes that matter: of equal ones not more than there are pods."""
        seen: dict[object, int] = {}
        found: list[int] = []
        for at in np.flatnonzero(feasible.any(axis=0) | self._fixed.any(axis=0)).tolist():
            fixed = self._fixed[:, at]
            key = self.state(at), room[at].tobytes(), feasible[:, at].tobytes(), fixed.tobytes()
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= sum(counts) or fixed.any():
                found.append(at)
        return found


@lru_cache(1024)
def _digest_of(source: bytes) -> bytes:
    return hashlib.blake2b(source, digest_size=16).digest()


def _lost(layout: Layout, node: str, taken: Mapping[str, int]) -> dict[int, int]:
    """Returns amounts of a node's parts by entry of its layout."""
    lost: dict[int, int] = {}
    for name, amount in taken.items():
        of_part = part_and_class(name)
        if of_part is None:
            continue
        ident, kind = of_part
        entry = layout.entry_at.get((path_of(node, ident, layout), kind))
        if entry is not None:
            lost[entry] = lost.get(entry, 0) + amount
            for consumed, each in consumed_entries(layout, layout.parts[layout.entries[entry].part], kind):
                lost[consumed] = lost.get(consumed, 0) + amount * each
    return lost


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Returns the largest number up to the limit that holds, as smaller ones do. Most often it is the limit, so that is tried first."""
    low, high, middle = 0, limit, limit
    while low < high:
        if holds(middle):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
