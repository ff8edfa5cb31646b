"""Fleet documents are decoded strictly, all violations are reported, and counts are expanded exactly."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.fleet import normalize_node
from moorage.model.part_reports import TopologyManager
from moorage.model.problems import Refused
from moorage.model.reports import NodeReport
from moorage.parts.layout import layout_of
from moorage.sim.core.cluster_rows import original_rows
from moorage.sim.core.cluster_spec import initial_usage
from moorage.sim.core.fleet_documents import decode, expand
from moorage.sim.core.fleet_generator import KINDS, generate, kinds
from moorage_testkit.seeds import seeds

FULL: dict[str, Any] = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "Fleet",
    "clusters": [
        {
            "name": "edge-1",
            "provider": "lab",
            "labels": {"region": "eu"},
            "nodes": [
                {
                    "name": "n",
                    "count": 2,
                    "labels": {"gpu": "true"},
                    "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
                    "allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 2},
                    "cpuManager": {"policy": "static", "exclusive": 6},
                    "zones": [
                        {"id": 0, "resources": {"cpu": 4}, "used": {"cpu": 1}, "distances": [10, 21]},
                        {"id": "b", "cpus": "4-7", "memory": "8Gi", "reserved": {"cpus": 1}},
                    ],
                    "providers": [
                        {
                            "name": "card",
                            "zone": "b",
                            "inventories": {"FPGA": {"total": 2, "maxUnit": 1}},
                            "providers": [
                                {"name": "f0", "inventories": {"VF": 8}, "used": {"CUSTOM_VF": 3}, "traits": ["T"]}
                            ],
                        }
                    ],
                    "topologyManager": {"policy": "restricted", "scope": "pod"},
                },
                {"name": "m", "allocatable": {"cpu": 4.5}, "ready": False, "unschedulable": True},
            ],
            "pods": [{"metadata": {"name": "p"}, "spec": {"nodeName": "n-1", "containers": [{"name": "c"}]}}],
            "behaviour": {"applyDelayMs": 50, "readyDelayMs": 200, "topologyDelayMs": 700, "bindingDelayMs": 300},
        },
        {"name": "far", "count": 3},
    ],
}


def test_expansion() -> None:
    fleet = expand(decode(FULL))
    assert list(fleet) == ["lab/edge-1", "sim/far-0", "sim/far-1", "sim/far-2"]
    spec = fleet["lab/edge-1"]
    assert [name for name, _ in spec.nodes()] == ["n-0", "n-1", "m"]
    assert (spec.apply_delay, spec.ready_delay, spec.topology_delay, spec.binding_delay) == (0.05, 0.2, 0.7, 0.3)
    rows = [msgspec.json.decode(k.row(spec.id, n, {"cpu": 1500}, 3, 2), type=NodeReport) for n, k in spec.nodes()]
    first, _, last = rows
    assert first.labels == {"kubernetes.io/hostname": "n-0", "gpu": "true"}
    assert first.allocatable == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2", "pods": "110"}
    assert first.requested == {"cpu": "1500m"}
    assert first.pod_count == 3
    assert first.cpu_manager is not None and first.cpu_manager.exclusive_free == 4
    assert [t.key for t in first.taints] == ["k"]
    assert (last.ready, last.unschedulable, last.cpu_manager) == (False, True, None)
    assert last.allocatable["cpu"] == "4500m"


def test_kind_and_version_may_be_left_out() -> None:
    assert list(expand(decode({"clusters": [{"name": "a", "count": 1}]}))) == ["sim/a"]


def test_the_inside_of_nodes_is_reported_with_what_is_in_use() -> None:
    _, cluster = next(iter(expand(decode(FULL)).items()))
    row = msgspec.json.decode(next(original_rows(cluster)), type=NodeReport)
    made, problem = normalize_node(row)
    layout = layout_of(made.inside)
    assert not problem
    assert [part.path for part in layout.parts] == ["", "/numa-0", "/b", "/b/card", "/b/card/f0", "/any"]
    assert (made.requested["cpu"], row.in_use) == (1000, {"numa-0": {"cpu": "1"}, "b/card/f0": {"VF": "3"}})
    assert layout.inside.zones[0].distances == {"numa-0": 10, "b": 21}
    assert (layout.parts[2].inventories["cpu"].capacity, layout.parts[3].inventories["FPGA"].max_unit) == (3000, 1)
    assert layout.inside.topology_manager == TopologyManager(policy="restricted", scope="pod")


DEEP: dict[str, Any] = {"name": "x"}
for _ in range(40):
    DEEP = {"name": "x", "providers": [DEEP]}


@pytest.mark.parametrize(
    ("inside", "path", "code"),
    [
        ({"zones": [{"id": 0, "resources": {"cpu": 5}}, {"id": 1, "resources": {"cpu": 4}}]}, "zones", "BadInventory"),
        ({"zones": [{"id": 0, "resources": {"memory": "1Gi"}}]}, "zones", "BadInventory"),
        ({"zones": [{"id": 0, "resources": {"cpu": 4}}], "providers": [{"name": "a", "zone": 0, "inventories": {"VCPU": 5}}]}, "zones[0]", "BadInventory"),
        ({"zones": [{"id": 0}, {"id": "numa-0"}]}, "zones[1].id", "Duplicate"),
        ({"zones": [{"id": 0, "parent": "a"}, {"id": "a", "parent": 0}]}, "zones[0].parent", "Cycle"),
        ({"zones": [{"id": 0, "parent": 0}]}, "zones[0].parent", "Cycle"),
        ({"zones": [{"id": 0, "parent": 7}]}, "zones[0].parent", "UnknownZone"),
        ({"zones": [{"id": "any"}]}, "zones[0].id", "BadName"),
        ({"zones": [{"id": "a/b"}]}, "zones[0].id", "BadName"),
        ({"zones": [{"id": -1}]}, "zones[0].id", "BadName"),
        ({"zones": [{"id": 0, "distances": [10, 21]}]}, "zones[0].distances", "BadValue"),
        ({"zones": [{"id": 0, "cpus": "3-1"}]}, "zones[0].resources", "BadInventory"),
        ({"zones": [{"id": 0, "resources": {"cpu": 1}, "used": {"cpu": 2}}]}, "zones[0].used.cpu", "BadInventory"),
        ({"zones": [{"id": 0, "used": {"cpu": -2}}]}, "zones[0].used.cpu", "OutOfRange"),
        ({"zones": [{"id": 0, "used": {"cpu": "x"}}]}, "zones[0].used.cpu", "BadQuantity"),
        ({"providers": [{"name": "a", "zone": 3}]}, "providers[0].zone", "UnknownZone"),
        ({"providers": [{"name": "a"}, {"name": "a"}]}, "providers[1].name", "Duplicate"),
        ({"zones": [{"id": "a"}], "providers": [{"name": "a"}]}, "providers[0].name", "Duplicate"),
        ({"providers": [{"name": "any"}]}, "providers[0].name", "BadName"),
        ({"providers": [{"name": "a", "providers": [{"name": "b", "zone": 0}]}]}, "providers[0].providers[0].zone", "BadValue"),
        ({"providers": [{"name": "a", "inventories": {"F": -1}}]}, "providers[0].inventories", "BadInventory"),
        ({"providers": [{"name": "a", "inventories": {"F": {"total": 1, "reserved": 2}}}]}, "providers[0].inventories", "BadInventory"),
        ({"providers": [{"name": "a", "inventories": {"F": {"total": 1, "most": 2}}}]}, "providers[0].inventories", "WrongType"),
        ({"providers": [{"name": "a", "inventories": {"F": 10**30}}]}, "providers[0].inventories.F", "BadInventory"),
        ({"providers": [{"name": "a", "inventories": {"F": {"total": 2**63}}}]}, "providers[0].inventories.F", "BadInventory"),
        ({"providers": [{"name": "a", "inventories": {"F": 1.5}}]}, "providers[0].inventories.F", "BadInventory"),
        ({"providers": [{"name": "a", "inventories": {"F": {"total": 1, "allocationRatio": math.nan}}}]}, "providers[0].inventories.F.allocationRatio", "BadInventory"),
        ({"providers": [{"name": "a", "inventories": {"F": 1}, "used": {"F": 10**30}}]}, "providers[0].used.F", "OutOfRange"),
        ({"providers": [{"name": "a", "inventories": {"F": 1}, "used": {"F": 0.5}}]}, "providers[0].used.F", "BadQuantity"),
        ({"providers": [{"name": "a", "inventories": {"F": 2}, "used": {"F": 1, "CUSTOM_F": 1}}]}, "providers[0].used.CUSTOM_F", "Duplicate"),
        ({"providers": [{"name": "a", "traits": ["T", "a b"]}]}, "providers[0].traits[1]", "BadName"),
        ({"providers": [{"name": "a", "providers": [{"name": "b", "traits": ["A" * 256]}]}]}, "providers[0].providers[0].traits[0]", "BadName"),
        ({"providers": [{"name": "a", "aggregates": [""]}]}, "providers[0].aggregates[0]", "BadName"),
        ({"providers": [{"name": "a", "aggregates": ["r1,r2"]}]}, "providers[0].aggregates[0]", "BadName"),
        ({"providers": [{"name": "a", "properties": {"a b": 1}}]}, "providers[0].properties.a b", "BadName"),
        ({"providers": [{"name": "a", "properties": {"x": math.nan}}]}, "providers[0].properties.x", "BadValue"),
        ({"providers": [{"name": "a", "properties": {"x": 10**30}}]}, "providers[0].properties.x", "BadValue"),
        ({"zones": [{"id": 0, "traits": ["low"]}]}, "zones[0].traits[0]", "BadName"),
        ({"zones": [{"id": 10**30}]}, "zones[0].id", "BadName"),
        ({"zones": [{"id": 0, "memory": 10**30}]}, "zones[0].memory", "BadInventory"),
        ({"zones": [{"id": 0, "distances": [10**30]}]}, "zones[0].distances", "BadValue"),
        ({"zones": [{"id": 0, "distances": {"b": 10}}]}, "zones[0].distances.b", "UnknownZone"),
        ({"zones": [{"id": 0, "cpus": "0-3,2-4"}]}, "zones[0].resources", "BadInventory"),
        ({"zones": [{"id": 0, "cpus": "0-3"}, {"id": 1, "cpus": "3-5"}]}, "zones[1].cpus", "BadInventory"),
        ({"zones": [{"id": 0, "cpus": 10**30}], "nodePolicy": {}}, "zones[0].resources", "BadInventory"),
        ({"devices": [{"name": "d", "kind": "g" * 256}]}, "devices[0].kind", "BadName"),
        ({"devices": [{"name": "d", "kind": "g", "properties": {"x": math.inf}}]}, "devices[0].properties.x", "BadValue"),
        ({"devices": [{"name": "d", "kind": "g", "shared": True, "properties": {"m": {"quantity": "1e30"}}}]}, "devices[0].properties.m", "OutOfRange"),
        ({"devices": [{"name": "d", "kind": "g", "used": 0.5}]}, "devices[0].used", "BadQuantity"),
        ({"devices": [{"name": "d", "kind": "g", "taints": [{"key": "", "effect": "NoSchedule"}]}]}, "devices[0].taints[0].key", "Required"),
        ({"counters": {"c": {"x": 10**30}}}, "counters.c.x", "OutOfRange"),
        ({"counters": {"c": {"": 1}}}, "counters.c.", "BadName"),
        ({"cpuManager": {"policy": "static", "exclusive": 10**30}}, "cpuManager.exclusive", "OutOfRange"),
        ({"allocatable": {"cpu": 10**30}}, "allocatable.cpu", "OutOfRange"),
        ({"allocatable": {"a b": 1}}, "allocatable.a b", "BadName"),
        ({"providers": [{"name": f"p{i}"} for i in range(4096)]}, "", "OutOfRange"),
        ({"providers": [DEEP]}, "providers[0]" + ".providers[0]" * 30 + ".providers", "OutOfRange"),
        ({"topologyManager": {"policy": "best"}}, "topologyManager.policy", "BadValue"),
        ({"topologyManager": {"scope": "node"}}, "topologyManager.scope", "BadValue"),
    ],
)  # fmt: skip
def test_an_inside_that_makes_no_sense_is_refused(inside: dict[str, Any], path: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        decode({"clusters": [{"name": "a", "nodes": [{"name": "n", "allocatable": {"cpu": 8}, **inside}]}]})
    at = "clusters[0].nodes[0]"
    found = {(e.path, e.code) for e in refused.value.problem.errors}
    assert found == (
        {(f"{at}.{path}" if path else at, code)} | ({(f"{at}.zones[1].parent", code)} if len(found) > 1 else set())
    )


def test_every_violation_is_named_with_its_path() -> None:
    broken = {
        "clusters": [
            {"nodes": [{"name": "n", "count": "many", "alocatable": {}}], "behaviour": {"applyDelay": 1}},
            {"name": "b", "labels": {"x": True, "y": 1, "z": "1", "0": None}, "pods": [7]},
        ]
    }
    with pytest.raises(Refused) as refused:
        decode(broken)
    found = {(e.path, e.code) for e in refused.value.problem.errors}
    assert found == {
        ("clusters[0].name", "Required"),
        ("clusters[0].nodes[0].count", "WrongType"),
        ("clusters[0].nodes[0].alocatable", "UnknownField"),
        ("clusters[0].nodes[0].allocatable", "Required"),
        ("clusters[0].behaviour.applyDelay", "UnknownField"),
        ("clusters[1].labels.x", "WrongType"),
        ("clusters[1].labels.y", "WrongType"),
        ("clusters[1].labels.0", "WrongType"),
        ("clusters[1].pods", "WrongType"),
    }
    messages = {e.path: e.message for e in refused.value.problem.errors}
    assert messages["clusters[1].labels.x"] == "must be text, in quotes: 'true'"


def test_every_broken_rule_is_reported() -> None:
    node: dict[str, Any] = {"name": "n", "allocatable": {"cpu": "lots"}, "taints": [{"key": "k", "effect": "Never"}]}
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "elsewhere", "containers": []}}
    with pytest.raises(Refused) as refused:
        decode(
            {
                "kind": "Float",
                "clusters": [
                    {"name": "a", "nodes": [node, {"name": "n", "allocatable": {}}], "pods": [pod, {}], "count": 0},
                    {"name": "b/c"},
                    {"name": "x", "count": 2},
                    {"name": "x-1", "nodes": [{"name": "n", "allocatable": {}, "cpuManager": {"policy": "best"}}]},
                ],
            }
        )
    found = {(e.path, e.code) for e in refused.value.problem.errors}
    assert found == {
        ("kind", "WrongKind"),
        ("clusters[0].count", "OutOfRange"),
        ("clusters[0].nodes[0].allocatable.cpu", "BadQuantity"),
        ("clusters[0].nodes[0].taints[0].effect", "BadValue"),
        ("clusters[0].nodes[1].name", "Duplicate"),
        ("clusters[0].pods[0].spec.nodeName", "BadValue"),
        ("clusters[0].pods[1]", "BadPod"),
        ("clusters[1].name", "BadName"),
        ("clusters[3].name", "Duplicate"),
        ("clusters[3].nodes[0].cpuManager.policy", "BadValue"),
    }


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, 1e300])
def test_delays_are_bounded(delay: float) -> None:
    with pytest.raises(Refused) as refused:
        decode({"clusters": [{"name": "a", "behaviour": {"applyDelayMs": delay}}]})
    assert [(e.path, e.code) for e in refused.value.problem.errors] == [("clusters[0].behaviour", "OutOfRange")]


def test_pods_request_no_less_than_nothing() -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": -1}}}
    with pytest.raises(Refused) as refused:
        decode(
            {"clusters": [{"name": "a", "pods": [{"metadata": {"name": "p"}, "spec": {"containers": [container]}}]}]}
        )
    assert [(e.path, e.code) for e in refused.value.problem.errors] == [("clusters[0].pods[0]", "OutOfRange")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["clusters", "name", "nodes", "count", "pods", "spec", "labels"]), inner)
        ),
        max_leaves=8,
    )
)
def test_junk_is_refused_or_expands(junk: Any) -> None:
    try:
        expand(decode(junk))
    except Refused as refused:
        assert refused.problem.status == 400


@pytest.mark.parametrize(("clusters", "nodes"), [(1, 20), (5, 30), (20, 1), (3, 7), (1, 1), (2, 3), (4, 0), (1, 2000)])
@pytest.mark.parametrize("seed", seeds(3, 30))
def test_small_generated_fleets_have_many_kinds(clusters: int, nodes: int, seed: int) -> None:
    fleet = generate(clusters, nodes, seed)
    assert fleet == generate(clusters, nodes, seed)
    assert {spec.size for spec in fleet.values()} == {nodes}
    found = {kinds().index(kind) for spec in fleet.values() for _, kind in spec.nodes()}
    assert len(found) >= min(20, clusters * nodes)
    assert all(len(run.kind.labels) == 24 for spec in fleet.values() for run in spec.runs), "and the host name"


def test_the_generated_fleet() -> None:
    fleet = generate(200, 20, 7)
    assert generate(200, 20, 7) == fleet
    assert generate(200, 20, 8) != fleet
    names: set[str] = set()
    used_kinds: set[int] = set()
    shares = set()
    for spec in fleet.values():
        nodes = list(spec.nodes())
        assert len(nodes) == spec.size == 20
        for number, (name, kind) in enumerate(nodes):
            names.add(name)
            used_kinds.add(kinds().index(kind))
            used, pods = initial_usage(kind, spec.seed, number)
            shares.add(used["cpu"] * 10 // kind.amounts["cpu"])
            assert all(0 <= value <= kind.amounts[r] for r, value in used.items())
            assert 0 <= pods <= kind.amounts["pods"]
            row = msgspec.json.decode(kind.row(spec.id, name, used, pods, 0), type=NodeReport)
            assert len(row.labels) == 25
    assert len(names) == 200 * 20
    assert len(used_kinds) == KINDS >= 20
    assert shares >= set(range(10))
