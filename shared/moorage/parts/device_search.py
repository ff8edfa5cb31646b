"""Tables for slots that choose devices: alternatives, their order, and relations of the values of attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

#: A set of bits of values that has them all: a choice of no device, which no relation excludes.
ANY_VALUE = -1
NO_DEVICE = -1


class DeviceChoices(NamedTuple):
    """The differences between the choices of a slot for a device, by choice: the alternative that each belongs to, its place in the
    order of devices, and whether reading it is an error, which ends the search, or the alternative if there are several. `once`
    has what the first slot that has a device takes; of the first of these cells there is nothing any more afterwards."""

    alternatives: Sequence[int]
    order: Sequence[int]
    errors: Sequence[bool]
    once: Sequence[tuple[tuple[int, int], ...]]
    request: int  # slots of one request follow one another, have the same alternative, and choices that ascend in their order
    several: bool = False  # there are several alternatives


class Values(NamedTuple):
    """A relation of the values of devices: sets of bits, by slot and choice. Their intersection is not empty, or no two have a
    bit in common."""

    of: Mapping[int, Sequence[int]]
    distinct: bool = False


class DeviceSlot(Protocol):
    @property
    def parts(self) -> Sequence[int]: ...
    @property
    def takes(self) -> Sequence[tuple[tuple[int, int], ...]]: ...
    @property
    def device(self) -> DeviceChoices | None: ...


class DeviceSearch:
    """The state of a search as far as devices are concerned. `order` has the slots by place, `domains` their choices.
    `failed`: reading a device was an error, so there is no assignment."""

    def __init__(
        self,
        slots: Sequence[DeviceSlot],
        values: Sequence[Values],
        order: Sequence[int],
        domains: Sequence[Sequence[int]],
    ) -> None:
        self._choices = [slots[s].device for s in order]
        self._domains = domains
        self._values = [[(r, values[r].of[s]) for r in range(len(values)) if s in values[r].of] for s in order]
        self._distinct = [relation.distinct for relation in values]
        self._common = [0 if relation.distinct else ANY_VALUE for relation in values]
        self._before: list[list[int]] = [[] for _ in order]
        self._took_once = [False] * len(order)
        self._ended: set[tuple[int, int]] = set()  # alternatives, by request, of which a device cannot be read
        self.failed = False

    def has(self, i: int) -> bool:
        return self._choices[i] is not None

    def follows(self, i: int, k: int, pick: Sequence[int]) -> bool:
        """Returns whether a choice may come after the one of the slot before."""
        own = self._choices[i]
        assert own is not None
        k = self._domains[i][k]
        if self._ended and (own.request, own.alternatives[k]) in self._ended:
            return False
        last = self._last(i, pick)
        if last is None:
            return True
        alternative, place = last
        return own.alternatives[k] == alternative and own.order[k] > place

    def _last(self, i: int, pick: Sequence[int]) -> tuple[int, int] | None:
        """Returns alternative and place of the choice before, if it is of the same request."""
        own, before = self._choices[i], self._choices[i - 1] if i else None
        if own is None or before is None or before.request != own.request:
            return None
        k = self._domains[i - 1][pick[i - 1]]
        return before.alternatives[k], before.order[k]

    def allows(self, i: int, k: int, room: Sequence[int]) -> bool:
        """Returns whether a choice that has room is possible beside the others."""
        own = self._choices[i]
        assert own is not None
        k = self._domains[i][k]
        if own.errors[k]:
            if own.several:
                self._ended.add((own.request, own.alternatives[k]))
            else:
                self.failed = True
            return False
        for relation, bits in self._values[i]:
            if self._distinct[relation]:
                if self._common[relation] & bits[k]:
                    return False
            elif not self._common[relation] & bits[k]:
                return False
        once = own.once[k]
        return not once or room[once[0][0]] < 1 or all(room[cell] >= amount for cell, amount in once)

    def count(self, i: int, k: int, sign: int, room: list[int]) -> None:
        own = self._choices[i]
        assert own is not None
        k = self._domains[i][k]
        if sign > 0:
            for relation, bits in self._values[i]:
                self._before[i].append(self._common[relation])
                if self._distinct[relation]:
                    self._common[relation] |= bits[k]
                else:
                    self._common[relation] &= bits[k]
            self._took_once[i] = bool(own.once[k]) and room[own.once[k][0][0]] >= 1
        else:
            for (relation, _), value in zip(self._values[i], self._before[i], strict=True):
                self._common[relation] = value
            self._before[i].clear()
        if self._took_once[i]:
            for cell, amount in own.once[k]:
                room[cell] -= sign * amount

    def state(self, i: int, pick: Sequence[int]) -> tuple[object, int, int]:
        """Returns what has been chosen as far as it matters; the alternative that the next choice is of, and the place in the
        order after which it is, if it is of the same request."""
        last = self._last(i, pick)
        alternative, place = last if last is not None else (-1, -1)
        return (tuple(self._common), alternative, frozenset(self._ended)), alternative, place


def viable(
    slots: Sequence[DeviceSlot], values: Sequence[Values], room: Sequence[int], domains: list[list[int]]
) -> list[list[int]] | None:
    """Returns the domains without choices that cannot be part of any assignment; None if there is none. Necessary conditions
    only: each relation has values for all its slots, and slots that need devices of their own can have different ones."""
    domains = [list(domain) for domain in domains]
    own = [[_is_own(slot, k, room) for k in range(len(slot.parts))] for slot in slots]

    def devices(s: int, bit: int, of: Sequence[int]) -> Iterator[int] | None:
        """Yields the devices with a value that only this slot can have; None if the slot may have others or none."""
        fitting = [k for k in domains[s] if of[k] & bit]
        if any(not own[s][k] for k in fitting):
            return None
        return (slots[s].parts[k] for k in fitting)

    for relation in values:
        members = list(relation.of)
        if relation.distinct:
            if not _can_differ(members, lambda s, r=relation: _bits_of(domains[s], r.of[s])):  # type: ignore[misc]
                return None
            continue
        bits = 0
        for s in members:
            for k in domains[s]:
                bits |= relation.of[s][k] if relation.of[s][k] != ANY_VALUE else 0
        possible = 0
        for bit in _each_bit(bits):
            if _can_differ(members, lambda s, b=bit, r=relation: devices(s, b, r.of[s])):  # type: ignore[misc]
                possible |= bit
        for s in members:
            of, device = relation.of[s], slots[s].device
            domains[s] = [
                k
                for k in domains[s]
                if of[k] & possible or of[k] == ANY_VALUE or (device is not None and device.errors[k])
            ]
    everything = [[ANY_VALUE] * len(slot.parts) for slot in slots]
    asking = [s for s, slot in enumerate(slots) if slot.device is not None]
    if not all(domains) or not _can_differ(asking, lambda s: devices(s, 1, everything[s])):
        return None
    return domains


def _is_own(slot: DeviceSlot, k: int, room: Sequence[int]) -> bool:
    """Returns whether a choice takes so much of its device that no other can take the same."""
    if slot.parts[k] == NO_DEVICE or slot.device is None or slot.device.errors[k]:
        return False
    return any(room[cell] < 2 * amount for cell, amount in slot.takes[k][:1])


def _bits_of(domain: Sequence[int], of: Sequence[int]) -> Iterator[int] | None:
    if any(of[k] in (0, ANY_VALUE) for k in domain):
        return None
    return (bit for k in domain for bit in _each_bit(of[k]))


def _each_bit(bits: int) -> Iterator[int]:
    while bits > 0:
        lowest = bits & -bits
        yield lowest
        bits ^= lowest


def _can_differ(slots: Iterable[int], options: Callable[[int], Iterator[int] | None]) -> bool:
    """Returns whether each slot can have an option of its own. Slots without limits (None) are left out."""
    limited = {s: sorted(set(found)) for s in slots if (found := options(s)) is not None}
    taken: dict[int, int] = {}

    def augment(s: int, seen: set[int]) -> bool:
        for option in limited[s]:
            if option not in seen:
                seen.add(option)
                if option not in taken or augment(taken[option], seen):
                    taken[option] = s
                    return True
        return False

    return all(augment(s, set()) for s in sorted(limited, key=lambda s: len(limited[s])))
