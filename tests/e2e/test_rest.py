"""Tests `/v1`: tokens, problem documents, pages, limits and streams."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from moorage.bus import Bus
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until


def ask(
    mesh: Mesh,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    kind: str = "application/json",
) -> tuple[int, dict[str, str], Any]:
    address = urlsplit(mesh.endpoint["http"])
    assert address.hostname == "127.0.0.1", "loopback by default"
    conn = http.client.HTTPConnection(address.hostname, address.port or 80, timeout=60)
    headers = {"Authorization": f"Bearer {mesh.endpoint['token'] if token is None else token}", "Content-Type": kind}
    if token == "":
        del headers["Authorization"]
    try:
        conn.request(method, path, body, headers)
        reply = conn.getresponse()
        data = reply.read()
        found = {k.lower(): v for k, v in reply.getheaders()}
        return reply.status, found, json.loads(data) if "json" in found.get("content-type", "") else data
    finally:
        conn.close()


def problem(answered: tuple[int, dict[str, str], Any], status: int, code: str) -> dict[str, Any]:
    got, headers, body = answered
    assert got == status, body
    assert headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "detail", "errors"} <= set(body)
    assert (body["status"], body["code"]) == (status, code)
    found: dict[str, Any] = body
    return found


def test_requests_need_the_token(example: Mesh) -> None:
    for path in ("/v1/groups", "/v1/nonsense", "/nonsense"):
        answered = ask(example, "GET", path, token="")
        problem(answered, 401, "Unauthorized")
        assert answered[1]["www-authenticate"].startswith("Bearer")
    problem(ask(example, "POST", "/v1/apply", b"{}", token="wrong"), 401, "Unauthorized")


def test_probes_and_metrics_need_no_token(example: Mesh) -> None:
    assert ask(example, "GET", "/livez", token="")[0] == 200
    assert ask(example, "GET", "/readyz", token="")[0] == 200
    status, headers, text = ask(example, "GET", "/metrics", token="")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    assert b"moorage_http_requests_total" in text and b"\nmoorage_ledger_sequence " in text


def test_every_error_is_a_problem_document(example: Mesh) -> None:
    problem(ask(example, "GET", "/v1/nonsense"), 404, "NotFound")
    answered = ask(example, "DELETE", "/v1/apply")
    problem(answered, 405, "MethodNotAllowed")
    assert answered[1]["allow"] == "POST"
    problem(ask(example, "POST", "/v1/apply", b" " * (2 << 20)), 413, "TooLarge")
    problem(ask(example, "POST", "/v1/groups/default/app1/v1/default/explode"), 404, "NotFound")
    problem(ask(example, "POST", "/v1/groups/default/app1/v1/default/approve"), 409, "WrongState")
    problem(ask(example, "GET", "/v1/groups/default/%20/v1/default"), 404, "NotFound")
    problem(ask(example, "GET", "/v1/clusters?labelSelector=a%20b"), 400, "Invalid")
    problem(ask(example, "GET", "/v1/groups?limit=none"), 400, "Invalid")
    problem(ask(example, "GET", "/v1/groups?continue=%2a"), 400, "Invalid")
    problem(ask(example, "GET", "/v1/events?subject=moorage.ledger.commit"), 400, "Invalid")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"kind": 3}']
)
def test_unreadable_bodies_are_400(example: Mesh, body: bytes) -> None:
    for path in ("/v1/apply", "/v1/simulate"):
        status, headers, answer = ask(example, "POST", path, body)
        assert status == 400 and headers["content-type"] == "application/problem+json", answer


def test_yaml_bodies_are_accepted(example: Mesh) -> None:
    text = b"kind: Application\nmetadata: {name: yam}\nspec: {apps: [{name: a, manifests: []}]}\n"
    status, _, answer = ask(example, "POST", "/v1/apply?dryRun=true", text, kind="application/yaml")
    assert status == 200, answer
    assert answer["dryRun"] is True and answer["name"] == "yam"


def test_pages_add_up_to_the_list(example: Mesh) -> None:
    all_ids = [c["id"] for c in example.http("/v1/clusters")["items"]]
    found: list[str] = []
    token = ""
    pages = 0
    while True:
        page = example.http(f"/v1/clusters?limit=4{'&continue=' + token if token else ''}")
        found += [c["id"] for c in page["items"]]
        pages += 1
        token = page.get("continue", "")
        if not token:
            break
    assert found == all_ids and len(all_ids) == 6 and pages == 2
    nodes = example.http("/v1/nodes?limit=3")
    assert len(nodes["items"]) == 3 and nodes["continue"]


def test_a_controller_is_configured_and_read(example: Mesh) -> None:
    body = json.dumps({"deadlineMs": 450, "policy": "required", "weight": 1}).encode()
    status, _, answer = ask(example, "PUT", "/v1/controllers/affinity", body)
    assert status == 200 and answer["deadlineMs"] == 450
    assert example.http("/v1/controllers/affinity")["deadlineMs"] == 450
    wrong = json.dumps({"deadlineMs": 450, "policy": "sometimes"}).encode()
    assert "policy" in problem(ask(example, "PUT", "/v1/controllers/affinity", wrong), 400, "Undecodable")["detail"]
    problem(ask(example, "PUT", "/v1/controllers/affinity", b'{"name": "other"}'), 400, "Invalid")
    ask(example, "PUT", "/v1/controllers/affinity", b'{"deadlineMs": 500}')


def test_events_are_streamed(example: Mesh) -> None:
    address = urlsplit(example.endpoint["http"])
    conn = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
    try:
        conn.request(
            "GET",
            "/v1/events?subject=moorage.events.intents.*.default.streamed.v1.default",
            headers={"Authorization": f"Bearer {example.endpoint['token']}"},
        )
        reply = conn.getresponse()
        assert reply.status == 200 and reply.headers["Content-Type"] == "text/event-stream"
        assert reply.readline().startswith(b":"), "sent as soon as it is subscribed"
        document = example.http("/v1/applications/default/app1")
        document["metadata"]["name"] = "streamed"
        assert example.http("/v1/apply", document)["outcome"] == "created"
        lines: list[bytes] = []
        while not (lines and lines[-1].startswith(b"data:")):
            lines.append(reply.readline())
        event = json.loads(lines[-1].removeprefix(b"data: "))
        assert lines[-2] == f"id: {event['id']}\n".encode()
        assert event["subject"] == "moorage.events.intents.accepted.default.streamed.v1.default"
    finally:
        conn.close()
    status, _, _ = ask(example, "DELETE", "/v1/applications/default/streamed")
    assert status in (202, 204)
    assert example.run("wait", "streamed", "--for", "delete", "--timeout", "90s").returncode == 0


def test_a_write_can_be_read_at_once(example: Mesh) -> None:
    document = example.http("/v1/applications/default/app1")
    for number in range(20):
        document["metadata"]["name"] = f"fresh{number}"
        document["spec"]["apps"] = document["spec"]["apps"][:1]
        example.http("/v1/apply", document)
        assert example.http(f"/v1/groups/default/fresh{number}/v1/default")["revision"] == 1
        ask(example, "DELETE", f"/v1/applications/default/fresh{number}")
    for number in range(20):
        done = example.run("wait", f"fresh{number}", "--for", "delete", "--timeout", "90s")
        assert done.returncode == 0, done.stderr


def test_a_cordoned_cluster_keeps_its_groups(example: Mesh) -> None:
    path = "/v1/clusters/telco/pop-1"
    before = example.http(path)
    assert ask(example, "PATCH", path, b'{"cordoned": true}')[0] == 200
    try:
        end = time.monotonic() + 80
        while (found := example.http(path))["state"] != "Cordoned":
            assert time.monotonic() < end
        assert found["allocatable"] == before["allocatable"] and found["allocatable"]["cpu"]
        assert found["free"] == dict.fromkeys(before["free"], "0")
    finally:
        assert ask(example, "PATCH", path, b'{"cordoned": false}')[0] == 200
    while example.http(path)["free"] != before["free"]:
        assert time.monotonic() < end


def test_an_intent_outlives_the_controller_of_its_kind(example: Mesh) -> None:
    async def registers(verb: str) -> None:
        bus = await Bus.connect(example.settings, worker="admin")
        try:
            body = {"kinds": {"ColourIntent": {"type": "object"}}} if verb == "register" else {}
            answer = await bus.request(f"moorage.controllers.colours.{verb}", json.dumps(body).encode(), timeout=30)
            assert json.loads(answer)["accepted"]
        finally:
            await bus.close()

    asyncio.run(registers("register"))
    document = {"kind": "ColourIntent", "metadata": {"name": "red"}, "spec": {"group": "nothing-yet"}}
    end = time.monotonic() + 40
    while ask(example, "POST", "/v1/apply", json.dumps(document).encode())[0] != 200:
        assert time.monotonic() < end  # another store learns of the kind a moment later
    asyncio.run(registers("leave"))
    while "colours" in (c["name"] for c in example.http("/v1/controllers")["items"]):
        assert time.monotonic() < end
    assert [i["metadata"]["name"] for i in example.http("/v1/intents?kind=colourintents")["items"]] == ["red"]
    assert example.http("/v1/intents/ColourIntent/default/red")["spec"] == {"group": "nothing-yet"}
    assert ask(example, "DELETE", "/v1/intents/ColourIntent/default/red")[0] == 204
    assert example.http("/v1/intents")["items"] == []


def test_an_intent_before_its_group_is_stored_without_placing_anything(example: Mesh) -> None:
    document = json.dumps(
        {"kind": "PlacementIntent", "metadata": {"name": "early"}, "spec": {"group": "not-there", "app": "web", "anyOf": [{"provider": "lab"}]}}
    ).encode()  # fmt: skip
    status, _, dry = ask(example, "POST", "/v1/apply?dryRun=true", document)
    assert status == 200 and dry["accepted"] and dry["outcome"] == "created" and dry["dryRun"], dry
    status, _, why = ask(example, "POST", "/v1/simulate", document)
    assert status == 200, why
    assert (why["group"], why["phase"], why["revision"]) == ("default/not-there/v1/default", "Draft", 0)
    assert why == dry["why"]
    assert [w["code"] for w in why["warnings"]] == ["NoGroup"] and dry["warnings"] == why["warnings"]
    assert example.http("/v1/intents")["items"] == []
    # It would not be placed, which the exit code of the command shows.
    done = example.run("simulate", "-f", "-", data=document)
    assert done.returncode == 1 and b"group default/not-there/v1/default has nothing to place yet" in done.stdout
    assert example.run("apply", "--dry-run", "-f", "-", data=document).returncode == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "where"),
    [
        ("PUT", "/v1/controllers/affinity", {"bogus": 1}, "bogus"),
        ("PUT", "/v1/controllers/affinity", {"id": "x"}, "id"),
        ("PUT", "/v1/controllers/affinity", {"deadlineMs": "soon"}, "deadlineMs"),
        ("PATCH", "/v1/clusters/lab/edge-1", {"bogus": 1}, "bogus"),
        ("PATCH", "/v1/clusters/lab/edge-1", {"cordoned": 3}, "cordoned"),
        ("POST", "/v1/sim/clusters/lab/edge-1/fault", {"fault": "slow", "bogus": 1}, "bogus"),
        ("POST", "/v1/sim/clusters/lab/edge-1/fault", {"fault": "odd"}, "fault"),
        ("POST", "/v1/sim/clusters/lab/edge-1/fault", {}, "fault"),
        ("POST", "/v1/sim/clusters", {"clusters": [], "bogus": 1}, "bogus"),
        ("POST", "/v1/tokens", {"name": "x", "rule": "admin"}, "rule"),
        ("POST", "/v1/groups/default/app1/v1/default/approve", {"bogus": 1}, "bogus"),
        ("POST", "/v1/apply", {"kind": "Application", "cause": "x"}, "cause"),
        ("POST", "/v1/simulate", {"kind": "Application", "id": "x"}, "id"),
    ],
)
def test_errors_name_the_path_in_the_body(example: Mesh, method: str, path: str, body: Any, where: str) -> None:
    status, headers, answered = ask(example, method, path, json.dumps(body).encode())
    assert status == 400 and headers["content-type"] == "application/problem+json", answered
    assert [e["path"] for e in answered["errors"]] == [where]
    assert all(e["code"] and e["message"] for e in answered["errors"])


@pytest.mark.parametrize(
    ("subject", "command"),
    [
        ("moorage.patcher.diff", {"group": "default/app1/v1/default"}),
        ("moorage.sim.list", {"limit": 1}),
        ("moorage.sim.fault", {"cluster": "lab/nowhere", "fault": "slow"}),
    ],
)
async def test_commands_on_the_bus_refuse_unknown_fields(example: Mesh, subject: str, command: Any) -> None:
    bus = await Bus.connect(example.settings, worker="admin")
    try:
        envelope = {"id": "1", "cause": "2", "traceparent": "3"}
        refused = await bus.request(subject, json.dumps({**command, "bogus": 1}).encode(), timeout=30)
        assert [e["path"] for e in json.loads(refused)["problem"]["errors"]] == ["bogus"]
        taken = json.loads(await bus.request(subject, json.dumps({**command, **envelope}).encode(), timeout=30))
        assert taken.get("problem", {}).get("code", "NotFound") == "NotFound"
    finally:
        await bus.close()


async def test_an_administrator_reads_rejected_messages(example: Mesh) -> None:
    bus = await Bus.connect(example.settings, worker="admin")
    try:
        await bus.request("moorage.intents.apply", b"{nonsense-of-a-test", timeout=30)
        await bus.request("moorage.intents.apply", b"{Secret-of-a-test", timeout=30)
    finally:
        await bus.close()
    items: list[Any] = []
    end = time.monotonic() + 40
    while sum("of-a-test" in i["data"]["sample"] or "may hold" in i["data"]["sample"] for i in items) < 2:
        assert time.monotonic() < end, items
        items = example.http("/v1/events?follow=false&subject=moorage.rejected.intents")["items"]
    first, second = items[-2:]
    assert {"id", "cause", "time", "subject", "data"} <= set(first)
    assert (first["subject"], first["data"]["subject"]) == ("moorage.rejected.intents", "moorage.intents.apply")
    assert (first["data"]["by"], first["data"]["problem"]["code"]) == ("intents", "Undecodable")
    assert first["data"]["sample"] == "{nonsense-of-a-test" and "Secret" not in second["data"]["sample"]
    # A stream resumes after the last event that was read.
    path = "/v1/events?subject=moorage.rejected.%3E&lastEventId=" + first["id"]
    address = urlsplit(example.endpoint["http"])
    conn = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
    try:
        conn.request("GET", path, headers={"Authorization": f"Bearer {example.endpoint['token']}"})
        reply = conn.getresponse()
        lines = [reply.readline() for _ in range(4)]
        assert f"id: {second['id']}\n".encode() in lines, lines
    finally:
        conn.close()
    listed = example.run("events", "--subject", "moorage.rejected.>")
    assert b"Undecodable on moorage.intents.apply" in listed.stdout, listed
    made = ask(example, "POST", "/v1/tokens", b'{"name": "edits", "role": "editor"}')[2]
    for more in ("", "&follow=false"):
        problem(
            ask(example, "GET", f"/v1/events?subject=moorage.rejected.%3E{more}", token=made["token"]), 403, "Forbidden"
        )
    assert ask(example, "DELETE", "/v1/tokens/edits")[0] == 204


@pytest.mark.parametrize("method", ["FOO", "TRACE", "PROPFIND", "get"])
def test_an_unknown_method_is_a_problem_document(example: Mesh, method: str) -> None:
    status, headers, answered = ask(example, method, "/v1/groups")
    assert status in (400, 405) and headers["content-type"] == "application/problem+json", answered
    assert answered["code"] == "MethodNotAllowed" and answered["status"] == status
    assert ask(example, "GET", "/v1/groups")[0] == 200


def test_a_limit_of_0_means_no_limit(example: Mesh) -> None:
    everything = example.http("/v1/clusters")["items"]
    assert example.http("/v1/clusters?limit=0") == {"items": everything}
    assert len(example.http("/v1/events?follow=false&limit=0")["items"]) > 1
    problem(ask(example, "GET", "/v1/clusters?limit=-1"), 400, "Invalid")


def test_some_of_several_documents_are_refused(example: Mesh) -> None:
    good = example.http("/v1/applications/default/app1")
    bad = {"kind": "Application", "metadata": {"name": "bad"}, "spec": {"apps": [{"name": "a", "replicas": 1.5}]}}
    for query in ("", "?dryRun=true"):
        answered = ask(example, "POST", f"/v1/apply{query}", json.dumps([good, bad, {"kind": "Nothing"}]).encode())
        refusal = problem(answered, 400, "SomeRefused")
        first, second, third = refusal["items"]
        assert first["accepted"] and first["outcome"] == "unchanged"
        assert not second["accepted"] and second["problem"]["code"] == third["problem"]["code"] == "Invalid"
        assert {"type", "errors"} <= set(second["problem"])
        assert [e["path"] for e in refusal["errors"]] == ["[1].spec.apps[0].replicas", "[2].kind"]
        assert refusal["errors"][0]["message"] == "must be a whole number, not a number"
        assert "2 of 3" in refusal["detail"]
    status, headers, answer = ask(example, "POST", "/v1/apply", json.dumps([good, good]).encode())
    assert status == 200 and headers["content-type"].startswith("application/json") and len(answer["items"]) == 2


def test_a_controller_can_be_forgotten(example: Mesh) -> None:
    assert example.run("controllers", "set", "passing", "--deadline", "100ms").returncode == 0
    assert example.run("controllers", "set", "passing", "--remove", "--weight", "2").returncode == 2
    assert example.run("controllers", "set", "passing", "--remove").returncode == 0
    wait_until(lambda: "passing" not in {c["name"] for c in example.http("/v1/controllers")["items"]})
    assert example.run("controllers", "set", "passing", "--remove").returncode == 3


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("def broken(:\n", 1, b"own.py:1: "),
        ("x = 1\n", 1, b"no controller is declared"),
        (
            "from moorage.sdk import controller\n@controller('hpa')\ndef hpa(ask, fleet):\n    return {}\n",
            5,
            b"built-in controllers have this name",
        ),
    ],
    ids=["syntax", "none", "taken"],
)
def test_running_an_invalid_controller_file_names_the_error(
    example: Mesh, tmp_path: Path, text: str, code: int, message: bytes
) -> None:
    file = tmp_path / "own.py"
    file.write_text(text)
    done = example.run("run", str(file))
    assert done.returncode == code and message in done.stderr, done
    assert b"Traceback" not in done.stderr
