"""Nodes and parts of clusters in the Placement interface: how they are shown, what can be allocated of them together with
decisions, what clients may change, and trees that change under allocations."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import pytest

from moorage.fleet import FleetWriter, normalize_node, with_additions
from moorage.ledger import Capacity, Ledger, free_of
from moorage.ledger.entries import Batch, handler_of
from moorage.model.claims import Allocation, Claim, Commit, Decision, Entry, IntentRef, Release, Withdrawal
from moorage.model.part_reports import (
    CapacityPolicy,
    CounterSetReport,
    DeviceReport,
    InventoryReport,
    ProviderReport,
    ZoneReport,
)
from moorage.model.reports import NodeReport, Taint
from moorage.model.shapes import EXCLUSIVE
from moorage.model.slots import PodPlace, Slot, resource_of_part, with_parts
from moorage.parts.inside import AddedNames
from moorage.parts.layout import provider_uuid
from moorage.placement.core import call
from moorage.placement.core.call import Answer, Call
from moorage.placement.core.errors import Refused
from moorage.placement.core.reported_devices import is_counter
from moorage.placement.core.reported_names import DISABLED, claim_uuid, cluster_aggregate
from moorage.placement.core.reported_summaries import summaries_of_nodes
from moorage.placement.core.routes import ROUTES
from moorage.placement.core.state import State
from moorage_testkit.fleets import node, provider, two_zones, writer_of

from .service import finished

ONE = "lab/one"


class Mesh:
    """The operations over a fleet and a ledger. What they change is folded as the log would fold it."""

    def __init__(self, **clusters: list[NodeReport]) -> None:
        self.writer: FleetWriter = writer_of({f"lab/{name}": nodes for name, nodes in clusters.items()})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.state = State()
        self.state.reported.follow(self.writer.fleet, self.ledger)
        self.consumers = 0

    def call(self, method: str, path: str, body: Any = None, version: int = 40) -> Any:
        """Returns the body of the answer. Raises Refused."""
        answer = self.ask(method, path, body, version)
        if answer.change is not None:
            change = answer.change
            if change.consumers or change.exchanges:
                entry = Allocation(id=str(uuid.uuid4()), generation=1, writes=list(change.consumers))
                self.capacity.hold_allocation(entry)
                assert handler_of(entry).check(entry, Batch(self.ledger, self.capacity)) is None
                self.fold(entry)
            self.state.apply(change)
        return None if answer.body is None else msgspec.json.decode(msgspec.json.encode(answer.body))

    def ask(self, method: str, path: str, body: Any = None, version: int = 40) -> Answer:
        self.state.sync()
        path, _, query = path.partition("?")
        for route, methods in ROUTES.items():
            names, parts = route.split("/"), path.split("/")
            if method in methods and len(names) == len(parts):
                found = {n[1:-1]: p for n, p in zip(names, parts, strict=True) if n.startswith("{")}
                if all(n == p for n, p in zip(names, parts, strict=True) if not n.startswith("{")):
                    break
        else:
            raise AssertionError(path)
        operation = next(r.operation for r in methods[method] if r.since <= version <= r.until)
        pairs = parse_qsl(query, keep_blank_values=True)
        result = operation(Call(self.state, version, found, pairs, msgspec.json.encode(body), now=1.0))
        return result if isinstance(result, Answer) else finished(result)

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(uuid.uuid4()), entries=list(entries))
        changes = self.ledger.fold(self.ledger.seq + 1, commit)
        self.capacity.folded(changes, commit.entries_of(Decision), [a.id for a in commit.entries_of(Allocation)])
        self.state.reported.folded(changes)

    def report(self, cluster: str, *nodes: NodeReport, gone: tuple[str, ...] = ()) -> None:
        rows = [normalize_node(one)[0] for one in nodes]
        self.writer.put(self.writer.fleet.ids[cluster], cluster, rows, gone=gone)

    def put(self, allocations: dict[str, dict[str, int]], consumer: str = "", generation: int | None = None) -> str:
        consumer = consumer or str(uuid.uuid4())
        self.call("PUT", f"/allocations/{consumer}", self.body(allocations, generation))
        return consumer

    @staticmethod
    def body(allocations: dict[str, dict[str, int]], generation: int | None = None) -> dict[str, Any]:
        return {
            "allocations": {p: {"resources": amounts} for p, amounts in allocations.items()},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "TEST",
            "consumer_generation": generation,
        }

    def candidates(self, query: str) -> list[dict[str, dict[str, int]]]:
        found = self.call("GET", f"/allocation_candidates?{query}")
        return [{p: a["resources"] for p, a in one["allocations"].items()} for one in found["allocation_requests"]]

    def usages(self, provider: str) -> dict[str, int]:
        found: dict[str, int] = self.call("GET", f"/resource_providers/{provider}/usages")["usages"]
        return found

    def show(self, provider: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/resource_providers/{provider}")
        return found

    def traits(self, provider: str) -> list[str]:
        found: list[str] = self.call("GET", f"/resource_providers/{provider}/traits")["traits"]
        return found

    def free(self, name: str, node: str = "n-0") -> int:
        row = self.writer.fleet.row_of(0, node)
        column = self.writer.fleet.free(name)
        assert row is not None and column is not None
        return int(column[row])


def part(ident: str, cluster: str = ONE) -> str:
    return provider_uuid(cluster, ident)


def zoned(name: str = "", **fields: Any) -> NodeReport:
    cards = [provider(f"fpga-{z}", f"numa-{z}", FPGA="1", traits=["FPGA_A"]) for z in (0, 1)]
    return node(name, cpu="8", memory="16Gi", zones=two_zones("4"), providers=cards, **fields)


def decided(ident: str, *slots: Slot, tenant: str = "shop") -> Decision:
    intent = IntentRef(kind="Application", name="g", revision=1)
    claim = Claim(
        id=ident,
        decision="d",
        intent=intent,
        tenant=tenant,
        slots=list(slots),
        app="a",
        object=f"StatefulSet/{ident}",
        cluster=ONE,
    )
    return Decision(id=ident, group=f"g-{ident}", revision=1, claims=[claim])


def refused(mesh: Mesh, method: str, path: str, body: Any = None) -> str:
    with pytest.raises(Refused) as error:
        mesh.call(method, path, body)
    assert error.value.status == 409, error.value.detail
    return error.value.detail


# -- showing ------------------------------------------------------------------------------------------------------


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


def test_whole_devices_of_one_node_are_offered() -> None:
    devices = [
        device("free"),
        device("taken"),
        device("broken", healthy=False),
    ]
    report = node("n", in_use={"d.io/n/taken": {"D_IO": "1"}})
    mesh = Mesh(one=[msgspec.structs.replace(report, devices=devices)])
    free = part("d.io/n/free")
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == [{free: {"CUSTOM_D_IO": 1}}]
    offering = {
        name: list(mesh.call("GET", f"/resource_providers/{part(f'd.io/n/{name}')}/inventories")["inventories"])
        for name in ("free", "taken", "broken")
    }
    assert offering == {
        "free": ["CUSTOM_D_IO"],
        "taken": ["CUSTOM_D_IO"],
        "broken": ["CUSTOM_D_IO"],
    }
    mesh.put({free: {"CUSTOM_D_IO": 1}})
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == []
    row = mesh.writer.fleet.row_of(0, "n")
    assert row is not None and mesh.writer.fleet.parts_taken(row) == {"d.io/n/free": {"D_IO": 1}}


def device(name: str, pool: str = "n", **more: Any) -> DeviceReport:
    return DeviceReport(id=f"d.io/{pool}/{name}", driver="d.io", pool=pool, name=name, **more)


def test_devices_that_take_of_counters_are_offered_as_far_as_these_have_room() -> None:
    devices = [device("card", consumes={"c": {"m": "2"}})]
    devices += [device(f"half-{i}", consumes={"c": {"m": "1"}}) for i in (0, 1, 2)]
    counters = [CounterSetReport(driver="d.io", pool="n", name="c", counters={"m": "2"})]
    mesh = Mesh(one=[msgspec.structs.replace(node("n"), devices=devices, counters=counters)])
    card, *halves = (part(one.id) for one in devices)
    two = "resources_1=CUSTOM_D_IO:1&resources_2=CUSTOM_D_IO:1"
    pairs = {frozenset(found) for found in mesh.candidates(two)}
    assert pairs == {frozenset((a, b)) for a in halves for b in halves if a != b}, "a card is both halves"
    assert len(mesh.candidates(f"{two}&resources_3=CUSTOM_D_IO:1")) == 0
    assert len(mesh.candidates("resources=CUSTOM_D_IO:1")) == 4
    consumer = mesh.put({halves[0]: {"CUSTOM_D_IO": 1}})
    assert {p for found in mesh.candidates("resources=CUSTOM_D_IO:1") for p in found} == {*halves[1:]}
    assert mesh.usages(card) == {"CUSTOM_D_IO": 1}, "it cannot be taken"
    both = mesh.body({halves[1]: {"CUSTOM_D_IO": 1}, halves[2]: {"CUSTOM_D_IO": 1}})
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", both)
    mesh.call("DELETE", f"/allocations/{consumer}")
    mesh.put({card: {"CUSTOM_D_IO": 1}})
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == []
    above = mesh.show(card)["parent_provider_uuid"]
    assert mesh.show(above)["name"] == f"{ONE}/d.io/n/counters:c"
    assert mesh.call("GET", f"/resource_providers/{above}/inventories")["inventories"] == {}


def test_capacities_of_devices_that_are_divided_are_offered_in_the_steps_of_their_policies() -> None:
    policy = CapacityPolicy(default="1Gi", minimum="2Gi", maximum="40Gi", step="1Gi")
    capacity = {"memory": "80Gi", "slots": "4"}
    divided = device("gpu", divisible=True, capacity=capacity, policies={"memory": policy})
    mesh = Mesh(one=[msgspec.structs.replace(node("n"), devices=[divided])])
    gpu, gib = part(divided.id), 1 << 30
    found = mesh.call("GET", f"/resource_providers/{gpu}/inventories")["inventories"]
    units = ("total", "min_unit", "step_size", "max_unit")
    assert {name: tuple(of[unit] for unit in units) for name, of in found.items()} == {
        "CUSTOM_MEMORY": (80 * gib, 2 * gib, gib, 40 * gib),
        "CUSTOM_SLOTS": (4, 1, 1, 0x7FFFFFFF),
    }
    for amount in (gib, 41 * gib, 5 * gib // 2):
        assert mesh.candidates(f"resources=CUSTOM_MEMORY:{amount}") == []
        body = mesh.body({gpu: {"CUSTOM_MEMORY": amount}})
        assert "inventory constraints" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", body)
    mesh.put({gpu: {"CUSTOM_MEMORY": 40 * gib, "CUSTOM_SLOTS": 1}})
    mesh.put({gpu: {"CUSTOM_MEMORY": 39 * gib}})
    assert mesh.candidates(f"resources=CUSTOM_MEMORY:{2 * gib}") == []
    assert mesh.usages(gpu) == {"CUSTOM_MEMORY": 79 * gib, "CUSTOM_SLOTS": 1}


def reached(*nodes: str, takes: int = 0) -> list[NodeReport]:
    """Nodes that all reach one device, and another of which `takes` is taken of a counter of one."""
    rack = Rack({"x-0": frozenset(nodes), "x-1": frozenset(nodes[:1])}, {"x-0": takes, "x-1": takes}, 1)
    seen = {name: rack.seen_by(name) for name in nodes}
    return [
        msgspec.structs.replace(node(name, cpu="4"), devices=seen[name][0], counters=seen[name][1]) for name in nodes
    ]


def test_a_device_that_several_nodes_reach_shares_with_each_of_them() -> None:
    mesh = Mesh(one=[*reached("n-0", "n-1"), node("n-2", cpu="4")])
    common = part("d.io/rack/x-0")
    shown = mesh.show(common)
    assert (shown["parent_provider_uuid"], shown["name"]) == (None, f"{ONE}/d.io/rack/x-0")
    assert mesh.traits(common) == ["MISC_SHARES_VIA_AGGREGATE"]
    members = {
        name: set(mesh.call("GET", f"/resource_providers/{part(name)}/aggregates")["aggregates"])
        for name in ("d.io/rack/x-0", "n-0", "n-1", "n-2")
    }
    assert [bool(members["d.io/rack/x-0"] & members[name]) for name in ("n-0", "n-1", "n-2")] == [True, True, False]
    both = [found for found in mesh.candidates("resources=VCPU:1,CUSTOM_D_IO:1") if common in found]
    assert {frozenset(found) - {common} for found in both} == {frozenset({part(name)}) for name in ("n-0", "n-1")}
    assert len([f for f in mesh.candidates("resources=CUSTOM_D_IO:1") if common in f]) == 1, (
        "it is one, whoever reaches it"
    )
    mesh.put({common: {"CUSTOM_D_IO": 1}, part("n-1"): {"VCPU": 1}})
    assert not [found for found in mesh.candidates("resources=VCPU:1,CUSTOM_D_IO:1") if common in found]


@pytest.mark.parametrize("takes", [0, 1])
def test_a_common_device_stays_a_consumers_whichever_nodes_go(takes: int) -> None:
    first, second, third = reached("n-0", "n-1", "n-2", takes=takes)
    mesh = Mesh(one=[first, second, third])
    common = part("d.io/rack/x-0")
    consumer = mesh.put({common: {"CUSTOM_D_IO": 1}})
    name = resource_of_part("d.io/rack/x-0", "D_IO")

    def free(at: str) -> int | None:
        found = mesh.writer.fleet.row_of(0, at)
        assert found is not None
        return free_of(mesh.writer.fleet, found, name)

    assert [free(at) for at in ("n-0", "n-1", "n-2")] == [0, 0, 0]
    for gone, left in ("n-0", ["n-1", "n-2"]), ("n-1", ["n-2"]):
        mesh.report(ONE, gone=(gone,))
        assert [free(at) for at in left] == [0] * len(left)
        assert mesh.usages(common) == {"CUSTOM_D_IO": 1}
        mesh.put({common: {"CUSTOM_D_IO": 1}}, consumer, mesh.state.consumers[consumer].generation)
    mesh.report(ONE, gone=("n-2",))
    assert mesh.call("GET", f"/resource_providers/{common}/inventories")["inventories"] == {}
    mesh.report(ONE, first, second)
    assert [free("n-0"), free("n-1")] == [0, 0]
    tick = mesh.writer.fleet.tick
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert [free("n-0"), free("n-1")] == [1, 1]
    fleet = mesh.writer.fleet
    improved = fleet.improved_since(tick)
    assert improved is not None and {fleet.node_name(int(r)) for r in improved} == {"n-0", "n-1"}


@pytest.mark.parametrize("common_first", [True, False])
def test_a_device_that_becomes_common_or_its_nodes_own_stays_a_consumers(common_first: bool) -> None:
    common = reached("n-0", "n-1")
    own = [msgspec.structs.replace(node("n-0", cpu="4"), devices=[device("x-0", "rack")]), node("n-1", cpu="4")]
    own[1].devices = []
    first, then = (common, own) if common_first else (own, common)
    mesh, provider_of = Mesh(one=first), part("d.io/rack/x-0")
    consumer = mesh.put({provider_of: {"CUSTOM_D_IO": 1}})
    for generation, nodes in enumerate((then, first, then), 1):
        mesh.report(ONE, *nodes)
        assert mesh.usages(provider_of) == {"CUSTOM_D_IO": 1}
        assert mesh.show(provider_of)["parent_provider_uuid"] == (part("n-0") if nodes is own else None)
        assert not [found for found in mesh.candidates("resources=CUSTOM_D_IO:1") if provider_of in found]
        mesh.put({provider_of: {"CUSTOM_D_IO": 1}}, consumer, generation)
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert mesh.usages(provider_of) == {"CUSTOM_D_IO": 0}


def test_decisions_and_consumers_do_not_get_the_same_common_device() -> None:
    mesh = Mesh(one=reached("n-0", "n-1", takes=1))
    first, second = part("d.io/rack/x-0"), part("d.io/rack/x-1")
    slot = with_parts(
        Slot(node="n-1", count=1, resources={"cpu": 1000}), [PodPlace({"d.io/rack/x-0": {"D_IO": 1}}, {})]
    )
    held = decided("k", *slot)
    mesh.capacity.hold(held)
    assert mesh.capacity.fits(held.id)
    mesh.fold(held)
    assert mesh.candidates("resources=CUSTOM_D_IO:1") == [], "both take of one counter"
    for each in (first, second):
        body = mesh.body({each: {"CUSTOM_D_IO": 1}})
        assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", body)
    holders = mesh.call("GET", f"/resource_providers/{first}/allocations")["allocations"]
    assert holders == {claim_uuid("k"): {"resources": {"CUSTOM_D_IO": 1}, "consumer_generation": 1}}
    mesh.fold(Withdrawal(group=held.group, revision=1), Release(claims=["k"]))
    mesh.put({second: {"CUSTOM_D_IO": 1}})
    again = decided("l", *slot)
    mesh.capacity.hold(again)
    assert not mesh.capacity.fits(again.id)


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


# -- allocations --------------------------------------------------------------------------------------------------


def test_decisions_and_allocations_take_the_same_room() -> None:
    mesh = Mesh(one=[zoned()])
    zone, card = part("n-0/numa-0"), part("n-0/fpga-0")
    of_zone = {"n-0/numa-0": {"cpu": 3000}, "n-0/fpga-0": {"FPGA": 1}}
    mesh.fold(decided("k", *with_parts(Slot(node="n-0", resources={"cpu": 3000}), [PodPlace(of_zone, {})])))
    assert mesh.usages(zone) == {"VCPU": 3} and mesh.usages(card) == {"FPGA": 1}
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", mesh.body({zone: {"VCPU": 2}}))
    one = mesh.put({zone: {"VCPU": 1}})
    later = decided("l", Slot(node="n-0", resources={"cpu": 5000}))
    mesh.capacity.hold(later)
    assert not mesh.capacity.fits("l")
    mesh.call("DELETE", f"/allocations/{one}")
    assert mesh.capacity.fits("l")
    mesh.capacity.give_back("l")
    tick = mesh.writer.fleet.tick
    mesh.fold(Withdrawal(group="g-k", revision=1), Release(claims=["k"]))
    improved = mesh.writer.fleet.improved_since(tick)
    assert improved is not None and len(improved) and mesh.usages(zone) == {"VCPU": 0}


def test_what_an_allocation_gives_back_marks_its_node_improved() -> None:
    mesh = Mesh(one=[zoned(), zoned()])
    consumer = mesh.put({part("n-1/fpga-0"): {"FPGA": 1}})
    tick = mesh.writer.fleet.tick
    mesh.call("DELETE", f"/allocations/{consumer}")
    improved = mesh.writer.fleet.improved_since(tick)
    assert improved is not None and [mesh.writer.fleet.node_name(int(row)) for row in improved] == ["n-1"]


def test_claims_are_consumers_that_nobody_changes_here() -> None:
    mesh = Mesh(one=[zoned()])
    of_zone = {"n-0/numa-0": {"cpu": 1500}}
    slots = with_parts(Slot(node="n-0", resources={"cpu": 1500, "memory": 1 << 20}), [PodPlace(of_zone, {})] * 2)
    mesh.fold(decided("k", *slots))
    claim = claim_uuid("k")
    shown = mesh.call("GET", f"/allocations/{claim}")
    assert {p: a["resources"] for p, a in shown["allocations"].items()} == {
        part("n-0/numa-0"): {"VCPU": 3},
        part("n-0"): {"MEMORY_MB": 2},
    }
    assert (shown["project_id"], shown["consumer_type"]) == ("shop", "MOORAGE_CLAIM")
    held = mesh.call("GET", f"/resource_providers/{part('n-0/numa-0')}/allocations")["allocations"]
    assert {c: a["resources"] for c, a in held.items()} == {claim: {"VCPU": 3}}
    total = mesh.call("GET", "/usages?project_id=shop")["usages"]
    assert total == {"MOORAGE_CLAIM": {"VCPU": 3, "MEMORY_MB": 2, "consumer_count": 1}}
    empty = mesh.body({}, 1)
    assert "claim" in refused(mesh, "PUT", f"/allocations/{claim}", empty)
    assert "claim" in refused(mesh, "DELETE", f"/allocations/{claim}")
    assert "claim" in refused(
        mesh, "POST", "/allocations", {claim: empty, str(uuid.uuid4()): mesh.body({part("n-0"): {"MEMORY_MB": 1}})}
    )


def test_generations_grow_with_allocation_writes_and_additions_only() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    root = part("n-0")
    assert mesh.show(root)["generation"] == 0
    consumer = mesh.put({root: {"VCPU": 1}})
    mesh.put({root: {"VCPU": 2}}, consumer, 1)
    assert mesh.show(root)["generation"] == 2
    mesh.report(ONE, node("n-0", cpu="8"))
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert mesh.show(root)["generation"] == 2
    mesh.call("PUT", "/traits/CUSTOM_T")
    body = {"resource_provider_generation": 2, "traits": ["CUSTOM_T"]}
    assert mesh.call("PUT", f"/resource_providers/{root}/traits", body)["resource_provider_generation"] == 3
    assert "generation" in refused(mesh, "PUT", f"/resource_providers/{root}/traits", body)
    assert mesh.show(root)["generation"] == 3


def test_what_does_not_grow_is_allowed_over_capacity() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    root = part("n-0")
    consumer = mesh.put({root: {"VCPU": 4}})
    mesh.report(ONE, node("n-0", cpu="2"))
    assert mesh.usages(root)["VCPU"] == 4
    mesh.put({root: {"VCPU": 4}}, consumer, 1)
    mesh.put({root: {"VCPU": 3}}, consumer, 2)
    assert mesh.usages(root)["VCPU"] == 3 and mesh.free("cpu") == -1000
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{consumer}", mesh.body({root: {"VCPU": 4}}, 3))


def test_several_consumers_move_between_nodes_in_one_request() -> None:
    mesh = Mesh(one=[node(cpu="4"), node(cpu="4")])
    a, b = part("n-0"), part("n-1")
    first, second = mesh.put({a: {"VCPU": 4}}), mesh.put({b: {"VCPU": 4}})
    body = {first: mesh.body({b: {"VCPU": 4}}, 1), second: mesh.body({a: {"VCPU": 4}}, 1)}
    mesh.call("POST", "/allocations", body)
    assert (mesh.free("cpu", "n-0"), mesh.free("cpu", "n-1")) == (0, 0)
    again = {first: mesh.body({a: {"VCPU": 4}}, 2), second: mesh.body({a: {"VCPU": 1}}, 2)}
    assert "exceed" in refused(mesh, "POST", "/allocations", again)
    assert mesh.call("GET", f"/allocations/{first}")["allocations"].keys() == {b}


def test_a_reshape_moves_what_is_held_between_made_providers_and_nodes() -> None:
    mesh = Mesh(one=[node(cpu="4")])
    root = part("n-0")
    made = mesh.call("POST", "/resource_providers", {"name": "made"})["uuid"]
    mesh.call(
        "PUT",
        f"/resource_providers/{made}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 4}}},
    )
    consumer = mesh.put({made: {"VCPU": 3}})
    body = {
        "inventories": {made: {"resource_provider_generation": 2, "inventories": {}}},
        "allocations": {consumer: mesh.body({root: {"VCPU": 3}}, 1)},
    }
    mesh.call("POST", "/reshaper", body)
    assert mesh.free("cpu") == 1000 and mesh.usages(made) == {}
    of_node = {"inventories": {root: {"resource_provider_generation": 1, "inventories": {}}}, "allocations": {}}
    assert "reported" in refused(mesh, "POST", "/reshaper", of_node)


# -- what clients may not change, and what they may add ----------------------------------------------------------------


def test_name_parent_and_inventories_are_the_clusters() -> None:
    mesh = Mesh(one=[zoned()])
    root, url = part("n-0"), f"/resource_providers/{part('n-0')}"
    inventory = {"resource_provider_generation": 0, "total": 1}
    for method, path, body in (
        ("PUT", url, {"name": "other"}),
        (
            "PUT",
            f"/resource_providers/{part('n-0/numa-0')}",
            {"name": f"{ONE}/n-0/numa-0", "parent_provider_uuid": None},
        ),
        ("DELETE", url, None),
        ("DELETE", f"{url}/inventories", None),
        ("PUT", f"{url}/inventories", {"resource_provider_generation": 0, "inventories": {}}),
        ("POST", f"{url}/inventories", {"resource_class": "VGPU", **inventory}),
        ("PUT", f"{url}/inventories/MEMORY_MB", inventory),
        ("DELETE", f"{url}/inventories/MEMORY_MB", None),
        ("POST", "/resource_providers", {"name": "child", "parent_provider_uuid": root}),
    ):
        assert "reported" in refused(mesh, method, path, body), (method, path)
    assert "already exists" in refused(mesh, "POST", "/resource_providers", {"name": f"{ONE}/n-0/numa-1"})
    assert "already exists" in refused(mesh, "POST", "/resource_providers", {"name": "x", "uuid": root})
    assert "in use" in refused(mesh, "DELETE", "/traits/CUSTOM_FPGA_A").lower()
    assert mesh.call("PUT", url, {"name": f"{ONE}/n-0"})["uuid"] == root, "a name that stays"


def test_clients_add_traits_and_aggregates_and_remove_only_those() -> None:
    mesh = Mesh(one=[zoned()])
    zone, url = part("n-0/numa-0"), f"/resource_providers/{part('n-0/numa-0')}"
    mesh.call("PUT", "/traits/CUSTOM_GOLD")
    found = mesh.call("PUT", f"{url}/traits", {"resource_provider_generation": 0, "traits": ["CUSTOM_GOLD"]})
    assert found["traits"] == ["CUSTOM_GOLD", "HW_NUMA_ROOT"] or sorted(found["traits"]) == [
        "CUSTOM_GOLD",
        "HW_NUMA_ROOT",
    ]
    assert mesh.candidates("resources=VCPU:1&required=CUSTOM_GOLD") == [{zone: {"VCPU": 1}}]
    own = str(uuid.uuid4())
    mesh.call("PUT", f"{url}/aggregates", {"resource_provider_generation": 1, "aggregates": [own]})
    assert mesh.candidates(f"resources_1=VCPU:1&member_of_1={own}") == [{zone: {"VCPU": 1}}]
    mesh.report(ONE, zoned("n-0", requested={"cpu": "1"}))
    assert mesh.candidates("resources=VCPU:1&required=CUSTOM_GOLD") == [{zone: {"VCPU": 1}}], "agents do not touch them"
    mesh.call("DELETE", f"{url}/traits")
    assert mesh.traits(zone) == ["HW_NUMA_ROOT"]
    assert mesh.call("GET", f"{url}/aggregates")["aggregates"] == [own]
    assert mesh.show(zone)["generation"] == 3


def test_additions_in_the_fleet_are_no_reported_names() -> None:
    """Inventory merges additions into the rows that decisions see. They can be removed all the same."""
    mesh = Mesh(one=[zoned()])
    zone, url = part("n-0/numa-0"), f"/resource_providers/{part('n-0/numa-0')}"
    mesh.call("PUT", "/traits/CUSTOM_GOLD")
    mesh.call("PUT", f"{url}/traits", {"resource_provider_generation": 0, "traits": ["CUSTOM_GOLD"]})
    row = mesh.writer.row(0, "n-0")
    assert row is not None
    merged = with_additions(
        row, {"/numa-0": AddedNames(traits=["CUSTOM_GOLD"]), "": AddedNames(traits=["CUSTOM_ROOT"])}
    )
    mesh.writer.put(0, ONE, [merged])
    fleet = mesh.writer.fleet
    at = fleet.part_row(0, "n-0/numa-0")
    assert fleet.parts.traits.sets[int(fleet.parts.trait_set[at])] == {"HW_NUMA_ROOT", "GOLD"}
    mesh.call("DELETE", f"{url}/traits")
    assert mesh.traits(zone) == ["HW_NUMA_ROOT"] and mesh.traits(part("n-0")) == []
    assert mesh.candidates("resources=VCPU:1&required=CUSTOM_GOLD") == []


# -- trees that change under allocations --------------------------------------------------------------------------------


def test_a_part_that_is_gone_stays_while_something_names_it() -> None:
    mesh = Mesh(one=[zoned()])
    card = part("n-0/fpga-0")
    consumer = mesh.put({card: {"FPGA": 1}})
    without = node("n-0", cpu="8", memory="16Gi", zones=two_zones("4"), providers=[])
    mesh.report(ONE, without)
    shown = mesh.show(card)
    assert (shown["name"], shown["root_provider_uuid"], shown["generation"]) == (f"{ONE}/n-0/fpga-0", part("n-0"), 1)
    assert mesh.usages(card) == {"FPGA": 1}
    assert mesh.call("GET", f"/resource_providers/{card}/inventories")["inventories"] == {}
    tree = mesh.call("GET", f"/resource_providers?in_tree={part('n-0')}")["resource_providers"]
    assert card in {p["uuid"] for p in tree}
    assert mesh.candidates("resources=FPGA:1") == []
    mesh.report(ONE, zoned("n-0"))
    assert mesh.usages(card) == {"FPGA": 1} and mesh.show(card)["generation"] == 1, "back as it was, and still held"
    assert mesh.candidates("resources=FPGA:1") == [{part("n-0/fpga-1"): {"FPGA": 1}}]
    mesh.report(ONE, without)
    mesh.call("DELETE", f"/allocations/{consumer}")
    with pytest.raises(Refused) as error:
        mesh.show(card)
    assert error.value.status == 404
    mesh.report(ONE, zoned("n-0"))
    assert mesh.show(card)["generation"] == 1, "the generation goes on"


def test_a_consumer_keeps_what_it_has_of_a_part_that_is_gone_while_it_changes_all_else() -> None:
    mesh = Mesh(one=[zoned()])
    card, zone, other = part("n-0/fpga-0"), part("n-0/numa-0"), part("n-0/numa-1")
    consumer = mesh.put({card: {"FPGA": 1}, zone: {"VCPU": 3}, other: {"VCPU": 1}})
    half = [z for z in two_zones("4") if z.id != 0]
    cards = [provider("fpga-1", "numa-1", FPGA="1")]
    mesh.report(ONE, node("n-0", cpu="8", memory="16Gi", zones=half, providers=cards))
    assert mesh.usages(card) == {"FPGA": 1} and mesh.usages(zone) == {"VCPU": 3}
    mesh.put({card: {"FPGA": 1}, zone: {"VCPU": 2}, other: {"VCPU": 2}}, consumer, 1)
    assert (mesh.usages(card), mesh.usages(zone)) == ({"FPGA": 1}, {"VCPU": 2})
    more = mesh.body({card: {"FPGA": 1}, zone: {"VCPU": 3}}, 2)
    assert "invalid" in refused(mesh, "PUT", f"/allocations/{consumer}", more), "it takes no more of what is gone"
    stranger = mesh.body({card: {"FPGA": 1}}, None)
    assert "invalid" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", stranger)
    mesh.report(ONE, zoned("n-0"))
    assert (mesh.usages(card), mesh.usages(zone)) == ({"FPGA": 1}, {"VCPU": 2}), "it counts again"
    assert mesh.usages(part("n-0/any"))["VCPU"] == 4, "of the node it takes what its zones give"
    mesh.call("DELETE", f"/allocations/{consumer}")
    assert mesh.usages(part("n-0/any"))["VCPU"] == 0 and mesh.usages(zone)["VCPU"] == 0


def test_a_node_that_is_gone_stays_while_a_claim_names_it() -> None:
    mesh = Mesh(one=[node(cpu="4"), node(cpu="4")])
    mesh.fold(decided("k", Slot(node="n-1", resources={"cpu": 1000})))
    mesh.report(ONE, gone=("n-1",))
    assert mesh.usages(part("n-1")) == {"VCPU": 1} and mesh.show(part("n-1"))["parent_provider_uuid"] is None
    mesh.fold(Withdrawal(group="g-k", revision=1), Release(claims=["k"]))
    assert mesh.call("GET", "/resource_providers")["resource_providers"] != []
    with pytest.raises(Refused):
        mesh.show(part("n-1"))


def test_a_part_that_moves_keeps_what_is_held_of_it() -> None:
    mesh = Mesh(one=[zoned()])
    card = part("n-0/fpga-0")
    mesh.put({card: {"FPGA": 1}})
    cards = [provider(f"fpga-{z}", "numa-1", FPGA="1") for z in (0, 1)]
    mesh.report(ONE, node("n-0", cpu="8", zones=two_zones("4"), providers=cards))
    assert mesh.show(card)["parent_provider_uuid"] == part("n-0/numa-1") and mesh.usages(card) == {"FPGA": 1}


def test_a_part_that_shrinks_is_over_capacity() -> None:
    mesh = Mesh(one=[node(cpu="8", providers=[provider("nic", SRIOV_NET_VF="8")])])
    nic = part("n-0/nic")
    consumer = mesh.put({nic: {"SRIOV_NET_VF": 6}})
    mesh.report(ONE, node("n-0", cpu="8", providers=[provider("nic", SRIOV_NET_VF="4")]))
    assert mesh.usages(nic) == {"SRIOV_NET_VF": 6}
    body = mesh.body({nic: {"SRIOV_NET_VF": 1}}, None)
    assert "exceed" in refused(mesh, "PUT", f"/allocations/{uuid.uuid4()}", body)
    mesh.put({nic: {"SRIOV_NET_VF": 5}}, consumer, 1)
    mesh.put({nic: {"SRIOV_NET_VF": 2}}, consumer, 2)
    assert len(mesh.candidates("resources=SRIOV_NET_VF:2")) == 1


# -- all together -------------------------------------------------------------------------------------------------------


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


class Rack(NamedTuple):
    """Devices that nodes reach in common: by name the nodes, and what each takes of the rack's only counter."""

    reach: dict[str, frozenset[str]] = {}
    takes: dict[str, int] = {}
    counter: int = 3

    @classmethod
    def some(cls, rng: Random) -> Rack:
        names = [f"x-{i}" for i in range(rng.choice((0, 2, 3, 4)))]
        reach = {name: frozenset(rng.sample(["n-0", "n-1", "n-2"], rng.randint(1, 3))) for name in names}
        return cls(reach, {name: rng.choice((0, 1, 2)) for name in names})

    def seen_by(self, node: str) -> tuple[list[DeviceReport], list[CounterSetReport]]:
        counted = any(self.takes[name] for name, nodes in self.reach.items() if node in nodes)
        devices = [
            DeviceReport(
                id=f"d.io/rack/{name}",
                driver="d.io",
                pool="rack",
                name=name,
                shared=True,
                elsewhere=node not in nodes,
                consumes={"c": {"m": f"{self.takes[name]}"}} if self.takes[name] else {},
            )
            for name, nodes in self.reach.items()
            if node in nodes or (counted and self.takes[name])
        ]
        sets = [CounterSetReport(driver="d.io", pool="rack", name="c", counters={"m": f"{self.counter}"})]
        return devices, sets if counted else []


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


@pytest.mark.parametrize("seed", range(25))
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
