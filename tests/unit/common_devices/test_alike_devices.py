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
from moorage.dra.device_selectors import selectors_of, with_alike
from moorage.fit import Assigned, Unassigned, assign
from moorage.fleet import Fleet, normalize_node
from moorage.kube.objects import Key
from moorage.ledger import Capacity, Ledger, Wanted, assign_beside_own
from moorage.model.candidates import OwnClaim
from moorage.model.claims import Commit, Decision
from moorage.model.part_reports import DeviceReport
from moorage.model.reports import NodeReport
from moorage.model.slots import DeviceGrant, Slot
from moorage_testkit.fleets import writer_of

from .cluster import CLASS, DRIVER, LAB, decision, slots_of, wanting

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


def state_of(*nodes: Sequence[Device], allocates: bool = False) -> ClusterState:
    """Returns what an agent knows of the nodes n0, n1, ... with these devices."""
    state = ClusterState()
    state.allocates = allocates
    for number, devices in enumerate(nodes):
        node = f"n{number}"
        body = {
            "metadata": {"name": node, "uid": node},
            "status": {
                "allocatable": {"cpu": "64", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        state.put_node(Key("", node), kube_types.node(msgspec.json.encode(body)))
        spec = {"driver": DRIVER, "pool": {"name": node, "generation": 1, "resourceSliceCount": 2}, "nodeName": node}
        sets = [{"name": f"c{card}", "counters": {"m": {"value": str(ROOM)}}} for card in range(CARDS)]
        for name, more in (("a", {"devices": [one.body for one in devices]}), ("b", {"sharedCounters": sets})):
            name = f"{node}-{name}"
            found = {"metadata": {"name": name, "uid": name}, "spec": spec | more}
            state.put_slice(Key("", name), dra.slice_(msgspec.json.encode(found)))
    return state


def fleet_with(state: ClusterState) -> Fleet:
    rows = [state.row(node) for node in state.nodes.values()]
    reports = [msgspec.json.decode(msgspec.json.encode(row), type=NodeReport) for row in rows]
    writer = writer_of({LAB: reports})
    writer.put(0, LAB, [normalize_node(report)[0] for report in reports], whole=True)
    return writer.fleet


def assigned(state: ClusterState, pods: int, count: int = 1) -> Assigned | Unassigned:
    fleet = fleet_with(state)
    return assign(fleet, fleet.rows_of(0), [wanting(count, pods)])


def devices_of(found: Assigned | Unassigned) -> list[list[str]]:
    """Returns the devices of each pod."""
    return [
        [grant.part.rpartition("/")[2] for grant in slot.devices] for slot in slots_of(found) for _ in range(slot.count)
    ]


def scheduled(
    devices: Sequence[Device], selected: Iterable[str], pods: int, count: int, before: Sequence[str] = ()
) -> list[list[str]] | None:
    """Returns what a scheduler gives pods one after the other, of these devices: to each the first that fit together. `before`:
    devices that are given already."""
    names, result = set(selected), list[list[str]]()
    used = [one for one in devices if one.name in before]
    room = {card: ROOM - sum(one.takes.get(card, 0) for one in used) for card in range(CARDS)}
    left = [one for one in devices if one.name in names and one not in used]
    for _ in range(pods):
        for some in itertools.combinations(left, count):
            takes = {card: sum(one.takes.get(card, 0) for one in some) for card in room}
            if all(takes[card] <= room[card] for card in room):
                room = {card: amount - takes[card] for card, amount in room.items()}
                left = [one for one in left if one not in some]
                result.append([one.name for one in some])
                break
        else:
            return None
    return result


def selected(state: ClusterState, devices: Sequence[Device], wanted: Iterable[str]) -> list[str]:
    """Returns the devices that a pin to the wanted ones, by node and name, selects of a node's."""
    programs = [compile_selector(one) for one in selectors_of([f"{DRIVER}/{name}" for name in wanted], state.devices)]
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
        pinned = selected(state, devices, [f"n0/{name}" for of in found for name in of])
        assert sorted(scheduled(devices, pinned, pods, 1) or []) == sorted(found)
    refused = assigned(state, most + 1)
    assert isinstance(refused, Unassigned) and (refused.code, refused.best) == ("PartShort", most)


def test_where_the_agent_allocates_all_devices_can_be_had() -> None:
    found = devices_of(assigned(state_of(fleet_of("c0 c0a c0b c1"), allocates=True), 3))
    assert found == [["c0a"], ["c0b"], ["c1"]]


def test_devices_that_no_selector_tells_apart_have_a_number_in_common() -> None:
    whole, half = Device("w", {0: 4}, "1"), Device("x", {0: 2}, "1000m")
    other = Device("y", {}, "2")
    state = state_of([whole, half, other], [Device("z", {1: 4}, "2"), whole], [other])
    first, second, third = ([device.alike for device in state.row(node).devices] for node in state.nodes.values())
    assert first[0] == first[1] == second[1] != 0, "equal quantities look equal"
    assert first[2] == second[0] not in (0, first[0])
    assert third == [0], "where no device takes of counters it does not matter"
    named = kube_devices({"uuid": {"string": "u"}, "model": {"string": "m"}}, {"model": {"string": "m"}})
    assert named[0] == 0 != named[1], "one has an identity"


def kube_devices(*attributes: Mapping[str, Any]) -> list[int]:
    """Returns the numbers of devices with these attributes, that take of a counter."""
    reports = [
        DeviceReport(id=f"{DRIVER}/n/d{i}", driver=DRIVER, attributes=of, consumes={"c": {"m": "1"}})
        for i, of in enumerate({n: next(iter(v.values())) for n, v in one.items()} for one in attributes)
    ]
    return [device.alike for device in with_alike(reports)]


def scaled(state: ClusterState, before: Sequence[str], pods: int) -> list[Slot] | Unassigned:
    """Returns the new slots of an object with a pod on each of these devices, by node and name, when it is to have so many pods."""
    shape = wanting(1, pods)
    slots = [
        Slot(
            node=name.partition("/")[0],
            count=1,
            resources=dict(shape.resources),
            parts={f"{DRIVER}/{name}": {CLASS: 1}},
            devices=[DeviceGrant(part=f"{DRIVER}/{name}", need="claim-s/r", name=CLASS, amount=1)],
        )
        for name in before
    ]
    fleet, ledger = fleet_with(state), Ledger()
    commit = Commit(id="c", entries=[decision("s", slots)])
    Capacity(fleet, ledger).folded(ledger.fold(1, commit), commit.entries_of(Decision))
    own = [OwnClaim(id="k-s", object=shape.object, slots=slots, optional=[])]
    found = assign_beside_own(fleet, 0, [Wanted(shape, "k-s", own)])
    return found if isinstance(found, Unassigned) else found[0].slots[len(slots) :]


def with_nodes(slots: Sequence[Slot]) -> list[str]:
    return [grant.part.partition("/")[2] for slot in slots for grant in slot.devices for _ in range(slot.count)]


@pytest.mark.parametrize(
    ("nodes", "before", "pods", "new"),
    [
        # The pin selects all cards already, so that the first further pod gets one though halves would do for more.
        (["c0 c0a c0b c1 c1a c1b"], ["n0/c0"], 2, ["n0/c1"]),
        (["c0 c1 c2 c0a c1a c2a c2b"], ["n0/c0"], 3, ["n0/c1", "n0/c2"]),
        (["c0 c1 c2 c0a c1a c2a c2b"], ["n0/c0a"], 4, ["n0/c1a", "n0/c2a", "n0/c2b"]),
        (["c0 c0a", "c0 c0a c0b"], ["n0/c0"], 2, ["n1/c0"]),
        (["c0 c0a", "c0a c0b c0"], ["n0/c0"], 3, ["n1/c0a", "n1/c0b"]),
    ],
)
def test_further_pods_get_what_looks_like_the_devices_of_their_claim(
    nodes: list[str], before: list[str], pods: int, new: list[str]
) -> None:
    made = [fleet_of(names) for names in nodes]
    state = state_of(*made)
    found = scaled(state, before, pods)
    assert isinstance(found, list) and sorted(with_nodes(found)) == sorted(new), found
    for number, devices in enumerate(made):
        node = f"n{number}/"
        here = [name.removeprefix(node) for name in before if name.startswith(node)]
        pinned = selected(state, devices, [*before, *with_nodes(found)])
        got = scheduled(devices, pinned, sum(name.startswith(node) for name in with_nodes(found)), 1, here)
        assert sorted(f"{node}{name}" for of in got or () for name in of) == [n for n in sorted(new) if node in n]


def test_no_pod_is_added_where_it_would_take_a_card_from_others() -> None:
    state = state_of(fleet_of("c0 c1 c0a c1a c1b"))
    assert isinstance(scaled(state, ["n0/c0"], 2), list)
    refused = scaled(state, ["n0/c0"], 3)  # the second pod gets the card, so there are no halves
    assert isinstance(refused, Unassigned) and (refused.code, refused.needed, refused.best) == ("PartShort", 3, 2)
    assert refused.message == "parts of the nodes serve 2 of the 3 pods", "those that it has are among them"
    assert isinstance(scaled(state, ["n0/c0a"], 3), list), "pods with halves leave two more of them"


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
        pinned = selected(state, devices, [f"n0/{name}" for of in devices_of(found) for name in of])
        assert scheduled(devices, pinned, pods, count) is not None
    elif count == 1:
        looks = sorted({one.look for one in devices})
        for size in range(1, len(looks) + 1):
            for some in itertools.combinations(looks, size):
                names = [one.name for one in devices if one.look in some]
                assert scheduled(devices, names, pods, count) is None, "these looks would have served all"


@settings(max_examples=150)
@given(st.lists(_DEVICES, min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 3))
def test_random_pods_that_are_added_get_what_a_scheduler_gives(
    made: list[list[tuple[dict[int, int], str]]], first: int, more: int
) -> None:
    nodes = [[Device(f"d{i}", takes, look) for i, (takes, look) in enumerate(of)] for of in made]
    state = state_of(*nodes)
    before = assigned(state, first)
    if not isinstance(before, Assigned):
        return
    had = with_nodes(slots_of(before))
    found = scaled(state, had, first + more)
    if isinstance(found, Unassigned):
        return
    new = with_nodes(found)
    for number, devices in enumerate(nodes):
        node = f"n{number}/"
        here = [name.removeprefix(node) for name in had if name.startswith(node)]
        added = sorted(name.removeprefix(node) for name in new if name.startswith(node))
        got = scheduled(devices, selected(state, devices, [*had, *new]), len(added), 1, here)
        assert sorted(name for of in got or () for name in of) == added
