"""Reads a logical cloud as a boundary of groups: the clusters they may use, and the namespace of their objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from moorage.model import v2_bodies
from moorage.model.v2_resources import Path, ResourceTree

from .diagnostics import Diagnostics
from .field_rules import NAMESPACE
from .v2_spelling import plain
from .validation_rules import MAX_TERMS

#: Kinds that have no namespace. An agent ignores the namespace of others that have none, like most custom resources.
_WITHOUT_NAMESPACE = frozenset(
    [
        "APIService",
        "CSIDriver",
        "CSINode",
        "CertificateSigningRequest",
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterTrustBundle",
        "CustomResourceDefinition",
        "DeviceClass",
        "FlowSchema",
        "IngressClass",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "PriorityLevelConfiguration",
        "ResourceSlice",
        "RuntimeClass",
        "ServiceCIDR",
        "StorageClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "VolumeAttachment",
        "VolumeAttributesClass",
    ]
)


class Boundary(NamedTuple):
    """`clusters` is a placement term; None: all of them."""

    clusters: dict[str, Any] | None = None
    namespace: str = ""

    def bound(self, placement: dict[str, Any]) -> dict[str, Any]:
        """Returns the placement of an app within the boundary."""
        return placement if self.clusters is None else {"allOf": [self.clusters], **placement}

    def place(self, objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the objects with the namespace, where they name none and their kind has one."""
        return [self._placed(one) for one in objects]

    def _placed(self, manifest: dict[str, Any]) -> dict[str, Any]:
        metadata = manifest["metadata"]
        if not self.namespace or metadata.get("namespace") or manifest["kind"] in _WITHOUT_NAMESPACE:
            return manifest
        return {**manifest, "metadata": {**metadata, "namespace": self.namespace}}


def read_boundary(tree: ResourceTree, project: str, cloud: str, diagnostics: Diagnostics) -> Boundary:
    """Reads the logical cloud that a group names; without a name there is no boundary."""
    if not cloud:
        return Boundary()
    clouds: Path = ("projects", project, "logical-clouds")
    stored = tree.get((*clouds, cloud))
    if stored is None:
        known = ", ".join(path[-1] for path in tree.members(clouds)) or "none"
        message = f"there is no logical cloud {cloud!r}; the project has {known}"
        diagnostics.error("spec.logicalCloud", "UnknownCloud", message)
        return Boundary()
    spec = msgspec.json.decode(stored.value.body, type=v2_bodies.Named).spec
    namespace = next((value for key, value in spec.items() if plain(key) == "namespace"), "") or ""
    if namespace and not (isinstance(namespace, str) and NAMESPACE.fullmatch(namespace)):
        message = f"{namespace!r} is not the name of a namespace"
        path = f"logical-clouds/{cloud}: spec.namespace"
        diagnostics.error(path, "InvalidName", message)
        namespace = ""
    references = (*clouds, cloud, "cluster-references")
    found = [
        msgspec.json.decode(_body(tree, path), type=v2_bodies.ClusterReference) for path in tree.members(references)
    ]
    if not found:
        message = f"the logical cloud has no clusters; add cluster-references to {cloud}"
        diagnostics.error("spec.logicalCloud", "NoClusters", message)
    names = sorted({f"{reference.spec.cluster_provider}/{reference.spec.cluster}" for reference in found})
    return Boundary(_any_of([{"cluster": name} for name in names]), namespace)


def _body(tree: ResourceTree, path: Path) -> msgspec.Raw:
    stored = tree.get(path)
    assert stored is not None
    body: msgspec.Raw = stored.value.body
    return body


def _any_of(terms: list[dict[str, Any]]) -> dict[str, Any]:
    """Nests the terms where they are more than one list may have."""
    while len(terms) > MAX_TERMS:
        terms = [{"anyOf": terms[at : at + MAX_TERMS]} for at in range(0, len(terms), MAX_TERMS)]
    return {"anyOf": terms}
