"""Several intent stores work on the same resources: one of two writers wins, and no child outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest_asyncio

from moorage.bus import Bus, subjects
from moorage.intents.worker import Worker
from moorage.mesh.discovery import installed
from moorage.model.v2_resources import path_of
from moorage_testkit.mesh_client import eventually
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer

PROJECT = {"metadata": {"name": "p"}}
STORES = 3


class Stores:
    def __init__(self, bus: Bus, workers: list[Worker]) -> None:
        self.bus, self.workers = bus, workers

    async def ask(self, verb: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        change = {"verb": verb, "path": path.split("/"), "body": body, **more}
        reply = await self.bus.request(subjects.INTENTS_RESOURCE, msgspec.json.encode(change), timeout=10)
        found: dict[str, Any] = msgspec.json.decode(reply)
        return found

    async def must(self, verb: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        reply = await self.ask(verb, path, body, **more)
        assert reply["accepted"], reply
        return reply

    async def keys(self) -> set[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        mirror = await self.bus.bucket("moorage-resources").mirror(
            lambda key, value, _: found.add(path_of(key)) if value is not None else None
        )
        await mirror.stop()
        return found


@pytest_asyncio.fixture
async def stores(nats: NatsServer, bus: Bus) -> AsyncIterator[Stores]:
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for _ in range(STORES):
            own = await Bus.connect(nats.settings(), worker="intents")
            stack.push_async_callback(own.close)
            worker = Worker(own, installed())
            await worker.start()
            workers.append(worker)
        yield Stores(bus, workers)


def outcomes(replies: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(r["problem"]["code"] if "problem" in r else "done" for r in replies)


async def test_one_of_concurrent_creates_wins(stores: Stores) -> None:
    for number in range(10):
        body = {"metadata": {"name": f"p{number}"}}
        replies = await asyncio.gather(*(stores.ask("create", "projects", body) for _ in range(8)))
        assert outcomes(replies) == ["AlreadyExists"] * 7 + ["done"]


async def test_one_of_concurrent_updates_wins(stores: Stores) -> None:
    seq = (await stores.must("create", "projects", PROJECT))["seq"]
    bodies = [{"metadata": {"name": "p", "description": str(n)}} for n in range(8)]
    replies = await asyncio.gather(*(stores.ask("replace", "projects/p", b, ifMatch=seq) for b in bodies))
    assert outcomes(replies) == ["Changed"] * 7 + ["done"]


async def test_a_resource_is_visible_in_the_other_store_at_once(stores: Stores) -> None:
    await stores.must("create", "projects", PROJECT)
    for number in range(30):  # whoever answers
        name = f"c{number}"
        body = {"metadata": {"name": name}, "spec": {"compositeAppVersion": "v"}}
        await stores.must("create", "projects/p/composite-apps", body)
        await stores.must("create", f"projects/p/composite-apps/{name}/v/apps", {"metadata": {"name": "a"}})
        reply = await stores.ask("delete", f"projects/p/composite-apps/{name}/v")
        assert reply["problem"]["code"] == "HasChildren"
        await stores.must("delete", f"projects/p/composite-apps/{name}/v/apps/a")
        await stores.must("delete", f"projects/p/composite-apps/{name}/v")


async def test_no_child_remains_without_its_parent(stores: Stores) -> None:
    """Different stores create the child and delete the parent at the same moment: one is refused, or the child is deleted."""
    for number in range(60):
        project = f"projects/p{number}"
        await stores.must("create", "projects", {"metadata": {"name": f"p{number}"}})
        cloud = {"metadata": {"name": "c"}}
        made, removed = await asyncio.gather(
            stores.ask("create", f"{project}/logical-clouds", cloud), stores.ask("delete", project)
        )
        assert made["accepted"] or removed["accepted"], (made, removed)

    async def settled() -> bool:
        keys = await stores.keys()
        return all(path[:2] in keys for path in keys if len(path) > 2)

    await eventually(settled, 40, "no child is there without its parent")
    keys = await stores.keys()
    assert [path for path in keys if len(path) > 2 and path[:2] not in keys] == []
    # All stores have the same tree in the end.
    for worker in stores.workers:
        tree = worker._lifecycle.resources.tree
        await until(lambda tree=tree: set(tree.paths()) == keys)  # type: ignore[misc]


async def test_a_collection_is_deleted_as_a_whole_or_not_at_all(stores: Stores) -> None:
    await stores.must("create", "projects", PROJECT)
    for n in range(40):
        await stores.must("create", "projects/p/logical-clouds", {"metadata": {"name": f"c{n}"}})
    await stores.must("create", "projects/p/logical-clouds/c7/kv-pairs", {"metadata": {"name": "k"}})
    reply = await stores.ask("clear", "projects/p/logical-clouds")
    assert reply["problem"]["code"] == "HasChildren"
    assert len(await stores.keys()) == 42
    await stores.must("delete", "projects/p/logical-clouds/c7/kv-pairs/k")
    replies = await asyncio.gather(*(stores.ask("clear", "projects/p/logical-clouds") for _ in range(3)))
    assert "done" in outcomes(replies)
    assert await stores.keys() == {("projects", "p")}


async def test_lifecycle_steps_work_across_stores(stores: Stores) -> None:
    await stores.must("create", "projects", PROJECT)
    body = {"metadata": {"name": "c"}, "spec": {"compositeAppVersion": "v"}}
    await stores.must("create", "projects/p/composite-apps", body)
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
    }
    app = {"metadata": {"name": "a"}, "spec": {"manifests": [manifest]}}
    await stores.must("create", "projects/p/composite-apps/c/v/apps", app)

    async def act(verb: str) -> dict[str, Any]:
        order = {"group": f"p/c/v/{group}", "verb": verb, "repeat": True}
        reply = await stores.bus.request(subjects.INTENTS_ACT, msgspec.json.encode(order), timeout=10)
        found: dict[str, Any] = msgspec.json.decode(reply)
        assert found["accepted"], found
        return found

    for number in range(15):
        group = f"g{number}"
        groups = "projects/p/composite-apps/c/v/deployment-intent-groups"
        await stores.must("create", groups, {"metadata": {"name": group}})
        intent = {"metadata": {"name": "h"}, "spec": {"app": "a"}}
        await stores.must("create", f"{groups}/{group}/hpa-intents", intent)
        steps = [
            await act(verb) for verb in ("approve", "instantiate", "instantiate", "stop", "instantiate", "terminate")
        ]
        assert [s["state"] for s in steps] == [
            "Approved",
            "Instantiated",
            "Instantiated",
            "InstantiateStopped",
            "Instantiated",
            "Terminated",
        ]
        assert [s["revision"] for s in steps] == [1, 1, 1, 1, 2, 2]
        await stores.must("delete", f"{groups}/{group}/hpa-intents/h")
        await stores.must("delete", f"{groups}/{group}")
        assert await stores.bus.bucket("moorage-groups").get(f"p.c.v.{group}") is None
