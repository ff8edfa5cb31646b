"""Devices that no selector tells apart though they take of other counters: pods are given what the scheduler gives them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.agent.core import kube_types
from moorage.agent.core.cluster_state import ClusterState
from moorage.cel import CelDevice, compile_selector
from moorage.dra import objects as dra
from moorage.dra.device_selectors import selectors_of
from moorage.fit import Assigned, Unassigned, assign
from moorage.fleet import normalize_node
from moorage.kube.objects import Key
from moorage.model.reports import NodeReport
from moorage_testkit.fleets import writer_of

from .cluster import DRIVER, LAB, slots_of, wanting

CARDS = 3
ROOM = 4


class Device(NamedTuple):
    """`takes`: of the counters of cards, by card. Devices of one `look` are equal to selectors."""

    name: str
    takes: Mapping[int, int]
    look: str

    @property
    def body(self) -> dict[str, Any]:
        uses = [{"counterSet": f"c{card}", "counters": {"m": {"value": str(n)}}} for card, n in self.takes.items()]
        found: dict[str, Any] = {"name": self.name, "capacity": {"memory": {"value": self.look}}}
        return found | ({"consumesCounters": uses} if uses else {})


def state_of(devices: Sequence[Device], *, allocates: bool = False) -> ClusterState:
    state = ClusterState()
    state.allocates = allocates
    body = {
        "metadata": {"name": "n", "uid": "n"},
        "status": {"allocatable": {"cpu": "64", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    state.put_node(Key("", "n"), kube_types.node(msgspec.json.encode(body)))
    spec = {"driver": DRIVER, "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}, "nodeName": "n"}
    sets = [{"name": f"c{card}", "counters": {"m": {"value": str(ROOM)}}} for card in range(CARDS)]
    for name, more in (("a", {"devices": [one.body for one in devices]}), ("b", {"sharedCounters": sets})):
        found = {"metadata": {"name": name, "uid": name}, "spec": spec | more}
        state.put_slice(Key("", name), dra.slice_(msgspec.json.encode(found)))
    return state


def assigned(state: ClusterState, pods: int, count: int = 1) -> Assigned | Unassigned:
    row = msgspec.json.decode(msgspec.json.encode(state.row(state.nodes["n"])), type=NodeReport)
    writer = writer_of({LAB: [row]})
    writer.put(0, LAB, [normalize_node(row)[0]], whole=True)
    return assign(writer.fleet, writer.fleet.rows_of(0), [wanting(count, pods)])


def devices_of(found: Assigned | Unassigned) -> list[list[str]]:
    """Returns the devices of each pod."""
    return [
        [grant.part.rpartition("/")[2] for grant in slot.devices] for slot in slots_of(found) for _ in range(slot.count)
    ]


def scheduled(devices: Sequence[Device], selected: Iterable[str], pods: int, count: int) -> list[list[str]] | None:
    """Returns what a scheduler gives pods one after the other, of these devices: to each the first that fit together."""
    names, room, result = set(selected), dict.fromkeys(range(CARDS), ROOM), list[list[str]]()
    left = [one for one in devices if one.name in names]
    for _ in range(pods):
        for some in itertools.combinations(left, count):
            used = {card: sum(one.takes.get(card, 0) for one in some) for card in room}
            if all(used[card] <= room[card] for card in room):
                room = {card: amount - used[card] for card, amount in room.items()}
                left = [one for one in left if one not in some]
                result.append([one.name for one in some])
                break
        else:
            return None
    return result


def selected(state: ClusterState, devices: Sequence[Device], wanted: Iterable[str]) -> list[str]:
    """Returns the devices that a pin to the wanted ones selects."""
    programs = [compile_selector(one) for one in selectors_of([f"{DRIVER}/n/{name}" for name in wanted], state.devices)]
    seen = {one.name: CelDevice.of(DRIVER, {}, {"memory": one.look}, False) for one in devices}
    return [name for name, device in seen.items() if all(program.matches(device) for program in programs)]


def fleet_of(names: str, *, told_apart: bool = True) -> list[Device]:
    """`names`: cards like c0, and their halves like c0a."""
    return [
        Device(
            name,
            {int(name[1]): ROOM if len(name) == 2 else ROOM // 2},
            ("1" if len(name) == 2 or not told_apart else "2"),
        )
        for name in names.split()
    ]


@pytest.mark.parametrize(
    ("names", "told_apart", "most"),
    [
        ("c0 c0a c0b c1", True, 2),  # the third pod would find no card
        ("c0a c0b c0 c1", True, 3),
        ("c0 c0a c0b c1 c1a c1b", True, 4),  # halves only, so that no pod takes a card
        ("c0 c1 c0a c1a c0b c1b", True, 4),
        ("c0 c0a c0b c1 c1a c1b", False, 2),  # nothing keeps the first pod from the first card
        ("c0a c0b c0 c1a c1b c1", False, 4),
        ("c0a c1 c0b c0", False, 3),
    ],
)
def test_as_many_pods_fit_as_the_scheduler_can_be_held_to(names: str, told_apart: bool, most: int) -> None:
    devices = fleet_of(names, told_apart=told_apart)
    state = state_of(devices)
    for pods in range(1, most + 1):
        found = devices_of(assigned(state, pods))
        pinned = selected(state, devices, [name for of in found for name in of])
        assert sorted(scheduled(devices, pinned, pods, 1) or []) == sorted(found)
    refused = assigned(state, most + 1)
    assert isinstance(refused, Unassigned) and (refused.code, refused.best) == ("PartShort", most)


def test_where_the_agent_allocates_all_devices_can_be_had() -> None:
    found = devices_of(assigned(state_of(fleet_of("c0 c0a c0b c1"), allocates=True), 3))
    assert found == [["c0a"], ["c0b"], ["c1"]]


def test_only_devices_that_differ_in_counters_are_reported_as_alike() -> None:
    def alike(*devices: Device) -> list[int]:
        state = state_of(devices)
        return [device.alike for device in state.row(state.nodes["n"]).devices]

    whole = Device("w", {0: 4}, "1")
    assert alike(whole, Device("x", {0: 4}, "1")) == [0, 0], "the same of the same"
    assert alike(whole, Device("x", {0: 2}, "2")) == [0, 0], "the capacity tells them apart"
    assert alike(Device("x", {}, "1"), Device("y", {}, "1")) == [0, 0]
    assert alike(whole, Device("x", {0: 2}, "1000m"), Device("y", {}, "1")) == [1, 1, 1]
    assert alike(whole, Device("x", {1: 4}, "1"), Device("y", {0: 2}, "2"), Device("z", {1: 2}, "2")) == [1, 1, 2, 2]


_TAKES = st.dictionaries(st.integers(0, CARDS - 1), st.integers(1, ROOM), max_size=2)
_DEVICES = st.lists(st.tuples(_TAKES, st.sampled_from("123")), min_size=1, max_size=6)


@settings(max_examples=150)
@given(_DEVICES, st.integers(1, 4), st.integers(1, 2))
def test_random_devices_are_those_that_a_scheduler_gives(
    made: list[tuple[dict[int, int], str]], pods: int, count: int
) -> None:
    devices = [Device(f"d{i}", takes, look) for i, (takes, look) in enumerate(made)]
    state = state_of(devices)
    found = assigned(state, pods, count)
    if isinstance(found, Assigned):
        pinned = selected(state, devices, [name for of in devices_of(found) for name in of])
        assert scheduled(devices, pinned, pods, count) is not None
    elif count == 1:
        looks = sorted({one.look for one in devices})
        for size in range(1, len(looks) + 1):
            for some in itertools.combinations(looks, size):
                names = [one.name for one in devices if one.look in some]
                assert scheduled(devices, names, pods, count) is None, "these looks would have served all"
