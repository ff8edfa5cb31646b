"""A cluster registered with a kubeconfig has an agent as long as it is registered."""

from __future__ import annotations

from pathlib import Path

from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until


def test_a_cluster_registered_with_a_kubeconfig_joins_and_runs_groups(planes: list[ControlPlane]) -> None:
    plane = planes[1]
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "registered"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "registered"}},
            "template": {
                "metadata": {"labels": {"app": "registered"}},
                "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]},
            },
        },
    }
    with Mesh() as mesh:
        rest, v1 = HttpClient(mesh, "/v2"), HttpClient(mesh, "/v1")
        rest.must(201, "POST", "/cluster-providers", {"metadata": {"name": "site"}})
        clusters = "/cluster-providers/site/clusters"
        kubeconfig = Path(plane.kubeconfig).read_bytes()
        assert rest.upload("POST", clusters, {"metadata": {"name": "one"}}, kubeconfig).status == 201
        rest.must(201, "POST", f"{clusters}/one/labels", {"clusterLabel": "near"})
        v1.until("/clusters", lambda page: [(c["id"], c["state"]) for c in page["items"]] == [("site/one", "Ready")])
        rest.until(f"{clusters}/one/status", lambda status: status["connectivity"] == "available")
        document = {
            "kind": "Application",
            "metadata": {"name": "there"},
            "spec": {
                "apps": [{"name": "a", "manifests": [manifest], "placement": {"allOf": [{"label": {"near": "true"}}]}}]
            },
        }
        label = v1.until("/clusters/site/one", lambda one: "near" in one["labels"])["labels"]["near"]
        document["spec"]["apps"][0]["placement"]["allOf"][0]["label"]["near"] = label  # type: ignore[index]
        v1.must(200, "POST", "/apply", document)
        group = "/groups/default/there/v1/default"
        assert v1.until(group, lambda one: one["phase"] == "Running", 90)["apps"]["a"]["clusters"] == ["site/one"]
        v1("DELETE", "/applications/default/there")
        v1.until("/groups", lambda page: not page["items"], 40)
        assert rest("DELETE", f"{clusters}/one/labels/near").status == 204
        assert rest("DELETE", f"{clusters}/one").status == 204
        v1.until("/clusters", lambda page: not page["items"] or page["items"][0]["state"] == "Stale", 40)
        wait_until(lambda: not list((mesh.state / "kubeconfigs").iterdir()), "its kubeconfig is gone")
        assert b"client-key-data" not in (mesh.state / "logs" / "agents.log").read_bytes()
