"""A cluster whose nodes reach the same devices, as its agent reports it, and what fits there by trying all."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from moorage.agent.core import kube_types
from moorage.agent.core.cluster_state import ClusterState
from moorage.dra import objects as dra
from moorage.fit import Assigned, Unassigned, assign
from moorage.fleet import Fleet, FleetWriter, normalize_node
from moorage.kube.objects import Key
from moorage.ledger import Capacity, Ledger
from moorage.ledger.room import free_of
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef
from moorage.model.part_requests import DeviceAsk, PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.model.slots import Slot, resource_of_part
from moorage_testkit.fleets import writer_of

DRIVER, POOL, CLASS = "d.io", "rack", "D_IO"
LAB = "lab/one"


@dataclass(frozen=True)
class Device:
    """`reach`: the nodes; one name alone is a device of that node. `takes`: of the only set of counters."""

    name: str
    reach: tuple[str, ...]
    takes: int = 0
    model: str = "a"

    @property
    def ident(self) -> str:
        return f"{DRIVER}/{POOL}/{self.name}"

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "attributes": {"model": {"string": self.model}}}
        if self.takes:
            found["consumesCounters"] = [{"counterSet": "c", "counters": {"m": {"value": str(self.takes)}}}]
        if len(self.reach) == 1:
            return found | {"nodeName": self.reach[0]}
        terms = [{"matchExpressions": [{"key": "host", "operator": "In", "values": list(self.reach)}]}]
        return found | {"nodeSelector": {"nodeSelectorTerms": terms}}


class Cluster:
    """A cluster of nodes with these devices, as an agent reports it and the fleet and the ledger see it."""

    def __init__(self, cpu: Mapping[str, int], devices: Sequence[Device], counters: int = 0) -> None:
        self.state, self.names = ClusterState(), list(cpu)
        for name, cores in cpu.items():
            body = {
                "metadata": {"name": name, "uid": name, "labels": {"host": name}},
                "status": {
                    "allocatable": {"cpu": str(cores), "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            self.state.put_node(Key("", name), kube_types.node(msgspec.json.encode(body)))
        pool = {"name": POOL, "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": DRIVER, "pool": pool, "perDeviceNodeSelection": True}
        sets = [{"name": "c", "counters": {"m": {"value": str(counters)}}}]
        self._put_slice("devices", spec | {"devices": [device.body() for device in devices]})
        self._put_slice("counters", spec | ({"sharedCounters": sets} if counters else {}))
        self.writer: FleetWriter = writer_of({LAB: self.reports()})
        self.ledger = Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)

    def _put_slice(self, name: str, spec: Mapping[str, Any]) -> None:
        body = {"metadata": {"name": name, "uid": name}, "spec": spec}
        self.state.put_slice(Key("", name), dra.slice_(msgspec.json.encode(body)))

    def reports(self) -> list[NodeReport]:
        rows = [self.state.row(self.state.nodes[name]) for name in self.names]
        return [msgspec.json.decode(msgspec.json.encode(row), type=NodeReport) for row in rows]

    def report(self, nodes: Sequence[NodeReport]) -> None:
        self.writer.put(0, LAB, [normalize_node(report)[0] for report in nodes], whole=True)

    @property
    def fleet(self) -> Fleet:
        return self.writer.fleet

    def assign(self, *shapes: Shape, fleet: Fleet | None = None) -> Assigned | Unassigned:
        found = fleet or self.fleet
        return assign(found, found.rows_of(0), shapes)

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def free(self, node: str, device: Device) -> int | None:
        row = self.fleet.row_of(0, node)
        assert row is not None
        return free_of(self.fleet, row, resource_of_part(device.ident, CLASS))


def wanting(count: int = 1, pods: int = 1, cpu: int = 1, model: str = "", name: str = "s") -> Shape:
    selector = ((PropertyCondition(key="model", operator="In", values=(model,)),),) if model else ()
    ask = DeviceAsk(device_class="", count=count, properties=selector, selectors=("true",))
    return Shape(
        key=f"{name}{count}-{pods}-{cpu}-{model}",
        object=f"Deployment/{name}",
        template="t",
        count=pods,
        resources={"cpu": cpu * 1000, "pods": 1},
        groups=[PartGroup(suffix=f"claim-{name}/r", devices=(ask,))],
    )


def decision(ident: str, slots: Sequence[Slot]) -> Decision:
    intent = IntentRef(kind="Application", name="g", revision=1)
    claim = Claim(
        id=f"k-{ident}",
        decision=ident,
        intent=intent,
        tenant="t",
        slots=list(slots),
        app="a",
        object=f"Deployment/{ident}",
        cluster=LAB,
    )
    return Decision(id=ident, group=f"g-{ident}", revision=1, claims=[claim])


def slots_of(found: Assigned | Unassigned) -> list[Slot]:
    assert isinstance(found, Assigned), found
    return [slot for slots in found.slots for slot in slots]


def given(slots: Sequence[Slot]) -> list[tuple[str, str]]:
    """Returns the node and the device of each grant."""
    return sorted((slot.node, grant.part) for slot in slots for grant in slot.devices for _ in range(slot.count))


def solutions(cluster: Cluster, devices: Sequence[Device], counters: int, shapes: Sequence[Shape]) -> bool:
    """Returns whether there are nodes and devices for all pods, by trying all."""
    cpu = {}
    for name in cluster.names:
        row, free = cluster.fleet.row_of(0, name), cluster.fleet.free("cpu")
        assert row is not None and free is not None
        cpu[name] = int(free[row])
    pods = [shape for shape in shapes for _ in range(shape.count)]

    def place(at: int, taken: frozenset[str], used: int, cpus: Mapping[str, int]) -> bool:
        if at == len(pods):
            return True
        shape = pods[at]
        ask, need = shape.groups[0].devices[0], shape.resources["cpu"]
        for node in cluster.names:
            if cpus[node] < need:
                continue
            able = [
                d
                for d in devices
                if node in d.reach
                and d.name not in taken
                and (not ask.properties or d.model in ask.properties[0][0].values)
            ]
            for some in itertools.combinations(able, ask.count):
                total = used + sum(d.takes for d in some)
                if (not any(d.takes for d in some) or total <= counters) and place(
                    at + 1, taken | {d.name for d in some}, total, {**cpus, node: cpus[node] - need}
                ):
                    return True
        return False

    return place(0, frozenset(), 0, cpu)


def is_sound(slots: Sequence[Slot], devices: Sequence[Device], counters: int, asked: Sequence[Shape]) -> bool:
    by_ident = {device.ident: device for device in devices}
    grants = given(slots)
    if len({part for _, part in grants}) < len(grants) or any(n not in by_ident[part].reach for n, part in grants):
        return False
    pods = Counter[str]()
    for slot in slots:
        pods[slot.node] += slot.count
    wanted = sum(shape.count * shape.groups[0].devices[0].count for shape in asked)
    taken = sum(by_ident[part].takes for _, part in grants)
    return len(grants) == wanted and taken <= counters
