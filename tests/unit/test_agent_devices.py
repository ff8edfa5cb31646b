"""An agent reports the devices of a node that the scheduler would use: those of complete pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.agent.core import kube_types
from moorage.agent.core.cluster_state import ClusterState
from moorage.dra import objects as dra
from moorage.kube.objects import Key
from moorage.model.reports import NodeReport, PodReport
from moorage.podspec import CLAIM, SLOT_CLAIMS


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def put_node(view: ClusterState, name: str, **labels: str) -> None:
    body = {"metadata": {"name": name, "uid": name, "labels": labels}, "spec": {}, "status": {}}
    view.put_node(Key("", name), kube_types.node(encoded(body)))


def put_slice(
    view: ClusterState, name: str, *devices: str | dict[str, Any], generation: int = 1, count: int = 1, pool: str = "pool", **spec: Any
) -> None:  # fmt: skip
    listed = [d if isinstance(d, dict) else {"name": d} for d in devices]
    body = {
        "driver": "gpu.example.com",
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        "devices": listed,
        **spec,
    }
    view.put_slice(Key("", name), dra.slice_(encoded({"metadata": {"name": name}, "spec": body})))


class Told:
    """Keeps the devices as a receiver of all deltas knows them."""

    def __init__(self, view: ClusterState, *nodes: str) -> None:
        self.view = view
        self.rows: dict[str, NodeReport] = {}
        for name in nodes:
            put_node(view, name)

    def names(self) -> dict[str, list[str]]:
        for row in self.view.changed().nodes:
            report = msgspec.json.decode(row, type=NodeReport)
            self.rows[report.name] = report
        return {name: [d.name for d in row.devices] for name, row in self.rows.items() if row.devices}


def test_a_device_has_its_attributes_and_capacity() -> None:
    told = Told(ClusterState(), "n")
    device = {
        "name": "gpu-0",
        "attributes": {"model": {"string": "x"}, "fw": {"version": "1.2.0"}, "mig": {"bool": True}, "cc": {"int": 9}},
        "capacity": {"memory": {"value": "80Gi"}},
        "taints": [{"key": "broken", "effect": "NoSchedule"}],
    }
    put_slice(told.view, "s", device, nodeName="n")
    told.names()
    assert msgspec.to_builtins(told.rows["n"].devices) == [
        {
            "id": "gpu.example.com/pool/gpu-0",
            "driver": "gpu.example.com",
            "pool": "pool",
            "name": "gpu-0",
            "attributes": {"model": "x", "fw": {"version": "1.2.0"}, "mig": True, "cc": 9},
            "capacity": {"memory": "80Gi"},
            "taints": [{"key": "broken", "effect": "NoSchedule"}],
        }
    ]


def test_only_the_newest_generation_counts_and_only_when_it_is_whole() -> None:
    told = Told(ClusterState(), "n")
    put_slice(told.view, "old", "gpu-0", nodeName="n")
    assert told.names() == {"n": ["gpu-0"]}
    put_slice(told.view, "new-a", "gpu-0", "gpu-1", generation=2, count=2, nodeName="n")
    assert told.names() == {}, "half of a new generation is nothing to place on"
    put_slice(told.view, "new-b", "gpu-2", generation=2, count=2, nodeName="n")
    assert told.names() == {"n": ["gpu-0", "gpu-1", "gpu-2"]}
    told.view.drop_slice(Key("", "old"), "")
    assert told.names() == {"n": ["gpu-0", "gpu-1", "gpu-2"]}
    told.view.drop_slice(Key("", "new-b"), "")
    assert told.names() == {}


def test_a_pool_over_several_nodes_is_whole_or_not_for_all_of_them() -> None:
    told = Told(ClusterState(), "a", "b")
    put_slice(told.view, "s-a", "d0", count=2, nodeName="a")
    assert told.names() == {}
    put_slice(told.view, "s-b", "d1", count=2, nodeName="b")
    assert told.names() == {"a": ["d0"], "b": ["d1"]}
    told.view.drop_slice(Key("", "s-b"), "")
    assert told.names() == {}


def test_devices_of_several_nodes_stand_at_each_of_them() -> None:
    told = Told(ClusterState())
    put_node(told.view, "a", rack="r1")
    put_node(told.view, "b", rack="r2")
    put_slice(told.view, "net", "nic", pool="net", allNodes=True)
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]}
    put_slice(told.view, "rack", "shelf", pool="rack", nodeSelector=selector)
    assert told.names() == {"a": ["nic", "shelf"], "b": ["nic"]}
    assert all(d.shared for d in told.rows["a"].devices)
    put_node(told.view, "b", rack="r1")
    assert told.names()["b"] == ["nic", "shelf"], "a label moves a node into the rack"
    told.view.drop_slice(Key("", "net"), "")
    assert told.names() == {"a": ["shelf"], "b": ["shelf"]}


def test_each_device_may_say_for_itself_where_it_is() -> None:
    told = Told(ClusterState(), "a", "b")
    by_name = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}
    put_slice(
        told.view,
        "s",
        {"name": "mine", "nodeName": "a"},
        {"name": "theirs", "nodeSelector": by_name},
        {"name": "all", "allNodes": True},
        {"name": "nowhere"},
        perDeviceNodeSelection=True,
    )
    assert told.names() == {"a": ["mine", "all"], "b": ["theirs", "all"]}
    assert [d.shared for d in told.rows["a"].devices] == [False, True]


def slices_of(*cards: str) -> list[dict[str, Any]]:
    """A device for each, and one half of it, which take of one counter."""

    def takes(card: str, amount: str) -> list[dict[str, Any]]:
        return [{"counterSet": card, "counters": {"memory": {"value": amount}}}]

    return [
        {"name": name, "consumesCounters": takes(card, amount)}
        for card in cards
        for name, amount in ((card, "40Gi"), (f"{card}-half", "20Gi"))
    ]


def counters(*cards: str) -> list[dict[str, Any]]:
    return [{"name": card, "counters": {"memory": {"value": "40Gi"}}} for card in cards]


def test_devices_say_what_they_take_of_the_counters_of_their_pool() -> None:
    told = Told(ClusterState(), "n")
    put_slice(told.view, "counters", count=2, nodeName="n", sharedCounters=counters("a", "unused"))
    put_slice(told.view, "devices", *slices_of("a"), count=2, nodeName="n")
    assert told.names() == {"n": ["a", "a-half"]}
    row = told.rows["n"]
    assert [(d.name, d.consumes) for d in row.devices] == [
        ("a", {"a": {"memory": "40Gi"}}),
        ("a-half", {"a": {"memory": "20Gi"}}),
    ]
    found = [(c.driver, c.pool, c.name, c.counters) for c in row.counters]
    assert found == [("gpu.example.com", "pool", "a", {"memory": "40Gi"})]


def test_counters_of_several_nodes_make_their_devices_shared() -> None:
    told = Told(ClusterState(), "a", "b")
    per_node = [device | {"nodeName": node} for node, device in zip("aabb", slices_of("x", "y"), strict=True)]
    per_node.append({"name": "far", "nodeName": "b", "consumesCounters": slices_of("y")[1]["consumesCounters"]})
    per_node.append({"name": "crossing", "nodeName": "a", "consumesCounters": slices_of("y")[1]["consumesCounters"]})
    put_slice(told.view, "counters", count=2, allNodes=True, sharedCounters=counters("x", "y"))
    put_slice(told.view, "devices", *per_node, count=2, perDeviceNodeSelection=True)
    # Each node is told of what takes of its counters elsewhere.
    assert told.names() == {
        "a": ["x", "x-half", "crossing", "y", "y-half", "far"],
        "b": ["y", "y-half", "far", "crossing"],
    }
    assert [(d.shared, d.elsewhere) for d in told.rows["a"].devices] == [(False, False)] * 2 + [(True, False)] + [
        (True, True)
    ] * 3
    assert [(d.shared, d.elsewhere) for d in told.rows["b"].devices] == [(True, False)] * 3 + [(True, True)]
    assert [[c.name for c in told.rows[node].counters] for node in "ab"] == [["x", "y"], ["y"]]


def test_why_a_pool_does_not_count_is_told() -> None:
    told = Told(ClusterState(), "n", "m")
    put_slice(told.view, "half", "gpu-0", count=2, nodeName="n", pool="half")
    put_slice(told.view, "twice", "gpu-0", "gpu-1", "gpu-0", nodeName="n", pool="twice")
    put_slice(told.view, "lost", *slices_of("a"), nodeName="n", pool="lost")
    put_slice(told.view, "fine", "gpu-9", nodeName="n", pool="fine")
    assert told.names() == {"n": ["gpu-9"]}
    assert told.rows["n"].problems == [
        "pool gpu.example.com/half: 1 of 2 slices of generation 1 are there",
        "pool gpu.example.com/lost: devices take of the counter a/memory, which is not there",
        "pool gpu.example.com/twice: two devices are named gpu-0",
    ]
    assert not told.rows["m"].problems
    put_slice(told.view, "other half", "gpu-1", count=2, nodeName="m", pool="half")
    assert told.names() == {"n": ["gpu-9", "gpu-0"], "m": ["gpu-1"]}
    assert len(told.rows["n"].problems) == 2


def test_v1beta1_has_the_same_devices() -> None:
    told = Told(ClusterState(), "n")
    basic = {"attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "80Gi"}}}
    put_slice(told.view, "s", {"name": "gpu-0", "basic": basic}, nodeName="n")
    told.names()
    (device,) = told.rows["n"].devices
    assert (device.name, device.attributes, device.capacity) == ("gpu-0", {"model": "x"}, {"memory": "80Gi"})


def put_claim(view: ClusterState, name: str, *results: dict[str, Any], pods: Sequence[str] = ()) -> None:
    status: dict[str, Any] = {
        "allocation": {"devices": {"results": [{"driver": "gpu.example.com", "pool": "pool"} | r for r in results]}}
    }
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
    body = {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": status if results else {}}
    view.put_device_claim(Key("ns", name), dra.device_claim(encoded(body)))


def test_what_claims_hold_is_in_use() -> None:
    told = Told(ClusterState(), "n", "m")
    nic = {
        "name": "nic",
        "allowMultipleAllocations": True,
        "capacity": {"bandwidth": {"value": "10G"}, "slots": {"value": "4"}},
    }
    put_slice(told.view, "s", "gpu-0", "gpu-1", nic, nodeName="n")

    def in_use() -> dict[str, dict[str, str]]:
        told.names()
        prefix = "gpu.example.com/pool/"
        return {ident.removeprefix(prefix): amounts for ident, amounts in told.rows["n"].in_use.items()}

    assert in_use() == {}
    put_claim(told.view, "waiting")
    put_claim(told.view, "one", {"device": "gpu-0"}, {"device": "gpu-1", "adminAccess": True}, {"device": "gone"})
    put_claim(told.view, "two", {"device": "nic", "consumedCapacity": {"bandwidth": "2500M", "slots": 1}})
    put_claim(told.view, "three", {"device": "nic", "consumedCapacity": {"bandwidth": "1G"}})
    assert in_use() == {"gpu-0": {"GPU_EXAMPLE_COM": "1"}, "nic": {"BANDWIDTH": "3500000000", "SLOTS": "5"}}
    put_claim(told.view, "one", {"device": "gpu-1"})
    told.view.drop_device_claim(Key("ns", "two"), "")
    assert in_use() == {"gpu-1": {"GPU_EXAMPLE_COM": "1"}, "nic": {"BANDWIDTH": "1000000000", "SLOTS": "4"}}
    put_claim(told.view, "one")
    told.view.drop_device_claim(Key("ns", "three"), "")
    assert in_use() == {}
    assert told.rows["m"].in_use == {}


def put_pod(view: ClusterState, uid: str, node: str) -> None:
    meta = {"name": uid, "namespace": "ns", "uid": uid, "labels": {CLAIM: "c"}}
    body = {"metadata": meta, "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}}
    view.put_pod(Key("ns", uid), kube_types.pod(encoded(body)))


def test_pods_say_which_devices_they_alone_have() -> None:
    told, card = Told(ClusterState(), "n"), "gpu.example.com/pool/gpu-"
    view = told.view

    def parts() -> dict[str, dict[str, Any]]:
        """Returns the pods that are told of now, with what they take."""
        rows = [msgspec.json.decode(row, type=PodReport) for row in view.changed().pods]
        return {pod.uid: {part.removeprefix(card): of for part, of in pod.parts.items()} for pod in rows}

    put_pod(view, "a", "n")
    put_pod(view, "b", "n")
    put_claim(view, "one", {"device": "gpu-0"}, pods=["a"])
    one = {"GPU_EXAMPLE_COM": "1"}
    assert parts() == {"a": {"0": one}, "b": {}}, "whoever has a device has it still when it is not offered"
    put_slice(view, "s", "gpu-0", "gpu-1", "gpu-2", nodeName="n")
    assert parts() == {}
    put_claim(view, "two", {"device": "gpu-1"}, {"device": "gpu-2", "adminAccess": True}, pods=["a"])
    put_claim(view, "both", {"device": "gpu-2"}, pods=["a", "b"])
    assert parts() == {"a": {"0": one, "1": one}}, "of what several have nobody can say who takes it"
    put_claim(view, "one", {"device": "gpu-0"}, pods=["b"])
    assert parts() == {"a": {"1": one}, "b": {"0": one}}
    view.drop_device_claim(Key("ns", "one"), "")
    assert parts() == {"b": {}}
    everything = [msgspec.json.decode(row, type=PodReport) for row in view.full().pods]
    assert {pod.uid: len(pod.parts) for pod in everything} == {"a": 1, "b": 0}


def test_what_several_pods_have_together_one_of_the_claim_that_names_it_is_told_to_have() -> None:
    told, gpu = Told(ClusterState(), "n"), "gpu.example.com/pool/gpu-0"
    view = told.view
    put_slice(view, "s", "gpu-0", nodeName="n")

    def put(holders: str, *pods: str) -> None:
        results = [{"driver": "gpu.example.com", "pool": "pool", "device": "gpu-0", "request": "r"}]
        status = {"allocation": {"devices": {"results": results}}}
        reserved = {"reservedFor": [{"resource": "pods", "uid": uid} for uid in pods]}
        metadata = {"name": "joint", "namespace": "ns", "annotations": {SLOT_CLAIMS: holders}}
        view.put_device_claim(
            Key("ns", "joint"), dra.device_claim(encoded({"metadata": metadata, "status": status | reserved}))
        )

    def pod(uid: str, claim: str) -> None:
        meta = {"name": uid, "namespace": "ns", "uid": uid, "labels": {CLAIM: claim}}
        spec = {"nodeName": "n", "containers": []}
        view.put_pod(Key("ns", uid), kube_types.pod(encoded({"metadata": meta, "spec": spec})))

    def state() -> tuple[list[str], bool]:
        """Returns the pods that are told to have the device, and whether it is in use."""
        rows = [msgspec.json.decode(row, type=PodReport) for row in view.full().pods]
        told.rows.clear()
        told.names()
        (row,) = (msgspec.json.decode(raw, type=NodeReport) for raw in view.full().nodes)
        return [found.uid for found in rows if gpu in found.parts], gpu in row.in_use

    put("mine", "x", "y")
    assert state() == ([], True), "pods of others, for all that is known"
    pod("y", "other")
    pod("z", "mine")
    assert state() == ([], True)
    pod("x", "mine")
    assert state() == (["x"], True)
    put("mine", "x", "y", "z")
    assert state() == (["x"], True)
    view.drop_pod(Key("ns", "x"), "x")
    assert state() == (["z"], True)
    put("mine,other", "y")
    assert state() == (["y"], True)
    put("other")
    assert state() == ([], True), "allocated, and nobody's"
    view.drop_device_claim(Key("ns", "joint"), "")
    assert state() == ([], False)


def waiting_pod(view: ClusterState, uid: str, **more: Any) -> None:
    meta = {"name": uid, "namespace": "ns", "uid": uid, "labels": {CLAIM: "c"}}
    containers = [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]
    spec = {"containers": containers, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}], **more}
    view.put_pod(Key("ns", uid), kube_types.pod(encoded({"metadata": meta, "spec": spec, "status": {}})))


def allocated(view: ClusterState, uid: str, node: str, *, reserved: bool) -> None:
    """Allocates the claim that is made for a pod, on a node alone."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    results = [{"driver": "gpu.example.com", "pool": "pool", "device": "gpu-0", "request": "r"}]
    found: dict[str, Any] = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
    status = {"allocation": found} | ({"reservedFor": [{"resource": "pods", "uid": uid}]} if reserved else {})
    metadata = {"name": uid, "namespace": "ns", "ownerReferences": [{"kind": "Pod", "uid": uid}]}
    view.put_device_claim(Key("ns", uid), dra.device_claim(encoded({"metadata": metadata, "status": status})))


@pytest.mark.parametrize("reserved", [True, False])  # before, where an agent allocates
def test_a_pod_with_devices_is_at_their_node_before_it_is_bound(reserved: bool) -> None:
    view = ClusterState()
    for name in ("n", "m"):
        put_node(view, name)
    put_slice(view, "s", "gpu-0", nodeName="n")
    nodes: dict[str, NodeReport] = {}

    def pod() -> tuple[str, list[str], dict[str, str]]:
        """Returns where the pod is, its devices, and what is requested of the node n."""
        rows = view.changed()
        nodes.update({row.name: row for row in (msgspec.json.decode(raw, type=NodeReport) for raw in rows.nodes)})
        told = [msgspec.json.decode(raw, type=PodReport) for raw in rows.pods]
        return told[-1].node, sorted(told[-1].parts), nodes["n"].requested

    waiting_pod(view, "p")
    assert pod() == ("", [], {})
    allocated(view, "p", "n", reserved=reserved)
    assert pod() == ("n", ["gpu.example.com/pool/gpu-0"], {"cpu": "2"})
    waiting_pod(view, "p", nodeName="n")
    view.drop_device_claim(Key("ns", "other"), "")
    assert pod() == ("n", ["gpu.example.com/pool/gpu-0"], {"cpu": "2"})
    view.drop_pod(Key("ns", "p"), "p")
    view.changed()
    waiting_pod(view, "p")
    view.drop_device_claim(Key("ns", "p"), "")
    assert pod() == ("", [], {}), "conditions failed, so the scheduler gave the devices back"
    allocated(view, "p", "n", reserved=reserved)
    pod()
    view.drop_pod(Key("ns", "p"), "p")
    (row,) = (msgspec.json.decode(raw, type=NodeReport) for raw in view.changed().nodes)
    assert row.requested == {}


_steps = st.tuples(
    st.sampled_from(["s1", "s2", "s3"]),
    st.sampled_from(["", "a", "b", "all"]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from(["p", "q"]),
)


@given(st.lists(_steps, max_size=12))
def test_changes_add_up_to_what_is_there(steps: list[tuple[str, str, int, int, str]]) -> None:
    """Checks that a receiver of all deltas knows the same as one of a full report, in whatever order objects come and go."""
    told, there = Told(ClusterState(), "a", "b"), dict[str, tuple[str, int, int, str]]()
    for name, where, generation, count, pool in steps:
        if where:
            place: dict[str, Any] = {"allNodes": True} if where == "all" else {"nodeName": where}
            put_slice(told.view, name, f"d-{name}", generation=generation, count=count, pool=pool, **place)
            there[name] = (where, generation, count, pool)
        else:
            told.view.drop_slice(Key("", name), "")
            there.pop(name, None)
        known = told.names()
        late = Told(ClusterState(), "a", "b")
        for one, (at, number, many, of) in there.items():
            place = {"allNodes": True} if at == "all" else {"nodeName": at}
            put_slice(late.view, one, f"d-{one}", generation=number, count=many, pool=of, **place)
        assert known == late.names()


def test_rules_taint_devices_of_drivers() -> None:
    told = Told(ClusterState(), "n")
    put_slice(told.view, "s", "gpu-0", "gpu-1", nodeName="n")
    assert told.names() == {"n": ["gpu-0", "gpu-1"]}
    selector = {"driver": "gpu.example.com", "device": "gpu-1"}
    taint = {"key": "broken", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}
    told.view.put_taint_rule(Key("", "r"), dra.device_taint_rule(msgspec.json.encode(rule)))
    told.names()
    taints = {d.name: [(t.key, t.effect, t.time_added) for t in d.taints] for d in told.rows["n"].devices}
    assert taints == {"gpu-0": [], "gpu-1": [("broken", "NoExecute", "2026-01-01T00:00:00Z")]}
    told.view.drop_taint_rule(Key("", "r"), "")
    told.names()
    assert not any(device.taints for device in told.rows["n"].devices)


def test_a_class_backs_an_extended_resource_where_no_plugin_does() -> None:
    told = Told(ClusterState(), "n")
    put_slice(told.view, "s", "gpu-0", "gpu-1", "gpu-2", nodeName="n")
    selector = {"cel": {"expression": "device.driver == 'gpu.example.com'"}}
    spec = {"selectors": [selector], "extendedResourceName": "example.com/gpu"}
    found = {"metadata": {"name": "c"}, "spec": spec}
    told.view.put_device_class(Key("", "c"), dra.device_class(msgspec.json.encode(found)))
    told.names()
    assert told.rows["n"].allocatable["example.com/gpu"] == "3"
    results = [{"driver": "gpu.example.com", "pool": "pool", "device": "gpu-1"}]
    claim = {"metadata": {"name": "x"}, "status": {"allocation": {"devices": {"results": results}}}}
    told.view.put_device_claim(Key("d", "x"), dra.device_claim(msgspec.json.encode(claim)))
    told.names()
    assert told.rows["n"].allocatable["example.com/gpu"] == "2"
