"""Checks consumers and their needs."""

from __future__ import annotations

import msgspec

from moorage.model.documents import Consumer, Need
from moorage.model.part_names import KUBERNETES_RESOURCES, is_part_class
from moorage.parsing import need_amount
from moorage.podspec import REPLICATED
from moorage.podspec.needs import asks_class, is_mandatory, kubernetes_need, label_text

from .device_needs import check_device_need
from .diagnostics import Diagnostics
from .field_rules import LABEL_KEY, LABEL_VALUE, REQUESTABLE, check_count, check_name, is_requestable
from .machine_needs import check_machine
from .manifest_rules import MAX_PODS
from .topology_rules import check_suffix, check_topology

MAX_CONSUMERS = 100
MAX_NEEDS = 50


def check_consumers(consumers: list[Consumer], path: str, diagnostics: Diagnostics) -> None:
    check_count(consumers, MAX_CONSUMERS, path, diagnostics)
    for i, consumer in enumerate(consumers[:MAX_CONSUMERS]):
        _check_consumer(consumer, f"{path}[{i}]", diagnostics)


def _check_consumer(consumer: Consumer, path: str, diagnostics: Diagnostics) -> None:
    if consumer.name:
        check_name(consumer.name, f"{path}.name", diagnostics)
    ref = consumer.object
    if not ref.name:
        diagnostics.error(f"{path}.object.name", "Required", "is required: the name of the object that has the pods")
    if consumer.replicas is not None:
        if not 0 <= consumer.replicas <= MAX_PODS:
            diagnostics.error(f"{path}.replicas", "OutOfRange", f"must be 0 to {MAX_PODS}: pods in each cluster")
        elif consumer.replicas != 1 and ref.kind and ref.kind not in REPLICATED:
            diagnostics.error(f"{path}.replicas", "NotReplicated", f"a {ref.kind} has no spec.replicas to set")
    check_count(consumer.needs, MAX_NEEDS, f"{path}.needs", diagnostics)
    needs_resource = False
    seen: set[tuple[str, str, str, bool, str]] = set()
    for i, need in enumerate(consumer.needs[:MAX_NEEDS]):
        at = f"{path}.needs[{i}]"
        check_need(need, at, diagnostics)
        if asks_class(need):
            continue  # several needs may be for one class; their names differ
        needs_resource = needs_resource or (bool(need.resource) and not is_part_class(need.resource))
        key = (_resource(need), need.group, need.label or need.machine, is_mandatory(need), _alternative(need))
        if key in seen:
            diagnostics.error(at, "Duplicate", f"this consumer asks for {need.resource or need.label} twice")
        seen.add(key)
    machines = [i for i, need in enumerate(consumer.needs[:MAX_NEEDS]) if need.machine]
    if machines and needs_resource:
        at = f"{path}.needs[{machines[0]}]"
        text = "a machine's slot is all that its container gets; leave out needs for resources"
        diagnostics.error(at, "Contradiction", text)
    if len(machines) > 1:
        diagnostics.error(f"{path}.needs[{machines[1]}]", "Duplicate", "a pod runs in one slot")
    if needs_resource and not consumer.container:
        diagnostics.error(f"{path}.container", "Required", "a need for a resource belongs to a container; name it")
    if consumer.topology is not None:
        check_topology(consumer.topology, f"{path}.topology", diagnostics)


def _resource(need: Need) -> str:
    """Returns the resource by the name that all its spellings share."""
    try:
        return kubernetes_need(need).resource
    except ValueError:
        return need.resource


def _alternative(need: Need) -> str:
    """Returns what distinguishes optional labels of one name: their value. A node has one of them at most."""
    return label_text(need.value) if need.label and not is_mandatory(need) else ""


def check_need(need: Need, path: str, diagnostics: Diagnostics) -> None:
    if need.name:
        check_name(need.name, f"{path}.name", diagnostics)
    if need.weight is not None and not 1 <= need.weight <= 10:
        diagnostics.error(f"{path}.weight", "OutOfRange", "must be 1 to 10")
    if asks_class(need):
        check_device_need(need, path, diagnostics)
        return
    if need.count is not None or need.capacity or need.algorithm:
        message = "count, capacity and algorithm belong to a class of devices; give class or oneOf"
        diagnostics.error(path, "Contradiction", message)
    if need.machine:
        check_machine(need, path, diagnostics)
        return
    if need.window or need.max_runtime:
        diagnostics.error(path, "Contradiction", "window and maxRuntime belong to a machine")
    if bool(need.resource) == bool(need.label):
        diagnostics.error(
            path,
            "Contradiction",
            "give one of resource (with requests or limits), label (with its value), class, oneOf and machine",
        )
        if not need.resource:
            return
    if need.label:
        _check_label(need, path, diagnostics)
    else:
        _check_amounts(need, path, diagnostics)


def _check_label(need: Need, path: str, diagnostics: Diagnostics) -> None:
    if LABEL_KEY.fullmatch(need.label) is None:
        diagnostics.error(f"{path}.label", "InvalidLabel", f"{need.label!r} is not the name of a Kubernetes label")
    if LABEL_VALUE.fullmatch(label_text(need.value)) is None:
        diagnostics.error(f"{path}.value", "InvalidLabel", f"{need.value!r} is not the value of a Kubernetes label")
    if need.requests is not None or need.limits is not None or need.units:
        diagnostics.error(path, "Contradiction", "a label has a value, not requests, limits or units")
    if need.group:
        diagnostics.error(f"{path}.group", "Contradiction", "a label belongs to the node, a group to parts of it")


def _check_amounts(need: Need, path: str, diagnostics: Diagnostics) -> None:
    if need.value != "":
        diagnostics.error(f"{path}.value", "Contradiction", "a resource has requests and limits, not a value")
    if need.group:
        check_suffix(need.group, f"{path}.group", diagnostics)
    if not (is_requestable(need.resource) or is_part_class(need.resource) or need.resource in KUBERNETES_RESOURCES):
        message = f"{need.resource!r} is not a resource that a container can request: that is {REQUESTABLE}"
        diagnostics.error(f"{path}.resource", "InvalidName", message)
        return
    if need.requests is None and need.limits is None:
        diagnostics.error(path, "Required", "requests or limits or both are needed")
        return
    requests = _amount(need, "requests", need.requests, path, diagnostics)
    limits = _amount(need, "limits", need.limits, path, diagnostics)
    if requests is not None and limits is not None and requests > limits:
        diagnostics.error(
            f"{path}.requests", "RequestsAboveLimits", f"{need.requests} is more than the limits of {need.limits}"
        )


def _amount(need: Need, field: str, value: float | str | None, path: str, diagnostics: Diagnostics) -> int | None:
    if value is None:
        return None
    try:
        if need.resource not in KUBERNETES_RESOURCES and not is_part_class(need.resource):
            return need_amount(need.resource, value, need.units)
        one = kubernetes_need(msgspec.structs.replace(need, requests=value, limits=None))
        return need_amount(one.resource, one.requests or value, one.units)
    except ValueError as error:
        diagnostics.error(f"{path}.{field}", "InvalidQuantity", str(error))
        return None
