"""Drives a whole mesh from a test: sends documents over the bus, reads results from the log and the gateway, and runs an
action when a given message is seen, so that a fault comes at a named point and not after a guess of milliseconds."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from moorage.bus import MAX_PAYLOAD, Bus, NoAnswer, subjects
from moorage.ledger import LOG, Ledger, open_ledger

from .invariants import Room, read_log, room_now, violations, wrong_since
from .mesh import Mesh
from .polling import LEAST

GONE = "Gone"


def group(name: str) -> str:
    return f"default/{name}/v1/default"


def application(
    name: str, *, cpu: str = "1", pods: int = 1, clusters: int = 1, on: str = "", image: str = "i"
) -> dict[str, Any]:
    """Returns a document of one app with one Deployment; `on` names the only cluster that may run it."""
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}]},
            },
        },
    }
    app: dict[str, Any] = {"name": "web", "replicas": clusters, "manifests": [deployment]}
    app["consumers"] = [
        {
            "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "container": "c",
            "needs": [{"resource": "cpu", "requests": cpu}],
        }
    ]
    if on:
        app["placement"] = {"allOf": [{"cluster": on}]}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [app]},
    }


def fleet(clusters: int, cpu: int, **behaviour: int) -> dict[str, Any]:
    """Returns a fleet of clusters `lab/c-0`, `lab/c-1`, … with one node each, so that pods run on the node of their
    claim."""
    nodes = [{"name": "n", "allocatable": {"cpu": str(cpu), "memory": "16Gi", "pods": "110"}}]
    named = [
        {"name": f"c-{i}", "provider": "lab", "labels": {"number": str(i)}, "nodes": nodes, "behaviour": behaviour}
        for i in range(clusters)
    ]
    return {"clusters": named}


def room(document: Mapping[str, Any]) -> Room:
    """Returns the capacity of a fleet of `fleet()`, for `violations`."""
    return {
        f"{c['provider']}/{c['name']}": {
            n["name"]: {"cpu": int(n["allocatable"]["cpu"]) * 1000, "pods": 110, "memory": 16 << 30} for n in c["nodes"]
        }
        for c in document["clusters"]
    }


async def eventually(condition: Callable[[], Awaitable[object]], seconds: float, what: str) -> None:
    """Waits until an awaited condition holds. An unreachable worker counts as not yet."""
    last: object = None
    seconds = max(seconds, LEAST)
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if last := await condition():
                        return
                except (NoAnswer, OSError) as error:
                    last = error
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what} (last: {last!r})") from None


class MeshClient:
    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.acknowledged: dict[str, int] = {}  # group → revision whose storage was acknowledged

    async def __aenter__(self) -> Self:
        self.bus = await Bus.connect(self.mesh.settings, worker="admin")
        self._follower = await open_ledger(self.bus)
        self._room = await room_now(self.mesh.settings.redis_url)
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self.mesh.process is not None:  # else the test has ended it
                await self.check()
        finally:
            await self.bus.close()

    async def check(self) -> None:
        """Asserts that the log never claimed more than a known node has, or had when the test began."""
        assert await wrong_since(self._room, self.mesh.settings) == []

    @property
    def ledger(self) -> Ledger:
        return self._follower.ledger

    async def folded(self, seq: int, seconds: float = 40) -> None:
        """Waits until `ledger` has everything up to this commit."""
        async with asyncio.timeout(seconds):
            await self._follower.wait(seq)

    async def ask(self, subject: str, body: Any, *, timeout: float = 1.0) -> dict[str, Any]:
        """Sends a request, repeatedly while nobody answers: every request is safe to repeat."""
        payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
        end = asyncio.get_running_loop().time() + 30
        last: object = None
        while asyncio.get_running_loop().time() < end:
            try:
                answer: dict[str, Any] = msgspec.json.decode(await self.bus.request(subject, payload, timeout=timeout))
            except NoAnswer as error:
                last = error
            else:
                if (answer.get("problem") or {}).get("status") not in (500, 503):
                    return answer
                last = answer
            await asyncio.sleep(0.1)
        raise AssertionError(f"{subject}: no answer within 30 s; the last was {last!r}")

    async def apply(self, document: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self.ask(subjects.INTENTS_APPLY, document)
        assert answer["accepted"], answer
        self.acknowledged[answer["group"]] = answer["revision"]
        return answer

    async def http(self, path: str, body: Any = None, *, method: str = "") -> Any:
        return await asyncio.to_thread(lambda: self.mesh.http(path, body, method=method))

    async def why(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.http(f"/v1/groups/{group(name)}/why")
        return found

    async def phases(self) -> dict[str, str]:
        """Returns the phase of each group. What these are made of is in `ledger` then, too."""
        found = {item["group"]: item["phase"] for item in (await self.http("/v1/groups"))["items"]}
        await self.folded(await self.bus.log(LOG).last())
        return found

    async def phase(self, name: str) -> str:
        return (await self.phases()).get(group(name), GONE)

    async def until_phase(self, name: str, *phases: str, seconds: float = 40) -> None:
        async def reached() -> object:
            return await self.phase(name) in phases

        await eventually(reached, seconds, f"{name} is {' or '.join(phases)}")

    async def delete(self, names: Iterable[str], seconds: float = 45) -> None:
        """Deletes applications and waits until all are gone. Repeats the request for those that are left, because the worker
        that took the request may have died with it."""
        wanted = {group(name): name for name in names}

        async def gone() -> bool:
            left = [wanted[g] for g in await self.phases() if g in wanted]
            await asyncio.gather(*(self._delete(name) for name in left))
            for _ in range(20):
                if not wanted.keys() & (await self.phases()).keys():
                    return True
                await asyncio.sleep(0.1)
            return False

        await eventually(gone, seconds, f"{len(wanted)} applications are deleted")

    async def _delete(self, name: str) -> None:
        try:
            await self.http(f"/v1/applications/default/{name}", method="DELETE")
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409, 500, 503):
                raise

    async def violations(self, room: Room) -> list[str]:
        ledger, commits = await read_log(self.bus)
        return violations(commits, room, ledger)

    @asynccontextmanager
    async def at(
        self, subject: str | Sequence[str], act: Callable[[], object], nth: int = 1
    ) -> AsyncIterator[asyncio.Event]:
        """Calls `act` once within the block, when the nth message on the subject (or on any of several) is seen, and then
        sets the event."""
        seen = 0
        done = asyncio.Event()

        def heard(_subject: str, _data: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == nth:
                act()
                done.set()

        every = [subject] if isinstance(subject, str) else subject
        subscriptions = [await self.bus.subscribe(one, heard, max_bytes=MAX_PAYLOAD) for one in every]
        try:
            yield done
        finally:
            for subscription in subscriptions:
                await subscription.unsubscribe()


def problem_of(error: urllib.error.HTTPError) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(error.read())
    return found
