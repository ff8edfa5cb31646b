"""Measures what the gateway costs: a POST that is durable beside a handler that does only that; long lists; many who listen; a
start with much stored."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import aiohttp
import msgspec
import psutil

from moorage.bus import Bus
from moorage.intents.core import transitions, validate
from moorage.model.names import group_tokens
from moorage_testkit.mesh import Mesh

from .harness import Figure, beside, percentiles

POSTS = 2000
GROUPS = 10_000
WATCHERS = 1000
_GROUP = "/v2/projects/bench/composite-apps/shop/v1/deployment-intent-groups"
_CONSUMERS = f"{_GROUP}/g/hpa-intents/i/hpa-resource-consumers"
_NEEDS = f"{_CONSUMERS}/c/resource-requirements"
_PARENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v2/projects", {"metadata": {"name": "bench"}}),
    ("/v2/projects/bench/composite-apps", {"metadata": {"name": "shop"}, "spec": {"compositeAppVersion": "v1"}}),
    ("/v2/projects/bench/composite-apps/shop/v1/apps", {"metadata": {"name": "a"}}),
    (_GROUP, {"metadata": {"name": "g"}}),
    (f"{_GROUP}/g/hpa-intents", {"metadata": {"name": "i"}, "spec": {"app": "a"}}),
    (
        _CONSUMERS,
        {
            "metadata": {"name": "c"},
            "spec": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "container": "c"},
        },
    ),
)
_names = itertools.count()


def requirement() -> bytes:
    resource = {"name": "cpu", "requests": 4, "limits": 4}
    spec = {"mandatory": True, "allocatable": True, "resource": resource}
    return msgspec.json.encode({"metadata": {"name": f"need-{next(_names)}"}, "spec": spec})


async def _posts(http: aiohttp.ClientSession, url: str, clients: int, times: int) -> list[float]:
    """Milliseconds each, from so many that go on as soon as they are answered."""
    samples: list[float] = []

    async def client(share: int) -> None:
        for _ in range(share):
            body = requirement()
            start = time.perf_counter()
            async with http.post(url, data=body, headers={"Content-Type": "application/json"}) as reply:
                await reply.read()
                assert reply.status == 201, await reply.text()
            samples.append((time.perf_counter() - start) * 1e3)

    await asyncio.gather(*(client(times // clients) for _ in range(clients)))
    return samples


async def posts() -> list[Figure]:
    figures = []
    with Mesh() as mesh:
        for path, body in _PARENTS:
            mesh.http(path, body)
        headers = {"Authorization": f"Bearer {mesh.endpoint['token']}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            beside(mesh.settings, "tests.bench.bare") as (_, bare),
            aiohttp.ClientSession(headers=headers, connector=connector) as http,
        ):
            url = mesh.endpoint["http"].rstrip("/") + _NEEDS
            for clients in (1, 32):
                ours: list[float] = []
                floor: list[float] = []
                await _posts(http, url, clients, 200)
                await _posts(http, bare, clients, 200)
                for _ in range(5):  # in turns, so that both see the same machine
                    floor += await _posts(http, bare, clients, POSTS // 5)
                    ours += await _posts(http, url, clients, POSTS // 5)
                least, _ = percentiles(floor)
                name = f"POST of a requirement, durable, {clients} client{'s' if clients > 1 else ''}"
                parts = {"bare handler and one durable publish": least}
                figures.append(Figure.of(name, ours, "<= 2 x the floor", p50=2 * least, floor=parts))
    return figures


async def _store(mesh: Mesh, count: int) -> None:
    """Groups as the intent store writes them, none of which ever ran."""
    bus = await Bus.connect(mesh.settings, worker="admin")
    bucket = bus.bucket("moorage-groups")

    async def put(number: int) -> None:
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {
                        "containers": [
                            {"name": "c", "image": "registry.example/web:1", "resources": {"requests": {"cpu": "1"}}}
                        ]
                    },
                },
            },
        }
        data = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "Application",
            "metadata": {"name": f"stored-{number:05}", "labels": {"number": str(number)}},
            "spec": {"apps": [{"name": "web", "manifests": [deployment]}]},
        }
        given = validate.application(data)
        record = transitions.apply_document(None, given, data, [], "2026-01-01T00:00:00.000Z").record
        assert record is not None
        record.state = "Approved"
        await bucket.put(group_tokens(record.group), msgspec.json.encode(record))

    for start in range(0, count, 200):
        await asyncio.gather(*(put(n) for n in range(start, min(start + 200, count))))
    await bus.close()


async def lists() -> list[Figure]:
    """Also the start: the gateway is killed and comes again with everything stored."""
    with Mesh() as mesh:
        await _store(mesh, GROUPS)
        before = mesh.pids("gateway")
        mesh.kill("gateway")
        started = time.perf_counter()
        while mesh.pids("gateway") in ([], before):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        spawned = time.perf_counter()
        headers = {"Authorization": f"Bearer {mesh.endpoint['token']}"}
        url = mesh.endpoint["http"].rstrip("/")
        async with aiohttp.ClientSession(headers=headers) as http:
            while True:
                try:
                    async with http.get(f"{url}/readyz") as ready:
                        if ready.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.005)
            seconds = time.perf_counter() - spawned
            samples: list[float] = []
            for _ in range(105):
                start = time.perf_counter()
                async with http.get(f"{url}/v1/groups") as reply:
                    page = msgspec.json.decode(await reply.read())
                samples.append((time.perf_counter() - start) * 1e3)
            assert len(page["items"]) == 500 and page["continue"], len(page["items"])
            async with http.get(f"{url}/v1/groups", params={"limit": "5000"}) as reply:
                await reply.read()
        (pid,) = mesh.pids("gateway")
        process = psutil.Process(pid)
        memory = process.memory_info().rss / 1e6
    noticed = f"{(spawned - started) * 1e3:.0f} ms to be noticed"
    stored = f"with {GROUPS:,} groups stored"
    return [
        Figure.of(f"GET of a list of {GROUPS:,} groups, first page", samples[5:], "<= 10 ms", p50=10),
        Figure.of(f"start of the gateway {stored} ({noticed})", [seconds * 1e3], "<= 3 s", p50=3000),
        Figure.of(f"memory of the gateway {stored} and listed (RSS)", [memory], "<= 250 MB", p50=250, unit="MB"),
    ]


async def watchers() -> list[Figure]:
    """From the publication of an event until each of many has it."""
    subject = "moorage.events.intents.accepted.bench.shop.v1.default"
    latest: list[float] = []
    with Mesh() as mesh:
        bus = await Bus.connect(mesh.settings, worker="admin")
        host, port = mesh.endpoint["http"].removeprefix("http://").rstrip("/").split(":")
        head = (
            f"GET /v1/events?subject={subject} HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {mesh.endpoint['token']}\r\n\r\n"
        ).encode()
        heard: list[float] = []
        everybody = asyncio.Event()

        class Listener(asyncio.Protocol):
            """Counts events as cheaply as possible, for listeners share the machine with the gateway."""

            def __init__(self) -> None:
                self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.write(head)  # type: ignore[attr-defined]

            def data_received(self, data: bytes) -> None:
                if b"data: {" in data:
                    heard.append(time.perf_counter())
                    if len(heard) == WATCHERS:
                        everybody.set()
                elif b": listening" in data and not self.ready.done():
                    self.ready.set_result(None)

        loop = asyncio.get_running_loop()
        listeners = []
        for _ in range(WATCHERS):
            transport, one = await loop.create_connection(Listener, host, int(port))
            listeners.append((transport, one))
            await one.ready
        for number in range(20):
            heard.clear()
            everybody.clear()
            start = time.perf_counter()
            await bus.emit(subject, {"group": "bench/shop/v1/default", "revision": number})
            async with asyncio.timeout(30):
                await everybody.wait()
            latest.append((heard[-1] - start) * 1e3)
            await asyncio.sleep(0.1)
        for transport, _ in listeners:
            transport.close()
        await bus.close()
    return [Figure.of(f"one event to {WATCHERS:,} watchers, the last one has it", latest, "<= 100 ms", p50=100)]
