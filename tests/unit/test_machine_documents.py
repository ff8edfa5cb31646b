"""Machines as documents: what is read, every rule with its path and code, and the sizes of slots."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from moorage.machine_groups import Surroundings, read, sizes
from moorage.machine_groups.sizes import maximum
from moorage.machine_groups.windows import Holder, Span, may_enter, parse_time
from moorage.model.machines import Dependence, Gpu, Machine, MachineType, PoolNode, TypeSpec, Window
from moorage_testkit.machines import example, machine

GROUP = "metadata.labels[imperator.tenzen-y.io/machine-group]"
TYPE = "spec.machineTypes[0]"


def accepted(document: dict[str, Any], around: Surroundings | None = None) -> Machine:
    found = read(document, around)
    assert found.violations == []
    assert found.machine is not None
    return found.machine


def refused(document: dict[str, Any], around: Surroundings | None = None) -> set[tuple[str, str]]:
    found = read(document, around)
    assert found.machine is None and all(v.message for v in found.violations)
    return {(v.path, v.code) for v in found.violations}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Returns the example with another value at a path; `...` removes it."""
    document = copy.deepcopy(example())
    at: Any = document
    *way, last = [int(p) if p.isdigit() else p for p in path.split("|")]
    for part in way:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


def test_the_example_is_read_field_by_field() -> None:
    found = accepted(example())
    assert (found.name, found.group) == ("general-machine", "general-machine")
    assert found.node_pool == (
        PoolNode(name="michiru", mode="ready", taint=True, machine_types=("compute-xlarge",)),
        PoolNode(name="utaha", mode="maintenance", taint=False, machine_types=("compute-medium",)),
        PoolNode(name="eriri", mode="ready", taint=True, machine_types=("compute-medium",)),
    )
    medium = Gpu(type="nvidia.com/gpu", num=1, machine="DGX-1")
    xlarge = Gpu(type="nvidia.com/gpu", num=2, product="NVIDIA-GeForce-RTX-3090")
    large = Gpu(type="nvidia.com/gpu", num=1, family="ampere")
    assert found.types == (
        MachineType(name="compute-medium", spec=TypeSpec(cpu="6", memory="48Gi", gpu=medium), available=4),
        MachineType(name="compute-xlarge", spec=TypeSpec(cpu="40", memory="128Gi", gpu=xlarge), available=1),
        MachineType(name="compute-large", spec=TypeSpec(cpu="20", memory="64Gi", gpu=large), available=2),
    )
    assert sizes(found)["compute-xlarge"].amounts == {"cpu": 40_000, "memory": 128 << 30, "nvidia.com/gpu": 2}
    assert sizes(found)["compute-xlarge"].gpu_label == ("nvidia.com/gpu.product", "NVIDIA-GeForce-RTX-3090")
    # A type that is in no pool reserves nothing, and a warning says so.
    assert [w.code for w in read(example()).warnings] == ["TypeUnused"]


@pytest.mark.parametrize(
    ("path", "value", "where", "code"),
    [
        ("metadata|labels", {}, GROUP, "Required"),
        ("metadata|name", "Machine_1", "metadata.name", "InvalidName"),
        ("metadata|name", "m" * 244, "metadata.name", "TooLong"),
        ("metadata|labels|imperator.tenzen-y.io/machine-group", "A_b", GROUP, "InvalidName"),
        ("spec|nodePool", [], "spec.nodePool", "Required"),
        ("spec|nodePool|1|name", "michiru", "spec.nodePool[1].name", "Duplicate"),
        ("spec|nodePool|0|mode", "not-ready", "spec.nodePool[0].mode", "BadValue"),
        ("spec|nodePool|0|mode", ..., "spec.nodePool[0].mode", "Required"),
        ("spec|nodePool|0|taint", "yes", "spec.nodePool[0].taint", "WrongType"),
        ("spec|nodePool|0|machineType", [], "spec.nodePool[0].machineType", "Required"),
        ("spec|nodePool|0|machineType|0|name", "tiny", "spec.nodePool[0].machineType[0].name", "UnknownType"),
        ("spec|nodePool|0|size", 1, "spec.nodePool[0].size", "UnknownField"),
        ("spec|machineTypes|0|name", "T_1!", f"{TYPE}.name", "InvalidName"),
        ("spec|machineTypes|0|name", "1st", f"{TYPE}.name", "InvalidName"),
        ("spec|machineTypes|0|name", "node-pool", f"{TYPE}.name", "InvalidName"),
        ("spec|machineTypes|0|name", "x" * 40, f"{TYPE}.name", "TooLong"),
        ("spec|machineTypes|1|name", "compute-medium", "spec.machineTypes[1].name", "Duplicate"),
        ("spec|machineTypes|0|spec|cpu", "-5", f"{TYPE}.spec.cpu", "OutOfRange"),
        ("spec|machineTypes|0|spec|cpu", "five", f"{TYPE}.spec.cpu", "InvalidQuantity"),
        ("spec|machineTypes|0|spec|memory", ..., f"{TYPE}.spec.memory", "Required"),
        ("spec|machineTypes|0|spec|memory", True, f"{TYPE}.spec.memory", "WrongType"),
        ("spec|machineTypes|0|spec|gpu|type", "gpu", f"{TYPE}.spec.gpu.type", "InvalidName"),
        ("spec|machineTypes|0|spec|gpu|num", 0, f"{TYPE}.spec.gpu.num", "OutOfRange"),
        ("spec|machineTypes|0|spec|gpu|num", 0.5, f"{TYPE}.spec.gpu.num", "WrongType"),
        ("spec|machineTypes|0|spec|gpu|family", "x", f"{TYPE}.spec.gpu", "Contradiction"),
        ("spec|machineTypes|0|spec|gpu|machine", ..., f"{TYPE}.spec.gpu", "Required"),
        ("spec|machineTypes|0|available", -1, f"{TYPE}.available", "OutOfRange"),
        ("spec|machineTypes|0|available", ..., f"{TYPE}.available", "Required"),
        ("spec|machineTypes|0|spec|hostLimit", 0, f"{TYPE}.spec.hostLimit", "OutOfRange"),
        ("spec|machineTypes|0|spec|hostLimit", "150%", f"{TYPE}.spec.hostLimit", "OutOfRange"),
        ("spec|machineTypes|0|spec|hostLimit", "half", f"{TYPE}.spec.hostLimit", "WrongType"),
        ("spec|machineTypes|0|offlineSlots", 5, f"{TYPE}.offlineSlots", "Contradiction"),
    ],
)
def test_each_rule_has_a_path_and_a_code(path: str, value: Any, where: str, code: str) -> None:
    assert (where, code) in refused(changed(path, value))


def test_all_violations_are_listed() -> None:
    document = changed("spec|nodePool|0|mode", "off")
    document["spec"]["machineTypes"][0]["spec"] |= {"cpu": "-5"}
    document["spec"]["machineTypes"][2]["spec"]["gpu"]["num"] = 0
    assert refused(document) == {
        ("spec.nodePool[0].mode", "BadValue"),
        (f"{TYPE}.spec.cpu", "OutOfRange"),
        ("spec.machineTypes[2].spec.gpu.num", "OutOfRange"),
    }


@pytest.mark.parametrize("junk", [{}, {"spec": 1, "metadata": []}, {"metadata": {"name": 1}, "spec": {"nodePool": [1, {}], "machineTypes": [[], {}]}}])  # fmt: skip
def test_junk_is_refused(junk: dict[str, Any]) -> None:
    assert refused(junk)


def test_rules_about_other_machines_and_nodes() -> None:
    mine = accepted(example())
    nodes = {"michiru", "utaha", "eriri"}
    assert accepted(example(), Surroundings(nodes, {mine.name: mine}, mine)) == mine
    gone = Surroundings({"michiru", "utaha"}, {}, None)
    assert refused(example(), gone) == {("spec.nodePool[2].name", "UnknownNode")}
    # A Node that went since it was named stays in the pool.
    accepted(example(), gone._replace(before=mine))
    moved = Machine(name="general-machine", group="other")
    assert refused(example(), Surroundings(nodes, {}, moved)) == {(GROUP, "Immutable")}
    other = Machine(name="other", group="general-machine", node_pool=(PoolNode(name="eriri"),))
    assert refused(example(), Surroundings(nodes, {"other": other})) == {
        (GROUP, "GroupTaken"),
        ("spec.nodePool[2].name", "NodeTaken"),
    }
    spec = TypeSpec(cpu="1", memory="1Gi")
    taken = Machine(
        name="m", group="machine", types=(MachineType(name="compute-medium-general", spec=spec, available=1),)
    )
    assert refused(example(), Surroundings(nodes, {"m": taken})) == {(f"{TYPE}.name", "NameTaken")}


def child(ratio: Any, **fields: Any) -> dict[str, Any]:
    gpu = {"type": "nvidia.com/gpu", "num": 2, "family": "ampere"}
    parent = {"spec": {"cpu": "9", "memory": "8Gi", "gpu": gpu}, "available": 3}
    spec = {"dependence": {"machineType": "large", "availableRatio": ratio}, **fields}
    return machine("g", {"small": {"spec": spec}, "large": parent}, {"n": ["large"]})


def test_a_dependent_type_has_its_share_of_the_parent() -> None:
    found = accepted(child(0.5))
    size = sizes(found)["small"]
    assert (size.parent, size.per_parent) == ("large", 2)
    assert size.amounts == {"cpu": 4500, "memory": 4 << 30, "nvidia.com/gpu": 1}
    assert size.gpu_label == ("nvidia.com/gpu.family", "ampere")
    assert maximum(found, sizes(found), "small") == 6
    assert found.types[0].spec.dependence == Dependence(machine_type="large", available_ratio=0.5)
    assert sizes(accepted(child("50%", cpu="1")))["small"].amounts["cpu"] == 1000
    path = "spec.machineTypes[0].spec"
    assert refused(child(0.3)) == {(f"{path}.gpu", "Contradiction")}
    assert refused(child(0.5, cpu="5")) == {(f"{path}.cpu", "OutOfRange")}
    assert refused(child(0)) == {(f"{path}.dependence.availableRatio", "OutOfRange")}
    circle = child(0.5)
    circle["spec"]["machineTypes"][1]["spec"]["dependence"] = {"machineType": "small", "availableRatio": 1}
    assert (f"{path}.dependence.machineType", "Contradiction") in refused(circle)
    lost = child(0.5)
    lost["spec"]["machineTypes"][0]["spec"]["dependence"]["machineType"] = "huge"
    assert refused(lost) == {(f"{path}.dependence.machineType", "UnknownType")}


def window(name: str, slots: int, begin: int, end: int) -> Window:
    return Window(name=name, slots=slots, from_=f"2026-01-01T{begin:02}:00:00Z", until=f"2026-01-01T{end:02}:00:00Z")


def test_slots_of_another_type_are_set_aside_with_a_limit_only_and_kept_for_no_window() -> None:
    path, window = (
        "spec.machineTypes[1]",
        {"name": "w", "slots": 1, "from": "2030-01-01T00:00:00Z", "until": "2030-01-02T00:00:00Z"},
    )
    kinds: dict[str, dict[str, Any]] = {"large": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 2}}

    def half(**fields: Any) -> dict[str, Any]:
        spec = {"dependence": {"machineType": "large", "availableRatio": 0.5}}
        return machine("g", {**kinds, "half": {"spec": spec, **fields}}, {"n": ["large"]})

    assert accepted(half(available=3, offlineSlots=2)).types[1].offline_slots == 2
    assert refused(half(available=3, offlineSlots=4)) == {(f"{path}.offlineSlots", "Contradiction")}
    assert refused(half(offlineSlots=1)) == {(f"{path}.offlineSlots", "Contradiction")}
    assert refused(half(available=3, windows=[window])) == {(f"{path}.windows", "Contradiction")}
    # Earlier releases accepted them, and what is stored stays, as long as it keeps the other rules.
    stored = Surroundings(stored=True)
    assert accepted(half(offlineSlots=1), stored).types[1].offline_slots == 1
    assert [w.name for w in accepted(half(available=3, windows=[window]), stored).types[1].windows] == ["w"]
    assert refused(half(available=3, offlineSlots=4), stored) == {(f"{path}.offlineSlots", "Contradiction")}
    accepted(half() | {"metadata": {"name": "m" * 250, "labels": half()["metadata"]["labels"]}}, stored)


def test_windows_never_promise_more_than_there_is() -> None:
    document = example()
    entry = {"name": "night", "slots": 3, "from": "2026-01-01T20:00:00Z", "until": "2026-01-02T04:00:00+01:00"}
    late = entry | {"name": "late", "slots": 1, "from": "2026-01-02T02:00:00Z", "until": "2026-01-02T05:00:00Z"}
    document["spec"]["machineTypes"][0]["windows"] = [entry, late]
    assert [w.name for w in accepted(document).types[0].windows] == ["night", "late"]
    late["slots"] = 2
    assert refused(document) == {(f"{TYPE}.windows", "Overbooked")}
    late |= {"from": "2026-01-02T03:00:00Z"}  # when the first one ends
    accepted(document)
    late |= {"until": "tomorrow"}
    assert refused(document) == {(f"{TYPE}.windows[1].until", "BadValue")}


def test_who_may_enter_beside_windows() -> None:
    hour = 3600.0
    midnight = parse_time("2026-01-01T00:00:00Z")
    spans = [Span.of(window("noon", 2, 12, 14))]
    free = Holder("", None)
    # Without an end nobody gets what the window needs; with an end before it anyone does.
    assert may_enter(3, spans, [], free, midnight)
    assert not may_enter(3, spans, [free], free, midnight)
    assert may_enter(3, spans, [free], Holder("", midnight + 11 * hour), midnight)
    assert not may_enter(3, spans, [free], Holder("", midnight + 13 * hour), midnight)
    assert may_enter(3, spans, [free], free, midnight + 14 * hour)
    named = Holder("noon", midnight + 14 * hour)
    assert not may_enter(3, spans, [], named, midnight + 11 * hour)
    assert may_enter(3, spans, [free], named, midnight + 12 * hour - 30)
    assert may_enter(3, spans, [free, named], named, midnight + 13 * hour)
    assert not may_enter(4, spans, [free, named, named], named, midnight + 13 * hour)
    assert not may_enter(3, spans, [], Holder("other"), midnight + 13 * hour)
