"""The model of a kubelet does what Kubernetes' own tests and recorded runs of its managers say."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moorage.parts.kubelet import (
    Admission,
    Kubelet,
    Step,
    TopologyManager,
    ZoneAmounts,
    aligned_steps,
    alignment,
)
from moorage.podspec import ContainerResources
from moorage.qos.topology_hints import Hint, merge, narrowest_needed, rank, single_zone_hints

GIB = 1 << 30
SINGLE = TopologyManager("single-numa-node")
ALL = frozenset(("cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu"))


def vectors(name: str) -> dict[str, Any]:
    path = Path(os.environ.get("MOORAGE_VECTORS", "")) / "node" / f"{name}.json"
    if not os.environ.get("MOORAGE_VECTORS") or not path.is_file():
        pytest.skip("MOORAGE_VECTORS does not name the directory with the upstream vectors")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def bits(nodes: list[int] | None) -> int | None:
    return None if nodes is None else sum(1 << node for node in nodes)


def read_hints(entries: list[dict[str, Any]] | None) -> list[Hint] | None:
    return None if entries is None else [Hint(bits(e["nodes"]), e["preferred"]) for e in entries]


def test_hints_are_merged_as_upstream_merges_them() -> None:
    tried = 0
    found = vectors("tm_policy_merge")
    for case in found["cases"]:
        if case["prefer_closest_numa"]:
            continue  # the choice among sets of equal size depends on distances, which this model does not know
        zones = len(found["numa_infos"][case["numa"]]["nodes"])
        resources = [
            read_hints(hints)
            for provider in case["providers"]
            for hints in (provider or {None: None}).values()
        ]  # fmt: skip
        merged = merge(case["policy"], resources, zones)
        expected = Hint(bits(case["expected"]["nodes"]), case["expected"]["preferred"])
        assert merged == (expected, case["expected_admit"]), case["name"]
        tried += 1
    assert tried == 80


def test_only_preferred_hints_for_one_zone_count_for_a_single_zone() -> None:
    for case in vectors("tm_single_numa_filter")["cases"]:
        assert [single_zone_hints(read_hints(hints) or []) for hints in case["all"]] == [
            read_hints(hints) for hints in case["expected"]
        ], case["name"]


def test_the_width_that_is_wanted_is_the_largest_of_the_narrowest() -> None:
    for case in vectors("tm_max_of_min")["cases"]:
        assert narrowest_needed([read_hints(hints) or [] for hints in case["hints"]]) == case["expected"]


def test_the_better_of_two_hints() -> None:
    for case in vectors("tm_compare_hints")["cases"]:
        wanted = case["best_non_preferred_affinity_count"]
        candidates = read_hints([case[name] for name in ("current", "candidate") if case[name] is not None]) or []
        if candidates[-1].zones == 0:
            assert case["expected"] == "current"
            continue
        best = min(candidates, key=lambda hint: rank(hint, wanted))
        assert best == candidates[0 if case["expected"] == "current" else -1], case["name"]


def cpus_in(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_cpu_hints_are_those_of_the_cpu_manager() -> None:
    found = vectors("cpu_hints")
    tried = 0
    for case in found["cases"]:
        if case["align_by_socket"]:
            continue
        topology = found["topologies"][case["topology"]]
        zone_of = {cpu: numa for cpu, _, _, numa, _ in topology["cpus"]}
        count = topology["num_numa_nodes"]

        def of(cpus: set[int], zone_of: dict[int, int] = zone_of, count: int = count) -> list[dict[str, int]]:
            return [{"cpu": 1000 * sum(zone_of[c] == zone for c in cpus)} for zone in range(count)]

        zones = [
            ZoneAmounts(total, free)
            for total, free in zip(of(set(zone_of)), of(cpus_in(case["available"])), strict=True)
        ]
        kubelet = Kubelet(TopologyManager("best-effort"), zones)
        hints = kubelet.hints("cpu", case["num_cpus"] * 1000, of(cpus_in(case["reusable"])))
        assert sorted(hints, key=str) == sorted(read_hints(case["expected"]) or [], key=str), case
        tried += 1
    assert tried > 10


def test_the_memory_manager_gives_and_takes_as_recorded() -> None:
    """Feeds the recorded sequences: the hints before each pod, and what each zone has afterwards."""
    tried = 0
    for sequence in vectors("mem_static")["sequences"]:
        for before, op in pairwise(({"state": sequence["initial"]}, *sequence["ops"])):
            kubelet = node_in(before["state"])
            if op["op"] != "add":
                continue
            asked = op["request_mb"]
            expected = read_hints(op["hints"]) or []
            assert sorted(kubelet.memory_hints(asked), key=str) == sorted(expected, key=str), op
            if op.get("numa_affinity"):
                Admission(kubelet).take_memory(asked, bits(op["numa_affinity"]) or 0)
            after = node_in(op["state"])
            assert [(z.free, z.group) for z in kubelet.zones] == [(z.free, z.group) for z in after.zones], op
            tried += 1
    assert tried > 50


def node_in(state: list[dict[str, Any]]) -> Kubelet:
    zones = []
    for entry in state:
        amounts = {k: v for k, v in entry.items() if k not in ("assignments", "cells")}
        zones.append(ZoneAmounts({k: v[0] for k, v in amounts.items()}, {k: v[2] for k, v in amounts.items()}))
    kubelet = Kubelet(TopologyManager("best-effort"), zones)
    for entry, zone in zip(state, kubelet.zones, strict=True):
        zone.users = entry["assignments"]
        zone.group = bits(entry["cells"]) or 0 if zone.users else 0
    return kubelet


# --- whole pods


def pod(
    *requests: dict[str, int], init: tuple[dict[str, int], ...] = (), sidecars: int = 0
) -> list[ContainerResources]:
    """Returns a pod's containers; the first `sidecars` of the init containers keep running."""
    starting = [ContainerResources(f"i{i}", r, r, True, i < sidecars) for i, r in enumerate(init)]
    return starting + [ContainerResources(f"c{i}", r, r) for i, r in enumerate(requests)]


def cores(count: float, **more: int) -> dict[str, int]:
    return {"cpu": int(count * 1000), "memory": GIB, **more}


def node(manager: TopologyManager, *zones: int, gpus: tuple[int, ...] = ()) -> Kubelet:
    totals: list[dict[str, int]] = [{"cpu": cpus * 1000, "memory": 64 * GIB} for cpus in zones]
    for total, count in zip(totals, gpus, strict=False):
        total["nvidia.com/gpu"] = count
    return Kubelet(manager, [ZoneAmounts(total, total) for total in totals])


def admit(kubelet: Kubelet, containers: list[ContainerResources], guaranteed: bool = True) -> list[int] | None:
    """Returns the zones from which a pod got something, or None if it is refused."""
    found = kubelet.admit(aligned_steps(containers, guaranteed, kubelet.manager, kubelet.reported))
    return None if found is None else sorted({zone for zone, _, _ in found.amounts})


def test_the_lowest_zone_that_fits_is_taken() -> None:
    kubelet = node(SINGLE, 8, 8)
    assert [admit(kubelet, pod(cores(n))) for n in (5, 5, 3, 3, 1)] == [[0], [1], [0], [1], None]


def test_what_no_zone_holds_is_refused_though_the_node_holds_it() -> None:
    """kubernetes#84869: eight cores are free, four of each zone."""
    kubelet = node(SINGLE, 8, 8)
    assert [admit(kubelet, pod(cores(4))) for _ in range(2)] == [[0], [0]]
    kubelet = node(SINGLE, 4, 4)
    assert admit(kubelet, pod(cores(6))) is None
    restricted = TopologyManager("restricted")
    assert admit(node(restricted, 4, 4), pod({"cpu": 6000})) == [0, 1]
    assert admit(node(restricted, 4, 4), pod(cores(6))) is None  # one zone would do for its memory
    assert admit(node(TopologyManager("best-effort"), 4, 4), pod(cores(6))) == [0, 1]


def test_a_restricted_node_gives_as_few_zones_as_an_empty_one_needs() -> None:
    kubelet = node(TopologyManager("restricted"), 8, 8)
    assert [admit(kubelet, pod(cores(5))) for _ in range(3)] == [[0], [1], None]
    best_effort = node(TopologyManager("best-effort"), 8, 8)
    assert [admit(best_effort, pod(cores(5))) for _ in range(3)] == [[0], [1], [0, 1]]


def test_only_whole_cores_of_guaranteed_pods_are_aligned() -> None:
    kubelet = node(SINGLE, 2, 2)
    assert alignment(pod({"cpu": 1500}), True, SINGLE, kubelet.reported) == ()
    assert alignment(pod(cores(3)), False, SINGLE, kubelet.reported) == ()
    assert alignment(pod(cores(3)), True, SINGLE._replace(static_cpu=False), kubelet.reported) == (
        Step((("memory", GIB),)),
    )
    assert alignment(pod(cores(3)), True, TopologyManager("best-effort"), kubelet.reported) == ()
    gpu = pod({"cpu": 500, "nvidia.com/gpu": 1})
    assert alignment(gpu, False, SINGLE, ALL) == (Step((("nvidia.com/gpu", 1),)),)
    assert alignment(gpu, False, SINGLE, kubelet.reported) == ()  # no zone says where the devices are


def test_devices_and_cores_come_from_one_zone() -> None:
    kubelet = node(SINGLE, 8, 8, gpus=(0, 2))
    asked = pod(cores(4, **{"nvidia.com/gpu": 1}))
    assert [admit(kubelet, asked) for _ in range(3)] == [[1], [1], None]
    assert admit(kubelet, pod(cores(8))) == [0]


def test_containers_are_aligned_each_for_itself_or_as_a_pod() -> None:
    two = pod(cores(5), cores(5))
    assert admit(node(SINGLE, 8, 8), two) == [0, 1]
    assert admit(node(SINGLE._replace(scope="pod"), 8, 8), two) is None
    assert admit(node(SINGLE._replace(scope="pod"), 8, 12), two) == [1]


def test_init_containers_come_first_and_give_their_cores_on() -> None:
    kubelet = node(SINGLE, 8, 8)
    assert admit(kubelet, pod(cores(6), init=(cores(8),))) == [0]
    assert kubelet.zones[0].free["cpu"] == 0  # the kubelet keeps what an init container had until its pod ends
    assert admit(kubelet, pod(cores(4), init=(cores(2),))) == [1]
    # A small init container gets into a zone that has no room for what follows.
    kubelet = node(SINGLE, 8, 8)
    assert admit(kubelet, pod(cores(6))) == [0]
    assert admit(kubelet, pod(cores(4), init=(cores(1),))) is None
    assert admit(kubelet, pod(cores(4))) == [1]


def test_sidecars_keep_their_cores() -> None:
    pods = pod(cores(4), init=(cores(2), cores(6)), sidecars=1)
    assert admit(node(SINGLE._replace(scope="pod"), 7), pods) is None
    assert admit(node(SINGLE._replace(scope="pod"), 8), pods) == [0]
    assert admit(node(SINGLE, 8), pods) == [0]
    assert admit(node(SINGLE, 7), pods) is None


def test_a_refused_pod_leaves_nothing_and_an_ended_one_gives_back() -> None:
    kubelet = node(SINGLE, 8, 8)
    assert admit(kubelet, pod(cores(6), cores(6), cores(6))) is None
    assert [zone.free["cpu"] for zone in kubelet.zones] == [8000, 8000]
    taken = kubelet.admit(aligned_steps(pod(cores(6)), True, SINGLE, ALL))
    assert taken is not None
    kubelet.give_back(taken)
    assert [(zone.free, zone.group) for zone in kubelet.zones] == [(zone.total, 0) for zone in kubelet.zones]


def test_memory_alone_and_memory_across_zones_exclude_each_other() -> None:
    kubelet = node(TopologyManager("restricted"), 8, 8)
    assert admit(kubelet, pod({"cpu": 500, "memory": 10 * GIB})) == [0]
    assert admit(kubelet, pod({"cpu": 500, "memory": 80 * GIB})) is None
    other = node(TopologyManager("restricted"), 8, 8)
    assert admit(other, pod({"cpu": 500, "memory": 80 * GIB})) == [0, 1]
    assert admit(other, pod({"cpu": 500, "memory": GIB})) is None
