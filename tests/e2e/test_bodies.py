"""Sends request bodies of any kind: small bodies that would expand too far are refused before they do, and REST and NATS
refuse the same bytes with the same code."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import psutil
import pytest
import pytest_asyncio

from moorage.bus import Bus, subjects
from moorage.parsing import yaml_json
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

YAML = "application/yaml"


def nested_aliases(first: str, each: str, levels: int = 9) -> str:
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {each.format(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "lists": nested_aliases("[x]", "[{}]"),
    "merged": nested_aliases("{k: v, l: w}", "{{<<: [{}]}}"),
    "texts": f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 100}]",
    "deep": "a: " + "[" * 600_000,
}


@pytest.fixture
def rest(example: Mesh) -> HttpClient:
    return HttpClient(example, "")


@pytest_asyncio.fixture
async def bus(example: Mesh) -> AsyncIterator[Bus]:
    bus = await Bus.connect(example.settings, worker="admin")
    yield bus
    await bus.close()


def memory(mesh: Mesh) -> int:
    return sum(psutil.Process(pid).memory_info().rss for kind in ("gateway", "intents") for pid in mesh.pids(kind))


@pytest.mark.parametrize("bomb", BOMBS)
async def test_compression_and_yaml_bombs_are_refused(example: Mesh, rest: HttpClient, bus: Bus, bomb: str) -> None:
    text = BOMBS[bomb].encode()
    before, pids = memory(example), example.pids("gateway") + example.pids("intents")
    routes = ["/v1/apply", "/v1/apply?dryRun=true", "/v1/simulate", "/v1/sim/clusters", "/v2/projects"]
    answered = [rest("POST", path, text, kind=YAML) for path in routes]
    answered.append(rest.upload("POST", "/v2/projects/p/composite-apps/a/v1/apps", {"metadata": {"name": "x"}}, text))
    part = b'--b\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n' + text + b"\r\n--b--\r\n"
    answered.append(rest("POST", "/v2/projects", part, kind="multipart/form-data; boundary=b"))
    assert {one.status for one in answered} <= {400, 404, 413}
    reply = msgspec.json.decode(await bus.request(subjects.INTENTS_APPLY, text, timeout=30))
    assert reply["accepted"] is False and reply["problem"]["code"] == answered[0].code
    assert example.pids("gateway") + example.pids("intents") == pids, "nobody died of it"
    assert memory(example) - before < 200 << 20


SAME = {
    "nothing": b"",
    "white": b" \n",
    "null": b"null",
    "a comment": b"# nothing",
    "cut off": b'{"kind": ',
    "text": b'"x"',
    "a number": b"7",
    "no list of documents": b"[]",
    "a list of others": b"[1]",
    "bytes": b"\xff\xfe\x00",
    "too deep": b"[" * 100_000,
    "deep": b'{"kind":' + b"[" * 80 + b"]" * 80 + b"}",
    "unknown": b'{"kind": 3}',
    "much": b" " * yaml_json.MAX_BYTES + b"{}",
    "many": b'{"a":[' + b"[]," * 110_000 + b"[]]}",
    "several wholes": b'{"kind": "Application"}{"kind": "Application"}',
}


@pytest.mark.parametrize("what", SAME)
async def test_rest_and_nats_answer_alike(rest: HttpClient, bus: Bus, what: str) -> None:
    problem = msgspec.json.decode(await bus.request(subjects.INTENTS_APPLY, SAME[what], timeout=30))["problem"]
    for path in ("/v1/apply", "/v1/apply?dryRun=true", "/v1/simulate"):
        answered = rest("POST", path, SAME[what], kind=YAML)
        assert (answered.status, answered.code) == (problem["status"], problem["code"]), answered.body
        assert answered.headers["content-type"] == "application/problem+json"


def test_bodies_of_unauthorized_callers_are_not_read(rest: HttpClient) -> None:
    token = rest.must(201, "POST", "/v1/tokens", {"name": "only-reads", "role": "viewer"})["token"]
    try:
        answered = rest("POST", "/v1/apply", b"{", token=token)
        assert (answered.status, answered.code) == (403, "Forbidden")
        assert rest("POST", "/v1/apply?dryRun=true", b"{", token=token).code == "Undecodable"
    finally:
        rest.must(204, "DELETE", "/v1/tokens/only-reads")
