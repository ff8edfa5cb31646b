"""Keeps what the claims of each project hold of devices, and counts these by the classes that quotas name. What changes is counted
anew, nothing else."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from moorage.fleet.class_status import MILLI
from moorage.model.claims import Claim

from .families import Family, at_least

#: The name under which all devices are counted, whatever their classes.
ALL_DEVICES = "*"


class Place(NamedTuple):
    cluster: str
    node: str
    part: str


#: What is taken of parts, by resource.
Parts = dict[Place, dict[str, int]]


class PartKind(NamedTuple):
    """Says how a part counts: for which classes, and how much of each resource is one device. A part that is gone counts as a device;
    one without resources is none."""

    classes: tuple[str, ...] = ()
    whole: Mapping[str, int] = {}
    gone: bool = False

    def units(self, amounts: Mapping[str, int]) -> int:
        """Returns thousandths of devices."""
        if self.gone:
            return MILLI if amounts else 0
        shares = (-(-amount * MILLI // self.whole[name]) for name, amount in amounts.items() if name in self.whole)
        return max(shares, default=0)


GONE = PartKind(gone=True)


class _HeldPart(NamedTuple):
    amounts: Mapping[str, int]
    kind: PartKind


class HeldParts:
    """Keeps what one project holds. `counts`: thousandths of devices by class."""

    def __init__(self, kind_of: Callable[[Place], PartKind]) -> None:
        self.counts: Counter[str] = Counter()
        self._kind_of = kind_of
        self._families: MutableMapping[Family, Parts] = {}
        self._parts: MutableMapping[Place, _HeldPart] = {}
        self._by_cluster: dict[str, set[Place]] = {}

    def draft(self) -> HeldParts:
        """Returns a copy in which families can be put without a change here. It is not to be renewed."""
        found = HeldParts(self._kind_of)
        found.counts = self.counts.copy()
        found._families, found._parts = ChainMap({}, self._families), ChainMap({}, self._parts)
        return found

    def of_family(self, family: Family) -> Parts:
        return self._families.get(family, {})

    def put(self, family: Family, parts: Parts) -> AbstractSet[Place]:
        """Sets what a family holds. Returns the parts that it held before or holds now."""
        before = self.of_family(family)
        self._families[family] = parts
        touched = before.keys() | parts.keys()
        for place in touched:
            was, now = before.get(place, {}), parts.get(place, {})
            if was != now:
                held = self._parts.get(place)
                amounts = Counter(held.amounts if held is not None else {})
                amounts.update(now)
                amounts.subtract(was)
                kind = held.kind if held is not None else self._kind_of(place)
                self._replace(place, _HeldPart({name: amount for name, amount in amounts.items() if amount}, kind))
        return touched

    def keep(self, family: Family, parts: Parts) -> None:
        """Sets what a family holds, and forgets what nobody holds any more."""
        touched = self.put(family, parts)
        if not parts:
            del self._families[family]
        for place in touched:
            if self._parts[place].amounts:
                self._by_cluster.setdefault(place.cluster, set()).add(place)
            else:
                del self._parts[place]
                self._by_cluster[place.cluster].discard(place)

    def renew(self, clusters: Iterable[str] | None) -> None:
        """Counts the parts of some clusters again, as others than before; None: all."""
        for cluster in list(self._by_cluster) if clusters is None else clusters:
            for place in self._by_cluster.get(cluster, ()):
                self._replace(place, self._parts[place]._replace(kind=self._kind_of(place)))

    def _replace(self, place: Place, part: _HeldPart) -> None:
        if (before := self._parts.get(place)) is not None:
            self._count(before, -1)
        self._count(part, 1)
        self._parts[place] = part

    def _count(self, part: _HeldPart, sign: int) -> None:
        units = sign * part.kind.units(part.amounts)
        self.counts[ALL_DEVICES] += units
        for name in part.kind.classes:
            self.counts[name] += units


def parts_of(claims: Iterable[Claim]) -> Parts:
    """Returns what claims hold that take each other over: of each part the most that one of them takes. Parts of which they take nothing
    are left out."""
    parts: Parts = {}
    for claim in claims:
        of_claim: Parts = {}
        for slot in claim.slots:
            for part, amounts in slot.parts.items():
                here = of_claim.setdefault(Place(claim.cluster, slot.node, part), {})
                for name, amount in amounts.items():
                    here[name] = here.get(name, 0) + amount * slot.count
        for place, amounts in of_claim.items():
            if any(amounts.values()):
                at_least(parts.setdefault(place, {}), amounts)
    return parts
