"""The state that the decision log folds to: standing decisions, withdrawn revisions and active claims. The fold is pure, so
every follower of the log gets the same ledger."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from moorage.collections import LruDict
from moorage.model.base import Model
from moorage.model.claims import Claim, Commit, Decision

from .entries import FoldEffects, fold_order, handler_of

#: The ids of this many commits are kept: a committer whose append was not acknowledged looks for its commit's id.
REMEMBERED = 4096


class ActiveClaim(NamedTuple):
    """A claim that uses capacity. One that is withdrawn does so until its release."""

    claim: Claim
    group: str
    withdrawn: bool


class Changes(NamedTuple):
    """The changes that one commit made to the ledger."""

    seq: int
    groups: frozenset[str] = frozenset()  # groups whose standing decision or ended revision changed
    claims: frozenset[str] = frozenset()  # claims that were added, released, or have other slots now
    released: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()  # claims that are active only until their release now
    refused: tuple[str, ...] = ()  # decisions whose revision was withdrawn or overtaken; they changed nothing


class _WithdrawnClaim(Model, kw_only=True):
    group: str
    claim: Claim


class _Snapshot(Model, kw_only=True):
    """`withdrawn` are the ended revisions by group, `extra` the claims that are withdrawn and not released."""

    version: int = 1
    seq: int
    standing: list[Decision] = []
    withdrawn: dict[str, int] = {}
    extra: list[_WithdrawnClaim] = []
    commits: list[str] = []


_decode = msgspec.msgpack.Decoder(_Snapshot).decode
_encode = msgspec.msgpack.Encoder().encode


class Ledger:
    """The folded decision log. `standing` has the current decision of each group that has one, `ended_revisions` the newest
    withdrawn revision of each group."""

    def __init__(self) -> None:
        self.seq = 0
        self.standing: dict[str, Decision] = {}
        self.ended_revisions: dict[str, int] = {}
        self.claims: dict[str, ActiveClaim] = {}
        self.by_cluster: dict[str, set[str]] = {}
        self.by_group: dict[str, set[str]] = {}
        self.commits = LruDict[str, None](REMEMBERED)

    def accepts(self, decision: Decision) -> bool:
        """Returns whether the decision would take effect: its revision is neither withdrawn nor older than the standing
        one."""
        if decision.revision <= self.ended_revisions.get(decision.group, 0):
            return False
        standing = self.standing.get(decision.group)
        return standing is None or standing.revision <= decision.revision

    def fold(self, seq: int, commit: Commit) -> Changes:
        """Applies the next commit. Raises ValueError if `seq` does not follow the last one."""
        if seq != self.seq + 1:
            raise ValueError(f"commit {seq} does not follow {self.seq}")
        self.seq = seq
        self.commits[commit.id] = None
        effects = FoldEffects()
        for entry in sorted(commit.entries, key=fold_order):
            handler_of(entry).fold(entry, self, effects)
        return Changes(
            seq,
            frozenset(effects.groups),
            frozenset(effects.claims | effects.released),
            frozenset(effects.released),
            frozenset(effects.withdrawn),
            tuple(effects.refused),
        )

    def withdraw_claims(self, group: str, kept: AbstractSet[str] = frozenset()) -> set[str]:
        """Marks the group's claims as withdrawn, except those to be kept. Returns those that were not withdrawn before."""
        withdrawn: set[str] = set()
        for ident in self.by_group.get(group, ()):
            active = self.claims[ident]
            if ident not in kept and not active.withdrawn:
                self.claims[ident] = active._replace(withdrawn=True)
                withdrawn.add(ident)
        return withdrawn

    def put_claim(self, claim: Claim, group: str) -> None:
        """Counts a claim of a standing decision. It replaces a claim of the same id."""
        before = self.claims.get(claim.id)
        if before is not None and (before.group != group or before.claim.cluster != claim.cluster):
            self.remove_claim(claim.id)
        self.claims[claim.id] = ActiveClaim(claim, group, False)
        self.by_group.setdefault(group, set()).add(claim.id)
        self.by_cluster.setdefault(claim.cluster, set()).add(claim.id)

    def remove_claim(self, ident: str) -> None:
        """Stops counting a claim."""
        active = self.claims.pop(ident)
        for index, key in ((self.by_group, active.group), (self.by_cluster, active.claim.cluster)):
            idents = index[key]
            idents.discard(ident)
            if not idents:
                del index[key]

    def has_active_claims(self, group: str) -> bool:
        return group in self.by_group

    def is_terminating(self, group: str, revision: int) -> bool:
        """Returns whether a group that was terminated at this revision has active claims or may still get a decision."""
        return self.has_active_claims(group) or self.ended_revisions.get(group, 0) < revision

    def encode(self) -> bytes:
        """Returns the ledger as a snapshot."""
        withdrawn = [_WithdrawnClaim(group=a.group, claim=a.claim) for a in self.claims.values() if a.withdrawn]
        snapshot = _Snapshot(
            seq=self.seq,
            standing=list(self.standing.values()),
            withdrawn=self.ended_revisions,
            extra=withdrawn,
            commits=list(self.commits),
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
        ledger.commits.update(dict.fromkeys(snapshot.commits))
        for decision in snapshot.standing:
            ledger.standing[decision.group] = decision
            for claim in decision.claims:
                ledger.put_claim(claim, decision.group)
        for withdrawn in snapshot.extra:
            ledger.put_claim(withdrawn.claim, withdrawn.group)
            ledger.claims[withdrawn.claim.id] = ActiveClaim(withdrawn.claim, withdrawn.group, True)
        return ledger
