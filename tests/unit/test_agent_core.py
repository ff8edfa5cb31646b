"""An agent's view of nodes and pods: sums are right in whatever order objects arrive, and reports contain what changed."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.agent.core import kube_types
from moorage.agent.core.cluster_state import ClusterState
from moorage.agent.core.pod_requests import exclusive_cores, requests
from moorage.agent.core.report_bodies import report_bodies
from moorage.kube.objects import Key
from moorage.model.reports import PART_BYTES, NodeReport, PodReport


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def pod_of(
    uid: str,
    node: str = "",
    *,
    cpu: str = "1",
    claim: str = "",
    phase: str = "Running",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> kube_types.Pod:
    labels = {"moorage.dev/claim": claim} if claim else None
    body = {
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "labels": labels},
        "spec": {
            "nodeName": node or None,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            **(spec or {}),
        },
        "status": {"phase": phase, **(status or {})},
    }
    return kube_types.pod(encoded(body))


def node_of(name: str, **extra: Any) -> kube_types.Node:
    body = {
        "metadata": {"name": name, "uid": f"uid-{name}", **extra.pop("metadata", {})},
        "spec": extra.pop("spec", {}),
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
            **extra,
        },
    }
    return kube_types.node(encoded(body))


def put(view: ClusterState, *pods: kube_types.Pod) -> None:
    for pod in pods:
        view.put_pod(Key("default", pod.metadata.name), pod)


def rows(view: ClusterState, *, full: bool = False) -> dict[str, NodeReport]:
    taken = view.full() if full else view.changed()
    return {r.name: r for r in (msgspec.json.decode(row, type=NodeReport) for row in taken.nodes)}


def test_requests_are_the_larger_of_running_and_starting() -> None:
    def one(name: str, cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [one("a", "500m"), one("b", "1")],
        "initContainers": [
            one("side", "200m", restartPolicy="Always"),
            one("big", "2"),
            one("late", "100m", restartPolicy="Always"),
        ],
        "overhead": {"cpu": "50m", "memory": "10Mi"},
    }
    # running: 500 + 1000 + 200 + 100; starting: 200 + 2000; the overhead on top
    assert requests(pod_of("p", spec=spec)) == {"cpu": 2250, "memory": 10 << 20}


def test_requests_of_a_whole_pod_and_of_one_being_resized() -> None:
    assert requests(pod_of("p", cpu="1", spec={"resources": {"requests": {"cpu": "3"}}})) == {"cpu": 3000}
    status = {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]}
    assert requests(pod_of("p", cpu="1", status=status)) == {"cpu": 2000}


def test_only_whole_guaranteed_cores_are_exclusive() -> None:
    assert exclusive_cores(pod_of("p", cpu="2", status={"qosClass": "Guaranteed"})) == 2
    assert exclusive_cores(pod_of("p", cpu="1500m", status={"qosClass": "Guaranteed"})) == 0
    assert exclusive_cores(pod_of("p", cpu="2", status={"qosClass": "Burstable"})) == 0


def test_nulls_are_nothing() -> None:
    body = b'{"metadata":{"name":"n","labels":null},"spec":{"taints":null},"status":{"allocatable":null,"conditions":null}}'
    view = ClusterState()
    view.put_node(Key("", "n"), kube_types.node(body))
    assert rows(view)["n"].ready is False


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["", "n1", "n2"]),
            st.sampled_from(["1", "250m"]),
            st.sampled_from(["Running", "Succeeded", "gone"]),
        ),
        max_size=40,
    )
)
def test_sums_are_those_of_what_is_there(steps: list[tuple[int, str, str, str]]) -> None:
    """After any history, the sums equal those of a view that saw only the final state."""
    view = ClusterState()
    for name in ("n1", "n2"):
        view.put_node(Key("", name), node_of(name))
    alive: dict[str, kube_types.Pod] = {}
    known = rows(view)
    for number, node, cpu, what in steps:
        uid = f"p{number}"
        if what == "gone":
            alive.pop(uid, None)
            view.drop_pod(Key("default", uid), uid)
        else:
            alive[uid] = pod_of(uid, node, cpu=cpu, phase=what, claim="c" if number % 2 else "")
            put(view, alive[uid])
        known |= rows(view)
    fresh = ClusterState()
    for name in ("n1", "n2"):
        fresh.put_node(Key("", name), node_of(name))
    put(fresh, *alive.values())
    assert known == rows(fresh, full=True) == rows(view, full=True)


def test_what_did_not_change_is_not_told_again() -> None:
    view = ClusterState()
    view.put_node(Key("", "n"), node_of("n"))
    assert list(rows(view)) == ["n"]
    heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "later"}
    view.put_node(Key("", "n"), node_of("n", conditions=[heartbeat]))
    assert not view.changed()
    put(view, pod_of("p", "n", claim="c"))
    assert len(view.changed().pods) == 1
    put(view, pod_of("p", "n", claim="c"))
    assert not view.changed()
    view.drop_pod(Key("default", "p"), "p")
    gone = view.changed()
    assert gone.pods_gone == ["p"] and len(gone.nodes) == 1
    view.drop_node(Key("", "n"), "uid-n")
    assert view.changed().nodes_gone == ["n"]


def test_a_claims_pod_says_where_it_is_and_what_is_wrong() -> None:
    view = ClusterState()
    status = {
        "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        ],
    }
    put(view, pod_of("p", "n", claim="c", phase="Pending", status=status))
    (row,) = view.changed().pods
    told = msgspec.json.decode(row, type=PodReport)
    assert (told.claim, told.node, told.requests) == ("c", "n", {"cpu": "1"})
    assert (told.containers[0].state, told.containers[0].reason) == ("waiting", "ImagePullBackOff")
    assert view.trouble(["c"]) == (True, "pod p: ImagePullBackOff: no such image")


def test_zones_and_whole_cores_come_from_the_nodes_topology() -> None:
    view = ClusterState()
    view.put_node(Key("", "n"), node_of("n"))
    zones = [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "available": "4"}]}]
    body = {"metadata": {"name": "n"}, "zones": zones, "attributes": [{"name": "cpuManagerPolicy", "value": "static"}]}
    view.put_topology(Key("", "n"), kube_types.topology(encoded(body)))
    put(view, pod_of("p", "n", cpu="3", status={"qosClass": "Guaranteed"}))
    row = rows(view)["n"]
    assert row.zones == zones and row.cpu_manager is not None
    assert (row.cpu_manager.policy, row.cpu_manager.exclusive_free) == ("static", 5)


def test_parts_stay_below_their_size_and_lose_nothing() -> None:
    view = ClusterState()
    label = {"x": "y" * 3000}
    for i in range(400):
        view.put_node(Key("", f"n{i}"), node_of(f"n{i}", metadata={"labels": label}))
    bodies = report_bodies(view.full(), "full", {"region": "eu"}, "before")
    assert len(bodies) > 2 and all(len(b) < PART_BYTES + 5000 for b in bodies)
    decoded = [msgspec.json.decode(b"{" + b + b"}") for b in bodies]
    assert sorted(n["name"] for d in decoded for n in d["nodes"]) == sorted(view.nodes)
    assert all(d["labels"] == {"region": "eu"} and d["succeeds"] == "before" for d in decoded)


def test_what_is_gone_is_cut_like_what_is_there() -> None:
    view = ClusterState()
    uids = [f"{i:08}-aaaa-4bbb-8ccc-ddddeeeeffff" for i in range(30_000)]
    names = [f"node-{i}-" + "x" * 200 for i in range(3000)]
    for name in names:
        view.put_node(Key("", name), node_of(name))
    for uid in uids:
        put(view, pod_of(uid, names[0], claim="c"))
    view.full()
    for uid in uids:
        view.drop_pod(Key("default", uid), uid)
    for name in names:
        view.drop_node(Key("", name), f"uid-{name}")
    bodies = report_bodies(view.changed(), "delta", {}, "")
    assert len(bodies) > 2 and all(len(b) < PART_BYTES + 5000 for b in bodies)
    decoded = [msgspec.json.decode(b"{" + b + b"}") for b in bodies]
    assert [uid for d in decoded for uid in d.get("podsGone", ())] == uids
    assert [name for d in decoded for name in d.get("nodesGone", ())] == names
