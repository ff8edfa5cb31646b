"""Layouts of slots and grants: what is there stays, nothing is overfull, nobody waits for what is free."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random

import msgspec
import pytest

from moorage.ledger import Ledger
from moorage.machine_groups.windows import AHEAD, Span
from moorage.model.machine_slots import GrantedSlot, gone_by, reservation_claim, slot_resource
from moorage.model.machines import (
    Allow,
    Dependence,
    Gpu,
    GuestReport,
    Machine,
    MachineReport,
    MachineType,
    PoolNode,
    PoolNodeReport,
    TypeSpec,
    Window,
)
from moorage.slots.core.dependent_types import in_use, limits
from moorage.slots.core.grants import GrantPlan, SlotUse, plan_grants
from moorage.slots.core.layout import NodeKey, PooledNode, TypeLayout, lay_out
from moorage.slots.core.mesh_machines import StoredMachine
from moorage.slots.core.planner import Planner
from moorage.slots.core.state import ClusterMachines
from moorage.slots.core.window_slots import by_window, less, set_aside
from moorage_testkit.fleets import node, writer_of

CLUSTER, MACHINE = "lab/one", "g/large"
RESERVATION = reservation_claim(MACHINE, CLUSTER)
NOW = 1_700_000_000.0


def key(number: int) -> NodeKey:
    return NodeKey(CLUSTER, f"n-{number}")


class Nodes:
    """Nodes with as many free milli-cores and bytes beside the Machine's own slots."""

    def __init__(self, *cores: int, labels: dict[str, str] | None = None, allocatable: int = 64) -> None:
        self.cores, self.labels, self._allocatable = cores, labels or {}, allocatable

    def free(self, node: NodeKey, resource: str) -> int:
        return self.cores[int(node.name[2:])] * 1000 if resource == "cpu" else 1 << 50

    def allocatable(self, node: NodeKey, resource: str) -> int:
        return self._allocatable * 1000 if resource == "cpu" else 1 << 50

    def has_label(self, node: NodeKey, label: tuple[str, str]) -> bool:
        return self.labels.get(label[0]) == label[1]


def machine_type(name: str, cores: int, available: int, **spec: object) -> MachineType:
    return MachineType(name=name, spec=TypeSpec(cpu=str(cores), memory="1Gi", **spec), available=available)  # type: ignore[arg-type]


def machine(*types: MachineType) -> Machine:
    return Machine(name="m", group="g", types=types, node_pool=(PoolNode(name="n-0"),))


def pool(count: int, *names: str, stays: bool = True, takes: bool = True) -> list[PooledNode]:
    return [PooledNode(key(n), names, stays, takes) for n in range(count)]


def counts(layout: TypeLayout) -> list[int]:
    return [layout.slots.get(key(n), 0) for n in range(3)]


def test_what_fits_is_reserved_and_the_rest_is_told() -> None:
    found = lay_out(machine(machine_type("large", 4, 5)), pool(3, "large"), {}, {}, Nodes(9, 3, 8))["large"]
    assert (counts(found), found.short) == ([2, 0, 2], 1)
    assert found.why.startswith("cpu: one needs 4000")


def test_slots_in_use_stay_anywhere_and_others_leave_what_is_in_maintenance() -> None:
    kind = machine(machine_type("large", 4, 3))
    held, used = {"large": {key(0): 2, key(1): 1}}, {"large": {key(0): 1}}
    nodes = [PooledNode(key(0), ("large",), False, False), *pool(3, "large")[1:]]
    found = lay_out(kind, nodes, held, used, Nodes(8, 8, 8))["large"]
    assert counts(found) == [1, 2, 0]


def test_more_used_than_wanted_keeps_every_slot_in_use() -> None:
    kind = machine(machine_type("large", 4, 1))
    held = used = {"large": {key(0): 2, key(1): 1}}
    found = lay_out(kind, pool(2, "large"), held, used, Nodes(8, 4))["large"]
    assert counts(found) == [2, 1, 0] and not found.short


def test_types_share_a_node_in_the_order_of_their_document() -> None:
    kind = machine(machine_type("large", 6, 2), machine_type("small", 1, 9))
    found = lay_out(kind, pool(1, "large", "small"), {}, {}, Nodes(9))
    assert (counts(found["large"])[0], counts(found["small"])[0]) == (1, 3)
    held = {"small": {key(0): 9}}
    found = lay_out(kind, pool(1, "large", "small"), held, {}, Nodes(9))
    assert (counts(found["large"])[0], counts(found["small"])[0]) == (0, 9), "what is held stays"


def test_a_node_needs_the_label_of_the_gpu_and_its_limit() -> None:
    gpu = machine_type("large", 4, 1, gpu=Gpu(type="nvidia.com/gpu", num=1, family="ampere"))
    assert lay_out(machine(gpu), pool(1, "large"), {}, {}, Nodes(8))["large"].why == (
        "n-0 has no label nvidia.com/gpu.family=ampere"
    )
    labelled = Nodes(8, labels={"nvidia.com/gpu.family": "ampere"})
    assert lay_out(machine(gpu), pool(1, "large"), {}, {}, labelled)["large"].short == 0
    half = machine_type("large", 4, 1, host_limit=0.5)
    assert lay_out(machine(half), pool(1, "large"), {}, {}, Nodes(7, allocatable=8))["large"].short == 0
    assert lay_out(machine(half), pool(1, "large"), {}, {}, Nodes(7, allocatable=7))["large"].short == 1


@pytest.mark.parametrize("seed", range(100))
def test_random_layouts_fit_are_complete_and_stay(seed: int) -> None:
    rng = Random(seed)
    room = Nodes(*(rng.randint(0, 12) for _ in range(4)))
    types = [machine_type(f"t{n}", rng.randint(1, 5), rng.randint(0, 8)) for n in range(rng.randint(1, 3))]
    names = tuple(t.name for t in types)
    nodes = [
        PooledNode(key(n), tuple(x for x in names if rng.random() < 0.8), True, rng.random() < 0.9) for n in range(4)
    ]
    found = lay_out(machine(*types), nodes, {}, {}, room)
    left = list(room.cores)
    for kind in types:
        for at, count in found[kind.name].slots.items():
            left[int(at.name[2:])] -= count * int(kind.spec.cpu)
    assert min(left) >= 0
    for kind in types:
        layout = found[kind.name]
        assert sum(layout.slots.values()) + layout.short == kind.available
        for number, pooled in enumerate(nodes):
            if layout.short and pooled.takes and kind.name in pooled.types:
                assert left[number] < int(kind.spec.cpu), "there is room for one more"
    again = lay_out(machine(*types), nodes, {name: layout.slots for name, layout in found.items()}, {}, room)
    assert {n: layout.slots for n, layout in again.items()} == {n: layout.slots for n, layout in found.items()}


def with_half(available: int) -> Machine:
    half = TypeSpec(dependence=Dependence(machine_type="large", available_ratio=0.5))
    return machine(machine_type("large", 4, 4), MachineType(name="half", spec=half, available=available))


def test_types_of_which_there_are_only_so_many_may_be_where_there_is_room() -> None:
    slots = {key(0): 2, key(1): 2}
    assert limits(with_half(-1), "large", slots, {}, {}, {}) == {}, "as many as fit"
    assert limits(with_half(3), "large", slots, {}, {}, {}) == {"half": {key(0): 3}}
    taken = {"large": {key(0): 2}}
    assert limits(with_half(3), "large", slots, taken, {"half": {key(0): 3}}, {}) == {"half": {key(1): 3}}
    held = {"half": {key(1): 2, key(0): 1}}
    assert limits(with_half(3), "large", slots, {"large": {key(1): 1}}, held, {}) == held, "they stay where they were"
    used = {"half": {key(1): 3}}
    assert limits(with_half(2), "large", slots, used, held, {}) == {"half": {key(1): 3}}, "nobody is sent away"
    apart = {"half": {key(0): 2}}
    assert limits(with_half(3), "large", slots, {}, {}, apart) == {"half": {key(0): 1}}, "clusters give out the others"
    assert in_use(with_half(3), {"large": {key(0): 1}, "half": {key(0): 3}})["large"] == {key(0): 3}


def test_a_cluster_is_planned_again_when_windows_of_machines_of_the_mesh_begin() -> None:
    begin, end = (datetime.fromtimestamp(NOW + seconds, UTC).isoformat() for seconds in (100, 200))
    window = Window(name="w", slots=1, from_=begin, until=end)
    kind = MachineType(name="large", spec=TypeSpec(cpu="4", memory="1Gi"), available=1, windows=(window,))
    nodes = (PoolNode(name="n-0", cluster=CLUSTER), PoolNode(name="n-1", cluster="lab/two"))
    stored = StoredMachine(machine=Machine(name="m", group="g", types=(kind,), node_pool=nodes), uid="u")
    fleet = writer_of({CLUSTER: [node(cpu="8")]}).fleet
    others = {"n-1": PoolNodeReport(name="n-1", condition="NotReady", since=NOW)}  # a node of the same name

    def again(seconds: float) -> float:
        state = ClusterMachines(CLUSTER, nodes=others)
        return Planner(fleet, Ledger(), state, NOW + seconds, [stored]).reservations().again - NOW

    assert again(0) == 100 - AHEAD, "its slots are committed ahead"
    assert again(80) == 100 and again(150) == 200 and again(200) == -NOW


def test_only_slots_that_may_be_of_an_invalid_machine_stay_as_they_are() -> None:
    fleet = writer_of({CLUSTER: [node(cpu="8")]}).fleet
    broken = MachineReport(name="broken", uid="b", invalid="spec: is wrong")
    guest = GuestReport(uid="a", namespace="lab", name="a", machine=MACHINE, state="waiting")

    def why(*reports: MachineReport) -> str:
        state = ClusterMachines(CLUSTER, machines={r.name: r for r in reports}, guests={"a": guest})
        (waiting,) = Planner(fleet, Ledger(), state, NOW).grants().waiting
        return waiting.message

    stays = f"{MACHINE} stays as it is until its Machine is valid again"
    valid = MachineReport(name="m", uid="m", machine=machine(machine_type("large", 4, 1)))
    assert why(broken) == stays, "nothing is known of the Machine of this type"
    assert why(broken, msgspec.structs.replace(valid, invalid="spec: is wrong")) == stays
    assert why(broken, valid) == why(valid) != stays


def test_a_slot_has_room_for_as_many_pods_as_may_share_it() -> None:
    class Few(Nodes):
        def free(self, node: NodeKey, resource: str) -> int:
            return 5 if resource == "pods" else super().free(node, resource)

    found = lay_out(with_half(-1), pool(1, "large"), {}, {}, Few(64))["large"]
    assert counts(found)[0] == 2 and found.why.startswith("pods: one needs 2")


def span(name: str, slots: int, begin: float, end: float) -> Span:
    window = Window(name=name, slots=slots, from_="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z")
    return Span(window, NOW + begin, NOW + end, slots)


def test_windows_that_overlap_have_different_slots_and_others_the_same() -> None:
    slots = {key(0): 2, key(1): 2}
    kept, windows = by_window([span("a", 2, 0, 100), span("b", 1, 50, 200), span("c", 2, 100, 150)], slots)
    assert kept == {key(0): 2, key(1): 1}
    assert windows == {"a": {key(0): 2}, "b": {key(1): 1}, "c": {key(0): 2}}
    assert less(slots, {key(0): 2}) == {key(1): 2}


def test_slots_that_clusters_give_out_alone_are_those_that_nobody_else_has() -> None:
    slots = {key(0): 2, key(1): 2}
    assert set_aside(slots, 3, {}, {}, {}) == {key(0): 1, key(1): 2}, "the last ones"
    assert set_aside(slots, 1, {}, {key(0): 1}, {}) == {key(0): 1}, "they stay where they are"
    assert set_aside(slots, 3, {}, {}, {key(1): 2}) == {key(0): 2}, "what is promised is not set aside"
    assert set_aside(slots, 1, {key(0): 2}, {}, {}) == {key(0): 2}, "what was given alone stays so"
    assert set_aside(slots, 3, {key(0): 1}, {key(0): 2}, {key(1): 1}) == {key(0): 2, key(1): 1}


def test_a_slot_that_a_cluster_gave_out_alone_is_none_of_those_of_the_mesh() -> None:
    found = plan([guest("alone", state="granted", node="n-2", alone=True), guest("next")], total=3)
    (observed,) = found.observed
    assert (observed.node, observed.alone, observed.takes) == ("n-2", True, {})
    known = [slot("alone", 2, alone=True)]
    found = plan([guest("alone", state="used", node="n-2", alone=True), *(guest(f"u{n}") for n in range(4))], known)
    assert len(found.granted) == 3 and len(found.waiting) == 1


def test_the_ledger_follows_a_guest_that_got_another_slot_than_it_was_given() -> None:
    found = plan([guest("moved", state="used", node="n-1", alone=True)], [slot("moved", 0)])
    assert [(s.uid, s.node, s.alone) for s in found.observed] == [("moved", "n-1", True)] and not found.withdrawn


def test_who_waits_gives_a_slot_back_that_is_gone() -> None:
    held = [slot("bound", 1), slot("first", 1), slot("second", 1, at=NOW - 5)]
    found = plan([guest("bound", state="used", node="n-1"), guest("first"), guest("second")], held)
    assert found.withdrawn == ["second"]


def guest(uid: str, **fields: object) -> GuestReport:
    values: dict[str, object] = {
        "namespace": "lab",
        "name": uid,
        "machine": MACHINE,
        "created_at": "2026-01-01T00:00:00Z",
    }
    return GuestReport(uid=uid, **(values | fields))  # type: ignore[arg-type]


def slot(uid: str, node: int = 0, **fields: object) -> GrantedSlot:
    values: dict[str, object] = {"machine": MACHINE, "cluster": CLUSTER, "node": f"n-{node}", "claim": RESERVATION}
    return GrantedSlot(uid=uid, **({"at": NOW - 10} | values | fields))  # type: ignore[arg-type]


def use(**fields: object) -> SlotUse:
    values: dict[str, object] = {"total": 3, "slots": {"n-0": 2, "n-1": 1}, "usable": frozenset(("n-0", "n-1"))}
    return SlotUse(MACHINE, CLUSTER, **(values | fields))  # type: ignore[arg-type]


def plan(
    waiting: list[GuestReport],
    held: list[GrantedSlot] | None = None,
    windows: dict[str, int] | None = None,
    kept: dict[str, int] | None = None,
    **fields: object,
) -> GrantPlan:
    """Plans where nodes offer what their slots, less those that are held, are; `kept` ones only to who is gone in time."""
    of = use(**fields)
    taken = Counter(s.node for s in held or () if not s.pool)

    def offered(node: NodeKey, resource: str) -> int:
        for name, count in (windows or {}).items():
            if resource == slot_resource(MACHINE, name):
                return count if node.name == "n-0" else 0
        keeps = 0 if gone_by(resource) else (kept or {}).get(node.name, 0)
        return of.slots.get(node.name, 0) - keeps - taken[node.name]

    return plan_grants(of, waiting, {s.uid: s for s in held or ()}, offered, NOW)


def test_slots_go_by_priority_and_then_by_age() -> None:
    waiting = [
        guest("young", created_at="2026-01-02T00:00:00Z"),
        guest("old"),
        guest("important", created_at="2026-01-03T00:00:00Z", priority=9),
        guest("late", created_at="2026-01-04T00:00:00Z"),
    ]
    found = plan(waiting)
    assert [s.uid for s in found.granted] == ["important", "old", "young"]
    assert [(r.uid, r.code) for r in found.waiting] == [("late", "SlotShort")]
    assert "3 of 3" in found.waiting[0].message


def test_a_guest_that_can_use_no_free_slot_is_passed_over() -> None:
    found = plan([guest("picky", nodes=["n-9"]), guest("gated", ready=False, reason="gate x/y"), guest("next")])
    assert [s.uid for s in found.granted] == ["next"]
    assert [(r.uid, r.code) for r in found.waiting] == [("gated", "SlotUnbound"), ("picky", "SlotShort")]


def test_thousands_that_wait_do_not_have_every_node_looked_at_each() -> None:
    nodes, asked = {f"n-{n}": 1 for n in range(50)}, Counter[str]()

    def offered(node: NodeKey, resource: str) -> int:
        asked[node.name] += 1
        return int(node.name == "n-49")

    waiting = [guest(f"u{n}", nodes=[f"n-{n % 49}"]) for n in range(2000)]
    of = use(slots=nodes, total=50, usable=frozenset(nodes))
    found = plan_grants(of, waiting, {}, offered, NOW)
    assert len(found.waiting) == 2000 and not found.granted
    assert asked.total() <= 50


def test_reservations_that_leave_first_make_room() -> None:
    assert [s.node for s in plan([guest("a"), guest("b")], last=["n-1", "n-0"]).granted] == ["n-1", "n-0"]


def test_ended_guests_give_back_and_bound_ones_are_counted_before_others_get_slots() -> None:
    found = plan(
        [guest("over", ended=True), guest("bound", state="used", node="n-1"), guest("next")],
        [slot("over"), slot("gone")],
    )
    assert sorted(found.withdrawn) == ["gone", "over"]
    assert [(s.uid, s.node) for s in found.observed] == [("bound", "n-1")] and not found.granted


def test_a_guest_that_could_not_use_its_slot_gives_it_back() -> None:
    assert plan([guest("u", not_before=NOW + 60)], [slot("u")]).withdrawn == ["u"]
    assert not plan([guest("u", not_before=NOW - 60)], [slot("u")]).withdrawn
    later = plan([guest("u", not_before=NOW + 60, reason="not bound in 60 s")])
    assert not later.granted and later.waiting[0].code == "SlotUnbound"


def test_pods_of_an_application_get_the_slots_of_its_claim() -> None:
    claims = {"c": {"n-1": 1}}
    found = plan([guest("pod", claim="c"), guest("second", claim="c"), guest("other")], claims=claims, total=2)
    assert [(s.uid, s.node, s.claim) for s in found.granted] == [("other", "n-0", RESERVATION), ("pod", "n-1", "c")]
    assert [r.uid for r in found.waiting] == ["second"]
    assert found.granted[1].takes == {} and found.granted[0].takes == {slot_resource(MACHINE): 1}


def test_new_pods_of_an_update_get_the_empty_slots_first() -> None:
    """The older ones leave only once the new ones run."""
    held = [slot("old-0", claim="old"), slot("old-1", claim="old")]
    older = [guest(s.uid, state="used", node="n-0", claim="old") for s in held]
    claims = {"old": {"n-0": 2}, "new": {"n-0": 2, "n-1": 1}}
    found = plan([*older, guest("new-0", claim="new"), guest("new-1", claim="new")], held, claims=claims)
    assert [(s.uid, s.node) for s in found.granted] == [("new-0", "n-1"), ("new-1", "n-0")]


def test_who_is_not_allowed_waits_with_a_reason() -> None:
    found = plan([guest("a"), guest("b", project="p")], allow=Allow(projects=("p",)))
    assert [s.uid for s in found.granted] == ["b"] and found.waiting[0].code == "NotAllowed"


def test_a_window_is_for_its_guests_and_others_use_it_until_it_begins() -> None:
    windows = [span("w", 2, 1000, 5000)]
    begin = int(NOW) + 1000
    fields: dict[str, object] = {"spans": windows, "kept": {"n-0": 2}, "times": [begin]}
    found = plan([guest("early", window="w"), guest("plain"), guest("endless"), guest("short", seconds=300)], **fields)  # type: ignore[arg-type]
    assert [(s.uid, s.node, s.before) for s in found.granted] == [("endless", "n-1", 0), ("short", "n-0", begin)]
    assert {r.uid: r.code for r in found.waiting} == {"early": "WindowClosed", "plain": "WindowClosed"}
    fields["spans"] = [span("w", 2, 20, 5000)]
    found = plan(
        [guest("in-time", window="w"), guest("endless", state="granted")],
        [slot("endless", 1)],
        {"w": 2},
        **fields,  # type: ignore[arg-type]
    )
    assert [(s.uid, s.pool, s.not_before, s.until) for s in found.granted] == [("in-time", "w", NOW + 20, NOW + 5000)]


def test_guests_of_a_window_that_is_over_or_unknown_are_told_so() -> None:
    found = plan([guest("late", window="w"), guest("lost", window="v"), guest("plain")], spans=[span("w", 3, -500, -1)])
    assert [s.uid for s in found.granted] == ["plain"], "it keeps nothing any more"
    assert [(r.uid, r.code, r.message.rpartition(" ")[0]) for r in found.waiting] == [
        ("late", "WindowLate", "the window w ended at"),
        ("lost", "WindowLate", f"{MACHINE} has no window"),
    ]


def test_nobody_is_let_into_a_window_to_end_at_once() -> None:
    """The pods of a Deployment end a grace period and 5 s before their window, and others come in their place."""
    fields: dict[str, object] = {"spans": [span("w", 3, -500, 40)], "windows": {"w": 3}}
    guests = [guest("in-time", window="w"), guest("short", window="w", grace=33, seconds=2)]
    late = guest("late", window="w", grace=33)
    found = plan([*guests, late], **fields)  # type: ignore[arg-type]
    assert [s.uid for s in found.granted] == ["in-time", "short"]
    assert [(r.uid, r.code) for r in found.waiting] == [("late", "WindowLate")]
    assert found.waiting[0].message.endswith(": this pod would end 38 s before")
    fields["spans"] = [span("w", 3, 20, 55)]
    found = plan([guest("soon", window="w"), guest("brief", window="w", grace=25)], **fields)  # type: ignore[arg-type]
    assert [s.uid for s in found.granted] == ["brief"], "the window is shorter than the other's grace period and margin"


@pytest.mark.parametrize("seed", range(100))
def test_random_guests_never_share_a_slot_and_nobody_waits_beside_a_free_one(seed: int) -> None:
    rng = Random(seed)
    slots = {f"n-{n}": rng.randint(0, 3) for n in range(3)}
    held = [slot(f"h{n}", n % 3) for n in range(rng.randint(0, 4)) if slots[f"n-{n % 3}"] > n // 3]
    guests = [guest(s.uid, state="granted", node=s.node) for s in held]
    for n in range(rng.randint(0, 8)):
        nodes = None if rng.random() < 0.5 else [f"n-{rng.randrange(3)}"]
        guests.append(guest(f"w{n}", nodes=nodes, priority=rng.randrange(3), ready=rng.random() < 0.9))
    found = plan(guests, held, slots=slots, total=sum(slots.values()), usable=frozenset(slots))
    used = Counter(s.node for s in [*held, *found.granted])
    assert all(used[node] <= slots[node] for node in used)
    free = {node for node in slots if used[node] < slots[node]}
    granted = {s.uid for s in found.granted}
    for one in guests:
        if one.state == "waiting" and one.ready and one.uid not in granted:
            assert not (free if one.nodes is None else free & set(one.nodes))
