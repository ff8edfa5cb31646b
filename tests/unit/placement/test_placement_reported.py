"""Shows nodes and parts of clusters as providers."""

from __future__ import annotations

import uuid

import pytest

from moorage.model.part_reports import (
    ZoneReport,
)
from moorage.model.reports import Taint
from moorage.model.shapes import EXCLUSIVE
from moorage.parts.layout import provider_uuid
from moorage.placement.core.errors import Refused
from moorage.placement.core.reported_names import DISABLED, cluster_aggregate
from moorage_testkit.fleets import node

from .reported_mesh import ONE, Mesh, part, refused, zoned


def test_nodes_and_parts_are_providers_with_names_parents_and_classes() -> None:
    mesh = Mesh(one=[zoned(resources={"nvidia.com/gpu": "2", "ephemeral-storage": "10Gi"})])
    shown = {p["name"]: p for p in mesh.call("GET", "/resource_providers")["resource_providers"]}
    assert shown.keys() == {f"{ONE}/n-0{path}" for path in ("", "/numa-0", "/numa-1", "/fpga-0", "/fpga-1", "/any")}
    root = part("n-0")
    assert shown[f"{ONE}/n-0"]["uuid"] == root and shown[f"{ONE}/n-0"]["parent_provider_uuid"] is None
    assert shown[f"{ONE}/n-0/fpga-1"]["parent_provider_uuid"] == part("n-0/numa-1")
    assert {p["root_provider_uuid"] for p in shown.values()} == {root}

    def totals(ident: str) -> dict[str, int]:
        found = mesh.call("GET", f"/resource_providers/{part(ident)}/inventories")["inventories"]
        return {name: one["total"] for name, one in found.items()}

    assert totals("n-0") == {"MEMORY_MB": 16384, "DISK_GB": 10, "CUSTOM_NVIDIA_COM_GPU": 2, "CUSTOM_PODS": 110}
    assert (
        totals("n-0/numa-0") == {"VCPU": 4} and totals("n-0/any") == {"VCPU": 8} and totals("n-0/fpga-0") == {"FPGA": 1}
    )
    found = mesh.call("GET", f"/resource_providers/{root}/aggregates")
    assert found["aggregates"] == [cluster_aggregate(ONE)]
    assert cluster_aggregate(ONE) == str(uuid.uuid5(uuid.NAMESPACE_URL, f"moorage:cluster/{ONE}"))
    assert root == str(uuid.uuid5(uuid.NAMESPACE_URL, f"moorage:part/{ONE}/n-0"))


@pytest.mark.parametrize(
    "query, paths",
    [
        (f"name={ONE}/n-1/fpga-0", {"n-1/fpga-0"}),
        (f"uuid={provider_uuid(ONE, 'n-0/any')}", {"n-0/any"}),
        (f"in_tree={provider_uuid(ONE, 'n-1/any')}&required=HW_NUMA_ROOT", {"n-1/numa-0", "n-1/numa-1"}),
        (f"member_of={cluster_aggregate(ONE)}", {"n-0", "n-1"}),
        ("resources=FPGA:1&required=CUSTOM_FPGA_A", {f"n-{n}/fpga-{z}" for n in (0, 1) for z in (0, 1)}),
        ("resources=VCPU:5", {"n-0/any", "n-1/any"}),
        (f"member_of={uuid.UUID(int=1)}", set()),
        (f"name={ONE}/n-2", set()),
    ],
)
def test_nodes_and_parts_are_listed_by_every_condition(query: str, paths: set[str]) -> None:
    mesh = Mesh(one=[zoned(), zoned()], two=[])
    found = mesh.call("GET", f"/resource_providers?{query}")["resource_providers"]
    assert {p["name"].removeprefix(f"{ONE}/") for p in found} == paths


def test_amounts_are_rounded_so_that_nothing_is_promised_and_checked_as_nodes_count() -> None:
    mesh = Mesh(one=[node(cpu="3500m", memory="1000Mi", requested={"cpu": "500m"})])
    root = part("n-0")
    assert mesh.call("GET", f"/resource_providers/{root}/inventories")["inventories"]["VCPU"]["total"] == 3
    assert mesh.usages(root)["VCPU"] == 1, "what strangers use, rounded up"
    assert mesh.candidates("resources=VCPU:3") == [{root: {"VCPU": 3}}]
    mesh.put({root: {"VCPU": 3}})
    assert mesh.free("cpu") == 0 and mesh.candidates("resources=VCPU:1") == []


def test_traits_come_from_zones_reports_and_labels() -> None:
    labels = {
        "feature.node.kubernetes.io/cpu-cpuid.AVX2": "true",
        "feature.node.kubernetes.io/cpu-cpuid.AVX512F": "false",
        "kubernetes.io/arch": "amd64",
        "example.com/CUSTOM_RACK_A": "true",
    }
    mesh = Mesh(one=[zoned(labels=labels), node(cpu="4", labels=labels)])
    assert mesh.traits(part("n-0")) == ["CUSTOM_RACK_A", "HW_ARCH_X86_64"], "it offers no cpu: its zones do"
    assert mesh.traits(part("n-0/numa-1")) == ["HW_CPU_X86_AVX2", "HW_NUMA_ROOT"]
    assert mesh.traits(part("n-0/any")) == ["HW_CPU_X86_AVX2"] and mesh.traits(part("n-0/fpga-0")) == ["CUSTOM_FPGA_A"]
    assert mesh.traits(part("n-1")) == ["CUSTOM_RACK_A", "HW_ARCH_X86_64", "HW_CPU_X86_AVX2"]
    assert mesh.candidates("resources=FPGA:1&required=CUSTOM_FPGA_A")
    with pytest.raises(Refused, match="No such trait"):
        mesh.candidates("resources=FPGA:1&required=CUSTOM_NOTHING")


def test_unusable_nodes_give_no_candidates_and_say_so() -> None:
    taint = Taint(key="k", effect="NoSchedule")
    nodes = [
        node(cpu="4"),
        node(cpu="4", ready=False),
        node(cpu="4", unschedulable=True),
        node(cpu="4", taints=[taint]),
    ]
    mesh = Mesh(one=nodes)
    assert mesh.candidates("resources=VCPU:1") == [{part("n-0"): {"VCPU": 1}}]
    assert [DISABLED in mesh.traits(part(f"n-{i}")) for i in range(4)] == [False, True, True, True]
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", mesh.body({part("n-1"): {"VCPU": 1}}))
    mesh.report(ONE, node("n-1", cpu="4"))
    assert len(mesh.candidates("resources=VCPU:1")) == 2 and DISABLED not in mesh.traits(part("n-1"))


def test_numa_guests_and_plain_ones_share_a_host() -> None:
    mesh = Mesh(one=[zoned()])
    pair = "resources_C=VCPU:3&resources_A=FPGA:1&required_Z=HW_NUMA_ROOT&same_subtree=_C,_A,_Z"
    zones = [{part(f"n-0/numa-{z}"): {"VCPU": 3}, part(f"n-0/fpga-{z}"): {"FPGA": 1}} for z in (0, 1)]
    assert mesh.candidates(pair) == zones
    mesh.put({part("n-0/any"): {"VCPU": 4}})
    assert mesh.free("cpu") == 4000
    assert mesh.candidates(pair) == zones and mesh.candidates("resources=VCPU:5") == []
    assert mesh.candidates("resources_1=VCPU:3&resources_2=VCPU:3&group_policy=isolate") == [], (
        "the node has four in all"
    )
    mesh.put(zones[0])
    assert mesh.candidates(pair) == [] and mesh.free("cpu") == 1000
    assert mesh.usages(part("n-0/numa-0"))["VCPU"] == 3 and mesh.usages(part("n-0/any"))["VCPU"] == 7


def test_exclusive_cores_are_cores() -> None:
    mesh = Mesh(one=[node(cpu="4", exclusive=3)])
    root = part("n-0")
    assert mesh.candidates("resources=PCPU:3") == [{root: {"PCPU": 3}}]
    assert mesh.candidates("resources=PCPU:3,VCPU:1") == [{root: {"PCPU": 3, "VCPU": 1}}]
    assert mesh.candidates("resources=PCPU:3,VCPU:2") == [] == mesh.candidates("resources_1=PCPU:3&resources_2=VCPU:2")
    assert mesh.candidates("resources_1=PCPU:2&resources_2=PCPU:1") == [{root: {"PCPU": 3}}]
    assert mesh.candidates("resources_1=PCPU:2&resources_2=PCPU:2") == []
    mesh.put({root: {"PCPU": 2}})
    assert mesh.free("cpu") == 2000 and mesh.candidates("resources=PCPU:2") == [] != mesh.candidates("resources=PCPU:1")


def test_exclusive_cores_of_a_zone_are_cores_of_the_zone() -> None:
    zones = [ZoneReport(id=z, inventories={"cpu": "3", EXCLUSIVE: "3"}) for z in (0, 1)]
    mesh = Mesh(one=[node("n", cpu="6", exclusive=6, zones=zones)])
    first, second = part("n/numa-0"), part("n/numa-1")
    mesh.put({first: {"VCPU": 2}})
    assert mesh.candidates("resources=PCPU:2") == [{second: {"PCPU": 2}}]
    both = "resources_1=PCPU:{}&resources_2=VCPU:2&required_2=HW_NUMA_ROOT&same_subtree=_1,_2"
    assert mesh.candidates(both.format(1)) == [{second: {"PCPU": 1, "VCPU": 2}}]
    assert mesh.candidates(both.format(2)) == []
    assert mesh.candidates("resources_1=PCPU:2,VCPU:2&required_1=HW_NUMA_ROOT") == []
    (shown,) = mesh.call("GET", "/resource_providers?resources=PCPU:2")["resource_providers"]
    assert shown["uuid"] == second


def test_made_providers_share_with_nodes_by_their_aggregate() -> None:
    mesh = Mesh(one=[node(cpu="4"), node(cpu="4")], two=[node(cpu="4")])
    pool = mesh.call("POST", "/resource_providers", {"name": "pool"})["uuid"]
    for path, body in (
        ("inventories", {"resource_provider_generation": 0, "inventories": {"DISK_GB": {"total": 100}}}),
        ("traits", {"resource_provider_generation": 1, "traits": ["MISC_SHARES_VIA_AGGREGATE"]}),
        ("aggregates", {"resource_provider_generation": 2, "aggregates": [cluster_aggregate(ONE)]}),
    ):
        mesh.call("PUT", f"/resource_providers/{pool}/{path}", body)
    found = mesh.candidates("resources=VCPU:1,DISK_GB:60")
    assert found == [{part(f"n-{i}"): {"VCPU": 1}, pool: {"DISK_GB": 60}} for i in (0, 1)]
    mesh.put(found[0])
    assert mesh.candidates("resources=VCPU:1,DISK_GB:60") == [] and mesh.free("cpu") == 3000
    assert len(mesh.candidates("resources=VCPU:1,DISK_GB:40")) == 2
