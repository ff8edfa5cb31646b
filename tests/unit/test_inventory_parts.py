"""Tests what sources report of the inside of nodes: who owns what, what stays as before, what changed and what makes no sense."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.fleet import Fleet, FleetWriter
from moorage.fleet.delta import decode
from moorage.inventory.core.fleet_state import FleetState, ReportOutcome
from moorage.model.part_reports import DeviceReport, ProviderReport, TopologyManager, ZoneReport
from moorage.model.reports import AdmissionReport, NodeReport, PodReport, Report
from moorage_testkit.fleets import node, provider, two_zones

A = "lab/edge-1"


class Site:
    """An inventory with the sources of one cluster."""

    def __init__(self) -> None:
        self.core = FleetState(FleetWriter(), 1)
        list(self.core.begin({}, 0.0))
        self.core.register(A, self.core.new_record(A, {}), 0.0)
        self.fleet = self.core.writer.fleet
        self.seqs: dict[str, int] = {}

    def say(self, *nodes: NodeReport, source: str = "agent", kind: str = "delta", **more: Any) -> ReportOutcome:
        seq = self.seqs[source] = self.seqs.get(source, -1) + 1
        data = msgspec.json.encode(Report(session=f"s-{source}", seq=seq, kind=kind, nodes=list(nodes), **more))  # type: ignore[arg-type]
        outcome = self.core.report(A, source, msgspec.json.decode(data, type=Report), float(seq))
        assert not outcome.reply.resync and not outcome.reply.refused
        return outcome

    def used(self, name: str) -> dict[str, dict[str, int]]:
        """Returns what is in use of each part of a node that has anything."""
        row = self.fleet.row_of(0, name)
        assert row is not None
        first, layout = self.fleet.inside(row)
        found: dict[str, dict[str, int]] = {path[1:]: {} for path in layout.at if path}
        for at, resource in layout.entries:
            columns = self.fleet.parts.classes[resource]
            position = columns.position(0, first + at)
            assert position is not None
            if columns.used[position]:
                found[layout.parts[at].path[1:]][resource] = int(columns.used[position])
        return found


def parts_event(outcome: ReportOutcome) -> dict[str, Any]:
    found = [event.data for event in outcome.events if event.change == "parts"]
    return found[0] if found else {}


def test_what_a_delta_leaves_out_is_as_before_and_a_full_report_leaves_nothing_out() -> None:
    site = Site()
    zones, cards = two_zones("4"), [provider("card", FPGA="2")]
    site.say(node("n", cpu="8", zones=zones, providers=cards, in_use={"card": {"FPGA": "1"}}), kind="full")
    assert site.used("n") == {"numa-0": {}, "numa-1": {}, "any": {}, "card": {"FPGA": 1}}
    assert not parts_event(site.say(node("n", cpu="8", in_use={"numa-1": {"cpu": "2"}})))
    assert site.used("n") == {"numa-0": {}, "numa-1": {"cpu": 2000}, "any": {}, "card": {}}
    changed = parts_event(site.say(node("n", cpu="8", zones=[])))
    assert changed == {"removed": ["n/numa-0", "n/numa-1", "n/any"], "removedCount": 3}
    assert site.used("n") == {"card": {}}
    assert parts_event(site.say(node("n", cpu="8"), kind="full")) == {"removed": ["n/card"], "removedCount": 1}
    assert site.used("n") == {}


def test_parts_that_come_go_move_and_shrink_are_told() -> None:
    site = Site()
    cards = [provider("a", FPGA="2"), provider("b", FPGA="2"), provider("c", FPGA="2")]
    came = parts_event(site.say(node("n", cpu="8", providers=cards), node("m", cpu="8"), kind="full"))
    assert came == {"added": ["n/a", "n/b", "n/c"], "addedCount": 3}
    assert not parts_event(site.say(node("n", cpu="8", in_use={"a": {"FPGA": "1"}})))
    after = [provider("a", FPGA="1"), provider("b", "a", FPGA="2"), provider("d", FPGA="1")]
    changed = parts_event(site.say(node("n", cpu="8", providers=after, in_use={"a": {"FPGA": "1"}})))
    assert {key: value for key, value in changed.items() if not key.endswith("Count")} == {
        "added": ["n/d"],
        "removed": ["n/c"],
        "moved": ["n/b"],
        "changed": ["n/a"],
    }
    assert site.used("n")["a"] == {"FPGA": 1}
    assert parts_event(site.say(nodes_gone=["n"]))["removedCount"] == 3


def test_devices_that_several_nodes_reach_do_not_move_when_others_come() -> None:
    site = Site()
    devices = [
        DeviceReport(id=f"d.io/rack/{name}", driver="d.io", pool="rack", name=name, shared=True) for name in ("x", "y")
    ]
    site.say(msgspec.structs.replace(node("n", cpu="8"), devices=devices[:1]), kind="full")
    changed = parts_event(site.say(msgspec.structs.replace(node("n", cpu="8"), devices=devices)))
    assert (changed["added"], changed.get("moved")) == (["d.io/rack/y"], None)


def test_a_node_agent_s_zones_replace_the_cluster_agent_s_and_its_providers_stay() -> None:
    site = Site()
    cards = [provider("card", FPGA="2")]
    site.say(node("n", cpu="8", zones=two_zones("4"), providers=cards, in_use={"card": {"FPGA": "2"}}), kind="full")
    own = NodeReport(
        name="n",
        zones=[ZoneReport(id=7, inventories={"cpu": "8"})],
        in_use={"numa-7": {"cpu": "3"}},
        topology_manager=TopologyManager(policy="restricted"),
    )
    changed = parts_event(site.say(own, source="node-n", kind="full"))
    assert (changed["added"], changed["removed"]) == (["n/numa-7"], ["n/numa-0", "n/numa-1"])
    assert site.used("n") == {"numa-7": {"cpu": 3000}, "any": {}, "card": {"FPGA": 2}}
    # The cluster's agent changes its own, which is not seen as long as the node's agent reports.
    site.say(node("n", cpu="8", zones=two_zones("2"), in_use={"card": {"FPGA": "1"}, "numa-0": {"cpu": "1"}}))
    assert site.used("n") == {"numa-7": {"cpu": 3000}, "any": {}, "card": {"FPGA": 1}}
    site.say(NodeReport(name="n", in_use={"numa-7": {"cpu": "1"}}), source="node-n")
    assert site.used("n")["numa-7"] == {"cpu": 1000}
    row = site.fleet.row_of(0, "n")
    assert row is not None
    manager = site.fleet.inside(row)[1].inside.topology_manager
    assert manager is not None and manager.policy == "restricted"
    site.say(source="node-n", nodes_gone=["n"])
    assert site.used("n") == {"numa-0": {"cpu": 1000}, "numa-1": {}, "any": {}, "card": {"FPGA": 1}}


def test_nonsense_is_told_once_as_a_problem_of_the_cluster_and_the_rest_stands() -> None:
    site = Site()
    bad = node("n", cpu="8", zones=two_zones("4"), providers=[provider("x", "y"), provider("fine", VF="1")])
    first = site.say(bad, node("m", cpu="4"), kind="full")
    assert first.problems == ["node n: part 'x': its parent 'y' is unknown or was dropped"]
    assert site.used("n").keys() == {"numa-0", "numa-1", "any", "fine"}
    assert not site.say(node("n", cpu="8")).problems
    twice = NodeReport(name="m", zones=[ZoneReport(id=0), ZoneReport(id=0)])
    assert site.say(twice, source="node-m", kind="full").problems == ["node m: part 'numa-0': another part has this id"]
    assert site.used("m").keys() == {"numa-0"}


def test_a_lying_source_takes_nothing_down() -> None:
    """Amounts beyond all bounds, parts that are not there and reports of other nodes are bounded or dropped."""
    site = Site()
    cards = [ProviderReport(id="card", inventories={"FPGA": "9E", "VF": "1"})]
    use = {"card": {"FPGA": "9E", "VF": "99E", "GPU": "1"}, "nowhere": {"cpu": "1"}}
    site.say(node("n", cpu="8", providers=cards, in_use=use), kind="full")
    used = site.used("n")["card"]
    assert 0 < used["FPGA"] <= 1 << 61 and used["VF"] > 1 and "GPU" not in used
    assert site.fleet.parts.classes["VF"].with_room(1).tolist() == []


def running(uid: str, name: str = "n", claim: str = "c", **more: Any) -> PodReport:
    return PodReport(uid=uid, namespace="ns", name=uid, node=name, phase="Running", claim=claim, **more)


def waiting(uid: str, name: str = "n", claim: str = "c") -> PodReport:
    requests = {"cpu": "2"}
    return PodReport(uid=uid, namespace="ns", name=uid, node=name, phase="Pending", claim=claim, requests=requests)


def on_zone(uid: str, zone: int, cpu: str = "2") -> PodReport:
    return PodReport(uid=uid, parts={f"n/numa-{zone}": {"cpu": cpu}})


def test_what_a_node_s_agent_says_that_pods_take_of_parts_is_in_use_and_known_of_each() -> None:
    site = Site()
    site.say(node("n", cpu="8"), kind="full", pods=[running("1"), running("2"), running("3", claim="d")])
    own = NodeReport(name="n", zones=two_zones("4"), in_use={"numa-0": {"cpu": "3"}})
    site.say(own, source="node-n", kind="full", pods=[on_zone("1", 0), on_zone("2", 1), on_zone("9", 1, "500m")])
    # What it sums itself stands where that is more.
    assert site.used("n") == {"numa-0": {"cpu": 3000}, "numa-1": {"cpu": 2500}, "any": {}}
    pods = site.fleet.pods
    assert pods.named("c", 0) == {"n": [({"n/numa-0": {"cpu": 2000}}, 1), ({"n/numa-1": {"cpu": 2000}}, 1)]}
    assert not pods.named("d", 0) and not pods.counted("c", 0)
    # A pod moves, one is gone, and of one it is told that it takes nothing any more.
    site.say(source="node-n", pods=[on_zone("1", 1)], pods_gone=["2"])
    assert site.used("n") == {"numa-0": {"cpu": 3000}, "numa-1": {"cpu": 2500}, "any": {}}
    assert pods.named("c", 0) == {"n": [({"n/numa-1": {"cpu": 2000}}, 1)]}
    site.say(source="node-n", pods=[PodReport(uid="1"), PodReport(uid="9")])
    assert site.used("n")["numa-1"] == {}
    assert pods.named("c", 0) == {}
    wrong = PodReport(uid="1", parts={"n/numa-0": {"cpu": "-1"}})
    told = site.say(source="node-n", pods=[wrong, on_zone("2", 1)])
    assert told.problems == ["node n: pod 1: part 'n/numa-0': cpu: '-1' is negative"]
    assert pods.named("c", 0) == {"n": [({"n/numa-1": {"cpu": 2000}}, 1)]}


def test_followers_know_what_pods_take_of_parts() -> None:
    site = Site()
    site.say(node("n", cpu="8"), kind="full", pods=[running("1")])
    site.say(NodeReport(name="n", zones=two_zones("4")), source="node-n", kind="full", pods=[on_zone("1", 0)])
    fleet = Fleet()
    fleet.apply(decode(site.core.writer.flush(1, 1).patch))
    assert fleet.pods.named("c", 0) == {"n": [({"n/numa-0": {"cpu": 2000}}, 1)]}
    assert decode(site.core.writer.snapshot(0, 1, 1)).clusters[0].named == fleet.pods.named_of(0)
    site.say(source="node-n", pods=[on_zone("1", 1)])
    fleet.apply(decode(site.core.writer.flush(1, 2).patch))
    assert fleet.pods.named("c", 0) == {"n": [({"n/numa-1": {"cpu": 2000}}, 1)]}


def test_zones_of_a_node_s_agent_count_only_the_pods_that_it_says() -> None:
    """The cluster's agent counts pods in other zones, which nobody sees."""
    site = Site()
    zones = two_zones("4")
    own = msgspec.structs.replace(node("n", cpu="8", zones=zones), counted=["1"])
    site.say(own, kind="full", pods=[running("1"), running("2")])
    assert site.fleet.pods.counted("c", 0) == {"n": 1}
    site.say(NodeReport(name="n", zones=zones), source="node-n", kind="full")
    assert site.fleet.pods.counted("c", 0) == {}
    site.say(NodeReport(name="n", counted=["2", "1"]), source="node-n")
    assert site.fleet.pods.counted("c", 0) == {"n": 2}
    site.say(source="node-n", nodes_gone=["n"])
    assert site.fleet.pods.counted("c", 0) == {"n": 1}


def test_both_agents_may_tell_what_a_pod_takes() -> None:
    site = Site()
    card = {"gpu.x/n/0": {"GPU_X": "1"}}
    site.say(node("n", cpu="8"), kind="full", pods=[running("1", parts=card)])
    site.say(NodeReport(name="n", zones=two_zones("4")), source="node-n", kind="full", pods=[on_zone("1", 0)])
    both = {"n/numa-0": {"cpu": 2000}, "gpu.x/n/0": {"GPU_X": 1}}
    assert site.fleet.pods.named("c", 0) == {"n": [(both, 1)]}


def test_a_pod_that_its_node_s_agent_does_not_admit_is_a_refusal_until_the_node_changes() -> None:
    site = Site()
    refused = AdmissionReport(pod="1", outcome="refused", code="ClaimUnmet", message="numa-0 has 1 core")
    site.say(node("n", cpu="8", requested={"cpu": "2"}), kind="full")
    site.say(source="node-n", kind="full", admissions=[refused])  # before the cluster's agent names the pod
    site.say(pods=[waiting("1"), waiting("2", claim="d")])
    pods = site.fleet.pods
    assert pods.refused_of(0) == {"c": ["n"]}
    assert pods.refusal_words(0) == {"c": "ClaimUnmet: numa-0 has 1 core"}
    assert pods.live("c", 0) == {} and pods.live("d", 0) == {"n": 1}, "it covers no slot"
    assert site.core.refused_pods == {"ClaimUnmet": 1}
    site.say(node("n", cpu="8", requested={"cpu": "2"}), source="agent")
    site.say(source="node-n", admissions=[refused])
    assert site.core.refused_pods == {"ClaimUnmet": 1}, "once a pod"
    assert pods.refused_of(0) == {"c": ["n"]}
    site.say(node("n", cpu="6", requested={"cpu": "2"}))
    assert pods.refused_of(0) == {} and pods.live("c", 0) == {"n": 1}


def test_a_pod_that_its_node_s_agent_admits_later_covers_its_slot() -> None:
    site = Site()
    site.say(node("n", cpu="8"), kind="full", pods=[waiting("1")])
    site.say(source="node-n", kind="full", admissions=[AdmissionReport(pod="1", outcome="refused", code="NoCpus")])
    assert site.fleet.pods.refused_of(0) == {"c": ["n"]} and not site.fleet.pods.live("c", 0)
    site.say(source="node-n", admissions=[AdmissionReport(pod="1")])
    assert site.fleet.pods.refused_of(0) == {} and site.fleet.pods.live("c", 0) == {"n": 1}
