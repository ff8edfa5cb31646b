"""Makes slots of what a pod asks of devices: one for each device, with every device that could serve it as a choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from moorage.model.part_reports import DeviceReport
from moorage.model.part_requests import AttributeRelation, DeviceAsk, PartGroup, Relation

from .device_parts import unit_of
from .device_search import ANY_VALUE, NO_DEVICE, DeviceChoices, Values
from .device_table import DeviceTable, property_values, reads_identity, tolerated
from .forest import Take
from .identities import is_identity, names_identity
from .properties import Properties, meets
from .solver import Slot

#: Devices that one claim may have.
MAX_DEVICES = 32
#: More than the devices of a node, so that alternatives come one after the other.
_MANY = 1 << 20
#: Equal devices of one part that are told apart: more than a request may have.
_EQUAL = MAX_DEVICES + 1


class DeviceNodePart(Protocol):
    @property
    def device(self) -> int: ...
    @property
    def usable(self) -> bool: ...
    @property
    def properties(self) -> Properties: ...
    @property
    def consumes(self) -> Mapping[str, tuple[Take, ...]]: ...


class DeviceTree(Protocol):
    """The parts of a node. `device` of a part is its place in the table; -1: it is none."""

    @property
    def parts(self) -> Sequence[DeviceNodePart]: ...
    @property
    def table(self) -> DeviceTable: ...
    @property
    def cells(self) -> Mapping[tuple[int, str], int]: ...
    @property
    def room(self) -> Sequence[int]: ...


class Given(NamedTuple):
    """The contribution of a slot's choice to the need of a pod. `once`: what it gives if it is the first that has its device.
    `resource_class`: by which it was asked for."""

    need: str
    resources: Mapping[str, int]
    once: Mapping[str, int] = {}
    resource_class: str = ""


class DeviceSlot(NamedTuple):
    slot: Slot
    given: list[Given]


class _Choice(NamedTuple):
    part: int
    alternative: int
    order: int
    given: Given
    takes: tuple[tuple[int, int], ...] = ()
    once: tuple[tuple[int, int], ...] = ()
    error: bool = False


class DeviceSlots:
    """`new_cell` makes a cell with so much room that is the pod's own."""

    def __init__(self, tree: DeviceTree, new_cell: Callable[[int], int]) -> None:
        self._tree, self._table, self._new_cell = tree, tree.table, new_cell
        self._devices = sorted((part.device, i) for i, part in enumerate(tree.parts) if part.device >= 0)
        self._admins: dict[tuple[str, int], int] = {}  # claim and part → a cell for its only place in the claim
        self._results: dict[str, int] = {}  # claim → a cell for the number of its devices
        self.slots_of: dict[str, list[int]] = {}  # request → numbers of its slots

    def make(
        self, groups: Mapping[str, Sequence[DeviceAsk]], relations: Sequence[AttributeRelation]
    ) -> tuple[list[DeviceSlot], list[Values]] | None:
        """Returns the slots of requests, by CLAIM/REQUEST, and the relations between them, by numbers of these slots; None if
        one of them has no choice."""
        of_claim: dict[str, list[str]] = {}
        for name in groups:
            of_claim.setdefault(claim_of(name), []).append(name)
        self._with_admin = {c for c, names in of_claim.items() if any(a.admin for n in names for a in groups[n])}
        made: list[DeviceSlot] = []
        slots_of: dict[str, list[int]] = {}
        for request, (name, asks) in enumerate(groups.items()):
            found = self._request(request, name, asks)
            if not found:
                return None
            slots_of[name] = list(range(len(made), len(made) + len(found)))
            made += found
        limited = self._limited(made, slots_of, of_claim)
        if limited is None:
            return None
        made = [self._with_attributes(slot, relations) for slot in limited]
        if not all(found.slot.parts for found in made):
            return None
        self.slots_of = slots_of
        values = [self._relation(relation, made) for relation in relations]
        return made, [found for found in values if found.of]

    def _request(self, request: int, name: str, asks: Sequence[DeviceAsk]) -> list[DeviceSlot]:
        columns: list[list[_Choice]] = []
        counts: list[int] = []
        for alternative, ask in enumerate(asks):
            need = f"{name}/{ask.name}" if ask.name else name
            found = list(self._all(alternative, need, ask) if ask.all else self._some(alternative, need, ask))
            counts.append(len(found) if all(found) else 0)
            if not counts[-1]:
                continue
            columns += [[] for _ in range(len(found) - len(columns))]
            for column, choices in zip(columns, found, strict=False):
                column += choices
        if not columns:
            return []
        for at, column in enumerate(columns):
            # An alternative with fewer devices leaves the other slots empty.
            for alternative, count in enumerate(counts):
                if 0 < count <= at:
                    order = (alternative + 1) * _MANY - len(columns) + at
                    column.append(_Choice(NO_DEVICE, alternative, order, Given("", {})))
            column.sort(key=lambda choice: choice.order)
        return [_slot(column, request, len(asks) > 1) for column in columns]

    def _some(self, alternative: int, need: str, ask: DeviceAsk) -> Iterator[list[_Choice]]:
        choices = list(self._choices(alternative, need, ask))
        for _ in range(min(ask.count, MAX_DEVICES + 1)):
            yield choices

    def _all(self, alternative: int, need: str, ask: DeviceAsk) -> Iterator[list[_Choice]]:
        """Yields a slot for each device that matches. One that cannot be had has no choice."""
        if self._table.incomplete:
            return
        verdicts = self._verdicts(ask)
        if any(verdicts[device] is None for device, _ in self._devices):
            return
        for device, i in self._devices:
            if not verdicts[device] or not self._has(device, i, ask):
                continue
            choice = self._choice(device, i, alternative, need, ask)
            for number in range(self._equal(i)):
                order = alternative * _MANY + device * _EQUAL + number
                yield [choice._replace(order=order)] if choice is not None else []

    def _has(self, device: int, i: int, ask: DeviceAsk) -> bool:
        """Returns whether a device has the capacities that are asked for. One that can be divided has what others leave."""
        amounts = self._table.taken(device, ask.capacity, ask.share)
        if amounts is None or ask.admin:
            return amounts is not None
        cells, room = self._tree.cells, self._tree.room
        return all(room[cells[i, name]] >= amount for name, amount in amounts.items() if (i, name) in cells)

    def _verdicts(self, ask: DeviceAsk) -> Sequence[bool | None]:
        return class_verdicts(self._table, ask)

    def _choices(self, alternative: int, need: str, ask: DeviceAsk) -> Iterator[_Choice]:
        """Yields the devices that could serve a request in the order of preference, equal ones of a part several times."""
        found = list(self._in_order(alternative, need, ask))
        if ask.resource_class and ask.algorithm != "first-fit":
            fullest = 1 if ask.algorithm != "spread" else -1
            found.sort(key=lambda choice: (fullest * self._free(choice), choice.order))
        for place, choice in enumerate(found):
            equal = 1 if choice.error else self._equal(choice.part)
            for number in range(max(1, min(equal, ask.count))):
                yield choice._replace(order=alternative * _MANY + place * _EQUAL + number)

    def _free(self, choice: _Choice) -> int:
        """Returns how much is free of what the choice takes first."""
        return self._tree.room[choice.takes[0][0]] if choice.takes else 0

    def _equal(self, part: int) -> int:
        """Returns how many equal devices a part is."""
        report = self._table.devices[self._tree.parts[part].device]
        return 1 if report.divisible else min(report.quantity, _EQUAL)

    def _in_order(self, alternative: int, need: str, ask: DeviceAsk) -> Iterator[_Choice]:
        verdicts = self._verdicts(ask)
        for device, i in self._devices:
            if verdicts[device] is None:
                takes = self._exclusive(device, i) if not ask.admin else ()
                yield _Choice(i, alternative, alternative * _MANY + device, Given(need, {}), takes, error=True)
            elif verdicts[device]:
                choice = self._choice(device, i, alternative, need, ask)
                if choice is not None:
                    yield choice

    def _choice(self, device: int, i: int, alternative: int, need: str, ask: DeviceAsk) -> _Choice | None:
        part, report = self._tree.parts[i], self._table.devices[device]
        # A device is not usable if it has taints, which may be tolerated, or is not healthy.
        if not (tolerated(report.taints, ask.tolerations) and (part.usable or (report.taints and report.healthy))):
            return None
        if ask.properties and not meets(part.properties, ask.properties):
            return None
        amounts = self._table.taken(device, ask.capacity, ask.share)
        if amounts is None:
            return None
        resources, once = _resources(report, amounts)
        takes = self._takes(i, resources)
        takes_once = self._takes(i, once)
        if takes is None or takes_once is None:
            return None
        if ask.admin:
            resources, once, takes, takes_once = {unit_of(report)[0]: 0}, {}, (), ()
        if claim_of(need) in self._with_admin and not report.divisible:
            takes = (*takes, (self._only_once(claim_of(need), i), 1))
        order = alternative * _MANY + device
        given = Given(need, resources, once, ask.resource_class or self._table.serving.get(ask.extended_resource, ""))
        return _Choice(i, alternative, order, given, takes, takes_once)

    def _exclusive(self, device: int, i: int) -> tuple[tuple[int, int], ...]:
        report = self._table.devices[device]
        return () if report.divisible else self._takes(i, dict([unit_of(report)])) or ()

    def _takes(self, i: int, resources: Mapping[str, int]) -> tuple[tuple[int, int], ...] | None:
        """Returns what is taken of cells, of the device itself first; None if the device does not offer it."""
        taken: dict[int, int] = {}
        consumed: dict[int, int] = {}
        for name, amount in resources.items():
            own = self._tree.cells.get((i, name))
            if own is None:
                return None
            taken[own] = amount
            for take in self._tree.parts[i].consumes.get(name, ()):
                cell = self._tree.cells.get((take.part, take.resource))
                if cell is not None:
                    consumed[cell] = consumed.get(cell, 0) + amount * take.amount
        return (*taken.items(), *consumed.items())

    def _only_once(self, claim: str, i: int) -> int:
        found = self._admins.get((claim, i))
        if found is None:
            found = self._admins[claim, i] = self._new_cell(1)
        return found

    def _limited(
        self, made: list[DeviceSlot], slots_of: Mapping[str, list[int]], of_claim: Mapping[str, list[str]]
    ) -> list[DeviceSlot] | None:
        """Counts the devices of claims that may have too many: the first slot of a request takes as many as its alternative has
        beyond the least that the request needs. Returns None if a claim has too many in any case."""
        made = list(made)
        for names in of_claim.values():
            if sum(len(slots_of[name]) for name in names) <= MAX_DEVICES:
                continue
            counts = [_counts([made[s] for s in slots_of[name]]) for name in names]
            room = MAX_DEVICES - sum(min(by.values()) for by in counts)
            if room < 0:
                return None
            cell = self._new_cell(room)
            for name, by in zip(names, counts, strict=True):
                first = slots_of[name][0]
                slot, least = made[first].slot, min(by.values())
                assert slot.device is not None
                more = [by[alternative] - least for alternative in slot.device.alternatives]
                takes = [(*take, (cell, n)) for take, n in zip(slot.takes, more, strict=True)]
                made[first] = made[first]._replace(slot=slot._replace(takes=takes))
        return made

    def _with_attributes(self, found: DeviceSlot, relations: Sequence[AttributeRelation]) -> DeviceSlot:
        """Removes the choices without an attribute that a relation is of."""
        slot = found.slot
        kept = [
            k
            for k, (part, given) in enumerate(zip(slot.parts, found.given, strict=True))
            if part == NO_DEVICE
            or (slot.device is not None and slot.device.errors[k])
            or all(self._values(part, r) is not None for r in relations if _is_of(r, given.need))
        ]
        return found if len(kept) == len(slot.parts) else _kept(found, kept)

    def _values(self, part: int, relation: AttributeRelation) -> frozenset[object] | None:
        device, name = self._tree.parts[part].device, relation.attribute
        found = self._table.values(device, name)
        if found is None and ("/" not in name or not self._table.devices[device].driver):
            # Not an attribute as ResourceClaims name them: it may be a property.
            return property_values(self._tree.parts[part].properties, name)
        return found

    def _relation(self, relation: AttributeRelation, made: Sequence[DeviceSlot]) -> Values:
        """Returns the values of the devices that a relation is of."""
        bits: dict[object, int] = {}
        neutral = 0 if relation.distinct else ANY_VALUE
        found: dict[int, list[int]] = {}
        for s, (slot, given) in enumerate(made):
            masks = [neutral] * len(slot.parts)
            for k, (part, one) in enumerate(zip(slot.parts, given, strict=True)):
                if part != NO_DEVICE and _is_of(relation, one.need):
                    values = self._values(part, relation)
                    masks[k] = neutral if values is None else sum(bits.setdefault(v, 1 << len(bits)) for v in values)
            if any(mask != neutral for mask in masks):
                found[s] = masks
        return Values(found, relation.distinct)


def _counts(slots: Sequence[DeviceSlot]) -> dict[int, int]:
    """Returns how many devices each alternative of a request has."""
    found: dict[int, int] = {}
    for slot, _ in slots:
        assert slot.device is not None
        there = {a for a, part in zip(slot.device.alternatives, slot.parts, strict=True) if part != NO_DEVICE}
        for alternative in there:
            found[alternative] = found.get(alternative, 0) + 1
    return found


def _is_of(relation: AttributeRelation, need: str) -> bool:
    return need in relation.groups or need.rpartition("/")[0] in relation.groups


def _kept(found: DeviceSlot, kept: Sequence[int]) -> DeviceSlot:
    slot, device = found.slot, found.slot.device
    assert device is not None
    device = device._replace(
        alternatives=[device.alternatives[k] for k in kept],
        order=[device.order[k] for k in kept],
        errors=[device.errors[k] for k in kept],
        once=[device.once[k] for k in kept],
    )
    return DeviceSlot(
        slot._replace(parts=[slot.parts[k] for k in kept], takes=[slot.takes[k] for k in kept], device=device),
        [found.given[k] for k in kept],
    )


def class_name(ask: DeviceAsk, table: DeviceTable) -> str:
    """Returns the DeviceClass of the cluster that is asked for; empty: none. A name that is no class of the mesh is one of the
    cluster. An extended resource that no class of the cluster serves is a name that no class has."""
    if ask.extended_resource:
        return table.serving.get(ask.extended_resource, ask.extended_resource)
    return ask.device_class or (ask.resource_class if not ask.properties else "")


def reads_identities(group: PartGroup) -> bool:
    """Returns whether a group reads identities of devices in another way than by a selector of devices."""
    return names_identity(group.properties) or any(
        reads_identity(one) for ask in group.devices for one in ask.selectors
    )


def of_identity(relation: Relation) -> bool:
    return isinstance(relation, AttributeRelation) and is_identity(relation.attribute)


def class_verdicts(table: DeviceTable, ask: DeviceAsk) -> Sequence[bool | None]:
    """Returns which devices the DeviceClass and the expressions of a request select; None where one of these is an error."""
    name = class_name(ask, table)
    found = table.classes.get(name)
    if found is None and name:
        return [False] * len(table.devices)
    of_class = tuple(found.selectors) if found is not None else ()
    verdicts = table.verdicts((*of_class, *ask.selectors))
    if ask.properties:
        return verdicts
    # DeviceClasses select devices of drivers only.
    return [verdict if one.driver else False for verdict, one in zip(verdicts, table.devices, strict=True)]


def selected_devices(table: DeviceTable, ask: DeviceAsk) -> Callable[[int, Properties], bool]:
    """Returns a function that tells of a device, with its properties, whether a request selects it."""
    verdicts = class_verdicts(table, ask)
    return lambda device, properties: (
        bool(verdicts[device]) and (not ask.properties or meets(properties, ask.properties))
    )


def claim_of(need: str) -> str:
    return need.partition("/")[0]


def _resources(report: DeviceReport, amounts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns what a device gives, and what it gives once however often it is given."""
    name, amount = unit_of(report)
    driver = {name: amount}
    if not report.divisible:
        return driver, {}
    return dict(amounts), driver if report.consumes else {}


def _slot(column: Sequence[_Choice], request: int, several: bool) -> DeviceSlot:
    choices = DeviceChoices(
        [choice.alternative for choice in column],
        [choice.order for choice in column],
        [choice.error for choice in column],
        [choice.once for choice in column],
        request,
        several,
    )
    slot = Slot([choice.part for choice in column], [choice.takes for choice in column], single=False, device=choices)
    return DeviceSlot(slot, [choice.given for choice in column])
