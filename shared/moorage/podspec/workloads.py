"""Finds pod templates, containers and objects in Kubernetes manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

#: Kind → path of the pod template. A Pod is its own template.
WORKLOADS: dict[str, tuple[str, ...]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}
#: Kinds that run `spec.replicas` pods; Jobs have a parallelism instead, and DaemonSets a pod on each node.
REPLICATED = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController")


def object_key(manifest: Manifest) -> str:
    """Names an object of an app like `StatefulSet/core-fwall`, as claims, contributions and statuses do."""
    metadata = manifest.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return f"{manifest.get('kind', '')}/{name}"


def template_path(manifest: Manifest) -> tuple[str, ...] | None:
    """Returns the path of the pod template; None where the kind has none or the object lacks it."""
    path = WORKLOADS.get(str(manifest.get("kind", "")))
    if path is None:
        return None
    node: Any = manifest
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return path if isinstance(node, dict) else None


def template(manifest: Manifest) -> Manifest | None:
    path = template_path(manifest)
    if path is None:
        return None
    node: Any = manifest
    for part in path:
        node = node[part]
    found: Manifest = node
    return found


def pod_spec(manifest: Manifest) -> Manifest | None:
    found = template(manifest)
    spec = found.get("spec") if found is not None else None
    return spec if isinstance(spec, dict) else None


def containers(spec: Manifest) -> Iterator[tuple[str, int, Manifest]]:
    """Yields every container of a pod spec, init containers too, after the name of its list and its index there."""
    for where in ("containers", "initContainers"):
        entries = spec.get(where)
        if isinstance(entries, list):
            for index, container in enumerate(entries):
                if isinstance(container, dict):
                    yield where, index, container


def named(spec: Manifest, name: str) -> tuple[str, int, Manifest] | None:
    """Finds a container or init container by name."""
    return next((entry for entry in containers(spec) if entry[2].get("name") == name), None)


def find(manifests: list[Manifest], api_version: str, kind: str, name: str) -> Manifest | None:
    """Finds the object that a consumer names by all three."""
    for manifest in manifests:
        if manifest.get("kind") == kind and manifest.get("apiVersion") == api_version:
            metadata = manifest.get("metadata")
            if isinstance(metadata, dict) and metadata.get("name") == name:
                return manifest
    return None
