"""Allocations on nodes of clusters under kills of the worker: what was answered stays and is held once, a reshape onto nodes is
whole or absent, and room that nobody was told of can be taken again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from moorage.parts.layout import provider_uuid
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import eventually
from moorage_testkit.placement_client import PlacementClient
from moorage_testkit.polling import until

from .conftest import MakeMesh
from .test_placement import until_lost

CLIENTS = 8
pytestmark = pytest.mark.timeout(300)
HOST: dict[str, Any] = {
    "name": "n",
    "count": 4,
    "allocatable": {"cpu": "24"},
    "zones": [{"id": f"numa{z}", "resources": {"cpu": 12}} for z in (0, 1)],
    "providers": [{"name": "nic", "zone": "numa0", "inventories": {"SRIOV_NET_VF": 32}}],
}
RACK: dict[str, Any] = {
    "driver": "d.io",
    "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 2},
    "allNodes": True,
}
SLICE = [{"counterSet": "card", "counters": {"m": {"value": "1"}}}]


def rack_slice(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {**RACK, **spec},
    }


#: Two nodes reach four devices; the last two take of one counter, of which there is enough for one of them.
COMMON: dict[str, Any] = {
    "name": "r",
    "provider": "lab",
    "nodes": [{"name": "r", "count": 2, "allocatable": {"cpu": "8"}}],
    "objects": [
        rack_slice(
            "devices",
            devices=[{"name": f"gpu-{i}", **({"consumesCounters": SLICE} if i > 1 else {})} for i in range(4)],
        ),
        rack_slice("counters", sharedCounters=[{"name": "card", "counters": {"m": {"value": "1"}}}]),
    ],
}


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    environment = {**failpoints.environment, "MOORAGE_PLACEMENT_HTTP": "127.0.0.1:0"}
    fleet = {"clusters": [{"name": "a", "provider": "lab", "nodes": [HOST]}, COMMON]}
    return make_mesh(fleet, "--workers", "placement=2", environment=environment)


@pytest_asyncio.fixture
async def placement(mesh: Mesh) -> AsyncIterator[PlacementClient]:
    async with PlacementClient(mesh.endpoint["placement"], mesh.endpoint["token"]) as found:

        async def there() -> bool:
            return (await found.call("GET", f"/resource_providers/{part('n-3')}")).status == 200

        await eventually(there, 60, "the nodes are shown")
        yield found


def part(ident: str) -> str:
    return provider_uuid("lab/a", ident)


async def taken_by_clients(
    placement: PlacementClient, providers: list[str], amounts: dict[str, int], times: int
) -> dict[str, set[str]]:
    """Lets clients allocate of providers, each so many times, and returns the consumers that may have got something, by provider."""
    accepted: dict[str, set[str]] = {provider: set() for provider in providers}

    async def client(number: int) -> None:
        for i in range(times):
            consumer, provider = str(uuid.uuid4()), providers[(number + i) % len(providers)]
            answer = await placement.allocate(consumer, {provider: amounts})
            # An answer that was lost may have been an allocation: the consumer is then not new any more.
            lost = answer.status == 409 and answer.body["errors"][0]["code"] == "placement.concurrent_update"
            assert answer.status in (204, 409), answer
            if answer.status == 204 or lost:
                accepted[provider].add(consumer)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return accepted


@pytest.mark.parametrize("nth", [1, 3, 8])
async def test_a_kill_loses_nothing_that_was_answered(
    placement: PlacementClient, failpoints: Failpoints, nth: int
) -> None:
    zones = [part(f"n-{n}/numa{z}") for n in (0, 1) for z in (0, 1)]
    generations = [await placement.generation(zone) for zone in zones]
    failpoints.arm("placement.committed", nth=nth)
    accepted = await taken_by_clients(placement, zones, {"VCPU": 1}, 8)
    await until(lambda: failpoints.happened("placement.committed") > 0, 60, "a worker dies")
    for zone, before in zip(zones, generations, strict=True):
        assert (await placement.held(zone)).keys() == accepted[zone]
        assert await placement.used(zone) == {"VCPU": 12} and len(accepted[zone]) == 12
        assert await placement.generation(zone) == before + 12
        full = await placement.allocate(str(uuid.uuid4()), {zone: {"VCPU": 1}})
        assert full.status == 409, "nothing is given twice"
    for consumer in [c for consumers in accepted.values() for c in consumers]:
        assert (await placement.call("DELETE", f"/allocations/{consumer}")).status in (204, 404)
    for zone in zones:
        assert await placement.used(zone) == {"VCPU": 0}


@pytest.mark.parametrize("nth", [1, 3])
async def test_a_kill_gives_no_common_device_twice(
    mesh: Mesh, placement: PlacementClient, failpoints: Failpoints, nth: int
) -> None:
    devices = [provider_uuid("lab/r", f"d.io/rack/gpu-{i}") for i in range(4)]

    async def there() -> bool:
        found = await placement.call("GET", "/allocation_candidates?resources=CUSTOM_D_IO:1")
        return found.status == 200 and len(found.body["allocation_requests"]) == 4

    await eventually(there, 60, "the devices are shown")
    failpoints.arm("placement.committed", nth=nth)
    accepted = await taken_by_clients(placement, devices, {"CUSTOM_D_IO": 1}, len(devices))
    await until(lambda: failpoints.happened("placement.committed") > 0, 60, "a worker dies")
    mesh.kill("placement")
    for device in devices:
        assert (await placement.held(device)).keys() == accepted[device]
        assert await placement.used(device) == {"CUSTOM_D_IO": 1}, "it, or its counter, is taken"
    held = [len(consumers) for consumers in accepted.values()]
    assert (held[:2], sorted(held[2:])) == ([1, 1], [0, 1])
    for consumer in [c for consumers in accepted.values() for c in consumers]:
        assert (await placement.call("DELETE", f"/allocations/{consumer}")).status in (204, 404)
    await eventually(there, 60, "all can be taken again")


@pytest.mark.parametrize("others", [(), ("placement",), ("placement", "inventory", "nats")])
async def test_redis_dies_and_nothing_that_was_answered_is_lost(
    mesh: Mesh, placement: PlacementClient, others: tuple[str, ...]
) -> None:
    """Nodes may be as if they were gone until Redis has them again; what is held of them stays."""
    card = part("n-3/numa0/nic")
    accepted: set[str] = set()
    begun = asyncio.Event()

    async def client() -> None:
        for _ in range(3):
            consumer = str(uuid.uuid4())
            for _ in range(400):
                answer = await placement.allocate(consumer, {card: {"SRIOV_NET_VF": 1}})
                lost = answer.status == 409 and answer.body["errors"][0]["code"] == "placement.concurrent_update"
                if answer.status == 204 or lost:
                    accepted.add(consumer)
                    break
                assert answer.status in (400, 409), answer  # the card is not there for a while
                await asyncio.sleep(0.2)
            begun.set()

    clients = asyncio.gather(*(client() for _ in range(4)))
    await begun.wait()
    for worker in ("redis", *others):
        mesh.kill(worker)
    await clients
    assert len(accepted) == 12

    async def all_there() -> bool:
        return (await placement.call("GET", f"/resource_providers/{card}/inventories")).status == 200

    await eventually(all_there, 60, "the card is shown again")
    assert (await placement.held(card)).keys() == accepted
    assert await placement.used(card) == {"SRIOV_NET_VF": 12}
    for consumer in accepted:
        assert (await placement.call("DELETE", f"/allocations/{consumer}")).status in (204, 404)
    assert await placement.used(card) == {"SRIOV_NET_VF": 0}


@pytest.mark.parametrize("point", ["placement.reshaped", "placement.recorded"])
async def test_a_kill_leaves_no_half_reshape_onto_nodes(
    placement: PlacementClient, failpoints: Failpoints, point: str
) -> None:
    """VFs move from a made provider to a card of a node, together with what consumers hold of them."""
    made, card = await placement.provider(f"p-{uuid.uuid4()}", {"SRIOV_NET_VF": 8}), part("n-2/numa0/nic")
    consumers = [str(uuid.uuid4()) for _ in range(4)]
    for consumer in consumers:
        assert (await placement.allocate(consumer, {made: {"SRIOV_NET_VF": 2}})).status == 204
    before = await placement.used(card)
    body = {
        "inventories": {
            made: {"resource_provider_generation": await placement.generation(made), "inventories": {}},
        },
        "allocations": {
            consumer: placement.allocation({card: {"SRIOV_NET_VF": 2}}, generation=1) for consumer in consumers
        },
    }
    failpoints.arm(point)
    await until_lost(placement, failpoints, point, "POST", "/reshaper", body)
    assert await placement.used(made) == {}
    assert await placement.used(card) == {"SRIOV_NET_VF": before["SRIOV_NET_VF"] + 8}
    assert (await placement.held(card)).items() >= {consumer: {"SRIOV_NET_VF": 2} for consumer in consumers}.items()
    assert (await placement.call("POST", "/reshaper", body)).status == 409, "the generations have grown"
    for consumer in consumers:
        assert (await placement.call("DELETE", f"/allocations/{consumer}")).status in (204, 404)
    assert await placement.used(card) == before


async def test_a_kill_keeps_additions_and_their_generation(
    mesh: Mesh, placement: PlacementClient, failpoints: Failpoints
) -> None:
    card = part("n-3/numa0/nic")
    own, before = str(uuid.uuid4()), await placement.generation(card)
    body = {"resource_provider_generation": before, "aggregates": [own]}
    failpoints.arm("placement.recorded")
    path = f"/resource_providers/{card}/aggregates"
    await until_lost(placement, failpoints, "placement.recorded", "PUT", path, body)
    found = await placement.done("GET", f"/resource_providers/{card}/aggregates")
    assert found == {"aggregates": [own], "resource_provider_generation": before + 1}
    mesh.kill("placement")
    candidates = await placement.done("GET", f"/allocation_candidates?resources=SRIOV_NET_VF:1&member_of={own}")
    assert [list(c["allocations"]) for c in candidates["allocation_requests"]] == [[card]]
    path = f"/v1/events?subject=moorage.events.placement.provider.changed.{card}&follow=false&limit=500"

    async def told() -> bool:
        items = (await asyncio.to_thread(mesh.http, path))["items"]
        return [(i["data"]["changed"], i["data"]["generation"]) for i in items] == [(["aggregates"], before + 1)]

    await eventually(told, 60, "one event, although the worker died before it")
