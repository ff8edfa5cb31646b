"""Tests the reports of a node's agent: devices of plugins and what pods have of them, zones with CPUs of one's own and huge pages, and what
its roles get."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.classes import BUILT_IN_ONLY
from moorage.fleet import NodeRow, normalize_node, with_devices
from moorage.inventory.core.node_overlays import NodeOverlays
from moorage.model.part_reports import RoleKind, Typed
from moorage.model.reports import NodeReport, Report
from moorage.node.core.node_report import NodeDescription, NodeRows, Offered
from moorage.node.node_capacity import capacity_of
from moorage.parts.layout import Layout, layout_of
from moorage.qos.admission import Admitted
from moorage.qos.device_reports import amounts_by_hint, amounts_told, device_reports
from moorage.qos.machine import Machine, MemoryNode
from moorage.qos.messages import (
    AllocatableResource,
    ResourceAllocationInfo,
    TopologyAwareQuantity,
    TopologyAwareResource,
    TopologyHint,
)
from moorage_testkit.nodes import SimulatedNode, machine, pod

VF, GiB = "example.com/vf", 1 << 30


def quantity(zone: int, amount: float, name: str = "", **more: Any) -> TopologyAwareQuantity:
    return TopologyAwareQuantity(node=zone, resource_value=amount, name=name, **more)


def offer(*quantities: TopologyAwareQuantity, node: bool = True) -> AllocatableResource:
    total = sum(q.resource_value for q in quantities)
    return AllocatableResource(
        is_node_resource=node,
        is_scalar_resource=True,
        aggregated_allocatable=total,
        aggregated_capacity=total,
        allocatable=quantities,
    )


def test_devices_are_those_of_zones_that_containers_can_request() -> None:
    socket = quantity(0, 1, topology_level=1)
    offers = {
        VF: offer(
            quantity(1, 2.9, "eth1", type="vf"), quantity(0, 1, "eth0"), quantity(1, 1, "eth1", type="vf"), socket
        ),
        "example.com/hidden": offer(quantity(0, 1), node=False),
        "tokens": offer(quantity(0, 1)),
        "example.com/far": offer(quantity(7, 1), quantity(0, 1, "/etc")),
    }
    found = device_reports(offers, {VF}, {0, 1})
    assert [(d.zone, d.name, d.kind, d.quantity, d.healthy) for d in found] == [
        ("numa-0", "eth0", VF, 1, True),
        ("numa-1", "eth1", "vf", 3, True),
    ]
    assert not any(d.healthy for d in device_reports(offers, (), {0, 1}))


def test_what_pods_have_of_devices() -> None:
    devices = device_reports({VF: offer(quantity(0, 1, "a"), quantity(0, 1, "b"), quantity(1, 4, "c"))}, {VF}, {0, 1})
    told = {VF: TopologyAwareResource(quantities=(quantity(0, 1, "b"), quantity(1, 2)))}
    assert amounts_told(told, devices) == {"numa-0/b": {VF: 1}, "numa-1/c": {VF: 2}}
    hint = ResourceAllocationInfo(allocated_quantity=2, resource_hints=(TopologyHint(nodes=(0,)),))
    assert amounts_by_hint(VF, hint, devices) == {"numa-0/a": {VF: 1}, "numa-0/b": {VF: 1}}
    assert amounts_by_hint(VF, ResourceAllocationInfo(topology_assignments={1: 3}), devices) == {"numa-1/c": {VF: 3}}
    assert amounts_by_hint(VF, ResourceAllocationInfo(allocated_quantity=2), devices) == {}


class Told:
    """A node of which its cluster's agent and its own agent report."""

    def __init__(self, policy: str = "", on: Machine | None = None, more: dict[str, str] | None = None) -> None:
        self.node = SimulatedNode(policy, on or machine())
        amounts = {"cpu": "80", "memory": "400Gi", **(more or {})}
        self.row, _ = normalize_node(NodeReport(name="n", allocatable=amounts))
        self.description = NodeDescription("n", self.node.machine)
        self.overlays = NodeOverlays(lambda name: self.row)

    def rows(self, plugins: Offered = Offered()) -> NodeRows:  # noqa: B008 - immutable
        cpu, offered = self.node.cpu, {"cpu": 3, "memory": 3, "NIC": 3}
        return self.description.rows(
            self.node.node.policy,
            self.node.records,
            {},
            enabled=True,
            exclusive_free=cpu.capacity(cpu.free()),
            offered=offered,
            zones_free=cpu.free_by_zone(),
            plugins=plugins,
        )

    def known(self, plugins: Offered = Offered()) -> NodeRow:  # noqa: B008 - immutable
        """The node's row after a report of its agent."""
        report = msgspec.json.decode(self.rows(plugins).node, type=NodeReport)
        change = self.overlays.apply("node-n", Report(id="r", session="s", seq=0, kind="full", nodes=[report]))
        assert change.row is not None and not change.problems
        return with_devices(change.row, BUILT_IN_ONLY)


def layout(row: NodeRow) -> Layout:
    found = layout_of(row.inside)
    assert not found.dropped
    return found


def in_use(row: NodeRow) -> dict[tuple[str, str], int]:
    return {entry: n for entry, n in zip(layout(row).entry_at, row.in_use, strict=True) if n}


def test_zones_offer_cpus_of_ones_own_and_huge_pages() -> None:
    on = machine(cores=8)
    memory = tuple(MemoryNode(n.id, {**n.total, "hugepages-2Mi": 64 << 21}) for n in on.memory)
    told = Told(
        "{kind: NodePolicy, spec: {reservedCpus: '0', pools: {rest: {cpus: '0-15', min: 3}}}}",
        Machine(on.cpus, memory, on.distances),
    )
    inventories = layout(told.known()).parts[1].inventories
    own = inventories["moorage.dev/exclusive-cpu"]
    assert (own.total, own.reserved) == (8, 1) and inventories["hugepages-2Mi"].total == 64 << 21
    asked = pod("a", "storage-service", 3, GiB, requests={"hugepages-2Mi": 4 << 21})
    assert isinstance(told.node.admit(asked), Admitted)
    row = told.known()
    [zone] = {path for path, _ in in_use(row)}
    found = {name: n for (_, name), n in in_use(row).items()}
    assert found["moorage.dev/exclusive-cpu"] == 3 and found["cpu"] == 3000
    assert found["hugepages-2Mi"] == 4 << 21 and found["memory"] == GiB and zone.startswith("/numa-")
    report = msgspec.json.decode(told.rows().node, type=NodeReport)
    assert {z.id: z.exclusive_free for z in report.zones or ()} == told.node.cpu.free_by_zone()
    # The structure does not change with what is free.
    assert {z.exclusive_free for z in layout(row).inside.zones} == {None}


def test_whole_cores_are_given_in_whole_cores() -> None:
    told = Told(
        "{kind: NodePolicy, spec: {reservedCpus: '0', cpu: {fullCoresOnly: true}}}", machine(cores=4, threads=2)
    )
    zones = [p for p in layout(told.known()).parts if p.kind == "zone"]
    own = [zone.inventories["moorage.dev/exclusive-cpu"] for zone in zones]
    assert [(o.total - o.reserved, o.step_size) for o in own] == [(6, 2), (8, 2)]


def test_roles_are_told_with_what_they_get() -> None:
    told = Told(
        "{kind: NodePolicy, spec: {roles: {db: {exclusive: true, numa: bind}, fast: {exclusive: true},"
        " kin: {numa: bind, sharesNumaWith: [kin]}}}}"
    )
    roles = layout(told.known()).inside.roles
    assert roles["db"] == RoleKind(exclusive=True, one_zone=True, binds=True)
    assert roles["fast"] == RoleKind(exclusive=True, one_zone=True)
    assert roles["kin"] == RoleKind(one_zone=True, binds=True, shares=True, lock=1)
    assert roles["ETL"] == RoleKind()


def test_devices_of_the_agent_stand_beside_those_of_others_and_bound_the_node() -> None:
    told = Told(more={VF: "9", "example.com/gone": "4"})
    offers = {VF: offer(quantity(0, 2, "a", annotations={"speed": "25Gbps", "numa": "0"}))}
    devices = device_reports(offers, {VF}, {0, 1})
    capacity = capacity_of(offers, ["example.com/gone"])
    plugins = Offered(devices, capacity.capacity, capacity.allocatable, capacity.removed)
    row = told.known(plugins)
    assert (row.allocatable[VF], row.allocatable["example.com/gone"]) == (2, 0)
    [part] = [p for p in layout(row).parts if p.device >= 0]
    assert part.path == "/numa-0/a" and part.inventories[VF].total == 2
    assert dict(part.properties)["speed"] == Typed(bandwidth="25Gbps")
    # Without the agent's plugins, all is as the cluster's agent says.
    row = told.known()
    assert row.allocatable[VF] == 9 and not [p for p in layout(row).parts if p.device >= 0]
