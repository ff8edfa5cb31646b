"""The Placement interface under kills, suspended workers, a broker that restarts, and clients that race for the same room:
what was answered stays, nothing is given twice, and a reshape is whole or absent."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moorage_testkit.failpoints import Failpoints
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, eventually
from moorage_testkit.placement_client import PlacementClient
from moorage_testkit.polling import until

from .conftest import MakeMesh
from .test_stopped import active

CLIENTS = 8
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh, failpoints: Failpoints) -> Mesh:
    environment = {**failpoints.environment, "MOORAGE_PLACEMENT_HTTP": "127.0.0.1:0"}
    return make_mesh({"clusters": []}, "--workers", "placement=2", environment=environment)


def client_of(mesh: Mesh) -> PlacementClient:
    return PlacementClient(mesh.endpoint["placement"], mesh.endpoint["token"])


@pytest_asyncio.fixture
async def placement(mesh: Mesh) -> AsyncIterator[PlacementClient]:
    async with client_of(mesh) as found:
        yield found


def name() -> str:
    return f"p-{uuid.uuid4()}"


async def until_lost(
    placement: PlacementClient, failpoints: Failpoints, point: str, method: str, path: str, body: Any
) -> None:
    """Sends a request at which a worker dies, so that it has no answer; again where a worker could not take it."""
    async with asyncio.timeout(60):
        while not failpoints.happened(point):
            lost = await placement.once(method, path, body)
            assert lost.status in (0, 503), lost


async def race(placement: PlacementClient, provider: str, each: int) -> tuple[set[str], set[str]]:
    """Clients allocate one unit at a time. Returns the consumers whose allocation was answered, and those that were refused."""
    accepted: set[str] = set()
    refused: set[str] = set()

    async def client() -> None:
        for _ in range(each):
            consumer = str(uuid.uuid4())
            answer = await placement.allocate(consumer, {provider: {"VCPU": 1}})
            if answer.status == 204:
                accepted.add(consumer)
                continue
            assert answer.status == 409, answer
            # An answer that was lost may have been an allocation: the consumer is then not new any more.
            again = answer.body["errors"][0]["code"] == "placement.concurrent_update"
            (accepted if again else refused).add(consumer)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return accepted, refused


async def test_clients_that_race_get_no_more_than_there_is(placement: PlacementClient) -> None:
    provider = await placement.provider(name(), {"VCPU": 30})
    accepted, refused = await race(placement, provider, each=10)
    assert len(accepted) == 30 and len(refused) == CLIENTS * 10 - 30
    assert await placement.used(provider) == {"VCPU": 30}
    assert (await placement.held(provider)).keys() == accepted
    assert await placement.generation(provider) == 1 + 30, "refused writes do not count"


@pytest.mark.parametrize("point", ["placement.committed", "placement.recorded"])
async def test_a_kill_loses_nothing_that_was_answered(
    placement: PlacementClient, failpoints: Failpoints, point: str
) -> None:
    providers = [await placement.provider(name(), {"VCPU": CLIENTS * 12}) for _ in range(2)]
    failpoints.arm(point, nth=3)
    made: list[str] = []

    async def make_others() -> None:
        made.extend([await placement.provider(name(), {"VCPU": 1}) for _ in range(20)])

    others = asyncio.create_task(make_others())
    races = await asyncio.gather(*(race(placement, provider, each=6) for provider in providers))
    await others
    await until(lambda: failpoints.happened(point) > 0, 60, f"a worker dies at {point}")
    for provider, (accepted, refused) in zip(providers, races, strict=True):
        assert not refused and (await placement.held(provider)).keys() == accepted
        assert await placement.used(provider) == {"VCPU": CLIENTS * 6}
    for provider in made:
        assert await placement.used(provider) == {"VCPU": 0}


async def test_a_kill_leaves_no_half_reshape(mesh: Mesh, placement: PlacementClient, failpoints: Failpoints) -> None:
    """VGPU moves from the root to a child together with what consumers hold of it."""
    root = await placement.provider(name(), {"VCPU": 10, "VGPU": 8})
    child = await placement.provider(name(), parent=root)
    consumers = [str(uuid.uuid4()) for _ in range(4)]
    for consumer in consumers:
        assert (await placement.allocate(consumer, {root: {"VCPU": 1, "VGPU": 2}})).status == 204
    body = {
        "inventories": {
            root: {
                "resource_provider_generation": await placement.generation(root),
                "inventories": {"VCPU": {"total": 10}},
            },
            child: {
                "resource_provider_generation": await placement.generation(child),
                "inventories": {"VGPU": {"total": 8}},
            },
        },
        "allocations": {
            consumer: placement.allocation({root: {"VCPU": 1}, child: {"VGPU": 2}}, generation=1)
            for consumer in consumers
        },
    }
    failpoints.arm("placement.reshaped")
    await until_lost(placement, failpoints, "placement.reshaped", "POST", "/reshaper", body)
    assert await placement.used(root) == {"VCPU": 4}
    assert await placement.used(child) == {"VGPU": 8}
    assert await placement.held(child) == {consumer: {"VGPU": 2} for consumer in consumers}
    again = await placement.call("POST", "/reshaper", body)
    assert again.status == 409, "the generations have grown"
    # The records that were written at the start are not written again over a later change.
    await placement.offer(child, {"VGPU": 9})
    mesh.kill("placement")
    shown = await placement.done("GET", f"/resource_providers/{child}/inventories")
    assert shown["inventories"]["VGPU"]["total"] == 9


async def test_a_class_is_renamed_with_what_is_held_of_it(
    mesh: Mesh, placement: PlacementClient, failpoints: Failpoints
) -> None:
    old, new = f"CUSTOM_{uuid.uuid4().hex.upper()}", f"CUSTOM_{uuid.uuid4().hex.upper()}"
    await placement.done("PUT", f"/resource_classes/{old}")
    providers = [await placement.provider(name(), {old: 4}) for _ in range(3)]
    consumer = str(uuid.uuid4())
    assert (await placement.allocate(consumer, {p: {old: 3} for p in providers})).status == 204
    failpoints.arm("placement.reshaped")
    async with PlacementClient(mesh.endpoint["placement"], mesh.endpoint["token"], "1.6") as earlier:
        await until_lost(earlier, failpoints, "placement.reshaped", "PUT", f"/resource_classes/{old}", {"name": new})
    for provider in providers:
        assert await placement.used(provider) == {new: 3}
        assert await placement.held(provider) == {consumer: {new: 3}}
    more = await placement.allocate(str(uuid.uuid4()), {providers[0]: {new: 2}})
    assert more.status == 409, "what is held under the new name counts"
    assert (await placement.call("GET", f"/resource_classes/{new}")).status == 200


@pytest.mark.parametrize("point", ["placement.committed", "placement.recorded"])
async def test_a_suspended_worker_changes_nothing_when_it_resumes(
    mesh: Mesh, driver: MeshClient, failpoints: Failpoints, point: str
) -> None:
    async with client_of(mesh) as placement:
        one = await active(driver, "placement")
        provider, other = [await placement.provider(name(), {"VCPU": 10}) for _ in range(2)]
        failpoints.arm(point, how="STOP")
        consumer, late = str(uuid.uuid4()), str(uuid.uuid4())
        requests = [
            asyncio.create_task(placement.allocate(consumer, {provider: {"VCPU": 4}})),
            asyncio.create_task(placement.offer(other, {"VCPU": 20})),
        ]
        await until(lambda: failpoints.happened(point) == one, 60, f"the active one comes to {point}")
    for request in requests:
        request.cancel()
    try:
        # A new session: connections that the suspended worker has accepted are not answered.
        async with client_of(mesh) as placement:
            had = await placement.held(provider)
            total = await total_of(placement, other)
            answer = await placement.call("PUT", f"/allocations/{late}", placement.allocation({provider: {"VCPU": 5}}))
            assert answer.status == 204
            os.kill(one, signal.SIGCONT)

            async def resumed() -> bool:
                return await active(driver, "placement") != one

            await eventually(resumed, 60, "the one that was suspended stands by")
            assert await placement.held(provider) == {**had, late: {"VCPU": 5}}
            assert await total_of(placement, other) == total
            mesh.kill("placement")
            assert await placement.held(provider) == {**had, late: {"VCPU": 5}}, "what is stored is what was shown"
            assert await total_of(placement, other) == total
    finally:
        os.kill(one, signal.SIGCONT) if alive(one) else None


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def total_of(placement: PlacementClient, provider: str) -> int:
    shown = await placement.done("GET", f"/resource_providers/{provider}/inventories/VCPU")
    found: int = shown["total"]
    return found


async def test_the_broker_restarts(mesh: Mesh, placement: PlacementClient) -> None:
    provider = await placement.provider(name(), {"VCPU": CLIENTS * 20})
    racing = asyncio.create_task(race(placement, provider, each=10))

    async def under_way() -> bool:
        return len(await placement.held(provider)) > 5

    await eventually(under_way, 60, "allocations come in")
    mesh.kill("nats")
    accepted, refused = await racing
    assert not refused and (await placement.held(provider)).keys() == accepted
    mesh.kill("placement")
    assert (await placement.held(provider)).keys() == accepted


async def test_generations_begin_anew_with_a_provider_made_again(mesh: Mesh, placement: PlacementClient) -> None:
    for restart in (False, True):
        ident, consumer = str(uuid.uuid4()), str(uuid.uuid4())
        await placement.provider(name(), {"VCPU": 1}, ident=ident)
        assert (await placement.allocate(consumer, {ident: {"VCPU": 1}})).status == 204
        assert await placement.generation(ident) == 2
        await placement.done("DELETE", f"/allocations/{consumer}")
        await placement.done("DELETE", f"/resource_providers/{ident}")
        if restart:
            mesh.kill("placement")
        await placement.provider(name(), ident=ident)
        assert await placement.generation(ident) == 0
        other = await placement.provider(name(), {"VCPU": 1})
        assert (await placement.allocate(consumer, {other: {"VCPU": 1}})).status == 204
        mesh.kill("placement")
        assert await placement.generation(ident) == 0
        await placement.offer(ident, {"VCPU": 1})
        assert (await placement.allocate(str(uuid.uuid4()), {ident: {"VCPU": 1}})).status == 204
        assert await placement.generation(ident) == 2


@pytest.mark.parametrize(
    ("point", "nth"),
    [("", 0), ("placement.recorded", 1), ("placement.recorded", 3), ("placement.recorded", 5)]
    + [("placement.committed", nth) for nth in (1, 2, 3)],
)
async def test_each_change_is_one_event(
    mesh: Mesh, placement: PlacementClient, failpoints: Failpoints, point: str, nth: int
) -> None:
    """Also if the worker dies between a change and its event."""
    provider, consumer = str(uuid.uuid4()), str(uuid.uuid4())
    custom = f"CUSTOM_{uuid.uuid4().hex.upper()}"
    at, held = f"/resource_providers/{provider}", f"/allocations/{consumer}"
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/resource_providers", {"name": name(), "uuid": provider}),
        ("PUT", f"{at}/inventories", {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}),
        ("PUT", f"/traits/{custom}", None),
        ("PUT", f"{at}/traits", {"resource_provider_generation": 1, "traits": [custom]}),
        ("PUT", held, placement.allocation({provider: {"VCPU": 1}})),
        ("PUT", held, placement.allocation({provider: {"VCPU": 2}}, generation=1)),
        ("PUT", at, {"name": name()}),
        ("DELETE", held, None),
        ("DELETE", at, None),
        ("DELETE", f"/traits/{custom}", None),
    ]
    if point:
        failpoints.arm(point, nth=nth)
    for method, path, body in requests:
        again = failpoints.happened(point) if point else 0
        answer = await placement.call(method, path, body)
        # A request whose answer was lost finds its own change.
        lost = point and failpoints.happened(point) != again
        assert answer.status < 300 or (lost and answer.status in (404, 409)), (method, path, answer)
    assert not point or failpoints.happened(point)
    expected = [
        (f"provider.created.{provider}", []),
        (f"provider.changed.{provider}", ["inventories"]),
        (f"provider.changed.{provider}", ["traits"]),
        (f"allocation.created.{consumer}", {provider: {"VCPU": 1}}),
        (f"allocation.changed.{consumer}", {provider: {"VCPU": 2}}),
        (f"provider.changed.{provider}", ["name"]),
        (f"allocation.deleted.{consumer}", {}),
        (f"provider.deleted.{provider}", []),
        (f"trait.created.{custom}", "trait"),
        (f"trait.deleted.{custom}", "trait"),
    ]
    shown: list[tuple[str, Any]] = []

    async def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for ident in (provider, consumer, custom):
            path = f"/v1/events?subject=moorage.events.placement.*.*.{ident}&follow=false&limit=500"
            found += (await asyncio.to_thread(mesh.http, path))["items"]
        return found

    async def all_there() -> bool:
        nonlocal shown
        shown = []
        for event in await events():
            data = event["data"]
            what = data.get("changed", []) if "provider" in data else data.get("kind") or data.get("allocations", {})
            shown.append((event["subject"].removeprefix("moorage.events.placement."), what))
        return len(shown) >= len(expected)

    await eventually(all_there, 60, "all events are published")
    mesh.kill("placement")  # the next one compares what is recorded with what is kept
    await placement.provider(name())
    assert await all_there()
    assert sorted(shown, key=repr) == sorted(expected, key=repr)
    if not point:
        assert all(event["cause"].startswith("req-") for event in await events())


async def test_a_backup_has_trees_and_allocations(mesh: Mesh, placement: PlacementClient, tmp_path: Path) -> None:
    root = await placement.provider(name(), {"VCPU": 4})
    child = await placement.provider(name(), {"VGPU": 2}, parent=root)
    await placement.offer(root, {"VCPU": 4, "MEMORY_MB": 64})
    consumer = str(uuid.uuid4())
    assert (await placement.allocate(consumer, {root: {"VCPU": 1}, child: {"VGPU": 1}})).status == 204
    before = await shown(placement, root, child, consumer)
    file = tmp_path / "mesh.backup"
    assert (await mesh.arun("backup", str(file))).returncode == 0
    again = Mesh(state=tmp_path / "again")
    assert again.run("restore", str(file)).returncode == 0
    try:
        await asyncio.to_thread(again.start)
        async with client_of(again) as restored:
            assert await shown(restored, root, child, consumer) == before
            assert (await restored.allocate(str(uuid.uuid4()), {root: {"VCPU": 4}})).status == 409
            assert (await restored.allocate(str(uuid.uuid4()), {root: {"VCPU": 3}})).status == 204
    finally:
        await asyncio.to_thread(again.stop)


async def shown(placement: PlacementClient, *things: str) -> list[Any]:
    *providers, consumer = things
    found = [await placement.done("GET", f"/allocations/{consumer}")]
    found.append(await placement.done("GET", f"/resource_providers?in_tree={providers[0]}"))
    for provider in providers:
        found.append(await placement.done("GET", f"/resource_providers/{provider}"))
        found.append(await placement.done("GET", f"/resource_providers/{provider}/inventories"))
    return found
