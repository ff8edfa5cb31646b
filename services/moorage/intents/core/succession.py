"""Finds the objects that a group has in common with the one whose place it takes. They are updated in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.model.groups import GroupRecord, Succession
from moorage.podspec import object_key

Manifests = Mapping[str, Iterable[Mapping[str, Any]]]


def succession(before: GroupRecord, manifests: Manifests) -> Succession:
    """Returns which objects of `manifests`, by app, the group before has in an app of the same name."""
    return kept_succession(Succession(group=before.group, objects=_namespaces(before.manifests)), manifests)


def kept_succession(before: Succession, manifests: Manifests) -> Succession:
    """Returns which of the objects that were taken over are still among the manifests."""
    now = _namespaces(manifests)
    objects = {
        app: {name: namespace for name, namespace in there.items() if now.get(app, {}).get(name) == namespace}
        for app, there in before.objects.items()
    }
    return Succession(group=before.group, objects={app: names for app, names in objects.items() if names})


def _namespaces(manifests: Manifests) -> dict[str, dict[str, str]]:
    return {
        app: {object_key(dict(obj)): str((obj.get("metadata") or {}).get("namespace") or "default") for obj in objects}
        for app, objects in manifests.items()
    }
