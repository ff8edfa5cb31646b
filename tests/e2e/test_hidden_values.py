"""No value of a Secret or a kubeconfig can be read over HTTP, and documents with hidden values can be applied again."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

VALUE = "correct-horse-battery-staple"
CODED = base64.b64encode(VALUE.encode()).decode()
CLIENT_KEY = "LS0tLS1CRUdJTiBLRVk="
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"password": CODED}}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://nowhere"}}],
    "users": [{"name": "u", "user": {"client-key-data": CLIENT_KEY}}],
}


def document(**data: str) -> dict[str, Any]:
    secret = {**SECRET, "data": {**SECRET["data"], **data}, "stringData": {"user": VALUE}}  # type: ignore[dict-item]
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"seen": "yes"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [secret]}
    return {
        "kind": "Application",
        "metadata": {"name": "keeper", "project": "hidden"},
        "spec": {"apps": [{"name": "web", "manifests": [config, listed]}]},
    }


def clean(text: Any) -> None:
    text = text.decode() if isinstance(text, bytes) else json.dumps(text)
    assert VALUE not in text and CODED not in text and CLIENT_KEY not in text


def test_secrets_of_an_application_are_hidden(example: Mesh) -> None:
    rest = HttpClient(example, "")
    clean(rest.must(200, "POST", "/v1/apply", document()))
    group = "/v1/groups/hidden/keeper/v1/default"
    rest.until(group, lambda found: found["phase"] == "Running")
    shown = rest.must(200, "GET", "/v1/applications/hidden/keeper")
    assert "<hidden>" in json.dumps(shown) and "yes" in json.dumps(shown)
    v2 = "/v2/projects/hidden/composite-apps/keeper/v1"
    for path in (
        "/v1/applications",
        "/v1/applications/hidden/keeper",
        group,
        f"{group}/why",
        f"{group}/diff",
        f"{group}/story",
        f"{group}/candidates",
        "/v1/decisions?group=hidden/keeper/v1/default",
        "/v1/events?follow=false",
        f"{v2}/apps",
        f"{v2}/apps/web",
        f"{v2}/deployment-intent-groups/default/status?output=detail",
    ):
        clean(rest.must(200, "GET", path))
    items = rest.must(200, "GET", f"{group}/diff")["items"]
    assert "<hidden>" in json.dumps(items), "that there is one is no secret"
    clean(example.run("get", "application", "keeper", "-p", "hidden", "-o", "yaml").stdout)
    # Applying the document as it was read changes nothing; a change of another field keeps the hidden values.
    assert rest.must(200, "POST", "/v1/apply", shown)["outcome"] == "unchanged"
    shown["spec"]["apps"][0]["manifests"][0]["data"]["seen"] = "no"
    assert rest.must(200, "POST", "/v1/apply", shown)["outcome"] == "updated"
    original = document()
    original["spec"]["apps"][0]["manifests"][0]["data"]["seen"] = "no"
    assert rest.must(200, "POST", "/v1/apply", original)["outcome"] == "unchanged", "the values are those of before"
    shown["spec"]["apps"][0]["manifests"][1]["items"][0]["data"]["other"] = "<hidden>"
    refused = rest("POST", "/v1/apply", shown)
    assert (refused.status, refused.body["errors"][0]["code"]) == (400, "Hidden")
    rest("DELETE", "/v1/applications/hidden/keeper")


@pytest.mark.parametrize("how", ["objects", "text", "file"])
def test_secrets_of_an_app_and_a_cluster_are_hidden(example: Mesh, how: str) -> None:
    rest = HttpClient(example, "/v2")
    project = f"hidden-{how}"
    rest.must(201, "POST", "/projects", {"metadata": {"name": project}})
    body = {"metadata": {"name": "shop"}, "spec": {"compositeAppVersion": "v1"}}
    rest.must(201, "POST", f"/projects/{project}/composite-apps", body)
    apps = f"/projects/{project}/composite-apps/shop/v1/apps"
    text = f"kind: Secret\napiVersion: v1\nmetadata: {{name: s}}\ndata:\n  password: {CODED}\n"
    if how == "file":
        made = rest.upload("POST", apps, {"metadata": {"name": "a"}}, text.encode())
    else:
        spec = {"manifests": [SECRET] if how == "objects" else text}
        made = rest("POST", apps, {"metadata": {"name": "a"}, "spec": spec})
    assert made.status == 201, made
    clean(made.body)
    shown = rest.must(200, "GET", f"{apps}/a")
    for path in (apps, f"{apps}/a"):
        clean(rest.must(200, "GET", path))
    file = rest("GET", f"{apps}/a", Accept="application/octet-stream")
    clean(file.body)
    assert b"<hidden>" in file.body
    assert rest("PUT", f"{apps}/a", shown).status == 200, "what was read may be sent back"
    bad = rest(
        "POST", apps, {"metadata": {"name": "b"}, "spec": {"manifests": [{**SECRET, "data": {"a": "<hidden>"}}]}}
    )
    assert (bad.status, bad.body["errors"][0]["code"]) == (400, "Hidden")

    rest.must(201, "POST", "/cluster-providers", {"metadata": {"name": project}})
    clusters = f"/cluster-providers/{project}/clusters"
    if how == "file":
        made = rest.upload("POST", clusters, {"metadata": {"name": "c"}}, json.dumps(KUBECONFIG).encode())
    else:
        given = KUBECONFIG if how == "objects" else json.dumps(KUBECONFIG)
        made = rest("POST", clusters, {"metadata": {"name": "c"}, "spec": {"kubeconfig": given, "kept": "as it is"}})
    assert made.status == 201, made
    for found in (made.body, rest.must(200, "GET", clusters), rest.must(200, "GET", f"{clusters}/c")):
        clean(found)
        assert "kubeconfig" not in json.dumps(found)
    assert rest("GET", f"{clusters}/c", Accept="application/octet-stream").status == 404


def test_secrets_are_neither_in_rejected_messages_nor_in_logs(example: Mesh) -> None:
    rest = HttpClient(example, "/v2")
    broken = json.dumps(document(also=CODED)).encode()[:-3]
    assert rest("POST", "/projects", broken).status == 400
    assert HttpClient(example, "/v1")("POST", "/apply", broken).status == 400
    logs = b"".join(path.read_bytes() for path in Path(example.state).rglob("*.log"))
    assert logs
    clean(logs)
    clean(example.output())
