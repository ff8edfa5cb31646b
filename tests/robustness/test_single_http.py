"""Requests over connections of their own: answers of every form, broken ones, TLS, and proxies."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from moorage.kube.http_transport import TransportFailed
from moorage.kube.single_http import SingleHttp
from moorage.machines.certificates import Pair, issue, load

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"


@asynccontextmanager
async def serving(answer: Answering, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def saying(answer: bytes) -> Answering:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return say


async def ask(port: int, http: SingleHttp | None = None, *, scheme: str = "http", body: bytes | None = None) -> bytes:
    method = "GET" if body is None else "POST"
    query = {"fieldSelector": "spec.nodeName=n 1"}
    url = f"{scheme}://127.0.0.1:{port}/api"
    answer = await (http or SingleHttp()).send(method, url, query, body, {"Accept": "x"}, anew=False)
    assert (answer.status, answer.content_type) == (200, "application/json")
    return await answer.read()


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 4\r\n\r\nbody" + b"more",
        OK + b"\r\nbody",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\nb\r\n3\r\nody\r\n0\r\nTrailer: t\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length:4\r\n\r\nbody",
        b"HTTP/1.0 200\r\nContent-Type: application/json\r\n\r\nbody",
    ],
    ids=["length", "until-the-end", "chunks", "continue", "old"],
)
async def test_a_body_is_read_in_each_form(answer: bytes) -> None:
    async with serving(saying(answer)) as port:
        assert await ask(port) == b"body"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\nbody",
        OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbo",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-4\r\nbody\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nbody\r\n0\r\n\r\n",
        OK + b"X: " + b"y" * (1 << 17) + b"\r\n\r\n",
        OK + b"X: y\r\n" * 1000 + b"\r\n",
    ],
    ids=["nothing", "ssh", "status", "short", "no-last-chunk", "half-a-chunk", "negative", "size", "line", "lines"],
)
async def test_a_broken_answer_fails(answer: bytes) -> None:
    async with serving(saying(answer)) as port:
        with pytest.raises(TransportFailed):
            await ask(port)


async def test_random_bytes_fail_or_are_an_answer() -> None:
    rng = Random(5)
    for _ in range(60):
        whole = bytearray(OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
        for _ in range(rng.randint(1, 4)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        async with serving(saying(bytes(whole))) as port, asyncio.timeout(30):
            try:
                await (await SingleHttp().send("GET", f"http://127.0.0.1:{port}/", None, None, {}, anew=False)).read()
            except TransportFailed:
                pass


async def test_a_request_is_whole() -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(3))
        await saying_now(writer)

    async def saying_now(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving(note) as port:
        assert await ask(port, body=b"new") == b""
        with pytest.raises(TransportFailed, match="more than one line"):
            await SingleHttp().send("GET", f"http://127.0.0.1:{port}/", None, None, {"A": "x\r\nB: y"}, anew=False)
    head = seen[0].decode()
    assert head.startswith("POST /api?fieldSelector=spec.nodeName%3Dn+1 HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{port}\r\n" in head and "\r\nContent-Length: 3\r\n" in head
    assert head.endswith("\r\n\r\nnew")


async def test_parts_are_read_as_they_come() -> None:
    more = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n")
        await writer.drain()
        await more.wait()
        writer.write(b"2\r\nb\n\r\n0\r\n\r\n")
        await writer.drain()

    async with serving(watch) as port:
        answer = await SingleHttp().send("GET", f"http://127.0.0.1:{port}/", None, None, {}, anew=False)
        assert await answer.read_any() == b"a\n"
        more.set()
        assert [await answer.read_any(), await answer.read_any(), await answer.read_any()] == [b"b\n", b"", b""]


async def test_nobody_there() -> None:
    async with serving(saying(b"")) as port:
        pass
    with pytest.raises(TransportFailed):
        await ask(port)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return issue(["kubernetes.default"], time.time(), 3600)


@pytest.fixture
def server_tls(pair: Pair) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(tls, pair)
    return tls


def client_tls(pair: Pair) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pair.ca.decode())


async def test_tls_is_checked_by_the_name_of_the_server(pair: Pair, server_tls: ssl.SSLContext) -> None:
    async with serving(saying(OK + b"Content-Length: 4\r\n\r\nbody"), server_tls) as port:
        trusting = SingleHttp(client_tls(pair), "kubernetes.default")
        assert await ask(port, trusting, scheme="https") == b"body"
        for wrong in (SingleHttp(client_tls(pair)), SingleHttp(None, "kubernetes.default")):
            with pytest.raises(TransportFailed, match="certificate verify failed"):
                await ask(port, wrong, scheme="https")


@pytest.mark.parametrize("named", ["kubeconfig", "environment"])
async def test_over_a_proxy(
    pair: Pair, server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    seen: list[str] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(head.splitlines()[0])
        if not head.startswith("CONNECT "):
            writer.write(OK + b"Content-Length: 5\r\n\r\nproxy")
            await writer.drain()
            return
        host, _, port = head.split()[1].rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(4096):
                sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with (
        serving(saying(OK + b"Content-Length: 4\r\n\r\nbody"), server_tls) as port,
        serving(pass_on) as proxy,
    ):
        address = f"http://127.0.0.1:{proxy}"
        if named == "environment":
            monkeypatch.setenv("HTTPS_PROXY", address)
            monkeypatch.setenv("http_proxy", address)
        http = SingleHttp(client_tls(pair), "kubernetes.default", address if named == "kubeconfig" else None)
        assert await ask(port, http, scheme="https") == b"body"
        assert seen == [f"CONNECT 127.0.0.1:{port} HTTP/1.1"]
        assert await ask(port, http) == b"proxy"
        assert seen[1].startswith(f"GET http://127.0.0.1:{port}/api?")
        if named == "environment":
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            assert await ask(port, http, scheme="https") == b"body"
            assert len(seen) == 2
        with pytest.raises(TransportFailed, match="none by http"):
            await ask(port, SingleHttp(proxy="socks5://127.0.0.1:1"))
