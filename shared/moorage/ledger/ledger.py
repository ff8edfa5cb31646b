"""The state that the decision log folds to: standing decisions, withdrawn revisions and active claims. The fold is pure, so
every follower of the log gets the same ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from moorage.collections import LruDict
from moorage.model.base import Model
from moorage.model.claims import Claim, Commit, Decision, Shortfall
from moorage.model.part_requests import ClassVersion
from moorage.model.slots import Slot, resized

from .active_claims import ActiveClaims
from .allocations import AllocationLedger, AllocationSnapshot
from .entries import FoldEffects, fold_order, handler_of
from .families import Family, without_surge
from .machines import MachineLedger, MachineSnapshot

#: The ids of this many commits are kept: a committer whose append was not acknowledged looks for its commit's id.
REMEMBERED = 4096
#: Up to which revision a group was withdrawn is forgotten this many commits and seconds after nothing of it counts. Entries
#: that are based on an older commit fold to nothing, so nothing of a forgotten group comes back.
FORGET_COMMITS, FORGET_SECONDS = 4096, 120.0
#: Codes of shortfalls that devices caused.
DEVICE_FAILED, MASS_FAILURE = "DeviceFailed", "MassFailure"
#: Decisions of a group from before the standing one that are kept while they could stand again.
_PREVIOUS = 4


class Changes(NamedTuple):
    """The changes that one commit made to the ledger."""

    seq: int
    groups: frozenset[str] = frozenset()  # groups whose standing decision or ended revision changed
    claims: frozenset[str] = frozenset()  # claims that were added, released, or have other slots now
    released: frozenset[str] = frozenset()
    released_on: frozenset[str] = frozenset()  # clusters that had them
    withdrawn: frozenset[str] = frozenset()  # claims that are active only until their release now
    refused: tuple[str, ...] = ()  # decisions whose revision was withdrawn or overtaken; they changed nothing
    forgotten: tuple[str, ...] = ()  # groups whose ended revision is not known any more
    consumers: frozenset[str] = frozenset()  # consumers of the Placement interface that hold something else now
    reservations: frozenset[str] = frozenset()  # reservations of machines, by claim, with other slots or guests now
    grants: frozenset[str] = frozenset()  # guests, by uid, whose slot was granted or taken back


class _WithdrawnClaim(Model, kw_only=True):
    group: str
    claim: Claim


class _Snapshot(Model, kw_only=True):
    """`withdrawn` are the ended revisions by group, `extra` the claims that are withdrawn and not released, `idle` the groups
    of which nothing counts, in the order in which they are forgotten, `joined` objects that are counted with one of another group."""

    version: int = 1
    seq: int
    standing: list[Decision] = []
    withdrawn: dict[str, int] = {}
    extra: list[_WithdrawnClaim] = []
    idle: list[tuple[str, int, float]] = []
    commits: list[str] = []
    settled: dict[str, str] = {}
    previous: dict[str, list[Decision]] = {}
    displaced: dict[str, dict[str, Shortfall]] = {}
    steered: list[str] = []
    allocations: AllocationSnapshot | None = None
    machines: MachineSnapshot | None = None
    joined: list[tuple[Family, Family]] = []


_decode = msgspec.msgpack.Decoder(_Snapshot).decode
_encode = msgspec.msgpack.Encoder().encode


def _count(slots: Iterable[Slot]) -> int:
    """Returns the number of pods, without those of a surge."""
    return sum(slot.count for slot in slots if not slot.surge)


def _counts(decision: Decision) -> dict[str, int]:
    """Returns the number of pods of each claim."""
    return {claim.id: _count(claim.slots) for claim in decision.claims}


def _first(slots: Iterable[Slot], count: int) -> list[Slot]:
    """Returns the slots of the first `count` pods."""
    kept: list[Slot] = []
    for slot in slots:
        if count <= 0:
            break
        kept.append(resized(slot, min(slot.count, count)))
        count -= slot.count
    return kept


def _epoch_key(epoch: str) -> tuple[int, ...]:
    return tuple(int(part) for part in epoch.split(".") if part.isdecimal())


class Ledger(ActiveClaims):
    """The folded decision log. `standing` has the current decision of each group that has one, `ended_revisions` the newest
    withdrawn revision of each group until it is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = 0
        self.standing: dict[str, Decision] = {}
        self.ended_revisions: dict[str, int] = {}
        self.settled: dict[str, str] = {}  # cluster → epoch of the rows of its last settlement
        # Group → decisions from before its standing one that can stand again, the newest last: all their claims still count.
        self.previous: dict[str, list[Decision]] = {}
        self.displaced: dict[str, dict[str, Shortfall]] = {}  # group → clusters with slots that fit nowhere there
        self.steered: set[str] = set()  # groups that were displaced, so that later decisions require their nodes
        self.allocations = AllocationLedger()
        self.machines = MachineLedger()
        self.commits = LruDict[str, None](REMEMBERED)
        self._at = 0.0  # time of the last commit
        self._idle: dict[
            str, tuple[int, float]
        ] = {}  # ended groups of which nothing counts: since which commit and time

    def knows(self, group: str) -> bool:
        """Returns whether anything of the group counts, or its ended revision is not forgotten yet."""
        counts = group in self.standing or group in self.by_group
        return counts or group in self.ended_revisions or group in self.steered

    def newest_first(self) -> Iterator[Decision]:
        """Returns the standing decisions, first those of the groups that were placed last. All ledgers have the same order."""
        return reversed(self.standing.values())

    def is_forgotten(self, based_on: int) -> bool:
        """Returns whether withdrawals from after this commit may be forgotten. 0: the commit is not known."""
        return 0 < based_on < self.seq - FORGET_COMMITS

    def accepts(self, decision: Decision) -> bool:
        """Returns whether the decision would take effect: it is not based on too old a commit, and its revision is neither
        withdrawn nor older than the standing one."""
        if self.is_forgotten(decision.based_on) or decision.revision <= self.ended_revisions.get(decision.group, 0):
            return False
        standing = self.standing.get(decision.group)
        return standing is None or standing.revision <= decision.revision

    def fold(self, seq: int, commit: Commit) -> Changes:
        """Applies the next commit. Raises ValueError if `seq` does not follow the last one."""
        if seq != self.seq + 1:
            raise ValueError(f"commit {seq} does not follow {self.seq}")
        self.seq, self._at = seq, commit.at
        self.commits[commit.id] = None
        effects = FoldEffects()
        for entry in sorted(commit.entries, key=fold_order):
            handler_of(entry).fold(entry, self, effects)
        effects.claims |= self._regrouped & self.claims.keys()
        self._regrouped.clear()
        return Changes(
            seq,
            frozenset(effects.groups),
            frozenset(effects.claims | effects.released),
            frozenset(effects.released),
            frozenset(effects.released_on),
            frozenset(effects.withdrawn),
            tuple(effects.refused),
            tuple(self._forget()),
            frozenset(effects.consumers),
            frozenset(effects.reservations),
            frozenset(effects.grants),
        )

    def update_idle(self, group: str) -> None:
        """Begins anew to wait until the group's ended revision may be forgotten, if nothing of the group counts."""
        self._idle.pop(group, None)
        if group in self.ended_revisions and group not in self.standing and group not in self.by_group:
            self._idle[group] = self.seq, self._at

    def _forget(self) -> Iterator[str]:
        while self._idle:
            group, (seq, at) = next(iter(self._idle.items()))
            # A clock that was set back must not keep anything for ever.
            if self.seq - seq < FORGET_COMMITS or 0 <= self._at - at < FORGET_SECONDS:
                return
            del self._idle[group], self.ended_revisions[group]
            yield group

    def put_claim(self, claim: Claim, group: str, *, joins: bool = True) -> None:
        super().put_claim(claim, group, joins=joins)
        if claim.within:
            self.machines.use(claim.within, claim.id)

    def remove_claim(self, ident: str) -> Family:
        active = self.claims[ident]
        if active.claim.within:
            self.machines.leave(active.claim.within, ident)
        family = super().remove_claim(ident)
        self.update_idle(active.group)
        return family

    def replace_standing(self, decision: Decision) -> None:
        """Lets the decision stand. The one before is kept while it could stand again."""
        group = decision.group
        before = self.standing.get(group)
        if before is not None and _counts(before) != _counts(decision):
            self.previous.setdefault(group, []).append(before)
        self.standing[group] = decision
        self.displaced.pop(group, None)
        self.drop_impossible(group)

    def drop_impossible(self, group: str) -> None:
        """Forgets earlier decisions of the group of which a claim was released or has fewer slots now."""
        kept = [d for d in self.previous.get(group, ()) if self._can_stand_again(d)][-_PREVIOUS:]
        if kept:
            self.previous[group] = kept
        else:
            self.previous.pop(group, None)

    def _can_stand_again(self, decision: Decision) -> bool:
        for ident, count in _counts(decision).items():
            active = self.claims.get(ident)
            if active is None or active.group != decision.group or _count(active.claim.slots) < count:
                return False
        return True

    def end_standing(self, group: str, restored: AbstractSet[str]) -> set[str]:
        """Takes the group's standing decision back. The one before it stands again if it is among `restored`. Returns the
        claims that are withdrawn now and were not before."""
        self.standing.pop(group)
        self.displaced.pop(group, None)
        self.steered.add(group)
        previous = self.previous.get(group, [])
        again = previous.pop() if previous and previous[-1].id in restored else None
        if again is None:
            self.previous.pop(group, None)
            return self.withdraw_claims(group)
        withdrawn = self.withdraw_claims(group, _counts(again).keys())
        claims: list[Claim] = []
        for claim in again.claims:
            slots = _first(without_surge(self.claims[claim.id].claim.slots), _count(claim.slots))
            claims.append(msgspec.structs.replace(claim, slots=slots))
            self.put_claim(claims[-1], group)
        self.standing[group] = msgspec.structs.replace(again, claims=claims)
        self.drop_impossible(group)
        return withdrawn

    def set_displaced(self, cluster: str, shortfalls: Mapping[str, Shortfall]) -> set[str]:
        """Records which groups have slots on the cluster that fit nowhere there. Returns the groups for which that changed."""
        changed: set[str] = set()
        for group in [g for g, clusters in self.displaced.items() if cluster in clusters and g not in shortfalls]:
            del self.displaced[group][cluster]
            if not self.displaced[group]:
                del self.displaced[group]
            changed.add(group)
        for group, shortfall in shortfalls.items():
            if group not in self.standing:
                continue
            clusters = self.displaced.setdefault(group, {})
            if clusters.get(cluster) != shortfall:
                clusters[cluster] = shortfall
                changed.add(group)
            if not shortfall.code:  # of failed devices, the others keep pods where they are
                self.steered.add(group)
        return changed

    def wants_decision(self, group: str) -> bool:
        """Returns whether the group was displaced from where its standing decision put it. After a mass failure it waits there."""
        return any(lack.code != MASS_FAILURE for lack in self.displaced.get(group, {}).values())

    def failed_devices(self, group: str, cluster: str) -> AbstractSet[str]:
        """Returns the devices on the cluster that the group has to leave, and nothing there takes their place."""
        lack = self.displaced.get(group, {}).get(cluster)
        return lack.devices.keys() if lack is not None and lack.code == DEVICE_FAILED else frozenset()

    def displaced_on(self, cluster: str) -> dict[str, Shortfall]:
        """Returns the groups with slots on the cluster that fit nowhere there."""
        return {group: clusters[cluster] for group, clusters in self.displaced.items() if cluster in clusters}

    def forget_settlements(self, group: str) -> None:
        """Forgets what settlements found out about a group whose decision was withdrawn."""
        self.previous.pop(group, None)
        self.displaced.pop(group, None)
        self.steered.discard(group)

    def replace_slots(self, ident: str, slots: list[Slot], classes: Mapping[str, ClassVersion] | None = None) -> None:
        """Gives a claim other slots, and the classes of their devices if these change, also in the standing decision. If its pods are confined to nodes and a slot is elsewhere
        now, they are confined to the nodes of the slots from then on."""
        active = self.claims[ident]
        nodes = active.claim.required_nodes
        if nodes and any(slot.node not in nodes for slot in slots):
            nodes = {slot.node: slot.host for slot in slots}
        known = active.claim.classes if classes is None else dict(classes)
        self._replace_claim(msgspec.structs.replace(active.claim, slots=slots, required_nodes=nodes, classes=known))

    def _replace_claim(self, claim: Claim) -> None:
        """Replaces a claim by one with the same id, also in the standing decision."""
        active = self.claims[claim.id]
        self.claims[claim.id] = active._replace(claim=claim)
        standing = self.standing.get(active.group)
        if standing is not None and not active.withdrawn:
            claims = [claim if c.id == claim.id else c for c in standing.claims]
            self.standing[active.group] = msgspec.structs.replace(standing, claims=claims)

    def confine(self, ident: str, refused_by: Mapping[str, str]) -> None:
        """Confines a claim's pods to the nodes of its slots, because others refused them. So do later decisions of its group.
        Pinned pods go to their slots anyway."""
        active = self.claims[ident]
        nodes = {} if active.claim.pinned else {slot.node: slot.host for slot in active.claim.slots if slot.node}
        words = {**active.claim.refused_by, **refused_by}
        self._replace_claim(msgspec.structs.replace(active.claim, required_nodes=nodes, refused_by=words))
        self.steered.add(active.group)

    def vacate(self, ident: str, devices: list[str]) -> None:
        """Lets a claim's pods leave devices that failed, and no others."""
        self._replace_claim(msgspec.structs.replace(self.claims[ident].claim, vacated=devices))

    def end_surge(self, family: Family) -> str:
        """Drops the slots for a surge from the family's only claim. Returns its id if it had any, else ""."""
        idents = self.families.get(family, ())
        if len(idents) != 1:
            return ""
        active = self.claims[idents[0]]
        slots = active.claim.slots
        if active.withdrawn or not any(slot.surge for slot in slots):
            return ""
        self.replace_slots(idents[0], list(without_surge(slots)))
        return idents[0]

    def has_active_claims(self, group: str) -> bool:
        return group in self.by_group

    def is_terminating(self, group: str, revision: int, *, was_terminated: bool = False) -> bool:
        """Returns whether a group that was terminated at this revision has active claims or may still get a decision.
        `was_terminated`: its status says that it has ended, which the ledger may have forgotten."""
        withdrawn = was_terminated or self.ended_revisions.get(group, 0) >= revision
        return self.has_active_claims(group) or not withdrawn

    def excerpt(self, group: str, succeeds: str = "") -> Ledger | None:
        """Returns a ledger of what it has about this group, and about the claims of the group that it succeeds; None if that is
        nothing."""
        families = {self.claims[i].family for g in (group, succeeds) for i in self.by_group.get(g, ())}
        idents = [ident for family in sorted(families) for ident in self.families[family]]
        if not idents and group not in self.standing and group not in self.steered:
            return None
        found = Ledger()
        found.seq = self.seq
        found.joined = {own: family for own, family in self.joined.items() if family in families}
        for ident in idents:
            active = self.claims[ident]
            found.put_claim(active.claim, active.group, joins=False)
            found.claims[ident] = active
        for family in families if found.joined else ():
            found._order(family)
        if (standing := self.standing.get(group)) is not None:
            found.standing[group] = standing
        if group in self.steered:
            found.steered.add(group)
        if ended := self.ended_revisions.get(group):
            found.ended_revisions[group] = ended
        return found

    def settled_from_newer_rows(self, cluster: str, epoch: str) -> bool:
        """Returns whether the cluster's last settlement was computed from newer rows than those of this epoch."""
        return _epoch_key(epoch) < _epoch_key(self.settled.get(cluster, ""))

    def encode(self) -> bytes:
        """Returns the ledger as a snapshot."""
        # The order within a family is kept: the claim of the standing decision is its newest.
        ordered = (self.claims[ident] for idents in self.families.values() for ident in idents)
        withdrawn = [_WithdrawnClaim(group=a.group, claim=a.claim) for a in ordered if a.withdrawn]
        snapshot = _Snapshot(
            seq=self.seq,
            standing=list(self.standing.values()),
            withdrawn=self.ended_revisions,
            extra=withdrawn,
            idle=[(group, *since) for group, since in self._idle.items()],
            commits=list(self.commits),
            settled=self.settled,
            previous=self.previous,
            displaced=self.displaced,
            steered=sorted(self.steered),
            allocations=self.allocations.snapshot(),
            machines=self.machines.snapshot(),
            joined=list(self.joined.items()),
        )
        return _encode(snapshot)

    @classmethod
    def decode(cls, data: bytes) -> Ledger:
        """Reads a snapshot of any age. Raises msgspec.DecodeError on junk."""
        snapshot = _decode(data)
        if snapshot.version != 1:
            raise msgspec.ValidationError(f"unknown version {snapshot.version} of a ledger snapshot")
        ledger = cls()
        ledger.seq = snapshot.seq
        ledger.ended_revisions = dict(snapshot.withdrawn)
        ledger.settled = dict(snapshot.settled)
        ledger.previous = dict(snapshot.previous)
        ledger.displaced = dict(snapshot.displaced)
        ledger.steered = set(snapshot.steered)
        if snapshot.allocations is not None:
            ledger.allocations = AllocationLedger.of(snapshot.allocations)
        if snapshot.machines is not None:
            ledger.machines.load(snapshot.machines)
        ledger.commits.update(dict.fromkeys(snapshot.commits))
        ledger.joined = dict(snapshot.joined)
        for withdrawn in snapshot.extra:
            ledger.put_claim(withdrawn.claim, withdrawn.group, joins=False)
            active = ledger.claims[withdrawn.claim.id]
            ledger.claims[withdrawn.claim.id] = active._replace(withdrawn=True)
        for decision in snapshot.standing:
            ledger.standing[decision.group] = decision
            for claim in decision.claims:
                ledger.put_claim(claim, decision.group, joins=False)
        for family in set(ledger.joined.values()):
            ledger._order(family)
        ledger._regrouped.clear()
        ledger._idle = {group: (seq, at) for group, seq, at in snapshot.idle}
        for group in ledger.ended_revisions:
            if group not in ledger._idle:  # a snapshot from before groups were forgotten
                ledger.update_idle(group)
        return ledger
