"""Tests how slots are shown."""

from __future__ import annotations

import msgspec

from moorage.model.slots import DeviceGrant, Slot
from moorage.podspec.slot_views import slot_views

ZONE0 = {"n-0/numa0": {"cpu": 2000}, "n-0/numa0/fpga0": {"FPGA": 1}}


def test_slots_are_added_up_by_node_and_parts() -> None:
    slots = [
        Slot(node="n-0", count=2, parts=ZONE0),
        Slot(node="n-0", parts={"n-0/numa1": {"cpu": 1500}}),
        Slot(node="n-0", parts=ZONE0),
        Slot(node="n-0", surge=True),
        Slot(node="n-1"),
        Slot(node="n-1"),
    ]
    assert msgspec.to_builtins(slot_views(slots)) == [
        {"node": "n-0", "count": 3, "parts": {"n-0/numa0": {"cpu": "2"}, "n-0/numa0/fpga0": {"FPGA": "1"}}},
        {"node": "n-0", "parts": {"n-0/numa1": {"cpu": "1500m"}}},
        {"node": "n-1", "count": 2},
    ]


def test_slots_say_which_need_their_parts_serve() -> None:
    grants = [DeviceGrant(part="n-0/numa0", need="_C", name="cpu", amount=1500)]
    slots = [Slot(node="n-0", parts={"n-0/numa0": {"cpu": 1500}}), Slot(node="n-0", parts={"n-0/numa0": {"cpu": 1500}})]
    slots[1].devices = grants
    plain, serving = msgspec.to_builtins(slot_views(slots))
    assert "devices" not in plain
    assert serving["devices"] == [{"part": "n-0/numa0", "need": "_C", "class": "cpu", "amount": "1500m"}]
