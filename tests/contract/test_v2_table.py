"""Tests every route of `/v2` in each of eight cases against the table of statuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from moorage.gateway.route import Route
from moorage.gateway.v2.routes import table
from moorage.model.v2_resources import CHILDREN, COMPOSITE_APP, KINDS, ResourceKind
from moorage.model.v2_resources import Path as At
from moorage_testkit.http_client import HttpClient, Response
from moorage_testkit.mesh import Mesh

from .test_v2_routes import body, make, name_of, parent_of, problem, url

COLUMNS = ("ok", "missing parent", "exists", "children", "bad body", "wrong name", "no token", "wrong role")
_NAME = re.compile(r"\{\w+\}")
VERBS = ("approve", "instantiate", "update", "migrate", "rollback", "stop", "terminate", "status")
APP = {
    "metadata": {"name": "a"},
    "spec": {"manifests": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}]},
}


def shape(path: str) -> tuple[str, ...]:
    return tuple("" if part.startswith("{") else part for part in path.removeprefix("/v2/").split("/"))


def of(row: Route) -> tuple[ResourceKind, str]:
    """Returns the kind of a row, and whether it is about one, a collection, or a step of one."""
    parts = shape(row.path)
    for kind in KINDS:
        one, many = shape("/".join(kind.path)), shape("/".join(kind.collection))
        if parts == one:
            return kind, "one"
        if parts == many:
            return kind, "many"
        if parts[:-1] == one and parts[-1] in VERBS:
            return kind, parts[-1]
    assert parts == ("projects", "", "composite-apps", ""), parts
    return COMPOSITE_APP, "versions"


def columns(row: Route) -> list[str]:
    """Returns the cases that apply. A route without a body has no bad body, one without a parent no missing parent, and
    any token may read resources outside projects."""
    kind, how = of(row)
    found = ["ok", "no token"]
    if kind.parent(kind.path):
        found.append("missing parent")
    if (row.method, how) == ("POST", "many"):
        found.append("exists")
    if CHILDREN[kind.path] and (how == "one" and row.method in ("PUT", "DELETE")):
        found.append("children")
    if CHILDREN[kind.path] and (row.method, how) == ("DELETE", "many"):
        found.append("children")
    if row.body is not None:
        found.append("bad body")
    if how != "many" or row.method == "POST":
        found.append("wrong name")
    if row.changes or "{project}" in row.path:
        found.append("wrong role")
    return found


CASES = [
    pytest.param(row, column, id=f"{row.method} {row.path.removeprefix('/v2')} {column}")
    for row in table()
    for column in columns(row)
]


@pytest.fixture(scope="module")
def tokens(fleet_mesh: Mesh) -> Iterator[dict[str, str]]:
    rest = HttpClient(fleet_mesh, "/v1")
    made = {}
    wanted: dict[str, dict[str, Any]] = {
        "table-viewer": {"role": "viewer"},
        "table-editor": {"role": "editor"},
        "table-stranger": {"role": "editor", "projects": ["elsewhere"]},
    }
    for name, order in wanted.items():
        made[name] = rest.must(201, "POST", "/tokens", {"name": name, **order})["token"]
    yield made
    for name in wanted:
        rest("DELETE", f"/tokens/{name}")


def at(row: Route, names: At) -> str:
    left = iter(names)
    return _NAME.sub(lambda _: next(left), row.path.removeprefix("/v2"))


def names_in(path: At) -> At:
    """Returns every second segment, and the version of composite apps."""
    return tuple(
        part for kind in [_kind(path)] for part, pattern in zip(path, kind.path, strict=True) if pattern[0] == "{"
    )


def _kind(path: At) -> ResourceKind:
    return next(
        kind
        for kind in KINDS
        if len(kind.path) == len(path)
        and all(p.startswith("{") or p == q for p, q in zip(kind.path, path, strict=True))
    )


def one_of(rest: HttpClient, kind: ResourceKind) -> At:
    return make(rest, kind, parent_of(rest, kind))


def make_cloud(rest: HttpClient, group: At) -> None:
    """Creates the logical cloud that the body of a group names."""
    clouds = (*group[:2], "logical-clouds")
    rest.must(201, "POST", url(clouds), {"metadata": {"name": "lc"}})
    reference = {"metadata": {"name": "r"}, "spec": {"clusterProvider": "lab", "cluster": "edge-1"}}
    rest.must(201, "POST", url((*clouds, "lc", "cluster-references")), reference)


def group(rest: HttpClient, *verbs: str, parent: At | None = None) -> At:
    """Creates a group of one app without pods, and takes these steps with it."""
    kind = next(k for k in KINDS if k.segment == "deployment-intent-groups")
    path = make(rest, kind, parent or parent_of(rest, kind))
    if parent is None:
        rest.must(201, "POST", url((*path[:5], "apps")), APP)
        make_cloud(rest, path)
    for verb in verbs:
        rest.must(202, "POST", url((*path, verb)))
    return path


BEFORE = {
    "instantiate": ("approve",),
    "update": ("approve", "instantiate"),
    "migrate": ("approve", "instantiate"),
    "rollback": ("approve", "instantiate"),
    "stop": ("approve", "instantiate"),
    "terminate": ("approve", "instantiate"),
}


def prepared(rest: HttpClient, kind: ResourceKind, how: str) -> tuple[At, Any]:
    """Returns the path and the body of a step."""
    if kind.segment != "deployment-intent-groups":
        return one_of(rest, kind), None
    path = group(rest, *BEFORE.get(how, ()))
    if how == "migrate":
        target = group(rest, "approve", parent=path[:5])
        return path, {"spec": {"targetCompositeAppVersion": path[4], "targetDigName": target[6]}}
    if how == "rollback":
        return path, {"spec": {"revision": 1}}
    return path, None


def ok(rest: HttpClient, row: Route) -> Response:
    kind, how = of(row)
    if how == "many":
        parent = parent_of(rest, kind)
        where = at(row, names_in(parent) if parent else ())
        if row.method == "DELETE" and CHILDREN[kind.path] and not parent:  # projects and clusters of other tests stay
            return rest("DELETE", url(make(rest, kind, ())))
        return rest(row.method, where, body(kind, name_of(kind)) if row.method == "POST" else None)
    if how == "versions":
        return rest("GET", url(one_of(rest, kind)[:-1]))
    if how == "one":
        path = one_of(rest, kind)
        given = body(kind, path[3] if kind is COMPOSITE_APP else path[-1]) if row.method == "PUT" else None
        return rest(row.method, url(path), given)
    path, payload = prepared(rest, kind, how)
    return rest(row.method, url((*path, how)), payload)


@pytest.mark.parametrize(("row", "column"), CASES)
def test_each_route_answers_with_the_status_of_the_table(
    rest: HttpClient, tokens: dict[str, str], row: Route, column: str
) -> None:
    kind, how = of(row)
    nowhere = at(row, tuple("nowhere" for _ in _NAME.findall(row.path)))
    given = body(kind, "nowhere") if row.method in ("POST", "PUT") and how in ("one", "many") else None
    if given is not None and kind is COMPOSITE_APP and how == "one":
        given["spec"]["compositeAppVersion"] = "nowhere"
    match column:
        case "ok":
            answered = ok(rest, row)
            assert answered.status == row.status, answered
        case "missing parent":
            problem(rest(row.method, nowhere, given), 404, "NotFound")
        case "exists":
            path = one_of(rest, kind)
            own = path[3] if kind is COMPOSITE_APP else path[-1]
            parent = path[: len(kind.collection) - 1]
            problem(rest("POST", url((*parent, kind.segment)), body(kind, own)), 409, "AlreadyExists")
        case "children":
            path = one_of(rest, kind)
            make(rest, CHILDREN[kind.path][0], path)
            own = path[3] if kind is COMPOSITE_APP else path[-1]
            spot = path[: len(kind.collection)] if how == "many" else path
            problem(rest(row.method, url(spot), body(kind, own) if row.method == "PUT" else None), 409, "HasChildren")
            rest.must(200, "GET", url(path))
        case "bad body":
            if how == "many":
                where = url((*parent_of(rest, kind), kind.segment))
            else:
                path, _ = prepared(rest, kind, how) if how in VERBS else (one_of(rest, kind), None)
                where = url((*path, how)) if how in VERBS else url(path)
            problem(rest(row.method, where, b"{"), 400, "Undecodable")
            errors = problem(rest(row.method, where, {"spec": 3}), 400, "Invalid")
            assert errors and all(error["path"] and error["code"] and error["message"] for error in errors)
        case "wrong name":
            parent = parent_of(rest, kind)
            if how == "many":
                errors = problem(rest("POST", url((*parent, kind.segment)), body(kind, "-no-")), 400, "Invalid")
                assert len(errors) == 1
            elif how == "versions":
                problem(rest("GET", url((*parent, kind.segment, "nobody"))), 404, "NotFound")
            else:
                names: At = ("nobody", "v1.0") if kind is COMPOSITE_APP else ("nobody",)
                path = (*parent, kind.segment, *names)
                where = url(path) if how == "one" else url((*path, how))
                given = body(kind, "nobody") if row.method == "PUT" else None
                problem(rest(row.method, where, given), 404, "NotFound")
                if row.method == "PUT":  # the name in the body differs from the path
                    path = make(rest, kind, parent)
                    errors = problem(rest("PUT", url(path), body(kind, "other")), 400, "Invalid")
                    assert [error["code"] for error in errors] == ["NameMismatch"]
        case "no token":
            for token in ("", "wrong"):
                problem(rest(row.method, nowhere, given, token=token), 401, "Unauthorized")
        case "wrong role":
            wrong = ["table-stranger"] if "{project}" in row.path or row.changes else []
            if row.changes:
                wrong.append("table-viewer" if "{project}" in row.path else "table-editor")
            for name in wrong:
                problem(rest(row.method, nowhere, given, token=tokens[name]), 403, "Forbidden")
            right = "table-editor" if row.changes and "{project}" in row.path else "table-viewer"
            if not row.changes or "{project}" in row.path:
                assert rest(row.method, nowhere, given, token=tokens[right]).status in (200, 201, 204, 404)
        case _:
            raise AssertionError(column)


def test_every_route_and_case_is_tested() -> None:
    seen = {column for row in table() for column in columns(row)}
    assert seen == set(COLUMNS)
    kinds = {(of(row)[0].path, of(row)[1], row.method) for row in table()}
    assert len(kinds) == len(table())
    for kind in KINDS:
        assert {(how, method) for path, how, method in kinds if path == kind.path} >= {
            ("many", "GET"), ("many", "POST"), ("many", "DELETE"), ("one", "GET"), ("one", "DELETE"),
        }  # fmt: skip
        assert (kind.path, "one", "PUT") in kinds or not kind.replaced
