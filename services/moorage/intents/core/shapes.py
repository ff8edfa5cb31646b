"""Works out the shape of each object that has pods: what one pod asks for once the needs of all consumers have replaced
what its manifest says. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.documents import Need, ObjectRef
from moorage.model.problems import Violation
from moorage.model.reasons import Warn
from moorage.model.shapes import EXCLUSIVE, PODS, NeedRef, OptionalNeed, Requirement, Shape
from moorage.podspec import REPLICATED, ContainerResources, exclusive_cores, is_guaranteed, pod_requests, whole_cores
from moorage.podspec.needs import NeedAmounts, is_mandatory, label_text, need_amounts

from .consumer_matching import Diagnostics, SourcedConsumer
from .manifest_rules import Objects
from .pod_templates import PodTemplate, surge_of

_canonical = msgspec.json.Encoder(order="deterministic").encode


class _Container(NamedTuple):
    """A container of the manifest and the mandatory needs for it."""

    manifest: ContainerResources
    sums: dict[str, NeedAmounts]
    asked_by: dict[str, str]  # resource → the first consumer that needs it

    def add(self, need: Need, consumer: str) -> None:
        self.sums[need.resource] = self.sums.get(need.resource, NeedAmounts()).plus(need_amounts(need))
        self.asked_by.setdefault(need.resource, consumer)

    def resources(self, optional: Need | None = None) -> ContainerResources:
        """The container with its needs, and with an optional one besides. Needs for a resource add up; together they
        replace what the manifest says of it."""
        sums = self.sums
        if optional is not None:
            name = optional.resource
            sums = {**sums, name: sums.get(name, NeedAmounts()).plus(need_amounts(optional))}
        limits = dict(self.manifest.limits)
        for resource, amounts in sums.items():
            limit = amounts.limit(limits.get(resource, 0))
            if limit:
                limits[resource] = limit
        requests = {**self.manifest.requests, **{resource: amounts.requests for resource, amounts in sums.items()}}
        return self.manifest._replace(requests=requests, limits=limits)


def app_shapes(objects: Objects, consumers: Sequence[SourcedConsumer], diagnostics: Diagnostics) -> list[Shape]:
    """`consumers` have the full references of their objects."""
    of_object: dict[ObjectRef, list[SourcedConsumer]] = defaultdict(list)
    for sourced in consumers:
        of_object[sourced.consumer.object].append(sourced)
    shapes = []
    for pods in objects.pods:
        ref = ObjectRef(api_version=pods.api_version, kind=pods.kind, name=pods.name)
        shape = _shape(pods, of_object.get(ref, ()), diagnostics)
        if shape is not None:
            shapes.append(shape)
    return shapes


def _shape(pods: PodTemplate, consumers: Sequence[SourcedConsumer], diagnostics: Diagnostics) -> Shape | None:
    count = _count(pods, consumers, diagnostics.errors)
    if count == 0:
        return None  # the object is applied, but no pod of it needs capacity
    containers = {c.name: _Container(c, {}, {}) for c in pods.containers}
    needs: list[NeedRef] = []
    labels: dict[str, list[str]] = {}
    optional: list[tuple[SourcedConsumer, Need]] = []
    for consumer in consumers:
        container = containers.get(consumer.consumer.container)
        for need in consumer.consumer.needs:
            if not is_mandatory(need):
                optional.append((consumer, need))
            elif need.label:
                value = label_text(need.value)
                labels.setdefault(need.label, []).append(value)
                needs.append(NeedRef(consumer=consumer.name, name=need.label, label=(need.label, value)))
            elif container is not None:
                container.add(need, consumer.name)
                amount = need_amounts(need).requests
                needs.append(NeedRef(consumer=consumer.name, name=need.resource, amount=amount))
    resources = _pod_resources(pods, containers)
    exclusive = _exclusive_needs(pods, containers, diagnostics.warnings)
    if exclusive:
        resources[EXCLUSIVE] = _exclusive_cores(c.resources() for c in containers.values())
        needs += exclusive
    needs += _manifest_needs(resources, needs)
    diagnostics.warnings.extend(
        Warn(
            code="NotConsidered", message=f"{pods.object}: {rule} is left to Kubernetes; placement does not look at it"
        )
        for rule in pods.ignored
    )
    wishes = [_optional(consumer, need, containers, resources.get(EXCLUSIVE, 0)) for consumer, need in optional]
    terms = _terms(pods, labels)
    tolerations = list(dict.fromkeys(pods.tolerations))
    per_node = pods.kind == "DaemonSet"
    return Shape(
        key=_hash((resources, terms, tolerations, wishes, count, per_node)),
        object=pods.object,
        count=count,
        per_node=per_node,
        resources=resources,
        terms=terms,
        tolerations=tolerations,
        optional=wishes,
        needs=needs,
        template=_hash((pods.template, _normalized_needs(consumers))),
        surge=surge_of(pods, count),
    )


def _hash(value: Any) -> str:
    return hashlib.blake2b(_canonical(value), digest_size=12).hexdigest()


def _count(pods: PodTemplate, consumers: Sequence[SourcedConsumer], errors: list[Violation]) -> int:
    if pods.kind not in REPLICATED:
        return pods.count
    given = [(c.consumer.replicas, c.path) for c in consumers if c.consumer.replicas is not None]
    numbers = sorted({replicas for replicas, _ in given})
    if len(numbers) > 1:
        message = f"consumers of {pods.object} want {' and '.join(map(str, numbers))} pods in each cluster"
        errors.append(Violation(path=f"{given[-1][1]}.replicas", code="ReplicasConflict", message=message))
    return numbers[0] if numbers else pods.count


def _terms(pods: PodTemplate, labels: Mapping[str, list[str]]) -> list[list[Requirement]]:
    """The manifest's node selector terms, each with the labels that needs require."""
    required = [
        Requirement(key=key, operator="In", values=(value,))
        for key, values in labels.items()
        for value in dict.fromkeys(values)
    ]
    if pods.terms:
        return [term + required for term in pods.terms]
    return [required] if required else []


def _pod_resources(pods: PodTemplate, containers: Mapping[str, _Container]) -> dict[str, int]:
    total = pod_requests(
        [container.resources() for container in containers.values()],
        requests=pods.requests,
        limits=pods.limits,
        overhead=pods.overhead,
    )
    resources = {resource: amount for resource, amount in sorted(total.items()) if amount}
    resources[PODS] = 1
    return resources


def _exclusive_needs(pods: PodTemplate, containers: Mapping[str, _Container], warnings: list[Warn]) -> list[NeedRef]:
    """The consumers that ask for exclusive cores: with an integer CPU need, and equal requests and limits for CPU and
    memory. Kubernetes gives them only where the whole pod is Guaranteed."""
    resources = {name: container.resources() for name, container in containers.items()}
    asked_by = {
        name: container.asked_by["cpu"]
        for name, container in containers.items()
        if "cpu" in container.asked_by and _has_exclusive_cores(resources[name])
    }
    if not asked_by:
        return []
    loose = [name for name, container in resources.items() if not is_guaranteed(container)]
    if loose:
        text = f"{pods.object}: containers {', '.join(loose)} have no equal requests and limits for cpu and memory"
        warnings.append(
            Warn(code="NotGuaranteed", message=f"{text}, so {next(iter(asked_by))} gets no exclusive cores")
        )
        return []
    return [
        NeedRef(consumer=consumer, name=EXCLUSIVE, amount=whole_cores(resources[name]))
        for name, consumer in asked_by.items()
    ]


def _has_exclusive_cores(container: ContainerResources) -> bool:
    return is_guaranteed(container) and whole_cores(container) > 0


def _exclusive_cores(containers: Iterable[ContainerResources]) -> int:
    """The cores a pod of these containers holds exclusively, no matter which of them was asked for."""
    resources = list(containers)
    return exclusive_cores(resources) if all(map(is_guaranteed, resources)) else 0


def _manifest_needs(resources: Mapping[str, int], needs: Sequence[NeedRef]) -> list[NeedRef]:
    """Returns the requests of the pod beyond the needs of its consumers; no consumer is named for them."""
    asked: dict[str, int] = defaultdict(int)
    for need in needs:
        asked[need.name] += need.amount
    return [
        NeedRef(consumer="", name=resource, amount=amount - asked[resource])
        for resource, amount in resources.items()
        if resource != PODS and amount > asked[resource]
    ]


def _optional(
    consumer: SourcedConsumer, need: Need, containers: Mapping[str, _Container], exclusive: int
) -> OptionalNeed:
    """`exclusive`: the exclusive cores that the pod has without this need."""
    weight = need.weight or 1
    if need.label:
        label = (need.label, label_text(need.value))
        return OptionalNeed(consumer=consumer.name, name=need.label, weight=weight, label=label)
    # It adds to mandatory needs but replaces what the manifest has; one that asks for less than the manifest is met.
    resource, container = need.resource, consumer.consumer.container
    resources = {name: c.resources() for name, c in containers.items()}
    with_need = containers[container].resources(need)
    more = {resource: with_need.requests[resource] - resources[container].requests.get(resource, 0)}
    if resource == "cpu" and _has_exclusive_cores(with_need):
        more[EXCLUSIVE] = _exclusive_cores({**resources, container: with_need}.values()) - exclusive
    return OptionalNeed(
        consumer=consumer.name,
        name=resource,
        weight=weight,
        resources={name: amount for name, amount in more.items() if amount > 0},
    )


def _normalized_needs(consumers: Sequence[SourcedConsumer]) -> list[Any]:
    """Returns the effect of the needs on the pod template, independent of their spelling, names and order."""
    sums: dict[tuple[str, str], NeedAmounts] = {}
    others: list[Any] = []
    for consumer in consumers:
        container = consumer.consumer.container
        for need in consumer.consumer.needs:
            if need.label:
                weight = 0 if is_mandatory(need) else need.weight or 1
                others.append((need.label, label_text(need.value), weight))
                continue
            amounts = need_amounts(need)
            if is_mandatory(need):
                key = (container, need.resource)
                sums[key] = sums.get(key, NeedAmounts()).plus(amounts)
            else:
                others.append((container, need.resource, *amounts))
    return [sorted(sums.items()), sorted(set(others), key=repr)]
