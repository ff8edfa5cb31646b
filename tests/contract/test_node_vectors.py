"""The node's core does what the kubelet's and KubeWharf's own tests and recorded runs of their managers say. Every file of the
vectors whose name begins like one of ours is taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from moorage.qos.cpu_choice import Accumulator, NotEnoughCpus, take_distributed, take_packed
from moorage.qos.cpu_hints import cpu_hints
from moorage.qos.cpusets import format_cpuset, parse_cpuset
from moorage.qos.machine import Cpu, CpuTopology, possible_sets
from moorage.qos.memory_nodes import Block, MemoryNodes, NoMemory
from moorage.qos.messages import nodes_of
from moorage.qos.topology_hints import (
    Hint,
    mean_distance,
    merge,
    merge_numeric,
    narrowest_needed,
    rank,
    single_zone_hints,
)

Case = dict[str, Any]
_DIRECTORY = Path(os.environ.get("MOORAGE_VECTORS", "")) / "node"
WORD = (1 << 64) - 1


def bits(nodes: list[int] | None) -> int | None:
    return None if nodes is None else sum(1 << node for node in nodes)


def hint(entry: Case) -> Hint:
    return Hint(bits(entry["nodes"]), entry["preferred"])


def hints(entries: list[Case] | None) -> list[Hint] | None:
    return None if entries is None else [hint(entry) for entry in entries]


@lru_cache
def vectors(name: str) -> Case:
    found: Case = json.loads((_DIRECTORY / name).read_text())
    return found


def cases_of(name: str) -> list[Case]:
    found = vectors(name)
    cases: list[Case] = found["sequences"] if "sequences" in found else found.get("cases", [])
    return cases


def topology_of(entry: Case) -> CpuTopology:
    sizes = entry["num_sockets"], entry["num_cores"], entry["num_numa_nodes"], entry["num_uncore_caches"]
    return CpuTopology((Cpu(*cpu) for cpu in entry["cpus"]), sizes)


@lru_cache
def topologies(name: str) -> dict[str, CpuTopology]:
    """The machines of a file: its own, and those of the file that has only machines."""
    entries = {**vectors("cpu_topologies.json")["topologies"], **vectors(name).get("topologies", {})}
    return {key: topology_of(entry) for key, entry in entries.items()}


# --- bit masks


def mask(found: list[int] | None) -> int:
    """Bits from 64 on, and negative ones, are none of a kubelet's mask."""
    return sum(1 << bit for bit in set(found or ()) if 0 <= bit < 64)


def text(value: int) -> str:
    digits = f"{value:b}"
    return digits.zfill(max(2, len(digits) + len(digits) % 2))


def bitmask(name: str, case: Case) -> None:
    del name
    op, first = case["op"], case.get("mask")
    if op in ("Add", "NewBitMask", "NewEmptyiBitMask"):
        assert text(mask(case.get("bits"))) == text(int(case["expectedMask"], 2))
    elif op == "Remove":
        assert mask(case["bitsSet"]) & ~mask(case["bitsRemove"]) == int(case["expectedMask"], 2)
    elif op == "And":
        found = WORD
        for other in case["masks"]:
            found &= mask(other)
        assert found == int(case["andMask"], 2)
    elif op == "Or":
        found = 0
        for other in case["masks"]:
            found |= mask(other)
        assert found == int(case["orMask"], 2)
    elif op == "Clear":
        assert mask(first) & 0 == int(case["clearedMask"], 2)
    elif op == "Fill":
        assert mask(first) | WORD == int(case["filledMask"], 2)
    elif op == "AnySet":
        assert bool(mask(first) & mask(case["checkBits"])) == case["expectedSet"]
    elif op == "IsSet":
        assert bool(mask(first) & mask([case["checkBit"]])) == case["expectedSet"]
    elif op == "IsEmpty":
        assert (not mask(first)) == case["expectedEmpty"]
    elif op == "Count":
        assert mask(case["bits"]).bit_count() == case["expectedCount"]
    elif op == "GetBits":
        assert nodes_of(mask(case["bits"])) == tuple(case["expectedBits"] or ())
    elif op == "IterateBitMasks":
        count = min(case["numbits"], 10)
        found_sets = possible_sets(range(count))
        assert len(set(found_sets)) == len(found_sets) == 2**count - 1
        assert [s.bit_count() for s in found_sets] == sorted(s.bit_count() for s in found_sets)
    else:
        compare(op, mask(case["firstMask"]), mask(case["secondMask"]), case)


def compare(op: str, first: int, second: int, case: Case) -> None:
    if op == "IsEqual":
        assert (first == second) == case["expectedEqual"]
    elif op == "IsLessThan":
        assert (first < second) == case["expectedFirstLower"]
    elif op == "IsGreaterThan":
        assert (first > second) == case["expectedFirstGreater"]
    elif op == "IsNarrowerThan":
        # Among sets of one size the lower one counts as the narrower; so do hints that are preferred.
        assert (rank(Hint(first, True), 0) < rank(Hint(second, True), 0)) == case["expectedFirstNarrower"]
    else:
        pytest.fail(f"unknown operation {op}")


# --- topology manager


def tm_policy_merge(name: str, case: Case) -> None:
    info = case["numa"] if isinstance(case["numa"], dict) else vectors(name)["numa_infos"][case["numa"]]
    resources = [hints(found) for provider in case["providers"] for found in (provider or {None: None}).values()]
    merged = merge(
        case["policy"], resources, len(info["nodes"]), info["distances"] if case["prefer_closest_numa"] else None
    )
    assert merged.hint == hint(case["expected"])
    if case.get("expected_admit") is not None:
        assert merged.admitted == case["expected_admit"]


def tm_numeric(name: str, case: Case) -> None:
    del name
    resources = {}
    for provider in case["providers"] or [None]:
        resources.update({key: hints(found) for key, found in (provider or {"*": None}).items()})
    merged = merge_numeric(resources, case["align_resources"])
    expected = case["expected"]
    assert merged.admitted == (expected is not None)
    if expected is not None:
        assert merged.hints == {key: hint(found) for key, found in expected.items()}


def tm_single_numa_filter(name: str, case: Case) -> None:
    del name
    assert [single_zone_hints(hints(found) or []) for found in case["all"]] == [
        hints(found) for found in case["expected"]
    ]


def tm_max_of_min(name: str, case: Case) -> None:
    del name
    assert narrowest_needed([hints(found) or [] for found in case["hints"]]) == case["expected"]


def tm_compare_hints(name: str, case: Case) -> None:
    del name
    candidates = [hint(case[key]) for key in ("current", "candidate") if case[key] is not None]
    if not candidates[-1].zones:
        assert case["expected"] == "current"  # a merge never keeps an empty set
        return
    best = min(candidates, key=lambda found: rank(found, case["best_non_preferred_affinity_count"]))
    assert best == candidates[0 if case["expected"] == "current" else -1]


def tm_numa_info(name: str, case: Case) -> None:
    del name
    if case["op"] == "avg_distance":
        found = {int(node): row for node, row in case["distances"].items()}
        distances = [found.get(node, ()) for node in range(max(found, default=-1) + 1)]
        assert mean_distance(bits(case["bits"]) or 0, distances) == pytest.approx(case["expected"])
        return
    rows = case["numa"].get("distances") or {}
    distances = [rows[str(node)] for node in range(len(rows))]
    both = [bits(case[key]) or 0 for key in ("current", "candidate")]
    closest = distances if all(found.bit_length() <= len(distances) for found in both) else None
    better = min(both, key=lambda found: rank(Hint(found, True), 0, closest))
    assert better == both[0 if case["expected"] == "current" else 1]


# --- CPUs


def cpu_accumulator(name: str, case: Case) -> None:
    topology = topologies(name)[case["topology"]]
    acc = Accumulator(topology, parse_cpuset(case["available"]), case.get("num_cpus", 0))
    query = case["query"]

    def whole(numbers: Iterable[int], masks: Mapping[int, int]) -> list[int]:
        return [number for number in numbers if masks[number] & acc.available == masks[number]]

    if query == "take":
        for cpus in case["take"]:
            acc.take(parse_cpuset(cpus))
        assert (acc.satisfied, acc.failed) == (case["expected_satisfied"], case["expected_failed"])
    elif query == "free_sockets_sorted":
        assert sorted(whole(acc.sockets(), topology.sockets)) == case["expected"]
    elif query == "free_sockets_and_numa":
        assert sorted(whole(acc.sockets(), topology.sockets)) == case["expectSockets"]
        assert sorted(whole(acc.numas(), topology.numas)) == case["expectNUMANodes"]
    else:
        found: dict[str, Callable[[], list[int]]] = {
            "free_numa_nodes": lambda: whole(acc.numas(), topology.numas),
            "free_cores": lambda: whole(acc.cores(), topology.cores),
            "free_cpus": lambda: list(acc.cpus()),
        }
        assert found[query]() == case["expected"]


def cpu_take(name: str, case: Case) -> None:
    topology = topologies(name)[case["topology"]]
    available, count, spread = parse_cpuset(case["available"]), case["num_cpus"], case.get("strategy") == "spread"
    try:
        if case["func"] == "distributed":
            taken = take_distributed(topology, available, count, case["cpu_group_size"], spread=spread)
        else:
            align = case["prefer_align_uncore"]
            taken = take_packed(topology, available, count, spread=spread, align_uncore=align)
    except NotEnoughCpus as refusal:
        assert str(refusal) == case["expected_error"]
        return
    assert case["expected_error"] is None
    assert format_cpuset(taken) == format_cpuset(parse_cpuset(case["expected"]))


def cpu_hint(name: str, case: Case) -> None:
    found = cpu_hints(
        topologies(name)[case["topology"]],
        case["num_cpus"],
        parse_cpuset(case["available"]),
        parse_cpuset(case["reusable"]),
        align_by_socket=case["align_by_socket"],
    )
    assert found == hints(case["expected"])


# --- memory


def memory_state(nodes: MemoryNodes) -> list[Case]:
    return [
        {
            "assignments": node.assignments,
            "cells": list(nodes_of(node.group)),
            **{
                name: [size >> 20, node.reserved.get(name, 0) >> 20, node.free(name) >> 20]
                for name, size in node.allocatable.items()
            },
        }
        for node in nodes.nodes.values()
    ]


def mem_static(name: str, case: Case) -> None:
    """Follows a sequence of pods that come and go."""
    del name
    nodes = MemoryNodes(
        {
            i: {key: amounts[0] << 20 for key, amounts in node.items() if key not in ("assignments", "cells")}
            for i, node in enumerate(case["initial"])
        }
    )
    assert memory_state(nodes) == case["initial"]
    blocks: dict[str, list[Block]] = {}
    for op in case["ops"]:
        if op["op"] == "remove":
            nodes.release(blocks.pop(op["pod"], []))
        else:
            requested = {key: size << 20 for key, size in op["request_mb"].items()}
            assert nodes.hints(requested) == (hints(op["hints"]) or [])
            try:
                chosen = nodes.choose(hint(op["affinity"]), requested)
            except NoMemory:
                assert "error" in op
            else:
                assert "error" not in op
                assert chosen == bits(op["numa_affinity"])
                blocks[op["pod"]] = nodes.take(chosen, requested)
        assert memory_state(nodes) == op["state"]


#: By how the name of a file begins; the longest that fits is taken.
CHECKS: dict[str, Callable[[str, Case], None]] = {
    "bitmask": bitmask,
    "tm_policy_merge": tm_policy_merge,
    "tm_numeric": tm_numeric,
    "tm_single_numa_filter": tm_single_numa_filter,
    "tm_max_of_min": tm_max_of_min,
    "tm_compare_hints": tm_compare_hints,
    "tm_numa_info": tm_numa_info,
    "cpu_accumulator": cpu_accumulator,
    "cpu_take": cpu_take,
    "cpu_hints": cpu_hint,
    "mem_static": mem_static,
}
FILES = sorted(path.name for path in _DIRECTORY.glob("*.json")) if os.environ.get("MOORAGE_VECTORS") else []
CASES = [
    pytest.param(check, name, case, id=f"{name}-{i}-{case.get('name', '')}"[:80])
    for name in FILES
    for check in [CHECKS[max((k for k in CHECKS if name.startswith(k)), key=len, default="bitmask")]]
    if any(name.startswith(key) for key in CHECKS)
    for i, case in enumerate(cases_of(name))
]


@pytest.mark.skipif(not FILES, reason="MOORAGE_VECTORS does not name the directory with the upstream vectors")
@pytest.mark.parametrize(("check", "name", "case"), CASES)
def test_a_case_of_upstream(check: Callable[[str, Case], None], name: str, case: Case) -> None:
    check(name, case)


@pytest.mark.skipif(not FILES, reason="MOORAGE_VECTORS does not name the directory with the upstream vectors")
def test_every_kind_of_file_is_there() -> None:
    assert not [key for key in CHECKS if not any(name.startswith(key) for name in FILES)]
    assert len(CASES) > 400
