"""Makes the manifests that `moorage join` applies: a namespace, the least rights, the agent's credentials and its Deployment.
`ops/agent` has the same as files, which are made here too."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moorage.model.object_names import NAMESPACE
from moorage.model.worker_pods import CONTAINER, POD_SECURITY
from moorage.podspec import ALLOCATES, DRA_LABEL

NAME = "moorage-agent"
#: The rules of any ClusterRole with this label are added to the agent's rights.
AGGREGATED = "moorage.dev/aggregate-to-agent"
#: Port of probes and metrics, of every worker of the image.
METRICS = 9464
IMAGE = "moorage"

Object = dict[str, Any]
_LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "moorage"}
_READ = ["get", "list", "watch"]
_WRITE = ["get", "create", "patch", "delete"]
_READ_WRITE = ["get", "list", "watch", "create", "patch", "delete"]

#: Secrets are never listed, because the agent must not read those of others.
RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": _READ},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "devicetaintrules"], "verbs": _READ},
    {"apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"], "verbs": _READ},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": _WRITE},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "patch", "delete"]},
    {
        "apiGroups": [""],
        "resources": ["namespaces", "configmaps", "services", "serviceaccounts", "persistentvolumeclaims", "resourcequotas", "limitranges", "replicationcontrollers"],
        "verbs": _READ_WRITE,
    },
    {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": _READ_WRITE},
    {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets", "daemonsets", "replicasets"], "verbs": _READ_WRITE},
    {"apiGroups": ["batch"], "resources": ["jobs", "cronjobs"], "verbs": _READ_WRITE},
    {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "networkpolicies"], "verbs": _READ_WRITE},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": _READ_WRITE},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": _READ_WRITE},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "resourceclaimtemplates", "deviceclasses"], "verbs": _READ_WRITE},
]  # fmt: skip

#: Where the cluster's label lets the agent allocate devices itself: the statuses of claims, and what makes it bind pods to them.
ALLOCATION_RULES: list[Object] = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["update", "patch"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/binding"], "verbs": ["update", "patch"]},
]

#: In its own namespace only: its lease and its records.
OWN_RULES: list[Object] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "update", "delete"]},
]


def _object(api: str, kind: str, name: str, *, namespaced: bool = False, labels: Mapping[str, str] = {}, **rest: Any) -> Object:  # fmt: skip
    metadata: Object = {"name": name, "labels": {**_LABELS, **labels}}
    if namespaced:
        metadata["namespace"] = NAMESPACE
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def _binding(kind: str, role: str, *, namespaced: bool) -> Object:
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    api = "rbac.authorization.k8s.io"
    reference = {"apiGroup": api, "kind": role, "name": NAME}
    return _object(f"{api}/v1", kind, NAME, namespaced=namespaced, roleRef=reference, subjects=[subject])


def rights(labels: Mapping[str, str] = {}) -> list[Object]:
    """Returns all objects but the credentials and the Deployment, for a cluster with these labels."""
    rbac = "rbac.authorization.k8s.io/v1"
    role = _object(rbac, "ClusterRole", f"{NAME}-devices", labels={AGGREGATED: "true"}, rules=ALLOCATION_RULES)
    allocating = [role] if labels.get(DRA_LABEL) == ALLOCATES else []
    selector = {"clusterRoleSelectors": [{"matchLabels": {AGGREGATED: "true"}}]}
    return [
        _object("v1", "Namespace", NAMESPACE),
        _object("v1", "ServiceAccount", NAME, namespaced=True),
        _object(rbac, "ClusterRole", f"{NAME}-base", labels={AGGREGATED: "true"}, rules=RULES),
        *allocating,
        _object(rbac, "ClusterRole", NAME, aggregationRule=selector, rules=[]),
        _binding("ClusterRoleBinding", "ClusterRole", namespaced=False),
        _object(rbac, "Role", NAME, namespaced=True, rules=OWN_RULES),
        _binding("RoleBinding", "Role", namespaced=True),
    ]


def all_rights() -> list[Object]:
    """Returns all objects that `join` may have made but the credentials and the Deployment."""
    return rights({DRA_LABEL: ALLOCATES})


def credentials(cluster: str, nats_url: str, seed: str, labels: Mapping[str, str]) -> Object:
    data = {
        "MOORAGE_CLUSTER": cluster,
        "MOORAGE_NATS_URL": nats_url,
        "MOORAGE_NATS_SEED": seed,
        "MOORAGE_CLUSTER_LABELS": ",".join(f"{k}={v}" for k, v in sorted(labels.items())),
    }
    encoded = {name: b64encode(value.encode()).decode() for name, value in data.items()}
    return _object("v1", "Secret", NAME, namespaced=True, type="Opaque", data=encoded)


def deployment(image: str = IMAGE, replicas: int = 2) -> Object:
    """Returns the agent's Deployment. With two replicas, the standby takes over within seconds."""
    container = {
        "name": "agent",
        "image": image,
        "args": ["agent"],
        "envFrom": [{"secretRef": {"name": NAME}}],
        "env": [{"name": "MOORAGE_METRICS", "value": f"0.0.0.0:{METRICS}"}],
        "ports": [{"name": "metrics", "containerPort": METRICS}],
        # A standby is ready, too. Without its broker an agent keeps what it applied, so it must not be restarted for that.
        **CONTAINER,
    }
    spec = {
        "serviceAccountName": NAME,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": dict(_LABELS)}, "spec": spec}
    selector = {"matchLabels": {"app.kubernetes.io/name": NAME}}
    body = {"replicas": replicas, "selector": selector, "template": template}
    return _object("apps/v1", "Deployment", NAME, namespaced=True, spec=body)


def files() -> dict[str, str]:
    """Returns the files of `ops/agent`, by name."""
    import yaml

    def dumped(*objects: Object) -> str:
        return yaml.safe_dump_all(objects, sort_keys=False, width=120)

    secret = credentials("", "", "", {})
    del secret["data"]
    secret["stringData"] = {
        "MOORAGE_CLUSTER": "PROVIDER/NAME",
        "MOORAGE_NATS_URL": "nats://nats.example:4222",
        "MOORAGE_NATS_SEED": "the seed of the agent's user",
        "MOORAGE_CLUSTER_LABELS": "region=eu",
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["rights.yaml", "deployment.yaml"],
    }
    return {
        "rights.yaml": dumped(*rights()),
        "credentials.example.yaml": dumped(secret),
        "deployment.yaml": dumped(deployment()),
        "kustomization.yaml": dumped(kustomization),
    }


def write(directory: Path) -> None:
    for name, text in files().items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
