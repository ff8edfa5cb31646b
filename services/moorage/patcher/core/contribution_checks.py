"""Checks action controllers' contributions against the manifests and against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moorage.model.desired_state import Contribution
from moorage.model.reasons import Reason
from moorage.podspec import PointerError, list_index, object_key, parse_pointer, template_path

from .final_objects import Manifest, with_affinity

Path = tuple[str, ...]


def disagreements(contributions: Iterable[Contribution]) -> list[Reason]:
    """Finds pairs that set one field of one object, in some cluster, to different values. Each reason names both."""
    by_object: dict[tuple[str, str], list[tuple[Path, Contribution]]] = {}
    for contribution in contributions:
        if contribution.op == "set":
            entries = by_object.setdefault((contribution.app, contribution.object), [])
            entries.append((_path(contribution.path), contribution))
    return [reason for entries in by_object.values() for reason in _disagreements_on_object(entries)]


def _disagreements_on_object(entries: list[tuple[Path, Contribution]]) -> list[Reason]:
    reasons = []
    # Sorted, a path is directly followed by the paths below it, so each is compared only with those above it.
    entries.sort(key=lambda entry: entry[0])
    above: list[tuple[Path, Contribution]] = []
    for path, contribution in entries:
        while above and above[-1][0] != path[: len(above[-1][0])]:
            above.pop()
        for other_path, other in above:
            overlap = not contribution.cluster or not other.cluster or contribution.cluster == other.cluster
            if overlap and not _equal(_value_at(other.value, path[len(other_path) :]), contribution.value):
                reasons.append(_conflict(other, contribution))
                break
        above.append((path, contribution))
    return reasons


def _value_at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _equal(a: Any, b: Any) -> bool:
    """True equals 1 in Python and nowhere else."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _conflict(a: Contribution, b: Contribution) -> Reason:
    return Reason(
        code="PatchConflict",
        app=a.app,
        consumer=a.object,
        need=b.path,
        by=f"{a.by}, {b.by}",
        cluster=b.cluster or a.cluster,
        message=f"{a.object}: {a.by} sets {a.path} to {a.value!r}, {b.by} sets {b.path} to {b.value!r}",
    )


def _path(pointer: str) -> Path:
    try:
        return parse_pointer(pointer)
    except PointerError:
        return (pointer,)


def unusable(manifests: Mapping[str, Sequence[Manifest]], contributions: Iterable[Contribution]) -> list[Reason]:
    """Finds contributions that cannot be applied to the group's objects, so that an answer is refused as a whole."""
    objects = {(app, object_key(m)): m for app, listed in manifests.items() for m in reversed(listed)}
    reasons = []
    for contribution in contributions:
        problem = _problem(objects.get((contribution.app, contribution.object)), contribution)
        if problem:
            reasons.append(
                Reason(
                    code="ControllerError",
                    app=contribution.app,
                    consumer=contribution.object,
                    by=contribution.by,
                    message=f"{contribution.by}: {problem}",
                )
            )
    return reasons


def _problem(manifest: Manifest | None, contribution: Contribution) -> str:
    """Returns why the contribution cannot be applied to the manifest; empty if it can."""
    if manifest is None:
        return f"there is no {contribution.object} in app {contribution.app!r}"
    try:
        if contribution.op == "set":
            _check_settable(manifest, contribution.path)
        elif template_path(manifest) is None:
            return f"{contribution.object} has no pod template"
        else:
            with_affinity(manifest, contribution)
    except (ValueError, TypeError, AttributeError) as error:
        return str(error)
    return ""


def _check_settable(manifest: Manifest, path: str) -> None:
    """Raises PointerError if no value may or can be set at this path."""
    parts = parse_pointer(path)
    if not parts or parts[0] in ("apiVersion", "kind") or parts in (("metadata",), ("metadata", "name")):
        raise PointerError(f"{path or 'the whole object'} may not be set")
    node: Any = manifest
    for part in parts:
        if isinstance(node, list):
            node = node[list_index(part, len(node), parts)]
        elif isinstance(node, dict):
            node = node.get(part)
            if node is None:
                return
        else:
            raise PointerError(f"{path}: {part!r} is inside a value that is neither object nor list")
