"""Writes expressions that select single devices. Expressions see neither names nor nodes of devices, so each is told by what no other
one of its driver in the cluster has: an attribute of its own, else attributes and capacities that it alone has together, else what it
does not have. Devices that agree in all of that are equal to every expression."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.cel import MAX_LENGTH
from moorage.cel.functions import is_semver
from moorage.model.part_reports import DeviceReport
from moorage.parsing import canonical_quantity
from moorage.parts.identities import is_identity

from .objects import DeviceBody
from .slices import Devices

#: Selectors that a class or a request may have.
MAX_SELECTORS = 32
#: Attributes that are likely to be a device's own, best first.
_OWN_NAMES = ("uuid", "pciBusID", "pcieBusID", "pciAddress", "serial", "serialNumber", "index", "minor")
_ATTRIBUTES, _CAPACITY = "device.attributes", "device.capacity"
_PLAIN, _COMPARED = ("string", "int", "bool"), {"version": "semver", "capacity": "quantity"}


class _Field(NamedTuple):
    """An attribute or a capacity. One without a domain says of the device whether it can be allocated several times."""

    of: str
    domain: str = ""
    name: str = ""

    @property
    def path(self) -> str:
        return f"{self.of}[{json.dumps(self.domain)}].{self.name}" if self.domain else self.of

    @property
    def there(self) -> str:
        return f"has({self.path}) && " if self.domain else ""


_SHARED = _Field("device.allowMultipleAllocations")


class _Fact(NamedTuple):
    """A value that a device has, in a form in which equal ones are the same. Without a kind it cannot be compared."""

    field: _Field
    kind: str
    value: str | int | bool = ""

    @property
    def text(self) -> str:
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def condition(self) -> str:
        path, function = self.field.path, _COMPARED.get(self.kind)
        equal = f".compareTo({function}({self.text})) == 0" if function else f" == {self.text}"
        return f"{self.field.there}{path}{equal}"

    @property
    def rank(self) -> tuple[bool, int, str, str]:
        """Orders facts: those first that are likely to stay a device's own."""
        name = self.field.name
        own = _OWN_NAMES.index(name) if name in _OWN_NAMES else len(_OWN_NAMES)
        return self.kind not in _PLAIN, own, name, self.field.domain


class _Looks(NamedTuple):
    """Holds what expressions see of a device."""

    facts: tuple[_Fact, ...]
    fields: frozenset[_Field]


class _Term(NamedTuple):
    """Selects devices of a driver by the values of a field, where these conditions hold."""

    driver: str
    conditions: tuple[str, ...]
    field: _Field | None = None
    kind: str = ""

    def text(self, values: Iterable[str] = (), beyond: str = "") -> str:
        """`values` as they are written. `beyond`: a condition under which other values will do, too."""
        conditions = [_is(self.driver), *self.conditions]
        if self.field is not None:
            one_of = f"{self.field.path} in [{', '.join(values)}]"
            conditions.append(f"{self.field.there}{f'({beyond} || {one_of})' if beyond else one_of}")
        return f"({' && '.join(conditions)})"


def selectors_of(idents: Sequence[str], devices: Devices, most: int = MAX_SELECTORS) -> list[str]:
    """Returns expressions that together select these devices, of those that there are, and no others that differ in anything. What
    does not fit in so many selects all of their drivers."""
    by_driver: dict[str, set[str]] = {}
    for ident in idents:
        by_driver.setdefault(ident.partition("/")[0], set()).add(ident)
    terms: dict[_Term, list[_Fact]] = {}
    drivers: dict[str, _Driver] = {}
    for driver, wanted in sorted(by_driver.items()):
        of = drivers[driver] = devices.made_of(driver, _Driver)
        for looks in dict.fromkeys(of.looks[ident] for ident in sorted(wanted & of.looks.keys())):
            term, fact = of.told_by(looks)
            terms.setdefault(term, []).extend([fact] if fact is not None else [])
    texts = {
        term: term.text(sorted(fact.text for fact in facts)) for term, facts in sorted(terms.items(), key=_by_path)
    }
    text = " || ".join(texts.values()) or "false"
    if _fits(text):
        return [text]
    longest = max(texts, key=lambda term: len(texts[term]))
    others = [text for term, text in texts.items() if term != longest]
    comparable = longest.field in drivers[longest.driver].of_one_kind
    found = _in_ranges(longest, terms[longest], others) if comparable else []
    if found and len(found) <= most and all(map(_fits, found)):
        return found
    return [" || ".join(map(_is, sorted(by_driver)))]


def with_alike(found: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Returns a node's devices with numbers that those have in common which no expression tells apart, on other nodes, too: which of
    them a pod gets, the scheduler chooses. That matters where some take of counters that others take of."""
    if not any(device.consumes for device in found):
        return list(found)
    return [
        device
        if not device.driver or device.elsewhere or any(map(is_identity, device.attributes))
        else msgspec.structs.replace(device, alike=_number_of(_looks_of(device)))
        for device in found
    ]


def _number_of(looks: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(looks).encode(), digest_size=4).digest()) or 1


def _looks_of(device: DeviceReport) -> object:
    """Returns what expressions see of a device. Values of which there are several are not compared."""
    attributes = sorted(
        (name, type(value).__name__, "" if isinstance(value, tuple) else str(value))
        for name, value in device.attributes.items()
    )
    return device.driver, attributes, sorted(map(_amount, device.capacity.items())), device.divisible


def _amount(named: tuple[str, str]) -> tuple[str, str]:
    name, text = named
    try:
        return name, canonical_quantity(text)
    except ValueError:
        return name, text


def _in_ranges(term: _Term, facts: Iterable[_Fact], others: Sequence[str]) -> list[str]:
    """Returns expressions each of which says of a range of values which of them are selected: all of them hold for those only."""
    path = term.field.path if term.field is not None else ""
    ordered = sorted(facts, key=_value)
    room = MAX_LENGTH - sum(len(text.encode()) + 4 for text in (*others, term.text(beyond=path))) - 512
    ranges: list[list[_Fact]] = [[]]
    size = 0
    for fact in ordered:
        length = len(fact.text.encode()) + 2
        if ranges[-1] and size + length > room:
            ranges.append([])
            size = 0
        ranges[-1].append(fact)
        size += length
    found = []
    for i, within in enumerate(ranges):
        bounds = [f"{path} < {within[0].text}"] if i else []
        bounds += [f"{path} >= {ranges[i + 1][0].text}"] if i + 1 < len(ranges) else []
        found.append(" || ".join([*others, term.text((fact.text for fact in within), " || ".join(bounds))]))
    return found


class _Driver:
    """The devices of a driver in a cluster, as far as expressions see them."""

    def __init__(self, name: str, bodies: Mapping[str, DeviceBody]) -> None:
        self._name = name
        self._facts: dict[tuple[str, str, object], _Fact] = {}
        self._fields: dict[frozenset[_Field], frozenset[_Field]] = {}
        tells_shared = any(body.allow_multiple_allocations for body in bodies.values())
        found = {ident: self._facts_of(body, tells_shared) for ident, body in bodies.items()}
        kinds: dict[_Field, set[str]] = {}
        for fact in self._facts.values():
            kinds.setdefault(fact.field, set()).add(fact.kind)
        #: Comparing a value with one of another kind may be an error, with which a claim fails.
        self.of_one_kind = {field for field, of in kinds.items() if len(of) == 1}
        self.looks = {ident: self._looks(facts) for ident, facts in found.items()}
        self._all = list(dict.fromkeys(self.looks.values()))
        self._having: dict[_Fact, list[_Looks]] = {}
        for looks in self._all:
            for fact in looks.facts:
                self._having.setdefault(fact, []).append(looks)

    def _facts_of(self, body: DeviceBody, tells_shared: bool) -> list[_Fact]:
        found = []
        for key, given in (body.attributes or {}).items():
            kind, value = next(iter(given.items()), ("", "")) if isinstance(given, dict) else ("", "")
            found.append(self._fact(key, kind, value if isinstance(value, str | int) else ""))
        for key, given in (body.capacity or {}).items():
            found.append(self._fact(key, "capacity", str(given.get("value", "") if isinstance(given, dict) else given)))
        if tells_shared:
            found.append(self._fact("", "shared", bool(body.allow_multiple_allocations)))
        return sorted(found, key=lambda fact: fact.field)

    def _fact(self, key: str, kind: str, value: str | int) -> _Fact:
        found = self._facts.get((key, kind, value))
        if found is None:
            found = self._facts[key, kind, value] = _read_fact(self._name, key, kind, value)
        return found

    def _looks(self, facts: Iterable[_Fact]) -> _Looks:
        fields = frozenset(fact.field for fact in facts if fact.field != _SHARED)
        return _Looks(tuple(filter(self._is_usable, facts)), self._fields.setdefault(fields, fields))

    def _is_usable(self, fact: _Fact) -> bool:
        return bool(fact.kind) and (fact.kind != "version" or fact.field in self.of_one_kind)

    def told_by(self, looks: _Looks) -> tuple[_Term, _Fact | None]:
        """Returns what tells a device from all that look different, with the fact of which terms list the values."""
        left = None if looks.facts else [other for other in self._all if other != looks]
        chosen: list[_Fact] = []
        for fact in sorted(looks.facts, key=lambda fact: (len(self._having[fact]), fact.rank)):
            among = self._having[fact] if left is None else left
            fewer = [other for other in among if other != looks and fact in other.facts]
            if left is None or len(fewer) < len(left):
                chosen.append(fact)
            left = fewer
            if not left:
                break
        lacks = sorted(f"!has({field.path})" for field in _lacking(looks, left or ()))
        chosen.sort(key=lambda fact: fact.rank)
        listed = chosen[0] if chosen and not chosen[0].rank[0] else None
        conditions = (*(fact.condition for fact in chosen if fact is not listed), *lacks)
        field, kind = (listed.field, listed.kind) if listed is not None else (None, "")
        return _Term(self._name, conditions, field, kind), listed


def _lacking(looks: _Looks, others: Iterable[_Looks]) -> Iterator[_Field]:
    """Yields fields that the device does not have, so few that each of the others has one of them if it has any."""
    more = [fields for other in others if (fields := other.fields - looks.fields)]
    while more:
        counts = Counter(field for fields in more for field in fields)
        best = min(counts, key=lambda field: (-counts[field], field))
        yield best
        more = [fields for fields in more if best not in fields]


def _read_fact(driver: str, key: str, kind: str, value: str | int) -> _Fact:
    if kind == "shared":
        return _Fact(_SHARED, "shared", value)
    field = _Field(_CAPACITY if kind == "capacity" else _ATTRIBUTES, *_qualified(driver, key))
    if kind == "capacity":
        try:
            return _Fact(field, kind, canonical_quantity(str(value)))
        except ValueError:
            return _Fact(field, "")
    if kind == "version" and is_semver(str(value)):
        return _Fact(field, kind, str(value).partition("+")[0])  # what is built differently compares as equal
    return _Fact(field, kind, value) if kind in _PLAIN else _Fact(field, "")


def _qualified(driver: str, key: str) -> tuple[str, str]:
    domain, slash, name = key.partition("/")
    return (domain, name) if slash else (driver, key)


def _by_path(item: tuple[_Term, object]) -> tuple[str, str, tuple[str, ...]]:
    """Orders terms: those that list values first."""
    term = item[0]
    return term.driver, term.field.path if term.field is not None else "~", term.conditions


def _value(fact: _Fact) -> Any:
    return fact.value


def _fits(expression: str) -> bool:
    return len(expression.encode()) <= MAX_LENGTH


def _is(driver: str) -> str:
    return f"device.driver == {json.dumps(driver)}"
