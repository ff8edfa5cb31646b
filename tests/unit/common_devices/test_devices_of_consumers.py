"""Devices that several nodes reach, held by consumers of the Placement interface beside decisions: each is given once, and what is
left is found."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import msgspec

from moorage.fit import Assigned
from moorage.merger.core.settle import is_unsettled
from moorage.model.allocations import IN_COMMON, Consumer, ConsumerWrite
from moorage.model.claims import Allocation
from moorage.model.slots import resource_of_part
from moorage.parts.layout import provider_uuid
from moorage.placement.core.call import Call, LongBody, finished
from moorage.placement.core.candidates import listed
from moorage.placement.core.state import State

from .cluster import CLASS, LAB, Cluster, Device, decision, given, is_sound, slots_of, solutions, wanting
from .test_devices_of_several_nodes import worlds
from .test_settling_common_devices import Mesh


def allocation(cluster: Cluster, state: State, *devices: str) -> Allocation:
    """Returns the entry of a consumer with whole devices, by id."""
    amounts = {provider_uuid(LAB, device): {f"CUSTOM_{CLASS}": 1} for device in devices}
    consumer = Consumer(uuid=str(uuid.uuid4()), project="p", user="u", generation=1, allocations=amounts)
    write = ConsumerWrite(consumer=state.reported.located(consumer))
    state.reported.check_room([write], {})
    return Allocation(id=consumer.uuid, generation=1, writes=[write])


def candidates(state: State, query: list[tuple[str, str]]) -> list[frozenset[str]]:
    state.sync()
    answer = finished(listed(Call(state, 40, {}, query, b"", now=1.0)))
    assert isinstance(answer.body, LongBody)
    body: dict[str, Any] = msgspec.json.decode(b"".join(answer.body.pieces))
    return [frozenset(one["allocations"]) for one in body["allocation_requests"]]


def test_consumers_and_decisions_share_common_devices_and_counters_exactly() -> None:
    outcomes = Counter[bool]()
    for rng, cpu, devices, counters in worlds(60, 5000):
        cluster = Cluster(cpu, devices, counters)
        state = State()
        state.reported.follow(cluster.fleet, cluster.ledger)
        left, rest = list(devices), counters
        for step in range(3):
            idents = {provider_uuid(LAB, d.ident): d for d in left}
            able = {d.ident for d in left if d.takes <= rest}
            found = candidates(state, [("resources", f"CUSTOM_{CLASS}:1")])
            assert {idents[p].ident for one in found for p in one} == able, (devices, left, rest)
            query = [("resources_1", f"CUSTOM_{CLASS}:1"), ("resources_2", f"CUSTOM_{CLASS}:1")]
            pairs = {frozenset(idents[p].name for p in one) for one in candidates(state, query)}
            assert pairs == {
                frozenset((a.name, b.name))
                for a in left
                for b in left
                if a != b and a.takes + b.takes <= rest and _together(a, b, cluster.names)
            }, (devices, left, rest)
            if not able:
                break
            taken = rng.choice([device for device in left if device.ident in able])
            entry = allocation(cluster, state, taken.ident)
            cluster.capacity.hold_allocation(entry)
            assert cluster.capacity.holds_room(entry.id)
            cluster.capacity.give_back_entry(entry.id)
            cluster.fold(entry)
            left, rest = [d for d in left if d != taken], rest - taken.takes
            shape = wanting(rng.randint(1, 2), 1, 1, "", f"s{step}")
            placed = cluster.assign(shape)
            assert isinstance(placed, Assigned) == solutions(cluster, left, rest, [shape]), (devices, left, rest)
            outcomes[isinstance(placed, Assigned)] += 1
            if isinstance(placed, Assigned):
                slots = slots_of(placed)
                assert is_sound(slots, left, rest, [shape])
                cluster.fold(decision(f"d{step}", slots))
                had = {part for _, part in given(slots)}
                rest -= sum(d.takes for d in left if d.ident in had)
                left = [d for d in left if d.ident not in had]
    assert min(outcomes.values()) > 10, outcomes


def _together(a: Device, b: Device, names: list[str]) -> bool:
    """Returns whether two devices are candidates of one tree: that of a node that reaches both, or of their counters."""
    return bool(set(a.reach) & set(b.reach)) or (a.takes > 0 and b.takes > 0)


def test_a_settlement_moves_no_slot_onto_a_device_of_a_consumer() -> None:
    own, far = Device("own", ("n0",)), Device("far", ("n1", "n2"))
    mesh = Mesh({"n0": 8, "n1": 8, "n2": 8}, [own, far])
    state = State()
    state.reported.follow(mesh.cluster.fleet, mesh.cluster.ledger)
    state.sync()
    mesh.cluster.fold(allocation(mesh.cluster, state, far.ident))
    assert mesh.cluster.fleet.taken_in_common(0) == {resource_of_part(far.ident, CLASS): 1}
    assert mesh.cluster.capacity.held_on(LAB) == {IN_COMMON: {resource_of_part(far.ident, CLASS): 1}}
    assert mesh.place("a", on="n0")
    mesh.change([far], 0, ["n1", "n2"])
    assert is_unsettled(mesh.draft())
    assert list(mesh.settle().displaced) == ["t/app/v1/a"], "the only device that is left is the consumer's"
    assert mesh.slots() == []
