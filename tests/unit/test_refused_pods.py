"""Nodes that refuse pods: slots leave them, pods are kept away, and later decisions say why they are not used."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from moorage.fleet import FleetWriter, normalize_node
from moorage.fleet.delta import decode
from moorage.ledger import Capacity, Ledger, displaced_reason
from moorage.merger.core.propose import NameOrder, ProposalRefused, propose
from moorage.merger.core.responses import Replies, gather
from moorage.merger.core.settle import Settled, is_unsettled, settle
from moorage.merger.core.settlement_draft import Draft, Progress, Surroundings
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Settlement, Slot, claim_id
from moorage.model.shapes import ShapedApp
from moorage_testkit.fleets import node, writer_of
from moorage_testkit.merger_harness import group, revision, shape

LAB = "lab/one"
WORDS = "TopologyAffinityError: Resources cannot be allocated with Topology locality"
ONE = claim_id(group("g"), "a", "Deployment/x", LAB, "t")


class Site:
    """One cluster whose nodes have eight cores, and a group of two pods with a decision."""

    def __init__(self, *slots: str, nodes: int = 3, pods: int = 2, cores: int = 2, required: bool = False) -> None:
        self.writer: FleetWriter = writer_of({LAB: [node(cpu="8") for _ in range(nodes)]})
        self.ledger = Ledger()
        self.record = revision("g", ShapedApp(name="a", shapes=[shape(cores * 1000, pods)]))
        self.slots = [Slot(node=name, resources={"cpu": cores * 1000, "pods": 1}) for name in slots]
        claim = Claim(
            id=ONE,
            decision="d1",
            intent=IntentRef(kind="Application", name=group("g"), revision=1),
            tenant="default",
            slots=self.slots,
            app="a",
            object="Deployment/x",
            cluster=LAB,
            required_nodes=dict.fromkeys(slots, "") if required else {},
        )
        if slots:
            self.fold(Decision(id="d1", group=group("g"), revision=1, claims=[claim]))

    def fold(self, *entries: Entry) -> None:
        seq = self.ledger.seq + 1
        self.ledger.fold(seq, Commit(id=f"c{seq}", entries=list(entries)))

    def report(self, refused: list[str], pods: Mapping[str, int] = {}, requested: Mapping[str, int] = {}) -> None:
        rows = [
            normalize_node(node(name, cpu="8", requested={"cpu": str(cores)}))[0] for name, cores in requested.items()
        ]
        claims = {ONE: dict(pods)}
        self.writer.put(0, LAB, rows, claims=claims, refused={ONE: refused}, words={ONE: WORDS})

    @property
    def around(self) -> Surroundings:
        return Surroundings({group("g"): self.record}, progress=lambda _group: Progress(False, False, False))

    @property
    def is_unsettled(self) -> bool:
        return is_unsettled(Draft(0, self.ledger, self.writer.fleet, self.around))

    def settle(self) -> Settled:
        """Settles the cluster, and expects nothing to be left to settle."""
        found = settle(Draft(0, self.ledger, self.writer.fleet, self.around))
        if found.entry is not None:
            self.fold(found.entry)
            assert settle(Draft(0, self.ledger, self.writer.fleet, self.around)).entry is None
        return found

    @property
    def claim(self) -> Claim:
        return self.ledger.claims[ONE].claim

    @property
    def nodes(self) -> list[str]:
        return sorted(slot.node for slot in self.claim.slots for _ in range(slot.count))


def test_open_slots_leave_and_pods_are_confined_to_where_they_go() -> None:
    site = Site("n-0", "n-0")
    assert not site.is_unsettled
    site.report(["n-0"])
    assert site.is_unsettled
    assert Capacity(site.writer.fleet, site.ledger).may_be_unsettled(LAB)
    site.settle()
    assert "n-0" not in site.nodes
    assert site.claim.required_nodes == dict.fromkeys(site.nodes, "")
    assert site.claim.refused_by == {"n-0": WORDS}
    assert site.ledger.standing[group("g")].claims == [site.claim]
    assert group("g") in site.ledger.steered
    assert not site.is_unsettled


def test_pods_that_are_bound_where_no_slot_is_are_kept_away_too() -> None:
    """The scheduler chose another node than the claim's, and that one refuses the pods."""
    site = Site("n-1", "n-2")
    site.report(["n-0"])
    assert site.is_unsettled
    site.settle()
    assert site.nodes == ["n-1", "n-2"]
    assert site.claim.required_nodes == {"n-1": "", "n-2": ""}
    assert not site.is_unsettled


def test_pods_that_are_about_to_be_refused_are_not_followed() -> None:
    site = Site("n-0", "n-0")
    site.report(["n-0"])
    site.settle()
    before = site.nodes
    site.report(["n-0"], {"n-0": 1}, {"n-0": 2})
    site.settle()
    assert site.nodes == before
    site.report(["n-0"], {"n-1": 1}, {"n-1": 2})
    site.settle()
    assert site.nodes.count("n-1") >= 1


def test_who_waits_is_tested_against_nodes_that_refuse_pods_no_more() -> None:
    site = Site("n-0", "n-0")
    fleet = site.writer.fleet
    site.report(["n-0", "n-1"])
    tick = fleet.tick
    site.report(["n-1"])
    improved = fleet.improved_since(tick)
    assert improved is not None
    assert improved.tolist() == [fleet.row_of(0, "n-0")]


def test_what_runs_on_the_node_stays() -> None:
    site = Site("n-0", "n-0")
    site.report(["n-0"], {"n-0": 1}, {"n-0": 2})
    site.settle()
    assert site.nodes[0] == "n-0"
    assert site.nodes[1] != "n-0"
    assert site.claim.required_nodes == dict.fromkeys(site.nodes, "")


def test_pods_that_are_confined_elsewhere_stay_as_they_are() -> None:
    site = Site("n-1", required=True, pods=1)
    site.report(["n-0"])
    assert site.settle().entry is None


def test_where_no_other_node_fits_the_group_is_displaced_with_the_words_of_the_kubelet() -> None:
    site = Site("n-0", nodes=1, pods=1)
    site.report(["n-0"])
    found = site.settle()
    assert isinstance(found.entry, Settlement)
    assert found.entry.ended == ["d1"]
    assert found.entry.confined == {}
    (lack,) = found.displaced.values()
    reason = displaced_reason(LAB, lack)
    assert (reason.code, reason.cluster) == ("NodeRefused", LAB)
    assert WORDS in reason.message


def test_a_later_decision_does_not_choose_the_node_while_it_has_not_changed() -> None:
    site = Site(nodes=1, pods=1)
    order = NameOrder()

    def decide() -> Decision | ProposalRefused:
        fleet = site.writer.fleet
        return propose(site.record, gather(Replies(["a"], [], {}, {}), fleet), fleet, site.ledger, order, "d")

    assert isinstance(decide(), Decision)
    site.report(["n-0"])
    refused = decide()
    assert isinstance(refused, ProposalRefused)
    reason = next(reason for reason in refused.reasons if reason.code == "NodeRefused")
    assert reason.samples == [LAB]
    assert WORDS in reason.message
    site.report([])
    assert isinstance(decide(), Decision)


def test_refusals_reach_followers_with_their_words() -> None:
    site = Site("n-0")
    site.report(["n-0"])
    (part,) = decode(site.writer.flush(1, 1).patch).clusters
    assert (part.refused, part.words) == ({ONE: ["n-0"]}, {ONE: WORDS})


def test_settlements_of_before_confine_nobody() -> None:
    old = msgspec.json.decode(b'{"kind":"settlement","cluster":"lab/one","epoch":"1.1"}', type=Settlement)
    assert old.confined == {}
