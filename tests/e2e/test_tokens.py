"""Tests tokens with roles and projects, created and revoked while the mesh runs, and the audit log."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest

from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

Answered = tuple[int, dict[str, str], Any]


def ask(mesh: Mesh, method: str, path: str, body: bytes | None = None, *, token: str | None = None) -> Answered:
    answered = HttpClient(mesh, "")(method, path, body, token=token)
    return answered.status, answered.headers, answered.body


def problem(answered: Answered, status: int, code: str) -> dict[str, Any]:
    got, headers, body = answered
    assert (got, body["code"], headers["content-type"]) == (status, code, "application/problem+json"), body
    found: dict[str, Any] = body
    return found


DOCUMENT: dict[str, Any] = {
    "kind": "Application",
    "metadata": {"name": "held", "project": "red"},
    "spec": {
        "apps": [
            {
                "name": "web",
                "manifests": [
                    {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "metadata": {"name": "page"},
                        "data": {"password": "hunter2"},
                    }
                ],
            }
        ]
    },
}


def body(**metadata: str) -> bytes:
    return json.dumps({**DOCUMENT, "metadata": {**DOCUMENT["metadata"], **metadata}}).encode()


@pytest.fixture(scope="module")
def tokens(example: Mesh) -> Iterator[dict[str, str]]:
    """Creates a token of each role, for everything and for one project."""
    made: dict[str, str] = {}
    wanted = {
        "reader": ("--role", "viewer"),
        "red-reader": ("--role", "viewer", "-p", "red"),
        "red-writer": ("--role", "editor", "-p", "red"),
        "writer": ("--role", "editor"),
        "chief": ("--role", "admin"),
    }
    for name, options in wanted.items():
        done = example.run("token", "create", name, *options)
        assert done.returncode == 0, done.stderr
        made[name] = done.stdout.decode().strip()
    yield made
    for name in wanted:
        assert example.run("token", "revoke", name).returncode == 0


@pytest.fixture(scope="module")
def held(example: Mesh, tokens: dict[str, str]) -> Iterator[str]:
    """Applies a group in project red and one in project blue."""
    for project in ("red", "blue"):
        assert ask(example, "POST", "/v1/apply", body(project=project))[0] == 200
    yield "red/held/v1/default"
    for project in ("red", "blue"):
        ask(example, "DELETE", f"/v1/applications/{project}/held")


ALL = {"reader", "red-reader", "red-writer", "writer", "chief"}
NOBODY: set[str] = set()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/groups", ALL),
        ("GET", "/v1/groups/red/held/v1/default", ALL),
        ("GET", "/v1/groups/blue/held/v1/default", ALL - {"red-reader", "red-writer"}),
        ("GET", "/v1/groups/blue/held/v1/default/why", ALL - {"red-reader", "red-writer"}),
        ("GET", "/v1/applications/blue/held", ALL - {"red-reader", "red-writer"}),
        ("GET", "/v1/clusters", ALL),
        ("GET", "/v1/controllers", ALL),
        ("GET", "/v1/tokens", {"chief"}),
        ("GET", "/v1/tokens/reader", {"chief"}),
        ("GET", "/v2/projects/blue/composite-apps", ALL - {"red-reader", "red-writer"}),
        ("POST", "/v1/groups/red/held/v1/default/redecide-not", {"red-writer", "writer", "chief"}),
        ("POST", "/v1/groups/blue/held/v1/default/redecide-not", {"writer", "chief"}),
        ("DELETE", "/v1/applications/red/nothing", {"red-writer", "writer", "chief"}),
        ("DELETE", "/v1/applications/blue/nothing", {"writer", "chief"}),
        ("DELETE", "/v2/projects/blue/logical-clouds/nothing", {"writer", "chief"}),
        ("DELETE", "/projects/blue/logical-clouds/nothing", {"writer", "chief"}),
        ("PUT", "/v1/controllers/hpa", {"chief"}),
        ("PATCH", "/v1/clusters/no/where", {"chief"}),
        ("POST", "/v1/sim/clusters/no/where/fault", {"chief"}),
        ("POST", "/v1/tokens", {"chief"}),
        ("DELETE", "/v1/tokens/nothing", {"chief"}),
        ("GET", "/v1/whoami", ALL),
    ],
)
def test_roles_allow_what_the_table_says(
    example: Mesh, tokens: dict[str, str], held: str, method: str, path: str, allowed: set[str]
) -> None:
    """Allowed requests may fail for other reasons: an unknown name or an unreadable body."""
    for name, token in tokens.items():
        answered = ask(example, method, path, b"junk" if method != "GET" else None, token=token)
        if name in allowed:
            assert answered[0] not in (401, 403), (name, answered)
            assert answered[0] < 500, (name, answered)
        else:
            problem(answered, 403, "Forbidden")


def test_documents_are_authorized_by_their_project(example: Mesh, tokens: dict[str, str], held: str) -> None:
    for name in ("reader", "red-reader"):
        problem(ask(example, "POST", "/v1/apply", body(), token=tokens[name]), 403, "Forbidden")
        assert ask(example, "POST", "/v1/apply?dryRun=true", body(), token=tokens[name])[0] == 200
    assert ask(example, "POST", "/v1/apply", body(), token=tokens["red-writer"])[2]["outcome"] == "unchanged"
    problem(ask(example, "POST", "/v1/apply", body(project="blue"), token=tokens["red-writer"]), 403, "Forbidden")
    problem(ask(example, "POST", "/v1/simulate", body(project="blue"), token=tokens["red-reader"]), 403, "Forbidden")
    across = {
        "kind": "PlacementIntent",
        "metadata": {"name": "mine", "project": "red"},
        "spec": {"group": "blue/held/v1/default", "app": "web", "anyOf": [{"provider": "nowhere"}]},
    }
    answered = ask(example, "POST", "/v1/apply", json.dumps(across).encode(), token=tokens["red-writer"])
    assert "blue" in problem(answered, 403, "Forbidden")["detail"]
    fleet = b'{"kind": "Fleet", "clusters": []}'
    problem(ask(example, "POST", "/v1/apply", fleet, token=tokens["writer"]), 403, "Forbidden")


def test_lists_contain_the_projects_of_the_token_only(example: Mesh, tokens: dict[str, str], held: str) -> None:
    def groups(name: str, path: str = "/v1/groups") -> set[str]:
        items = ask(example, "GET", path, token=tokens[name])[2]["items"]
        return {item.get("group") or item["status"]["group"] for item in items}

    assert {held, "blue/held/v1/default"} <= groups("reader")
    for path in ("/v1/groups", "/v1/applications", "/v1/decisions"):
        assert groups("red-reader", path) == {held}, path
    visible = ask(example, "GET", "/v1/events?follow=false&limit=500", token=tokens["red-reader"])[2]["items"]
    subjects = [e["subject"] for e in visible]
    assert any(".intents." in s for s in subjects)
    assert not [s for s in subjects if ".audit." in s or ".blue." in s or ".default.app1." in s]


def test_a_token_is_created_listed_and_revoked(example: Mesh) -> None:
    done = example.run("token", "create", "brief", "--role", "editor", "-p", "red", "-p", "blue", "-o", "json")
    made = json.loads(done.stdout)
    assert made["role"] == "editor" and made["projects"] == ["blue", "red"]
    assert ask(example, "GET", "/v1/whoami", token=made["token"])[2] == {
        "name": "brief",
        "role": "editor",
        "projects": ["blue", "red"],
    }
    assert example.run("token", "create", "brief").returncode == 4
    listed = json.loads(example.run("token", "list", "-o", "json").stdout)["items"]
    assert [t["name"] for t in listed if t["name"] == "brief"] == ["brief"]
    secret = made["token"][-16:]
    assert secret not in json.dumps(listed) and "digest" not in json.dumps(listed)
    done = example.run("token", "revoke", "brief")
    assert done.returncode == 0, done.stderr
    problem(ask(example, "GET", "/v1/whoami", token=made["token"]), 401, "Unauthorized")
    assert example.run("token", "revoke", "brief").returncode == 3


def test_invalid_token_requests_are_refused(example: Mesh) -> None:
    wrong = {"name": "a b", "role": "admin", "projects": ["x", "/"], "expiresIn": -1}
    answered = problem(ask(example, "POST", "/v1/tokens", json.dumps(wrong).encode()), 400, "Invalid")
    assert [e["path"] for e in answered["errors"]] == ["name", "projects[1]", "projects", "expiresIn"]
    problem(ask(example, "POST", "/v1/tokens", b'{"name": "x", "role": "king"}'), 400, "Undecodable")
    problem(ask(example, "POST", "/v1/tokens", b'{"name": "x", "rule": "admin"}'), 400, "Undecodable")


def test_a_token_expires(example: Mesh) -> None:
    made = ask(example, "POST", "/v1/tokens", b'{"name": "mayfly", "expiresIn": 0.001}')[2]
    problem(ask(example, "GET", "/v1/whoami", token=made["token"]), 401, "Unauthorized")
    assert example.run("token", "revoke", "mayfly").returncode == 0


def test_a_stream_ends_when_its_token_is_revoked(example: Mesh) -> None:
    made = ask(example, "POST", "/v1/tokens", b'{"name": "listener"}')[2]
    with events(example, "/v1/events?subject=moorage.events.intents.%3E", token=made["token"]) as reply:
        assert example.run("token", "revoke", "listener").returncode == 0
        assert ask(example, "POST", "/v1/apply", body(name="unheard"))[0] == 200
        assert b"data:" not in reply.read(), "it ends, and nothing is sent after it was revoked"
    ask(example, "DELETE", "/v1/applications/red/unheard")


async def test_only_a_hash_is_stored(example: Mesh, tokens: dict[str, str]) -> None:
    nc = await nats.connect(example.settings.nats_url, nkeys_seed_str=example.settings.nats_seed)
    try:
        js = nc.jetstream()
        bucket = await js.key_value("moorage-tokens")
        for name, token in tokens.items():
            value = (await bucket.get(name)).value or b""
            assert token[-20:].encode() not in value
            assert json.loads(value)["digest"]
    finally:
        await nc.close()


def test_tokens_survive_a_restart_of_the_gateway(example: Mesh, tokens: dict[str, str]) -> None:
    before = example.pids("gateway")
    example.kill("gateway")

    def is_back() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answered = ask(example, "GET", "/v1/whoami", token=tokens["reader"])[0] == 200
            return answered and example.pids("gateway") != before
        return False

    wait_until(is_back)
    assert ask(example, "GET", "/v1/whoami", token=tokens["reader"])[2]["name"] == "reader"


def test_every_change_is_in_the_audit_log(example: Mesh, tokens: dict[str, str], held: str) -> None:
    token = tokens["red-writer"]
    assert ask(example, "POST", "/v1/apply", body(name="lined"), token=token)[0] == 200
    assert ask(example, "POST", "/v1/apply", body(project="blue"), token=token)[0] == 403
    assert ask(example, "POST", "/v1/apply?dryRun=true", body(), token=token)[0] == 200
    assert ask(example, "POST", "/v1/groups/red/lined/v1/default/terminate", token=token)[0] == 202
    assert ask(example, "POST", "/v1/apply", body(), token="guessed")[0] == 401
    ask(example, "DELETE", "/v1/applications/red/lined")
    items: list[Any] = []

    def has_all() -> bool:
        items[:] = example.http("/v1/events?follow=false&subject=moorage.events.audit.*.red-writer")["items"]
        return bool(items) and items[-1]["data"]["path"].endswith("/terminate")

    wait_until(has_all)
    lines = [i["data"] for i in items]
    assert [(line["method"], line["outcome"], line["status"]) for line in lines[-3:]] == [
        ("POST", "done", 200),
        ("POST", "refused", 403),
        ("POST", "done", 202),
    ]
    assert lines[-3]["what"] == ["Application red/lined"] and lines[-2]["code"] == "Forbidden"
    assert {"who": "red-writer", "role": "editor", "address": "127.0.0.1"}.items() <= lines[-1].items()
    assert "hunter2" not in json.dumps(items), "never what was in a document"
    unknown: list[Any] = []

    def is_refused() -> bool:
        unknown[:] = example.http("/v1/events?follow=false&subject=moorage.events.audit.refused.nobody")["items"]
        return bool(unknown)

    wait_until(is_refused)
    assert unknown[-1]["data"]["status"] == 401 and "guessed" not in json.dumps(unknown)

    def caused(item: dict[str, Any]) -> set[str]:
        story = example.http(f"/v1/story/{item['id']}")["items"]
        return {s["subject"].removesuffix(".red.lined.v1.default") for s in story}

    wait_until(lambda: "moorage.events.intents.terminated" in caused(items[-1]))
    # What was applied names who applied it, and so does what became of it.
    wanted = {"moorage.events.intents.accepted", "moorage.events.decisions.placed"}
    wait_until(lambda: wanted <= caused(items[-3]))


def test_deletions_name_the_caller_in_the_audit_log(example: Mesh, tokens: dict[str, str]) -> None:
    token = tokens["red-writer"]
    intent = {
        "kind": "PlacementIntent",
        "metadata": {"name": "aside", "project": "red"},
        "spec": {"group": "bound", "app": "web", "allOf": [{"provider": "lab"}]},
    }
    assert ask(example, "POST", "/v1/apply", body(name="bound"), token=token)[0] == 200
    assert ask(example, "POST", "/v1/apply", json.dumps(intent).encode(), token=token)[0] == 200
    assert ask(example, "DELETE", "/v1/intents/PlacementIntent/red/aside", token=token)[0] == 204
    assert ask(example, "DELETE", "/v1/applications/red/bound", token=token)[0] in (202, 204)

    def set_off(path: str) -> list[str]:
        items = example.http("/v1/events?follow=false&subject=moorage.events.audit.done.red-writer")["items"]
        line = [i for i in items if i["data"]["method"] == "DELETE" and i["data"]["path"] == path][-1:]
        story = example.http(f"/v1/story/{line[0]['id']}")["items"] if line else []
        return [s["subject"].split(".")[3] for s in story if ".bound." in s["subject"]]

    def is_set_off(path: str, wanted: set[str]) -> bool:
        return wanted <= set(set_off(path))

    for path, wanted in (
        ("/v1/intents/PlacementIntent/red/aside", {"updated"}),
        ("/v1/applications/red/bound", {"terminated", "deleted"}),
    ):
        wait_until(partial(is_set_off, path, wanted))


@contextlib.contextmanager
def events(mesh: Mesh, path: str, *, token: str = "", **headers: str) -> Iterator[http.client.HTTPResponse]:
    address = urlsplit(mesh.endpoint["http"])
    conn = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
    try:
        bearer = {"Authorization": f"Bearer {token or mesh.endpoint['token']}"}
        conn.request("GET", path, headers=bearer | {k.replace("_", "-"): v for k, v in headers.items()})
        reply = conn.getresponse()
        assert reply.status == 200
        assert reply.readline().startswith(b":")
        yield reply
    finally:
        conn.close()
