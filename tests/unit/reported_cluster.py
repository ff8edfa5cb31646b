"""A cluster as inventory and ledger know it: what its agents report, and claims that are decided, withdrawn and released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

from moorage.fleet import FleetWriter
from moorage.inventory.core.fleet_state import FleetState
from moorage.ledger import Capacity, Ledger
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal
from moorage.model.reports import Report
from moorage.model.slots import Slot

LAB = "lab/one"


class ClaimedPod(Protocol):
    claim: str
    node: str


class ReportedCluster:
    """A test says which pods run and what is reported of them, and calls `begin` once it can report."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.core = FleetState(FleetWriter(), 1)
        list(self.core.begin({}, 0.0))
        self.core.register(LAB, self.core.new_record(LAB, {}), 0.0)
        self.fleet, self.ledger = self.core.writer.fleet, Ledger()
        self.seqs: Counter[str] = Counter()
        self.leaving: set[str] = set()  # withdrawn claims

    # -- of the test --------------------------------------------------------------------------------------------------

    def claimed_pods(self) -> Mapping[str, ClaimedPod]:
        raise NotImplementedError

    def remove_pod(self, uid: str) -> None:
        raise NotImplementedError

    def report_cluster(self) -> None:
        raise NotImplementedError

    def report_node(self, name: str) -> None:
        raise NotImplementedError

    # -- reports ------------------------------------------------------------------------------------------------------

    def begin(self, nodes: Sequence[str]) -> None:
        self.report_cluster()
        for name in nodes:
            self.report_node(name)
        self.capacity = Capacity(self.fleet, self.ledger)

    def report_head(self, source: str) -> dict[str, Any]:
        """Returns the fields of the source's next report that say which one it is."""
        seq = self.seqs[source]
        self.seqs[source] += 1
        return {"session": source, "seq": seq, "kind": "delta" if seq else "full"}

    def report(self, source: str, report: Report) -> None:
        outcome = self.core.report(LAB, source, report, 0.0)
        assert not (outcome.reply.resync or outcome.reply.refused or outcome.problems), outcome

    def pods_gone(self) -> list[str]:
        """Returns the reported pods that do not run any more."""
        return sorted(set(self.core.clusters[LAB].pods) - self.claimed_pods().keys())

    # -- the ledger ---------------------------------------------------------------------------------------------------

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def claim(self, ident: str, slots: list[Slot]) -> None:
        """Decides a group of one StatefulSet, all of this name."""
        intent = IntentRef(kind="Application", name=ident, revision=1)
        claim = Claim(
            id=ident,
            decision=ident,
            intent=intent,
            tenant="t",
            slots=slots,
            app="a",
            object=f"StatefulSet/{ident}",
            cluster=LAB,
        )
        self.fold(Decision(id=ident, group=ident, revision=1, claims=[claim]))

    def withdraw(self) -> None:
        standing = sorted(self.ledger.claims.keys() - self.leaving)
        if standing:
            ident = self.rng.choice(standing)
            self.leaving.add(ident)
            self.fold(Withdrawal(group=ident, revision=1))

    def release(self) -> None:
        """Ends the pods of a withdrawn claim, and releases it once a later report shows none."""
        for ident in sorted(self.leaving)[:1]:
            gone = {uid: pod.node for uid, pod in self.claimed_pods().items() if pod.claim == ident}
            for uid in gone:
                self.remove_pod(uid)
            self.report_cluster()
            for name in sorted(set(gone.values())):
                self.report_node(name)
            self.leaving.discard(ident)
            self.fold(Release(claims=[ident]))
