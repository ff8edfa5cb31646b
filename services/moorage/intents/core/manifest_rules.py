"""Checks the Kubernetes objects of an app and reads the pods of those that have some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from moorage.podspec.device_claims import ClaimSpec

from . import pod_templates
from .device_claims import ClaimKey, read_device_objects
from .diagnostics import Diagnostics
from .field_rules import check_count
from .pod_templates import PodTemplate

MAX_MANIFESTS = 500
MAX_PODS = 100_000
#: Keys of entries that the command line replaces by the objects of a file or chart.
_FROM_FILE = {"file", "chart"}


class AppObjects(NamedTuple):
    """The manifests of an app, with the items of lists, the pods of those that have some, and what its claims to devices and
    their templates ask for."""

    manifests: list[dict[str, Any]]
    pods: list[PodTemplate]
    device_claims: dict[ClaimKey, ClaimSpec]


def read_objects(manifests: list[dict[str, Any]] | dict[str, Any], path: str, diagnostics: Diagnostics) -> AppObjects:
    """Reads one object, a list, or several of both."""
    objects = AppObjects([], [], {})
    seen: set[tuple[Any, ...]] = set()
    for at, manifest in _items(manifests, path):
        if not _is_object(manifest, at, diagnostics):
            continue
        name = manifest["metadata"]["name"]
        has_pods = pod_templates.has_pods(manifest)
        # Claims and statuses name an object with pods as Kind/name, so no two may share that.
        key: tuple[Any, ...] = (manifest["kind"], name)
        if not has_pods:
            key += (manifest["apiVersion"], repr(manifest["metadata"].get("namespace")))
        if key in seen:
            diagnostics.error(
                f"{at}.metadata.name", "Duplicate", f"there is a second {manifest['kind']} {name!r} in this app"
            )
        seen.add(key)
        objects.manifests.append(manifest)
        if (claim := read_device_objects(manifest, at, diagnostics)) is not None:
            namespace = str(manifest["metadata"].get("namespace") or "default")
            objects.device_claims[ClaimKey(manifest["kind"], namespace, name)] = claim
        if has_pods and (pods := pod_templates.read(manifest, at, diagnostics)) is not None:
            objects.pods.append(pods)
            if pods.count > MAX_PODS:
                diagnostics.error(
                    f"{at}.spec", "OutOfRange", f"asks for {pods.count} pods; at most {MAX_PODS} are allowed"
                )
    check_count(objects.manifests, MAX_MANIFESTS, path, diagnostics)
    return objects


def _items(manifests: list[dict[str, Any]] | dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Returns each object with its path; a `List` yields its items."""
    if isinstance(manifests, dict):
        entries = [(path, manifests)] if manifests else []
    else:
        entries = [(f"{path}[{i}]", manifest) for i, manifest in enumerate(manifests)]
    for at, manifest in entries:
        if manifest.get("kind") == "List" and isinstance(manifest.get("items"), list):
            yield from ((f"{at}.items[{i}]", item) for i, item in enumerate(manifest["items"]))
        else:
            yield at, manifest


def _is_object(manifest: Any, path: str, diagnostics: Diagnostics) -> bool:
    if not isinstance(manifest, dict):
        diagnostics.error(path, "WrongType", "must be a Kubernetes object")
        return False
    if "kind" not in manifest and (keys := _FROM_FILE & manifest.keys()):
        only = f"{{{min(keys)}: …}} works only with the command line (moorage apply -f)"
        diagnostics.error(path, "NotInline", f"{only}; write the objects here")
        return False
    has_type = True
    for field in ("apiVersion", "kind"):
        if not isinstance(manifest.get(field), str) or not manifest[field]:
            diagnostics.error(f"{path}.{field}", "Required", "is required: text, as in every Kubernetes object")
            has_type = False
    meta = manifest.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str) or not meta["name"]:
        diagnostics.error(f"{path}.metadata.name", "Required", "is required: objects are applied by name")
        return False
    if len(meta["name"]) > 253:
        diagnostics.error(f"{path}.metadata.name", "InvalidName", "must have at most 253 characters")
    return has_type
