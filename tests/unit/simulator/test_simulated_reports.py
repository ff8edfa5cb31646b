"""Simulated clusters report in full, then changes, also in parts, under faults and to an inventory that forgot."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import FleetWriter
from moorage.inventory.core.fleet_state import FleetState
from moorage.model.desired_state import DesiredApp, DesiredReply
from moorage.model.reports import Report
from moorage.sim.core.fleet_documents import decode, expand
from moorage.sim.core.fleet_generator import generate
from moorage.sim.core.simulator import Simulator

from .world import LAB, World, app, slow_lab, workload


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


def test_a_replaced_simulator_returns_only_when_the_other_is_silent() -> None:
    """Checks with the real inventory that the second takes over at once, and the first returns when the second is silent."""
    inventory = FleetState(FleetWriter(), 1)
    list(inventory.begin({}, 0.0))
    wanted = expand(decode({"clusters": [{"name": "a"}]}))
    inventory.register("sim/a", inventory.new_record("sim/a", {}), 0.0)
    first, second = Simulator("s1"), Simulator("s2", succeeds="s1")

    def run(until: float, *running: Simulator) -> None:
        now = clock[0]
        while now < until:
            for core in running:
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


def test_unanswered_messages_are_repeated_unchanged() -> None:
    world = World(LAB)
    world.run(5)
    world.silent = True
    seen = len(world.reports)
    world.run(9)
    sequences = {r.seq for _, _, r in world.reports[seen:]}
    assert len(sequences) == 1
    world.silent = False
    world.run(9)
    assert world.reports[-1][2].seq > max(sequences)
    assert not any(r.kind == "full" for _, _, r in world.reports[seen:])


def test_an_inventory_without_data_gets_a_full_report() -> None:
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


def test_many_removed_pods_are_reported_in_parts() -> None:
    world = World(LAB)
    world.run(1)
    cluster = world.core.agents["lab/a"].cluster
    uids = [f"lab/a/{i}-" + "x" * 30 for i in range(30_000)]
    cluster.gone_pods.update(uids)
    seen = len(world.reports)
    world.run(3)
    reports = [report for _, _, report in world.reports[seen:] if report.pods_gone]
    assert len(reports) == reports[0].part[1] > 2  # `answer` checks their size
    assert sorted(uid for report in reports for uid in report.pods_gone) == sorted(uids)


def test_every_report_has_an_id_of_its_own() -> None:
    world = World(generate(20, 4, 1))
    world.run(5)
    names = {(cluster, report.seq): report.id for _, cluster, report in world.reports}
    assert "" not in names.values()
    assert len(set(names.values())) == len(names) > 40


def test_reports_are_repeated_while_nobody_answers() -> None:
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
def test_inventory_and_patcher_have_the_true_state_after_random_events(
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
        assert wanted.remove == (("p/shop/v1/default", name) not in agent.cluster.applied.apps)
