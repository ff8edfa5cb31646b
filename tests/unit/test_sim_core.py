"""Simulated clusters in virtual time, with a minimal inventory and patcher that check every message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import FleetWriter
from moorage.inventory.core.fleet_state import FleetState
from moorage.model.desired import Confirm, DesiredApp, DesiredAsk, DesiredReply
from moorage.model.reports import NodeReport, PodReport, Report, ReportReply
from moorage.sim.core.cluster_spec import ClusterSpec
from moorage.sim.core.fleet_documents import decode, expand
from moorage.sim.core.fleet_generator import generate
from moorage.sim.core.simulator import Simulator


class World:
    """The inventory and the patcher. They answer at once unless `deaf`."""

    def __init__(self, fleet: dict[str, Any] | dict[str, ClusterSpec]) -> None:
        self.now = 100.0
        self.core = Simulator("s1", wall=1000.0)
        self.sessions: dict[str, tuple[str, int]] = {}
        self.parts: dict[str, list[Report]] = {}
        self.nodes: dict[str, dict[str, NodeReport]] = {}
        self.pods: dict[str, dict[str, PodReport]] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.desired: dict[str, list[DesiredApp]] = {}
        self.named: list[DesiredApp] = []  # versions that are named again
        self.confirms: list[tuple[str, Confirm]] = []
        self.reports: list[tuple[float, str, Report]] = []
        self.asks = 0
        self.stale = 0
        self.refused: set[str] = set()
        self.deaf = False
        self.core.apply(fleet if fleet and "clusters" not in fleet else expand(decode(fleet)), self.now)
        self.run(0.001)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.core.tick(self.now)
            while self.core.out:
                batch, self.core.out[:] = self.core.out[:], []
                for send in batch:
                    answer = self.answer(send.verb, send.cluster, send.payload)
                    token, nonce = send.token.split(".")
                    if not self.deaf:
                        self.core.on_reply(token, nonce, msgspec.json.encode(answer), self.now)
                self.core.tick(self.now)
            due = self.core.next_timer()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
        self.now = end

    def answer(self, verb: str, cluster: str, payload: bytes) -> msgspec.Struct:
        assert len(payload) < 512_000
        if verb == "confirm":
            self.confirms.append((cluster, msgspec.json.decode(payload, type=Confirm, strict=True)))
            return ReportReply()
        if verb == "ask":
            self.asks += 1
            have = msgspec.json.decode(payload, type=DesiredAsk).have
            apps = [a for a in self.desired.get(cluster, []) if have.get(f"{a.group} {a.app}", 0) < a.version]
            return DesiredReply(apps=apps + self.named)
        return self.report(cluster, msgspec.json.decode(payload, type=Report, strict=True))

    def report(self, cluster: str, report: Report) -> ReportReply:
        self.reports.append((self.now, cluster, report))
        if cluster in self.refused:
            return ReportReply(refused="another session has it")
        session, seq = self.sessions.get(cluster, ("", 0))
        index, count = report.part
        if report.session == session and (report.seq < seq or (report.seq == seq and not self.parts.get(cluster))):
            self.stale += 1
            return ReportReply()
        if report.session != session and report.kind != "full":
            return ReportReply(resync=True)
        if report.kind == "delta" and report.seq not in (seq, seq + 1):
            return ReportReply(resync=True)
        self.sessions[cluster] = (report.session, report.seq)
        held = self.parts.setdefault(cluster, [])
        assert index == len(held)
        held.append(report)
        if len(held) < count:
            return ReportReply()
        del self.parts[cluster]
        if report.leaving:
            del self.nodes[cluster], self.pods[cluster], self.labels[cluster]
            return ReportReply()
        if report.kind == "full":
            self.nodes[cluster], self.pods[cluster] = {}, {}
        for part in held:
            self.nodes[cluster].update({n.name: n for n in part.nodes})
            self.pods[cluster].update({p.uid: p for p in part.pods})
            for uid in part.pods_gone:
                self.pods[cluster].pop(uid, None)
        if report.labels is not None:
            self.labels[cluster] = report.labels
        return ReportReply()

    def want(self, cluster: str, *apps: DesiredApp, hint: bool = True) -> None:
        self.desired[cluster] = list(apps)
        if hint:
            self.core.on_hint(cluster, self.now)

    def last(self, cluster: str = "lab/a") -> Confirm:
        return [confirm for name, confirm in self.confirms if name == cluster][-1]

    def free(self, cluster: str, node: str, resource: str = "cpu") -> str:
        return self.nodes[cluster][node].requested.get(resource, "0")

    def assert_reported(self) -> None:
        """Asserts that the reported nodes and pods are those that exist."""
        for ident, agent in self.core.agents.items():
            rows = [msgspec.json.decode(r, type=NodeReport) for r in agent.cluster.rows()]
            assert {n.name: n for n in rows} == self.nodes[ident]
            pods = [msgspec.json.decode(r, type=PodReport) for r in agent.cluster.pod_rows(agent.cluster.pods)]
            assert {p.uid: p for p in pods} == self.pods[ident]
            for node in (agent.cluster.nodes or {}).values():
                managed = [p for p in agent.cluster.pods.values() if p.node is node]
                assert node.used.get("cpu", 0) == sum(p.need.requests.get("cpu", 0) for p in managed if p.key)


LAB: dict[str, Any] = {
    "clusters": [
        {
            "name": "a",
            "provider": "lab",
            "labels": {"region": "eu"},
            "nodes": [
                {"name": "n", "count": 3, "allocatable": {"cpu": "4", "memory": "8Gi"}, "labels": {"disk": "ssd"}},
                {
                    "name": "x",
                    "allocatable": {"cpu": "8", "memory": "8Gi"},
                    "cpuManager": {"policy": "static", "exclusive": 6},
                    "taints": [{"key": "only", "effect": "NoSchedule"}],
                },
            ],
        }
    ]
}


def slow_lab(**behaviour: float) -> dict[str, Any]:
    return {"clusters": [LAB["clusters"][0] | {"behaviour": behaviour}]}


def workload(
    kind: str = "Deployment", cpu: str = "1", replicas: int = 2, name: str = "web", **pod: Any
) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **pod}
    template = {"metadata": {"labels": {"moorage.dev/claim": f"claim-{name}"}}, "spec": spec}
    metadata = {"name": name, "namespace": "shop"}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": {**metadata, **template["metadata"]}, "spec": spec}
    count = {"parallelism": replicas} if kind == "Job" else {} if kind == "DaemonSet" else {"replicas": replicas}
    body = (
        {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}
        if kind == "CronJob"
        else {**count, "template": template}
    )
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": body}


def app(version: int, *objects: dict[str, Any], remove: bool = False, name: str = "front") -> DesiredApp:
    return DesiredApp(group="p/shop/v1/default", app=name, version=version, objects=list(objects), remove=remove)


def test_clusters_report_in_full_once_and_then_send_heartbeats() -> None:
    world = World(generate(150, 4, 1))
    world.run(1)
    assert len(world.nodes) == 150
    assert not world.core.unacknowledged
    world.assert_reported()
    seen = len(world.reports)
    world.run(20)
    beats = world.reports[seen:]
    assert 150 * 9 <= len(beats) <= 150 * 11
    assert not any(r.nodes or r.pods or r.kind == "full" for _, _, r in beats)
    per_tick = [
        sum(int(when * 10) == t for when, _, _ in beats) for t in range(int(world.now * 10) - 100, int(world.now * 10))
    ]
    assert max(per_tick) < 40, "heartbeats of the fleet are not spread out"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet", "Job"])
def test_an_app_runs_and_is_confirmed(kind: str) -> None:
    world = World(LAB)
    world.want(
        "lab/a", app(5, workload(kind, replicas=3), {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}})
    )
    world.run(0.5)
    confirm = world.last()
    assert (confirm.version, confirm.removed) == (5, False)
    assert [(o.object, o.state, o.ready, o.wanted) for o in confirm.objects] == [
        (f"{kind}/web", "Ready", 3, 3),
        ("Service/s", "Ready", 0, 0),
    ]
    pods = world.pods["lab/a"].values()
    assert sorted(p.node for p in pods) == ["n-0", "n-1", "n-2"], "least allocated spreads"
    assert {(p.claim, p.phase, p.namespace) for p in pods} == {("claim-web", "Running", "shop")}
    assert all(p.requests == {"cpu": "1"} for p in pods)
    world.assert_reported()


def test_bare_pods_daemon_sets_and_cron_jobs_are_ready() -> None:
    world = World(LAB)
    world.want(
        "lab/a",
        app(1, workload("Pod", name="p"), workload("DaemonSet", name="d", cpu="100m"), workload("CronJob", name="c")),
    )
    world.run(0.5)
    found = {o.object: (o.state, o.ready, o.wanted) for o in world.last().objects}
    assert found == {"Pod/p": ("Ready", 1, 1), "DaemonSet/d": ("Ready", 3, 3), "CronJob/c": ("Ready", 0, 0)}
    assert "scheduled" in world.last().objects[2].message


def test_an_equal_version_changes_nothing_and_a_new_template_rolls_out() -> None:
    world = World(slow_lab(readyDelayMs=1000))
    world.want("lab/a", app(1, workload(replicas=4)))
    world.run(0.5)
    assert world.last().objects[0].state == "Progressing"
    world.run(1)
    assert world.last().objects[0].state == "Ready"
    before = set(world.pods["lab/a"])
    noted = workload(replicas=4)
    noted["metadata"]["annotations"] = {"moorage.dev/decision": "d2"}
    world.want("lab/a", app(2, noted))
    world.run(3)
    assert set(world.pods["lab/a"]) == before
    assert world.last().version == 2
    world.want("lab/a", app(3, workload(replicas=4, cpu="500m")))
    ready = []
    for _ in range(80):
        world.run(0.1)
        ready.append(sum(p.phase == "Running" for p in world.pods["lab/a"].values()))
        assert len(world.pods["lab/a"]) <= 5
    assert min(ready) >= 3, "a rolling update keeps all but a quarter"
    assert not before & set(world.pods["lab/a"])
    assert world.last().objects[0].state == "Ready"
    world.assert_reported()


def test_removal_deletes_pods_and_is_confirmed() -> None:
    world = World(LAB)
    world.want("lab/a", app(1, workload()), app(2, workload(name="other"), name="back"))
    world.run(0.5)
    world.want("lab/a", app(3, remove=True), app(2, workload(name="other"), name="back"))
    world.run(0.5)
    assert (world.last().app, world.last().version, world.last().removed) == ("front", 3, True)
    assert {p.claim for p in world.pods["lab/a"].values()} == {"claim-other"}
    world.want("lab/a", app(9, remove=True, name="never"), app(3, remove=True))
    world.run(0.5)
    assert (world.last().app, world.last().removed) == ("never", True)
    world.assert_reported()


def test_unschedulable_pods_are_bound_when_capacity_is_free() -> None:
    world = World(LAB)
    world.want(
        "lab/a", app(1, workload(cpu="3", replicas=3)), app(2, workload(cpu="2", replicas=1, name="late"), name="b")
    )
    world.run(0.5)
    late = world.last()
    assert (late.objects[0].state, late.objects[0].message) == ("Progressing", "Unschedulable: no node fits")
    world.want(
        "lab/a", app(3, workload(cpu="3", replicas=2)), app(2, workload(cpu="2", replicas=1, name="late"), name="b")
    )
    world.run(0.5)
    assert [c.objects[0].state for _, c in world.confirms if c.app == "b"][-1] == "Ready"
    world.assert_reported()


def test_exclusive_cores_shrink_while_a_guaranteed_pod_runs() -> None:
    world = World(LAB)
    pod = workload(
        "Pod", tolerations=[{"key": "only", "operator": "Exists"}], nodeSelector={"kubernetes.io/hostname": "x"}
    )
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "4", "memory": "1Gi"}}
    world.want("lab/a", app(1, pod))
    world.run(0.5)
    manager = world.nodes["lab/a"]["x"].cpu_manager
    assert manager is not None and manager.exclusive_free == 2
    world.want("lab/a", app(2, remove=True))
    world.run(0.5)
    manager = world.nodes["lab/a"]["x"].cpu_manager
    assert manager is not None and manager.exclusive_free == 6


def test_pods_of_the_document_take_capacity() -> None:
    pod = {
        "metadata": {"name": "old"},
        "spec": {"nodeName": "n-0", "containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
    }
    claimed = {
        "metadata": {"name": "mine", "labels": {"moorage.dev/claim": "c9"}},
        "spec": {"nodeName": "n-1", "containers": [{"name": "c"}]},
    }
    world = World({"clusters": [LAB["clusters"][0] | {"pods": [pod, claimed]}]})
    assert (world.free("lab/a", "n-0"), world.nodes["lab/a"]["n-0"].pod_count) == ("3", 1)
    assert [(p.name, p.claim, p.node) for p in world.pods["lab/a"].values()] == [("mine", "c9", "n-1")]


def test_the_fleet_follows_the_next_document() -> None:
    world = World({"clusters": [*LAB["clusters"], {"name": "b", "count": 2}]})
    world.want("lab/a", app(1, workload(replicas=3)))
    world.run(1)
    smaller = {
        **LAB["clusters"][0],
        "labels": {"region": "us"},
        "nodes": [LAB["clusters"][0]["nodes"][0] | {"count": 2}],
    }
    changed = world.core.apply(expand(decode({"clusters": [smaller, {"name": "b-1"}, {"name": "c"}]})), world.now)
    assert (changed.added, changed.changed, changed.removed) == (["sim/c"], ["lab/a"], ["sim/b-0"])
    world.run(1)
    assert not world.core.unacknowledged
    assert set(world.nodes) == {"lab/a", "sim/b-1", "sim/c"}
    assert world.labels["lab/a"] == {"region": "us"}
    assert set(world.nodes["lab/a"]) == {"n-0", "n-1"}
    assert (
        sorted(p.node for p in world.pods["lab/a"].values()) == ["n-0", "n-0", "n-1"] or len(world.pods["lab/a"]) == 3
    )
    world.assert_reported()
    world.core.apply(expand(decode({"clusters": [{"name": "b-0"}]})), world.now)
    world.run(1)
    assert set(world.nodes) == {"sim/b-0"}, "a cluster that left may come back"


def test_a_silent_cluster_sends_nothing_and_recovers() -> None:
    world = World(LAB)
    world.run(3)
    assert world.core.fault("lab/a", "silent", 10, world.now)
    seen, start = len(world.reports), world.asks
    world.want("lab/a", app(1, workload()))
    world.run(9)
    assert (len(world.reports), world.asks, world.confirms) == (seen, start, [])
    world.run(4)
    assert world.last().objects[0].state == "Ready"
    world.assert_reported()


def test_messages_of_a_slow_cluster_are_two_seconds_late() -> None:
    world = World(LAB)
    world.run(3)
    world.core.fault("lab/a", "slow", None, world.now)
    world.want("lab/a", app(1, workload()))
    start = world.now
    while not world.confirms:
        world.run(0.1)
        assert world.now < start + 10
    assert world.now - start >= 4, "both the request and the confirmation are late"


def test_a_version_that_is_sent_again_is_confirmed_again() -> None:
    world = World(slow_lab(applyDelayMs=500))
    world.want("lab/a", app(1, workload()), app(2, remove=True, name="gone"))
    world.run(0.1)
    world.named = [app(1), app(2, name="gone")]
    world.run(0.1)
    world.core.on_hint("lab/a", world.now)
    world.run(0.1)
    assert not world.confirms, "nothing was applied yet"
    world.named = []
    world.run(5)
    confirmed = {c.app: c for _, c in world.confirms}
    assert confirmed["front"].objects[0].state == "Ready" and confirmed["gone"].removed
    world.confirms.clear()
    world.run(5)
    assert not world.confirms, "only changes are confirmed"
    world.named = [app(1), app(2, name="gone")]
    world.run(2.5)
    again = {c.app: c for _, c in world.confirms}
    assert {a: (c.version, c.removed, c.objects) for a, c in again.items()} == {
        a: (c.version, c.removed, c.objects) for a, c in confirmed.items()
    }
    assert all(again[a].as_of > confirmed[a].as_of for a in confirmed)
    world.assert_reported()


def test_objects_fail_while_a_cluster_refuses() -> None:
    world = World(LAB)
    world.run(1)
    world.core.fault("lab/a", "refuse", 5, world.now)
    world.want("lab/a", app(1, workload()))
    world.run(3)
    assert [(o.object, o.state) for o in world.last().objects] == [("Deployment/web", "Failed")]
    assert not world.pods["lab/a"]
    world.run(5)
    assert world.last().objects[0].state == "Ready"


def test_a_version_received_before_the_refusal_is_requested_again() -> None:
    world = World(slow_lab(applyDelayMs=500))
    world.want("lab/a", app(1, workload()))
    world.run(0.1)
    world.core.fault("lab/a", "refuse", 3, world.now)
    world.run(1)
    assert world.last().objects[0].state == "Failed"
    world.run(5)
    assert world.last().objects[0].state == "Ready"
    assert len(world.pods["lab/a"]) == 2


def test_lost_pods_are_created_again() -> None:
    world = World(LAB)
    world.want("lab/a", app(1, workload(replicas=4)))
    world.run(1)
    before = set(world.pods["lab/a"])
    world.core.fault("lab/a", "lose-pods", 3, world.now)
    world.run(1)
    assert len(world.pods["lab/a"]) == 2
    assert (world.last().objects[0].state, world.last().objects[0].ready) == ("Progressing", 2)
    world.run(4)
    assert len(world.pods["lab/a"]) == 4
    assert len(before & set(world.pods["lab/a"])) == 2
    assert world.last().objects[0].state == "Ready"
    world.assert_reported()


def test_replayed_reports_are_ignored_as_stale() -> None:
    world = World(LAB)
    world.want("lab/a", app(1, workload()))
    world.run(3)
    world.core.fault("lab/a", "replay", 6, world.now)
    world.run(5)
    assert world.stale >= 2
    world.assert_reported()
    assert world.core.agents["lab/a"].state == "known"


def test_a_refused_cluster_tries_again_and_does_not_delay_the_rest() -> None:
    world = World({"clusters": []})
    world.refused.add("sim/b")
    world.core.apply(expand(decode({"clusters": [{"name": "a"}, {"name": "b"}]})), world.now)
    world.run(1)
    assert not world.core.unacknowledged
    assert world.core.rows(10)[1] == {
        "cluster": "sim/b",
        "state": "refused",
        "nodes": 0,
        "pods": 0,
        "reason": "another session has it",
    }
    world.refused.clear()
    world.run(15)
    assert world.core.agents["sim/b"].state == "known"


def test_who_was_replaced_comes_back_with_a_new_session_and_two_that_live_do_not_take_turns() -> None:
    """Both against the inventory itself: the second takes over at once, the first is back when the second is silent."""
    inventory = FleetState(FleetWriter(), 1)
    list(inventory.begin({}, 0.0))
    wanted = expand(decode({"clusters": [{"name": "a"}]}))
    inventory.register("sim/a", inventory.new_record("sim/a", {}), 0.0)
    first, second = Simulator("s1"), Simulator("s2", succeeds="s1")

    def run(until: float, *living: Simulator) -> None:
        now = clock[0]
        while now < until:
            for core in living:
                core.tick(now)
                while core.out:
                    batch, core.out[:] = core.out[:], []
                    for verb, cluster, payload, sent in batch:
                        assert verb in ("report", "ask")
                        reply: msgspec.Struct = DesiredReply(apps=[])
                        if verb == "report":
                            report = msgspec.json.decode(payload, type=Report)
                            reply = inventory.report(cluster, "agent", report, now).reply
                        token, nonce = sent.split(".")
                        core.on_reply(token, nonce, msgspec.json.encode(reply), now)
            now += 0.05
        clock[0] = now

    def states() -> list[str]:
        return [core.agents["sim/a"].state for core in (first, second) if core.agents]

    clock = [0.0]
    first.apply(wanted, 0.0)
    run(3, first)
    second.apply(wanted, 3.0)
    run(6, first, second)
    assert states() == ["refused", "known"]
    owners = set()
    for until in range(7, 60):
        run(until, first, second)
        owners.add(inventory.clusters["sim/a"].owner.session)  # type: ignore[union-attr]
    assert owners == {"s2"}
    run(75, first)
    assert states()[0] == "known"


def test_unanswered_messages_are_said_again_as_they_were() -> None:
    world = World(LAB)
    world.run(5)
    world.deaf = True
    seen = len(world.reports)
    world.run(9)
    sequences = {r.seq for _, _, r in world.reports[seen:]}
    assert len(sequences) == 1
    world.deaf = False
    world.run(9)
    assert world.reports[-1][2].seq > max(sequences)
    assert not any(r.kind == "full" for _, _, r in world.reports[seen:])


def test_an_inventory_that_forgot_gets_everything() -> None:
    world = World(LAB)
    world.want("lab/a", app(1, workload()))
    world.run(1)
    world.sessions.clear()
    world.nodes["lab/a"], world.pods["lab/a"] = {}, {}
    world.run(3)
    world.assert_reported()


def test_large_clusters_report_in_parts() -> None:
    nodes = [
        {"name": "n", "count": 1500, "allocatable": {"cpu": "4"}, "labels": {f"l{i}": "x" * 40 for i in range(10)}}
    ]
    world = World({"clusters": [{"name": "big", "provider": "lab", "nodes": nodes}]})
    world.run(1)
    assert len(world.nodes["lab/big"]) == 1500
    assert world.reports[0][2].part[1] > 1
    assert {r.seq for _, _, r in world.reports[: world.reports[0][2].part[1]]} == {1}


def test_many_pods_that_are_gone_are_told_in_parts() -> None:
    world = World(LAB)
    world.run(1)
    cluster = world.core.agents["lab/a"].cluster
    uids = [f"lab/a/{i}-" + "x" * 30 for i in range(30_000)]
    cluster.gone_pods.update(uids)
    seen = len(world.reports)
    world.run(3)
    told = [report for _, _, report in world.reports[seen:] if report.pods_gone]
    assert len(told) == told[0].part[1] > 2  # `answer` knows how large they may be
    assert sorted(uid for report in told for uid in report.pods_gone) == sorted(uids)


def test_every_report_has_a_name_of_its_own() -> None:
    world = World(generate(20, 4, 1))
    world.run(5)
    names = {(cluster, report.seq): report.id for _, cluster, report in world.reports}
    assert "" not in names.values()
    assert len(set(names.values())) == len(names) > 40


def test_nobody_listens() -> None:
    core = Simulator("s")
    core.apply(generate(3, 1, 1), 0.0)
    for send in core.out[:]:
        token, nonce = send.token.split(".")
        core.on_reply(token, nonce, b"", 0.0)
        core.on_reply(token, nonce, b'{"problem":{"code":"Busy"}}', 0.0)
    core.out.clear()
    core.tick(4.0)
    assert {send.cluster for send in core.out} == set(core.agents)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.sampled_from(["x", "y"]), st.sampled_from(["Deployment", "StatefulSet", "DaemonSet", "Job", "Pod", "ReplicaSet"]), st.integers(0, 4), st.sampled_from(["1", "2500m"])),
        st.tuples(st.just("remove"), st.sampled_from(["x", "y"])),
        st.tuples(st.just("fault"), st.sampled_from(["lose-pods", "refuse", "silent", "replay", "slow"])),
        st.tuples(st.just("nodes"), st.integers(0, 3)),
        st.tuples(st.just("forget")),
        st.tuples(st.just("run"), st.sampled_from([0.01, 0.3, 2.5])),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.sampled_from([{}, {"readyDelayMs": 300, "applyDelayMs": 100}]))
def test_whatever_happens_inventory_and_patcher_end_up_with_the_truth(
    events: list[tuple[Any, ...]], behaviour: dict[str, float]
) -> None:
    world = World(slow_lab(**behaviour))
    desired: dict[str, DesiredApp] = {}
    for version, event in enumerate(events, 1):
        if event[0] == "want":
            desired[event[1]] = app(version, workload(event[2], event[4], event[3], event[1]), name=event[1])
            world.want("lab/a", *desired.values(), hint=version % 2 == 0)
        elif event[0] == "remove":
            desired[event[1]] = app(version, remove=True, name=event[1])
            world.want("lab/a", *desired.values())
        elif event[0] == "fault":
            world.core.fault("lab/a", event[1], 1.0, world.now)
        elif event[0] == "nodes":
            cluster = dict(slow_lab(**behaviour)["clusters"][0])
            if event[1]:
                cluster["nodes"] = [cluster["nodes"][0] | {"count": event[1], "name": "n" if event[1] > 1 else "n-0"}]
            world.core.apply(expand(decode({"clusters": [cluster]})), world.now)
        elif event[0] == "forget":
            world.sessions.clear()
        else:
            world.run(event[1])
    world.run(30)
    world.assert_reported()
    last = {c.app: c for _, c in world.confirms}
    for name, wanted in desired.items():
        assert last[name].version == wanted.version
        assert last[name].removed == wanted.remove
    agent = world.core.agents["lab/a"]
    for name, wanted in desired.items():
        assert wanted.remove == (("p/shop/v1/default", name) not in agent.cluster.apps)
