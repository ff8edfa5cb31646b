"""Decides what one node holds inside: whether its parts serve all pods of some shapes together, and which parts each gets.

Nodes with equal parts of which equal amounts are free have one state, and each question is answered once for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from moorage.collections import LruDict
from moorage.model.part_names import is_class
from moorage.model.slots import STARTING, DeviceGrant, PartAmounts, PodParts, PodPlace
from moorage.parts import Budget, Request
from moorage.parts.arrivals import can_hold, most_equal_pods, starting
from moorage.parts.kubelet import Alignment, Kubelet, Step, ZoneAmounts
from moorage.parts.layout import Layout, part_id
from moorage.parts.node_assignment import PodShare, assign_on_nodes
from moorage.parts.pod_choices import NodePart, NodeTree

from .asked_parts import Asked
from .budget import BudgetExceeded
from .static_inside import StaticInside

#: Steps of the search for parts of one node.
STEPS = 20_000
#: States that are kept, for all fleets.
_KEPT = 4096
#: More than any pods ask for.
_PLENTY = 1 << 60


#: Pods that may still arrive at a node, by what their slots take of its parts, with their number.
OpenPods = tuple[tuple[PodParts, int], ...]


class NodeState:
    """The parts of a node, of which so much is free, by entry of the layout. Ids of parts are without the node's name. The zones
    of pods that may still arrive are taken already, but their kubelet may choose others."""

    _known: LruDict[tuple[bytes, tuple[int, ...], OpenPods], NodeState] = LruDict(_KEPT)

    def __init__(self, layout: Layout, free: tuple[int, ...], opened: OpenPods = ()) -> None:
        self.layout, self.free = layout, free
        self.static = StaticInside.of(layout)
        #: What the kubelet aligns of these pods, and what they are expected to take of each zone.
        self.arriving: Counter[Alignment] = Counter()
        self._expected: dict[int, Counter[str]] = {}
        for parts, count in opened if self.static.manager.rejects else ():
            self._expect(parts, count)
        by_part: list[dict[str, int]] = [{} for _ in layout.parts]
        for (part, name), amount in zip(layout.entries, free, strict=True):
            by_part[part][name] = amount
        nothing = NodePart("")
        self.tree = NodeTree(
            [
                NodePart(
                    part.path,
                    part.parent,
                    part.traits,
                    part.aggregates,
                    by_part[i],
                    part.inventories,
                    {name: tuple(t for t in takes if t.part) for name, takes in part.consumes.items()},
                    part.healthy,
                    part.properties,
                    part.device,
                )
                for i, part in enumerate(layout.parts)
            ]
            or [nothing],
            self.static.table,
        )
        self._trees: dict[frozenset[str], NodeTree] = {}
        self._answers: LruDict[tuple[tuple[bytes, int], ...], list[list[PodShare]] | None] = LruDict(64)

    @classmethod
    def of(cls, layout: Layout, free: tuple[int, ...], opened: OpenPods = ()) -> NodeState:
        key = layout.source, free, opened
        found = cls._known.use(key)
        if found is None:
            found = cls._known[key] = cls(layout, free, opened)
        return found

    def _expect(self, parts: PodParts, count: int) -> None:
        """Counts pods that may still arrive. What they take of each zone is aligned for itself, but after an init container
        that may bind them to one."""
        steps: list[Step] = []
        for path, amounts in parts:
            if path == STARTING:
                steps.insert(0, Step(amounts, reusable=True))
                continue
            zone = self.layout.at.get(path)
            if zone is None or zone not in self.static.zones:
                continue
            step = Step(tuple(sorted((name, amount) for name, amount in amounts if amount)))
            if step.amounts:
                steps.append(step)
                expected = self._expected.setdefault(zone, Counter())
                for name, amount in step.amounts:
                    expected[name] += amount * count
        if steps and steps[0].reusable:
            self.arriving[tuple(steps)] += count
        else:
            for step in steps:
                self.arriving[(step,)] += count

    def holds_open_pods(self) -> bool:
        """Returns whether the kubelet admits the pods that may still arrive."""
        return not self.arriving or can_hold(self.static.manager, self._zones_before(), self.arriving)

    def _zones_before(self) -> list[ZoneAmounts]:
        """Returns the zones with what is free of them while none of the open pods has arrived."""
        return [
            ZoneAmounts(zone.total, {n: a + self._expected.get(i, Counter())[n] for n, a in zone.free.items()})
            for i, zone in zip(self.static.zones, self.zones(), strict=True)
        ]

    def zones(self) -> list[ZoneAmounts]:
        parts = self.layout.parts
        return [
            ZoneAmounts(
                {name: inventory.total for name, inventory in parts[zone].inventories.items()},
                self.tree.parts[zone].free,
            )
            for zone in self.static.zones
        ]

    def most(self, asked: Asked, limit: int) -> int:
        """Returns how many such pods the node holds inside, at most `limit`. Raises BudgetExceeded."""
        pod = asked.alignment(self.static.manager, self.static.reported)
        if pod and not self.arriving:
            limit = most_equal_pods(self.static.manager, self.zones(), pod, limit)
        elif pod:
            limit = self._most_beside_others(pod, limit)
        if not asked.explicit_on(self.static):
            return limit
        low, high = 0, limit
        while low < high:
            middle = high if high - low == limit else (low + high + 1) // 2  # mostly all fit
            if _assigned([self], [[(asked, middle)]], frozenset()) is not None:
                low = middle
            else:
                high = middle - 1
        return low

    def _most_beside_others(self, pod: Alignment, limit: int) -> int:
        """Returns how many such pods the kubelet admits beside those that may still arrive."""
        zones, low, high = self._zones_before(), 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if can_hold(self.static.manager, zones, self.arriving + Counter({pod: middle})):
                low = middle
            else:
                high = middle - 1
        return low

    def assign(self, pods: Sequence[tuple[Asked, int]]) -> list[list[PodShare]] | None:
        """Returns the parts of each pod, by shape; None if the node does not hold all of them. Raises BudgetExceeded."""
        key = tuple((asked.key, count) for asked, count in pods)
        if key not in self._answers:
            self._answers[key] = self._assign(pods)
        return self._answers[key]

    def _assign(self, pods: Sequence[tuple[Asked, int]]) -> list[list[PodShare]] | None:
        if not self._admits(pods):
            return None
        found = _assigned([self], [pods], frozenset())
        return None if found is None else self._with_zones(pods, found[0])

    def _admits(self, pods: Sequence[tuple[Asked, int]]) -> bool:
        """Returns whether the kubelet admits all pods, in whatever order they arrive."""
        arriving = self._aligned_pods(pods)
        return not arriving or can_hold(self.static.manager, self._zones_before(), arriving + self.arriving)

    def _aligned_pods(self, pods: Sequence[tuple[Asked, int]]) -> Counter[Alignment]:
        manager, reported = self.static.manager, self.static.reported
        arriving: Counter[Alignment] = Counter()
        for asked, count in pods:
            if count and (steps := asked.alignment(manager, reported)):
                arriving[steps] += count
        return arriving

    def _with_zones(
        self, pods: Sequence[tuple[Asked, int]], found: list[list[PodShare]]
    ) -> list[list[PodShare]] | None:
        """Adds what the kubelet takes of zones."""
        if self._aligned_pods(pods):
            return self._predicted(pods, found)
        return [
            shares or [PodShare({})] * count if not asked.explicit_on(self.static) else shares
            for shares, (asked, count) in zip(found, pods, strict=True)
        ]

    def requests(self, pods: Sequence[tuple[Asked, int]], *, in_zone: bool) -> Iterator[tuple[int, Request, int]]:
        """Yields kinds of pods with their requests. Devices that pods have together are asked for by the first of them."""
        static, shared = self.static, set[str]()
        for kind, (asked, count) in enumerate(pods):
            aligned = in_zone and asked.prefers_zone
            first = 1 if count and asked.shared - shared else 0
            if first and asked.shared:
                yield kind, asked.request(static, in_zone=aligned), 1
                shared |= asked.shared
            yield kind, asked.request(static, in_zone=aligned, shared=not asked.shared), count - first

    def with_node(self, requests: Iterable[Request]) -> NodeTree:
        """Returns the tree where the node offers the Kubernetes resources that none of its parts does. How much it has of
        them is tested by its columns."""
        names = frozenset(
            name for request in requests for group in request.groups.values() for name in group.resources
        ).difference(self.static.classes)
        names = frozenset(name for name in names if not is_class(name))
        if not names:
            return self.tree
        found = self._trees.get(names)
        if found is None:
            node = self.tree.parts[0]
            offering = node._replace(free={**node.free, **dict.fromkeys(names, _PLENTY)})
            found = self._trees[names] = NodeTree([offering, *self.tree.parts[1:]], self.static.table)
        return found

    def place(self, asked: Asked, share: PodShare) -> PodPlace:
        """Returns the parts of a pod with what matters until it has arrived."""
        first = starting(asked.alignment(self.static.manager, self.static.reported))
        grants = [
            DeviceGrant(part=g.part, need=g.need, name=g.resource, amount=g.amount, resource_class=g.resource_class)
            for g in share.grants
        ]
        return PodPlace(share.amounts, self._aligned(asked, share.amounts), dict(first), grants)

    def _aligned(self, asked: Asked, parts: PartAmounts) -> PartAmounts:
        """Returns which of the parts of a pod the kubelet, or the node's agent, takes from zones."""
        if self.layout.inside.roles:
            zones = {self.layout.parts[zone].path for zone in self.static.zones}
            return {path: dict(amounts) for path, amounts in parts.items() if path in zones}
        if not asked.shape.containers:
            return {}
        classes = asked.taken_of_zones(self.static.manager, self.static.reported)
        zones = {self.layout.parts[zone].path for zone in self.static.zones}
        found = {
            path: {name: amount for name, amount in amounts.items() if name in classes}
            for path, amounts in parts.items()
            if path in zones
        }
        return {path: amounts for path, amounts in found.items() if amounts}

    def _predicted(self, pods: Sequence[tuple[Asked, int]], found: list[list[PodShare]]) -> list[list[PodShare]] | None:
        """Adds the zones that the kubelet takes for pods that do not name parts themselves, if they arrive in this order."""
        left = {i: dict(self.tree.parts[i].free) for i in self.static.zones}
        for kind in found:
            for share in kind:
                for path, amounts in share.amounts.items():
                    zone = left.get(self.layout.at[path], {})
                    for name, amount in amounts.items():
                        zone[name] = zone.get(name, 0) - amount
        kubelet = Kubelet(
            self.static.manager,
            [ZoneAmounts(z.total, left[i]) for i, z in zip(self.static.zones, self.zones(), strict=True)],
        )
        result: list[list[PodShare]] = []
        for (asked, count), given in zip(pods, found, strict=True):
            steps = asked.alignment(self.static.manager, self.static.reported)
            if asked.explicit_on(self.static):
                result.append(given)
                continue
            result.append([])
            for _ in range(count):
                taken = kubelet.admit(steps) if steps else None
                if taken is None and steps:
                    return None
                predicted: PartAmounts = {}
                for number, name, amount in taken.amounts if taken is not None else ():
                    if amount:
                        here = predicted.setdefault(self.layout.parts[self.static.zones[number]].path, {})
                        here[name] = here.get(name, 0) + amount
                result[-1].append(PodShare(predicted))
        return result


def assign_together(
    states: Sequence[NodeState], pods: Sequence[Sequence[tuple[Asked, int]]]
) -> list[list[list[PodShare]]] | None:
    """Returns the parts of each pod, by node and by shape, on nodes that reach the same parts; None if they do not hold all of
    them. Raises BudgetExceeded."""
    shared = {state.layout.parts[at].path for state in states for at in state.layout.shared}
    if not all(state._admits(asked) for state, asked in zip(states, pods, strict=True)):
        return None
    found = _assigned(states, pods, shared)
    if found is None:
        return None
    result: list[list[list[PodShare]]] = []
    for state, asked, shares in zip(states, pods, found, strict=True):
        given = state._with_zones(asked, shares)
        if given is None:
            return None
        result.append(given)
    return result


def _assigned(
    states: Sequence[NodeState], pods: Sequence[Sequence[tuple[Asked, int]]], shared: Collection[str]
) -> list[list[list[PodShare]]] | None:
    """Returns parts for what pods ask explicitly, by node and by shape."""
    asking = [
        [(asked, count if asked.explicit_on(state.static) else 0) for asked, count in there]
        for state, there in zip(states, pods, strict=True)
    ]
    wishes = any(asked.prefers_zone for there in asking for asked, _ in there)
    for in_zone in (True, False) if wishes else (False,):
        budget = Budget(STEPS)
        requests = [list(state.requests(there, in_zone=in_zone)) for state, there in zip(states, asking, strict=True)]
        trees = [
            state.with_node([request for _, request, _ in made]) for state, made in zip(states, requests, strict=True)
        ]
        wanted = [[(request, count) for _, request, count in made] for made in requests]
        found = assign_on_nodes(trees, wanted, shared, budget)
        if found is not None:
            return [
                _by_shape(len(there), made, given) for there, made, given in zip(pods, requests, found, strict=True)
            ]
        if budget.spent and not in_zone:
            raise BudgetExceeded
    return None


def _by_shape(
    shapes: int, requests: Sequence[tuple[int, Request, int]], found: Sequence[Sequence[PodShare]]
) -> list[list[PodShare]]:
    shares: list[list[PodShare]] = [[] for _ in range(shapes)]
    for (kind, _, _), given in zip(requests, found, strict=True):
        # What the node itself gives is among its resources.
        shares[kind] += [one._replace(amounts={p: a for p, a in one.amounts.items() if p}) for one in given]
    return shares


def place_on(node: str, place: PodPlace) -> PodPlace:
    """Returns what a pod takes by the ids of the node's parts."""
    return place._replace(
        parts=on_node(node, place.parts),
        aligned=on_node(node, place.aligned),
        devices=[msgspec.structs.replace(grant, part=part_id(node, grant.part)) for grant in place.devices],
    )


def on_node(node: str, parts: Mapping[str, Mapping[str, int]]) -> PartAmounts:
    """Returns amounts by the ids of the node's parts."""
    return {part_id(node, path): dict(amounts) for path, amounts in parts.items()}
