"""Checks consumers and their needs."""

from __future__ import annotations

from moorage.model.documents import Consumer, Need
from moorage.parsing import need_amount
from moorage.podspec import REPLICATED
from moorage.podspec.needs import is_mandatory, label_text

from .field_rules import LABEL_KEY, LABEL_VALUE, REQUESTABLE, check_count, check_name, is_requestable
from .manifest_rules import MAX_PODS
from .violations import Report

MAX_CONSUMERS = 100
MAX_NEEDS = 50


def check_consumers(consumers: list[Consumer], path: str, report: Report) -> None:
    check_count(consumers, MAX_CONSUMERS, path, report)
    for i, consumer in enumerate(consumers[:MAX_CONSUMERS]):
        _check_consumer(consumer, f"{path}[{i}]", report)


def _check_consumer(consumer: Consumer, path: str, report: Report) -> None:
    if consumer.name:
        check_name(consumer.name, f"{path}.name", report)
    ref = consumer.object
    if not ref.name:
        report(f"{path}.object.name", "Required", "is required: the name of the object that has the pods")
    if consumer.replicas is not None:
        if not 0 <= consumer.replicas <= MAX_PODS:
            report(f"{path}.replicas", "OutOfRange", f"must be 0 to {MAX_PODS}: pods in each cluster")
        elif consumer.replicas != 1 and ref.kind and ref.kind not in REPLICATED:
            report(f"{path}.replicas", "NotReplicated", f"a {ref.kind} has no spec.replicas to set")
    check_count(consumer.needs, MAX_NEEDS, f"{path}.needs", report)
    needs_resource = False
    seen: set[tuple[str, str, bool, str]] = set()
    for i, need in enumerate(consumer.needs[:MAX_NEEDS]):
        at = f"{path}.needs[{i}]"
        check_need(need, at, report)
        needs_resource = needs_resource or bool(need.resource)
        key = (need.resource, need.label, is_mandatory(need), _alternative(need))
        if key in seen:
            report(at, "Duplicate", f"this consumer asks for {need.resource or need.label} twice")
        seen.add(key)
    if needs_resource and not consumer.container:
        report(f"{path}.container", "Required", "a need for a resource belongs to a container; name it")


def _alternative(need: Need) -> str:
    """Returns what tells an optional label from others of its name: its value. A node has one of them at most."""
    return label_text(need.value) if need.label and not is_mandatory(need) else ""


def check_need(need: Need, path: str, report: Report) -> None:
    if need.name:
        check_name(need.name, f"{path}.name", report)
    if need.weight is not None and not 1 <= need.weight <= 10:
        report(f"{path}.weight", "OutOfRange", "must be 1 to 10")
    if bool(need.resource) == bool(need.label):
        report(path, "Contradiction", "give either resource (with requests or limits) or label (with its value)")
        if not need.resource:
            return
    if need.label:
        _check_label(need, path, report)
    else:
        _check_amounts(need, path, report)


def _check_label(need: Need, path: str, report: Report) -> None:
    if LABEL_KEY.fullmatch(need.label) is None:
        report(f"{path}.label", "InvalidLabel", f"{need.label!r} is not the name of a Kubernetes label")
    if LABEL_VALUE.fullmatch(label_text(need.value)) is None:
        report(f"{path}.value", "InvalidLabel", f"{need.value!r} is not the value of a Kubernetes label")
    if need.requests is not None or need.limits is not None or need.units:
        report(path, "Contradiction", "a label has a value, not requests, limits or units")


def _check_amounts(need: Need, path: str, report: Report) -> None:
    if need.value != "":
        report(f"{path}.value", "Contradiction", "a resource has requests and limits, not a value")
    if not is_requestable(need.resource):
        message = f"{need.resource!r} is not a resource that a container can request: that is {REQUESTABLE}"
        report(f"{path}.resource", "InvalidName", message)
        return
    if need.requests is None and need.limits is None:
        report(path, "Required", "requests or limits or both are needed")
        return
    requests = _amount(need, "requests", need.requests, path, report)
    limits = _amount(need, "limits", need.limits, path, report)
    if requests is not None and limits is not None and requests > limits:
        report(f"{path}.requests", "RequestsAboveLimits", f"{need.requests} is more than the limits of {need.limits}")


def _amount(need: Need, field: str, value: float | str | None, path: str, report: Report) -> int | None:
    if value is None:
        return None
    try:
        return need_amount(need.resource, value, need.units)
    except ValueError as error:
        report(f"{path}.{field}", "InvalidQuantity", str(error))
        return None
