"""What hpa writes into manifests: requests and limits of containers, labels as node affinity, replicas. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.claims import Decision
from moorage.model.desired import ActionAsk, Contribution
from moorage.model.documents import Consumer, HpaIntentSpec, Need
from moorage.parsing import format_amount, need_amount, parse_amount
from moorage.podspec import find, named, object_key, pod_spec, pointer, template_path

NAME = "hpa"
#: Kinds that say how many pods run at once, and where; Jobs have a parallelism of their own.
_REPLICAS = {
    "Deployment": "/spec/replicas",
    "StatefulSet": "/spec/replicas",
    "ReplicaSet": "/spec/replicas",
    "ReplicationController": "/spec/replicas",
}


#: Whether any node of a cluster has a label with this value.
Carried = Callable[[str, tuple[str, str]], bool]


class Amounts(NamedTuple):
    requests: int = 0
    limits: int = 0

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(self.requests + other.requests, self.limits + other.limits)


def mandatory(need: Need) -> bool:
    """True unless said otherwise, or unless a weight is given without a word."""
    return need.mandatory if need.mandatory is not None else need.weight is None


def overcommits(resource: str) -> bool:
    """Only these may have requests below limits; of all others Kubernetes wants both equal."""
    return resource in ("cpu", "memory", "ephemeral-storage")


def amounts(need: Need) -> Amounts:
    """Requests and limits of an allocatable need; limits 0 = none given."""
    given = [need_amount(need.resource, v, need.units) for v in (need.requests, need.limits) if v is not None]
    if not overcommits(need.resource):
        return Amounts(given[0], given[0])
    limits = given[-1] if need.limits is not None else 0
    return Amounts(given[0], limits)


def granted(extra: int, optional: Sequence[int]) -> list[bool]:
    """Which of the optional amounts make up what a slot holds beyond the mandatory ones; the earlier ones where several
    choices do."""
    reachable: dict[int, tuple[int, ...]] = {0: ()}
    for index, value in enumerate(optional):
        for total, chosen in list(reachable.items()):
            if value > 0 and total + value <= extra and total + value not in reachable:
                reachable[total + value] = (*chosen, index)
    best = reachable[max(reachable)]
    return [index in best for index in range(len(optional))]


def _label_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class _Target(NamedTuple):
    """One object that consumers name, with all their needs: a pod is an object's, not a consumer's."""

    app: str
    manifest: dict[str, Any]
    consumers: list[Consumer]

    @property
    def object(self) -> str:
        return object_key(self.manifest)


def _targets(ask: ActionAsk) -> list[_Target]:
    found: dict[tuple[str, str, str], _Target] = {}
    for intent in ask.intents:
        if intent.get("kind") != "HpaIntent":
            continue
        spec = msgspec.convert(intent.get("spec") or {}, HpaIntentSpec)
        for consumer in spec.consumers:
            ref = consumer.object
            manifest = find(ask.manifests.get(spec.app, []), ref.api_version, ref.kind, ref.name)
            if manifest is not None:
                key = (spec.app, ref.api_version, object_key(manifest))
                found.setdefault(key, _Target(spec.app, manifest, [])).consumers.append(consumer)
    return list(found.values())


def _sums(target: _Target, extra: Mapping[str, int]) -> dict[tuple[str, str], Amounts]:
    """(container, resource) → amounts, with the optional needs that `extra` shows to be granted."""
    sums: dict[tuple[str, str], Amounts] = {}
    optional: dict[str, list[tuple[str, Amounts]]] = {}
    for consumer in target.consumers:
        for need in consumer.needs:
            if need.label:
                continue
            one = amounts(need)
            if mandatory(need):
                key = (consumer.container, need.resource)
                sums[key] = sums.get(key, Amounts()).plus(one)
            else:
                optional.setdefault(need.resource, []).append((consumer.container, one))
    for resource, candidates in optional.items():
        # On top of mandatory needs, but instead of what the manifest has without any.
        more = [
            one.requests - (0 if (container, resource) in sums else _there(target, container, resource))
            for container, one in candidates
        ]
        taken = granted(extra.get(resource, 0), more)
        for (container, one), yes in zip(candidates, taken, strict=True):
            if yes:
                key = (container, resource)
                sums[key] = sums.get(key, Amounts()).plus(one)
    return sums


def _there(target: _Target, container: str, resource: str) -> int:
    """What the manifest itself requests for a container."""
    spec = pod_spec(target.manifest)
    found = named(spec, container) if spec is not None else None
    given = (found[2].get("resources") or {}) if found is not None else {}
    for field in ("requests", "limits"):
        value = (given.get(field) or {}).get(resource)
        if value is not None:
            return parse_amount(resource, str(value), True)
    return 0


def _resources(target: _Target, sums: Mapping[tuple[str, str], Amounts], cluster: str) -> Iterable[Contribution]:
    path, spec = template_path(target.manifest), pod_spec(target.manifest)
    if path is None or spec is None:
        return
    for (container, resource), one in sums.items():
        found = named(spec, container)
        if found is None:
            continue
        where, index, manifest = found
        limits = max(one) if one.limits else _raised(manifest, resource, one.requests)
        base: tuple[str | int, ...] = (*path, "spec", where, index, "resources")
        for field, value in (("requests", one.requests), ("limits", limits)):
            if value:
                yield Contribution(
                    app=target.app,
                    object=target.object,
                    path=pointer((*base, field, resource)),
                    value=format_amount(resource, value),
                    by=NAME,
                    cluster=cluster,
                )


def _raised(container: Mapping[str, Any], resource: str, requests: int) -> int:
    """A limit below the new requests would make the pod invalid: it goes up with them. Others stay as they are."""
    there = ((container.get("resources") or {}).get("limits") or {}).get(resource)
    if there is None:
        return 0
    return requests if parse_amount(resource, str(there), False) < requests else 0


def _labels(target: _Target, clusters: Sequence[str], carried: Carried) -> Iterable[Contribution]:
    for consumer in target.consumers:
        for need in consumer.needs:
            if not need.label:
                continue
            value = _label_value(need.value)
            requirement = {"key": need.label, "operator": "In", "values": [value]}
            if mandatory(need):
                yield Contribution(app=target.app, object=target.object, op="require", value=[requirement], by=NAME)
                continue
            term = {"weight": need.weight or 1, "preference": {"matchExpressions": [requirement]}}
            able = [cluster for cluster in clusters if carried(cluster, (need.label, value))]
            for cluster in [""] if len(able) == len(clusters) else able:
                yield Contribution(
                    app=target.app, object=target.object, op="prefer", value=term, by=NAME, cluster=cluster
                )


def _replicas(target: _Target) -> Iterable[Contribution]:
    path = _REPLICAS.get(str(target.manifest.get("kind")))
    if path is None:
        return
    # Consumers that want different numbers disagree, and that is for the patcher to say.
    for consumer in target.consumers:
        if consumer.replicas is not None:
            yield Contribution(app=target.app, object=target.object, path=path, value=consumer.replicas, by=NAME)


def contributions(ask: ActionAsk, carried: Carried) -> list[Contribution]:
    """Everything hpa wants in the manifests of the decided group."""
    decision = msgspec.convert(ask.decision, Decision)
    shaped = {(app.name, shape.object): shape for app in ask.apps for shape in app.shapes}
    found: list[Contribution] = []
    for target in _targets(ask):
        clusters = dict.fromkeys(claim.cluster for claim in decision.claims if claim.app == target.app)
        found.extend(_labels(target, list(clusters), carried))
        found.extend(_replicas(target))
        shape = shaped.get((target.app, target.object))
        per_cluster: dict[str, dict[tuple[str, str], Amounts]] = {}
        for claim in decision.claims:
            if claim.app != target.app or claim.object != target.object:
                continue
            extra: dict[str, int] = {}
            if shape is not None and claim.slots:
                # One template for all pods of the object: what only some slots hold is granted to none.
                names = set(claim.slots[0].resources)
                extra = {
                    name: min(slot.resources.get(name, 0) for slot in claim.slots) - shape.resources.get(name, 0)
                    for name in names
                }
            per_cluster[claim.cluster] = _sums(target, extra)
        if not per_cluster:
            per_cluster[""] = _sums(target, {})
        first = next(iter(per_cluster.values()))
        if all(sums == first for sums in per_cluster.values()):
            found.extend(_resources(target, first, ""))
        else:
            for cluster, sums in per_cluster.items():
                found.extend(_resources(target, sums, cluster))
    return found
