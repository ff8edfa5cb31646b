"""Slots of machines over a real broker: clusters report, get reservations and grants, and share their slots with the mesh."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from moorage.bus import Bus, subjects
from moorage.ledger import LOG, Capacity, Committed, keep_capacity, open_ledger
from moorage.machine_groups import read
from moorage.model.claims import Claim, Decision, IntentRef, Release, Slot, SlotReservations, Withdrawal
from moorage.model.machine_slots import reservation_claim, slot_resource
from moorage.model.machine_views import MachinesAsk, MachinesShown
from moorage.model.machines import (
    Allow,
    Dependence,
    GuestReport,
    Machine,
    MachineReport,
    MachinesSync,
    MachinesSynced,
    MachineType,
    PoolNodeReport,
    TypeSpec,
)
from moorage.slots.documents import MachineDocuments
from moorage.slots.service import SlotService
from moorage_testkit.committers import CommitterHarness
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.machines import machine
from moorage_testkit.merger_harness import Clusters, group
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

CLUSTER, MACHINE = "lab/one", "g/large"


def clusters() -> Clusters:
    return {CLUSTER: [node(cpu="8", memory="64Gi"), node(cpu="8", memory="64Gi")]}


def large(available: int = 4, **fields: Any) -> Machine:
    types = {"large": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": available, **fields}}
    found = read(machine("g", types, {"n-0": ["large"], "n-1": ["large"]})).machine
    assert found is not None
    return found


def guest(uid: str, **fields: Any) -> GuestReport:
    values = {"namespace": "lab", "name": uid, "machine": MACHINE, "created_at": "2026-01-01T00:00:00Z"}
    return GuestReport(uid=uid, **(values | fields))


def app(name: str, at: str = "n-0") -> Decision:
    claim = Claim(
        id=f"claim-{name}",
        decision=name,
        intent=IntentRef(kind="Application", name=name, revision=1),
        tenant="p",
        app="a",
        object="Deployment/d",
        cluster=CLUSTER,
        within=reservation_claim(MACHINE, CLUSTER),
        slots=[Slot(node=at, resources={slot_resource(MACHINE): 1})],
    )
    return Decision(id=name, group=group(name), revision=1, claims=[claim])


class Cluster:
    """A cluster's side: it reports and keeps what it is told."""

    def __init__(self, bus: Bus, *, term: int = 1) -> None:
        self._bus, self.term = bus, term
        self.sequence = self.generation = self.revision = 0
        self.told = MachinesSynced(generation=0, revision=0)
        self.grants: dict[str, str] = {}

    async def sync(self, *, full: bool = False, **fields: Any) -> MachinesSynced:
        self.sequence += 1
        report = MachinesSync(
            cluster=CLUSTER,
            session="s",
            sequence=self.sequence,
            term=self.term,
            full=full,
            generation=self.generation,
            revision=self.revision,
            **fields,
        )
        data = await self._bus.request(subjects.machines("sync", CLUSTER), report, timeout=30)
        told = self.told = msgspec.json.decode(data, type=MachinesSynced)
        if not told.resync and not told.refused:
            self.generation, self.revision = told.generation, told.revision
            self.grants = {} if told.full else self.grants
            self.grants |= {grant.uid: grant.node for grant in told.grants}
            for uid in told.withdrawn:
                self.grants.pop(uid, None)
        return told

    async def begin(self, found: Machine, *guests: GuestReport) -> MachinesSynced:
        nodes = [PoolNodeReport(name=f"n-{n}", condition="Ready") for n in range(2)]
        reports = [MachineReport(name=found.name, uid="m", machine=found)]
        return await self.sync(full=True, machines=reports, nodes=nodes, guests=list(guests))


class Slots:
    def __init__(self, nats: NatsServer) -> None:
        self._nats = nats
        self.certain = True

    async def open(self, generation: int = 1) -> Slots:
        self.bus = await Bus.connect(self._nats.settings(), worker="slots")
        self.follower = await open_ledger(self.bus)
        self.fleet = fleet_of(clusters())
        capacity = keep_capacity(self.follower, self.fleet)
        self.service = SlotService(self.bus, self.follower, capacity, generation, lambda: self.certain)
        await self.service.start()
        return self


@pytest_asyncio.fixture
async def slots(nats: NatsServer, bus: Bus) -> AsyncIterator[Slots]:
    opened = await Slots(nats).open()
    yield opened
    await opened.bus.close()


async def test_a_machine_gets_its_slots_and_its_guests_some_of_them(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus)
    events: list[str] = []
    await bus.subscribe(subjects.MACHINE_EVENTS, lambda subject, _: events.append(subject))
    told = await cluster.begin(large(5), guest("a"), guest("b"))
    (reservation,) = told.reservations
    assert (reservation.slots, reservation.reason) == ({"n-0": 4, "n-1": 1}, "")
    assert reservation.claim == reservation_claim(MACHINE, CLUSTER)
    assert told.full and cluster.grants == {"a": "n-0", "b": "n-0"}
    told = await cluster.sync(guests=[guest("c")])
    assert not told.full and [g.uid for g in told.grants] == ["c"] and not told.reservations
    told = await cluster.sync(guests_gone=["a"])
    assert told.withdrawn == ["a"]
    changes = ["reserved", "granted", "granted", "withdrawn"]
    await until(lambda: events == [f"moorage.events.machines.{change}.lab.one.g.large" for change in changes])


async def test_what_does_not_fit_is_told_with_numbers(slots: Slots, bus: Bus) -> None:
    told = await Cluster(bus).begin(large(9))
    assert told.reservations[0].slots == {"n-0": 4, "n-1": 4}
    assert told.reservations[0].reason.startswith("8 of 9 slots fit; cpu: one needs 2000")


async def test_a_lost_report_or_an_older_holder_is_not_taken(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus, term=2)
    assert (await cluster.sync(guests=[guest("a")])).resync, "nothing was reported in full yet"
    await cluster.begin(large())
    cluster.sequence += 1
    assert (await cluster.sync(guests=[guest("a")])).resync
    old = Cluster(bus, term=1)
    assert "term 2" in (await old.begin(large())).refused
    assert not (await cluster.begin(large(), guest("a"))).refused and cluster.grants == {"a": "n-0"}


async def test_a_guest_waits_until_an_application_gives_its_slot_back(slots: Slots, nats: NatsServer, bus: Bus) -> None:
    cluster = Cluster(bus)
    hints: list[str] = []
    await bus.subscribe(subjects.machines("changed", CLUSTER), lambda subject, _: hints.append(subject))
    await cluster.begin(large(1))
    merger = await CommitterHarness(nats, clusters).open()
    await merger.follower.wait(slots.follower.ledger.seq)
    assert isinstance(await merger.commit(app("one")), Committed)
    told = await cluster.sync(guests=[guest("a")])
    assert [(r.uid, r.code) for r in told.waiting] == [("a", "SlotShort")] and not cluster.grants
    told = await cluster.sync(guests=[guest("pod", claim="claim-one")])
    assert cluster.grants == {"pod": "n-0"}, "the pod of the application has its slot"
    await cluster.sync(guests_gone=["pod"])
    assert not cluster.grants, "its successor is to come"
    hints.clear()
    await merger.committer.commit(Withdrawal(group=group("one"), revision=1))
    await merger.committer.commit(Release(claims=["claim-one"]))
    await until(lambda: bool(hints))

    async def granted() -> bool:
        """The hint may be of the withdrawal, before the release."""
        await cluster.sync()
        return cluster.grants == {"a": "n-0"}

    await eventually(granted, 40, "the slot goes to the guest")
    await merger.bus.close()


async def test_guests_and_mergers_race_for_the_last_slots(slots: Slots, nats: NatsServer, bus: Bus) -> None:
    cluster = Cluster(bus)
    await cluster.begin(large(6))
    mergers = [await CommitterHarness(nats, clusters).open() for _ in range(4)]
    for merger in mergers:
        await merger.follower.wait(slots.follower.ledger.seq)
    outcomes, _ = await asyncio.gather(
        asyncio.gather(*(m.commit(app(f"{i}-{n}", f"n-{n % 2}")) for i, m in enumerate(mergers) for n in range(4))),
        cluster.sync(guests=[guest(f"g{n}") for n in range(12)]),
    )
    placed = sum(isinstance(outcome, Committed) for outcome in outcomes)
    await slots.follower.wait(await bus.log(LOG).last())
    await cluster.sync()
    assert placed + len(cluster.grants) == 6
    ledger = slots.follower.ledger
    taken = Counter(s.node for a in ledger.claims.values() for s in a.claim.slots) + Counter(cluster.grants.values())
    (reserved,) = ledger.machines.reserved.values()
    assert taken == Counter(reserved.slots)
    for merger in mergers:
        await merger.bus.close()


async def test_a_worker_that_lost_its_lease_changes_nothing_and_the_next_one_goes_on(
    nats: NatsServer, bus: Bus
) -> None:
    first = await Slots(nats).open(generation=1)
    cluster = Cluster(bus)
    await cluster.begin(large(2), guest("a"))
    await first.bus.close()
    second = await Slots(nats).open(generation=5)
    told = await cluster.sync(guests=[guest("b")])
    assert told.resync and told.generation == 5
    await cluster.begin(large(2), guest("a", state="granted"), guest("b"), guest("c"))
    assert cluster.grants == {"a": "n-0", "b": "n-0"}
    await second.bus.close()


async def test_slots_that_are_held_are_given_out_while_the_log_takes_no_new_ones(
    slots: Slots, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(bus)
    await cluster.begin(large(2))
    with monkeypatch.context() as patched:
        patched.setattr(Capacity, "keeps_slots", lambda *_: False)
        larger = MachineReport(name="g", uid="m", machine=large(4))
        told = await cluster.sync(machines=[larger], guests=[guest("a"), guest("b"), guest("c")])
        assert cluster.grants == {"a": "n-0", "b": "n-0"} and [(r.uid, r.code) for r in told.waiting] == [
            ("c", "SlotShort")
        ]
        await cluster.sync(guests_gone=["a"])
        assert cluster.grants.keys() == {"b", "c"}
    told = await cluster.sync(guests=[guest("d"), guest("e")])
    assert cluster.grants.keys() == {"b", "c", "d", "e"} and told.reservations[0].slots == {"n-0": 4}


async def test_a_machine_that_gets_no_slots_keeps_no_other_from_its_own(
    slots: Slots, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keeps(_: Capacity, entry: SlotReservations) -> bool:
        return all(reserved.machine == MACHINE for reserved in entry.reserved)

    monkeypatch.setattr(Capacity, "keeps_slots", keeps)
    cluster = Cluster(bus)
    types = {"small": {"spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}}
    other = read(machine("f", types, {"n-1": ["small"]})).machine
    assert other is not None
    await cluster.begin(large(2), guest("a"))
    reports = [MachineReport(name=found.name, uid=found.name, machine=found) for found in (other, large(3))]
    told = await cluster.sync(machines=reports, guests=[guest("b"), guest("c"), guest("s", machine="f/small")])
    assert cluster.grants.keys() == {"a", "b", "c"} and [r.uid for r in told.waiting] == ["s"]


async def test_a_node_that_the_mesh_cannot_use_keeps_no_other_from_new_slots(slots: Slots, bus: Bus) -> None:
    """The agent of Machines says that both nodes are ready, and the agent of the cluster knows better."""
    cluster = Cluster(bus)
    names = [slots.fleet.node_name(row) for row in range(2)]
    await cluster.begin(large(2), guest("a"))
    slots.fleet.usable[names.index("n-0")] = False
    told = await cluster.sync(
        machines=[MachineReport(name="g", uid="m", machine=large(3))], guests=[guest("b"), guest("c")]
    )
    assert told.reservations[0].slots == {"n-0": 2, "n-1": 1}
    assert cluster.grants == {"a": "n-0", "b": "n-1"} and [(r.uid, r.code) for r in told.waiting] == [
        ("c", "SlotShort")
    ]


async def test_machines_slots_and_guests_are_shown(slots: Slots, nats: NatsServer, bus: Bus) -> None:
    async def shown(kind: str) -> MachinesShown:
        data = await bus.request(subjects.MACHINES_LIST, MachinesAsk(id="a", kind=kind), timeout=30)  # type: ignore[arg-type]
        return msgspec.json.decode(data, type=MachinesShown)

    cluster = Cluster(bus)
    await cluster.begin(large(9), guest("a"), guest("b", nodes=["n-9"]))
    merger = await CommitterHarness(nats, clusters).open()
    await merger.follower.wait(slots.follower.ledger.seq)
    await merger.commit(app("one", "n-1"))
    await slots.follower.wait(merger.follower.ledger.seq)
    (machine,) = (await shown("machines")).machines
    assert (machine.metadata["name"], machine.origin) == (f"{CLUSTER}/g", CLUSTER)
    usage = machine.status.available_machines[0].usage
    assert (usage.maximum, usage.used, usage.waiting) == (9, 0, 2)
    assert [c.status for c in machine.status.conditions] == ["True", "True", "True"]
    assert read(
        {
            "apiVersion": "imperator.tenzen-y.io/v1alpha1",
            "kind": "Machine",
            "metadata": {"name": "g", "labels": machine.metadata["labels"]},
            "spec": machine.spec,
        }
    ).machine == large(9)
    found = [(s.node, s.state, s.holder) for s in (await shown("slots")).slots]
    assert found.count(("n-0", "reserved", "")) == 3 and ("n-0", "granted", "lab/a") in found
    assert ("n-1", "granted", group("one")) in found and found[-1] == ("", "short", "")
    assert len(found) == 9
    guests = {g.name: (g.state, g.node, g.reason) for g in (await shown("guests")).guests}
    assert guests == {"a": ("waiting", "n-0", ""), "b": ("waiting", "", "SlotShort")}
    await merger.bus.close()


async def test_slots_leave_a_node_in_maintenance_and_those_in_use_stay(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus)
    await cluster.begin(large(3), guest("a"))
    resting = PoolNodeReport(name="n-0", condition="Maintenance")
    found = msgspec.structs.replace(
        large(3),
        node_pool=(
            msgspec.structs.replace(large(3).node_pool[0], mode="maintenance"),
            large(3).node_pool[1],
        ),
    )
    told = await cluster.sync(
        nodes=[resting],
        machines=[MachineReport(name="g", uid="m", machine=found)],
        guests=[guest("a", state="used", node="n-0")],
    )
    assert told.reservations[0].slots == {"n-0": 1, "n-1": 2}
    told = await cluster.sync(guests_gone=["a"])
    assert told.reservations[0].slots == {"n-1": 3}


async def test_a_machine_that_is_gone_reserves_nothing(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus)
    await cluster.begin(large(3), guest("a"))
    told = await cluster.sync(machines_gone=["g"])
    assert told.reservations_gone == [MACHINE] and not slots.follower.ledger.machines.reserved
    column = slots.fleet.free("cpu")
    assert column is not None and column[:2].tolist() == [8000, 8000]


def mesh_machine(available: int, *, cluster: str = "", **node_fields: Any) -> dict[str, Any]:
    types = {"large": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": available}}
    found = machine("fleet", types, {"n-0": ["large"], "n-1": ["large"]}, **node_fields)
    if cluster:
        found["spec"]["cluster"] = cluster
    return found


async def test_a_machine_of_the_mesh_is_laid_out_over_its_clusters(slots: Slots, bus: Bus) -> None:
    documents = MachineDocuments(slots.bus, slots.service, slots.fleet, lambda: True)
    await documents.start()
    cluster = Cluster(bus)
    hints: list[str] = []
    await bus.subscribe(subjects.machines("changed", CLUSTER), lambda subject, _: hints.append(subject))
    applied = msgspec.json.decode(
        await bus.request(subjects.MACHINES_APPLY, msgspec.json.encode(mesh_machine(3)), timeout=30)
    )
    assert (applied["outcome"], applied["revision"]) == ("created", 1)
    await until(lambda: bool(hints))
    told = await cluster.sync(full=True)
    (share,) = told.documents
    assert share.machine.types[0].available == 3 and [n.name for n in share.machine.node_pool] == ["n-0", "n-1"]
    report = MachineReport(name="fleet", uid="m", machine=share.machine, origin="mesh")
    nodes = [PoolNodeReport(name=f"n-{n}", condition="Ready") for n in range(2)]
    told = await cluster.sync(machines=[report], nodes=nodes, guests=[guest("a", machine="fleet/large")])
    assert cluster.grants == {"a": "n-0"}
    again = msgspec.json.decode(
        await bus.request(subjects.MACHINES_APPLY, msgspec.json.encode(mesh_machine(3)), timeout=30)
    )
    assert again["outcome"] == "unchanged"
    await bus.request(subjects.MACHINES_APPLY, msgspec.json.encode(mesh_machine(20)), timeout=30)
    told = await cluster.sync()
    assert told.documents[0].machine.types[0].available == 20
    assert told.reservations[0].slots == {"n-0": 4, "n-1": 4} and "8 of 20" in told.reservations[0].reason
    shown = await bus.request(subjects.MACHINES_LIST, MachinesAsk(id="a", kind="machines"), timeout=30)
    (view,) = msgspec.json.decode(shown, type=MachinesShown).machines
    assert (view.metadata["name"], view.origin, view.status.conditions[1].reason) == ("fleet", "mesh", "CapacityShort")
    taken = machine("fleet", {"large": {"spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}}, {"n-0": ["large"]})
    taken["metadata"]["name"] = "other"
    taken["spec"]["nodePool"].append({"name": "n-9", "mode": "ready", "machineType": [{"name": "large"}]})
    refused = msgspec.json.decode(await bus.request(subjects.MACHINES_APPLY, msgspec.json.encode(taken), timeout=30))[
        "problem"
    ]
    found = {(e["path"].partition("[imperator")[0], e["code"]) for e in refused["errors"]}
    labels, pool = ("metadata.labels", "GroupTaken"), "spec.nodePool"
    assert found == {labels, (f"{pool}[0].name", "NodeTaken"), (f"{pool}[1].name", "UnknownNode")}, "all at once"
    await bus.request(subjects.MACHINES_DELETE, msgspec.json.encode({"name": "fleet"}), timeout=30)
    told = await cluster.sync()
    assert told.documents_gone == ["fleet"] and not slots.follower.ledger.machines.reserved


async def test_a_machine_of_the_mesh_is_shown_before_its_clusters_report_again(
    slots: Slots, nats: NatsServer, bus: Bus
) -> None:
    documents = MachineDocuments(slots.bus, slots.service, slots.fleet, lambda: slots.certain)
    await documents.start()
    half = {"name": "half", "spec": {"dependence": {"machineType": "large", "availableRatio": 0.5}}, "available": 3}
    document = mesh_machine(2)
    document["spec"]["machineTypes"].append(half)
    await bus.request(subjects.MACHINES_APPLY, msgspec.json.encode(document), timeout=30)
    nodes = [PoolNodeReport(name=f"n-{n}", condition="Ready") for n in range(2)]
    await Cluster(bus).sync(full=True, nodes=nodes)
    assert slots.follower.ledger.machines.reserved
    slots.certain = False
    again = await Slots(nats).open(generation=2)
    await MachineDocuments(again.bus, again.service, again.fleet, lambda: True).start()
    shown = await bus.request(subjects.MACHINES_LIST, MachinesAsk(id="a", kind="machines"), timeout=30)
    (view,) = msgspec.json.decode(shown, type=MachinesShown).machines
    rows = {row.name: (row.usage.maximum, row.usage.reserved) for row in view.status.available_machines}
    assert rows == {"large": (2, 2), "half": (3, 3)}
    await again.bus.close()


async def test_pods_of_applications_are_of_the_project_that_decided_them(
    slots: Slots, nats: NatsServer, bus: Bus
) -> None:
    cluster = Cluster(bus)
    found = msgspec.structs.replace(large(2), allow=Allow(projects=("p",)))
    await cluster.begin(found)
    merger = await CommitterHarness(nats, clusters).open()
    await merger.follower.wait(slots.follower.ledger.seq)
    assert isinstance(await merger.commit(app("one")), Committed)
    told = await cluster.sync(guests=[guest("pod", claim="claim-one"), guest("stranger")])
    assert cluster.grants == {"pod": "n-0"} and [(r.uid, r.code) for r in told.waiting] == [("stranger", "NotAllowed")]
    await merger.bus.close()


def halves(available: int, most: int | None = None) -> Machine:
    """A Machine of whole slots of two cores, and of halves that live in them."""
    half: dict[str, Any] = {"spec": {"dependence": {"machineType": "large", "availableRatio": 0.5}}}
    types: dict[str, dict[str, Any]] = {
        "large": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": available},
        "half": half if most is None else half | {"available": most},
    }
    found = read(machine("g", types, {"n-0": ["large"], "n-1": ["large"]})).machine
    assert found is not None
    return found


async def test_types_that_depend_on_another_live_in_its_slots(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus)
    three = [guest(name, machine="g/half") for name in "abc"]
    await cluster.begin(halves(2), *three)
    assert cluster.grants.keys() == {"a", "b", "c"}
    told = await cluster.sync(guests=[guest("big")])
    assert [(r.uid, r.code) for r in told.waiting] == [("big", "SlotShort")], "two slots are open for three halves"
    told = await cluster.sync(guests_gone=["a"])
    assert "big" in cluster.grants, "the two that are left share a slot"
    column = slots.fleet.free("cpu")
    assert column is not None and int(column[:1].sum()) == 4000


async def test_guests_of_two_types_that_wait_for_the_last_slot_do_not_block_each_other(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus)
    told = await cluster.begin(halves(1), guest("whole"), guest("a", machine="g/half"), guest("b", machine="g/half"))
    assert cluster.grants.keys() == {"a", "b"} and [r.code for r in told.waiting] == ["SlotShort"]


async def test_only_so_many_of_a_type_are_given_out_wherever_there_is_room(slots: Slots, bus: Bus) -> None:
    cluster = Cluster(bus)
    waiting = [guest(f"h{n}", machine="g/half") for n in range(4)]
    told = await cluster.begin(halves(6, most=3), *waiting)
    assert len(cluster.grants) == 3 and [(r.uid, r.code) for r in told.waiting] == [("h3", "SlotShort")]
    assert "3 of 3" in told.waiting[0].message
    await cluster.sync(guests_gone=["h0", "h1", "h2"])
    # The whole slots of the first node are taken: what is left of the type goes to the other one.
    await cluster.sync(guests=[guest(f"w{n}", nodes=["n-0"], priority=1) for n in range(4)])
    told = await cluster.sync(guests=[guest(f"l{n}", machine="g/half") for n in range(3)])
    assert [r.uid for r in told.waiting if r.uid != "w3"] == ["l2"]
    assert Counter(at for name, at in cluster.grants.items() if name[0] in "hl") == {"n-0": 2, "n-1": 1}


def of_type(name: str, kind: str, at: str, count: int = 1) -> Decision:
    """An application of the mesh with pods in slots of a type."""
    decision = app(name, at)
    (claim,) = decision.claims
    within = reservation_claim(f"g/{kind}", CLUSTER)
    slot = Slot(node=at, count=count, resources={slot_resource(f"g/{kind}"): 1})
    decision.claims = [msgspec.structs.replace(claim, within=within, slots=[slot])]
    return decision


async def test_applications_and_guests_of_types_that_share_slots_race_for_them(
    slots: Slots, nats: NatsServer, bus: Bus
) -> None:
    cluster = Cluster(bus)
    await cluster.begin(halves(6))
    mergers = [await CommitterHarness(nats, clusters).open() for _ in range(4)]
    for merger in mergers:
        await merger.follower.wait(slots.follower.ledger.seq)
    wanted = [
        (m, of_type(f"{i}-{n}", "large" if (i + n) % 3 == 0 else "half", f"n-{n % 2}"))
        for i, m in enumerate(mergers)
        for n in range(4)
    ]
    guests = [guest(f"h{n}", machine="g/half") for n in range(6)] + [guest(f"w{n}") for n in range(6)]
    outcomes, _ = await asyncio.gather(
        asyncio.gather(*(m.commit(decision) for m, decision in wanted)), cluster.sync(guests=guests)
    )
    await slots.follower.wait(await bus.log(LOG).last())
    told = await cluster.sync()
    assert all(r.code == "SlotShort" for r in told.waiting)
    ledger = slots.follower.ledger
    placed = [d.id for (_, d), outcome in zip(wanted, outcomes, strict=True) if isinstance(outcome, Committed)]
    assert {active.claim.decision for active in ledger.claims.values()} == set(placed)
    wholes, shares = Counter[str](), Counter[str]()
    for active in ledger.claims.values():
        (slot,) = active.claim.slots
        (wholes if slot_resource("g/large") in slot.resources else shares)[slot.node] += slot.count
    for uid, at in cluster.grants.items():
        (wholes if uid.startswith("w") else shares)[at] += 1
    (reserved,) = ledger.machines.reserved.values()
    for at, count in reserved.slots.items():
        taken = wholes[at] + -(-shares[at] // 2)
        assert taken == count, "all slots are taken, and none twice"
    # Another holder of the lease reads the same from the log and gives nothing away.
    again = await Slots(nats).open(generation=2)
    await cluster.begin(
        halves(6), *(g for g in guests if g.uid in cluster.grants), guest("late"), guest("later", machine="g/half")
    )
    shown = msgspec.json.decode(
        await bus.request(subjects.MACHINES_LIST, MachinesAsk(id="a", kind="machines"), timeout=30), type=MachinesShown
    )
    rows = {row.name: row.usage for row in shown.machines[0].status.available_machines}
    assert rows["large"].reserved == 0 and "late" not in cluster.grants
    places = 2 * sum(-(-count // 2) for count in shares.values())
    assert rows["half"].reserved == places - sum(shares.values()) - ("later" in cluster.grants)
    await again.bus.close()
    for merger in mergers:
        await merger.bus.close()


async def test_a_slot_is_used_by_pods_of_types_that_live_in_those_in_it(slots: Slots, bus: Bus) -> None:
    """A quarter uses a half, and that a whole slot, though no pod of a half is there."""
    found = halves(2)
    quarter = MachineType(name="quarter", spec=TypeSpec(dependence=Dependence(machine_type="half", available_ratio=0.5)), available=-1)  # fmt: skip
    cluster = Cluster(bus)
    await cluster.begin(
        msgspec.structs.replace(found, types=(*found.types, quarter)),
        guest("q", machine="g/quarter", state="used", node="n-0"),
    )
    data = await bus.request(subjects.MACHINES_LIST, MachinesAsk(id="a", kind="slots"), timeout=30)
    rows = [(s.machine, s.state, s.holder) for s in msgspec.json.decode(data, type=MachinesShown).slots]
    assert rows == [
        ("g/large", "used", "g/half"),
        ("g/large", "reserved", ""),
        ("g/half", "used", "g/quarter"),
        ("g/half", "reserved", ""),
        ("g/quarter", "used", "lab/q"),
        ("g/quarter", "reserved", ""),
    ]


async def test_slots_of_types_that_share_them_are_shown_where_they_live(
    slots: Slots, nats: NatsServer, bus: Bus
) -> None:
    async def shown(kind: str) -> MachinesShown:
        data = await bus.request(subjects.MACHINES_LIST, MachinesAsk(id="a", kind=kind), timeout=30)  # type: ignore[arg-type]
        return msgspec.json.decode(data, type=MachinesShown)

    cluster = Cluster(bus)
    await cluster.begin(halves(3), guest("a", machine="g/half", state="used", node="n-0"))
    merger = await CommitterHarness(nats, clusters).open()
    await merger.follower.wait(slots.follower.ledger.seq)
    assert isinstance(await merger.commit(of_type("one", "half", "n-0", 2)), Committed)
    await slots.follower.wait(merger.follower.ledger.seq)
    rows = {row.name: row.usage for row in (await shown("machines")).machines[0].status.available_machines}
    large, half = rows["large"], rows["half"]
    assert (large.maximum, large.reserved, large.used) == (3, 1, 1)
    assert (half.maximum, half.reserved, half.used) == (6, 3, 1), "one beside the three, two in the slot that is left"
    found = [(s.machine, s.node, s.state, s.holder) for s in (await shown("slots")).slots]
    assert found == [
        ("g/large", "n-0", "used", "g/half"),
        ("g/large", "n-0", "used", "g/half"),
        ("g/large", "n-0", "reserved", ""),
        ("g/half", "n-0", "used", "lab/a"),
        ("g/half", "n-0", "granted", group("one")),
        ("g/half", "n-0", "granted", group("one")),
        ("g/half", "n-0", "reserved", ""),
    ]
    told = await cluster.sync(guests=[guest("pod", machine="g/half", claim="claim-one")])
    assert cluster.grants["pod"] == "n-0" and not told.waiting
    await cluster.sync(machines=[MachineReport(name="g", uid="m", machine=halves(3, most=3))])
    of_half = [s.state for s in (await shown("slots")).slots if s.machine == "g/half"]
    assert "reserved" not in of_half and len(of_half) == 3, "there are no more than three"
    await merger.bus.close()
