"""Identifies objects in a cluster, and which of them this agent created for which app."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.kube import MANAGER, ApiResource
from moorage.model.desired_state import DesiredApp
from moorage.podspec import object_key

Manifest = dict[str, Any]
Live = dict[str, Any]

#: Label on every object that the agent created: the label value of its app.
APP_LABEL = "moorage.dev/app"
#: Annotation on every object that the agent created: its group and app.
OWNER = "moorage.dev/owner"
#: Annotation on every object that the agent created. It matches no copy of the object under another name or namespace.
MARK = "moorage.dev/mark"


class Ref(NamedTuple):
    """Refers to an object. `namespace` is ignored for kinds without namespaces."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def place(self) -> tuple[str, ...]:
        """Equal for all versions of a kind: they show the same objects."""
        return self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name


class Owner(NamedTuple):
    """An app as it appears on its objects."""

    label: str
    name: str

    @property
    def group(self) -> str:
        return self.name.rpartition(" ")[0]

    @property
    def manager(self) -> str:
        """Returns the field manager on objects of others: each app has its own, so it gives back only its own fields."""
        return f"{MANAGER}-{self.label}"


class OwnedObject(NamedTuple):
    group: str
    app: str
    ref: Ref


def label_of(group: str, app: str) -> str:
    """Returns a label value for an app, whose name may be longer than a label value."""
    return hashlib.sha256(f"{group} {app}".encode()).hexdigest()[:20]


def owner_of(live: Live | None) -> str:
    return str(((live or {}).get("metadata", {}).get("annotations") or {}).get(OWNER, ""))


def mark_of(agent: str, kind: ApiResource, namespace: str, name: str) -> str:
    """`agent` is the id of this agent's records: objects of agents with other records have other marks."""
    group = kind.api_version.rpartition("/")[0]
    content = msgspec.json.encode([agent, group, kind.kind, namespace if kind.namespaced else "", name])
    return hashlib.sha256(content).hexdigest()[:20]


def owned_object(agent: str, kind: ApiResource, live: Live) -> OwnedObject | None:
    """Returns the app and reference of an object that this agent created; None for all others and for copies."""
    meta = live["metadata"]
    annotations = meta.get("annotations") or {}
    group, _, app = str(annotations.get(OWNER, "")).rpartition(" ")
    namespace, name = str(meta.get("namespace", "")), str(meta["name"])
    if not group or (meta.get("labels") or {}).get(APP_LABEL) != label_of(group, app):
        return None
    if annotations.get(MARK) != mark_of(agent, kind, namespace, name):
        return None
    return OwnedObject(group, app, Ref(kind.api_version, kind.kind, namespace or "default", name))


def is_listed(refs: Iterable[Ref], kind: ApiResource, ref: Ref) -> bool:
    """Returns whether the object is among `refs`, in whatever version of its kind."""
    group, name_of_kind, namespace, name = ref.place
    return any(
        place[:2] == (group, name_of_kind) and place[3] == name and (not kind.namespaced or place[2] == namespace)
        for place in (listed.place for listed in refs)
    )


def objects_of(desired: DesiredApp) -> dict[Ref, Manifest]:
    """Returns the objects to apply. Raises ValueError if one has no name."""
    for obj in desired.objects:
        if not isinstance(obj.get("metadata"), dict) or not obj["metadata"].get("name"):
            raise ValueError(f"{object_key(obj)}: an object without a name cannot be applied")
    return {ref_of(obj): obj for obj in desired.objects}


def ref_of(obj: Mapping[str, Any]) -> Ref:
    meta = obj["metadata"]
    return Ref(
        str(obj.get("apiVersion", "")),
        str(obj.get("kind", "")),
        str(meta.get("namespace") or "default"),
        str(meta["name"]),
    )


#: Metadata that the server writes; a manifest cannot set it.
_SERVER_METADATA = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "namespace")


def body_of(kind: ApiResource, ref: Ref, obj: Manifest) -> Manifest:
    """Returns the object as it is sent for server-side apply, without status."""
    meta = {k: v for k, v in obj["metadata"].items() if k not in _SERVER_METADATA}
    if kind.namespaced:
        meta["namespace"] = ref.namespace
    return {**{k: v for k, v in obj.items() if k != "status"}, "metadata": meta}


def owned_body(kind: ApiResource, ref: Ref, obj: Manifest, owner: Owner, agent: str) -> Manifest:
    """Returns the object as it is sent, labelled and annotated as the app's own."""
    meta = obj["metadata"]
    labels = {**(meta.get("labels") or {}), APP_LABEL: owner.label}
    mark = mark_of(agent, kind, ref.namespace, ref.name)
    annotations = {**(meta.get("annotations") or {}), OWNER: owner.name, MARK: mark}
    return body_of(kind, ref, {**obj, "metadata": {**meta, "labels": labels, "annotations": annotations}})
