"""Keeps the claims that use capacity: by cluster, by group, and by the object whose claims are counted together."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from moorage.model.claims import Claim

from .families import Family


class ActiveClaim(NamedTuple):
    """A claim that uses capacity. One that is withdrawn does so until its release. `own`: the family of its group's object;
    `joined`: that of another group whose object it takes over."""

    claim: Claim
    group: str
    withdrawn: bool
    own: Family
    joined: Family | None = None

    @property
    def family(self) -> Family:
        return self.joined or self.own


class ActiveClaims:
    """Active claims and their families. An object that takes over one of another group joins its family."""

    def __init__(self) -> None:
        self.claims: dict[str, ActiveClaim] = {}
        self.by_cluster: dict[str, set[str]] = {}
        self.by_group: dict[str, set[str]] = {}
        self.families: dict[Family, list[str]] = {}  # the claims of one object on one cluster, the newest last
        # Objects that take over one of another group → the family in which both are counted.
        self.joined: dict[Family, Family] = {}
        self._regrouped: set[str] = set()  # claims that the commit left in another family than before

    def family_of(self, family: Family) -> list[Claim]:
        """Returns the active claims of one object on one cluster, the newest last."""
        return [self.claims[ident].claim for ident in self.families.get(family, ())]

    def family_for(self, group: str, claim: Claim, *, joins: bool = True) -> Family:
        """Returns the family in which a claim of a group is counted, or would be: that of the claim of another group that it
        replaces, unless the object has claims of its own already. Only a claim that is decided `joins` another family."""
        return self._family_for(Family.of(group, claim), claim, joins=joins)

    def _family_for(self, own: Family, claim: Claim, *, joins: bool = True) -> Family:
        if own in self.joined:
            return self.joined[own]
        replaced = self.claims.get(claim.replaces) if joins and own not in self.families else None
        if replaced is None or Family.of(own.group, replaced.claim) != own:
            return own
        return replaced.family

    def _order(self, family: Family) -> None:
        """Puts the claims of a family of several groups in order: withdrawn ones first, then those of the groups in the order in
        which they took each other's place."""
        idents = self.families[family]
        if len({self.claims[ident].group for ident in idents}) > 1:
            groups = [family.group, *(own.group for own, into in self.joined.items() if into == family)]
            idents.sort(key=lambda i: (not self.claims[i].withdrawn, groups.index(self.claims[i].group)))
            self._regrouped.update(idents)

    def put_claim(self, claim: Claim, group: str, *, joins: bool = True) -> None:
        """Counts a claim of a standing decision. It replaces a claim of the same id."""
        own = Family.of(group, claim)
        key = self._family_for(own, claim, joins=joins)
        before = self.claims.get(claim.id)
        if before is not None and before.family != key:
            self.remove_claim(claim.id)
            key = self._family_for(own, claim, joins=joins)
        self.claims[claim.id] = ActiveClaim(claim, group, False, own, key if key != own else None)
        family = self.families.setdefault(key, [])
        if claim.id in family:
            family.remove(claim.id)
        family.append(claim.id)
        if key != own:
            self.joined[own] = key
        if self.joined:
            self._order(key)
        self.by_group.setdefault(group, set()).add(claim.id)
        self.by_cluster.setdefault(claim.cluster, set()).add(claim.id)

    def remove_claim(self, ident: str) -> Family:
        """Stops counting a claim. Returns the family of those that were counted with it."""
        active = self.claims.pop(ident)
        family = active.family
        rest = self.families[family]
        rest.remove(ident)
        if not rest:
            del self.families[family]
        if self.joined:
            family = self._leave_family(active, rest)
        for index, key in ((self.by_group, active.group), (self.by_cluster, active.claim.cluster)):
            idents = index[key]
            idents.discard(ident)
            if not idents:
                del index[key]
        return family

    def withdraw_claims(self, group: str, kept: AbstractSet[str] = frozenset()) -> set[str]:
        """Marks the group's claims as withdrawn, except those to be kept. Returns those that were not withdrawn before."""
        withdrawn: set[str] = set()
        for ident in self.by_group.get(group, ()):
            active = self.claims[ident]
            if ident not in kept and not active.withdrawn:
                self.claims[ident] = active._replace(withdrawn=True)
                withdrawn.add(ident)
        for family in {self.claims[ident].family for ident in withdrawn} if self.joined else ():
            self._order(family)
        return withdrawn

    def _leave_family(self, gone: ActiveClaim, rest: list[str]) -> Family:
        """Takes a group out of a family with its last claim there. A family is named after a group that has claims in it, so that a
        later group of a name is never counted with the successor of an earlier one. Returns the family of the rest."""
        key, own = gone.family, Family.of(gone.group, gone.claim)
        if any(self.claims[ident].group == gone.group for ident in rest):
            return key
        if own != key:
            self.joined.pop(own, None)
            return key
        members = [other for other, into in self.joined.items() if into == key]
        if not members:
            return key
        first = members[0]
        del self.joined[first]
        self.joined.update(dict.fromkeys(members[1:], first))
        self.families[first] = self.families.pop(key)
        for ident in rest:
            active = self.claims[ident]
            self.claims[ident] = active._replace(joined=first if active.group != first.group else None)
        self._regrouped.update(rest)
        return first
