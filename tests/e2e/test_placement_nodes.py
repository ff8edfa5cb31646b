"""Nodes of a simulated fleet over the Placement interface: what is allocated there is not given to applications, what these
hold cannot be allocated, and both give back to each other."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moorage.parts.layout import provider_uuid
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import eventually
from moorage_testkit.placement_client import PlacementClient
from moorage_testkit.polling import until

pytestmark = pytest.mark.timeout(300)
CLUSTER = "lab/a"
HOST: dict[str, Any] = {
    "name": "host",
    "allocatable": {"cpu": "8", "memory": "4Gi"},
    "zones": [{"id": f"numa{z}", "resources": {"cpu": 4}} for z in (0, 1)],
    "providers": [{"name": "gpu", "zone": "numa0", "inventories": {"PGPU": 1}}],
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    clusters = [{"name": "a", "provider": "lab", "nodes": [HOST]}]
    file.write_text(json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": clusters}))
    with Mesh("--fleet", str(file)) as found:
        yield found


@pytest_asyncio.fixture
async def placement(mesh: Mesh) -> AsyncIterator[PlacementClient]:
    async with PlacementClient(mesh.endpoint["placement"], mesh.endpoint["token"]) as found:
        yield found


def part(path: str) -> str:
    return provider_uuid(CLUSTER, f"host/{path}")


async def shown(placement: PlacementClient) -> None:
    async def there() -> bool:
        found = await placement.call("GET", f"/resource_providers?name={CLUSTER}/host/numa0/gpu")
        return bool(found.body["resource_providers"])

    await eventually(there, 60, "the nodes are shown")


def application(name: str, required: list[str]) -> dict[str, Any]:
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    consumer = {
        "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "container": "c",
        "needs": [{"resource": "PGPU", "requests": 1, "group": "_G"}],
        "topology": {"groups": {"_G": {"required": required}}} if required else {},
    }
    app = {"name": "web", "manifests": [deployment], "consumers": [consumer]}
    head = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Application", "metadata": {"name": name}}
    return {**head, "spec": {"apps": [app]}}


def run(mesh: Mesh, *arguments: str) -> str:
    done = mesh.run(*arguments)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def apply(mesh: Mesh, tmp_path: Path, name: str, required: list[str] | None = None) -> None:
    (tmp_path / name).write_text(json.dumps(application(name, required or [])))
    run(mesh, "apply", "-f", str(tmp_path / name))


def phase(mesh: Mesh, name: str) -> str:
    found: str = json.loads(run(mesh, "why", name, "-o", "json"))["phase"]
    return found


def holders(mesh: Mesh, ident: str) -> list[dict[str, Any]]:
    items = {item["id"]: item for item in mesh.http("/v1/parts")["items"]}
    found: list[dict[str, Any]] = items[ident]["holders"]
    return found


async def test_a_card_goes_from_a_consumer_to_a_group_and_back(
    mesh: Mesh, placement: PlacementClient, tmp_path: Path
) -> None:
    await shown(placement)
    gpu = part("numa0/gpu")
    consumer = str(uuid.uuid4())
    assert (await placement.allocate(consumer, {gpu: {"PGPU": 1}, part("numa0"): {"VCPU": 2}})).status == 204
    assert await placement.used(gpu) == {"PGPU": 1}
    assert (await placement.done("GET", "/allocation_candidates?resources=PGPU:1"))["allocation_requests"] == []
    await until(lambda: holders(mesh, "host/numa0/gpu") != [], 40, "the consumer is shown")
    assert holders(mesh, "host/numa0/gpu") == [{"consumer": consumer, "amounts": {"PGPU": "1"}}]
    assert holders(mesh, "host/numa0") == [{"consumer": consumer, "amounts": {"cpu": "2"}}]

    apply(mesh, tmp_path, "wants-gpu")
    await until(lambda: phase(mesh, "wants-gpu") == "Pending", 60, "the card is not given twice")
    assert (await placement.call("DELETE", f"/allocations/{consumer}")).status == 204
    await until(lambda: phase(mesh, "wants-gpu") == "Running", 60, "the group that waited gets it")

    (claim,) = [c async for c in held_by_claims(placement, gpu)]
    refused = await placement.call("DELETE", f"/allocations/{claim}")
    assert refused.status == 409, refused
    assert (await placement.allocate(str(uuid.uuid4()), {gpu: {"PGPU": 1}})).status == 409
    run(mesh, "delete", "application", "wants-gpu")

    async def allocated() -> bool:
        return (await placement.allocate(consumer, {gpu: {"PGPU": 1}})).status == 204

    await eventually(allocated, 60, "what the group gave back can be allocated")
    assert (await placement.call("DELETE", f"/allocations/{consumer}")).status == 204


async def held_by_claims(placement: PlacementClient, provider: str) -> AsyncIterator[str]:
    for consumer in await placement.held(provider):
        found = await placement.done("GET", f"/allocations/{consumer}")
        assert found["consumer_type"] == "MOORAGE_CLAIM" and found["project_id"] == "default"
        yield consumer


async def test_decisions_see_traits_that_clients_add(mesh: Mesh, placement: PlacementClient, tmp_path: Path) -> None:
    await shown(placement)
    gpu, trait = part("numa0/gpu"), "CUSTOM_BLESSED"
    apply(mesh, tmp_path, "wants-blessed", [trait])
    await until(lambda: phase(mesh, "wants-blessed") == "Pending", 60, "no card has the trait")
    assert (await placement.call("PUT", f"/traits/{trait}")).status in (201, 204)
    body = {"resource_provider_generation": await placement.generation(gpu), "traits": [trait]}
    await placement.done("PUT", f"/resource_providers/{gpu}/traits", body)
    await until(lambda: phase(mesh, "wants-blessed") == "Running", 60, "the trait is seen by decisions")
    run(mesh, "delete", "application", "wants-blessed")
    # It stays, whatever dies; and is removed again.
    generation = await placement.generation(gpu)
    mesh.kill("inventory")
    mesh.kill("placement")
    await shown(placement)
    found = await placement.done("GET", f"/resource_providers/{gpu}/traits")
    assert found == {"traits": [trait], "resource_provider_generation": generation}

    def seen() -> list[str]:
        items = {item["id"]: item for item in mesh.http("/v1/parts")["items"]}
        found: list[str] = items["host/numa0/gpu"]["traits"]
        return found

    await until(lambda: seen() == ["BLESSED"], 60, "the inventory after it knows the trait")
    assert (await placement.call("DELETE", f"/resource_providers/{gpu}/traits")).status == 204
    await until(lambda: seen() == [], 60, "the trait is gone")
