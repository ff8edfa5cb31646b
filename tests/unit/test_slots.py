"""Slots that name parts: read from logs of any age, copied, split and moved as one."""

from __future__ import annotations

import msgspec

from moorage.model.slots import (
    DeviceGrant,
    PodPlace,
    Slot,
    moved,
    part_and_class,
    part_resources,
    place_in,
    resized,
    resource_of_part,
    taken_by,
    with_parts,
)

ZONE0 = {"n-0/numa0": {"cpu": 2000}, "n-0/numa0/fpga0": {"FPGA": 1}}
ZONE1 = {"n-0/numa1": {"cpu": 2000}}


def test_slots_of_logs_from_before_are_read() -> None:
    old = b'{"node":"n-0","count":2,"resources":{"cpu":500},"providers":{"x":{"A":1}},"numa":1,"devices":[]}'
    slot = msgspec.json.decode(old, type=Slot)
    assert (slot.node, slot.count, slot.parts) == ("n-0", 2, {})
    assert msgspec.json.decode(msgspec.json.encode(slot)) == {"node": "n-0", "count": 2, "resources": {"cpu": 500}}


def test_parts_and_devices_travel() -> None:
    device = DeviceGrant(part="n-0/numa0/fpga0", need="_A", name="FPGA")
    slot = Slot(node="n-0", parts=ZONE0, devices=[device])
    encoded = msgspec.json.encode(slot)
    assert msgspec.json.decode(encoded, type=Slot) == slot
    assert msgspec.json.decode(encoded)["devices"] == [{"part": "n-0/numa0/fpga0", "need": "_A", "class": "FPGA"}]


def test_amounts_of_parts_stand_beside_those_of_the_node() -> None:
    plain = Slot(node="n-0", resources={"cpu": 2000})
    assert taken_by(plain) is plain.resources
    taken = taken_by(Slot(node="n-0", resources={"cpu": 2000}, parts=ZONE0))
    assert taken == {
        "cpu": 2000,
        resource_of_part("n-0/numa0", "cpu"): 2000,
        resource_of_part("n-0/numa0/fpga0", "FPGA"): 1,
    }
    assert [part_and_class(name) for name in taken] == [None, ("n-0/numa0", "cpu"), ("n-0/numa0/fpga0", "FPGA")]
    assert part_resources({"n-0/numa0": {"cpu": 0}}) == {}


def test_one_function_copies_splits_and_moves() -> None:
    slot = Slot(node="n-0", host="h-0", count=3, parts=ZONE0, instances=["a", "b", "c"])
    assert resized(slot, 3) is slot
    assert resized(slot, 2) == Slot(node="n-0", host="h-0", count=2, parts=ZONE0, instances=["a", "b"])
    assert resized(slot, 3, surge=True).surge
    assert moved(slot, "n-0", "h-0", 1).parts == ZONE0
    assert moved(slot, "n-1", "h-1", 2) == Slot(node="n-1", host="h-1", count=2)
    grants = [DeviceGrant(part="n-0/numa0/fpga0", need="_A", name="FPGA", amount=1)]
    one, other = with_parts(slot, [PodPlace(ZONE0, {}, {}, grants), PodPlace(ZONE0, {}, {}, [])])
    assert (one.devices, other.devices) == (grants, [])
    assert resized(one, 2).devices == moved(one, "n-0", "h-0").devices == place_in(one).devices == grants
    assert moved(one, "n-1", "h-1").devices == []


def test_pods_with_equal_parts_are_one_slot() -> None:
    slot = Slot(node="n-0", count=3, resources={"cpu": 2000})
    runs = with_parts(slot, [PodPlace(ZONE0, {}), PodPlace(ZONE0, {}), PodPlace(ZONE1, ZONE1), PodPlace(ZONE1, ZONE1)])
    assert [(run.count, run.parts) for run in runs] == [(2, ZONE0), (2, ZONE1)] and runs[1].aligned == ZONE1
    assert all(run.resources == slot.resources and run.node == "n-0" for run in runs)
