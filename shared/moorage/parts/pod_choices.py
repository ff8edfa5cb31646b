"""Finds the choices of parts that one pod has on one node, as a problem for the solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moorage.model.part_names import HW_NUMA_ROOT

from .class_columns import Inventory
from .device_search import NO_DEVICE, Values
from .device_slots import DeviceSlots, Given
from .device_table import EMPTY, DeviceTable
from .forest import Take
from .properties import Properties, meets
from .request import INTERNAL, NAMELESS, Group, Request
from .solver import Slot, Subtree

_PLAIN = Inventory(0, max_unit=1 << 62)


class NodePart(NamedTuple):
    """A part with what is free of it. `units`: the limits of classes that cannot be given in any amount. `consumes`: by class,
    what one unit takes of ancestors."""

    id: str
    parent: int = -1  # its number; -1: a root
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    free: Mapping[str, int] = {}
    units: Mapping[str, Inventory] = {}
    consumes: Mapping[str, tuple[Take, ...]] = {}
    usable: bool = True
    properties: Properties = frozenset()
    device: int = -1  # its place among the devices of the table; -1: it is none


class NodeTree:
    """The parts of one node in preorder, the node itself first. `table` has its devices."""

    def __init__(self, parts: Sequence[NodePart], table: DeviceTable = EMPTY) -> None:
        self.parts, self.table = parts, table
        self.number = {part.id: i for i, part in enumerate(parts)}
        self.leave = list(range(1, len(parts) + 1))
        self.children: list[list[int]] = [[] for _ in parts]
        for i in range(len(parts) - 1, -1, -1):
            parent = parts[i].parent
            if parent >= 0:
                self.leave[parent] = max(self.leave[parent], self.leave[i])
                self.children[parent].append(i)
        self.cells: dict[tuple[int, str], int] = {}
        self.room: list[int] = []
        for i, part in enumerate(parts):
            for name, free in part.free.items():
                self.cells[i, name] = len(self.room)
                self.room.append(free)
        self.zones = [i for i, part in enumerate(parts) if HW_NUMA_ROOT in part.traits and part.usable]
        in_zone = [False] * len(parts)
        for zone in self.zones:
            in_zone[zone : self.leave[zone]] = [True] * (self.leave[zone] - zone)
        #: What zones and the parts below them offer.
        self.zone_classes = frozenset(
            name for i, part in enumerate(parts) if in_zone[i] and part.usable for name in part.free
        )
        self._problems: dict[int, tuple[Request, PodProblem | None]] = {}

    @property
    def key(self) -> object:
        """Equal for trees that give the same answers, but for the names of their parts."""
        return tuple(
            (
                part.parent,
                part.traits,
                part.aggregates,
                tuple(sorted(part.free.items())),
                tuple(sorted(part.units.items())),
                part.usable,
                tuple(sorted(part.consumes.items())),
                part.properties,
            )
            for part in self.parts
        )

    def problem(self, pod: Request) -> PodProblem | None:
        """Returns the choices of parts that a pod has here; None if it has none for a group."""
        known = self._problems.get(id(pod))
        if known is None:
            maker = _Maker(self, pod)
            # Kept with the pod, so that its id stays its own.
            known = self._problems[id(pod)] = pod, maker.problem if maker.make() else None
        return known[1]


@dataclass(slots=True)
class PodProblem:
    """One pod's problem but for the amounts free. `own_room`: cells for what one pod may take of a part at most."""

    slots: list[Slot]
    given: list[Sequence[Given]]  # per slot what each choice gives; the same for all if it is only one
    subtrees: list[Subtree]
    leave: dict[int, int]
    conditions: int
    own_room: list[int]
    total: dict[str, int] = field(default_factory=dict)
    values: list[Values] = field(default_factory=list)
    place: Sequence[int] = ()  # where its tree's parts are in a joint one; empty: there is no other
    node_takes: tuple[tuple[int, int], ...] = ()  # of cells of the node itself
    key: int = 0  # equal for equal problems of equal trees
    alike: frozenset[int] = frozenset()  # numbers of devices that others of its claim have


class _Maker:
    """Makes the choices of one pod on one tree."""

    def __init__(self, tree: NodeTree, pod: Request) -> None:
        self._tree, self._pod = tree, pod
        self._own: dict[tuple[int, str], int] = {}
        self._bits: tuple[frozenset[str], ...] = ()
        self.problem = PodProblem([], [], [], dict(enumerate(tree.leave)), 0, [], alike=pod.alike)

    def make(self) -> bool:
        request, tree = self._pod, self._tree
        root = tree.parts[0]
        if not _fits_traits(root.traits, request.root_required, request.root_forbidden):
            return False
        if not all(any_of & root.aggregates for any_of in request.root_member_of):
            return False
        if request.root_not_member_of & root.aggregates:
            return False
        number: dict[str, Sequence[int]] = {}
        if not self._add_devices(number):
            return False
        for suffix, group in request.groups.items():
            if group.devices:
                continue
            if suffix != NAMELESS:
                number[suffix] = (len(self.problem.slots),)
                asked = [group.resources]
            elif group.resources:
                self._bits = group.required
                asked = [{name: amount} for name, amount in group.resources.items()]
            else:
                if not any(self._meets(i, group, spread=False) for i in range(len(tree.parts))):
                    return False
                continue
            for resources in asked:
                if not self._add(suffix, group, resources):
                    return False
        self.problem.conditions = (1 << len(self._bits)) - 1
        for relation in request.same_subtree:
            if len(relation.together) > 1 or relation.apart:
                together, apart = (
                    tuple(sorted(slot for suffix in suffixes for slot in number.get(suffix, ())))
                    for suffixes in (relation.together, relation.apart)
                )
                self.problem.subtrees.append(Subtree(together, apart))
        for bound in request.role_zones:
            slots = sorted(slot for suffix in bound.groups for slot in number.get(suffix, ()))
            if slots and bound.zone in number:
                together = (*number[bound.zone], *slots)
                self.problem.subtrees.append(Subtree(tuple(sorted(together)), (), self._not_of_plugins()))
        return True

    def _not_of_plugins(self) -> frozenset[int]:
        """Returns the parts that no plugin of the node's agent gives out of a zone, and no device."""
        tree, found = self._tree, {NO_DEVICE}
        zones = [(zone, tree.leave[zone]) for zone in tree.zones]
        for i, part in enumerate(tree.parts):
            in_zone = any(zone <= i < leave for zone, leave in zones)
            if not in_zone or (part.device >= 0 and tree.table.devices[part.device].driver):
                found.add(i)
        return frozenset(found)

    def _add_devices(self, number: dict[str, Sequence[int]]) -> bool:
        asked = {suffix: group.devices for suffix, group in self._pod.groups.items() if group.devices}
        if not asked:
            return True
        devices = DeviceSlots(self._tree, self._new_cell)
        found = devices.make(asked, self._pod.attributes)
        if found is None:
            return False
        number.update(devices.slots_of)
        slots, self.problem.values = found
        self.problem.slots += [slot for slot, _ in slots]
        self.problem.given += [given for _, given in slots]
        return True

    def _new_cell(self, room: int) -> int:
        self.problem.own_room.append(room)
        return len(self._tree.room) + len(self.problem.own_room) - 1

    def _add(self, suffix: str, group: Group, resources: Mapping[str, int]) -> bool:
        tree, spread = self._tree, suffix == NAMELESS
        parts = [i for i in range(len(tree.parts)) if self._meets(i, group, spread) and self._offers(i, resources)]
        single = not spread and not suffix.startswith(INTERNAL)
        self._put(parts, resources, single=single, isolated=single and suffix in self._pod.isolated)
        if spread and self._bits:
            slot = self.problem.slots[-1]
            covers = [
                sum(1 << b for b, any_of in enumerate(self._bits) if any_of & tree.parts[i].traits) for i in parts
            ]
            self.problem.slots[-1] = slot._replace(covers=covers)
        return bool(parts)

    def _put(self, parts: Sequence[int], resources: Mapping[str, int], *, single: bool, isolated: bool) -> None:
        takes = [tuple(self._takes(i, resources).items()) for i in parts]
        self.problem.slots.append(Slot(parts, takes, (), isolated, single))
        self.problem.given.append([Given("", resources)])
        for name, amount in resources.items():
            self.problem.total[name] = self.problem.total.get(name, 0) + amount

    def _takes(self, part: int, resources: Mapping[str, int]) -> dict[int, int]:
        """Returns what is taken of each cell. Classes of one part may take of the same counter."""
        tree = self._tree
        taken: dict[int, int] = {}
        for name, amount in resources.items():
            taken[tree.cells[part, name]] = amount
            most = tree.parts[part].units.get(name, _PLAIN).max_unit
            if most < tree.room[tree.cells[part, name]]:
                own = self._own.get((part, name))
                if own is None:
                    own = self._own[part, name] = self._new_cell(most)
                taken[own] = amount
            for take in tree.parts[part].consumes.get(name, ()):
                cell = tree.cells.get((take.part, take.resource))
                if cell is not None:
                    taken[cell] = taken.get(cell, 0) + amount * take.amount
        return taken

    def _offers(self, i: int, resources: Mapping[str, int]) -> bool:
        part = self._tree.parts[i]
        for name, amount in resources.items():
            units = part.units.get(name, _PLAIN)
            if part.free.get(name, -1) < amount or not units.min_unit <= amount <= units.max_unit:
                return False
            if amount % units.step_size:
                return False
        return part.usable

    def _meets(self, i: int, group: Group, spread: bool) -> bool:
        part, root = self._tree.parts[i], self._tree.parts[0]
        if group.in_tree is not None and group.in_tree not in self._tree.number:
            return False
        if not _fits_traits(part.traits, () if spread else group.required, group.forbidden):
            return False
        if group.properties and not meets(part.properties, group.properties):
            return False
        around = part.aggregates | root.aggregates if spread else part.aggregates
        if spread:
            member = all(any_of & part.aggregates for any_of in group.member_of) or all(
                any_of & root.aggregates for any_of in group.member_of
            )
        else:
            member = all(any_of & part.aggregates for any_of in group.member_of)
        return member and not group.not_member_of & around


def _fits_traits(traits: frozenset[str], required: tuple[frozenset[str], ...], forbidden: frozenset[str]) -> bool:
    return all(any_of & traits for any_of in required) and not forbidden & traits
