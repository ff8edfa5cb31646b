"""The Placement interface of a mesh: tokens and their roles, the same below the gateway, audit events, and refused requests."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage.placement.settings import PlacementSettings
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

Answer = tuple[int, dict[str, str], Any]


def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {"OpenStack-API-Version": "placement 1.39", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}{path}", method=method, data=data, headers=given)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return found.status, {k.lower(): v for k, v in found.headers.items()}, _decoded(found.read())
    except urllib.error.HTTPError as error:
        return error.code, {k.lower(): v for k, v in error.headers.items()}, _decoded(error.read())


def _decoded(text: bytes) -> Any:
    return json.loads(text) if text.startswith((b"{", b"[")) else text


@pytest.fixture(scope="module")
def tokens(example: Mesh) -> Iterator[dict[str, str]]:
    """Returns tokens by role; `bound` is an editor of one project."""
    found = {"administrator": example.endpoint["token"]}
    roles = {"admin": ["admin"], "editor": ["editor"], "viewer": ["viewer"], "bound": ["editor", "--project", "red"]}
    for name, (role, *rest) in roles.items():
        made = example.run("token", "create", f"placement-{name}", "--role", role, *rest)
        assert made.returncode == 0, made.stderr
        found[name] = made.stdout.decode().strip()
    yield found
    for name in roles:
        example.run("token", "revoke", f"placement-{name}")


@pytest.fixture(params=["worker", "gateway"])
def url(example: Mesh, request: pytest.FixtureRequest) -> str:
    if request.param == "worker":
        return str(example.endpoint["placement"]).rstrip("/")
    return str(example.endpoint["http"]).rstrip("/") + "/placement"


def test_versions_need_no_token_and_all_else_does(url: str) -> None:
    status, headers, body = ask(url, "GET", "/")
    assert status == 200 and body["versions"][0]["max_version"] == "1.40"
    assert headers["openstack-api-version"] == "placement 1.39" and "x-openstack-request-id" in headers
    for given in ({}, {"X-Auth-Token": "wrong"}, {"Authorization": "Bearer mrg_a_" + "b" * 43}):
        status, headers, body = ask(url, "GET", "/resource_providers", **given)
        assert status == 401 and body["errors"][0]["status"] == 401


@pytest.mark.parametrize(
    ("role", "write", "reshape"),
    [
        ("administrator", 200, 204),
        ("admin", 200, 204),
        ("editor", 200, 204),
        ("viewer", 403, 403),
        ("bound", 403, 403),
    ],
)
@pytest.mark.parametrize("bearer", [False, True])
def test_roles_of_tokens(url: str, tokens: dict[str, str], role: str, write: int, reshape: int, bearer: bool) -> None:
    given = {"Authorization": f"Bearer {tokens[role]}"} if bearer else {"X-Auth-Token": tokens[role]}
    name = str(uuid.uuid4())
    status, headers, body = ask(url, "POST", "/resource_providers", {"name": name, "uuid": name}, **given)
    assert status == write
    if status == 200:
        assert headers["location"].endswith(f"{url}/resource_providers/{name}".removeprefix("http:"))
        assert all(
            link["href"].startswith(url[url.index("/", 8) :] if "/placement" in url else "/") for link in body["links"]
        )
    assert ask(url, "POST", "/reshaper", {"inventories": {}, "allocations": {}}, **given)[0] in (reshape, 400)
    assert (ask(url, "GET", "/resource_providers", **given)[0] == 200) == (write == 200)
    if write == 200:
        assert ask(url, "DELETE", f"/resource_providers/{name}", **given)[0] == 204


def test_usages_are_shown_to_readers_of_the_project(url: str, tokens: dict[str, str]) -> None:
    given = {"X-Auth-Token": tokens["bound"]}
    assert ask(url, "GET", "/usages?project_id=red", **given)[0] == 200
    assert ask(url, "GET", "/usages?project_id=blue", **given)[0] == 403
    assert ask(url, "GET", "/usages?project_id=red&project_id=blue", **given)[0] == 403
    assert ask(url, "GET", "/usages?project_id=blue&project_id=red", **given)[0] == 200


def test_changes_leave_audit_events(url: str, example: Mesh, tokens: dict[str, str]) -> None:
    name = str(uuid.uuid4())
    given = {"X-Auth-Token": tokens["editor"], "X-Forwarded-For": "203.0.113.7"}
    answers = [
        ask(url, "POST", "/resource_providers", {"name": name, "uuid": name}, **given),
        ask(url, "DELETE", f"/resource_providers/{name}", **given),
    ]
    assert [status for status, _, _ in answers] == [200, 204]
    requests = {headers["x-openstack-request-id"] for _, headers, _ in answers}
    path = "/v1/events?follow=false&limit=500&subject=moorage.events.audit.done.placement-editor"
    shown: list[dict[str, Any]] = []
    end = time.monotonic() + 60
    while len(shown) < 2 and time.monotonic() < end:  # events are published shortly after the answer
        items = example.http(path)["items"]
        shown = [item["data"] for item in items if item["id"] in requests]
    assert [(one["method"], one["status"]) for one in shown] == [("POST", 200), ("DELETE", 204)]
    address = shown[0]["address"].split(", ")
    assert address[-1] == "127.0.0.1", "what the client says of itself comes before what is known"


def test_events_of_changes_are_for_those_who_may_use_the_interface(
    url: str, example: Mesh, tokens: dict[str, str]
) -> None:
    name = str(uuid.uuid4())
    given = {"X-Auth-Token": tokens["editor"]}
    status, headers, _ = ask(url, "POST", "/resource_providers", {"name": name, "uuid": name}, **given)
    assert status == 200
    path = f"/v1/events?follow=false&subject=moorage.events.placement.provider.*.{name}"
    rest = HttpClient(example, "")
    one: list[dict[str, Any]] = []
    end = time.monotonic() + 60
    while not one and time.monotonic() < end:
        one = rest("GET", path, token=tokens["editor"]).body["items"]
    assert [(item["subject"], item["data"], item["cause"]) for item in one] == [
        (
            f"moorage.events.placement.provider.created.{name}",
            {"provider": name, "name": name},
            headers["x-openstack-request-id"],
        )
    ]
    clouds = example.http(f"{path}&format=cloudevents")
    assert [(c["type"], c["subject"]) for c in clouds] == [("dev.moorage.placement.provider.created", name)]
    for role in ("viewer", "bound"):
        assert rest("GET", path, token=tokens[role]).body["items"] == []


def test_candidates_are_listed_and_explained(example: Mesh) -> None:
    token = {"X-Auth-Token": example.endpoint["token"]}
    worker, trait = example.endpoint["placement"].rstrip("/"), f"CUSTOM_{uuid.uuid4().hex.upper()}"
    ident = str(uuid.uuid4())
    assert ask(worker, "PUT", f"/traits/{trait}", **token)[0] == 201
    assert ask(worker, "POST", "/resource_providers", {"name": ident, "uuid": ident}, **token)[0] == 200
    inventories = {"resource_provider_generation": 0, "inventories": {"FPGA": {"total": 2}}}
    assert ask(worker, "PUT", f"/resource_providers/{ident}/inventories", inventories, **token)[0] == 200
    traits = {"resource_provider_generation": 1, "traits": [trait]}
    assert ask(worker, "PUT", f"/resource_providers/{ident}/traits", traits, **token)[0] == 200
    query = f"resources_A=FPGA:{{}}&required_A={trait}"
    listed = example.run("placement", "candidates", query.format(2))
    assert listed.returncode == 0 and [ident in line for line in listed.stdout.decode().splitlines()] == [False, True]
    explained = example.run("placement", "candidates", query.format(3), "--explain").stdout.decode()
    assert "0 candidates" in explained and "PartShort" in explained and "best free 2" in explained
    found = example.http(f"/v1/placement/explain?{query.format(3)}")
    assert found["candidates"] == 0 and [group["withRoom"] for group in found["groups"]] == [0]
    (reason,) = found["reasons"]
    assert (reason["code"], reason["group"], reason["needed"], reason["free"]) == ("PartShort", "_A", "3", "2")
    for wrong in ("resources_A=FPGA", "resources=NONE:1", "nonsense=1"):
        refused = HttpClient(example, "")("GET", f"/v1/placement/explain?{wrong}")
        assert refused.status == 400 and refused.code == "Invalid", refused
        assert example.run("placement", "candidates", wrong).returncode == 1
    assert ask(worker, "DELETE", f"/resource_providers/{ident}", **token)[0] == 204


@pytest.mark.parametrize("maximum", ["1.39", "1.11"])
def test_candidates_where_callers_are_believed_and_versions_are_lower(tmp_path: Path, maximum: str) -> None:
    mesh = Mesh(state=tmp_path)
    mesh.environment |= {"MOORAGE_PLACEMENT_AUTH": "noauth2", "MOORAGE_PLACEMENT_MAX": maximum}
    with mesh:
        worker, user = (
            mesh.endpoint["placement"],
            {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement latest"},
        )
        assert ask(worker, "GET", "/", **user)[2]["versions"][0]["max_version"] == maximum
        ident = str(uuid.uuid4())
        assert ask(worker, "POST", "/resource_providers", {"uuid": ident, "name": "host"}, **user)[0] in (200, 201)
        inventories = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 2}}}
        assert ask(worker, "PUT", f"/resource_providers/{ident}/inventories", inventories, **user)[0] == 200
        listed = mesh.run("placement", "candidates", "resources=VCPU:2")
        assert listed.returncode == 0 and ident in listed.stdout.decode(), listed
        explained = mesh.run("placement", "candidates", "resources=VCPU:3", "--explain")
        assert explained.returncode == 0 and "best free 2" in explained.stdout.decode(), explained
        made = mesh.run("token", "create", "looking", "--role", "viewer").stdout.decode().strip()
        gateway = f"{mesh.endpoint['http'].rstrip('/')}/placement/allocation_candidates?resources=VCPU:1"
        version = {"OpenStack-API-Version": "placement latest"}
        assert ask(gateway, "GET", "", Authorization=f"Bearer {made}", **version)[0] == 403
        assert ask(gateway, "GET", "", Authorization="Bearer wrong", **version)[0] == 401


def test_bodies_have_a_limit(url: str, tokens: dict[str, str]) -> None:
    given = {"X-Auth-Token": tokens["administrator"]}
    status, _, body = ask(url, "POST", "/resource_providers", b"[" + b"0," * (1 << 20) + b"0]", **given)
    assert status == 413 and body["errors"][0]["status"] == 413


@pytest.mark.parametrize("path", ["/placement@127.0.0.1:1/", "/placementary", "/placement.example.com/"])
def test_the_gateway_passes_nothing_else_on(example: Mesh, path: str) -> None:
    answer = HttpClient(example, "")("GET", path)
    assert answer.status == 404


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MOORAGE_PLACEMENT_AUTH", "none"),
        ("MOORAGE_PLACEMENT_MAX", "1.41"),
        ("MOORAGE_PLACEMENT_MAX", "2.0"),
        ("MOORAGE_PLACEMENT_POLICY", "/nowhere"),
        ("MOORAGE_PLACEMENT_LIMIT", "many"),
        ("MOORAGE_PLACEMENT_LIMIT", "0"),
        ("MOORAGE_PLACEMENT_RANDOM", "maybe"),
    ],
)
def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=variable):
        PlacementSettings.from_env()


def test_a_mesh_does_not_start_with_such_settings(tmp_path: Path) -> None:
    mesh = Mesh(state=tmp_path)
    mesh.environment |= {"MOORAGE_PLACEMENT_AUTH": "noauth2", "MOORAGE_PLACEMENT_HTTP": "0.0.0.0:0"}
    refused = mesh.run("up", "--http", "127.0.0.1:0")
    assert refused.returncode == 2 and b"must be a loopback address" in refused.stderr, refused


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("0.0.0.0:1", False), ("10.0.0.1:1", False), (":1", True)],
)
def test_callers_are_believed_on_loopback_only(monkeypatch: pytest.MonkeyPatch, address: str, allowed: bool) -> None:
    monkeypatch.setenv("MOORAGE_PLACEMENT_AUTH", "noauth2")
    monkeypatch.setenv("MOORAGE_PLACEMENT_HTTP", address)
    if allowed:
        assert PlacementSettings.from_env().http == address
    else:
        with pytest.raises(SystemExit, match="loopback"):
            PlacementSettings.from_env()
