"""Works out the shape of each object that has pods: what one pod asks for once the needs of all consumers have replaced
what its manifest says. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.documents import Need, ObjectRef
from moorage.model.part_names import is_part_class
from moorage.model.shapes import EXCLUSIVE, PODS, NeedRef, OptionalNeed, Requirement, Shape
from moorage.podspec import (
    GATE,
    REPLICATED,
    ContainerResources,
    exclusive_cores,
    has_gate,
    is_guaranteed,
    is_host_port,
    pod_requests,
    port_amounts,
    whole_cores,
)
from moorage.podspec.device_claims import ClaimSpec
from moorage.podspec.device_shares import is_class_resource
from moorage.podspec.needs import NeedAmounts, asks_class, is_mandatory, label_text, need_amounts
from moorage.qos.pods import MAIN_CONTAINER, chosen_role

from .consumer_matching import SourcedConsumer
from .device_claims import ClaimKey, pod_claims, together
from .device_needs import need_name
from .diagnostics import Diagnostics
from .group_rules import PodRules
from .machine_needs import MachineNeed
from .manifest_rules import AppObjects
from .part_groups import PartNeeds, alignment, part_amounts, part_needs
from .pod_templates import PodTemplate, rollout_of
from .role_parts import with_role

_canonical = msgspec.json.Encoder(order="deterministic").encode


class _Container(NamedTuple):
    """A container of the manifest and the mandatory needs for it."""

    manifest: ContainerResources
    sums: dict[str, NeedAmounts]
    asked_by: dict[str, str]  # resource → the first consumer that needs it

    def add(self, resource: str, amounts: NeedAmounts, consumer: str) -> None:
        self.sums[resource] = self.sums.get(resource, NeedAmounts()).plus(amounts)
        self.asked_by.setdefault(resource, consumer)

    def resources(self, optional: Need | None = None) -> ContainerResources:
        """Returns the container with its needs, and with an optional one besides. Needs for a resource add up; together they
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


def app_shapes(
    objects: AppObjects,
    consumers: Sequence[SourcedConsumer],
    rules: Mapping[str, PodRules],
    diagnostics: Diagnostics,
    *,
    pinned: bool = False,
) -> list[Shape]:
    """`consumers` have the full references of their objects; `rules` are by object. `pinned`: the document asks that each pod is
    pinned to its slot."""
    of_object: dict[ObjectRef, list[SourcedConsumer]] = defaultdict(list)
    for sourced in consumers:
        of_object[sourced.consumer.object].append(sourced)
    shapes = []
    for pods in objects.pods:
        ref = ObjectRef(api_version=pods.api_version, kind=pods.kind, name=pods.name)
        asked = of_object.get(ref, ())
        shape = _shape(pods, asked, rules.get(pods.object, PodRules([], [])), objects.device_claims, diagnostics)
        if shape is not None:
            shapes.append(_gated(shape) if pinned and has_gate(pods.kind) else shape)
    return shapes


def _without_classes(container: ContainerResources) -> ContainerResources:
    """Returns the container as the API server gets it: resource classes are no resources of Kubernetes."""
    return _with_resources(container, lambda name: not is_class_resource(name))


def _with_classes(container: ContainerResources) -> ContainerResources:
    """Returns the container with the resource classes alone."""
    return _with_resources(container, is_class_resource)


def _with_resources(container: ContainerResources, keep: Callable[[str], bool]) -> ContainerResources:
    if all(map(keep, container.requests)) and all(map(keep, container.limits)):
        return container
    requests, limits = (
        {name: amount for name, amount in given.items() if keep(name)}
        for given in (container.requests, container.limits)
    )
    return container._replace(requests=requests, limits=limits)


def _gated(shape: Shape) -> Shape:
    """Returns the shape with a template of its own: a scheduling gate is added to it, which starts all pods again."""
    return msgspec.structs.replace(shape, template=_hash((shape.template, GATE)))


def _shape(
    pods: PodTemplate,
    consumers: Sequence[SourcedConsumer],
    rules: PodRules,
    device_claims: Mapping[ClaimKey, ClaimSpec],
    diagnostics: Diagnostics,
) -> Shape | None:
    count = _count(pods, consumers, diagnostics)
    if count == 0:
        return None  # the object is applied, but no pod of it needs capacity
    containers = {c.name: _Container(_without_classes(c), {}, {}) for c in pods.containers}
    needs: list[NeedRef] = []
    labels: dict[str, list[str]] = {}
    optional: list[tuple[SourcedConsumer, Need]] = []
    for consumer in consumers:
        container = containers.get(consumer.consumer.container)
        for need in consumer.consumer.needs:
            if need.machine:
                continue
            if not is_mandatory(need):
                optional.append((consumer, need))
            elif asks_class(need):
                name = need_name(need)
                needs.append(NeedRef(consumer=consumer.name, name=name, group=name))
            elif need.label:
                value = label_text(need.value)
                labels.setdefault(need.label, []).append(value)
                needs.append(NeedRef(consumer=consumer.name, name=need.label, label=(need.label, value)))
            elif container is not None or is_part_class(need.resource):
                name, amounts = need.resource, need_amounts(need)
                if container is not None and not is_part_class(name):
                    container.add(name, amounts, consumer.name)
                needs.append(NeedRef(consumer=consumer.name, name=name, amount=amounts.requests, group=need.group))
    mandatory = {name: container.resources() for name, container in containers.items()}
    machine = MachineNeed(consumers, diagnostics)
    needs += machine.needs
    resources = machine.resources(_pod_resources(pods, mandatory.values()))
    _check_dedicated(pods, consumers, mandatory, diagnostics)
    exclusive = _exclusive_needs(pods, containers, mandatory, diagnostics)
    if exclusive:
        resources[EXCLUSIVE] = _exclusive_cores(mandatory.values())
        needs += exclusive
    needs += _manifest_needs(resources, needs)
    wishes = [
        _optional(consumer, need, containers, mandatory, resources.get(EXCLUSIVE, 0)) for consumer, need in optional
    ]
    per_node = pods.kind == "DaemonSet"
    for key, value in machine.labels(per_node=per_node).items():
        labels.setdefault(key, []).append(value)
    terms = _terms(pods, labels)
    tolerations = list(dict.fromkeys([*pods.tolerations, *machine.tolerations(per_node=per_node)]))
    surge, unavailable = rollout_of(pods, count)
    parts = part_needs(consumers, pods.containers, pod_requests(map(_with_classes, pods.containers)))
    devices, shared = pod_claims(pods, device_claims, diagnostics)
    parts = PartNeeds([*parts.groups, *devices.groups], [*parts.relations, *devices.relations])
    rules = together(rules, shared)
    needs += [
        NeedRef(consumer="", name=group.suffix, group=group.suffix)
        for group in parts.groups
        if group.devices and not group.optional and all(group.suffix != need.name for need in needs)
    ]
    parts = _with_role(pods, parts, list(mandatory.values()), diagnostics)
    aligned = alignment(list(mandatory.values()))
    inside = (parts, aligned) if any(parts) or aligned.containers else ()
    namespace = pods.namespace if machine.machine else ""
    user = (namespace,) if namespace else ()
    return Shape(
        key=_hash(
            (resources, terms, tolerations, wishes, count, per_node, *(rules if any(rules) else ()), *inside, *user)
        ),
        object=pods.object,
        count=count,
        per_node=per_node,
        resources=resources,
        terms=terms,
        tolerations=tolerations,
        optional=wishes,
        needs=needs,
        template=_hash((pods.template, _normalized_needs(consumers), *(parts if any(parts) else ()))),
        surge=surge,
        unavailable=unavailable,
        rules=rules.rules,
        marks=rules.marks,
        guaranteed=aligned.guaranteed,
        containers=aligned.containers,
        groups=parts.groups,
        relations=parts.relations,
        machine=machine.machine,
        runtime=machine.runtime(pods.kind, pods.template),
        namespace=namespace,
    )


def _with_role(
    pods: PodTemplate, parts: PartNeeds, containers: Sequence[ContainerResources], diagnostics: Diagnostics
) -> PartNeeds:
    metadata = pods.template.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    role, _, problem = chosen_role(metadata.get("labels") or {}, annotations)
    if problem:
        diagnostics.warn("RoleUnknown", f"{pods.object}: {problem}; every node refuses such a pod")
    return with_role(parts, role, pods.namespace, annotations.get(MAIN_CONTAINER, ""), containers)


def _hash(value: Any) -> str:
    return hashlib.blake2b(_canonical(value), digest_size=12).hexdigest()


def _count(pods: PodTemplate, consumers: Sequence[SourcedConsumer], diagnostics: Diagnostics) -> int:
    if pods.kind not in REPLICATED:
        return pods.count
    given = [(c.consumer.replicas, c.path) for c in consumers if c.consumer.replicas is not None]
    numbers = sorted({replicas for replicas, _ in given})
    if len(numbers) > 1:
        message = f"consumers of {pods.object} want {' and '.join(map(str, numbers))} pods in each cluster"
        diagnostics.error(f"{given[-1][1]}.replicas", "ReplicasConflict", message)
    return numbers[0] if numbers else pods.count


def _terms(pods: PodTemplate, labels: Mapping[str, list[str]]) -> list[list[Requirement]]:
    """Returns the manifest's node selector terms, each with the labels that needs require."""
    required = [
        Requirement(key=key, operator="In", values=(value,))
        for key, values in labels.items()
        for value in dict.fromkeys(values)
    ]
    if pods.terms:
        return [term + required for term in pods.terms]
    return [required] if required else []


def _pod_resources(pods: PodTemplate, containers: Iterable[ContainerResources]) -> dict[str, int]:
    total = pod_requests(
        containers,
        requests=pods.requests,
        limits=pods.limits,
        overhead=pods.overhead,
    )
    resources = {resource: amount for resource, amount in sorted(total.items()) if amount}
    resources[PODS] = 1
    return resources | port_amounts(pods.host_ports)


def _exclusive_needs(
    pods: PodTemplate,
    containers: Mapping[str, _Container],
    resources: Mapping[str, ContainerResources],
    diagnostics: Diagnostics,
) -> list[NeedRef]:
    """Returns the consumers that ask for exclusive cores: with an integer CPU need, and equal requests and limits for CPU
    and memory. Kubernetes gives them only where the whole pod is Guaranteed. `resources`: the containers with mandatory needs."""
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
        diagnostics.warn("NotGuaranteed", f"{text}, so {next(iter(asked_by))} gets no exclusive cores")
        return []
    return [
        NeedRef(consumer=consumer, name=EXCLUSIVE, amount=whole_cores(resources[name]))
        for name, consumer in asked_by.items()
    ]


def _check_dedicated(
    pods: PodTemplate,
    consumers: Iterable[SourcedConsumer],
    resources: Mapping[str, ContainerResources],
    diagnostics: Diagnostics,
) -> None:
    """Warns of containers that ask for dedicated cores (PCPU) and that no kubelet will give any. That another container keeps the
    pod from being Guaranteed is told elsewhere."""
    for consumer in consumers:
        container = resources.get(consumer.consumer.container)
        if container is None or not consumer.asks_dedicated or _has_exclusive_cores(container):
            continue
        lacks = "whole cores" if is_guaranteed(container) else "equal requests and limits for cpu and memory"
        text = f"{pods.object}: {consumer.name} asks for PCPU, but container {container.name} has no {lacks}"
        diagnostics.warn("NotDedicated", f"{text}, so its cores will not be exclusive")


def _has_exclusive_cores(container: ContainerResources) -> bool:
    return is_guaranteed(container) and whole_cores(container) > 0


def _exclusive_cores(containers: Iterable[ContainerResources]) -> int:
    """Returns the cores a pod of these containers holds exclusively, no matter which of them was asked for."""
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
        if resource != PODS and amount > asked[resource] and not is_host_port(resource)
    ]


def _optional(
    consumer: SourcedConsumer,
    need: Need,
    containers: Mapping[str, _Container],
    resources: Mapping[str, ContainerResources],
    exclusive: int,
) -> OptionalNeed:
    """`resources`: the containers with mandatory needs; `exclusive`: the exclusive cores that the pod has with these."""
    weight = need.weight or 1
    if need.label:
        label = (need.label, label_text(need.value))
        return OptionalNeed(consumer=consumer.name, name=need.label, weight=weight, label=label)
    if asks_class(need):
        name = need_name(need)
        return OptionalNeed(consumer=consumer.name, name=name, weight=weight, group=name)
    if is_part_class(need.resource):
        return OptionalNeed(
            consumer=consumer.name,
            name=need.resource,
            weight=weight,
            group=need.group,
            part_resources=part_amounts(need),
        )
    # It adds to mandatory needs but replaces what the manifest has; one that asks for less than the manifest is met.
    resource, container = need.resource, consumer.consumer.container
    with_need = containers[container].resources(need)
    more = {resource: with_need.requests[resource] - resources[container].requests.get(resource, 0)}
    if resource == "cpu" and _has_exclusive_cores(with_need):
        more[EXCLUSIVE] = _exclusive_cores({**resources, container: with_need}.values()) - exclusive
    return OptionalNeed(
        consumer=consumer.name,
        name=resource,
        weight=weight,
        resources={name: amount for name, amount in more.items() if amount > 0},
        group=need.group,
        part_resources=part_amounts(need),
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
            if asks_class(need):
                continue  # it is among the groups
            if need.machine:
                others.append(("machine", need.machine, need.window, need.max_runtime))
                continue
            amounts = need_amounts(need)
            if is_part_class(need.resource):
                if not is_mandatory(need):  # mandatory ones are in the groups
                    others.append((need.group, need.resource, amounts.requests))
            elif is_mandatory(need):
                key = (container, need.resource)
                sums[key] = sums.get(key, NeedAmounts()).plus(amounts)
            else:
                others.append((container, need.resource, *amounts))
    return [sorted(sums.items()), sorted(set(others), key=repr)]
