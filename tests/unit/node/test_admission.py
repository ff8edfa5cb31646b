"""Admission is whole or nothing, says with code and numbers why a pod is refused, and lets every other pod start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from moorage.node import plugin_messages as messages
from moorage.node.api import resourceplugin_pb2 as wire
from moorage.qos.admission import Admitted, Call, Failed, PluginInfo, Refused, Result, admit, check_conflicts
from moorage.qos.messages import ContainerType, ResourceAllocationInfo, ResourceRequest
from moorage.qos.topology_hints import Hint
from moorage_testkit.nodes import GB, SimulatedNode, pod

BASE = "{kind: NodePolicy, spec: {reservedCpus: '0-1,40-41'}}"


def codes(outcome: Admitted | Refused) -> list[str]:
    assert isinstance(outcome, Refused), outcome
    return [refusal.code for refusal in outcome.refusals]


def containers(*asked: tuple[str, Any, Any], init: tuple[tuple[str, Any, Any], ...] = ()) -> dict[str, Any]:
    def one(name: str, cpu: Any, memory: Any, **more: Any) -> dict[str, Any]:
        amounts = {"cpu": str(cpu), "memory": str(memory)}
        return {"name": name, "resources": {"requests": amounts, "limits": amounts}, **more}

    return {"containers": [one(*c) for c in asked], "initContainers": [one(*c) for c in init]}


# --- roles


def test_roles_that_the_node_does_not_know_are_refused() -> None:
    assert codes(SimulatedNode(BASE).admit(pod("p", "nonsense", 1))) == ["RoleUnknown"]


def test_contradicting_roles_are_refused() -> None:
    asked = pod("p", "ETL", 1, labels={"katalyst.kubewharf.io/pod_role": "reranker"})
    assert codes(SimulatedNode(BASE).admit(asked)) == ["RoleUnknown"]


def test_roles_are_kept_for_their_namespaces() -> None:
    node = SimulatedNode("{kind: NodePolicy, spec: {roles: {ETL: {pool: offline, namespaces: [batch]}}}}")
    assert codes(node.admit(pod("p", "ETL", 1))) == ["RoleForbidden"]
    assert isinstance(node.admit(pod("q", "ETL", 1, namespace="batch")), Admitted)


def test_pods_with_a_role_wait_for_their_manifest_and_plugins() -> None:
    node = SimulatedNode(BASE)
    asked = pod("p", "reranker", 4, GB)
    asked.requests_known = False
    assert codes(node.admit(asked)) == ["SpecMissing"]
    node.node.plugins["memory"] = PluginInfo(resource="memory", running=False)  # type: ignore[index]
    assert codes(node.admit(pod("q", "reranker", 4, GB))) == ["PluginMissing"]
    plain = pod("r", cpu=1)
    plain.requests_known = False
    assert isinstance(node.admit(plain), Admitted)


# --- what is short


def test_a_refusal_has_needed_free_and_the_nearest_miss_per_zone() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("a", "storage-service", 20, GB))
    refused = node.admit(pod("b", "reranker", 39, GB))
    assert isinstance(refused, Refused)
    [why] = refused.refusals
    assert (why.code, why.resource, why.container, why.needed, why.free) == (
        "TopologyAffinityError",
        "cpu",
        "container0",
        39,
        38,
    )
    assert [(m.zone, m.free, m.message) for m in why.nearest] == [
        (1, 38, "38 of 39 CPUs"),
        (0, 18, "held by storage-service"),
    ]
    assert refused.message.startswith("TopologyAffinityError: ")


def test_memory_of_the_zone_counts_too() -> None:
    node = SimulatedNode(BASE)
    assert codes(node.admit(pod("a", "storage-service", 4, 238 * GB))) == ["TopologyAffinityError"]
    assert node.cpu.entries == {}


def test_a_refused_pod_starts_as_soon_as_it_fits() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("shared"))
    node.given(pod("a", "storage-service", 38, GB))
    node.given(pod("b", "reranker", 38, GB))
    assert node.cpu.resources_allocation()["uid-shared"]["container0"]["cpu"].allocation_result == "0-1,40-41"
    waiting = pod("c", "storage-service", 10, GB)
    assert codes(node.admit(waiting)) == ["TopologyAffinityError"] * 2  # neither CPUs nor memory
    node.remove("uid-b")
    assert node.given(waiting)["CpusetCpus"] == "42-51"


def test_nothing_of_a_pod_stays_when_one_container_is_refused() -> None:
    node = SimulatedNode("{kind: NodePolicy, spec: {native: static}}")
    asked = pod("p", labels={"moorage.dev/claim": "c1"}, **containers(("a", 30, GB), ("b", 60, GB)))
    assert codes(node.admit(asked)) == ["TopologyAffinityError"]
    assert all(not plugin.entries for plugin in node.plugins.values())
    node.check()


# --- several containers


def test_sidecars_and_init_containers_run_inside_the_main_set() -> None:
    node = SimulatedNode(BASE)
    asked = pod(
        "p",
        "storage-service",
        annotations={"kubernetes.io/main-container-name": "main"},
        **containers(("side", 1, GB), ("main", 8, GB), init=(("prepare", 4, GB),)),
    )
    assert isinstance(node.admit(asked), Admitted)
    given = {name: r["cpu"].allocation_result for name, r in node.records["uid-p"].containers.items()}
    assert given == {"main": "2-9", "side": "2-9", "prepare": "2-9"}
    assert {r["memory"].allocation_result for r in node.records["uid-p"].containers.values()} == {"0"}
    assert node.cpu.exclusive.bit_count() == 8


def test_guaranteed_containers_with_whole_cpus_have_them_alone() -> None:
    node = SimulatedNode(BASE)
    asked = pod("p", **containers(("a", 4, GB), ("b", 2, GB), ("c", "1500m", GB), init=(("i", 3, GB),)))
    assert isinstance(node.admit(asked), Admitted)
    given = {name: r["cpu"].allocation_result for name, r in node.records["uid-p"].containers.items()}
    assert given["a"] == "2-5"
    assert given["b"] == "6-7"
    assert given["i"] == "2-4"
    assert given["c"] == "8-39,42-79"
    node.check()


def test_too_few_free_cpus_mean_the_pool_for_who_insists_on_nothing() -> None:
    node = SimulatedNode(BASE)
    outcome = node.admit(pod("p", cpu=77, memory=GB, guaranteed=True))
    assert isinstance(outcome, Admitted)
    assert outcome.record.containers["container0"]["cpu"].allocation_result == "2-39,42-79"
    assert outcome.warnings == ("container0: 77 CPUs of its own are not free; it shares those of the default pool",)
    claimed = pod("q", cpu=77, memory=GB, guaranteed=True, labels={"moorage.dev/claim": "x"})
    assert codes(node.admit(claimed)) == ["TopologyAffinityError"]


def test_cpus_of_a_claim_without_zones_are_aligned_as_well_as_may_be() -> None:
    node = SimulatedNode(BASE)
    for number in range(4):
        node.given(pod(f"half-{number}", cpu=17, memory=GB, guaranteed=True))
    claimed = pod("q", cpu=8, memory=GB, guaranteed=True, labels={"moorage.dev/claim": "x"})
    assert node.given(claimed)["CpusetCpus"] == "36-39,76-79"


def test_containers_that_request_nothing_stay_away_from_exclusive_cpus() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("own", "storage-service", 20, GB))
    assert node.given(pod("p")) == {"CpusetCpus": "22-39,42-79"}


def test_a_pod_is_aligned_as_a_whole_by_the_pod_calls() -> None:
    node = SimulatedNode("{kind: NodePolicy, spec: {topologyScope: pod}}")
    asked = pod("p", "storage-service", **containers(("a", 4, GB), ("b", 2, GB)))
    assert isinstance(node.admit(asked), Admitted)
    given = {r["cpu"].allocation_result for r in node.records["uid-p"].containers.values()}
    assert given == {"0-5"}
    assert node.cpu.exclusive.bit_count() == 6


def test_a_guaranteed_pod_that_is_aligned_as_a_whole_has_its_cpus_alone() -> None:
    node = SimulatedNode("{kind: NodePolicy, spec: {topologyScope: pod}}")
    assert isinstance(node.admit(pod("p", **containers(("a", 4, GB), ("b", 2, GB)))), Admitted)
    assert node.cpu.exclusive.bit_count() == 6
    outcome = node.admit(pod("q", **containers(("a", 70, GB), ("b", 8, GB))))
    assert isinstance(outcome, Admitted)
    assert outcome.warnings == ("the pod: 78 CPUs of its own are not free; it shares those of the default pool",)


def test_requests_are_the_same_at_the_other_end_of_a_socket() -> None:
    pod_request = ResourceRequest(
        pod_uid="u",
        resource="cpu",
        namespace="n",
        pod_name="p",
        role="ETL",
        type="t",
        hint=Hint(3, True),
        requests={"cpu": 2.5},
        labels={"a": "b"},
        annotations={"c": "d"},
        qos_class="guaranteed",
    )
    sent = messages.pod_request(pod_request).SerializeToString()
    assert messages.read_pod_request(wire.PodResourceRequest.FromString(sent)) == pod_request
    request = pod_request._replace(
        container="main", container_type=ContainerType.SIDECAR, container_index=2, limits={"cpu": 3.0}
    )
    sent = messages.container_request(request).SerializeToString()
    assert messages.read_container_request(wire.ResourceRequest.FromString(sent)) == request


# --- admitted again


def test_a_pod_that_is_admitted_again_keeps_what_it_has_without_a_call() -> None:
    node = SimulatedNode(BASE)
    asked = pod("p", "storage-service", 20, GB)
    node.given(asked)
    with pytest.raises(StopIteration) as done:
        next(admit(asked, node.node, node.records))
    assert done.value.value.reused
    assert done.value.value.record.containers == node.records["uid-p"].containers


def test_a_resize_moves_exclusive_sets_and_keeps_what_it_can() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("p", "storage-service", 4, GB))
    assert node.given(pod("p", "storage-service", 6, GB))["CpusetCpus"] == "2-7"
    assert codes(node.admit(pod("p", "storage-service", 60, GB))) == ["TopologyAffinityError"]
    assert node.cpu.resources_allocation()["uid-p"]["container0"]["cpu"].allocation_result == "2-7"
    node.check()


def test_a_resize_gives_back_what_is_not_needed_any_more() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("p", "storage-service", 20, GB))
    assert node.given(pod("p", "storage-service", 4, GB))["CpusetCpus"] == "2-5"
    assert node.given(pod("q", "storage-service", 10, GB))["CpusetCpus"] == "42-51"  # storage-service keeps to itself
    assert node.cpu.exclusive.bit_count() == 14
    node.check()


def test_a_resize_stays_in_its_zone() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("first", "storage-service", 20, GB))
    assert node.given(pod("p", "storage-service", 4, GB))["CpusetCpus"] == "42-45"
    node.remove("uid-first")
    assert node.given(pod("p", "storage-service", 6, 2 * GB))["CpusetCpus"] == "42-47"
    node.check()


def test_cpus_without_a_role_follow_what_is_asked() -> None:
    node = SimulatedNode(BASE)
    assert node.given(pod("p", cpu=10, memory=GB, guaranteed=True))["CpusetCpus"] == "2-11"
    assert node.given(pod("p", cpu=4, memory=GB, guaranteed=True))["CpusetCpus"] == "2-5"
    assert node.given(pod("p", cpu="2500m", memory=GB, guaranteed=True))["CpusetCpus"] == "2-39,42-79"
    assert node.given(pod("p", cpu=3, memory=GB, guaranteed=True))["CpusetCpus"] == "2-4"
    outcome = node.admit(pod("p", cpu=77, memory=GB, guaranteed=True))
    assert isinstance(outcome, Admitted)
    assert outcome.record.containers["container0"]["cpu"].allocation_result == "2-4"
    assert outcome.warnings == ("container0: 77 CPUs of its own are not free; it keeps the 3 that it has",)
    node.check()


def test_a_resize_that_one_container_cannot_have_leaves_the_others_as_they_were() -> None:
    node = SimulatedNode(BASE)
    small = pod("p", labels={"moorage.dev/claim": "x"}, **containers(("a", 4, GB), ("b", 4, GB)))
    assert isinstance(node.admit(small), Admitted)
    before = node.cpu.resources_allocation()
    large = pod("p", labels={"moorage.dev/claim": "x"}, **containers(("a", 8, GB), ("b", 90, GB)))
    assert codes(node.admit(large)) == ["TopologyAffinityError"]
    after = node.cpu.resources_allocation()
    assert {n: r["cpu"].allocated_quantity for n, r in after["uid-p"].items()} == {"a": 4, "b": 4}
    assert after == before
    node.check()


# --- claims


def claimed(name: str, zones: list[int], cpu: int = 4, **more: Any) -> Any:
    runs = [{"count": 1, "parts": {f"n/numa-{zone}": {"cpu": str(cpu)}}} for zone in zones]
    return pod(
        name,
        cpu=cpu,
        memory=GB,
        guaranteed=True,
        labels={"moorage.dev/claim": "c"},
        annotations={"moorage.dev/parts": json.dumps({"n": runs, "other": []})},
        **more,
    )


def test_a_claim_names_the_zone_and_its_slots_are_taken_in_order() -> None:
    node = SimulatedNode(BASE)
    given = [node.given(claimed(name, [1, 0]))["CpusetCpus"] for name in ("a", "b")]
    assert given == ["42-45", "2-5"]
    node.remove("uid-a")
    assert node.given(claimed("c", [1, 0]))["CpusetCpus"] == "42-45"


def test_a_claim_that_its_zone_cannot_meet_is_refused() -> None:
    node = SimulatedNode(BASE)
    node.given(pod("own", "storage-service", 36, GB))
    assert codes(node.admit(claimed("p", [0]))) == ["ClaimUnmet"]
    assert codes(node.admit(claimed("q", [7]))) == ["ClaimUnmet"]
    broken = pod("r", cpu=1, labels={"moorage.dev/claim": "c"}, annotations={"moorage.dev/parts": "{"})
    assert codes(node.admit(broken)) == ["ClaimUnmet"]


def test_a_role_obeys_its_claim() -> None:
    node = SimulatedNode(BASE)
    asked = claimed("p", [1])
    asked.role = "storage-service"
    assert node.given(asked) == {"CpusetCpus": "42-45", "CpusetMems": "1"}


# --- plugins of others


class Strangers:
    """A plugin of somebody else beside the built-in ones."""

    def __init__(self, answers: Mapping[str, Result]) -> None:
        self.node = SimulatedNode(BASE)
        self.node.node.plugins["example.com/fpga"] = PluginInfo(resource="example.com/fpga")  # type: ignore[index]
        self.answers = answers
        self.calls: list[str] = []

    def admit(self, **asked: Any) -> Admitted | Refused:
        wanted = pod("p", cpu=1, requests={"example.com/fpga": "1"}, **asked)
        calls = admit(wanted, self.node.node, {})
        results: list[Result] | None = None
        try:
            while True:
                batch = next(calls) if results is None else calls.send(results)
                results = [self.perform(call) for call in batch]
        except StopIteration as done:
            found: Admitted | Refused = done.value
            return found

    def perform(self, call: Call) -> Result:
        if call.plugin in self.node.plugins:
            from moorage.qos.admission import call_plugin

            return call_plugin(self.node.plugins[call.plugin], call)
        self.calls.append(call.method)
        return self.answers.get(call.method)


def test_a_strangers_resource_is_given_and_its_environment_kept() -> None:
    info = ResourceAllocationInfo(
        allocation_result="fpga0", envs={"FPGA": "0"}, is_scalar_resource=True, allocated_quantity=1
    )
    strangers = Strangers({"hints": {"example.com/fpga": [Hint(2, True)]}, "allocate": {"example.com/fpga": info}})
    outcome = strangers.admit()
    assert isinstance(outcome, Admitted)
    given = outcome.record.containers["container0"]["example.com/fpga"]
    assert (given.envs, given.resource_hints[0].nodes) == ({"FPGA": "0"}, (1,))


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"hints": Failed("connection reset")}, "UnexpectedAdmissionError"),
        ({"hints": Failed("PoolMinimum: said by itself")}, "PoolMinimum"),
        ({"hints": {"example.com/fpga": []}}, "TopologyAffinityError"),
        ({"hints": {}, "allocate": Failed("deadline exceeded")}, "UnexpectedAdmissionError"),
        (
            {"allocate": {"example.com/fpga": ResourceAllocationInfo(oci_property_name="Nope", allocation_result="1")}},
            "UnexpectedAdmissionError",
        ),
    ],
)
def test_a_stranger_that_fails_costs_its_pod_only(answers: Mapping[str, Result], code: str) -> None:
    strangers = Strangers(answers)
    assert codes(strangers.admit()) == [code]
    assert not strangers.node.cpu.entries
    assert isinstance(strangers.node.admit(pod("q", cpu=1)), Admitted)


def test_no_preference_is_not_impossible() -> None:
    for hints in ({}, {"example.com/fpga": None}):
        strangers = Strangers({"hints": hints, "allocate": {}})
        assert isinstance(strangers.admit(), Admitted)
        assert strangers.calls == ["hints", "allocate"]


def test_two_plugins_that_set_one_property_differently_are_refused_by_name() -> None:
    info = ResourceAllocationInfo(oci_property_name="CpusetCpus", allocation_result="7")
    strangers = Strangers({"hints": {}, "allocate": {"example.com/fpga": info}})
    outcome = strangers.admit()
    assert codes(outcome) == ["UnexpectedAdmissionError"]
    assert isinstance(outcome, Refused)
    assert "cpu and example.com/fpga" in outcome.message
    assert "remove" in strangers.calls
    assert check_conflicts.__doc__
