"""An agent's view of nodes and pods: sums are right in whatever order objects arrive, and reports contain what changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.agent.core import kube_types
from moorage.agent.core.cluster_state import ClusterState
from moorage.agent.core.pod_fingerprint import fingerprint, pod_hash, xxh64
from moorage.agent.core.pod_requests import exclusive_cores, requests
from moorage.agent.core.report_bodies import report_bodies
from moorage.kube.objects import Key
from moorage.model.part_reports import InventoryReport, ZoneReport
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


def test_a_pod_that_its_node_refused_is_told_though_it_was_deleted_at_once() -> None:
    """A stateful set makes another pod with the same name."""

    def refused(uid: str) -> kube_types.Pod:
        status = {"reason": "TopologyAffinityError", "message": "no zone"}
        return pod_of(uid, "n", claim="c", phase="Failed", status=status)

    for full in (False, True):
        view = ClusterState()
        put(view, pod_of("p", "n", claim="c", phase="Pending"))
        assert len(view.changed().pods) == 1
        put(view, refused("p"))
        view.drop_pod(Key("default", "p"), "p")
        found = view.full() if full else view.changed()
        told = msgspec.json.decode(found.pods[0], type=PodReport)
        assert (told.uid, told.phase, told.reason, told.message) == ("p", "Failed", "TopologyAffinityError", "no zone")
        assert found.pods_gone == []
        assert view.changed().pods_gone == ["p"]
        assert not view.changed()
        put(view, refused("q"))
        assert len(view.changed().pods) == 1
        view.drop_pod(Key("default", "q"), "q")
        assert view.changed().pods_gone == ["q"]


def test_the_fingerprint_of_pods_is_that_of_the_exporters() -> None:
    names = [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")]
    assert fingerprint(pod_hash(*name) for name in names) == "pfp0v001b92008c14168b3a6"
    assert fingerprint(pod_hash(*name) for name in reversed(names)) == "pfp0v001b92008c14168b3a6"
    assert (xxh64(b""), xxh64(b"a" * 33, 7)) == (0xEF46DB3751D8E999, 0x36827AAFCFFBEA05)


def topology_of(*zones: dict[str, Any], at: str = "", **body: Any) -> kube_types.Topology:
    fields = [{"manager": "exporter", "operation": "Update", "time": at}] if at else []
    return kube_types.topology(encoded({"metadata": {"name": "n", "managedFields": fields}, "zones": zones, **body}))


def attributes(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def zone(name: str, available: str = "8", **more: Any) -> dict[str, Any]:
    cpu = {"name": "cpu", "capacity": "10", "allocatable": "8", "available": available}
    return {"name": name, "type": "Node", "resources": [cpu], **more}


def row_with(topology: kube_types.Topology, *pods: kube_types.Pod) -> NodeReport:
    view = ClusterState()
    view.put_node(Key("", "n"), node_of("n"))
    view.put_topology(Key("", "n"), topology)
    put(view, *pods)
    return rows(view)["n"]


def test_zones_have_what_is_reserved_used_and_how_far_they_are() -> None:
    costs = [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
    socket = {"name": "socket-0", "type": "Socket"}
    row = row_with(topology_of(socket, zone("node-0", "5", parent="socket-0", costs=costs), zone("node-1")))
    assert row.zones is not None
    assert [(z.id, z.kind, z.parent) for z in row.zones] == [
        ("socket-0", "socket", ""),
        ("numa-0", "zone", "socket-0"),
        ("numa-1", "zone", ""),
    ]
    assert row.zones[1].inventories == {"cpu": InventoryReport(total="10", reserved="2")}
    assert row.zones[1].distances == {"numa-0": 10, "numa-1": 21}
    assert row.in_use == {"numa-0": {"cpu": "3"}}


def test_numbers_and_broken_amounts_in_zones_do_no_harm() -> None:
    odd = {"name": "cpu", "capacity": 8, "allocatable": 8, "available": 6}
    broken = {"name": "memory", "capacity": "x", "allocatable": "y", "available": "z"}
    given = {"name": "node-0", "type": "Node", "resources": [odd, broken, {"name": "gpu"}], "costs": [{"value": 1.5}]}
    row = row_with(topology_of(given, {"type": "Node"}))
    assert row.zones is not None
    assert row.zones[0].inventories == {"cpu": "8", "memory": "y", "gpu": "0"}
    assert row.in_use == {"numa-0": {"cpu": "2"}}


def test_a_topology_that_is_not_as_defined_tells_nothing() -> None:
    row = row_with(topology_of(zone("node-0"), attributes="none"))
    assert (row.zones, row.topology_manager, row.in_use, row.counted) == ([], None, {}, [])


@pytest.mark.parametrize(
    ("body", "policy", "scope"),
    [
        (
            {"attributes": attributes(topologyManagerPolicy="restricted", topologyManagerScope="pod")},
            "restricted",
            "pod",
        ),
        ({"attributes": attributes(topologyManagerPolicy="none")}, "none", "container"),
        ({"topologyPolicies": ["SingleNUMANodePodLevel"]}, "single-numa-node", "pod"),
        ({"topologyPolicies": ["SingleNUMANodeContainerLevel"]}, "single-numa-node", "container"),
        ({"topologyPolicies": ["RestrictedPodLevel"]}, "restricted", "pod"),
        ({"topologyPolicies": ["BestEffort"]}, "best-effort", "container"),
        (
            {
                "topologyPolicies": ["BestEffort"],
                "attributes": attributes(topologyManagerPolicy="restricted"),
            },
            "restricted",
            "container",
        ),
    ],
)
def test_policies_come_from_attributes_or_from_what_older_objects_have(
    body: dict[str, Any], policy: str, scope: str
) -> None:
    found = row_with(topology_of(zone("node-0"), **body)).topology_manager
    assert found is not None
    assert (found.policy, found.scope) == (policy, scope)
    assert row_with(topology_of(zone("node-0"), topologyPolicies=["Odd"])).topology_manager is None


def test_pods_are_counted_if_the_fingerprint_is_theirs() -> None:
    pods = [pod_of("a", "n", claim="c"), pod_of("b", "n"), pod_of("d", "n", claim="c", phase="Succeeded")]
    mine = fingerprint([pod_hash("default", "a"), pod_hash("default", "b")])
    told = topology_of(zone("node-0"), attributes=attributes(nodeTopologyPodsFingerprint=mine))
    assert row_with(told, *pods).counted == ["a"]
    assert row_with(told, *pods, pod_of("late", "n", claim="c")).counted == []
    assert row_with(topology_of(zone("node-0")), *pods).counted == []


def test_a_fingerprint_may_be_of_pods_with_cores_or_devices_of_their_own() -> None:
    whole = {"qosClass": "Guaranteed"}
    device = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    pods = [
        pod_of("a", "n", claim="c", status=whole),
        pod_of("b", "n", claim="c"),
        pod_of("g", "n", claim="c", spec=device),
    ]
    mine = fingerprint([pod_hash("default", "a"), pod_hash("default", "g")])
    method = {"nodeTopologyPodsFingerprintMethod": "with-exclusive-resources"}
    told = topology_of(zone("node-0", "7"), attributes=attributes(nodeTopologyPodsFingerprint=mine, **method))
    assert row_with(told, *pods).counted == ["a", "b", "g"]
    assert row_with(topology_of(attributes=attributes(nodeTopologyPodsFingerprint=mine)), *pods).counted == []


@pytest.mark.parametrize("at", ["", "2026-01-01T12:00:00Z"])
def test_zones_that_lack_what_pods_have_for_themselves_count_none_of_them(at: str) -> None:
    whole = {"qosClass": "Guaranteed", "startTime": "2026-01-01T10:00:00Z"}
    device = {"containers": [{"name": "c", "resources": {"requests": {"example.com/nic": "1"}}}]}
    pods = [
        pod_of("a", "n", cpu="2", claim="c", status=whole),
        pod_of("b", "n", cpu="1", claim="c", status=whole),
        pod_of("g", "n", claim="c", spec=device),
    ]
    says = {"nodeTopologyPodsFingerprint": fingerprint(pod_hash("default", name) for name in "abg")}

    def counted(cpus: str, nics: str, **more: str) -> list[str]:
        nic = {"name": "example.com/nic", "capacity": 2, "allocatable": 2, "available": nics}
        told = zone("node-0", cpus)
        told["resources"].append(nic)
        return row_with(topology_of(told, at=at, attributes=attributes(**says, **more)), *pods).counted

    assert counted("5", "1") == ["a", "b", "g"]
    assert counted("6", "1") == [], "three cores are exclusive, two are taken"
    assert counted("5", "2") == []
    assert counted("8", "1", cpuManagerPolicy="none") == ["a", "b", "g"], "no core is exclusive there"


def test_without_a_fingerprint_pods_are_counted_a_minute_after_their_start() -> None:
    def started(uid: str, at: str) -> kube_types.Pod:
        return pod_of(uid, "n", claim="c", status={"startTime": at})

    pods = [
        started("old", "2026-01-01T10:00:00Z"),
        started("new", "2026-01-01T10:01:01Z"),
        started("none", ""),
        started("odd", "yesterday"),
    ]
    told = topology_of(zone("node-0"), at="2026-01-01T10:02:00Z")
    assert row_with(told, *pods).counted == ["old"]
    lies = attributes(nodeTopologyPodsFingerprint="pfp0v001ffffffffffffffff")
    assert row_with(topology_of(zone("node-0"), at="2026-01-01T10:02:00Z", attributes=lies), *pods).counted == ["old"]
    assert row_with(topology_of(zone("node-0")), *pods).counted == []


def test_zones_and_whole_cores_come_from_the_nodes_topology() -> None:
    view = ClusterState()
    view.put_node(Key("", "n"), node_of("n"))
    resources = [{"name": "cpu", "capacity": "8", "allocatable": "7", "available": "4"}]
    zones = [{"name": "node-0", "type": "Node", "resources": resources, "costs": [{"name": "node-1", "value": 21}]}]
    body = {"metadata": {"name": "n"}, "zones": zones, "attributes": [{"name": "cpuManagerPolicy", "value": "static"}]}
    view.put_topology(Key("", "n"), kube_types.topology(encoded(body)))
    put(view, pod_of("p", "n", cpu="3", status={"qosClass": "Guaranteed"}))
    row = rows(view)["n"]
    assert row.zones == [
        ZoneReport(
            id="numa-0",
            inventories={"cpu": InventoryReport(total="8", reserved="1")},
            distances={"numa-1": 21},
        )
    ]
    assert row.in_use == {"numa-0": {"cpu": "3"}} and row.cpu_manager is not None
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


def test_host_ports_are_those_of_pods_that_run() -> None:
    def using(uid: str, *ports: dict[str, Any], phase: str = "Running", **spec: Any) -> kube_types.Pod:
        return pod_of(uid, "n", phase=phase, spec={"containers": [{"name": "c", "ports": list(ports)}], **spec})

    view = ClusterState()
    view.put_node(Key("", "n"), node_of("n"))
    sidecar = {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 9, "hostIP": "::1"}]}
    starting = {"name": "i", "ports": [{"containerPort": 1, "hostPort": 10}]}
    tcp, udp = {"containerPort": 1, "hostPort": 80}, {"containerPort": 1, "hostPort": 80, "protocol": "UDP"}
    put(view, using("a", tcp, {"containerPort": 5}, initContainers=[sidecar, starting]))
    put(view, using("b", udp, {**tcp, "hostIP": "0.0.0.0"}), using("done", {"hostPort": 7}, phase="Succeeded"))
    assert rows(view)["n"].host_ports == ["80/TCP", "80/UDP", "::1:9/TCP"]
    view.drop_pod(Key("default", "a"), "a")
    assert rows(view)["n"].host_ports == ["80/TCP", "80/UDP"]
    put(view, using("b", udp, phase="Failed"))
    assert rows(view)["n"].host_ports == []
