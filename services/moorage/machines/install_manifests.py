"""Makes what `cluster join --machines` creates in a cluster: definitions, rights, hooks and the Deployment. `ops/machines` is made of the same
objects (`python -m moorage.machines.install_manifests ops/machines`)."""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

from moorage.machine_groups.names import OTHER_CONTROLLER, OTHER_HOOKS, OTHER_NAMESPACE
from moorage.mesh.permissions import agent_user, machines_of
from moorage.model.object_names import NAMESPACE
from moorage.model.worker_pods import CONTAINER, POD_SECURITY

from .crds import GROUP, definitions
from .hook_configurations import NAME, mutating, validating

Object = dict[str, Any]
LEASE = "moorage-machines"
#: Has the certificate of the hooks.
SECRET = "moorage-machines-tls"
#: Has the user of the broker.
CREDENTIALS = "moorage-machines"
#: Port of the hooks in the Pod.
PORT, METRICS = 8443, 9464
IMAGE = "moorage"
_LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "moorage"}
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_HOOKS = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]

RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": [*_READ, "patch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": _READ},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": [GROUP], "resources": ["machines", "machinenodepools"], "verbs": [*_READ, "create", "patch", "delete"]},
    {"apiGroups": [GROUP], "resources": ["machines/status", "machinenodepools/status"], "verbs": ["patch"]},
    {"apiGroups": ["admissionregistration.k8s.io"], "resources": _HOOKS, "resourceNames": [NAME], "verbs": ["get", "patch"]},
]  # fmt: skip

#: In its own namespace only.
OWN_RULES: list[Object] = [
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": [*_READ, "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": [*_READ, "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [LEASE],
        "verbs": ["get", "update"],
    },
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["get", "update"]},
]

#: About the controller that acts on Machines elsewhere: whether it is there; and once it is gone, its hooks are removed.
OTHER_CLUSTER_RULES: list[Object] = [
    {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": [OTHER_CONTROLLER], "verbs": ["get"]},
    {"apiGroups": ["admissionregistration.k8s.io"], "resources": _HOOKS, "resourceNames": list(OTHER_HOOKS), "verbs": ["get", "delete"]},
]  # fmt: skip
#: In the namespace of that controller, where it exists: its reservations are replaced.
OTHER_RULES: list[Object] = [
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["list", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
]


def _object(api: str, kind: str, name: str, *, namespace: str = "", **rest: Any) -> Object:
    metadata: Object = {"name": name, "labels": dict(_LABELS)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def _binding(kind: str, role: str, *, namespace: str = "") -> Object:
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    reference = {"apiGroup": _RBAC, "kind": role, "name": NAME}
    return _object(f"{_RBAC}/v1", kind, NAME, namespace=namespace, roleRef=reference, subjects=[subject])


def rights() -> list[Object]:
    rules = [*RULES, *OTHER_CLUSTER_RULES]
    return [
        _object("v1", "Namespace", NAMESPACE),
        _object("v1", "ServiceAccount", NAME, namespace=NAMESPACE),
        _object(f"{_RBAC}/v1", "ClusterRole", NAME, rules=rules),
        _binding("ClusterRoleBinding", "ClusterRole"),
        _object(f"{_RBAC}/v1", "Role", NAME, namespace=NAMESPACE, rules=OWN_RULES),
        _binding("RoleBinding", "Role", namespace=NAMESPACE),
        _object("v1", "Secret", SECRET, namespace=NAMESPACE, type="Opaque"),
    ]


def credentials(cluster: str, nats_url: str, seed: str) -> Object:
    """Returns the Secret with the user of the broker."""
    data = {
        "MOORAGE_CLUSTER": cluster,
        "MOORAGE_NATS_URL": nats_url,
        "MOORAGE_NATS_SEED": seed,
        "MOORAGE_NATS_USER": agent_user(machines_of(cluster)),
    }
    encoded = {name: b64encode(value.encode()).decode() for name, value in data.items()}
    return _object("v1", "Secret", CREDENTIALS, namespace=NAMESPACE, type="Opaque", data=encoded)


def takeover_rights() -> list[Object]:
    """Returns the rights in the namespace of another controller."""
    return [
        _object(f"{_RBAC}/v1", "Role", NAME, namespace=OTHER_NAMESPACE, rules=OTHER_RULES),
        _binding("RoleBinding", "Role", namespace=OTHER_NAMESPACE),
    ]


def service() -> Object:
    ports = [{"name": "hooks", "port": 443, "targetPort": "hooks"}]
    spec = {"selector": {"app.kubernetes.io/name": NAME}, "ports": ports}
    return _object("v1", "Service", NAME, namespace=NAMESPACE, spec=spec)


def deployment(image: str = IMAGE, replicas: int = 2) -> Object:
    """All replicas answer hooks; one of them acts."""
    container = {
        "name": "machines",
        "image": image,
        "args": ["machines", "--listen", f"0.0.0.0:{PORT}"],
        # Hooks and repair work without the mesh.
        "envFrom": [{"secretRef": {"name": CREDENTIALS, "optional": True}}],
        "env": [{"name": "MOORAGE_METRICS", "value": f"0.0.0.0:{METRICS}"}],
        "ports": [{"name": "hooks", "containerPort": PORT}, {"name": "metrics", "containerPort": METRICS}],
        **CONTAINER,
    }
    spec = {
        "serviceAccountName": NAME,
        "securityContext": POD_SECURITY,
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
                        },
                    }
                ]
            }
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
    }
    template = {"metadata": {"labels": dict(_LABELS)}, "spec": spec}
    selector = {"matchLabels": {"app.kubernetes.io/name": NAME}}
    body = {"replicas": replicas, "selector": selector, "template": template}
    return _object("apps/v1", "Deployment", NAME, namespace=NAMESPACE, spec=body)


def hooks() -> list[Object]:
    return [mutating(), validating()]


def files() -> dict[str, str]:
    """Returns the files of `ops/machines`, by name."""
    import yaml

    def dumped(*objects: Object) -> str:
        return yaml.safe_dump_all(objects, sort_keys=False, width=120)

    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["definitions.yaml", "rights.yaml", "deployment.yaml", "hooks.yaml"],
    }
    example = {
        "MOORAGE_CLUSTER": "PROVIDER/NAME",
        "MOORAGE_NATS_URL": "nats://nats.example:4222",
        "MOORAGE_NATS_SEED": "the seed of the user of machines:PROVIDER/NAME",
        "MOORAGE_NATS_USER": agent_user(machines_of("PROVIDER/NAME")),
    }
    secret = _object("v1", "Secret", CREDENTIALS, namespace=NAMESPACE, type="Opaque", stringData=example)
    return {
        "definitions.yaml": dumped(*definitions()),
        "rights.yaml": dumped(*rights()),
        "deployment.yaml": dumped(service(), deployment()),
        "hooks.yaml": dumped(*hooks()),
        # Only where that namespace exists; no part of the kustomization.
        "takeover.yaml": dumped(*takeover_rights()),
        "kustomization.yaml": dumped(kustomization),
        "credentials.example.yaml": dumped(secret),
    }


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
