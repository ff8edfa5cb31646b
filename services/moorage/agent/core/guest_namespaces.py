"""Tells which namespaces must be enabled for machines: those with pods that run in slots.

A namespace that an agent makes is enabled. One that others made stays as it is: enabling it also changes what is
injected into pods of others.
"""

from __future__ import annotations

from collections.abc import Iterable

from moorage.machine_groups.names import ENABLED, MACHINE, MACHINE_TYPE, NAMESPACE_LABELS
from moorage.podspec import template

from .owned_objects import Live, Manifest


def has_guests(obj: Manifest) -> bool:
    """Returns whether pods of this object ask for slots of machines."""
    labels = ((template(obj) or {}).get("metadata") or {}).get("labels") or {}
    return MACHINE_TYPE in labels or MACHINE in labels


def guest_namespaces(objects: Iterable[tuple[str, Manifest]]) -> set[str]:
    """Returns the namespaces, of objects with their namespaces, whose pods ask for slots."""
    return {namespace for namespace, obj in objects if has_guests(obj)}


def is_enabled(namespace: Live) -> bool:
    labels = namespace["metadata"].get("labels") or {}
    return any(labels.get(label) == ENABLED for label in NAMESPACE_LABELS)


def enabled(namespace: Manifest) -> Manifest:
    """Returns the namespace's manifest with the label that enables it, unless it says something else itself."""
    metadata = namespace["metadata"]
    labels = {NAMESPACE_LABELS[0]: ENABLED, **(metadata.get("labels") or {})}
    return {**namespace, "metadata": {**metadata, "labels": labels}}
