"""Tests how reports change the inventory, without a clock: sessions, gaps, parts, silence, numbers."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import FleetWriter
from moorage.inventory.core.cluster_ids import ClusterIds, ClusterRecord, changed_record, clusters_with_taken_ids
from moorage.inventory.core.fleet_state import FleetEvent, FleetState, ReportOutcome, period_for
from moorage.inventory.core.node_overlays import MAX_BUFFERED_BYTES, MAX_UNNAMED
from moorage.inventory.core.report_sessions import MAX_BYTES, ReportSession, Verdict, merge_parts
from moorage.inventory.events import shortened, with_ids
from moorage.model.part_reports import DeviceReport, ZoneReport
from moorage.model.reports import CpuManager, NodeReport, PodReport, Report
from moorage.model.shapes import EXCLUSIVE
from moorage_testkit.fleets import node, two_zones

A = "lab/edge-1"


class Site:
    """One inventory and what agents say to it."""

    def __init__(self) -> None:
        self.core = FleetState(FleetWriter(), 1)
        list(self.core.begin({}, 0.0))
        self.fleet = self.core.writer.fleet

    def say(
        self, now: float, seq: int, session: str = "s1", cluster: str = A, source: str = "agent", **more: Any
    ) -> ReportOutcome:
        if cluster not in self.core.clusters:
            self.core.register(cluster, self.core.new_record(cluster, more.get("labels") or {}), now)
        more.setdefault("as_of", now)
        return self.core.report(cluster, source, Report(session=session, seq=seq, **more), now)

    def full(self, now: float, seq: int, *nodes: NodeReport, **more: Any) -> ReportOutcome:
        return self.say(now, seq, kind="full", nodes=list(nodes), **more)

    def free(self, name: str, resource: str = "cpu", cluster: str = A) -> int:
        at = self.fleet.row_of(self.fleet.ids[cluster], name)
        column = self.fleet.free(resource)
        assert at is not None
        assert column is not None
        return int(column[at])


def test_full_then_deltas_then_a_gap() -> None:
    site = Site()
    assert site.say(0, 5).reply.resync  # a session nobody knows
    joined_ = site.full(0, 6, node("a", cpu="4"), node("b", cpu="2"))
    assert [said.change for said in joined_.events] == ["joined"]
    assert not joined_.reply.resync
    changed = site.say(1, 7, nodes=[node("a", cpu="8")], nodes_gone=["b"])
    assert [said.change for said in changed.events] == ["changed"]
    assert site.free("a") == 8000
    assert site.fleet.row_of(0, "b") is None
    gap = site.say(2, 9, nodes=[node("a", cpu="1")])
    assert gap.reply.resync
    assert site.free("a") == 8000
    again = site.full(3, 10, node("a", cpu="1"))
    assert not again.reply.resync
    assert site.free("a") == 1000


def test_a_heartbeat_changes_nothing_but_how_new_the_rows_are() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    site.core.writer.flush(1, 1)
    tick = site.fleet.tick
    beat = site.say(2, 1)
    assert beat.events == []
    assert not site.core.writer.pending
    assert site.core.writer.has_refreshed
    assert site.fleet.as_of(0) == 2
    assert site.fleet.changed_since(tick).tolist() == []  # type: ignore[union-attr]


def test_the_same_report_again_is_no_news() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    site.say(1, 1, nodes=[node("a", cpu="8")])
    for seq in (0, 1):
        old = site.say(2, seq, kind="full", nodes=[node("a", cpu="1")])
        assert (old.reply.resync, old.reply.refused, old.events) == (False, "", [])
    assert site.free("a") == 8000


def test_a_second_session_is_refused_while_the_first_is_alive() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    assert site.full(2, 0, node("b", cpu="1"), session="s2").reply.refused
    assert site.full(2, 0, node("b", cpu="1"), source="other", session="s1").reply.refused
    assert site.fleet.nodes_of(0) == ["a"]
    taken = site.full(5.1, 0, node("b", cpu="1"), session="s2")
    assert not taken.reply.refused
    assert site.fleet.nodes_of(0) == ["b"]
    assert site.say(5.2, 1).reply.refused  # the first one does not come back
    assert site.full(60, 9, node("a", cpu="4")).reply.refused
    assert site.fleet.nodes_of(0) == ["b"]


def test_a_session_that_says_whom_it_succeeds_takes_over_at_once() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    assert site.full(0.1, 0, node("b", cpu="4"), session="s2", succeeds="s0").reply.refused
    assert not site.full(0.1, 0, node("b", cpu="4"), session="s3", succeeds="s1").reply.refused
    assert site.fleet.nodes_of(0) == ["b"]


def test_who_succeeds_a_process_takes_over_from_any_session_of_it() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"), session="s1.again2")
    assert site.full(0.1, 0, node("b", cpu="4"), session="s2", succeeds="s1.again").reply.refused
    assert site.full(0.1, 0, node("b", cpu="4"), session="s2", succeeds="s").reply.refused
    assert not site.full(0.1, 0, node("b", cpu="4"), session="s2", succeeds="s1").reply.refused


def test_three_missed_periods_make_a_cluster_stale_and_a_report_brings_it_back() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    assert site.core.tick(6.0) == []
    assert [said.change for said in site.core.tick(6.1)] == ["stale"]
    assert site.core.tick(6.2) == []
    assert site.fleet.state(0) == "Stale"
    assert not site.fleet.usable.any()
    assert [said.change for said in site.say(7, 1).events] == ["ready"]
    assert site.fleet.usable.sum() == 1


def test_old_reports_do_not_keep_a_cluster_alive() -> None:
    site = Site()
    site.full(0, 3, node("a", cpu="4"))
    for now in range(1, 8):
        site.say(now, 2)
        site.say(now, 9)  # a gap is no sign of life either: what it says is not in the rows
    assert [said.change for said in site.core.tick(8)] == ["stale"]


def test_one_malformed_node_is_unusable_and_named_the_rest_counts() -> None:
    site = Site()
    bad = node("bad", cpu="four")
    outcome = site.full(0, 0, node("good", cpu="4"), bad, node("", cpu="1"), NodeReport(name="x\0y"))
    assert len(outcome.problems) == 3
    assert "four" in outcome.problems[0]
    assert sorted(site.fleet.nodes_of(0)) == ["bad", "good"]
    assert site.free("good") == 4000
    assert site.fleet.usable.sum() == 1
    assert site.say(1, 1, nodes=[bad]).problems == []  # no news
    assert site.say(2, 2, nodes=[node("bad", cpu="-1")]).problems
    assert site.say(3, 3, nodes=[node("bad", cpu="2")]).problems == []
    assert site.free("bad") == 2000
    assert site.fleet.usable.sum() == 2


def test_a_cluster_that_leaves_is_gone_and_its_old_words_do_not_bring_it_back() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    left = site.say(1, 1, kind="full", leaving=True)
    assert left.gone
    assert left.events == []  # not before the record says so
    record = changed_record(site.core.clusters[A].record, "g", "r", gone=True)
    assert site.core.edit(A, record) == [FleetEvent("gone", A, {}, "r", "g")]
    assert not site.fleet.known.any()
    assert site.full(2, 0, node("a", cpu="4")).reply.refused
    assert not site.fleet.known.any()
    assert site.core.edit(A, changed_record(record, "j", "r2", gone=False)) == []  # with its first report
    assert [(s.change, s.id) for s in site.full(3, 0, node("a", cpu="4"), session="s2").events] == [("joined", "j")]
    assert site.fleet.ids == {A: 0}


def test_live_pods_of_claims_are_counted_where_they_are() -> None:
    site = Site()

    def pod(uid: str, claim: str, on: str, phase: str = "Running", *, deleting: bool = False) -> PodReport:
        return PodReport(uid=uid, namespace="d", name=uid, node=on, claim=claim, phase=phase, deleting=deleting)

    site.full(
        0, 0, node("a", cpu="4"), pods=[pod("1", "c", "a"), pod("2", "c", "b"), pod("3", "c", ""), pod("4", "", "a")]
    )
    assert site.fleet.pods.live("c", 0) == {"a": 1, "b": 1}
    assert site.fleet.pods.present("c", 0) == 3
    site.say(1, 1, pods=[pod("3", "c", "a"), pod("2", "c", "b", "Succeeded")])
    assert site.fleet.pods.live("c", 0) == {"a": 2}
    site.say(2, 2, pods=[pod("3", "c", "a", deleting=True)])
    assert (site.fleet.pods.live("c", 0), site.fleet.pods.ending("c", 0)) == ({"a": 2}, {"a": 1})
    site.say(3, 3, pods_gone=["1", "3", "nobody"])
    assert site.fleet.pods.ending("c", 0) == {}
    assert site.fleet.pods.present("c") == 0
    site.say(4, 4, pods=[pod("5", "c", "a")])
    site.full(5, 5, node("a", cpu="4"))
    assert site.fleet.pods.live("c") == {}


def failed(uid: str, on: str, reason: str, **more: Any) -> PodReport:
    return PodReport(uid=uid, namespace="d", name=uid, node=on, claim="c", phase="Failed", reason=reason, **more)


def test_pods_that_use_of_parts_includes_are_counted_where_they_are() -> None:
    site = Site()

    def pod(uid: str, on: str = "a") -> PodReport:
        return PodReport(uid=uid, namespace="d", name=uid, node=on, claim="c", phase="Running")

    def counting(*uids: str, used: str = "0", name: str = "a") -> NodeReport:
        zones = [ZoneReport(id=0, inventories={"cpu": "4"})]
        reported = node(name, cpu="4", zones=zones, in_use={"numa-0": {"cpu": used}})
        reported.counted = list(uids)
        return reported

    def counted() -> dict[str, int]:
        return site.fleet.pods.counted("c", 0)

    site.full(0, 0, counting(), pods=[pod("1"), pod("2")])
    assert counted() == {}
    site.say(1, 1, nodes=[counting("1", "x", used="1")])
    assert counted() == {"a": 1}
    site.say(2, 2, nodes=[counting("1", "2", used="2")])
    assert counted() == {"a": 2}
    site.say(3, 3, pods_gone=["1"])
    assert counted() == {"a": 1}
    site.say(4, 4, nodes=[counting(used="2")])
    assert counted() == {} and site.fleet.pods.live("c", 0) == {"a": 1}
    site.full(5, 5, counting("2", used="1"), pods=[pod("2")])
    assert counted() == {"a": 1}
    site.say(6, 6, pods=[pod("2", on="b")])
    assert counted() == {}
    site.full(7, 7, counting(), pods=[])
    assert counted() == {}


def test_nodes_that_refused_pods_are_known_until_they_change() -> None:
    site = Site()

    def a(cpu: str, requested: str) -> NodeReport:
        return node("a", cpu=cpu, requested={"cpu": requested})

    site.full(0, 0, a("4", "1"), node("b", cpu="4"))
    site.say(1, 1, pods=[failed("1", "a", "UnexpectedAdmissionError"), failed("2", "b", "Evicted")])
    assert site.fleet.pods.refused_of(0) == {"c": ["a"]}
    site.say(2, 2, pods=[failed("3", "b", "OutOfcpu", message="no cores")], nodes=[a("4", "2")])
    site.say(3, 3, nodes=[a("4", "3")])  # it has less free than before
    assert site.fleet.pods.refused_of(0) == {"c": ["a", "b"]}
    assert site.fleet.pods.refusal_words(0) == {"c": "OutOfcpu: no cores"}
    site.say(4, 4, nodes=[a("4", "1")])
    assert site.fleet.pods.refused_of(0) == {"c": ["b"]}
    site.say(5, 5, pods=[failed("1", "a", "UnexpectedAdmissionError")])  # the same pod again
    assert site.fleet.pods.refused_of(0) == {"c": ["b"]}
    site.say(6, 6, pods_gone=["3"])  # its controller replaced it
    assert site.fleet.pods.refused_of(0) == {"c": ["b"]}
    site.full(7, 7, a("4", "1"), node("b", cpu="4"))
    assert site.fleet.pods.refused_of(0) == {"c": ["b"]}
    site.say(8, 8, nodes=[node("b", cpu="6")])
    assert not site.fleet.pods.refused_of(0)
    assert not site.fleet.pods.refusal_words(0)
    site.say(9, 9, pods=[failed("4", "b", "TopologyAffinityError"), failed("5", "a", "TopologyAffinityError")])
    assert site.fleet.pods.refused_of(0) == {"c": ["a", "b"]}
    site.say(10, 10, nodes_gone=["b"])
    assert site.fleet.pods.refused_of(0) == {"c": ["a"]}
    assert site.core.refused_pods == {"UnexpectedAdmissionError": 1, "OutOfcpu": 1, "TopologyAffinityError": 2}


def test_pods_that_are_refused_again_and_again_do_not_change_their_node() -> None:
    """Each pod is bound before it is refused, so that what is requested of the node rises and falls."""
    site = Site()

    def a(requested: int) -> NodeReport:
        return NodeReport(
            name="a", allocatable={"cpu": "16"}, requested={"cpu": str(requested)}, pod_count=requested // 5
        )

    def bound(uid: str) -> PodReport:
        return PodReport(uid=uid, namespace="d", name=uid, node="a", claim="c", requests={"cpu": "5"})

    def refused(uid: str) -> PodReport:
        return failed(uid, "a", "TopologyAffinityError", requests={"cpu": "5"})

    site.full(0, 0, a(5))
    site.say(1, 1, nodes=[a(10)], pods=[bound("0")])
    for i in range(4):
        site.say(2 + i, 2 + i, nodes=[a(10)], pods=[refused(str(i)), bound(str(i + 1))])
        assert site.fleet.pods.refused_of(0) == {"c": ["a"]}
    site.say(6, 6, nodes=[a(5)], pods=[refused("4")])
    assert site.fleet.pods.refused_of(0) == {"c": ["a"]}
    site.say(7, 7, nodes=[a(0)])  # another pod ended
    assert site.fleet.pods.refused_of(0) == {}


def test_pods_that_follow_refused_ones_cover_no_slot_until_they_run() -> None:
    """A Deployment makes the next pod at once, so that a pod is always bound to the node that refuses it."""
    site = Site()

    def pod(uid: str, phase: str = "Pending", on: str = "a") -> PodReport:
        return PodReport(uid=uid, namespace="d", name=uid, node=on, claim="c", phase=phase)

    def live() -> dict[str, int]:
        return dict(site.fleet.pods.live("c", 0))

    site.full(0, 0, node("a", cpu="8"), node("b", cpu="8"))
    site.say(1, 1, pods=[pod("old"), pod("1")])
    assert live() == {"a": 2}
    site.say(2, 2, pods=[failed("1", "a", "TopologyAffinityError"), pod("2")])
    assert live() == {"a": 1}  # the old one may be admitted already
    site.full(3, 3, node("a", cpu="8"), node("b", cpu="8"), pods=[pod("old"), pod("2"), pod("3", on="b")])
    assert live() == {"a": 1, "b": 1}
    site.say(4, 4, pods=[pod("2", "Running")])
    assert live() == {"a": 2, "b": 1}
    site.say(5, 5, pods=[pod("4")])
    assert live() == {"a": 2, "b": 1}
    site.say(6, 6, nodes=[node("a", cpu="16")])  # it changed, and may admit the next
    assert live() == {"a": 3, "b": 1}


def test_a_node_changes_when_its_zones_have_more_free() -> None:
    site = Site()

    def a(cores: str) -> NodeReport:
        in_use = {"numa-0": {"cpu": cores}}
        return node("a", resources={"cpu": "8"}, zones=two_zones("4"), in_use=in_use)

    site.full(0, 0, a("2"))
    site.say(1, 1, pods=[failed("1", "a", "TopologyAffinityError")], nodes=[a("2")])
    site.say(2, 2, nodes=[a("3")])
    assert site.fleet.pods.refused_of(0) == {"c": ["a"]}
    site.say(3, 3, nodes=[a("1")])
    assert site.fleet.pods.refused_of(0) == {}


def test_another_inventory_knows_the_refusals_of_the_one_before() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    site.say(1, 1, pods=[failed("1", "a", "TopologyAffinityError")])
    site.core = FleetState(site.core.writer, 2)
    list(site.core.begin({A: ClusterRecord(id=0, generation=1)}, 2.0))
    site.full(3, 0, node("a", cpu="4"), session="s2")
    assert site.fleet.pods.refused_of(0) == {"c": ["a"]}
    site.say(4, 1, session="s2", nodes=[node("a", cpu="5")])
    assert site.fleet.pods.refused_of(0) == {}


def test_node_agents_own_their_fields() -> None:
    site = Site()
    site.say(0, 0, "n1", source="node-late=2Ex", kind="full", nodes=[NodeReport(name="late.x", zones=[zone(1)])])
    site.full(0, 0, node("a", cpu="4"), node("b", cpu="4"))
    fields = NodeReport(name="a", zones=[zone(0)], cpu_manager=CpuManager(policy="static", exclusive_free=3))
    site.say(1, 0, "n2", source="node-a", kind="full", nodes=[fields])
    assert site.free("a", EXCLUSIVE) == 3
    assert site.free("b", EXCLUSIVE) == 0
    assert site.free("a") == 4000
    site.full(2, 1, node("a", cpu="2"), node("late.x", cpu="1"))
    assert (site.free("a"), site.free("a", EXCLUSIVE), extras(site, "a")) == (2000, 3, {"zones": [0]})
    assert extras(site, "late.x") == {"zones": [1]}


def test_node_agents_speak_for_no_other_node() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"), node("b", cpu="4"))
    lies = [NodeReport(name="b", zones=[zone(0)]), NodeReport(name="a", zones=[zone(1)])]
    told = site.say(1, 0, "n", source="node-a", kind="full", nodes=lies)
    assert told.problems == ["node b: the agent of node a cannot speak for it"]
    assert (extras(site, "a"), extras(site, "b")) == ({"zones": [1]}, {})
    assert not site.say(2, 1, "n", source="node-a", nodes=lies[:1]).problems, "told once"
    site.say(3, 2, "n", source="node-a", nodes_gone=["b"])
    assert extras(site, "a") == {"zones": [1]}


def zone(ident: int) -> ZoneReport:
    return ZoneReport(id=ident, inventories={"cpu": "2"})


def extras(site: Site, name: str) -> dict[str, Any]:
    """Returns what is reported beside a node's amounts; of zones their ids."""
    at = site.fleet.row_of(0, name)
    assert at is not None
    zones = [zone.id for zone in site.fleet.inside(at)[1].inside.zones]
    return site.fleet.extras(at) | ({"zones": zones} if zones else {})


def test_what_a_node_agent_leaves_empty_is_as_the_cluster_s_agent_has_it() -> None:
    site = Site()
    site.full(0, 0, NodeReport(name="a", zones=[zone(7)]), node("b", cpu="4"))
    fields = NodeReport(
        name="a", devices=[DeviceReport(id="d")], cpu_manager=CpuManager(policy="static", exclusive_free=3)
    )
    site.say(1, 0, "n", source="node-a", kind="full", nodes=[fields])
    assert (extras(site, "a"), site.free("a", EXCLUSIVE)) == ({"devices": [{"id": "d"}], "zones": [7]}, 3)
    site.say(2, 1, "n", source="node-a", nodes=[NodeReport(name="a", zones=[zone(0)])])
    assert (extras(site, "a"), site.free("b", EXCLUSIVE)) == ({"zones": [0]}, 1 << 40)
    site.say(3, 1, nodes=[NodeReport(name="a", zones=[zone(8)])])
    assert extras(site, "a") == {"zones": [0]}
    site.say(4, 2, "n", source="node-a", nodes=[NodeReport(name="a")])
    assert extras(site, "a") == {"zones": [0]}, "absent: as before"
    site.say(4, 3, "n", source="node-a", nodes=[NodeReport(name="a", zones=[])])
    assert extras(site, "a") == {"zones": [8]}
    site.say(5, 4, "n", source="node-a", nodes=[fields])
    site.say(6, 5, "n", source="node-a", nodes_gone=["a", "b", "a"])
    assert extras(site, "a") == {"zones": [8]}
    site.say(7, 6, "n", source="node-a", nodes=[NodeReport(name="a"), fields])
    assert (extras(site, "a")["devices"], site.fleet.nodes_of(0)) == ([{"id": "d"}], ["a", "b"])
    site.say(8, 7, "n", source="node-a", kind="full")
    assert extras(site, "a") == {"zones": [8]}
    assert len(site.core.clusters[A].overlays) == 1


def test_what_a_node_agent_said_of_a_node_goes_with_the_node() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"), node("b", cpu="4"), node("c", cpu="4"))
    overlays = site.core.clusters[A].overlays
    devices = {name: [NodeReport(name=name, devices=[DeviceReport(id=name)])] for name in "abcd"}  # d: not there yet
    for name, nodes in devices.items():
        site.say(0, 0, name, source=f"node-{name}", kind="full", nodes=nodes)
    assert len(overlays) == 4
    site.full(1, 1, node("a", cpu="4"), node("b", cpu="4"))
    assert len(overlays) == 3
    site.say(2, 2, nodes_gone=["b"])
    assert len(overlays) == 2
    # It comes back: its agent is asked to say it all again.
    site.say(3, 3, nodes=[node("b", cpu="4"), node("d", cpu="4")])
    assert (extras(site, "b"), extras(site, "d")) == ({}, {"devices": [{"id": "d"}]})
    assert site.say(3, 1, "b", source="node-b").reply.resync
    assert not site.say(3, 2, "b", source="node-b", kind="full", nodes=devices["b"]).reply.resync
    assert extras(site, "b") == {"devices": [{"id": "b"}]}
    assert not site.say(4, 3, "b", source="node-b").reply.resync


def test_invented_node_agents_are_not_kept() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"), node("b", cpu="4"))
    known = site.core.clusters[A]
    answers = [site.say(0, 0, f"n{i}", source=f"node-{i}", kind="full").reply for i in range(2000)]
    assert sum(bool(reply.refused) for reply in answers) == 2000 - MAX_UNNAMED
    assert len(known.overlays.sources) == MAX_UNNAMED
    # The agents of nodes that are there are heard all the same.
    fields = [NodeReport(name="a", devices=[DeviceReport(id="d")])]
    assert not site.say(1, 0, "n", source="node-a", kind="full", nodes=fields).reply.refused
    assert extras(site, "a") == {"devices": [{"id": "d"}]}
    assert len(known.overlays) == MAX_UNNAMED + 1
    # Those who fell silent make room, and what they said goes with them.
    for i in range(MAX_UNNAMED):
        assert not site.say(120 + i, 0, f"o{i}", source=f"node-o{i}", kind="full").reply.refused
    assert len(known.overlays) == MAX_UNNAMED + 1
    assert extras(site, "a") == {"devices": [{"id": "d"}]}


def test_unfinished_reports_are_not_kept_beyond_their_bounds() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    known, large = site.core.clusters[A], 1 << 20
    report = {"seq": 1, "kind": "full", "as_of": 1.0}
    refused = 0
    for part in range(300):
        one = Report(session="s1", part=(part, 1000), nodes=[], **report)  # type: ignore[arg-type]
        refused += bool(site.core.report(A, "agent", one, 1.0, large).reply.refused)
        assert known.owner is not None
        assert known.owner.buffered_bytes <= MAX_BYTES
    assert refused == 1
    assert not site.full(2, 2, node("b", cpu="4")).reply.refused
    assert known.owner is not None and known.owner.buffered_bytes == 0
    assert site.fleet.nodes_of(0) == ["b"]
    for source in range(3):
        for part in range(40):
            one = Report(session="n", part=(part, 1000), **report)  # type: ignore[arg-type]
            site.core.report(A, f"node-{source}", one, 1.0, large)
            site.core.report(A, f"node-{source}", one, 1.0, large)  # the same once more
            assert known.overlays.buffered_bytes <= MAX_BUFFERED_BYTES


def test_operators_labels_and_cordon_stand_over_what_agents_say() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"), labels={"region": "eu", "tier": "1"})
    record = site.core.clusters[A].record
    edited = changed_record(record, "e", "c", labels={"tier": "2"}, cordoned=True)
    said = FleetEvent("edited", A, {"labels": {"tier": "2"}, "cordoned": True}, "c", "e")
    assert site.core.edit(A, edited) == [said]
    assert site.core.edit(A, edited) == []  # the same write, seen again
    assert site.fleet.cluster_labels(0) == {"region": "eu", "tier": "2"}
    assert site.fleet.state(0) == "Cordoned"
    site.full(1, 1, node("a", cpu="4"), labels={"region": "us", "tier": "1"})
    assert site.fleet.cluster_labels(0) == {"region": "us", "tier": "2"}
    assert site.fleet.state(0) == "Cordoned"
    site.core.edit(A, changed_record(edited, "e2", "", labels={}, cordoned=False))
    assert site.fleet.cluster_labels(0) == {"region": "us", "tier": "1"}
    assert site.fleet.usable.sum() == 1


def test_another_inventory_begins_with_rows_and_numbers_of_the_last() -> None:
    site = Site()
    site.full(0, 0, node("a", cpu="4"))
    site.full(0, 0, node("z", cpu="4"), cluster="lab/lost")
    kept = site.core.clusters[A].record
    records = {A: kept, "lab/silent": ClusterRecord(id=7, block=kept.block, cordoned=True)}
    second = FleetState(FleetWriter(site.fleet), 2)
    list(second.begin(records, 100.0))
    fleet = second.writer.fleet
    assert fleet.ids == {A: 0, "lab/silent": 7}
    assert [fleet.state(0), fleet.state(7)] == ["Ready", "Stale"]
    assert second.awaits_reports()
    assert second.report(A, "agent", Report(session="s1", seq=1), 100.0).reply.resync
    full = Report(session="s1", seq=2, kind="full", nodes=[node("a", cpu="4")], as_of=5)
    tick = fleet.tick
    assert second.report(A, "agent", full, 100.0).events == []
    assert fleet.changed_since(tick).tolist() == []  # type: ignore[union-attr]
    assert second.new_record("lab/new", {}).id not in (0, 7)


def test_of_two_clusters_with_one_number_the_newer_inventory_s_keeps_it() -> None:
    records = {
        "lab/late": ClusterRecord(id=1, generation=3),
        "lab/x": ClusterRecord(id=1, generation=8),
        "lab/later": ClusterRecord(id=1, generation=5),
        "lab/y": ClusterRecord(id=2, generation=3),
        "lab/first": ClusterRecord(id=0),
    }
    assert clusters_with_taken_ids(records) == ["lab/late", "lab/later"]
    assert clusters_with_taken_ids(dict(reversed(records.items()))) == ["lab/later", "lab/late"]
    assert clusters_with_taken_ids({}) == []
    core = Site().core
    core.register("lab/x", records["lab/x"], 0.0)
    assert (
        core.ids.belongs_to_other("lab/late", 1)
        and not core.ids.belongs_to_other("lab/x", 1)
        and not core.ids.belongs_to_other("lab/y", 2)
    )
    assert core.with_new_id("lab/late", records["lab/late"]).id not in (0, 1)


def test_a_record_names_the_event_of_what_really_changed() -> None:
    record = ClusterRecord(id=1, told=["joined", "j", "r"])
    assert changed_record(record, "x", "c", cordoned=False, labels={}) == record
    assert changed_record(record, "x", "c", cordoned=True).told == ["edited", "x", "c"]
    assert changed_record(record, "x", "c", cordoned=True, quiet=True).told == ["joined", "j", "r"]
    gone = changed_record(record, "x", "c", gone=True, quiet=True)
    assert gone.told == ["gone", "x", "c"]
    assert changed_record(gone, "y", "c", labels={"a": "b"}).told == ["gone", "x", "c"]
    assert changed_record(gone, "y", "c", gone=False).told == ["joined", "y", "c"]


def test_who_was_heard_of_by_nobody_joins_with_the_first_report_to_another_inventory() -> None:
    site = Site()
    record = ClusterRecord(id=0, told=["joined", "j", "r"])
    list(site.core.begin({A: record}, 0.0))
    assert site.core.node_count(A) is None
    assert [said.change for said in site.full(1, 0, node("a", cpu="4")).events] == ["ready"]  # it was said already
    assert site.core.node_count(A) == 1
    other = Site()
    list(other.core.begin({A: record}, 0.0))
    other.core.clusters[A].joining = True
    report = other.full(1, 0, node("a", cpu="4"), id="r2")
    assert report.events == [FleetEvent("joined", A, {"nodes": 1}, "r2", "j")]
    assert [said.change for said in other.say(2, 1, nodes=[node("a", cpu="2")]).events] == ["changed"]


said_ = st.builds(
    lambda change, cluster: FleetEvent(change, cluster, {}),
    st.sampled_from(["joined", "stale", "ready", "gone", "changed"]),
    st.sampled_from(["lab/a", "lab/b", "lab/c"]),
)


@given(st.lists(said_), st.integers(0, 20))
def test_what_cannot_be_said_for_long_keeps_the_newest_of_every_state(said: list[FleetEvent], most: int) -> None:
    said = with_ids(said)
    kept = shortened(said, most)
    states = [one for one in said if one.change != "changed"]
    newest = {(one.change, one.cluster): one for one in states}
    assert [one for one in kept if one.id] == [one for one in states if newest[one.change, one.cluster] is one]
    rest = [one for one in said if not one.id]
    left = [one for one in kept if not one.id]
    room = min(max(most - len(newest), 0), len(rest))
    assert len(left) == room and left == rest[len(rest) - room :]


def test_the_period_grows_with_the_fleet() -> None:
    assert [period_for(n) for n in (0, 1000, 1001, 5000, 100_000)] == [2.0, 2.0, 1001 / 500, 10.0, 200.0]


parts = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@settings(max_examples=200)
@given(parts, st.randoms(use_true_random=False), st.booleans())
def test_parts_in_any_order_and_repeated_are_one_report(sizes: list[int], rng: random.Random, doubled: bool) -> None:
    source, whole = ReportSession("agent", "s", 0, 2), []
    for seq, count in enumerate(sizes):
        messages = [
            Report(session="s", seq=seq, part=(i, count), kind="delta" if seq else "full", nodes=[node(f"{seq}-{i}")])
            for i in range(count)
        ]
        if doubled:
            messages += messages
        rng.shuffle(messages)
        for message in messages:
            verdict, report = source.accept(message)
            assert verdict is not Verdict.RESYNC
            if report is not None:
                assert verdict is Verdict.COMPLETE
                whole.append([n.name for n in report.nodes])
    assert whole == [[f"{seq}-{i}" for i in range(count)] for seq, count in enumerate(sizes)]


def test_parts_of_an_older_report_are_passed_over() -> None:
    source = ReportSession("agent", "s", 0, 2)
    assert source.accept(Report(session="s", seq=0, kind="full", part=(0, 2)))[0] is Verdict.WAIT
    assert source.accept(Report(session="s", seq=1, kind="full", part=(0, 2)))[0] is Verdict.WAIT
    assert source.accept(Report(session="s", seq=0, kind="full", part=(1, 2)))[0] is Verdict.OLD
    assert source.accept(Report(session="s", seq=1, kind="full", part=(1, 2)))[0] is Verdict.COMPLETE
    assert source.accept(Report(session="s", seq=2, part=(3, 2)))[0] is Verdict.RESYNC
    assert source.accept(Report(session="s", seq=-1, kind="full"))[0] is Verdict.RESYNC


def test_joining_parts_loses_nothing() -> None:
    one = Report(session="s", seq=1, as_of=1, nodes=[node("a")], pods_gone=["p"], labels={"a": "b"})
    two = Report(session="s", seq=1, as_of=2, nodes=[node("b")], nodes_gone=["c"])
    both = merge_parts([one, two])
    assert ([n.name for n in both.nodes], both.nodes_gone, both.pods_gone) == (["a", "b"], ["c"], ["p"])
    assert (both.as_of, both.labels) == (2, {"a": "b"})


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from(["", "eu"])), max_size=80), st.integers(0, 80))
def test_numbers_come_in_blocks_and_never_twice(asked: list[tuple[str, str]], restart: int) -> None:
    ids, given_ = ClusterIds(), list[tuple[str, ClusterRecord]]()
    for i, (provider, region) in enumerate(asked):
        if i == restart:
            ids = ClusterIds()
            for owner, record in given_:
                ids.learn(owner, record)
        given_.append((provider, ids.next(provider, region)))
    numbers = [record.id for _, record in given_]
    assert len(set(numbers)) == len(numbers)
    owners: dict[tuple[int, int], tuple[str, str]] = {}
    for provider, record in given_:
        start, length = record.block
        assert start <= record.id < start + length
        assert owners.setdefault(record.block, (provider, record.region)) == (provider, record.region)
    assert max(numbers, default=0) <= 16 * 4 + 2 * len(numbers) + 64
