"""The objects of a Machine field by field, and what Machines put on Nodes and take off again."""

from __future__ import annotations

import copy
from typing import Any

from moorage.machine_groups import read, sizes
from moorage.machine_groups.names import MACHINE_GROUP, NODE_MARKS, NODE_POOL, NODE_POOL_ALIAS
from moorage.machine_groups.node_marks import condition, marks, node_patch, node_view
from moorage.machine_groups.objects import difference, node_pool, service, stateful_set
from moorage.model.machines import Machine
from moorage_testkit.machine_world import merge
from moorage_testkit.machines import example

XLARGE = "imperator.tenzen-y.io/compute-xlarge"
LABELS = {
    "imperator.tenzen-y.io/machine-group": "general-machine",
    "imperator.tenzen-y.io/machine-type": "compute-xlarge",
    "imperator.tenzen-y.io/pod-role": "reservation",
}


def the_machine() -> Machine:
    machine = read(example()).machine
    assert machine is not None
    return machine


def test_the_stateful_set_and_the_service_of_a_type() -> None:
    machine = the_machine()
    made = stateful_set(machine, sizes(machine), "u1", "compute-xlarge")
    assert made["metadata"]["name"] == "compute-xlarge-general-machine"
    assert made["metadata"]["labels"] == LABELS
    assert made["metadata"]["ownerReferences"][0]["name"] == "general-machine"
    spec = made["spec"]
    assert spec["selector"] == {"matchLabels": LABELS}
    assert spec["serviceName"] == "compute-xlarge-general-machine"
    assert (spec["podManagementPolicy"], spec["updateStrategy"]) == ("Parallel", {"type": "OnDelete"})
    template = spec["template"]
    assert template["metadata"] == {"labels": LABELS}
    amounts = {"cpu": "40", "memory": "128Gi", "nvidia.com/gpu": "2"}
    assert template["spec"] == {
        "tolerations": [
            {"key": XLARGE, "effect": "NoSchedule", "operator": "Equal", "value": "general-machine"},
            {"key": NODE_POOL, "effect": "NoSchedule", "operator": "Equal", "value": "ready"},
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": XLARGE, "operator": "In", "values": ["general-machine"]},
                                {"key": NODE_POOL, "operator": "In", "values": ["ready"]},
                                {
                                    "key": "nvidia.com/gpu.product",
                                    "operator": "In",
                                    "values": ["NVIDIA-GeForce-RTX-3090"],
                                },
                            ]
                        }
                    ]
                }
            }
        },
        "schedulingGates": [{"name": "imperator.tenzen-y.io/slot"}],
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "sleeper",
                "image": "alpine:3.15.0",
                "command": ["sleep"],
                "args": ["infinity"],
                "resources": {"requests": amounts, "limits": amounts},
            }
        ],
    }
    found = service(machine, "u1", "compute-xlarge")
    assert (found["metadata"]["name"], found["metadata"]["labels"]) == ("compute-xlarge-general-machine", LABELS)
    assert found["spec"] == {"selector": LABELS, "type": "ClusterIP", "clusterIP": "None"}


def test_the_machine_node_pool() -> None:
    pool = node_pool(the_machine(), "u1")
    assert pool["metadata"]["name"] == "general-machine-node-pool"
    assert pool["metadata"]["labels"] == {MACHINE_GROUP: "general-machine"}
    assert pool["spec"] == {
        "machineGroup": "general-machine",
        "nodePool": [
            {"name": "michiru", "mode": "ready", "taint": True, "machineType": [{"name": "compute-xlarge"}]},
            {"name": "utaha", "mode": "maintenance", "taint": False, "machineType": [{"name": "compute-medium"}]},
            {"name": "eriri", "mode": "ready", "taint": True, "machineType": [{"name": "compute-medium"}]},
        ],
        "machineTypeStock": [{"name": "compute-medium"}, {"name": "compute-xlarge"}, {"name": "compute-large"}],
    }


def node(name: str = "michiru", ready: str = "True", **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "7",
            "labels": {},
            "annotations": {},
            **changes.pop("metadata", {}),
        },
        "spec": {"taints": [], **changes},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"cpu": "64"}},
    }


def patched(raw: dict[str, Any], *, index: int = 0, removed: bool = False) -> dict[str, Any]:
    """Returns the Node after the patch; a second one is not needed."""
    machine = the_machine()
    entry = machine.node_pool[index]
    after = copy.deepcopy(raw)

    def patch() -> dict[str, Any] | None:
        view = node_view(after)
        return node_patch(view, None if removed else marks(machine, sizes(machine), entry, view))

    first = patch()
    if first is not None:
        assert first["metadata"].pop("resourceVersion") == "7"
        merge(after, first)
    assert patch() is None
    return after


def test_a_ready_node() -> None:
    found = patched(node())
    assert found["metadata"]["labels"] == {XLARGE: "general-machine", NODE_POOL: "ready"}
    assert found["metadata"]["annotations"][MACHINE_GROUP] == "general-machine"
    assert found["spec"]["taints"] == [
        {"key": XLARGE, "value": "general-machine", "effect": "NoSchedule"},
        {"key": NODE_POOL, "value": "ready", "effect": "NoSchedule"},
    ]


def test_a_node_that_is_not_ready_or_in_maintenance() -> None:
    machine = the_machine()
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "then"}
    for raw in (node(ready="False"), node(ready="Unknown"), node(unschedulable=True), node(taints=[cordon])):
        found = patched(raw)
        assert found["metadata"]["labels"] == {XLARGE: "general-machine"}
        assert {"key": NODE_POOL, "value": "not-ready", "effect": "NoSchedule"} in found["spec"]["taints"]
        assert condition(machine.node_pool[0], node_view(raw)) == "NotReady"
    found = patched(node("utaha"), index=1)
    assert found["metadata"]["labels"] == {"imperator.tenzen-y.io/compute-medium": "general-machine"}
    assert found["spec"]["taints"] == []
    assert condition(machine.node_pool[1], node_view(node("utaha"))) == "Maintenance"
    assert condition(machine.node_pool[0], None) == "NotReady"


def test_taints_of_others_and_their_times_stay() -> None:
    """Taints were rewritten with another timeAdded, and labels of others lost."""
    theirs = {"key": "theirs", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    ours = {"key": NODE_POOL, "value": "ready", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    found = patched(node(taints=[theirs, ours], metadata={"labels": {"zone": "a", NODE_POOL_ALIAS: "ready"}}))
    assert found["spec"]["taints"][:2] == [theirs, ours]
    assert found["metadata"]["labels"]["zone"] == "a" and NODE_POOL_ALIAS not in found["metadata"]["labels"]


def test_nodes_are_cleaned_of_what_was_put_on_them() -> None:
    theirs = {"key": "theirs", "effect": "NoExecute"}
    before = node(taints=[theirs], metadata={"labels": {"zone": "a"}})
    marked = patched(before)
    assert patched(marked, removed=True) == before
    assert patched(before, removed=True) == before


def test_what_the_program_before_put_on_nodes_is_taken_over() -> None:
    old = {"key": NODE_POOL, "value": "not-ready", "effect": "NoSchedule"}
    labels = {NODE_POOL: "not-ready", "imperator.tenzen-y.io/old-type": "general-machine"}
    found = patched(node(taints=[old], metadata={"labels": labels, "annotations": {MACHINE_GROUP: "general-machine"}}))
    assert found["metadata"]["labels"] == {XLARGE: "general-machine", NODE_POOL: "ready"}
    assert [t["value"] for t in found["spec"]["taints"]] == ["general-machine", "ready"]
    assert NODE_MARKS in found["metadata"]["annotations"]


def test_differences_leave_defaults_alone() -> None:
    wanted = {"a": {"b": 1}, "list": [{"x": 1}]}
    assert difference(wanted, {"a": {"b": 1, "c": 2}, "list": [{"x": 1, "y": 2}], "d": 4}) is None
    assert difference(wanted, {"a": {"b": True}, "list": []}) == wanted
