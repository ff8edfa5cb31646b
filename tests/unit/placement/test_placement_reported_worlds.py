"""Compares the Placement interface over random fleets with what nodes and parts have."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

import msgspec
import pytest

from moorage.model.claims import Allocation
from moorage.model.part_reports import (
    CapacityPolicy,
    CounterSetReport,
    DeviceReport,
    InventoryReport,
    ProviderReport,
    ZoneReport,
)
from moorage.model.reports import NodeReport
from moorage.model.shapes import EXCLUSIVE
from moorage.placement.core import call
from moorage.placement.core.reported_devices import is_counter
from moorage.placement.core.reported_names import DISABLED, cluster_aggregate
from moorage.placement.core.reported_summaries import summaries_of_nodes
from moorage_testkit.fleets import node
from moorage_testkit.seeds import seeds

from .reported_mesh import ONE, Mesh, Rack, part


def some_node(rng: Random, name: str, rack: Rack) -> NodeReport:
    cores = rng.choice((2, 4, 7))
    fields: dict[str, Any] = {"cpu": f"{cores}", "memory": f"{rng.randint(1, 8)}Gi"}
    zones = []
    cores_of_zones = rng.random()
    if rng.random() < 0.6:
        zones = [
            ZoneReport(
                id=z,
                inventories={
                    "cpu": f"{rng.choice((1500, 2000, 3000))}m",
                    **({"FPGA": "1"} if rng.random() < 0.5 else {}),
                    **({EXCLUSIVE: f"{rng.randint(1, 3)}"} if cores_of_zones < 0.4 else {}),
                },
            )
            for z in range(rng.randint(1, 3))
        ]
        if rng.random() < 0.3:
            zones.append(ZoneReport(id="l3", kind="cache", parent=0, inventories={"cpu": "1"}))
    parents = ["", *(f"numa-{z.id}" for z in zones if z.kind == "zone")]
    cards = [
        ProviderReport(
            id=f"card-{c}",
            parent=rng.choice(parents),
            inventories={
                "VF": InventoryReport(
                    total=str(rng.randint(2, 6)), max_unit=rng.choice((0, 2)), step_size=rng.choice((1, 2))
                )
            },
            traits=rng.sample(["FAST", "HW_NIC_OFFLOAD_RX"], rng.randint(0, 2)),
            healthy=rng.random() < 0.9,
        )
        for c in range(rng.randint(0, 3))
    ]
    devices = some_devices(rng, name)
    if cores_of_zones < 0.4 or rng.random() < 0.5:
        fields["exclusive"] = rng.randint(0, cores)
    report = node(
        name,
        zones=zones,
        providers=cards,
        ready=rng.random() < 0.9,
        requested={"cpu": f"{rng.choice((0, 300, 1200))}m"},
        in_use={
            **{f"card-{c}": {"VF": "1"} for c in range(len(cards)) if rng.random() < 0.3},
            **{
                device.id: {"MEMORY": f"{1 << 30}"} if device.divisible else {"D_IO": "1"}
                for device in devices
                if rng.random() < 0.3
            },
        },
        **fields,
    )
    common, sets = rack.seen_by(name)
    own = [CounterSetReport(driver="d.io", pool=name, name="c", counters={"m": "3"})]
    return msgspec.structs.replace(report, devices=[*devices, *common], counters=[*own, *sets])


def some_devices(rng: Random, name: str) -> list[DeviceReport]:
    """Devices of DRA of a node: whole, divided, or taking of a counter."""
    return [
        DeviceReport(
            id=f"d.io/{name}/gpu-{i}",
            driver="d.io",
            pool=name,
            name=f"gpu-{i}",
            healthy=rng.random() < 0.8,
            divisible=(divided := rng.random() < 0.3),
            capacity={"memory": "8Gi"} if divided else {},
            policies={"memory": CapacityPolicy(minimum="2Gi", step="1Gi")} if divided and i else {},
            consumes={"c": {"m": f"{rng.randint(1, 3)}"}} if not divided and rng.random() < 0.7 else {},
        )
        for i in range(rng.choice((0, 0, 2, 3)))
    ]


QUERIES = (
    "resources=VCPU:1",
    "resources=VCPU:2,MEMORY_MB:1000",
    "resources=PCPU:1,VCPU:1",
    "resources_1=VCPU:1&resources_2=VCPU:2&group_policy=none",
    "resources_1=VCPU:1&resources_2=VCPU:1&resources_3=PCPU:1&group_policy=isolate",
    "resources_C=VCPU:1&resources_V=CUSTOM_VF:2&required_Z=HW_NUMA_ROOT&same_subtree=_C,_V,_Z",
    "resources_1=CUSTOM_VF:2&resources_2=CUSTOM_VF:2&resources=VCPU:1",
    "resources=VCPU:1,CUSTOM_VF:1&required=CUSTOM_FAST",
    "resources_1=CUSTOM_D_IO:1&resources_2=CUSTOM_D_IO:1&resources=VCPU:1&group_policy=isolate",
    "resources_1=CUSTOM_D_IO:1&resources_2=CUSTOM_D_IO:1&resources_3=CUSTOM_D_IO:1&group_policy=none",
    "resources=VCPU:1,CUSTOM_D_IO:1",
    "resources_1=CUSTOM_MEMORY:3221225472&resources_2=CUSTOM_MEMORY:3221225472&resources_3=CUSTOM_D_IO:1",
    "resources_1=PCPU:1,VCPU:1&required_1=HW_NUMA_ROOT",
    "resources_1=PCPU:1&resources_2=VCPU:1&resources_3=PCPU:1&required_Z=HW_NUMA_ROOT&same_subtree=_1,_2,_3,_Z",
    "resources_1=PCPU:1&required_1=HW_NUMA_ROOT&resources_2=VCPU:1",
    "resources=VCPU:1,DISK_GB:3",
    "resources_1=VCPU:1&required_1=HW_NUMA_ROOT&resources_2=FPGA:1&root_required=!COMPUTE_STATUS_DISABLED",
)


@pytest.mark.parametrize("seed", seeds(8, 25))
def test_every_candidate_can_be_allocated_and_the_columns_say_what_there_is(seed: int) -> None:
    rng = Random(seed)
    rack = Rack.some(rng)
    mesh = Mesh(one=[some_node(rng, f"n-{i}", rack) for i in range(3)], two=[some_node(rng, "n-0", Rack())])
    pool = mesh.call("POST", "/resource_providers", {"name": "pool"})["uuid"]
    made = mesh.call("POST", "/resource_providers", {"name": "host"})["uuid"]
    for target, offers in ((pool, {"DISK_GB": {"total": 8}}), (made, {"VCPU": {"total": 3}, "DISK_GB": {"total": 4}})):
        body = {"resource_provider_generation": 0, "inventories": offers}
        mesh.call("PUT", f"/resource_providers/{target}/inventories", body)
    shares = {"resource_provider_generation": 1, "traits": ["MISC_SHARES_VIA_AGGREGATE"]}
    mesh.call("PUT", f"/resource_providers/{pool}/traits", shares)
    joined = {"resource_provider_generation": 2, "aggregates": [cluster_aggregate(ONE)]}
    mesh.call("PUT", f"/resource_providers/{pool}/aggregates", joined)
    for trait in ("CUSTOM_FAST",):
        mesh.call("PUT", f"/traits/{trait}")
    for name in ("CUSTOM_VF", "CUSTOM_D_IO", "CUSTOM_MEMORY"):
        mesh.call("PUT", f"/resource_classes/{name}")
    held: list[str] = []
    for _ in range(12):
        check_columns(mesh)
        query = rng.choice(QUERIES)
        found = mesh.candidates(query)
        for candidate in found:
            change = mesh.ask("PUT", f"/allocations/{uuid.uuid4()}", mesh.body(candidate)).change
            assert change is not None
            entry = Allocation(id="try", generation=1, writes=list(change.consumers))
            mesh.capacity.hold_allocation(entry)
            assert mesh.capacity.holds_room("try"), (query, candidate)
            mesh.capacity.give_back_entry("try")
        if found and rng.random() < 0.8:
            held.append(mesh.put(rng.choice(found)))
        elif held and rng.random() < 0.7:
            mesh.call("DELETE", f"/allocations/{held.pop(rng.randrange(len(held)))}")
        if rng.random() < 0.3:
            name = f"n-{rng.randrange(3)}"
            mesh.report(ONE, some_node(rng, name, rack))
    for consumer in held:
        mesh.call("DELETE", f"/allocations/{consumer}")
    fleet = mesh.writer.fleet
    assert all(not fleet.taken(int(row)) for cid in range(2) for row in fleet.rows_of(cid))
    assert not fleet.taken_in_common(0)


def check_columns(mesh: Mesh) -> None:
    """Compares the columns that candidates are found with against what each provider offers and has free."""
    mesh.state.sync()
    forest, reported = mesh.state.forest, mesh.state.reported
    there: dict[tuple[str, str], tuple[int, int]] = {}
    shown = ((name, columns) for name, columns in forest.classes.items() if not is_counter(name))
    for name, columns in shown:
        for at, row in enumerate(columns.row[: columns._blocks.top].tolist()):
            if row >= 0 and forest.block[row] < 0:
                capacity, used = int(columns.capacity[at]), int(columns.used[at])
                there[forest.ids[row], name] = capacity, capacity - used
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    for ident, row in forest.rows.items():
        place = reported.place(ident)
        if forest.block[row] < 0:
            assert place is not None and place.uuid == ident == part(place.ident, place.cluster)
            for name, offer in reported.offers(place).items():
                units = {"VCPU": 1000, "MEMORY_MB": 1 << 20, "DISK_GB": 1 << 30}.get(name, 1)
                expected[ident, name] = offer.capacity // units, offer.free // units
    assert there == expected
    for cid in reported.columns.clusters:
        roots = [row for ident, row in forest.rows.items() if forest.block[row] == -1 - cid and forest.parent[row] < 0]
        texts = call.finished(summaries_of_nodes(reported.columns, forest, cid, sorted(roots)))
        assert texts is not None
        one_by_one = [call.finished(mesh.state.summaries.of_tree(root, 1)) for root in sorted(roots)]
        assert list(map(decoded_members, texts)) == list(map(decoded_members, one_by_one))


def decoded_members(text: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(f"{{{text}}}")
    return found


def test_only_traits_that_nodes_have_are_in_use() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    assert mesh.call("GET", "/traits?associated=true")["traits"] == []
    mesh.report(ONE, node("n-0", cpu="4", ready=False))
    assert mesh.call("GET", "/traits?associated=true")["traits"] == [DISABLED]
