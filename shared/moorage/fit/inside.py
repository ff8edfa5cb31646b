"""Decides what one node holds inside: whether its parts serve all pods of some shapes together, and which parts each gets.

Nodes with equal parts of which equal amounts are free have one state, and each question is answered once for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import gcd

import msgspec

from moorage.collections import LruDict
from moorage.model.part_names import HW_NUMA_ROOT, is_class
from moorage.model.part_requests import OneZone, PartGroup
from moorage.model.shapes import EXCLUSIVE, Shape
from moorage.model.slots import STARTING, DeviceGrant, PartAmounts, PodParts, PodPlace
from moorage.parts import Budget, Request, needs_one_zone, pod_request
from moorage.parts.arrivals import can_hold, most_equal_pods, starting
from moorage.parts.device_parts import COUNTERS
from moorage.parts.device_slots import class_name, of_identity, reads_identities
from moorage.parts.device_table import DeviceTable, reads_identity
from moorage.parts.identities import may_select, names_identity
from moorage.parts.inside import InnerPart, Layout, part_id
from moorage.parts.kubelet import Alignment, Kubelet, Step, TopologyManager, ZoneAmounts, aligned_steps, alignment
from moorage.parts.node_assignment import NodePart, NodeTree, PodShare, assign_on_nodes
from moorage.parts.role_request import cores_alone, role_group, with_cores_of_zones, with_role_of

from .budget import BudgetExceeded
from .protocols import Rows

#: Steps of the search for parts of one node.
STEPS = 20_000
#: States that are kept, for all fleets.
_KEPT = 4096
#: More than any pods ask for.
_PLENTY = 1 << 60


def asks_parts(shape: Shape, rows: Rows) -> bool:
    """Returns whether the inside of these nodes matters to the shape's pods."""
    if shape.groups or shape.relations:
        return True
    if rows.layout is None:
        return False
    layouts = rows.parts.layouts
    return (bool(shape.containers) and layouts.any_aligns) or (layouts.any_gives_exclusive and _may_be_exclusive(shape))


def _may_be_exclusive(shape: Shape) -> bool:
    if not shape.guaranteed:
        return False
    return cores_alone(shape) > 0 or any(EXCLUSIVE in need.resources for need in shape.optional)


def without_parts(shape: Shape) -> Shape:
    """Returns the shape without what it asks of the inside of nodes."""
    if not (shape.groups or shape.relations or shape.containers):
        return shape
    return msgspec.structs.replace(
        shape, key=f"{shape.key} without parts", groups=[], relations=[], containers=[], guaranteed=False
    )


class Asked:
    """What a pod of a shape asks of the inside of its node, with these optional needs granted."""

    def __init__(self, shape: Shape, granted: Iterable[int] = ()) -> None:
        self.shape, self.granted = shape, tuple(granted)
        self.explicit = bool(shape.groups or shape.relations)
        self.one_zone = needs_one_zone(shape)
        self.asks_devices = any(group.devices for group in shape.groups)
        self.prefers_zone = not self.one_zone and any(isinstance(r, OneZone) for r in shape.relations)
        #: Equal for shapes that ask the same.
        self.key = msgspec.json.encode(
            (
                shape.groups,
                shape.relations,
                shape.containers,
                shape.guaranteed,
                sorted(shape.resources.items()),
                [shape.optional[i] for i in self.granted],
            )
        )
        #: Claims whose devices the pods have together.
        self.shared = frozenset(group.shared for group in shape.groups if group.shared)
        self._relates_identities = any(map(reads_identities, shape.groups)) or any(map(of_identity, shape.relations))
        #: Selectors of devices that name identities.
        self._identities = [a.properties for g in shape.groups for a in g.devices if names_identity(a.properties)]
        #: DeviceClasses of clusters that are asked for.
        self._classes = {class_name(ask) for group in shape.groups for ask in group.devices}
        self.role = role_group(shape)
        self.cores = cores_alone(shape, self.granted)
        self._requests: dict[tuple[frozenset[str] | None, bool, object], Request] = {}
        self._alignments: dict[tuple[TopologyManager, frozenset[str]], Alignment] = {}

    def reads_identities(self, layout: Layout) -> bool:
        """Returns whether the identities of a layout's devices may matter."""
        return bool(self._identities) or self._always_reads(layout)

    def depends_on_identities(self, layout: Layout, source: bytes) -> bool:
        """Returns whether the identities in a source of this layout may matter: others select no device more or less."""
        return self._always_reads(layout) or any(may_select(selector, source) for selector in self._identities)

    def _always_reads(self, layout: Layout) -> bool:
        return self._relates_identities or not self._classes.isdisjoint(StaticInside.of(layout).identity_classes)

    def explicit_on(self, static: StaticInside) -> bool:
        """Returns whether parts of nodes of a layout are asked for: by the shape, or because CPUs of one's own are of zones."""
        return self.explicit or (self.cores > 0 and static.gives_exclusive)

    def request(self, static: StaticInside, *, in_zone: bool = False, shared: bool = True) -> Request:
        """Returns the request to nodes of a layout. `shared`: with the devices that pods have together."""
        of_layout: object = static.role_terms(self.role) if self.role is not None else None
        cores = self.cores if static.gives_exclusive else 0
        if cores:
            of_layout = static.largest.get(EXCLUSIVE, 0)
        key = static.zone_classes if self.one_zone or in_zone else None, shared or not self.shared, of_layout
        found = self._requests.get(key)
        if found is None:
            shape = self.shape
            if self.role is not None:
                shape = with_role_of(shape, static.layout.inside.roles, static.zone_classes, static.largest)
            if cores:
                shape = with_cores_of_zones(shape, cores, static.largest.get(EXCLUSIVE, 0))
            if not key[1]:
                shape = msgspec.structs.replace(shape, groups=[group for group in shape.groups if not group.shared])
            found = pod_request(shape, self.granted, key[0])
            # Which nodes a group names is tested before.
            groups = {suffix: group._replace(in_tree=None) for suffix, group in found.groups.items()}
            found = self._requests[key] = found._replace(groups=groups)
        return found

    def alignment(self, manager: TopologyManager, reported: frozenset[str]) -> Alignment:
        """Returns what the kubelet of a node insists on aligning."""
        if not manager.rejects or not self.shape.containers:
            return ()
        found = self._alignments.get((manager, reported))
        if found is None:
            found = alignment(self.shape.containers, self.shape.guaranteed, manager, reported)
            self._alignments[manager, reported] = found
        return found

    def taken_of_zones(self, manager: TopologyManager, reported: frozenset[str]) -> frozenset[str]:
        """Returns the classes that a kubelet takes of zones for the pod, whether it insists on aligning them or not."""
        steps = aligned_steps(self.shape.containers, self.shape.guaranteed, manager, reported)
        return frozenset(name for step in steps for name, _ in step.amounts)

    def units(self, layout: Layout, limit: int) -> dict[str, tuple[int, int]]:
        """Returns, for each class that matters, the unit in which it is given and the most that pods up to `limit` take."""
        amounts: dict[str, list[int]] = {}
        static = StaticInside.of(layout)
        for group in self.request(static, in_zone=self.prefers_zone).groups.values():
            for name, amount in group.resources.items():
                amounts.setdefault(name, []).append(amount)
        found = {name: (gcd(*all_of) or 1, sum(all_of) * limit) for name, all_of in amounts.items()}
        found |= dict.fromkeys(static.taken_for(amounts.keys()) - found.keys(), (1, 1 << 62))
        for step in self.alignment(static.manager, static.reported):
            for name, _ in step.amounts:
                found[name] = 1, 1 << 62
        if self.cores and static.gives_exclusive:
            found |= {"cpu": (1000, 1 << 62), EXCLUSIVE: (1, 1 << 62)}
        if self.asks_devices:
            # How much is taken of which depends on the device that is chosen.
            found |= dict.fromkeys(static.device_classes, (1, 1 << 62))
        return found


class StaticInside:
    """What all nodes of a layout have in common."""

    _known: LruDict[bytes, StaticInside] = LruDict(1024)

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        parts = layout.parts
        self.zones = [i for i, part in enumerate(parts) if HW_NUMA_ROOT in part.traits and part.healthy]
        below = [False] * len(parts)
        for i, part in enumerate(parts):
            below[i] = i in self.zones or (part.parent >= 0 and below[part.parent])
        self.zone_classes = frozenset(n for i, p in enumerate(parts) if below[i] and p.healthy for n in p.inventories)
        self.reported = frozenset(n for i in self.zones for n in parts[i].inventories)
        #: The most that a zone has of each class.
        self.largest: dict[str, int] = {}
        for name, inventory in ((n, inventory) for i in self.zones for n, inventory in parts[i].inventories.items()):
            self.largest[name] = max(self.largest.get(name, 0), inventory.total - inventory.reserved)
        self.classes = frozenset(entry.resource for entry in layout.entries)
        inside = layout.inside
        self.table = DeviceTable(inside.devices, inside.device_classes, inside.incomplete_pools)
        #: DeviceClasses whose expressions read identities of devices.
        self.identity_classes = {c.name for c in inside.device_classes if any(map(reads_identity, c.selectors))}
        #: What devices, and the counters above them, offer.
        self.device_classes = {name for p in parts if p.device >= 0 or p.kind == COUNTERS for name in p.inventories}
        reported = layout.inside.topology_manager
        cpu = layout.inside.cpu_manager
        self.manager = TopologyManager()
        if reported is not None and self.zones:
            self.manager = TopologyManager(reported.policy, reported.scope, cpu != "none")  # type: ignore[arg-type]
        self.gives_exclusive = layout.gives_exclusive
        #: By entry, the entries of parts below that take of it, and how much one unit of each takes.
        self.consumers: dict[int, dict[int, int]] = {}
        for (path, name), entry in layout.entry_at.items():
            for consumed, amount in consumed_entries(layout, parts[layout.at[path]], name):
                self.consumers.setdefault(consumed, {})[entry] = amount

    def role_terms(self, group: PartGroup) -> object:
        """Returns what a request for the role of a group depends on."""
        kind = self.layout.inside.roles.get(group.role.name) if group.role is not None else None
        return kind, EXCLUSIVE in self.zone_classes, self.largest.get("cpu", 0)

    def taken_for(self, classes: Collection[str]) -> set[str]:
        """Returns the other classes of which units of these classes take."""
        entries = self.layout.entries
        return {
            entries[consumed].resource
            for consumed, below in self.consumers.items()
            if any(entries[entry].resource in classes for entry in below)
        }

    @classmethod
    def of(cls, layout: Layout) -> StaticInside:
        found = cls._known.use(layout.source)
        if found is None:
            found = cls._known[layout.source] = cls(layout)
        return found


def consumed_entries(layout: Layout, part: InnerPart, name: str) -> Iterator[tuple[int, int]]:
    """Yields the entries, not the node's columns, of which a part's class takes, and how much one unit takes."""
    for take in part.consumes.get(name, ()):
        consumed = layout.entry_at.get((layout.parts[take.part].path, take.resource)) if take.part else None
        if consumed is not None:
            yield consumed, take.amount


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
