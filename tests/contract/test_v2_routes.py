"""Tests every route of `/v2`. That the routes without the prefix are equal is tested once, in
`tests/unit/test_v2_without_prefix.py`; here only tests about the prefix run with both."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from moorage.model.v2_resources import CHILDREN, COMPOSITE_APP, KINDS, ResourceKind
from moorage.model.v2_resources import Path as At
from moorage_testkit.http_client import HttpClient, Response

_numbers = itertools.count()


def params(kinds: Iterable[ResourceKind]) -> list[Any]:
    return [pytest.param(kind, id="-".join(p for p in kind.path if not p.startswith("{"))) for kind in kinds]


ALL = params(KINDS)
INNER = params(kind for kind in KINDS if kind.parent(kind.path))
OUTER = params(kind for kind in KINDS if CHILDREN[kind.path])


def body(kind: ResourceKind, name: str) -> dict[str, Any]:
    """Returns a valid body, in the form of the response."""
    specs: dict[str, dict[str, Any]] = {
        "composite-apps": {"compositeAppVersion": "v1.0"},
        "profiles": {"app": "a"},
        "deployment-intent-groups": {"compositeProfile": "p", "version": "r1", "logicalCloud": "lc"},
        "intents": {"intent": {"genericPlacementIntent": "g"}},
        "app-intents": {"app": "a", "intent": {"allOf": [{"clusterProvider": "lab", "cluster": "edge-1"}]}},
        "hpa-intents": {"app": "a", "resourceConsumers": []},
        "hpa-resource-consumers": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "container": "c"},
        "resource-requirements": {
            "mandatory": True,
            "allocatable": True,
            "resource": {"name": "cpu", "requests": 1, "limits": 2},
        },
        "cluster-references": {"clusterProvider": "lab", "cluster": "edge-1"},
        "kv-pairs": {"kv": [{"k": "v"}]},
        "controllers": {"host": "h", "port": 9031, "type": "placement", "priority": 1},
    }
    if kind.segment == "labels":
        return {"clusterLabel": name}
    metadata = {"name": name, "description": "d", "userData1": "one", "userData2": "two"}
    spec = specs.get(kind.segment)
    return {"metadata": metadata} if spec is None else {"metadata": metadata, "spec": spec}


def name_of(kind: ResourceKind) -> str:
    return f"{kind.segment[:12].strip('-')}-{next(_numbers)}"


def url(path: At) -> str:
    return "/" + "/".join(path)


def make(rest: HttpClient, kind: ResourceKind, parent: At, name: str = "") -> At:
    name = name or name_of(kind)
    make_app(rest, kind, parent)
    rest.must(201, "POST", url((*parent, kind.segment)), body(kind, name))
    own = (name, "v1.0") if kind is COMPOSITE_APP else (name,)
    return (*parent, kind.segment, *own)


def make_app(rest: HttpClient, kind: ResourceKind, parent: At) -> None:
    """Creates the app of the hardware intents below the parent."""
    if kind.segment == "hpa-intents":
        rest("POST", url((*parent[:5], "apps")), {"metadata": {"name": "a"}})


def parent_of(rest: HttpClient, kind: ResourceKind) -> At:
    """Creates the parent with all its ancestors, and returns its path."""
    wanted = kind.parent(kind.path)
    if not wanted:
        return ()
    above = next(k for k in KINDS if k.path == wanted)
    parent = make(rest, above, parent_of(rest, above))
    make_app(rest, kind, parent)
    return parent


def missing(kind: ResourceKind, parent: At) -> At:
    """Returns a path like the parent's that does not exist."""
    return (*parent[:-1], "nobody")


def problem(answered: Response, status: int, code: str) -> list[dict[str, str]]:
    assert answered.status == status, answered
    assert answered.headers["content-type"] == "application/problem+json"
    assert answered.body["status"] == status
    assert answered.code == code, answered.body
    errors: list[dict[str, str]] = answered.body["errors"]
    return errors


@pytest.mark.parametrize("kind", ALL)
def test_resources_are_created_read_changed_and_deleted(rest: HttpClient, kind: ResourceKind) -> None:
    parent = parent_of(rest, kind)
    collection = url((*parent, kind.segment))
    if parent:
        assert rest.must(200, "GET", collection) == []
    name = name_of(kind)
    given = body(kind, name)
    made = rest("POST", collection, given)
    assert (made.status, made.body) == (201, given)
    one = collection + "/" + "/".join((name, "v1.0") if kind is COMPOSITE_APP else (name,))
    assert made.headers["location"] == rest.prefix + one
    got = rest("GET", one)
    assert (got.status, got.body) == (200, given)
    assert got.headers["etag"] == made.headers["etag"]
    assert given in rest.must(200, "GET", collection)
    problem(rest("POST", collection, given), 409, "AlreadyExists")
    if not kind.replaced:
        problem(rest("PUT", one, given), 405, "MethodNotAllowed")
    else:
        changed = {**given, "metadata": {"name": name, "description": "other"}}
        put = rest("PUT", one, changed)
        assert (put.status, put.body) == (200, changed)
        assert rest.must(200, "GET", one) == changed
        problem(rest("PUT", one, given, If_Match=made.headers["etag"]), 412, "Changed")
        problem(rest("DELETE", one, If_Match=made.headers["etag"]), 412, "Changed")
        problem(rest("PUT", one, {**given, "metadata": {"name": "other"}}), 400, "Invalid")
    assert rest("DELETE", one).status == 204
    problem(rest("GET", one), 404, "NotFound")
    problem(rest("DELETE", one), 404, "NotFound")
    rest.must(201, "POST", collection, given)  # the name is free again
    assert rest("DELETE", one).status == 204


@pytest.mark.parametrize("kind", INNER)
def test_a_resource_needs_its_parent(rest: HttpClient, kind: ResourceKind) -> None:
    parent = missing(kind, parent_of(rest, kind))
    collection = url((*parent, kind.segment))
    for method, path, given in (
        ("POST", collection, body(kind, "x")),
        ("GET", collection, None),
        ("DELETE", collection, None),
        ("GET", collection + "/x" + ("/v1" if kind is COMPOSITE_APP else ""), None),
    ):
        problem(rest(method, path, given), 404, "NotFound")


@pytest.mark.parametrize("kind", ALL)
def test_unreadable_bodies_are_refused(rest: HttpClient, kind: ResourceKind) -> None:
    parent = parent_of(rest, kind)
    collection = url((*parent, kind.segment))
    problem(rest("POST", collection, b""), 400, "Empty")
    problem(rest("POST", collection, b"{"), 400, "Undecodable")
    problem(rest("POST", collection, b'{"metadata": {"name": "\xff"}}'), 400, "Undecodable")
    problem(rest("POST", collection, b"[" * 5000 + b"]" * 5000), 400, "TooDeep")
    problem(rest("POST", collection, []), 400, "Invalid")
    assert problem(rest("POST", collection, {}), 400, "Invalid")
    given = body(kind, "-not a name-")
    errors = problem(rest("POST", collection, given), 400, "Invalid")
    assert [e["path"] for e in errors] == ["clusterLabel" if kind.segment == "labels" else "metadata.name"]
    if kind.replaced:
        one = url(make(rest, kind, parent))
        problem(rest("PUT", one, b""), 400, "Empty")
        problem(rest("PUT", one, b"nonsense"), 400, "Undecodable")
        unknown = one.rsplit("/", 1)[0] + "/nobody"
        given = body(kind, "nobody")
        if kind is COMPOSITE_APP:
            given = {**given, "metadata": {"name": one.split("/")[-2]}, "spec": {"compositeAppVersion": "nobody"}}
        problem(rest("PUT", unknown, given), 404, "NotFound")


@pytest.mark.parametrize("kind", OUTER)
def test_a_resource_with_children_is_not_deleted(rest: HttpClient, kind: ResourceKind) -> None:
    parent = parent_of(rest, kind)
    path = make(rest, kind, parent)
    free = make(rest, kind, parent)
    for child in CHILDREN[kind.path]:
        below = make(rest, child, path)
        given = body(kind, path[len(parent) + 1])
        if kind.replaced:
            problem(rest("PUT", url(path), given), 409, "HasChildren")
        problem(rest("DELETE", url(path)), 409, "HasChildren")
        if parent:
            problem(rest("DELETE", url((*parent, kind.segment))), 409, "HasChildren")
        rest.must(200, "GET", url(free))  # all or nothing
        assert rest("DELETE", url(below)).status == 204
    assert rest("DELETE", url(path)).status == 204


@pytest.mark.parametrize("kind", INNER)
def test_a_collection_is_deleted_as_a_whole(rest: HttpClient, kind: ResourceKind) -> None:
    parent = parent_of(rest, kind)
    made = [make(rest, kind, parent) for _ in range(3)]
    collection = url((*parent, kind.segment))
    assert len(rest.must(200, "GET", collection)) == 3
    assert rest("DELETE", collection).status == 204
    assert rest.must(200, "GET", collection) == []
    assert rest("GET", url(made[0])).status == 404
    assert rest("DELETE", collection).status == 204


@pytest.mark.parametrize("kind", ALL)
def test_every_route_needs_a_token(rest: HttpClient, kind: ResourceKind) -> None:
    collection = url(tuple("x" if p.startswith("{") else p for p in kind.collection))
    one = collection + "/x" * kind.names
    for method, path in itertools.product(("GET", "POST", "PUT", "DELETE"), (collection, one)):
        problem(rest(method, path, token=""), 401, "Unauthorized")
        problem(rest(method, path, token="wrong"), 401, "Unauthorized")


@pytest.mark.parametrize("rest", ["/v2", ""], ids=["v2", "bare"], indirect=True)
def test_location_headers_have_the_prefix_of_the_request(rest: HttpClient) -> None:
    name = name_of(KINDS[0])
    assert rest("POST", "/projects", body(KINDS[0], name)).headers["location"] == f"{rest.prefix}/projects/{name}"


@pytest.mark.parametrize("rest", ["/v2", ""], ids=["v2", "bare"], indirect=True)
def test_lists_are_paginated(rest: HttpClient) -> None:
    project = make(rest, KINDS[0], ())
    for number in range(5):
        make(rest, COMPOSITE_APP, project, f"app-{number}")
    seen: list[str] = []
    where = url((*project, "composite-apps")) + "?limit=2"
    while where:
        page = rest("GET", where)
        seen += [one["metadata"]["name"] for one in page.body]
        link = page.headers.get("link", "")
        where = link.split(">")[0][1:].removeprefix(rest.prefix) if link else ""
    assert seen == [f"app-{number}" for number in range(5)]
    assert rest("GET", url((*project, "composite-apps")) + "?limit=x").status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/cluster-providers/lab/clusters/edge-1/networks",
        "/cluster-providers/lab/clusters/edge-1/provider-networks/x",
        "/cluster-providers/lab/clusters/edge-1/apply",
        "/projects/p/composite-apps/c/v1/deployment-intent-groups/d/network-controller-intent",
        "/projects/p/composite-apps/c/v1/deployment-intent-groups/d/network-chains/x/y",
        "/projects/p/composite-apps/c/v1/deployment-intent-groups/d/traffic-group-intents",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_networks_are_refused_as_not_supported(rest: HttpClient, method: str, path: str) -> None:
    answered = rest(method, path, {} if method == "POST" else None)
    problem(answered, 501, "NetworksUnsupported")
    assert "network" in answered.body["detail"]


@pytest.mark.parametrize("rest", ["/v2", ""], ids=["v2", "bare"], indirect=True)
def test_unknown_paths_are_not_found(rest: HttpClient) -> None:
    problem(rest("GET", "/nonsense"), 404, "NotFound")
    problem(rest("GET", "/projects/x/nonsense"), 404, "NotFound")


def test_verbs_and_status_of_an_unknown_group_are_not_found(rest: HttpClient) -> None:
    project = make(rest, KINDS[0], ())
    app = make(rest, COMPOSITE_APP, project)
    nobody = url((*app, "deployment-intent-groups", "nobody"))
    for verb in ("approve", "instantiate", "update", "stop", "terminate"):
        problem(rest("POST", f"{nobody}/{verb}"), 404, "NotFound")
    problem(rest("GET", f"{nobody}/status"), 404, "NotFound")
    problem(rest("POST", f"{nobody}/approve", token=""), 401, "Unauthorized")


def test_every_kind_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "v2.md").read_text()
    for kind in KINDS:
        assert f"`{'/'.join(kind.path)}`" in page, kind.path


@pytest.mark.parametrize("segment", ["profiles", "app-intents"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_what_belongs_to_an_app_is_found_by_its_name(rest: HttpClient, segment: str, slash: str) -> None:
    """A placement intent is answered with its `spec` alone, and both also at the path with a slash, as by EMCO."""
    kind = next(kind for kind in KINDS if kind.segment == segment)
    path = make(rest, kind, parent_of(rest, kind))
    collection = url(path[:-1]) + slash
    whole = body(kind, path[-1])
    assert rest.must(200, "GET", f"{collection}?app=a") == (whole["spec"] if segment == "app-intents" else whole)
    problem(rest("GET", f"{collection}?app=nobody"), 404, "NotFound")
    if slash:
        assert rest.must(200, "GET", collection) == [whole]
    problem(rest("GET", f"{collection}?app=a", token=""), 401, "Unauthorized")
