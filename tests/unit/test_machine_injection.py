"""Pods become guests: the size of a slot, where they may go, their gate; and what of guests may be changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from moorage.machine_groups import read, sizes
from moorage.machine_groups.injection import Denied, Injected, MachineGroup, exceeded, guest_change, inject
from moorage.machine_groups.names import (
    CONTAINER,
    CONTAINER_ALIAS,
    GRANTED_AT,
    MACHINE,
    MACHINE_GROUP,
    MACHINE_TYPE,
    POD_ROLE,
    SLOT_GATE,
    SLOT_OF,
)
from moorage_testkit.machines import example, machine

TYPE_KEY = "imperator.tenzen-y.io/compute-xlarge"
POOL_KEY = "imperator.tenzen-y.io/node-pool"
PRODUCT = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-GeForce-RTX-3090"]}
TERM = [
    {"key": TYPE_KEY, "operator": "In", "values": ["general-machine"]},
    {"key": POOL_KEY, "operator": "In", "values": ["ready"]},
    PRODUCT,
]


def groups(*documents: dict[str, Any]) -> dict[str, MachineGroup]:
    found = {}
    for document in documents or (example(),):
        machine = read(document).machine
        assert machine is not None
        found[machine.group] = MachineGroup(machine, sizes(machine))
    return found


def pod(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    marks = {MACHINE_TYPE: "compute-xlarge"} if labels is None else labels
    return {"metadata": {"generateName": "g-", "labels": marks}, "spec": {"containers": [{"name": "main"}], **spec}}


def injected(given: dict[str, Any], known: dict[str, MachineGroup] | None = None) -> dict[str, Any]:
    before = copy.deepcopy(given)
    found = inject(given, "team", known or groups())
    assert isinstance(found, Injected), found
    assert given == before
    again = inject(found.pod, "team", known or groups())
    assert isinstance(again, Injected) and again.patch == []
    return found.pod


def denied(given: dict[str, Any], known: dict[str, MachineGroup] | None = None) -> str:
    found = inject(given, "team", known or groups())
    assert isinstance(found, Denied), found
    return f"{found.code}: {found.message}"


def terms(guest: dict[str, Any]) -> list[dict[str, Any]]:
    node = guest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[dict[str, Any]] = node["nodeSelectorTerms"]
    return found


def test_a_guest_has_the_size_of_its_slot_and_goes_nowhere_else() -> None:
    guest = injected(pod())
    assert guest["metadata"]["labels"] == {
        MACHINE_GROUP: "general-machine",
        MACHINE_TYPE: "compute-xlarge",
        POD_ROLE: "guest",
    }
    amounts = {"cpu": "40", "memory": "128Gi", "nvidia.com/gpu": "2"}
    assert guest["spec"]["containers"] == [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]
    assert guest["spec"]["tolerations"] == [
        {"key": TYPE_KEY, "effect": "NoSchedule", "operator": "Equal", "value": "general-machine"},
        {"key": POOL_KEY, "effect": "NoSchedule", "operator": "Equal", "value": "ready"},
    ]
    assert terms(guest) == [{"matchExpressions": TERM}]
    assert guest["spec"]["schedulingGates"] == [{"name": SLOT_GATE}]


def test_what_a_guest_has_already_is_not_written_twice() -> None:
    amounts = {"cpu": "40000m", "memory": "128Gi", "nvidia.com/gpu": "2"}
    first = injected(pod())
    first["spec"]["containers"][0]["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    again = injected(first)
    assert again["spec"]["tolerations"] == first["spec"]["tolerations"] and len(terms(again)) == 1


@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, {"podAffinity": {}}])
def test_affinity_without_required_terms(affinity: Any) -> None:
    assert terms(injected(pod(affinity=affinity))) == [{"matchExpressions": TERM}]


def test_own_affinity_terms_do_not_let_a_guest_escape() -> None:
    """Terms are ORed: each gets the requirements; one without any selects no Node and stays so."""
    own: list[dict[str, Any]] = [
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        {},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}
    guest = injected(pod(affinity={"nodeAffinity": required}))
    assert terms(guest) == [
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}, *TERM]},
        {"matchFields": own[1]["matchFields"], "matchExpressions": TERM},
        {},
    ]


def test_the_named_container_gets_the_slot_and_a_wrong_name_is_refused() -> None:
    containers = [{"name": "proxy"}, {"name": "train", "resources": {"limits": {"example.com/x": "1"}}}]
    for label in (CONTAINER, CONTAINER_ALIAS):
        guest = injected(pod({MACHINE_TYPE: "compute-xlarge", label: "train"}, containers=containers))
        assert "resources" not in guest["spec"]["containers"][0]
        assert guest["spec"]["containers"][1]["resources"]["limits"]["example.com/x"] == "1"
        assert guest["spec"]["containers"][1]["resources"]["limits"]["cpu"] == "40"
    wrong = pod({MACHINE_TYPE: "compute-xlarge", CONTAINER: "main2"}, containers=containers)
    assert "the Pod has proxy, train" in denied(wrong)
    both = {MACHINE_TYPE: "compute-xlarge", CONTAINER: "proxy", CONTAINER_ALIAS: "train"}
    assert "differ" in denied(pod(both, containers=containers))


def resources(cpu: str, kind: str = "requests") -> dict[str, Any]:
    return {kind: {"cpu": cpu}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({}, "40"),
        ({"containers": [{"name": "main"}, {"name": "side", "resources": resources("500m")}]}, "39500m"),
        ({"containers": [{"name": "main"}, {"name": "side", "resources": resources("1", "limits")}]}, "39"),
        ({"initContainers": [{"name": "s", "restartPolicy": "Always", "resources": resources("2")}]}, "38"),
        ({"initContainers": [{"name": "once", "resources": resources("40")}]}, "40"),
        ({"overhead": {"cpu": "250m"}}, "39750m"),
    ],
)
def test_the_rest_of_the_pod_is_part_of_the_slot(spec: dict[str, Any], cpu: str) -> None:
    guest = injected(pod(**spec))
    assert guest["spec"]["containers"][0]["resources"]["limits"]["cpu"] == cpu


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"name": "main"}, {"name": "side", "resources": resources("40")}]},
        {"initContainers": [{"name": "once", "resources": resources("41")}]},
        {"initContainers": [{"name": "s", "restartPolicy": "Always", "resources": resources("40")}]},
        {"overhead": {"cpu": "40"}},
        {"resources": {"requests": {"cpu": "41"}}},
    ],
)
def test_where_nothing_is_left_for_the_container_it_is_refused(spec: dict[str, Any]) -> None:
    assert "nothing is left" in denied(pod(**spec))


def test_resources_of_the_whole_pod_become_the_slot() -> None:
    guest = injected(pod(resources={"requests": {"cpu": "1"}, "limits": {"cpu": "2", "hugepages-2Mi": "4Mi"}}))
    assert guest["spec"]["resources"] == {"requests": {"cpu": "40"}, "limits": {"cpu": "40", "hugepages-2Mi": "4Mi"}}


def test_which_group_a_guest_belongs_to() -> None:
    other = machine(
        "other", {"compute-xlarge": {"spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}}, {"x": ["compute-xlarge"]}
    )
    both = groups(example(), other)
    named = {MACHINE_TYPE: "compute-xlarge", MACHINE_GROUP: "other"}
    assert injected(pod(named), both)["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1"
    assert "several groups" in denied(pod(), both)
    assert "no Machine has it" in denied(pod({MACHINE_TYPE: "tiny"}))
    assert "no Machine has it" in denied(pod({MACHINE_TYPE: ""}))
    assert "there is no Machine with group" in denied(pod({MACHINE_TYPE: "tiny", MACHINE_GROUP: "gone"}))
    assert "it has compute-large" in denied(pod({MACHINE_TYPE: "tiny", MACHINE_GROUP: "general-machine"}))
    alias = injected(pod({MACHINE: "compute-xlarge"}))
    assert alias["metadata"]["labels"][MACHINE_TYPE] == "compute-xlarge"
    assert "differ" in denied(pod({MACHINE: "compute-large", MACHINE_TYPE: "compute-xlarge"}))
    assert inject(pod({}), "team", groups()) is None
    assert inject(pod({MACHINE_TYPE: "compute-xlarge", POD_ROLE: "reservation"}), "team", groups()) is None


def test_who_may_use_a_machine() -> None:
    document = example()
    document["spec"]["allow"] = {"namespaces": ["ml"]}
    assert "NotAllowed" in denied(pod(), groups(document))
    document["spec"]["allow"]["namespaces"].append("team")
    injected(pod(), groups(document))
    assert "NotAllowed" in denied(pod(nodeName="michiru"))


def test_guests_tolerate_all_types_that_share_their_nodes() -> None:
    small = {"spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}
    child = {"spec": {"dependence": {"machineType": "b", "availableRatio": 0.5}}}
    known = groups(machine("g", {"a": small, "b": small, "c": child, "d": small}, {"n1": ["a", "b"], "n2": ["d"]}))
    keys = [t["key"].rpartition("/")[2] for t in injected(pod({MACHINE_TYPE: "a"}), known)["spec"]["tolerations"]]
    assert keys == ["a", "node-pool", "b", "c"]


def test_what_of_a_guest_may_be_changed() -> None:
    """Finalizers of Jobs are removed by updates of Pods: everything but our labels and our gate is the business of others."""
    guest = injected(pod())

    def change(by_controller: bool = False, **spec: Any) -> Denied | None:
        after = copy.deepcopy(guest)
        after["metadata"] |= spec.pop("metadata", {})
        after["spec"] |= spec
        return guest_change(guest, after, by_controller=by_controller)

    assert change() is None
    assert change(metadata={"finalizers": [], "annotations": guest["metadata"]["annotations"]}) is None
    labels = guest["metadata"]["labels"]
    for key in (MACHINE_GROUP, MACHINE_TYPE, POD_ROLE):
        assert change(metadata={"labels": {**labels, key: "x"}}) is not None
        assert change(metadata={"labels": {k: v for k, v in labels.items() if k != key}}) is not None
    assert change(metadata={"labels": {**labels, "app": "x"}}) is None
    assert change(schedulingGates=[]) is not None
    assert change(by_controller=True, schedulingGates=[]) is None
    marked = {SLOT_OF: guest["metadata"]["annotations"][SLOT_OF], GRANTED_AT: "1"}
    assert change(by_controller=True, schedulingGates=[], metadata={"annotations": marked}) is None
    for changed in ({}, {SLOT_OF: "other/type"}):  # by which the API server knows a guest at the next change
        assert change(metadata={"annotations": changed}) is not None


def test_a_pod_may_not_grow_beyond_its_slot() -> None:
    size = groups()["general-machine"].sizes["compute-xlarge"]
    guest = injected(pod())
    assert exceeded(guest["spec"], size, "x") is None
    guest["spec"]["containers"].append({"name": "side", "resources": resources("1m")})
    assert exceeded(guest["spec"], size, "x") is not None
