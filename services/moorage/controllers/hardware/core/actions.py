"""Contributes what needs change in manifests: requests and limits of containers, node affinity to labels, replicas.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.documents import Consumer
from moorage.model.part_names import is_part_class
from moorage.parsing import format_amount, parse_amount
from moorage.podspec import REPLICATED, format_pointer, named, object_key, pod_spec, template_path
from moorage.podspec.needs import NeedAmounts, asks_class, is_mandatory, label_text, need_amounts
from moorage.sdk import ActionAsk, Contribution, Decision, Shape, named_consumers

NAME = "hpa"

#: Whether any node of a cluster has a label with this value.
HasLabel = Callable[[str, tuple[str, str]], bool]
#: By container and resource.
Sums = dict[tuple[str, str], NeedAmounts]


def granted(extra: int, optional: Sequence[int]) -> list[bool]:
    """Finds which of the optional amounts make up what a slot holds beyond the mandatory ones: the earlier ones where
    several choices do."""
    reachable: dict[int, tuple[int, ...]] = {0: ()}
    for index, amount in enumerate(optional):
        for total, chosen in list(reachable.items()):
            if amount > 0 and total + amount <= extra and total + amount not in reachable:
                reachable[total + amount] = (*chosen, index)
    best = reachable[max(reachable)]
    return [index in best for index in range(len(optional))]


class _Target(NamedTuple):
    """An object and all consumers that name it: they share its pods."""

    app: str
    manifest: dict[str, Any]
    consumers: list[Consumer]

    @property
    def object(self) -> str:
        return object_key(self.manifest)


def _targets(ask: ActionAsk) -> list[_Target]:
    targets: dict[tuple[str, str, str], _Target] = {}
    for app, manifest, consumer in named_consumers(ask):
        key = (app, consumer.object.api_version, object_key(manifest))
        targets.setdefault(key, _Target(app, manifest, [])).consumers.append(consumer)
    return list(targets.values())


def _sums(target: _Target, extra: Mapping[str, int]) -> Sums:
    """Adds up the mandatory needs, and the optional ones that `extra` shows to be granted."""
    sums: Sums = {}
    optional: dict[str, list[tuple[str, NeedAmounts]]] = {}
    for consumer in target.consumers:
        for need in consumer.needs:
            if need.label or need.machine or asks_class(need) or is_part_class(need.resource):
                continue
            if is_mandatory(need):
                key = (consumer.container, need.resource)
                sums[key] = sums.get(key, NeedAmounts()).plus(need_amounts(need))
            else:
                optional.setdefault(need.resource, []).append((consumer.container, need_amounts(need)))
    for resource, candidates in optional.items():
        # An optional need adds to mandatory ones, but replaces what the manifest requests without any.
        more = [
            amounts.requests - (0 if (container, resource) in sums else _manifest_request(target, container, resource))
            for container, amounts in candidates
        ]
        chosen = granted(extra.get(resource, 0), more)
        for (container, amounts), is_granted in zip(candidates, chosen, strict=True):
            if is_granted:
                sums[container, resource] = sums.get((container, resource), NeedAmounts()).plus(amounts)
    return sums


def _manifest_request(target: _Target, container: str, resource: str) -> int:
    spec = pod_spec(target.manifest)
    found = named(spec, container) if spec is not None else None
    resources = (found[2].get("resources") or {}) if found is not None else {}
    for field in ("requests", "limits"):
        quantity = (resources.get(field) or {}).get(resource)
        if quantity is not None:
            return parse_amount(resource, str(quantity), True)
    return 0


def _resources(target: _Target, sums: Sums, cluster: str) -> Iterable[Contribution]:
    path, spec = template_path(target.manifest), pod_spec(target.manifest)
    if path is None or spec is None:
        return
    for (container, resource), amounts in sums.items():
        found = named(spec, container)
        if found is None:
            continue
        where, index, manifest = found
        base: tuple[str | int, ...] = (*path, "spec", where, index, "resources")
        for field, amount in (("requests", amounts.requests), ("limits", _limit(manifest, resource, amounts))):
            if amount:
                yield Contribution(
                    app=target.app,
                    object=target.object,
                    path=format_pointer((*base, field, resource)),
                    value=format_amount(resource, amount),
                    by=NAME,
                    cluster=cluster,
                )


def _limit(container: Mapping[str, Any], resource: str, amounts: NeedAmounts) -> int:
    """Returns the limit to write; 0 where the container keeps what its manifest has."""
    quantity = ((container.get("resources") or {}).get("limits") or {}).get(resource)
    manifest = parse_amount(resource, str(quantity), False) if quantity is not None else 0
    limit = amounts.limit(manifest)
    return limit if amounts.limits or limit > manifest else 0


def _labels(target: _Target, clusters: Sequence[str], has_label: HasLabel) -> Iterable[Contribution]:
    for consumer in target.consumers:
        for need in consumer.needs:
            if not need.label:
                continue
            value = label_text(need.value)
            requirement = {"key": need.label, "operator": "In", "values": [value]}
            if is_mandatory(need):
                yield Contribution(app=target.app, object=target.object, op="require", value=[requirement], by=NAME)
                continue
            term = {"weight": need.weight or 1, "preference": {"matchExpressions": [requirement]}}
            able = [cluster for cluster in clusters if has_label(cluster, (need.label, value))]
            for cluster in [""] if len(able) == len(clusters) else able:
                yield Contribution(
                    app=target.app, object=target.object, op="prefer", value=term, by=NAME, cluster=cluster
                )


def _replicas(target: _Target) -> Iterable[Contribution]:
    if target.manifest.get("kind") not in REPLICATED:
        return
    # Consumers that want different numbers contradict each other; the patcher reports that.
    for consumer in target.consumers:
        if consumer.replicas is not None:
            yield Contribution(
                app=target.app, object=target.object, path="/spec/replicas", value=consumer.replicas, by=NAME
            )


def contributions(ask: ActionAsk, has_label: HasLabel) -> list[Contribution]:
    """Returns everything that the group's needs change in its manifests, per cluster where the clusters differ."""
    decision = msgspec.convert(ask.decision, Decision)
    shapes = {(app.name, shape.object): shape for app in ask.apps for shape in app.shapes}
    found: list[Contribution] = []
    for target in _targets(ask):
        clusters = dict.fromkeys(claim.cluster for claim in decision.claims if claim.app == target.app)
        found.extend(_labels(target, list(clusters), has_label))
        found.extend(_replicas(target))
        per_cluster = _sums_by_cluster(target, decision, shapes.get((target.app, target.object)))
        first = next(iter(per_cluster.values()))
        if all(sums == first for sums in per_cluster.values()):
            found.extend(_resources(target, first, ""))
        else:
            for cluster, sums in per_cluster.items():
                found.extend(_resources(target, sums, cluster))
    return found


def _sums_by_cluster(target: _Target, decision: Decision, shape: Shape | None) -> dict[str, Sums]:
    """Returns the sums by cluster that has a claim for the object, or under "" where none has."""
    per_cluster: dict[str, Sums] = {}
    for claim in decision.claims:
        if claim.app != target.app or claim.object != target.object:
            continue
        extra: dict[str, int] = {}
        if shape is not None and claim.slots:
            # All pods of the object share one template: an optional need that only some slots hold is granted to none.
            extra = {
                name: min(slot.resources.get(name, 0) for slot in claim.slots) - shape.resources.get(name, 0)
                for name in claim.slots[0].resources
            }
        per_cluster[claim.cluster] = _sums(target, extra)
    return per_cluster or {"": _sums(target, {})}
