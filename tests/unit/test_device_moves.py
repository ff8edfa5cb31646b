"""Devices that fail: slots move to others of their node, then of their cluster; what finds none waits. Pods end only where a slot
moved, and nothing is given twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.fleet import FleetWriter, normalize_node
from moorage.ledger import Capacity, Ledger
from moorage.merger.core.device_failures import DeviceFailures, Recorded
from moorage.merger.core.settle import has_failures, settle
from moorage.merger.core.settlement_draft import Draft, Progress, Surroundings
from moorage.model.claims import Claim, Commit, Decision, Entry, IntentRef, Shortfall, claim_id
from moorage.model.groups import Revision
from moorage.model.part_reports import DeviceReport, DeviceTaint
from moorage.model.part_requests import DeviceAsk, DeviceToleration, PartGroup, PropertyCondition
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import DeviceGrant, PartAmounts, Slot
from moorage_testkit.fleets import node

DRIVER, CLASS, CLUSTER, GROUP = "gpu.example.com", "GPU_EXAMPLE_COM", "lab/one", "p/app/v1/g"
EVICTS = DeviceTaint(key="broken", effect="NoExecute")
CLOSES = DeviceTaint(key="worn", effect="NoSchedule")


def part(number: int, of: str) -> str:
    return f"{DRIVER}/{of}/gpu-{number}"


def slot_on(device: str, at: str) -> Slot:
    grant = DeviceGrant(part=device, need="gpu/one", name=CLASS, amount=1)
    return Slot(node=at, resources={"cpu": 1000, "pods": 1}, parts={device: {CLASS: 1}}, devices=[grant])


@dataclass
class World:
    """A cluster of nodes with devices, one group, and a scheduler that starts pods where slots are."""

    nodes: dict[str, int]
    pods: list[str] = field(default_factory=list)  # the device of each slot
    tolerations: tuple[DeviceToleration, ...] = ()
    cpu: str = "8"
    kind: str = "Deployment"
    reached: bool = True
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.taints: dict[str, list[DeviceTaint]] = {}
        self.unhealthy: set[str] = set()
        self.gone: set[str] = set()
        self.failures = DeviceFailures()
        self.live: list[tuple[str, str]] = []  # node and device of each pod
        self.writer, self.ledger = FleetWriter(), Ledger()
        self.capacity = Capacity(self.writer.fleet, self.ledger)
        self.report(whole=True)
        ask = DeviceAsk(selectors=(f'device.driver == "{DRIVER}"',), tolerations=self.tolerations)
        shape = Shape(
            key="s",
            object=f"{self.kind}/web",
            per_node=self.kind == "DaemonSet",
            count=len(self.pods),
            resources={"cpu": 1000, "pods": 1},
            template="t",
            groups=[PartGroup(suffix="gpu/one", devices=(ask,))],
        )
        self.document = Revision(group=GROUP, revision=1, tenant="p", apps=[ShapedApp(name="a", shapes=[shape])])
        slots = [slot_on(device, device.split("/")[1]) for device in self.pods]
        self.claim_id = claim_id(GROUP, "a", f"{self.kind}/web", CLUSTER, "t")
        claim = Claim(
            id=self.claim_id, decision="d", intent=IntentRef(kind="Application", name="g", revision=1), tenant="p",
            slots=slots, app="a", object=f"{self.kind}/web", cluster=CLUSTER,
        )  # fmt: skip
        self.fold(Decision(id="d", group=GROUP, revision=1, claims=[claim]))
        self.settle()  # it is watched before anything fails
        self.start()

    # -- the cluster

    def report(self, *, whole: bool = False) -> None:
        rows = []
        for name, count in self.nodes.items():
            devices = [self._device(i, name) for i in range(count) if part(i, name) not in self.gone]
            used = {d: {CLASS: "1"} for at, d in self.live if at == name and d not in self.gone}
            on_node = sum(at == name for at, _ in self.live)
            made = node(name, cpu=self.cpu, requested={"cpu": str(on_node)}, pod_count=on_node)
            made.devices, made.in_use = devices, used
            rows.append(normalize_node(made)[0])
        live: dict[str, int] = {}
        named: dict[str, list[tuple[PartAmounts, int]]] = {}
        for at, device in self.live:
            live[at] = live.get(at, 0) + 1
            named.setdefault(at, []).append(({device: {CLASS: 1}}, 1))
        claims = {self.claim_id: live} if hasattr(self, "claim_id") else {}
        self.writer.put(
            0, CLUSTER, rows, whole=whole, as_of=self.now, claims=claims, named={c: named for c in claims if named}
        )

    def _device(self, number: int, name: str) -> DeviceReport:
        ident = part(number, name)
        return DeviceReport(
            id=ident,
            driver=DRIVER,
            pool=name,
            name=f"gpu-{number}",
            healthy=ident not in self.unhealthy,
            taints=self.taints.get(ident, []),
        )

    def start(self) -> None:
        """Starts a pod for each slot that has none, if its device can be had; ends those that are to leave theirs."""
        self.live = [(at, d) for at, d in self.live if d not in self.claim.vacated]
        self.live = [(at, d) for at, d in self.live if not self._evicted(d)]
        held = {device for _, device in self.live}
        for slot in self.claim.slots:
            (device,) = slot.parts
            closed = device in self.gone or any(not self._tolerates(t) for t in self.taints.get(device, ()))
            if device not in held and not closed and len(self.live) < len(self.pods):
                self.live.append((slot.node, device))
                held.add(device)
        assert len(held) == len(self.live), "one device for two pods"
        self.report()

    def _evicted(self, device: str) -> bool:
        """Returns whether Kubernetes ends the pods of a device."""
        return any(t.effect == "NoExecute" and not self._tolerates(t) for t in self.taints.get(device, ()))

    def _tolerates(self, taint: DeviceTaint) -> bool:
        return any(t.key in ("", taint.key) for t in self.tolerations)

    # -- the mesh

    @property
    def claim(self) -> Claim:
        return self.ledger.claims[self.claim_id].claim

    def fold(self, *entries: Entry) -> None:
        commit = Commit(id=str(self.ledger.seq), entries=list(entries))
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), commit.entries_of(Decision))

    def settle(self) -> bool:
        active = self.ledger.claims[self.claim_id]
        held = {g.part: s.node for s in active.claim.slots for g in s.devices}
        recorded = Recorded.of(self.ledger.displaced_on(CLUSTER).values())
        self.failures.update(0, self.writer.fleet, held, recorded, self.now)
        progress = Progress(reached=self.reached, ran=self.reached, restorable=False)
        around = Surroundings(
            {GROUP: self.document}, progress=lambda _group: progress, failures=self.failures.on(0, self.now)
        )
        draft = Draft(0, self.ledger, self.writer.fleet, around)
        found = settle(draft)
        if found.entry is not None:
            assert (
                has_failures(draft)
                or draft.has_strays
                or draft.parts_moved
                or draft.bad_nodes()
                or (self.ledger.displaced_on(CLUSTER))
            )
            self.fold(found.entry)
        return found.entry is not None

    def rest(self) -> None:
        """Settles and lets pods start until nothing happens any more."""
        for _ in range(12):
            before = list(self.live)
            settled = self.settle()
            self.start()
            if not settled and before == self.live:
                break
        else:
            pytest.fail("it does not come to rest")
        row_of = self.writer.fleet.row_of
        for name in self.nodes:
            row = row_of(0, name)
            assert row is not None and int(self.writer.fleet.free("cpu")[row]) >= 0  # type: ignore[index]
        devices = [d for s in self.claim.slots for d in s.parts for _ in range(s.count)]
        assert len(devices) == len(set(devices)) == len(self.pods)

    def lack(self) -> Shortfall | None:
        return self.ledger.displaced_on(CLUSTER).get(GROUP)

    def devices(self) -> list[str]:
        return sorted(device for slot in self.claim.slots for device in slot.parts)


def two_pods(**more: Any) -> World:
    """Three devices on one node, two of which pods have, and three on another."""
    return World({"n-0": 3, "n-1": 3}, [part(0, "n-0"), part(1, "n-0")], **more)


def test_a_taint_that_ends_pods_moves_the_slot_on_its_node_and_no_other_pod_ends() -> None:
    world = two_pods()
    other = ("n-0", part(1, "n-0"))
    world.taints[part(0, "n-0")] = [EVICTS]
    world.report()
    assert world.settle()
    assert world.devices() == [part(1, "n-0"), part(2, "n-0")]
    assert world.claim.vacated == [part(0, "n-0")] and other in world.live
    world.rest()
    assert sorted(world.live) == [other, ("n-0", part(2, "n-0"))]
    assert world.claim.vacated == [] and world.lack() is None


def test_where_the_node_has_no_other_device_another_node_takes_the_slot() -> None:
    world = World({"n-0": 2, "n-1": 2, "n-2": 2}, [part(0, "n-0"), part(1, "n-0")])
    world.taints[part(1, "n-0")] = [EVICTS]
    world.report()
    assert world.settle()
    kept, moved = sorted(world.claim.slots, key=lambda slot: slot.node)
    assert (kept.node, list(kept.parts)) == ("n-0", [part(0, "n-0")])
    assert moved.node != "n-0" and next(iter(moved.parts)).startswith(f"{DRIVER}/{moved.node}/")
    assert world.claim.vacated == [part(1, "n-0")]
    assert not world.settle(), "the pod that is to end pulls nothing back"
    world.rest()
    assert ("n-0", part(0, "n-0")) in world.live and len(world.live) == 2


def test_nothing_new_goes_to_a_device_with_noschedule_and_its_pod_stays() -> None:
    world = two_pods()
    world.taints[part(0, "n-0")] = [CLOSES]
    world.report()
    world.rest()
    assert world.devices() == [part(0, "n-0"), part(1, "n-0")] and len(world.live) == 2
    world.live.remove(("n-0", part(0, "n-0")))  # it is evicted, and its successor may not start there
    world.report()
    world.rest()
    assert world.devices() == [part(1, "n-0"), part(2, "n-0")]


def test_unhealthy_and_missing_devices_are_left_after_a_while() -> None:
    world = World({"n-0": 4, "n-1": 4}, [part(0, "n-0"), part(1, "n-0")])
    world.unhealthy.add(part(0, "n-0"))
    world.gone.add(part(1, "n-0"))
    world.report()
    assert not world.settle()
    world.now += 3
    assert world.settle(), "a device is gone"
    assert world.devices() == [part(0, "n-0"), part(2, "n-0")] and world.claim.vacated == [part(1, "n-0")]
    assert world.failures.next(0, world.now) == 1030.0
    world.now = 1030.0
    assert world.settle()
    assert world.devices() == [part(2, "n-0"), part(3, "n-0")]
    world.rest()


def test_one_that_is_healthy_again_in_time_is_kept() -> None:
    world = two_pods()
    world.unhealthy.add(part(0, "n-0"))
    world.report()
    world.settle()
    world.now += 29
    world.unhealthy.clear()
    world.report()
    world.settle()
    world.now += 29
    world.rest()
    assert world.devices() == [part(0, "n-0"), part(1, "n-0")]


@pytest.mark.parametrize("seconds", [None, 0, 20])
def test_taints_that_are_tolerated_are_left_when_the_time_is_over(seconds: int | None) -> None:
    world = two_pods(tolerations=(DeviceToleration(key="broken", operator="Exists", seconds=seconds),))
    world.taints[part(0, "n-0")] = [EVICTS]
    world.report()
    assert world.settle() == (seconds == 0)
    assert world.failures.next(0, world.now) == (1020.0 if seconds == 20 else None)
    world.now += 20
    assert world.settle() == (seconds == 20)
    assert (part(0, "n-0") in world.devices()) == (seconds is None)
    world.rest()


def test_what_fits_nowhere_waits_with_numbers_and_goes_on_when_a_device_is_there() -> None:
    world = World({"n-0": 3}, [part(0, "n-0"), part(1, "n-0"), part(2, "n-0")])
    world.unhealthy.add(part(0, "n-0"))
    world.report()
    world.settle()
    world.now += 31
    world.rest()
    lack = world.lack()
    assert lack is not None and (lack.code, lack.resource, lack.needed, lack.free) == ("DeviceFailed", DRIVER, 1, 0)
    assert lack.devices == {part(0, "n-0"): "it is unhealthy for 30 s"}
    assert len(world.live) == 3 and world.claim.vacated == [], "its pod runs on as well as it can"
    world.nodes["n-0"] = 4
    world.report()
    world.rest()
    assert world.lack() is None and part(3, "n-0") in world.devices() and part(0, "n-0") not in world.devices()


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_slots_for_which_there_are_devices_move_and_the_others_wait(spare: int) -> None:
    """Three of eleven devices fail, and so many others are free."""
    nodes = {"n-0": 3, "n-1": 3, "n-2": 3, "n-3": spare}
    held = [part(i, node) for node in ("n-0", "n-1", "n-2") for i in range(3)]
    world = World(nodes, held, cpu="20")
    broken = [part(0, "n-0"), part(1, "n-1"), part(2, "n-2")]
    for device in broken:
        world.taints[device] = [EVICTS]
    world.report()
    world.rest()
    others = [device for device in held if device not in broken]
    assert sorted(set(world.devices()) - {*held}) == [part(i, "n-3") for i in range(spare)]
    assert {device for _, device in world.live} == {*others, *(part(i, "n-3") for i in range(spare))}
    lack = world.lack()
    assert (lack.needed if lack is not None else 0) == 3 - spare
    world.nodes["n-3"] = 3
    world.report()
    world.rest()
    assert world.lack() is None and len(world.live) == 9 and set(broken).isdisjoint(world.devices())


def test_slots_of_a_daemon_set_get_other_devices_of_their_nodes_or_wait() -> None:
    held = [part(0, "n-0"), part(0, "n-1"), part(0, "n-2")]
    world = World({"n-0": 2, "n-1": 1, "n-2": 4}, held, kind="DaemonSet")
    for device in held[:2]:
        world.taints[device] = [EVICTS]
    world.report()
    world.rest()
    assert world.devices() == sorted([part(1, "n-0"), *held[1:]])
    assert sorted(device for _, device in world.live) == [part(1, "n-0"), held[2]]
    lack = world.lack()
    assert lack is not None and (lack.code, list(lack.devices)) == ("DeviceFailed", [held[1]])
    world.nodes["n-1"] = 2
    world.report()
    world.rest()
    assert world.lack() is None and world.devices() == [part(1, "n-0"), part(1, "n-1"), held[2]]
    assert len(world.live) == 3


def test_it_goes_on_where_it_is_when_the_device_is_back() -> None:
    world = World({"n-0": 3}, [part(0, "n-0"), part(1, "n-0"), part(2, "n-0")])
    world.taints[part(0, "n-0")] = [EVICTS]
    world.report()
    world.rest()
    assert world.lack() is not None and len(world.live) == 2
    world.taints.clear()
    world.report()
    world.rest()
    assert world.lack() is None and len(world.live) == 3


def test_a_decision_that_did_not_run_ends() -> None:
    world = World({"n-0": 1}, [part(0, "n-0")], reached=False)
    world.taints[part(0, "n-0")] = [EVICTS]
    world.report()
    assert world.settle()
    assert GROUP not in world.ledger.standing and world.ledger.claims[world.claim_id].withdrawn


def test_a_mass_failure_moves_nothing_until_devices_are_back() -> None:
    world = World({"n-0": 4, "n-1": 4}, [part(0, "n-0"), part(1, "n-0")])
    for i in range(4):
        world.gone.add(part(i, "n-0"))
    world.gone.add(part(0, "n-1"))
    world.report()
    world.rest()
    world.now += 40
    world.rest()
    lack = world.lack()
    assert lack is not None and (lack.code, lack.needed, lack.free) == ("MassFailure", 5, 3)
    assert world.devices() == [part(0, "n-0"), part(1, "n-0")] and world.claim.vacated == []
    assert not world.ledger.wants_decision(GROUP)
    # A merger that starts now finds the same.
    world.failures = DeviceFailures()
    world.rest()
    world.now += 40
    world.rest()
    assert world.lack() is not None and world.devices() == [part(0, "n-0"), part(1, "n-0")]
    world.gone = {part(0, "n-0")}
    world.report()
    world.rest()
    assert world.lack() is None and part(0, "n-0") in world.devices(), "the last one may come back, too"
    world.now += 31
    world.rest()
    assert part(0, "n-0") not in world.devices()


def test_an_operator_lets_pods_leave_after_a_mass_failure() -> None:
    world = World({"n-0": 3, "n-1": 2}, [part(0, "n-0")])
    for i in range(3):
        world.taints[part(i, "n-0")] = [EVICTS]
    world.report()
    world.rest()
    lack = world.lack()
    assert lack is not None and lack.code == "MassFailure"
    assert world.failures.end_masses(0, "another") == []
    assert world.failures.end_masses(0) == [DRIVER]
    world.rest()
    assert world.lack() is None and world.claim.slots[0].node == "n-1"


def test_single_failures_one_after_the_other_are_no_mass_failure() -> None:
    world = World({"n-0": 4}, [part(0, "n-0")])
    for i in range(3):
        world.unhealthy.add(part(i, "n-0"))
        world.report()
        world.settle()
        world.now += 61
        world.rest()
        assert world.lack() is None and world.devices() == [part(i + 1, "n-0")]
    world.failures = DeviceFailures()  # nor for a merger that starts
    world.unhealthy.add(part(3, "n-0"))
    world.unhealthy.discard(part(0, "n-0"))
    world.report()
    world.settle()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["taint", "close", "unhealthy", "gone", "back", "restart", "wait"]), st.integers(0, 8)),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS, st.integers(1, 5))
def test_whatever_fails_in_whatever_order_no_slot_stays_on_a_failed_device_without_saying_so(
    events: list[tuple[str, int]], pods: int
) -> None:
    every = [part(i, name) for name in ("n-0", "n-1", "n-2") for i in range(3)]
    world = World({"n-0": 3, "n-1": 3, "n-2": 3}, every[:pods])
    for what, number in events:
        device = every[number]
        if what in ("taint", "close"):
            world.taints[device] = [EVICTS if what == "taint" else CLOSES]
        elif what == "unhealthy":
            world.unhealthy.add(device)
        elif what == "gone":
            world.gone.add(device)
        elif what == "back":
            world.taints.pop(device, None)
            world.unhealthy.discard(device)
            world.gone.discard(device)
        elif what == "restart":
            world.failures = DeviceFailures()
        else:
            world.now += 7.0 * (number + 1)
        world.report()
        world.settle()
        if number % 2:
            world.start()
    world.rest()
    world.now += 100
    world.rest()
    world.now += 100
    world.rest()
    lack = world.lack()
    for device in world.devices():
        failed = device in world.gone or device in world.unhealthy or EVICTS in world.taints.get(device, ())
        assert not failed or (lack is not None and device in lack.devices), (device, lack)
    if lack is None:
        assert len(world.live) == pods


@pytest.mark.parametrize(("taints", "expected"), [([EVICTS], ("n-1", "n-1/card")), ([], ("n-0", "n-0/card"))])
def test_slots_follow_pods_only_to_devices(taints: list[DeviceTaint], expected: tuple[str, str]) -> None:
    """Cards of no driver: no pod tells that it has one. A pod of an older template runs on the node that the slot left."""
    writer, ledger = FleetWriter(), Ledger()
    capacity = Capacity(writer.fleet, ledger)
    rows = []
    for name in ("n-0", "n-1"):
        made = node(name, cpu="8", pod_count=int(name == "n-0"))
        made.devices = [DeviceReport(id="card", name="card", kind="card", taints=taints if name == "n-0" else [])]
        rows.append(normalize_node(made)[0])
    ask = DeviceAsk(
        resource_class="card", properties=((PropertyCondition(key="Kind", operator="Eq", values=("card",)),),)
    )
    shape = Shape(
        key="s",
        object="Deployment/web",
        count=1,
        resources={"pods": 1},
        template="t",
        groups=[PartGroup(suffix="card", devices=(ask,))],
    )
    document = Revision(group=GROUP, revision=1, tenant="p", apps=[ShapedApp(name="a", shapes=[shape])])
    ident = claim_id(GROUP, "a", "Deployment/web", CLUSTER, "t")
    grant = DeviceGrant(part="n-1/card", need="card", name="CARD", amount=1, resource_class="card")
    slot = Slot(node="n-1", resources={"pods": 1}, parts={"n-1/card": {"CARD": 1}}, devices=[grant])
    claim = Claim(
        id=ident, decision="d", intent=IntentRef(kind="Application", name="g", revision=1), tenant="p",
        slots=[slot], app="a", object="Deployment/web", cluster=CLUSTER,
    )  # fmt: skip
    writer.put(0, CLUSTER, rows, whole=True, as_of=1.0, claims={ident: {"n-0": 1}})
    decided = Commit(id="0", entries=[Decision(id="d", group=GROUP, revision=1, claims=[claim])])
    capacity.folded(ledger.fold(1, decided), decided.entries_of(Decision))
    found = settle(Draft(0, ledger, writer.fleet, Surroundings({GROUP: document})))
    slots = found.entry.slots[ident] if found.entry is not None else ledger.claims[ident].claim.slots
    assert [(one.node, *one.parts) for one in slots] == [expected]
    assert [one.part for one in slots[0].devices] == [expected[1]]
