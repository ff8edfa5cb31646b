"""Generates the Kubernetes manifests of the workers that `ops/kubernetes` has:

    python -m moorage.cli.kubernetes_manifests ops/kubernetes

Workers never call the Kubernetes API, so their service account has no permissions and no token. Each mounts only its own
keys."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moorage.mesh import WorkerSpec
from moorage.mesh.discovery import installed
from moorage.telemetry.health import version_of_moorage as moorage_version

Object = dict[str, Any]
NAMESPACE = "moorage"
IMAGE, NATS, REDIS = "moorage", "nats:2.12-alpine", "redis:7-alpine"
USER = 65532
METRICS = 9464
#: The files that `moorage bus config` writes into each user's directory.
_WORKER_FILES = ("nats.nk", "redis.url")
FILES = {
    "nats": ("nats.conf", "users.conf"),
    "redis": ("redis.conf",),
    "gateway": (*_WORKER_FILES, "token"),
    "placement": (*_WORKER_FILES, "token"),
}
#: The setting with the address of each worker that serves HTTP, and its port.
HTTP = {"gateway": ("MOORAGE_HTTP", 7070), "placement": ("MOORAGE_PLACEMENT_HTTP", 8778)}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": f"moorage-{name}", "app.kubernetes.io/part-of": "moorage"}


def _object(api: str, kind: str, name: str, of: str = "", **rest: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": _labels(of or name)}, **rest}


def _container(name: str, image: str, args: list[str], memory: str = "512Mi", **rest: Any) -> Object:
    return {
        "name": name,
        "image": image,
        "args": args,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "keys", "mountPath": "/run/moorage", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        **rest,
    }


def _pod(of: str, keys: str, container: Object, **rest: Any) -> Object:
    spec = {
        "serviceAccountName": "moorage",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "keys", "secret": {"secretName": f"moorage-{keys}", "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
        **rest,
    }
    return {"metadata": {"labels": _labels(of)}, "spec": spec}


def _environment(**more: str) -> list[Object]:
    found = {
        "MOORAGE_NATS_URL": "nats://nats:4222",
        "MOORAGE_NATS_SEED_FILE": "/run/moorage/nats.nk",
        "MOORAGE_REDIS_URL_FILE": "/run/moorage/redis.url",
        "MOORAGE_METRICS": f"0.0.0.0:{METRICS}",
        "OPENBLAS_NUM_THREADS": "1",
        **more,
    }
    return [{"name": name, "value": value} for name, value in found.items()]


def worker(spec: WorkerSpec) -> Object:
    kind = spec.name
    ports = [{"name": "metrics", "containerPort": METRICS}]
    more: dict[str, str] = {}
    if kind in HTTP:
        setting, port = HTTP[kind]
        ports.append({"name": "http", "containerPort": port})
        more = {setting: f"0.0.0.0:{port}", "MOORAGE_TOKEN_FILE": "/run/moorage/token"}
    container = _container(
        kind,
        IMAGE,
        ["run", kind],
        spec.memory,
        env=_environment(**more),
        ports=ports,
        livenessProbe={"httpGet": {"path": "/livez", "port": "metrics"}, "periodSeconds": 10, "failureThreshold": 6},
        readinessProbe={"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 5},
    )
    deployment: Object = {
        "replicas": spec.replicas,
        "selector": {"matchLabels": _labels(kind)},
        "template": _pod(kind, kind, container),
    }
    return _object("apps/v1", "Deployment", kind, spec=deployment)


def provision() -> Object:
    """Returns the Job that creates the streams. It is idempotent and retried until the broker is up."""
    container = _container("provision", IMAGE, ["bus", "provision"], env=_environment())
    pod = _pod("provision", "admin", container, restartPolicy="OnFailure")
    return _object("batch/v1", "Job", "provision", spec={"backoffLimit": 20, "template": pod})


def nats() -> Object:
    container = _container(
        "nats",
        NATS,
        ["-c", "/run/moorage/nats.conf"],
        "1Gi",
        ports=[{"name": "nats", "containerPort": 4222}],
        livenessProbe={"tcpSocket": {"port": "nats"}, "periodSeconds": 10, "failureThreshold": 6},
        readinessProbe={"tcpSocket": {"port": "nats"}, "periodSeconds": 5},
    )
    container["volumeMounts"].append({"name": "store", "mountPath": "/var/lib/moorage/nats"})
    claim = {
        "metadata": {"name": "store"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    spec = {
        "serviceName": "nats",
        "replicas": 1,
        "selector": {"matchLabels": _labels("nats")},
        "template": _pod("nats", "nats", container),
        "volumeClaimTemplates": [claim],
    }
    return _object("apps/v1", "StatefulSet", "nats", spec=spec)


def redis() -> Object:
    """Returns Redis without a volume: inventory writes its contents again after a restart."""
    probe = {"tcpSocket": {"port": "redis"}, "periodSeconds": 5}
    container = _container(
        "redis",
        REDIS,
        ["redis-server", "/run/moorage/redis.conf"],
        "1Gi",
        ports=[{"name": "redis", "containerPort": 6379}],
        livenessProbe={**probe, "failureThreshold": 6},
        readinessProbe=probe,
    )
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": _labels("redis")},
        "template": _pod("redis", "redis", container),
    }
    return _object("apps/v1", "Deployment", "redis", spec=spec)


def _service(name: str, port: str, number: int) -> Object:
    ports = [{"name": port, "port": number, "targetPort": port}]
    return _object("v1", "Service", name, spec={"selector": _labels(name), "ports": ports})


def _network_policy(name: str, port: str, *, open_to_all: bool = False) -> Object:
    """Allows connections from the mesh's own pods, or from everywhere."""
    mesh_pods = [{"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "moorage"}}}]
    rule: Object = {"ports": [{"port": port}]} | ({} if open_to_all else {"from": mesh_pods})
    spec = {"podSelector": {"matchLabels": _labels(name)}, "policyTypes": ["Ingress"], "ingress": [rule]}
    return _object("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)


def _budget(kind: str) -> Object:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _labels(kind)}}
    return _object("policy/v1", "PodDisruptionBudget", kind, spec=spec)


def mesh() -> dict[str, list[Object]]:
    """Returns the objects of each file."""
    workers = installed().workers
    namespace = _object("v1", "Namespace", NAMESPACE, "mesh")
    namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    account = _object("v1", "ServiceAccount", "moorage", "mesh", automountServiceAccountToken=False)
    return {
        "namespace.yaml": [namespace, account],
        "brokers.yaml": [
            nats(),
            _service("nats", "nats", 4222),
            _network_policy("nats", "nats", open_to_all=True),
            redis(),
            _service("redis", "redis", 6379),
            _network_policy("redis", "redis"),
            provision(),
        ],
        "workers.yaml": [
            *map(worker, workers.values()),
            *(_service(kind, "http", port) for kind, (_, port) in HTTP.items()),
            *(_budget(kind) for kind, spec in workers.items() if spec.replicas > 1),
        ],
    }


def kustomization(resources: Iterable[str]) -> Object:
    users = ("nats", "redis", "admin", *installed().workers)
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": list(resources),
        "images": [{"name": IMAGE, "newName": "registry.example.com/moorage", "newTag": moorage_version()}],
        "secretGenerator": [
            {"name": f"moorage-{user}", "files": [f"keys/{user}/{file}" for file in FILES.get(user, _WORKER_FILES)]}
            for user in users
        ],
    }


def files() -> dict[str, str]:
    """Returns the content of each file of `ops/kubernetes`."""
    import yaml

    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def dump(objects: list[Object]) -> str:
        return yaml.dump_all(objects, Dumper=NoAliases, sort_keys=False, width=120)

    manifests = mesh()
    return {name: dump(objects) for name, objects in manifests.items()} | {
        "kustomization.yaml": dump([kustomization(manifests)])
    }


if __name__ == "__main__":
    for file, text in files().items():
        (Path(sys.argv[1]) / file).write_text(text)
