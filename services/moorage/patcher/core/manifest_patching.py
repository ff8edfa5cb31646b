"""From manifests, contributions and claims to the objects of one cluster. Pure; what comes in is never changed, and all
that does not differ is shared between clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moorage.model.claims import Claim
from moorage.model.desired import Contribution
from moorage.model.reasons import Reason
from moorage.podspec import WORKLOADS, PatchError, assigned, object_key, replaced, split, template_path

CLAIM_LABEL = "moorage.dev/claim"
DECISION_ANNOTATION = "moorage.dev/decision"
HOSTNAME = "kubernetes.io/hostname"
#: Kubernetes' largest: the claimed nodes outweigh what the manifest itself prefers.
CLAIMED_WEIGHT = 100

Manifest = dict[str, Any]


def _inside(value: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def disagreements(contributions: Sequence[Contribution]) -> list[Reason]:
    """Pairs that set one field of one object, in some cluster, to different values; each reason names both."""
    found = []
    by_object: dict[tuple[str, str], list[tuple[tuple[str, ...], Contribution]]] = {}
    for one in contributions:
        if one.op == "set":
            by_object.setdefault((one.app, one.object), []).append((_path(one.path), one))
    for entries in by_object.values():
        entries.sort(key=lambda e: e[0])
        # Whatever is inside of a path follows right after it: most often nothing touches anything else.
        above: list[tuple[tuple[str, ...], Contribution]] = []
        for parts, one in entries:
            while above and above[-1][0] != parts[: len(above[-1][0])]:
                above.pop()
            for over, other in above:
                both = not one.cluster or not other.cluster or one.cluster == other.cluster
                if both and not _same(_inside(other.value, parts[len(over) :]), one.value):
                    found.append(_conflict(other, one))
                    break
            above.append((parts, one))
    return found


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


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _path(path: str) -> tuple[str, ...]:
    try:
        return split(path)
    except PatchError:
        return (path,)


def unusable(manifests: Mapping[str, Sequence[Manifest]], contributions: Iterable[Contribution]) -> list[Reason]:
    """Contributions that fit no object of the group: refused as a whole, never half done."""
    found = []
    objects = {(app, object_key(m)): m for app, listed in manifests.items() for m in reversed(listed)}
    for one in contributions:
        manifest, message = objects.get((one.app, one.object)), ""
        if manifest is None:
            message = f"there is no {one.object} in app {one.app!r}"
        else:
            try:
                if one.op == "set":
                    _reachable(manifest, one.path)
                elif template_path(manifest) is None:
                    message = f"{one.object} has no pod template"
                else:
                    _contribute(manifest, one)
            except (PatchError, TypeError, AttributeError) as error:
                message = str(error)
        if message:
            found.append(
                Reason(
                    code="ControllerError", app=one.app, consumer=one.object, by=one.by, message=f"{one.by}: {message}"
                )
            )
    return found


def _required(spec: Manifest, requirements: Sequence[Mapping[str, Any]]) -> Manifest:
    """Every existing term gets the requirements; without any there is a new one. Terms are ORed: one more would widen."""
    node = ((spec.get("affinity") or {}).get("nodeAffinity")) or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or []
    if not terms:
        terms = [{"matchExpressions": list(requirements)}]
    else:
        # An empty term matches no node at all; with a requirement in it, it would match some.
        terms = [_with_requirements(t, requirements) if any(t.values()) else t for t in terms]
    path = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"]
    changed: Manifest = replaced(spec, path, {**required, "nodeSelectorTerms": terms})
    return changed


def _with_requirements(term: Manifest, requirements: Sequence[Mapping[str, Any]]) -> Manifest:
    there = term.get("matchExpressions") or []
    new = [r for r in requirements if r not in there]
    return {**term, "matchExpressions": [*there, *new]} if new else term


def _preferred(spec: Manifest, term: Mapping[str, Any]) -> Manifest:
    path = ["affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution"]
    there = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(path[2]) or []
    if term in there:
        return spec
    changed: Manifest = replaced(spec, path, [*there, dict(term)])
    return changed


def _template(manifest: Manifest, change: Any) -> Manifest:
    """The object with its pod template changed by `change`."""
    path = template_path(manifest)
    if path is None:
        return manifest
    node: Any = manifest
    for part in path:
        node = node[part]
    changed: Manifest = replaced(manifest, path, change(node))
    return changed


def _reachable(manifest: Manifest, path: str) -> None:
    """PatchError where nothing can be set at this path."""
    parts = split(path)
    if not parts or parts[0] in ("apiVersion", "kind") or parts in (("metadata",), ("metadata", "name")):
        raise PatchError(f"{path or 'the whole object'} may not be set")
    node: Any = manifest
    for part in parts:
        if isinstance(node, list):
            if not (part.isascii() and part.isdigit() and int(part) < len(node)):
                raise PatchError(f"{path}: no entry {part!r} in a list of {len(node)}")
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.get(part)
            if node is None:
                return
        else:
            raise PatchError(f"{path}: {part!r} is inside of something that holds nothing")


def _contribute(manifest: Manifest, one: Contribution) -> Manifest:
    if one.op == "require":
        return _template(manifest, lambda t: {**t, "spec": _required(t.get("spec") or {}, one.value)})
    return _template(manifest, lambda t: {**t, "spec": _preferred(t.get("spec") or {}, one.value)})


def preferred_nodes(claim: Claim) -> list[str]:
    """By their hostname labels: a preference for several nodes cannot name them otherwise."""
    return sorted({slot.host or slot.node for slot in claim.slots if slot.node})


def _bound_by_slots(claim: Claim) -> bool:
    """Slots that name something inside a node hold only there."""
    return any(slot.devices or slot.providers or slot.numa is not None for slot in claim.slots)


def claimed(manifest: Manifest, claim: Claim, nodes: Sequence[str]) -> Manifest:
    """The pod template carries the claim and leans towards its nodes."""

    def change(template: Manifest) -> Manifest:
        template = replaced(template, ["metadata", "labels", CLAIM_LABEL], claim.id)
        if not nodes:
            return template
        requirement = {"key": HOSTNAME, "operator": "In", "values": list(nodes)}
        spec = template.get("spec") or {}
        if _bound_by_slots(claim):
            spec = _required(spec, [requirement])
        # A DaemonSet's pods are bound by name already; a preference would only make its template change with nodes.
        if manifest.get("kind") != "DaemonSet":
            spec = _preferred(spec, {"weight": CLAIMED_WEIGHT, "preference": {"matchExpressions": [requirement]}})
        return {**template, "spec": spec}

    return _template(manifest, change)


def tailor(
    objects: Sequence[Manifest],
    contributions: Iterable[Contribution],
    claims: Mapping[str, Claim],
    nodes: Mapping[str, Sequence[str]],
    decision: str,
) -> list[Manifest]:
    """The objects of one app as one cluster gets them. `contributions` are this app's and hold there, without any that
    disagree; `claims` are that cluster's by object; `nodes` by claim id."""
    by_object: dict[str, list[Contribution]] = {}
    for one in contributions:
        by_object.setdefault(one.object, []).append(one)
    patched = []
    for manifest in objects:
        key = object_key(manifest)
        mine = by_object.get(key, ())
        sets = [(split(one.path), one.value) for one in mine if one.op == "set"]
        sets.sort(key=lambda entry: len(entry[0]))
        sets.append((("metadata", "annotations", DECISION_ANNOTATION), decision))
        manifest = assigned(manifest, sets)
        for op in ("require", "prefer"):
            for one in mine:
                if one.op == op:
                    manifest = _contribute(manifest, one)
        claim = claims.get(key)
        if claim is not None and manifest.get("kind") in WORKLOADS:
            manifest = claimed(manifest, claim, nodes.get(claim.id, ()))
        patched.append(manifest)
    return patched
