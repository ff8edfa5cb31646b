"""Tests which objects of a cluster settling reads: it leaves those at rest as they are."""

from __future__ import annotations

import msgspec

from moorage.fleet import FleetWriter, normalize_node
from moorage.ledger import Capacity, Family, Ledger
from moorage.merger.core.settle import groups_to_settle, settle
from moorage.merger.core.settlement_draft import Draft, Surroundings
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal
from moorage.model.slots import Slot
from moorage_testkit.fleets import node, writer_of

LAB = "lab/one"


class Site:
    """Groups with one object each, of which one pod runs where its slot is."""

    def __init__(self, *groups: str, kind: str = "Deployment") -> None:
        nodes = [node(cpu="64", requested={"cpu": str(len(groups))}), node(cpu="64")]
        self.writer: FleetWriter = writer_of({LAB: nodes})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.kind = kind
        for group in groups:
            self.fold(self.decision(group))
            self.run(group, "n-0")

    def decision(self, group: str, template: str = "t", *, surge: bool = False) -> Decision:
        slots = [Slot(node="n-0", resources={"cpu": 1000})]
        slots += [Slot(node="n-1", resources={"cpu": 1000}, surge=True)] if surge else []
        claim = Claim(
            id=f"{group}-{template}",
            decision=f"{group}-{template}",
            intent=IntentRef(kind="Application", name=group, revision=1),
            tenant="t",
            app="a",
            object=f"{self.kind}/web",
            cluster=LAB,
            slots=slots,
        )
        return Decision(id=claim.decision, group=group, revision=1, claims=[claim])

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def run(self, group: str, *nodes: str, template: str = "t", ending: int = 0) -> None:
        claim = f"{group}-{template}"
        self.writer.put(
            0,
            LAB,
            claims={claim: {name: nodes.count(name) for name in nodes}},
            ending={claim: {nodes[0]: ending}} if ending else {},
        )

    def moving(self) -> list[str]:
        return sorted(family.group for family in self.capacity.in_motion(LAB))

    def draft(self, *, whole: bool = True) -> Draft:
        around = Surroundings(objects=self.capacity.to_settle(LAB, whole=whole))
        return Draft(0, self.ledger, self.writer.fleet, around)


def test_a_settlement_reads_the_object_whose_pod_moved_and_no_others() -> None:
    site = Site(*(f"g{number}" for number in range(50)))
    assert site.moving() == [] and site.draft().active == {}
    site.run("g7", "n-1")
    assert site.capacity.in_motion(LAB) == {Family("g7", "a", "Deployment/web", LAB)}
    draft = site.draft()
    assert draft.active.keys() == {"g7-t"} and draft.has_strays
    site.fold(site.decision("g8", "u"))
    assert site.moving() == ["g7", "g8"] and site.draft().active.keys() == {"g7-t", "g8-t", "g8-u"}
    draft = site.draft(whole=False)
    assert draft.active.keys() == {"g7-t"}, "where no node lacks room only what strays is settled"
    assert groups_to_settle(draft) == set()
    entry = settle(draft).entry
    assert entry is not None
    assert {ident: [slot.node for slot in slots] for ident, slots in entry.slots.items()} == {"g7-t": ["n-1"]}
    assert entry == settle(Draft(0, site.ledger, site.writer.fleet)).entry
    site.fold(entry)
    assert site.moving() == ["g8"]


def test_where_a_node_lacks_room_all_objects_in_motion_are_read() -> None:
    site = Site("one", "two")
    site.run("one", "n-1")
    site.fold(site.decision("two", "u"))
    assert site.draft(whole=False).active.keys() == {"one-t"}
    rows = [normalize_node(node("n-0", cpu="64", requested={"cpu": "64"}))[0]]
    site.writer.put(0, LAB, rows)
    assert site.draft(whole=False).active.keys() == {"one-t", "two-t", "two-u"}
    assert groups_to_settle(site.draft(whole=False)) == {"one"}, "the pod of the other covers its place"


def test_objects_are_in_motion_while_they_are_updated_or_removed_or_pods_end() -> None:
    site = Site("one", "two")
    site.run("one", "n-0", ending=1)
    assert site.moving() == ["one"]
    site.run("one", "n-0")
    assert site.moving() == []
    site.fold(site.decision("one", "u", surge=True))
    site.run("one", "n-0", template="u")
    site.writer.put(0, LAB, claims={"one-t": {}})
    assert site.moving() == ["one"]
    site.fold(Release(claims=["one-t"]))
    assert site.moving() == []
    site.fold(Withdrawal(group="two", revision=1))
    assert site.moving() == ["two"]
    site.fold(Release(claims=["two-t"]))
    assert site.moving() == [] and site.draft().active == {}


def test_all_claims_of_a_group_with_an_object_in_motion_are_read() -> None:
    site = Site("one", "two")
    decided = site.decision("two")
    other = msgspec.structs.replace(decided.claims[0], id="two-db", object="StatefulSet/db")
    site.fold(msgspec.structs.replace(decided, id="both", claims=[*decided.claims, other]))
    assert site.draft().active.keys() == {"two-t", "two-db"}, "its decision may end"


def test_daemon_sets_are_always_in_motion_and_a_reload_finds_the_same_objects() -> None:
    site = Site("one", kind="DaemonSet")
    site.kind = "Deployment"
    site.fold(site.decision("two"), site.decision("three"))
    site.run("two", "n-0")
    assert site.moving() == ["one", "three"]
    again = Capacity(site.writer.fleet, Ledger())
    again.reload(site.ledger)
    assert again.in_motion(LAB) == site.capacity.in_motion(LAB)
