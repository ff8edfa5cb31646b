"""A cluster of which one group is updated in place, and the checks of what is proposed for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from moorage.bus import Reply
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet import normalize_node
from moorage.ledger import Capacity, Ledger, existing_placement
from moorage.merger.core.propose import NameOrder, ProposalRefused, propose
from moorage.merger.core.responses import Replies, gather
from moorage.model.candidates import Ask
from moorage.model.claims import Commit, Decision, Entry, Release
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import Slot
from moorage_testkit.brute_force import shape as shaped
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.merger_harness import revision

WEB, DB, DAEMON = "Deployment/web", "StatefulSet/db", "DaemonSet/agent"


def web(count: int = 1, cpu: int = 1, template: str = "t", **more: Any) -> Shape:
    """An object whose pods ask for so many cores."""
    resources = {"cpu": 1000 * cpu, **more.pop("resources", {})}
    return shaped(more.pop("object_", WEB), count=count, resources=resources, template=f"{template}{cpu}", **more)


class Site:
    """A merger's and hpa's view of some clusters, and the pods there."""

    def __init__(self, clusters: Mapping[str, Sequence[NodeReport]]) -> None:
        named = {
            c: [msgspec.structs.replace(n, name=f"n-{i}") for i, n in enumerate(nodes)] for c, nodes in clusters.items()
        }
        self.nodes = {c: {n.name: n for n in nodes} for c, nodes in named.items()}
        self.writer = writer_of(named)
        self.fleet, self.ledger = self.writer.fleet, Ledger()
        self.capacity = Capacity(self.fleet, self.ledger)
        self.hpa = HardwareAnswers(self.fleet)
        self.strangers: Counter[tuple[str, str]] = Counter()  # cluster, node → milli cores
        self.pods: Counter[tuple[str, str]] = Counter()  # claim, node → pods
        self.number = 0

    def propose(self, record: Revision) -> Decision | ProposalRefused:
        own = existing_placement(record, self.fleet, self.ledger)
        ask = Ask(
            group=record.group,
            revision=record.revision,
            budget_ms=500,
            epoch=str(self.fleet.epoch),
            tenant="t",
            apps=record.apps,
            own=own.own,
            explain=True,
        )
        answer = self.hpa.answer(msgspec.json.decode(msgspec.json.encode(ask), type=Ask))
        replies = {"hpa": Reply("answered", msgspec.json.encode(answer), 1.0)}
        names = [app.name for app in record.apps]
        results = gather(Replies(names, [Controller(name="hpa")], replies, {}), self.fleet)
        self.reasons = [reason for app in answer.apps.values() for reason in app.reasons]
        self.number += 1
        return propose(record, results, self.fleet, self.ledger, NameOrder(), f"d{self.number}")

    def commit(self, *entries: Entry) -> None:
        commit = Commit(id=f"c{self.ledger.seq}", entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def decide(self, number: int, *shapes: Shape, name: str = "g") -> Decision:
        found = self.propose(revision(name, ShapedApp(name="a", shapes=list(shapes)), number=number))
        assert isinstance(found, Decision), found.reasons
        self.capacity.hold(found)
        assert self.capacity.fits(found.id)
        self.commit(found)
        return found

    def refused(self, number: int, *shapes: Shape, name: str = "g") -> ProposalRefused:
        found = self.propose(revision(name, ShapedApp(name="a", shapes=list(shapes)), number=number))
        assert isinstance(found, ProposalRefused)
        return found

    def run(self, decision: Decision) -> None:
        """Starts every pod on its slot's node; those of older claims end."""
        for claim in decision.claims:
            for active in self.ledger.family_of(self.ledger.claims[claim.id].family):
                for key in [key for key in self.pods if key[0] == active.id]:
                    del self.pods[key]
            for slot in claim.slots:
                if not slot.surge:
                    self.pods[claim.id, slot.node] += slot.count
        self.report()

    def used(self, cluster: str, where: str, name: str = "cpu") -> int:
        total = self.strangers[cluster, where] if name == "cpu" else 0
        for (ident, on), count in self.pods.items():
            claim = self.ledger.claims[ident].claim
            if on == where and claim.cluster == cluster:
                total += count * claim.slots[0].resources.get(name, 0)
        return total

    def has_room(self, slot: Slot) -> bool:
        node = self.nodes["lab/one"][slot.node]
        there = {"cpu": int(node.allocatable["cpu"]) * 1000, "memory": int(node.allocatable["memory"])}
        return all(self.used("lab/one", slot.node, r) + slot.resources[r] <= amount for r, amount in there.items())

    def report(self) -> None:
        for cluster, nodes in self.nodes.items():
            rows = [
                normalize_node(
                    msgspec.structs.replace(
                        n,
                        requested={
                            "cpu": f"{self.used(cluster, n.name)}m",
                            "memory": str(self.used(cluster, n.name, "memory")),
                        },
                    )
                )[0]
                for n in nodes.values()
            ]
            claims: dict[str, dict[str, int]] = {}
            for (ident, on), count in self.pods.items():
                if count and self.ledger.claims[ident].claim.cluster == cluster:
                    claims.setdefault(ident, {})[on] = count
            known = {i: claims.get(i, {}) for i in self.ledger.by_cluster.get(cluster, ())}
            cid = self.fleet.ids[cluster]
            self.writer.put(cid, cluster, rows, whole=True, claims={i: nodes for i, nodes in known.items() if nodes})

    def release(self) -> None:
        """Releases the withdrawn claims that have no pods."""
        gone = [i for i, a in self.ledger.claims.items() if a.withdrawn and not any(k[0] == i for k in self.pods)]
        if gone:
            self.commit(Release(claims=gone))

    def free(self, where: str = "n-0", cluster: str = "lab/one") -> int:
        column, row = self.fleet.free("cpu"), self.fleet.row_of(self.fleet.ids[cluster], where)
        assert column is not None and row is not None
        return int(column[row]) // 1000


def one_node(cpu: int = 8) -> Site:
    return Site({"lab/one": [node(cpu=str(cpu))]})


def on(decision: Decision, obj: str = WEB) -> dict[str, int]:
    (claim,) = (c for c in decision.claims if c.object == obj)
    found: Counter[str] = Counter()
    for slot in claim.slots:
        if not slot.surge:
            found[slot.node] += slot.count
    return dict(found)
