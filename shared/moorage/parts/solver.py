"""Assigns parts to slots: lists every assignment that has room and keeps the relations, lazily and in a fixed order.

The search is depth-first over the slots. Where slots choose devices, it keeps the order in which they are given, and of several
solutions the first in the order of their choices is found first. States that cannot be completed are remembered in a form in which
interchangeable parts are equal, so that a request without a solution does not cost a factorial.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import le
from typing import NamedTuple

from .device_search import DeviceChoices, DeviceSearch, Values, viable

#: Steps without a solution after which states that failed are remembered. Most requests need fewer in all.
PATIENCE = 64
#: Steps between two pauses. A step that looks at many parts counts as several, one for so many.
PAUSE, PARTS_A_STEP = 256, 64


class Slot(NamedTuple):
    """A choice of one part. `takes` has, for each part of `parts`, the amounts taken of cells; `covers` has the bits of the
    collective conditions that each part meets. A part that is -1 is none."""

    parts: Sequence[int]
    takes: Sequence[tuple[tuple[int, int], ...]] = ()
    covers: Sequence[int] = ()
    apart_from_others: bool = False  # its part serves no other slot that is `single`
    single: bool = True
    device: DeviceChoices | None = None


class Subtree(NamedTuple):
    """Slots whose parts have one of them as their common ancestor, and slots whose parts are not on a line with it. `anywhere`:
    parts that are allowed beside those."""

    together: tuple[int, ...]
    apart: tuple[int, ...] = ()
    anywhere: frozenset[int] = frozenset()


@dataclass(slots=True)
class Problem:
    slots: Sequence[Slot]
    room: list[int]  # by cell
    leave: dict[int, int]  # part → end of its interval
    subtrees: Sequence[Subtree] = ()
    conditions: int = 0  # all bits of the collective conditions
    values: Sequence[Values] = ()


class Budget:
    """The steps that a search may take. `spent` tells that it ended before it had seen everything."""

    __slots__ = ("_until_pause", "left", "spent")

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.spent = False
        self._until_pause = PAUSE

    def take(self, steps: int) -> bool:
        """Takes steps. Returns whether it is time for a pause, also after many short searches."""
        self.left -= steps
        self._until_pause -= steps
        if self._until_pause >= 0:
            return False
        self._until_pause = PAUSE
        return True


def assignments(problem: Problem, budget: Budget) -> Iterator[list[int]]:
    """Yields the part of each slot, for every assignment, until the budget is spent."""
    return (found for found in assignments_in_steps(problem, budget) if found is not None)


def assignments_in_steps(problem: Problem, budget: Budget) -> Iterator[list[int] | None]:
    """Yields assignments, and None now and then: its caller may do something else in between."""
    for found in _choices_in_steps(problem, budget):
        yield None if found is None else [slot.parts[k] for slot, k in zip(problem.slots, found, strict=True)]


def choices(problem: Problem, budget: Budget) -> Iterator[list[int]]:
    """Yields the choice of each slot, for every assignment, until the budget is spent."""
    return (found for found in _choices_in_steps(problem, budget) if found is not None)


def _choices_in_steps(problem: Problem, budget: Budget) -> Iterator[list[int] | None]:
    if not all(slot.parts for slot in problem.slots):
        return
    # Lists are shared by slots that are alike: a request has many groups that ask the same of many parts.
    whole = {count: list(range(count)) for count in {len(slot.parts) for slot in problem.slots}}
    domains = [whole[len(slot.parts)] for slot in problem.slots]
    if any(slot.device for slot in problem.slots):
        found = viable(problem.slots, problem.values, problem.room, domains)
        if found is None:
            return
        domains = found
    yield from _rooted(problem, 0, domains, [], budget)


def _rooted(
    problem: Problem, relation: int, domains: list[list[int]], tops: list[tuple[tuple[int, ...], int]], budget: Budget
) -> Iterator[list[int] | None]:
    """Fixes the common ancestor of one relation after the other; each choice of ancestors has assignments of its own."""
    if relation == len(problem.subtrees):
        if _may_fit(problem, domains):
            yield from _Search(problem, domains, tops, budget).run()
        return
    found = problem.subtrees[relation]
    slots = problem.slots
    alike = _first_alike(slots, domains)
    parts = {s: [slots[s].parts[k] for k in domains[s]] for s in {alike[s] for s in found.together}}
    # Those below an ancestor are a run, for slots whose parts ascend: not each of many parts is compared with each ancestor.
    runs = {s for s, those in parts.items() if not found.anywhere and all(map(le, those, those[1:]))}
    compared = {alike[s] for s in found.apart} | parts.keys() - runs
    cost = 1 + sum(len(domains[s]) for s in compared) // PARTS_A_STEP
    for top in sorted({part for those in parts.values() for part in those} - found.anywhere):
        if budget.left <= 0:
            budget.spent = True
            return
        if budget.take(cost):
            yield None
        leave = problem.leave[top]
        below: dict[int, list[int]] = {}
        for s in parts:
            if s in runs:
                below[s] = domains[s][bisect_left(parts[s], top) : bisect_left(parts[s], leave)]
                continue
            below[s] = [
                k for k in domains[s] if top <= slots[s].parts[k] < leave or slots[s].parts[k] in found.anywhere
            ]
        if not all(below.values()):
            continue
        beside = {
            s: [
                k
                for k in domains[s]
                if not (top <= slots[s].parts[k] < leave or slots[s].parts[k] <= top < problem.leave[slots[s].parts[k]])
            ]
            for s in {alike[s] for s in found.apart}
        }
        if not all(beside.values()):
            continue
        narrowed = list(domains)
        for s in found.together:
            narrowed[s] = below[alike[s]]
        for s in found.apart:
            narrowed[s] = beside[alike[s]]
        yield from _rooted(problem, relation + 1, narrowed, [*tops, (found.together, top)], budget)


def _first_alike(slots: Sequence[Slot], domains: Sequence[Sequence[int]]) -> list[int]:
    """Returns, by slot, the first one with the very same choices, so that they are read once."""
    first: dict[tuple[int, ...], int] = {}
    return [
        first.setdefault((id(domains[s]), *map(id, (slot.parts, slot.takes, slot.covers, slot.device))), s)
        for s, slot in enumerate(slots)
    ]


def _may_fit(problem: Problem, domains: list[list[int]]) -> bool:
    """Tells whether the slots that must be apart can have different parts. A necessary condition only."""
    lonely = [s for s, slot in enumerate(problem.slots) if slot.apart_from_others]
    if len(lonely) < 2:
        return True
    taken: dict[int, int] = {}
    return all(_augment(problem, domains, s, taken, set()) for s in sorted(lonely, key=lambda s: len(domains[s])))


def _augment(problem: Problem, domains: list[list[int]], slot: int, taken: dict[int, int], seen: set[int]) -> bool:
    parts = problem.slots[slot].parts
    free = next((parts[k] for k in domains[slot] if parts[k] not in taken), None)
    if free is not None:
        taken[free] = slot
        return True
    for k in domains[slot]:
        part = parts[k]
        if part in seen:
            continue
        seen.add(part)
        if _augment(problem, domains, taken[part], taken, seen):
            taken[part] = slot
            return True
    return False


class _Search:
    """A depth-first search over the slots, those with the fewest parts first.

    `hits` counts, for each relation, its slots whose part is the fixed ancestor: the last slot must take it if no other did.
    """

    def __init__(
        self,
        problem: Problem,
        domains: Sequence[Sequence[int]],
        tops: Sequence[tuple[tuple[int, ...], int]],
        budget: Budget,
    ) -> None:
        slots = problem.slots
        self._problem = problem
        self._budget = budget
        # Devices are chosen first and in the order given, so that the first solution is the first in that order.
        self._order = sorted(
            range(len(slots)),
            key=lambda s: (slots[s].device is None, len(domains[s]) if slots[s].device is None else s),
        )
        self._domains = [domains[s] for s in self._order]
        self._alike = _first_alike([slots[s] for s in self._order], self._domains)
        self._parts: list[list[int]] = []
        self._takes: list[list[tuple[tuple[int, int], ...]] | None] = []
        self._covers: list[list[int] | None] = []
        self._single = [slots[s].single for s in self._order]
        self._lonely = [slots[s].apart_from_others for s in self._order]
        self._any_lonely = any(self._lonely)
        self._tops = [top for _, top in tops]
        self._relations: list[list[int]] = [[] for _ in slots]
        self._last: list[list[int]] = [[] for _ in slots]
        place = {s: i for i, s in enumerate(self._order)}
        for r, (together, _) in enumerate(tops):
            positions = sorted(place[s] for s in together)
            self._last[positions[-1]].append(r)
            for i in positions:
                self._relations[i].append(r)
        self._coverable = [0] * (len(slots) + 1)
        self.room = list(problem.room)
        self.hits = [0] * len(tops)
        self.users: dict[int, int] = {}  # single slots at a part
        self.owners: set[int] = set()  # parts of slots that are apart from others
        self.covered = [0] * (len(slots) + 1)
        self._pick = [-1] * len(slots)
        self._looked_at = 0  # parts, in the last step
        self._devices: DeviceSearch | None = None
        if any(slot.device for slot in slots):
            self._devices = DeviceSearch(slots, problem.values, self._order, self._domains)

    def _read(self) -> Iterator[None]:
        """Reads the choices of the slots, and what collective conditions the slots from each place on may meet."""
        size = 0
        for i, s in enumerate(self._order):
            first, slot, domain = self._alike[i], self._problem.slots[s], self._domains[i]
            if first < i:
                self._parts.append(self._parts[first])
                self._takes.append(self._takes[first])
                self._covers.append(self._covers[first])
                continue
            size += len(domain)
            if size > PAUSE * PARTS_A_STEP:
                size = 0
                yield
            self._parts.append([slot.parts[k] for k in domain])
            self._takes.append([slot.takes[k] for k in domain] if slot.takes else None)
            self._covers.append([slot.covers[k] for k in domain] if slot.covers else None)
        for i in range(len(self._order) - 1, -1, -1):
            self._coverable[i] = self._coverable[i + 1]
            for bits in self._covers[i] or ():
                self._coverable[i] |= bits

    def run(self) -> Iterator[list[int] | None]:
        for _ in self._read():
            yield None
        count = len(self._order)
        states: _States | None = None  # made when they are needed
        keys: list[object] = [None] * count
        found_before = [0] * count
        found = quiet = i = 0
        while i >= 0:
            is_pause = self._budget.take(1 + self._looked_at // PARTS_A_STEP)
            self._looked_at = 0
            if self._budget.left <= 0:
                self._budget.spent = True
                return
            if is_pause:
                yield None
            quiet += 1
            if not self._take_next(i):
                if self._devices is not None and self._devices.failed:
                    return
                if states is not None and keys[i] is not None and found == found_before[i]:
                    states.fail(keys[i])
                i = self._step_back(i)
                continue
            if i + 1 == count:
                yield self._assignment()
                found += 1
                quiet = 0
                self._give_back(i)
                continue
            i += 1
            self._pick[i] = -1
            found_before[i] = found
            keys[i] = None
            if quiet <= PATIENCE:
                continue
            if states is None:
                states = _States(self._problem, self._order, self._domains)
                yield from states.read(self._alike, self._parts, self._takes, set(self._tops))
            keys[i] = states.key(i, self)
            if states.failed(keys[i]):
                keys[i] = None
                i = self._step_back(i)

    def _assignment(self) -> list[int]:
        answer = [0] * len(self._order)
        for at, slot in enumerate(self._order):
            answer[slot] = self._domains[at][self._pick[at]]
        return answer

    def _take_next(self, i: int) -> bool:
        """Gives slot i the next part that is allowed. Returns False if there is none."""
        options = self._parts[i]
        forced = [self._tops[r] for r in self._last[i] if not self.hits[r]]
        devices = self._devices if self._devices is not None and self._devices.has(i) else None
        for k in range(self._pick[i] + 1, len(options)):
            self._looked_at += 1
            part = options[k]
            if any(part != top for top in forced) or (self._any_lonely and self._collides(i, part)):
                continue
            if devices is not None and not devices.follows(i, k, self._pick):
                continue
            if self._has_room(i, k) and self._covers_enough(i, k):
                if devices is not None and not devices.allows(i, k, self.room):
                    if devices.failed:
                        return False
                    continue
                self._pick[i] = k
                self._count(i, 1)
                return True
        return False

    def _collides(self, i: int, part: int) -> bool:
        return self._single[i] and (part in self.owners or (self._lonely[i] and self.users.get(part, 0) > 0))

    def _has_room(self, i: int, k: int) -> bool:
        needs = self._takes[i]
        return needs is None or all(self.room[cell] >= amount for cell, amount in needs[k])

    def _covers_enough(self, i: int, k: int) -> bool:
        if not self._problem.conditions:
            return True
        covers = self._covers[i]
        bits = self.covered[i] | (covers[k] if covers is not None else 0)
        self.covered[i + 1] = bits
        return bits | self._coverable[i + 1] == self._problem.conditions

    def _count(self, i: int, sign: int) -> None:
        k = self._pick[i]
        part, needs = self._parts[i][k], self._takes[i]
        if needs is not None:
            for cell, amount in needs[k]:
                self.room[cell] -= sign * amount
        if self._devices is not None and self._devices.has(i):
            self._devices.count(i, k, sign, self.room)
        for r in self._relations[i]:
            if part == self._tops[r]:
                self.hits[r] += sign
        if self._any_lonely and self._single[i]:
            self.users[part] = self.users.get(part, 0) + sign
            if self._lonely[i]:
                (self.owners.add if sign > 0 else self.owners.discard)(part)

    def taken_before(self, i: int) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
        """Yields the parts of the slots before, and what is taken of their cells."""
        for at in range(i):
            k, needs = self._pick[at], self._takes[at]
            yield self._parts[at][k], needs[k] if needs is not None else ()

    @property
    def has_devices(self) -> bool:
        return self._devices is not None

    def devices_before(self, i: int) -> tuple[object, int, int]:
        """Returns what has been chosen as far as it matters for devices, the alternative that the next choice is of, and after
        which place in their order it is."""
        return (None, -1, -1) if self._devices is None else self._devices.state(i, self._pick)

    def _give_back(self, i: int) -> None:
        self._count(i, -1)

    def _step_back(self, i: int) -> int:
        """Returns to the slot before, whose part is given back."""
        if i > 0:
            self._give_back(i - 1)
        return i - 1


class _States:
    """Names states of the search so that states which differ by interchangeable parts only have one name."""

    def __init__(self, problem: Problem, order: Sequence[int], domains: Sequence[Sequence[int]]) -> None:
        self._problem, self._order, self._domains = problem, order, domains
        self._failed: set[object] = set()
        self._places: dict[tuple[int, int], int] = {}  # of devices in their order, by alternative and part
        self._common: dict[int, int] = {}  # cells of which several parts take → what they have at first
        self._own: dict[int, tuple[int, ...]] = {}
        self._kind: dict[int, int] = {}

    def read(
        self,
        alike: Sequence[int],
        parts: Sequence[Sequence[int]],
        takes: Sequence[Sequence[tuple[tuple[int, int], ...]] | None],
        tops: set[int],
    ) -> Iterator[None]:
        """Reads the choices by place; those of places that are `alike` once."""
        users_of_cell: dict[int, set[int]] = {}
        offered: dict[int, list[tuple[int, tuple[tuple[int, int], ...], object]]] = {}
        size = 0
        for i, options in enumerate(parts):
            slot = self._problem.slots[self._order[i]]
            if alike[i] < i and slot.device is None:
                continue
            if (size := size + len(options)) > PAUSE * PARTS_A_STEP // 4:
                size = 0
                yield
            self._read_slot(i, options, takes[i], users_of_cell, offered)
        room = self._problem.room
        self._common = {cell: room[cell] for cell, users in sorted(users_of_cell.items()) if len(users) > 1}
        kinds: dict[object, int] = {}
        for number, (part, uses) in enumerate(offered.items(), 1):
            if not number % (PAUSE * PARTS_A_STEP // 8):
                yield
            cells = tuple(sorted({cell for _, need, _ in uses for cell, _ in need if cell not in self._common}))
            own = {cell: n for n, cell in enumerate(cells)}
            signature = tuple(
                (i, bits, tuple((own.get(cell, -1 - cell), amount) for cell, amount in need)) for i, need, bits in uses
            )
            self._own[part] = cells
            self._kind[part] = kinds.setdefault((signature, part if part in tops else None), len(kinds))

    def _read_slot(
        self,
        i: int,
        options: Sequence[int],
        needs: Sequence[tuple[tuple[int, int], ...]] | None,
        users_of_cell: dict[int, set[int]],
        offered: dict[int, list[tuple[int, tuple[tuple[int, int], ...], object]]],
    ) -> None:
        s, domain = self._order[i], self._domains[i]
        slot = self._problem.slots[s]
        for k, part in enumerate(options):
            need = needs[k] if needs is not None else ()
            mark: object = slot.covers[domain[k]] if slot.covers else 0
            if slot.device is not None:
                own = domain[k]
                need = (*need, *slot.device.once[own])
                values = tuple(v.of[s][own] for v in self._problem.values if s in v.of)
                mark = slot.device.alternatives[own], slot.device.errors[own], values
                if part >= 0:
                    self._places[slot.device.alternatives[own], part] = slot.device.order[own]
            offered.setdefault(part, []).append((i, need, mark))
            for cell, _ in need:
                users_of_cell.setdefault(cell, set()).add(part)

    def key(self, i: int, search: _Search) -> object:
        if search.has_devices:
            return self._key_of_all(i, search)
        # Only parts that were taken have other amounts than at first.
        room, first = search.room, self._problem.room
        changed: dict[object, int] = {}
        taken = dict(search.taken_before(i))
        for part in taken:
            own, kind = self._own[part], self._kind[part]
            now = kind, search.users.get(part, 0) > 0, part in search.owners, tuple(room[cell] for cell in own)
            before = kind, False, False, tuple(first[cell] for cell in own)
            changed[now] = changed.get(now, 0) + 1
            changed[before] = changed.get(before, 0) - 1
        profiles = frozenset(found for found in changed.items() if found[1])
        cells = {cell for _, needs in search.taken_before(i) for cell, _ in needs if cell in self._common}
        common = frozenset((cell, room[cell]) for cell in cells if room[cell] != first[cell])
        return i, profiles, common, search.covered[i], tuple(hits > 0 for hits in search.hits)

    def _key_of_all(self, i: int, search: _Search) -> object:
        """Names a state by what all parts have: which devices may still be chosen depends on the last one."""
        room = search.room
        state, alternative, before = search.devices_before(i)
        profiles = sorted(
            (
                kind,
                search.users.get(part, 0) > 0,
                part in search.owners,
                tuple(room[cell] for cell in self._own[part]),
                self._places.get((alternative, part), -1) > before,
            )
            for part, kind in self._kind.items()
        )
        common = tuple(room[cell] for cell in self._common)
        return i, tuple(profiles), common, search.covered[i], tuple(hits > 0 for hits in search.hits), state

    def failed(self, key: object) -> bool:
        return key in self._failed

    def fail(self, key: object) -> None:
        self._failed.add(key)
