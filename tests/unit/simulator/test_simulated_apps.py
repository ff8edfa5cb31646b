"""Simulated clusters apply apps, bind and replace pods, and confirm versions."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.sim.core import agent_protocol
from moorage.sim.core.agent_protocol import REMEMBERED_FOR
from moorage.sim.core.fleet_documents import decode, expand

from .world import LAB, World, app, slow_lab, workload


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


def test_pods_end_when_they_have_run_as_long_as_they_may() -> None:
    world = World(LAB)
    job = workload("Job", replicas=1, name="job", activeDeadlineSeconds=5)
    job["spec"]["backoffLimit"] = 1
    bare = workload("Pod", name="bare", activeDeadlineSeconds=5)
    replaced = workload("ReplicaSet", replicas=1, name="set", activeDeadlineSeconds=5)
    world.want("lab/a", app(1, job, bare, replaced))

    def there() -> dict[str, str]:
        return {pod.claim: uid for uid, pod in world.pods["lab/a"].items()}

    world.run(4)
    first = there()
    assert first.keys() == {"claim-job", "claim-bare", "claim-set"}
    world.run(2)
    assert there().keys() == {"claim-set"} and there()["claim-set"] != first["claim-set"], "only it is replaced at once"
    (state,) = [o for o in world.last().objects if o.object == "Job/job"]
    assert (state.state, state.ready) == ("Progressing", 0) and "DeadlineExceeded" in state.message
    world.run(10)
    assert "claim-job" in there(), "a Job tries again after a while"
    world.run(120)
    assert there().keys() == {"claim-set"}, "but only so often"
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


def test_host_ports_and_anti_affinity_keep_pods_apart_until_there_is_a_node() -> None:
    claimed = {"matchLabels": {"moorage.dev/claim": "claim-web"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": claimed}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    port: dict[str, Any] = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    world = World(LAB)
    world.want("lab/a", app(1, workload(replicas=3, affinity=apart)), app(2, workload(name="b", **port), name="b"))
    world.run(0.5)
    nodes = [[p.node for p in world.pods["lab/a"].values() if p.claim == f"claim-{name}"] for name in ("web", "b")]
    assert [len(set(used)) for used in nodes] == [3, 2]
    assert sorted(n.name for n in world.nodes["lab/a"].values() if n.host_ports == ["80/TCP"]) == sorted(nodes[1])
    world.want("lab/a", app(3, workload(replicas=4, affinity=apart)), app(2, workload(name="b", **port), name="b"))
    world.run(0.5)
    assert sum(not p.node for p in world.pods["lab/a"].values()) == 1
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


def test_a_version_that_is_sent_again_is_confirmed_again() -> None:
    world = World(slow_lab(applyDelayMs=500))
    world.want("lab/a", app(1, workload()), app(2, remove=True, name="gone"))
    world.run(0.1)
    world.to_confirm_again = [app(1), app(2, name="gone")]
    world.run(0.1)
    world.core.on_hint("lab/a", world.now)
    world.run(0.1)
    assert not world.confirms, "nothing was applied yet"
    world.to_confirm_again = []
    world.run(5)
    confirmed = {c.app: c for _, c in world.confirms}
    assert confirmed["front"].objects[0].state == "Ready" and confirmed["gone"].removed
    world.confirms.clear()
    world.run(5)
    assert not world.confirms, "only changes are confirmed"
    world.to_confirm_again = [app(1), app(2, name="gone")]
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


def test_removed_apps_are_forgotten() -> None:
    """Nothing grows with the number of apps that ever were; one that comes again is applied, whatever its version."""
    world = World(LAB)
    agent = world.core.agents["lab/a"]
    for number in range(40):
        world.want("lab/a", app(number + 1, workload(), name=f"app-{number}"))
        world.run(0.5)
        world.want("lab/a", app(number + 100, remove=True, name=f"app-{number}"))
        world.run(0.5)
        assert world.last().removed
    known = (agent.have, agent.confirmed, agent.cluster.applied.versions, agent.removed)
    assert {len(one) for one in known} == {40}
    world.want("lab/a")
    world.run(REMEMBERED_FOR - 60)
    assert {len(one) for one in known} == {40}
    world.want("lab/a", app(500, workload(), name="app-0"))
    world.run(1)
    world.run(120)
    assert [len(one) for one in known] == [1, 1, 1, 0]
    assert agent.have == {"p/shop/v1/default app-0": 500}
    world.want("lab/a", app(7, workload(), name="app-1"))
    world.run(1)
    assert world.last().version == 7 and not world.last().removed
    world.assert_reported()


def test_an_app_that_is_to_be_removed_again_is_confirmed_again() -> None:
    """The patcher names it until its claims are released, however long that takes."""
    world = World(LAB)
    world.want("lab/a", app(1, workload()))
    world.run(0.5)
    world.want("lab/a", app(2, remove=True))
    world.run(0.5)
    confirms = len(world.confirms)
    world.run(5 * REMEMBERED_FOR)
    again = world.confirms[confirms:]
    assert 2 <= len(again) <= 6
    assert all(confirm.removed and confirm.version == 2 for _, confirm in again)


def test_only_so_many_removed_apps_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_protocol, "REMEMBERED_APPS", 10)
    world = World(LAB)
    for number in range(30):
        world.want("lab/a", app(number + 1, workload(), name=f"app-{number}"))
        world.run(0.5)
        world.want("lab/a", app(number + 100, remove=True, name=f"app-{number}"))
        world.run(2.5)
    assert len(world.core.agents["lab/a"].have) <= 12
