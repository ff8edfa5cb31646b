"""The decision log, folded: what stands, what is withdrawn, and every claim that counts. Pure; everyone folds the same."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from moorage.model.base import Model
from moorage.model.claims import Claim, Commit, Decision

#: Ids of the newest commits are kept so that a missing acknowledgement can be settled.
REMEMBERED = 4096


class ActiveClaim(NamedTuple):
    """A claim that counts. Withdrawn: until its release."""

    claim: Claim
    group: str
    withdrawn: bool


class Changes(NamedTuple):
    """What one commit did. `refused`: decisions for withdrawn or overtaken revisions, which folded to nothing."""

    seq: int
    groups: frozenset[str] = frozenset()  # what stands for them changed
    claims: frozenset[str] = frozenset()  # came, went, or have other slots
    released: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()  # claims that count only until their release now
    refused: tuple[str, ...] = ()


class _Extra(Model, kw_only=True):
    group: str
    claim: Claim


class _Snapshot(Model, kw_only=True):
    version: int = 1
    seq: int
    standing: list[Decision] = []
    withdrawn: dict[str, int] = {}
    extra: list[_Extra] = []
    commits: list[str] = []


_decode = msgspec.msgpack.Decoder(_Snapshot).decode
_encode = msgspec.msgpack.Encoder().encode


class Ledger:
    """`standing`: the decision of each group that has one. `ended`: up to which revision each group was withdrawn."""

    def __init__(self) -> None:
        self.seq = 0
        self.standing: dict[str, Decision] = {}
        self.ended_revisions: dict[str, int] = {}
        self.claims: dict[str, ActiveClaim] = {}
        self.by_cluster: dict[str, set[str]] = {}
        self.by_group: dict[str, set[str]] = {}
        self.commits: OrderedDict[str, None] = OrderedDict()

    def accepts(self, decision: Decision) -> bool:
        """A decision for a withdrawn revision folds to nothing, and so does one that a newer revision overtook."""
        if decision.revision <= self.ended_revisions.get(decision.group, 0):
            return False
        stands = self.standing.get(decision.group)
        return stands is None or stands.revision <= decision.revision

    def fold(self, seq: int, commit: Commit) -> Changes:
        if seq != self.seq + 1:
            raise ValueError(f"commit {seq} does not follow {self.seq}")
        self.seq = seq
        self.commits[commit.id] = None
        if len(self.commits) > REMEMBERED:
            self.commits.popitem(last=False)
        groups: set[str] = set()
        changed: set[str] = set()
        withdrawn: set[str] = set()
        released: set[str] = set()
        refused: list[str] = []
        # Withdrawals first: a decision of the same commit that they name must not count for a moment.
        for withdrawal in commit.withdrawals:
            self.ended_revisions[withdrawal.group] = max(
                withdrawal.revision, self.ended_revisions.get(withdrawal.group, 0)
            )
            stands = self.standing.get(withdrawal.group)
            groups.add(withdrawal.group)  # also where nothing stood: from now on nothing may come
            if stands is not None and stands.revision <= withdrawal.revision:
                del self.standing[withdrawal.group]
                withdrawn |= self._withdraw(withdrawal.group, frozenset())
        for release in commit.releases:
            for ident in release.claims:
                held = self.claims.get(ident)
                # A claim that a later decision took up again is not the one whose removal was confirmed.
                if held is not None and held.withdrawn:
                    self._forget(ident, held)
                    released.add(ident)
        for decision in commit.decisions:
            if not self.accepts(decision):
                refused.append(decision.id)
                continue
            kept = frozenset(claim.id for claim in decision.claims)
            withdrawn |= self._withdraw(decision.group, kept)
            withdrawn -= kept
            released -= kept  # let go and taken again in one commit
            for claim in decision.claims:
                self._hold(claim, decision.group)
            changed |= kept
            groups.add(decision.group)
            self.standing[decision.group] = decision
        for reassign in commit.reassigns:
            held = self.claims.get(reassign.claim)
            if held is None:
                continue
            claim = msgspec.structs.replace(held.claim, slots=reassign.slots)
            self.claims[reassign.claim] = held._replace(claim=claim)
            stands = self.standing.get(held.group)
            if stands is not None and not held.withdrawn:
                claims = [claim if c.id == claim.id else c for c in stands.claims]
                self.standing[held.group] = msgspec.structs.replace(stands, claims=claims)
            changed.add(reassign.claim)
            groups.add(held.group)
        return Changes(
            seq,
            frozenset(groups),
            frozenset(changed | released),
            frozenset(released),
            frozenset(withdrawn),
            tuple(refused),
        )

    def _withdraw(self, group: str, kept: frozenset[str]) -> set[str]:
        gone: set[str] = set()
        for ident in self.by_group.get(group, ()):
            held = self.claims[ident]
            if ident not in kept and not held.withdrawn:
                self.claims[ident] = held._replace(withdrawn=True)
                gone.add(ident)
        return gone

    def _hold(self, claim: Claim, group: str) -> None:
        before = self.claims.get(claim.id)
        if before is not None and (before.group != group or before.claim.cluster != claim.cluster):
            self._forget(claim.id, before)
        self.claims[claim.id] = ActiveClaim(claim, group, False)
        self.by_group.setdefault(group, set()).add(claim.id)
        self.by_cluster.setdefault(claim.cluster, set()).add(claim.id)

    def _forget(self, ident: str, held: ActiveClaim) -> None:
        del self.claims[ident]
        for index, key in ((self.by_group, held.group), (self.by_cluster, held.claim.cluster)):
            mine = index[key]
            mine.discard(ident)
            if not mine:
                del index[key]

    def has_active_claims(self, group: str) -> bool:
        """Claims of the group still count, standing or withdrawn."""
        return group in self.by_group

    def is_terminating(self, group: str, revision: int) -> bool:
        """Of a group that was terminated at this revision: something counts, or may yet be decided."""
        return self.has_active_claims(group) or self.ended_revisions.get(group, 0) < revision

    def encode(self) -> bytes:
        extra = [_Extra(group=h.group, claim=h.claim) for h in self.claims.values() if h.withdrawn]
        snapshot = _Snapshot(
            seq=self.seq,
            standing=list(self.standing.values()),
            withdrawn=self.ended_revisions,
            extra=extra,
            commits=list(self.commits),
        )
        return _encode(snapshot)

    @classmethod
    def decode(cls, data: bytes) -> Ledger:
        """Raises msgspec.DecodeError on junk."""
        snapshot = _decode(data)
        if snapshot.version != 1:
            raise msgspec.ValidationError(f"a ledger snapshot of version {snapshot.version}")
        ledger = cls()
        ledger.seq = snapshot.seq
        ledger.ended_revisions = dict(snapshot.withdrawn)
        ledger.commits = OrderedDict.fromkeys(snapshot.commits)
        for decision in snapshot.standing:
            ledger.standing[decision.group] = decision
            for claim in decision.claims:
                ledger._hold(claim, decision.group)
        for extra in snapshot.extra:
            ledger._hold(extra.claim, extra.group)
            ledger.claims[extra.claim.id] = ActiveClaim(extra.claim, extra.group, True)
        return ledger
