"""Mergers and clients of the Placement interface race for the same parts of nodes: what is given is given once, every answer is
true, and generations count every write that took effect."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from moorage.ledger import keep_capacity, open_ledger
from moorage.model.part_reports import CounterSetReport, DeviceReport
from moorage.model.part_requests import DeviceAsk, PartGroup, SameSubtree
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage.parts.layout import provider_uuid
from moorage.placement.core import allocations, inventories, providers
from moorage.placement.core.call import Answer, Call
from moorage.placement.core.errors import Refused
from moorage.placement.core.routes import Operation
from moorage.placement.storage import Storage
from moorage_testkit.fleets import node, provider, two_zones
from moorage_testkit.merger_harness import MergerHarness, OpenMergers, revision
from moorage_testkit.polling import until

pytestmark = pytest.mark.timeout(300)
CLIENTS = MERGERS = 8
PAIR = Shape(
    key="pair",
    object="Deployment/d",
    resources={"cpu": 2000, "pods": 1},
    groups=[PartGroup(suffix="_C", resources={"cpu": 2000}), PartGroup(suffix="_A", resources={"CARD": 1})],
    relations=[SameSubtree(groups=("_C", "_A"))],
)


def zoned() -> NodeReport:
    cards = [provider(f"card-{z}", f"numa-{z}", CARD="1") for z in (0, 1)]
    return node(cpu="8", zones=two_zones("4"), providers=cards)


def hosts() -> dict[str, list[NodeReport]]:
    return {f"lab/{name}": [zoned(), zoned()] for name in "ab"}


def racked() -> NodeReport:
    """Returns a node that reaches, as others do, four devices; the last two take of one counter, which has enough for one of them."""
    devices = [
        DeviceReport(
            id=f"d.io/rack/{i}",
            driver="d.io",
            pool="rack",
            name=str(i),
            shared=True,
            consumes={"c": {"m": "1"}} if i > 1 else {},
        )
        for i in range(4)
    ]
    counters = [CounterSetReport(driver="d.io", pool="rack", name="c", counters={"m": "1"})]
    return msgspec.structs.replace(node(cpu="8"), devices=devices, counters=counters)


def racks() -> dict[str, list[NodeReport]]:
    return {f"lab/{name}": [racked(), racked()] for name in "ab"}


class Clients:
    """Clients of one worker. Operations are called as the HTTP layer calls them."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.accepted: dict[str, str] = {}  # consumer → its node and zone

    async def call(self, operation: Operation, body: Any = None, **path: str) -> Answer:
        call = Call(self.storage.state, 39, path, body=msgspec.json.encode(body), now=1.0)
        return await self.storage.commit(lambda: operation(call), alone=operation is allocations.reshape)

    async def take(self, cluster: str, host: str, zone: int) -> bool:
        wanted = {f"{host}/numa-{zone}": {"VCPU": 2}, f"{host}/card-{zone}": {"CUSTOM_CARD": 1}}
        return await self.take_parts(cluster, wanted, f"{cluster}/{host}/{zone}")

    async def take_parts(self, cluster: str, wanted: dict[str, dict[str, int]], place: str) -> bool:
        consumer = str(uuid.uuid4())
        body = {
            "allocations": {provider_uuid(cluster, ident): {"resources": takes} for ident, takes in wanted.items()},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "TEST",
            "consumer_generation": None,
        }
        try:
            await self.call(allocations.replace, body, consumer_uuid=consumer)
        except Refused as refused:
            assert refused.status == 409, refused.detail
            return False
        self.accepted[consumer] = place
        return True

    async def give_back(self, consumer: str) -> None:
        await self.call(allocations.delete, consumer_uuid=consumer)
        del self.accepted[consumer]


async def clients_of(site: MergerHarness) -> Clients:
    bus, fleet = await site.connect("placement")
    follower = await open_ledger(bus)
    storage = Storage(bus, follower, 1, keep_capacity(follower, fleet))
    await storage.open("http://127.0.0.1:1")
    return Clients(storage)


def placed(site: MergerHarness) -> int:
    return len(site.ledger.standing)


async def test_the_last_parts_are_given_once_to_groups_or_to_consumers(open_mergers: OpenMergers) -> None:
    """Four nodes have eight zones with a card each. Twelve groups and clients for every card come at once."""
    async with open_mergers(hosts, MERGERS) as site:
        clients = await clients_of(site)
        names = [f"g{i}" for i in range(12)]
        places = [(f"lab/{c}", f"n-{n}", z) for c in "ab" for n in (0, 1) for z in (0, 1)]
        taking = [clients.take(*places[i % len(places)]) for i in range(CLIENTS * 3)]
        await asyncio.gather(
            site.decide(*(revision(n, ShapedApp(name="a", shapes=[PAIR]), at=n) for n in names)), *taking
        )
        await until(lambda: all(site.attempts(n) for n in names), 60, "every group was tried")
        await until(lambda: placed(site) + len(clients.accepted) == 8, 60, "all cards are given")
        assert len(set(clients.accepted.values())) == len(clients.accepted), "no card was given twice"
        state = clients.storage.state
        for consumer, place in clients.accepted.items():
            cluster, host, zone = place.rsplit("/", 2)
            card = provider_uuid(cluster, f"{host}/card-{zone}")
            assert [c.uuid for c in state.consumers_of(card)] == [consumer] and state.usages(card) == {"CUSTOM_CARD": 1}
            assert state.generation(card) == 1, "what was refused does not count"
        # Each card that a consumer gives back goes to a group that waits.
        before = placed(site)
        given_back = list(clients.accepted)[: 12 - before]
        await asyncio.gather(*(clients.give_back(consumer) for consumer in given_back))
        await until(lambda: placed(site) == before + len(given_back), 60, "groups that waited are placed")


async def test_common_devices_are_given_once_to_groups_or_to_consumers(open_mergers: OpenMergers) -> None:
    """Two clusters have three devices each that can be taken at once, whichever of two nodes reaches them."""
    ask = DeviceAsk(selectors=("true",))
    one = Shape(
        key="one",
        object="Deployment/d",
        resources={"cpu": 1000, "pods": 1},
        groups=[PartGroup(suffix="claim/r", devices=(ask,))],
    )
    async with open_mergers(racks, MERGERS) as site:
        clients = await clients_of(site)
        names = [f"g{i}" for i in range(10)]
        taking = [
            clients.take_parts(f"lab/{c}", {f"d.io/rack/{i}": {"CUSTOM_D_IO": 1}}, f"{c}/{i}")
            for _ in range(2)
            for c in "ab"
            for i in range(4)
        ]
        await asyncio.gather(
            site.decide(*(revision(n, ShapedApp(name="a", shapes=[one]), at=n) for n in names)), *taking
        )
        await until(lambda: all(site.attempts(n) for n in names), 60, "every group was tried")
        await until(lambda: placed(site) + len(clients.accepted) == 6, 60, "all that can be given is")
        given = [
            f"{claim.cluster[-1]}/{part[-1]}"
            for decision in site.ledger.standing.values()
            for claim in decision.claims
            for slot in claim.slots
            for part in slot.parts
        ] + list(clients.accepted.values())
        assert len(set(given)) == len(given) == 6, "no device was given twice"
        assert all(len({f"{c}/2", f"{c}/3"} & set(given)) == 1 for c in "ab"), "nor its counter"
        before = placed(site)
        given_back = list(clients.accepted)[: 10 - before]
        await asyncio.gather(*(clients.give_back(consumer) for consumer in given_back))
        await until(lambda: placed(site) == before + len(given_back), 60, "groups that waited are placed")


async def test_writes_of_one_consumer_take_effect_one_after_the_other(open_mergers: OpenMergers) -> None:
    async with open_mergers(hosts, 1) as site:
        clients = await clients_of(site)
        consumer, card = str(uuid.uuid4()), provider_uuid("lab/a", "n-0/numa-0")

        async def write(amount: int) -> bool:
            body = {
                "allocations": {card: {"resources": {"VCPU": amount}}},
                "project_id": "p",
                "user_id": "u",
                "consumer_type": "TEST",
                "consumer_generation": None,
            }
            try:
                await clients.call(allocations.replace, body, consumer_uuid=consumer)
            except Refused as refused:
                assert refused.code == "placement.concurrent_update", refused.detail
                return False
            return True

        outcomes = await asyncio.gather(*(write(1 + i % 4) for i in range(CLIENTS)))
        assert sum(outcomes) == 1
        state = clients.storage.state
        assert state.consumers[consumer].generation == 1 and state.generation(card) == 1
        assert state.usages(card) == {"VCPU": state.consumers[consumer].allocations[card]["VCPU"]}


async def test_a_reshape_and_deletions_cross_neither_decisions_nor_allocations(open_mergers: OpenMergers) -> None:
    """Moves the allocations of a made provider to nodes, while groups and others want the same cards."""
    async with open_mergers(hosts, 2) as site:
        clients = await clients_of(site)
        state = clients.storage.state
        found = await clients.call(providers.create, {"name": "made"})
        made = found.location.rpartition("/")[2]
        await clients.call(
            inventories.replace, {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 4}}}, uuid=made
        )
        consumer = str(uuid.uuid4())
        owner = {"project_id": "p", "user_id": "u", "consumer_type": "TEST"}
        body = {"allocations": {made: {"resources": {"VCPU": 3}}}, "consumer_generation": None, **owner}
        await clients.call(allocations.replace, body, consumer_uuid=consumer)
        zone = provider_uuid("lab/a", "n-0/numa-0")
        moved = {"allocations": {zone: {"resources": {"VCPU": 3}}}, "consumer_generation": 1, **owner}
        reshape = {
            "inventories": {made: {"resource_provider_generation": 2, "inventories": {}}},
            "allocations": {consumer: moved},
        }
        names = [f"g{i}" for i in range(8)]
        outcomes = await asyncio.gather(
            clients.call(allocations.reshape, reshape),
            site.decide(*(revision(n, ShapedApp(name="a", shapes=[PAIR]), at=n) for n in names)),
            *(clients.take("lab/a", "n-0", 0) for _ in range(3)),
            return_exceptions=True,
        )
        await until(lambda: all(site.attempts(n) for n in names), 60, "every group was tried")
        if isinstance(outcomes[0], BaseException):
            assert isinstance(outcomes[0], Refused) and outcomes[0].status == 409
            assert state.usages(made) == {"VCPU": 3} and state.consumers[consumer].generation == 1
        else:
            assert state.usages(made) == {} and state.consumers[consumer].allocations == {zone: {"VCPU": 3}}
            assert state.generation(zone) >= 1 and state.consumers[consumer].generation == 2
