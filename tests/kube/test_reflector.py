"""Takes the reflector through all failures of a server: it misses nothing, reports nothing as new twice, and does not
overload a failing server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from moorage.kube import Api, ApiError, Object, Reflector, list_objects, reflector
from moorage.kube.http_transport import Transport
from moorage.kube.objects import Key
from moorage.kube.pooled_http import PooledHttp
from moorage.kube.single_http import SingleHttp
from moorage_testkit.polling import until
from moorage_testkit.scripted_api import ScriptedServer

NODES = "/api/v1/nodes"
_decode = msgspec.json.Decoder(Object).decode


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        server.collections[NODES] = {}
        yield server


class Seen:
    def __init__(self, server: ScriptedServer, transport: Transport) -> None:
        self.api = Api(server.url, transport=transport)
        self.names: dict[str, str] = {}
        self.dropped: list[str] = []
        self.reflector = Reflector(self.api, NODES, _decode, self._put, self._drop)
        self.task = asyncio.ensure_future(self.reflector.run())

    def _put(self, key: Key, found: Object) -> None:
        self.names[key.name] = found.metadata.uid

    def _drop(self, key: Key, uid: str) -> None:
        self.dropped.append(uid)
        if self.names.get(key.name) == uid:
            del self.names[key.name]

    async def agrees(self, server: ScriptedServer, seconds: float = 5) -> None:
        def same() -> bool:
            return self.names == {n: o["metadata"]["uid"] for n, o in server.collections[NODES].items()}

        await until(same, seconds, "the view is what is there")


#: Runs a test over connections that are kept, and over one for each request.
BOTH = pytest.mark.parametrize("seen", [PooledHttp, SingleHttp], indirect=True)


@pytest_asyncio.fixture
async def seen(server: ScriptedServer, request: pytest.FixtureRequest) -> AsyncIterator[Seen]:
    await server.put(NODES, "a")
    seen = Seen(server, getattr(request, "param", PooledHttp)())
    await until(lambda: "a" in seen.names)
    yield seen
    seen.task.cancel()
    await asyncio.gather(seen.task, return_exceptions=True)
    await seen.api.close()


@BOTH
async def test_changes_are_watched(server: ScriptedServer, seen: Seen) -> None:
    await server.put(NODES, "b")
    await server.drop(NODES, "a")
    await seen.agrees(server)
    lists = [what for _, what in server.requests if "watch" not in what]
    assert len(lists) == 1


@BOTH
async def test_lists_are_paged_and_restarted_when_a_page_expires(
    server: ScriptedServer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "PAGE_SIZE", 3)
    for i in range(10):
        await server.put(NODES, f"n{i}")
    await seen.agrees(server)
    server.page_expires = True
    server.forgotten = server.version + 1
    server.version += 1
    server.cut()
    server.collections[NODES].pop("n3")
    await seen.agrees(server)


@pytest.mark.parametrize("form", ["event", "http", "list"])
async def test_after_resource_version_too_old_missed_deletions_are_reported(
    server: ScriptedServer, seen: Seen, form: str
) -> None:
    """Objects deleted during a gap are dropped, and one created anew with the same name is a new one."""
    await server.put(NODES, "b")
    await server.put(NODES, "gone")
    await seen.agrees(server)
    old = seen.names["b"]
    server.fault = lambda request: "410" if form == "http" and request.query.get("watch") else "hang"
    if form != "http":
        server.fault = lambda request: "abort"
    server.cut()
    del server.collections[NODES]["gone"]
    del server.collections[NODES]["b"]
    await server.put(NODES, "b")
    server.version += 10
    server.forgotten = server.version
    server.page_expires = form == "list"
    await asyncio.sleep(0.3)
    server.fault = lambda request: ""
    await seen.agrees(server)
    assert old in seen.dropped and seen.names["b"] != old


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        *((fault, PooledHttp) for fault in ("html", "abort", "500", "429", "close", "junk", "partial", "410")),
        *((fault, SingleHttp) for fault in ("abort", "close", "partial")),
    ],
    indirect=["seen"],
)
async def test_a_failing_server_gets_at_most_two_requests_a_second(
    server: ScriptedServer, seen: Seen, fault: str
) -> None:
    server.fault = lambda request: fault if fault != "410" or request.query.get("watch") else ""
    server.cut()
    since = time.monotonic()
    await asyncio.sleep(4)
    assert server.count(since) <= 8, f"{server.count(since)} requests in 4 s"
    await server.drop(NODES, "a")
    await server.put(NODES, "b")
    server.fault = lambda request: ""
    await seen.agrees(server)


@BOTH
async def test_the_reflector_survives_a_restart_of_the_server(server: ScriptedServer, seen: Seen) -> None:
    await server.refuse()
    since = time.monotonic()
    await asyncio.sleep(2)
    await server.put(NODES, "b")
    await server.listen()
    await seen.agrees(server)
    assert server.count(since) <= 4


@BOTH
async def test_a_half_open_connection_is_detected(
    server: ScriptedServer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open without data. Timeouts are a twentieth of the real ones."""
    low, high = reflector.IDLE_TIMEOUT
    assert high < 60
    monkeypatch.setattr(reflector, "IDLE_TIMEOUT", (low / 20, high / 20))
    async with asyncio.timeout(30):
        while len(server.requests) < 3:  # until the watch is one with the short timeouts
            server.cut()
            await asyncio.sleep(0.1)
    server.fault = lambda request: "silent"
    await server.put(NODES, "b")
    await asyncio.sleep(0.1)
    assert "b" not in seen.names
    server.fault = lambda request: ""
    await seen.agrees(server, 30)


async def test_a_temporary_403_loses_nothing(server: ScriptedServer, seen: Seen) -> None:
    """A server that has just started answers 403 until it has read its rules."""
    server.fault = lambda request: "403"
    server.cut()
    await until(lambda: bool(seen.reflector.absent), 40)
    assert "a" in seen.names
    server.fault = lambda request: ""
    await server.put(NODES, "b")
    await seen.agrees(server)
    assert not seen.reflector.absent


async def test_an_unserved_kind_is_reported(server: ScriptedServer) -> None:
    api = Api(server.url)
    follower = Reflector(api, "/apis/none/v1/things", _decode, lambda *_: None, lambda *_: None)
    task = asyncio.ensure_future(follower.run())
    await asyncio.wait_for(follower.synced.wait(), 30)
    assert follower.absent and not follower.listed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await api.close()


async def test_several_reflectors_share_one_backoff(server: ScriptedServer) -> None:
    """Six reflectors, as in an agent, make at most two requests a second together and recover soon after."""
    paths = [f"/api/v1/kind{i}" for i in range(6)]
    for path in paths:
        server.collections[path] = {}
        await server.put(path, "x")
    api = Api(server.url)
    found: dict[str, set[str]] = {path: set() for path in paths}

    def put(path: str) -> Callable[[Key, Any], None]:
        return lambda key, _: found[path].add(key.name)

    tasks = [asyncio.ensure_future(Reflector(api, path, _decode, put(path), lambda *_: None).run()) for path in paths]
    await until(lambda: all(found.values()))
    await until(lambda: sum("watch" in what for _, what in server.requests) >= 6)
    await asyncio.sleep(1.1)
    for fault in ("html", "close"):
        server.fault = lambda request, fault=fault: fault  # type: ignore[misc]
        server.cut()
        since = time.monotonic()
        await asyncio.sleep(5)
        assert server.count(since) <= 10, f"{fault}: {server.count(since)} requests in 5 s"
        for path in paths:
            await server.put(path, fault)
        server.fault = lambda request: ""
        await until(lambda fault=fault: all(fault in names for names in found.values()), 40, "all are well")  # type: ignore[misc]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await api.close()


async def test_a_refusal_has_the_message_of_the_server(server: ScriptedServer) -> None:
    async def other(request: web.Request, path: str) -> web.StreamResponse:
        return web.json_response(
            {"kind": "Status", "code": 422, "reason": "Invalid", "message": "spec.x: must be y"}, status=422
        )

    server.other = other  # type: ignore[method-assign]
    api = Api(server.url)
    with pytest.raises(ApiError, match=r"spec\.x: must be y") as caught:
        await api.call("PATCH", "/x", body=b"{}")
    assert caught.value.code == 422 and not caught.value.is_transient
    await api.close()


async def test_a_collection_is_listed_in_pages(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "PAGE_SIZE", 3)
    for i in range(7):
        await server.put(NODES, f"n{i}")
    api = Api(server.url)
    try:
        names = [found["metadata"]["name"] async for found in list_objects(api, NODES, "x=y")]
    finally:
        await api.close()
    assert names == [f"n{i}" for i in range(7)]
    assert len(server.requests) == 3 and all("labelSelector=x" in what for _, what in server.requests)
