"""Machines of a real cluster get their slots from the ledger, and go on alone while the mesh cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from moorage.bus import Bus
from moorage.ledger import keep_capacity, open_ledger
from moorage.machine_groups.names import MACHINE_TYPE
from moorage.machines.install import install
from moorage.model.machine_slots import reservation_claim
from moorage.model.reports import NodeReport
from moorage.slots.service import SlotService
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess
from moorage_testkit.machines import machine
from moorage_testkit.servers import NatsServer

from .conftest import settled

CLUSTER, TEAM = "lab/machines", "team"
GUEST = {MACHINE_TYPE: "a"}
HOST = "kubernetes.io/hostname"


@pytest.fixture
def cluster() -> Iterator[MachineCluster]:
    with ControlPlane("machines") as plane:
        for i in range(2):
            plane.node(f"n-{i}", allocatable={"cpu": "8", "memory": "32Gi"})
        found = MachineCluster(plane)
        asyncio.run(found.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False)))
        found.namespace(TEAM)
        yield found


class Slots:
    """The worker `slots` in this process, over a fleet in memory."""

    def __init__(self, bus: Bus, service: SlotService) -> None:
        self.bus, self.service = bus, service

    @classmethod
    async def open(cls, nats: NatsServer, generation: int, nodes: Sequence[NodeReport] = ()) -> Slots:
        """`nodes`: those of the cluster; without, two."""
        bus = await Bus.connect(nats.settings(), worker="slots")
        follower = await open_ledger(bus)
        nodes = nodes or [node(cpu="8", memory="32Gi", labels={HOST: f"n-{i}"}) for i in range(2)]
        fleet = fleet_of({CLUSTER: nodes})
        service = SlotService(bus, follower, keep_capacity(follower, fleet), generation, lambda: True)
        await service.start()
        return cls(bus, service)


@pytest_asyncio.fixture
async def slots(nats: NatsServer, bus: Bus) -> AsyncIterator[list[Slots]]:
    opened = [await Slots.open(nats, 1)]
    yield opened
    for one in opened:
        await one.bus.close()


def claims(cluster: MachineCluster) -> dict[str, str]:
    """Returns the claims of guests that were let in."""
    labels = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in cluster.pods(TEAM)}
    return {name: found["moorage.dev/claim"] for name, found in labels.items() if "moorage.dev/claim" in found}


async def test_slots_come_from_the_ledger_and_go_on_without_it(
    cluster: MachineCluster, nats: NatsServer, slots: list[Slots]
) -> None:
    process = MachinesProcess(cluster, "--name", CLUSTER, MOORAGE_NATS_URL=nats.url)

    async def usage(*wanted: int, seconds: float = 25) -> None:
        def check() -> bool:
            return cluster.usage("g").get("a") == wanted

        try:
            await settled(check, seconds)
        except AssertionError:
            raise AssertionError(f"usage is {cluster.usage('g')}, not {wanted}") from None

    def told(pod: str) -> list[str]:
        found = cluster.call("GET", f"/api/v1/namespaces/{TEAM}/events")["items"]
        return [str(event.get("message")) for event in found if event["involvedObject"]["name"] == pod]

    try:
        await settled(process.is_ready, 40, "it is ready")
        spec: dict[str, Any] = {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 4, "offlineSlots": 1}
        cluster.machine(machine("g", {"a": spec}, {"n-0": ["a"], "n-1": ["a"]}))
        await usage(4, 4, 0, 0)
        machines = slots[0].service._follower.ledger.machines
        reserved = machines.reserved[reservation_claim("g/a", CLUSTER)]
        assert sum(reserved.slots.values()) == 4
        for i in range(2):
            cluster.pod(TEAM, f"guest-{i}", GUEST)
        await usage(4, 2, 2, 0)
        assert set(claims(cluster).values()) == {reservation_claim("g/a", CLUSTER)}
        uids = {pod["metadata"]["uid"] for pod in cluster.pods(TEAM)}
        await settled(lambda: uids <= set(machines.granted), 10, "their slots are in the ledger")
        # One that ends gives its slot back to the ledger.
        gone = cluster.call("GET", f"/api/v1/namespaces/{TEAM}/pods/guest-0")["metadata"]["uid"]
        cluster.delete_pod(TEAM, "guest-0")
        await settled(lambda: gone not in machines.granted, 20, "the ledger has it back")
        await usage(4, 3, 1, 0)
        # Without the mesh, counts and repair go on; new guests get what is set aside for that, and no more.
        await slots.pop().bus.close()
        await asyncio.sleep(7)
        for i in range(3):
            cluster.pod(TEAM, f"alone-{i}", GUEST)
        await usage(4, 2, 2, 2)
        assert set(claims(cluster).values()) == {reservation_claim("g/a", CLUSTER)}
        # When it is back, claims follow, and the slots that were not set aside go to those who wait.
        slots.append(await Slots.open(nats, 2))
        await usage(4, 0, 4, 0, seconds=40)
        uids = {pod["metadata"]["uid"] for pod in cluster.pods(TEAM) if pod["spec"].get("nodeName")}
        machines = slots[0].service._follower.ledger.machines
        await settled(lambda: set(machines.granted) == uids, 10, "the ledger has all that are let in")
        assert sum(slot.alone for slot in machines.granted.values()) == 1
        # One that waits says on itself what the mesh knows.
        cluster.pod(TEAM, "late", GUEST)
        await settled(lambda: any("needs 1 slot of g/a" in text for text in told("late")), 20, "it says why it waits")
    finally:
        process.remove()


async def test_the_mesh_gives_guests_that_keep_apart_slots_on_different_nodes(
    cluster: MachineCluster, nats: NatsServer, slots: list[Slots]
) -> None:
    process = MachinesProcess(cluster, "--name", CLUSTER, MOORAGE_NATS_URL=nats.url)
    term = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": HOST}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    async def usage(*wanted: int) -> None:
        await settled(lambda: cluster.usage("g").get("a") == wanted, 25, f"usage is {wanted}")

    try:
        await settled(process.is_ready, 40, "it is ready")
        cluster.machine(machine("g", {"a": {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 6}}, {"n-0": ["a"], "n-1": ["a"]}))  # fmt: skip
        await usage(6, 6, 0, 0)
        for i in range(3):
            cluster.pod(TEAM, f"apart-{i}", {**GUEST, "app": "apart"}, affinity=apart)
        await usage(6, 4, 2, 1)
        assert cluster.bound(TEAM) == ["n-0", "n-1"]
        # Their rules keep it off, too.
        cluster.pod(TEAM, "other", {**GUEST, "app": "apart"})
        await usage(6, 4, 2, 2)

        def told(pod: str) -> list[str]:
            found = cluster.call("GET", f"/api/v1/namespaces/{TEAM}/events")["items"]
            return [str(event.get("message")) for event in found if event["involvedObject"]["name"] == pod]

        await settled(lambda: any("keep it off 2 nodes" in text for text in told("other")), 20, "it says why it waits")
        # Their place is given at once to the next.
        gone = next(p["metadata"]["name"] for p in cluster.pods(TEAM) if p["spec"].get("nodeName") == "n-0")
        cluster.delete_pod(TEAM, gone)
        await usage(6, 4, 2, 1)
        assert cluster.bound(TEAM) == ["n-0", "n-1"]
    finally:
        process.remove()
