"""Devices in fleet files: what nodes report of them, what others hold, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.fleet import normalize_node
from moorage.model.part_reports import Typed
from moorage.model.problems import Refused
from moorage.model.reports import NodeReport
from moorage.parts.layout import layout_of
from moorage.sim.core.fleet_documents import decode, expand

GPU: dict[str, Any] = {
    "name": "gpu-0",
    "kind": "nvidia-gpu",
    "vendor": "nvidia",
    "zone": 1,
    "properties": {"memory": "80Gi", "cuda": {"version": "12.4"}, "mig": False, "model": "H100"},
}
NIC = {"name": "nic", "kind": "nic", "shared": True, "properties": {"speed": "40GBPS"}, "used": {"speed": "10G"}}
CORES = [
    {"name": "numa", "kind": "numa-node", "consumes": {"cores": {"cpu": 4}}},
    *({"name": f"core-{i}", "kind": "single-core", "consumes": {"cores": {"cpu": 1}}} for i in range(4)),
]
NODES = "clusters[0].nodes[0]"


def _fleet(devices: list[dict[str, Any]], **node: Any) -> dict[str, Any]:
    given = {"name": "n", "allocatable": {"cpu": 8}, "devices": devices, "zones": [{"id": 1, "cpus": 4}], **node}
    return {"kind": "Fleet", "clusters": [{"name": "edge", "nodes": [given]}]}


def _report(devices: list[dict[str, Any]], **node: Any) -> NodeReport:
    (spec,) = expand(decode(_fleet(devices, **node))).values()
    ((name, kind),) = spec.nodes()
    row = kind.row(spec.id, name, {}, 0, 0, (), kind.initial_zones)
    return msgspec.json.decode(row, type=NodeReport)


def test_devices_are_parts_with_typed_properties() -> None:
    row, problem = normalize_node(_report([GPU, NIC, {"name": "page", "kind": "huge-pages", "quantity": 4, "used": 1}]))
    assert not problem
    layout = layout_of(row.inside)
    gpu = layout.parts[layout.at["/numa-1/gpu-0"]]
    assert dict(gpu.properties) == {
        "Kind": "nvidia-gpu",
        "Vendor": "nvidia",
        "numa": 1,
        "memory": Typed(quantity="80Gi"),
        "cuda": Typed(version="12.4"),
        "mig": False,
        "model": "H100",
    }
    amounts = {path: {n: i.capacity for n, i in layout.parts[at].inventories.items()} for path, at in layout.at.items()}
    assert amounts["/nic"] == {"SPEED": 40_000_000_000}
    assert amounts["/page"] == {"HUGE_PAGES": 4}
    used = {(layout.parts[e.part].path, e.resource): n for e, n in zip(layout.entries, row.in_use, strict=True) if n}
    assert used == {("/nic", "SPEED"): 10_000_000_000, ("/page", "HUGE_PAGES"): 1}


def test_devices_share_counters() -> None:
    row, problem = normalize_node(_report(CORES, counters={"cores": {"cpu": 4}}))
    assert not problem
    layout = layout_of(row.inside)
    numa, core = (layout.parts[layout.at[path]] for path in ("/numa", "/core-0"))
    assert [take.amount for take in numa.consumes["NUMA_NODE"]] == [4]
    assert [take.amount for take in core.consumes["SINGLE_CORE"]] == [1]


def test_what_fails_or_is_tainted_gives_nothing() -> None:
    taint = {"key": "broken", "effect": "NoExecute"}
    row, _ = normalize_node(_report([GPU | {"healthy": False}, NIC | {"taints": [taint]}]))
    layout = layout_of(row.inside)
    assert not layout.parts[layout.at["/numa-1/gpu-0"]].healthy and not layout.parts[layout.at["/nic"]].healthy


@pytest.mark.parametrize(
    ("devices", "path", "code"),
    [
        ([GPU | {"name": "a/b"}], "devices[0].name", "BadName"),
        ([GPU, GPU], "devices[1].name", "Duplicate"),
        ([{"name": "x"}], "devices[0].kind", "Required"),
        ([GPU | {"zone": 3}], "devices[0].zone", "UnknownZone"),
        ([GPU | {"quantity": -1}], "devices[0].quantity", "OutOfRange"),
        ([GPU | {"properties": {"a": {"weight": 1}}}], "devices[0].properties.a", "BadValue"),
        ([GPU | {"properties": {"a": {"version": "new"}}}], "devices[0].properties.a", "BadValue"),
        ([GPU | {"taints": [{"key": "a", "effect": "Never"}]}], "devices[0].taints[0].effect", "BadValue"),
        ([GPU | {"consumes": {"s": {"c": 1}}}], "devices[0].consumes.s.c", "UnknownCounter"),
        ([GPU | {"used": 2}], "devices[0].used", "BadInventory"),
        ([GPU | {"used": {"memory": 1}}], "devices[0].used", "WrongType"),
        ([NIC | {"quantity": 2}], "devices[0].shared", "Contradiction"),
        ([GPU | {"speed": 1}], "devices[0].speed", "UnknownField"),
    ],
)
def test_what_is_wrong_with_devices_is_told_with_its_path(devices: list[dict[str, Any]], path: str, code: str) -> None:
    with pytest.raises(Refused) as caught:
        decode(_fleet(devices))
    assert (f"{NODES}.{path}", code) in {(error.path, error.code) for error in caught.value.problem.errors}
