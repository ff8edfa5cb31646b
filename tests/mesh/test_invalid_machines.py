"""Machines that are stored although they break a rule: what they hold stays as it is until they are mended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest_asyncio

from moorage.bus import Bus, subjects
from moorage.bus.server import Incoming
from moorage.ledger import keep_capacity, open_ledger
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.reports import MeshReports
from moorage.model.machine_slots import GrantedSlot
from moorage.model.machine_views import MachinesAsk, MachineView
from moorage.model.machines import GuestReport, MachinesSynced
from moorage.slots.service import SlotService
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.machines import machine
from moorage_testkit.servers import NatsServer

CLUSTER, MACHINE, NOW = "lab/one", "g/large", 1_700_000_000.0


def guest(uid: str, state: str = "waiting", at: str = "") -> GuestReport:
    return GuestReport(uid=uid, namespace="lab", name=uid, machine=MACHINE, state=state, node=at)  # type: ignore[arg-type]


class Cluster:
    """A cluster's stored objects, and the process that reports them."""

    def __init__(self, service: SlotService) -> None:
        self.service, self.terms, self.version = service, 0, 0
        types = {"large": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 3}}
        self.machine = machine("g", types, {"n-0": ["large"], "n-1": ["large"]})
        self.start()

    def start(self) -> None:
        """Starts a process that knows nothing but what is stored."""
        self.terms += 1
        self.state = ClusterMachines()
        self.state.set_connected(True)
        self.reports = MeshReports(self.state, CLUSTER, f"session-{self.terms}", self.terms)
        for number in range(2):
            status = {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
            self.state.put_node(
                {"metadata": {"name": f"n-{number}", "uid": f"{number}", "resourceVersion": "1"}, "status": status}
            )
        self.write()

    def write(self, available: int = 3, cpu: str = "2") -> None:
        """Writes the Machine past the hook."""
        (kind,) = self.machine["spec"]["machineTypes"]
        kind |= {"available": available, "spec": {"cpu": cpu, "memory": "1Gi"}}
        self.version += 1
        self.machine["metadata"] |= {"uid": "m", "resourceVersion": str(self.version)}
        self.state.put_machine(msgspec.json.decode(msgspec.json.encode(self.machine)))

    async def sync(self, *guests: GuestReport, gone: tuple[str, ...] = ()) -> MachinesSynced:
        self.state.plan(NOW)
        report = self.reports.report()
        report.guests, report.guests_gone = list(guests), list(gone)
        told = await self.service.sync(Incoming(subjects.machines("sync", CLUSTER), msgspec.json.encode(report), ""))
        assert told is not None and not told.resync and not told.refused
        self.reports.take(told, NOW)
        return told


class Slots:
    async def open(self, nats: NatsServer, generation: int) -> SlotService:
        self.bus = await Bus.connect(nats.settings(), worker="slots")
        self.follower = await open_ledger(self.bus)
        fleet = fleet_of({CLUSTER: [node(cpu="8", memory="64Gi"), node(cpu="8", memory="64Gi")]})
        capacity = keep_capacity(self.follower, fleet)
        self.service = SlotService(self.bus, self.follower, capacity, generation, lambda: True)
        return self.service

    def state(self) -> tuple[dict[str, int], dict[str, GrantedSlot]]:
        machines = self.follower.ledger.machines
        return {node: n for r in machines.reserved.values() for node, n in r.slots.items()}, dict(machines.granted)

    async def ready(self) -> tuple[str, str]:
        ask = Incoming(subjects.MACHINES_LIST, msgspec.json.encode(MachinesAsk(id="1", kind="machines")), "")
        shown = await self.service.show(ask)
        assert shown is not None
        (view,) = msgspec.convert(shown.machines, list[MachineView])
        (ready,) = [c for c in view.status.conditions if c.type == "Ready"]
        return ready.status, ready.reason


@pytest_asyncio.fixture
async def slots(nats: NatsServer, bus: Bus) -> AsyncIterator[Slots]:
    opened = Slots()
    await opened.open(nats, 1)
    yield opened
    await opened.bus.close()


async def test_an_invalid_machine_keeps_what_it_holds_until_it_is_mended(slots: Slots, nats: NatsServer) -> None:
    cluster = Cluster(slots.service)
    told = await cluster.sync(guest("a"))
    before = slots.state()
    assert before[0] == {"n-0": 3} and before[1].keys() == {"a"} and await slots.ready() == ("True", "")
    at = before[1]["a"].node

    cluster.write(cpu="-5")
    told = await cluster.sync(guest("a", "used", at), guest("b"))
    assert slots.state() == before and await slots.ready() == ("False", "Invalid")
    assert (told.reservations_gone, told.grants, [w.uid for w in told.waiting]) == ([], [], ["b"])

    # Neither a process that never knew the Machine in force, nor another worker, changes more.
    cluster.start()
    cluster.write(cpu="-5")
    await cluster.sync()
    assert slots.state() == before
    await slots.bus.close()
    cluster.service = await slots.open(nats, 2)
    cluster.start()
    cluster.write(cpu="-5")
    told = await cluster.sync(guest("c"))
    assert slots.state() == before and await slots.ready() == ("False", "Invalid")
    assert [(r.machine, r.slots) for r in told.reservations] == [(MACHINE, {"n-0": 3})]

    cluster.write(available=2)
    told = await cluster.sync(guest("a", "used", at), guest("b"))
    assert slots.state()[0] == {"n-0": 2} and slots.state()[1].keys() == {"a", "b"}
    assert await slots.ready() == ("True", "")


async def test_an_invalid_machine_that_is_deleted_holds_nothing(slots: Slots) -> None:
    cluster = Cluster(slots.service)
    await cluster.sync()
    cluster.write(cpu="-5")
    await cluster.sync()
    cluster.state.drop_machine("g")
    told = await cluster.sync()
    assert slots.state() == ({}, {}) and told.reservations_gone == [MACHINE]
