"""A real API server validates the manifests of `ops`: all fields are known, all values valid, all pods restricted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from moorage_testkit.control_plane import ControlPlane

OPS = Path(__file__).parents[2] / "ops"
PATHS = {
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Namespace": "/api/v1/namespaces",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def objects(directory: Path) -> list[dict[str, Any]]:
    found = [one for file in sorted(directory.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())]
    return [one for one in found if one["kind"] != "Kustomization"]


def tried(plane: ControlPlane, namespace: str, item: dict[str, Any]) -> dict[str, Any]:
    """Uses server-side apply, so that the object may exist already."""
    path = f"{PATHS[item['kind']].format(namespace)}/{item['metadata']['name']}"
    query = "dryRun=All&fieldValidation=Strict&fieldManager=tried&force=true"
    response = plane.call("PATCH", f"{path}?{query}", item, "application/apply-patch+yaml")
    made: dict[str, Any] = msgspec.json.decode(response)
    return made


@pytest.mark.parametrize("name", ["agent", "kubernetes"])
def test_the_api_server_accepts_the_manifests(plane: ControlPlane, name: str) -> None:
    found = objects(OPS / name)
    space = next(one for one in found if one["kind"] == "Namespace")
    namespace = f"{space['metadata']['name']}-tried"
    labels = {**space["metadata"].get("labels", {}), "pod-security.kubernetes.io/enforce": "restricted"}
    plane.call("POST", "/api/v1/namespaces", {**space, "metadata": {"name": namespace, "labels": labels}})
    account = next(one for one in found if one["kind"] == "ServiceAccount")
    own = {**account, "metadata": {**account["metadata"], "namespace": namespace}}
    plane.call("POST", PATHS["ServiceAccount"].format(namespace), own)
    try:
        pods = 0
        for item in found:
            if item["kind"] == "Namespace" or item is account:
                continue
            item["metadata"].pop("namespace", None)
            made = tried(plane, namespace, item)
            if template := item.get("spec", {}).get("template"):
                pod = {"apiVersion": "v1", "kind": "Pod", **template}
                pod["metadata"] = {**pod["metadata"], "name": "one"}
                for claim in item["spec"].get("volumeClaimTemplates", ()):
                    pod["spec"]["volumes"].append({"name": claim["metadata"]["name"], "emptyDir": {}})
                admitted = tried(plane, namespace, pod)
                assert admitted["spec"]["securityContext"]["runAsNonRoot"], made["metadata"]["name"]
                pods += 1
        assert pods
    finally:
        plane.call("DELETE", f"/api/v1/namespaces/{namespace}")
