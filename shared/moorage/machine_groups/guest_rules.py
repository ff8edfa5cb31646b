"""Rules of guests about other guests: required pod affinity and anti-affinity. Pure.

Guests are of one kind if they have the same rules, and if no rule that any guest has tells them apart. So whoever gives out slots needs
no labels and selectors, only which kinds may not, or have to, be in one domain of a topology key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2s
from typing import Any, NamedTuple

import msgspec

from moorage.model.machines import GuestRule, NearGuests
from moorage.model.shapes import Requirement
from moorage.selectors import requirement_matches

#: Terms of required pod affinity or anti-affinity, as a Pod has them.
Terms = list[dict[str, Any]]


class _Kind(NamedTuple):
    namespace: str
    labels: Mapping[str, str]
    near: Terms
    apart: Terms


class _Guest(NamedTuple):
    namespace: str
    labels: Mapping[str, str]
    near: Terms
    apart: Terms
    rules: str  # the same for equal terms; "" without any


class GuestKinds:
    """Sorts guests into kinds. Where no guest has rules, there are none. `changed`: kinds or what they have to do with each other are not as
    when it was set to False."""

    def __init__(self) -> None:
        self.changed = False
        self._guests: dict[str, _Guest] = {}  # by uid
        self._ruled: Counter[str] = Counter()  # rules → guests that have them
        self._keys: frozenset[str] = frozenset()  # of labels, by which rules select
        self._stale = False  # who has rules changed
        self._kinds: dict[str, _Kind] = {}
        self._members: Counter[str] = Counter()
        self._kind_of: dict[str, str] = {}  # by uid
        self._apart: dict[str, dict[str, set[str]]] = {}  # kind → topology key → kinds
        self._near: dict[str, list[tuple[str, set[str]]]] = {}  # kind → one topology key with kinds per term

    def put(self, uid: str, namespace: str, labels: Mapping[str, str], near: Terms, apart: Terms) -> None:
        before = self._guests.get(uid)
        if before is not None and before[:4] == (namespace, labels, near, apart):
            return
        self.drop(uid)
        rules = msgspec.json.encode([near, apart], order="sorted").decode() if near or apart else ""
        found = self._guests[uid] = _Guest(namespace, labels, near, apart, rules)
        if rules:
            self._ruled[rules] += 1
            self._stale |= self._ruled[rules] == 1
        if self._ruled and not self._stale:
            self._sort(uid, found)

    def drop(self, uid: str) -> None:
        found = self._guests.pop(uid, None)
        if found is None:
            return
        if found.rules:
            self._ruled[found.rules] -= 1
            if not self._ruled[found.rules]:
                del self._ruled[found.rules]
                self._stale = True
        kind = self._kind_of.pop(uid, "")
        if kind:
            self._members[kind] -= 1
            if not self._members[kind]:
                self._forget(kind)

    def kind_of(self, uid: str) -> str:
        """Returns the kind of a guest; "" where no guest has rules."""
        self._refresh()
        return self._kind_of.get(uid, "")

    def rules(self) -> dict[str, GuestRule]:
        """Returns what kinds have to do with each other, by kind; of those that have nothing to do with any there is nothing."""
        self._refresh()
        return {
            kind: GuestRule(
                kind=kind,
                apart={key: sorted(kinds) for key, kinds in sorted(self._apart[kind].items()) if kinds},
                near=[NearGuests(topology_key=key, kinds=sorted(kinds)) for key, kinds in self._near[kind]],
            )
            for kind in sorted(self._kinds)
            if any(self._apart[kind].values()) or self._near[kind]
        }

    # --- sorting

    def _refresh(self) -> None:
        """Sorts all guests again, if others have rules than before."""
        if not self._stale:
            return
        self._stale, self.changed = False, True
        for found in (self._kinds, self._members, self._kind_of, self._apart, self._near):
            found.clear()
        ruled = {guest.rules: guest for guest in self._guests.values() if guest.rules}
        terms = [term for guest in ruled.values() for term in (*guest.near, *guest.apart)]
        self._keys = frozenset(key for term in terms for key in _keys(term))
        if ruled:
            for uid, guest in self._guests.items():
                self._sort(uid, guest)

    def _sort(self, uid: str, guest: _Guest) -> None:
        labels = {key: value for key, value in guest.labels.items() if key in self._keys}
        text = msgspec.json.encode([guest.namespace, labels, guest.rules], order="sorted")
        kind = blake2s(text, digest_size=8).hexdigest()
        self._kind_of[uid] = kind
        self._members[kind] += 1
        if kind not in self._kinds:
            self._add(kind, _Kind(guest.namespace, labels, guest.near, guest.apart))

    def _add(self, kind: str, found: _Kind) -> None:
        self.changed = True
        self._kinds[kind], self._apart[kind] = found, {}
        self._near[kind] = [(_topology(term), set()) for term in found.near]
        for other, its in self._kinds.items():
            self._relate(kind, found, other, its)
            if other != kind:
                self._relate(other, its, kind, found)

    def _relate(self, one: str, its: _Kind, other: str, theirs: _Kind) -> None:
        """Notes what the rules of one kind say of another."""
        for term in its.apart:
            if _selects(term, its.namespace, theirs.namespace, theirs.labels):
                self._apart[one].setdefault(_topology(term), set()).add(other)
                self._apart[other].setdefault(_topology(term), set()).add(one)
        for term, (_, kinds) in zip(its.near, self._near[one], strict=True):
            if _selects(term, its.namespace, theirs.namespace, theirs.labels):
                kinds.add(other)

    def _forget(self, kind: str) -> None:
        self.changed = True
        for found in (self._kinds, self._members, self._apart, self._near):
            found.pop(kind, None)
        for by_key in self._apart.values():
            for kinds in by_key.values():
                kinds.discard(kind)
        for terms in self._near.values():
            for _, kinds in terms:
                kinds.discard(kind)


class PlacedGuests:
    """Tells where guests may go beside those that have slots already. `domain_of`: the value that a Node has for a topology key."""

    def __init__(
        self,
        rules: Mapping[str, GuestRule],
        kind_of: Callable[[str], str],
        domain_of: Callable[[str, str], str | None],
    ) -> None:
        self._rules, self.kind_of, self._domain_of = rules, kind_of, domain_of
        self._keys = sorted({key for rule in rules.values() for key in _keys_of(rule)})
        self._placed: set[str] = set()
        self._on_nodes: Counter[str] = Counter()  # kind → guests
        self._in: Counter[tuple[str, str, str]] = Counter()  # topology key, its value and kind → guests

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    def put(self, uid: str, node: str) -> None:
        """Puts a guest on a Node, or notes that it is about to come there."""
        if not self._rules or uid in self._placed:
            return
        kind = self.kind_of(uid)
        self._placed.add(uid)
        self._on_nodes[kind] += 1
        for key in self._keys:
            value = self._domain_of(node, key)
            if value is not None:
                self._in[key, value, kind] += 1

    def allows(self, uid: str, node: str) -> bool:
        """Returns whether the rules of a guest about those that were put, and theirs about it, hold on a Node."""
        rule = self._rules.get(self.kind_of(uid)) if self._rules else None
        if rule is None:
            return True
        for key, kinds in rule.apart.items():
            value = self._domain_of(node, key)
            if value is not None and any(self._in[key, value, kind] for kind in kinds):
                return False
        for near in rule.near:
            # The first of Pods that want to be near each other may start anywhere; of strangers nobody here knows.
            if not any(self._on_nodes[kind] for kind in near.kinds):
                continue
            value = self._domain_of(node, near.topology_key)
            if value is None or not any(self._in[near.topology_key, value, kind] for kind in near.kinds):
                return False
        return True


def _keys_of(rule: GuestRule) -> Iterator[str]:
    yield from rule.apart
    yield from (near.topology_key for near in rule.near)


def _topology(term: Mapping[str, Any]) -> str:
    return str(term.get("topologyKey", ""))


def _keys(term: Mapping[str, Any]) -> Iterator[str]:
    selector = term.get("labelSelector") or {}
    yield from selector.get("matchLabels") or ()
    yield from (str(r.get("key", "")) for r in selector.get("matchExpressions") or ())


def _selects(term: Mapping[str, Any], own: str, namespace: str, labels: Mapping[str, str]) -> bool:
    namespaces = term.get("namespaces") or ([] if term.get("namespaceSelector") is not None else [own])
    if term.get("namespaceSelector") is None and namespace not in namespaces:
        return False
    selector = term.get("labelSelector")
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        requirement_matches(_requirement(r), labels.get(str(r.get("key", ""))))
        for r in selector.get("matchExpressions") or ()
    )


def _requirement(raw: Mapping[str, Any]) -> Requirement:
    return Requirement(key=raw.get("key", ""), operator=raw.get("operator", ""), values=tuple(raw.get("values") or ()))
