"""The OpenAPI document is valid and complete, and every response matches it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from moorage.gateway.core.openapi import document
from moorage.gateway.routes import V1
from moorage.gateway.v2.routes import table
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

ROUTES = (*V1, *table())
DOCUMENT = document(ROUTES, "0")
OPERATIONS = {
    result.ok().label: result.ok()
    for result in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
    if isinstance(result, Ok)
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: Names that exist in the example.
REAL = {
    "project": "default",
    "app": "app1",
    "name": "app1",
    "version": "v1",
    "group": "default",
    "verb": "approve",
    "kind": "HpaIntent",
    "provider": "lab",
    "cluster": "edge-1",
}


@pytest.fixture(scope="module")
def described() -> Iterator[Mesh]:
    with Mesh("--example") as mesh:
        yield mesh


def test_the_description_is_public_and_stable(described: Mesh) -> None:
    rest = HttpClient(described, "")
    answered = rest("GET", "/openapi.json", token="")
    assert answered.status == 200 and answered.body["openapi"] == "3.1.0"
    assert answered.body["paths"] == DOCUMENT["paths"]
    assert rest("GET", "/openapi.json", If_None_Match=answered.headers["etag"]).status == 304


def test_the_docs_page_loads_nothing_from_other_hosts(described: Mesh) -> None:
    answered = HttpClient(described, "")("GET", "/docs", token="")
    page = answered.body.decode()
    assert answered.status == 200 and answered.headers["content-type"].startswith("text/html")
    assert not re.findall(r"""(?:src|href)=(?!["']data:)|https?://|@import|url\(""", page)
    policy = answered.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src 'self'" in policy


def test_the_start_page_leads_to_the_docs(described: Mesh) -> None:
    rest = HttpClient(described, "")
    answered = rest("GET", "/", token="")
    page = answered.body.decode()
    assert answered.status == 200 and answered.headers["content-type"].startswith("text/html")
    assert "places applications" in page and f"Version {described.http('/openapi.json')['info']['version']}." in page
    links = re.findall(r'href="(/[^"]*)"', page)
    assert "/docs" in links and all(rest("GET", link, token="").status == 200 for link in links)
    assert "script-src 'none'" in answered.headers["content-security-policy"]


def test_every_operation_names_all_roles_that_may_call_it() -> None:
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    texts = Counter(operation.get("description", "").partition(".")[0] for operation in operations)
    assert set(texts) == {
        "",  # no token is needed
        "Requires the role viewer, editor or admin",
        "Requires the role editor or admin",
        "Requires the role admin",
    }
    apply = DOCUMENT["paths"]["/v1/apply"]["post"]["description"]
    assert apply.endswith("a Fleet, and resource classes and what belongs to them, require the role admin.")


def test_the_document_is_valid_openapi() -> None:
    assert len(OPERATIONS) == len(ROUTES), "every row is an operation that a reader can use"
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(DOCUMENT)
    assert {name.rsplit("/", 1)[1] for name in re.findall(r'"(#/components/schemas/[^"]+)"', text)} <= set(schemas)
    ids = [op["operationId"] for methods in DOCUMENT["paths"].values() for op in methods.values()]
    assert len(ids) == len(set(ids))
    for path, methods in DOCUMENT["paths"].items():
        for method, op in methods.items():
            named = {p["name"] for p in op.get("parameters", []) if p["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), (method, path)
            assert op["summary"] and op["responses"], (method, path)


@pytest.mark.parametrize("label", [label for label in OPERATIONS if label.startswith("GET ")])
def test_reads_match_the_description(described: Mesh, label: str) -> None:
    """Reads everything that the example has."""
    operation = OPERATIONS[label]
    rest = HttpClient(described, "")
    names = dict(REAL)
    if "/v1/decisions/" in label:
        names["id"] = rest("GET", "/v1/decisions").body["items"][0]["id"]
    if "/v1/nodes/" in label:
        names["provider"], names["cluster"], names["name"] = _node(rest)
    elif "/v1/clusters/" in label:
        names["provider"], names["name"], _ = _node(rest)
    elif "/v1/controllers/" in label:
        names["name"] = "hpa"
    elif (kind := re.search("/v1/(resource-classes|device-sources|device-quotas|class-grants)/", label)) is not None:
        names["name"] = _fleet_object(rest, kind[1])
    known = {name: names.get(name, "nothing") for name in re.findall(r"\{(\w+)\}", label)}
    query = {"follow": "false"} if "/events" in label else {"resources": "VCPU:1"} if "/placement" in label else {}
    case = operation.Case(path_parameters=known, query=query)
    response = case.call(base_url=described.endpoint["http"], headers=_headers(described))
    case.validate_response(response, checks=CHECKS)
    if label.startswith("GET /v1/") and not re.search(r"/(intents|tokens|story|parts|machines)/\{", label):
        assert response.status_code == 200, response.text


def _fleet_object(rest: HttpClient, plural: str) -> str:
    """Returns the name of an object of the fleet, which is made where there is none from the start."""
    specs: dict[str, tuple[str, dict[str, Any]]] = {
        "resource-classes": ("ResourceClass", {}),
        "device-quotas": ("DeviceQuota", {"projects": ["nobody"], "devices": [{"class": "*", "count": 9}]}),
    }
    if plural in specs:
        kind, spec = specs[plural]
        assert rest("POST", "/v1/apply", {"kind": kind, "metadata": {"name": "read"}, "spec": spec}).status == 200
        return "read"
    return "everyone" if plural == "class-grants" else "nvidia"


def _node(rest: HttpClient) -> tuple[str, str, str]:
    node = rest("GET", "/v1/nodes?limit=1").body["items"][0]
    provider, cluster = node["cluster"].split("/")
    return provider, cluster, node["name"]


def _headers(mesh: Mesh) -> dict[str, str]:
    return {"Authorization": f"Bearer {mesh.endpoint['token']}"}


#: The fleet is replaced last: the other requests need its clusters.
FUZZED = sorted(OPERATIONS, key=lambda label: ("/sim/" in label, "controllers" in label, label))


@pytest.mark.parametrize("label", FUZZED)
def test_random_requests_are_answered_as_described(described: Mesh, label: str) -> None:
    """Valid and invalid requests cause no server error, and no response breaks a schema."""
    operation = OPERATIONS[label]
    modes = [operation.as_strategy(generation_mode=mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
    if not operation.body and not operation.query and not operation.headers:
        modes = modes[:1]

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(modes), real=st.booleans())
    def run(case: Any, real: bool) -> None:
        if real and case.path_parameters:
            case.path_parameters = {name: REAL.get(name, "nothing") for name in case.path_parameters}
        if label == "GET /v1/events":
            case.query = {**(case.query or {}), "follow": "false"}  # a stream would never end
        response = case.call(base_url=described.endpoint["http"], headers=_headers(described), timeout=90)
        case.validate_response(response, checks=CHECKS)

    run()
