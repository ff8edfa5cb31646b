"""What a document must keep to beyond its form. Every rule reports where and what, and none stops the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from moorage.model.documents import (
    API_VERSION,
    AffinityIntentSpec,
    AffinityRule,
    App,
    Application,
    Consumer,
    HpaIntentSpec,
    Metadata,
    Need,
    PlacementIntentSpec,
    PlacementSet,
    Term,
)
from moorage.model.names import GroupName, is_name
from moorage.model.shapes import EXCLUSIVE, PODS
from moorage.parsing import need_amount
from moorage.podspec import REPLICATED
from moorage.podspec.needs import is_mandatory, label_text

from .pod_templates import PodTemplate, has_pods, read
from .violations import Report

MAX_APPS = 64
MAX_MANIFESTS = 500
MAX_CONSUMERS = 100
MAX_NEEDS = 50
MAX_TERMS = 200
MAX_CLUSTERS = 100_000
MAX_PODS = 100_000

_KEY = re.compile(
    r"(?:(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_NAME_IS = "must be 1 to 128 of letters, digits, '-', '_' and '.', with a letter or digit at both ends"
_FROM_FILE = {"file", "chart"}


class Objects(NamedTuple):
    """The manifests of an app, lists opened, and the pods of those that have some."""

    manifests: list[dict[str, Any]]
    pods: list[PodTemplate]


def metadata(given: Metadata, report: Report) -> None:
    _name(given.name, "metadata.name", report)
    _name(given.project, "metadata.project", report)
    _labels(given.labels, "metadata.labels", report)
    if sum(map(len, given.annotations)) + sum(map(len, given.annotations.values())) > 256 << 10:
        report("metadata.annotations", "TooLarge", "must have at most 256 KiB together")


def version(given: str, report: Report) -> None:
    if given != API_VERSION:
        report("apiVersion", "UnknownVersion", f"must be {API_VERSION}")


def application(given: Application, report: Report) -> list[Objects]:
    """Checks it all and returns what the apps' manifests hold, in the order of the apps."""
    version(given.api_version, report)
    metadata(given.metadata, report)
    apps = given.spec.apps
    if not apps:
        report("spec.apps", "Required", "at least one app is needed")
    _many(apps, MAX_APPS, "spec.apps", report)
    found = [_app(app, f"spec.apps[{i}]", report) for i, app in enumerate(apps[:MAX_APPS])]
    names = [a.name for a in apps]
    _distinct(names, "spec.apps", "name", "app", report)
    for i, rule in enumerate(given.spec.affinity):
        affinity(rule, f"spec.affinity[{i}]", report, names)
    return found


def hpa_intent(given: HpaIntentSpec, report: Report) -> None:
    _name(given.app, "spec.app", report)
    _consumers(given.consumers, "spec.consumers", report)


def placement_intent(given: PlacementIntentSpec, report: Report) -> None:
    _name(given.app, "spec.app", report)
    if given.sets and (given.all_of or given.any_of):
        report("spec.sets", "Contradiction", "give either sets or allOf and anyOf, not both")
    _terms(given.all_of, "spec.allOf", report)
    _terms(given.any_of, "spec.anyOf", report)
    _sets(given.sets, "spec.sets", report)


def _sets(given: list[PlacementSet], path: str, report: Report) -> None:
    _many(given, MAX_TERMS, path, report)
    for i, choice in enumerate(given):
        at = f"{path}[{i}]"
        if not 0 <= choice.count <= MAX_CLUSTERS:
            report(f"{at}.count", "OutOfRange", f"must be 0 (all of them) to {MAX_CLUSTERS}")
        _terms(choice.all_of, f"{at}.allOf", report)
        _terms(choice.any_of, f"{at}.anyOf", report)


def affinity_intent(given: AffinityIntentSpec, report: Report) -> None:
    if not given.rules:
        report("spec.rules", "Required", "at least one rule is needed")
    _many(given.rules, MAX_TERMS, "spec.rules", report)
    for i, rule in enumerate(given.rules):
        affinity(rule, f"spec.rules[{i}]", report)


def group(text: object, project: str, report: Report) -> GroupName | None:
    """The group an intent of its own is for. A full name decides the project where the document names none."""
    if not isinstance(text, str) or not text:
        report("spec.group", "Required", "name the group this intent is for, like shop or default/shop/v1/default")
        return None
    try:
        found = GroupName.parse(text, project)
    except ValueError as error:
        report("spec.group", "InvalidName", str(error))
        return None
    if found.project != project and project != "default":
        report("spec.group", "Contradiction", f"is in project {found.project!r}, the document in {project!r}")
    return found


def affinity(rule: AffinityRule, path: str, report: Report, apps: Sequence[str] | None = None) -> None:
    if bool(rule.together) == bool(rule.apart):
        report(path, "Contradiction", "give either together or apart, with the names of two or more apps")
        return
    field, names = ("together", rule.together) if rule.together else ("apart", rule.apart)
    if len(set(names)) < max(2, len(names)):
        report(f"{path}.{field}", "OutOfRange", "must name two or more different apps")
    for i, name in enumerate(names):
        if apps is not None and name not in apps:
            report(f"{path}.{field}[{i}]", "UnknownApp", f"there is no app {name!r} here; there are {', '.join(apps)}")


def _app(app: App, path: str, report: Report) -> Objects:
    _name(app.name, f"{path}.name", report)
    if app.replicas is not None and not 1 <= app.replicas <= MAX_CLUSTERS:
        report(f"{path}.replicas", "OutOfRange", f"must be 1 to {MAX_CLUSTERS}: on how many clusters the app runs")
    if app.placement is not None:
        _terms(app.placement.all_of, f"{path}.placement.allOf", report)
        _terms(app.placement.any_of, f"{path}.placement.anyOf", report)
        _sets(app.placement.sets, f"{path}.placement.sets", report)
    _consumers(app.consumers, f"{path}.consumers", report)
    return _manifests(app.manifests, f"{path}.manifests", report)


def manifests(given: list[dict[str, Any]], path: str, report: Report) -> list[dict[str, Any]]:
    """Kubernetes objects, lists opened, that no document holds yet."""
    return _manifests(given, path, report).manifests


def _manifests(given: list[dict[str, Any]] | dict[str, Any], path: str, report: Report) -> Objects:
    if isinstance(given, dict):
        entries = [(path, given)] if given else []
    else:
        entries = [(f"{path}[{i}]", m) for i, m in enumerate(given)]
    manifests: list[dict[str, Any]] = []
    pods: list[PodTemplate] = []
    seen: set[tuple[Any, ...]] = set()
    for at, manifest in entries:
        kind = manifest.get("kind")
        if isinstance(kind, str) and kind == "List" and isinstance(manifest.get("items"), list):
            inside = [(f"{at}.items[{i}]", item) for i, item in enumerate(manifest["items"])]
        else:
            inside = [(at, manifest)]
        for where, item in inside:
            if not _is_object(item, where, report):
                continue
            meta = item["metadata"]
            bears = has_pods(item)
            # Claims and statuses name an object as Kind/name: two that have pods must differ in that.
            key = (item["kind"], meta["name"]) + (() if bears else (item["apiVersion"], meta.get("namespace")))
            if key in seen:
                report(f"{where}.metadata.name", "Duplicate", f"a second {item['kind']} {meta['name']!r} in this app")
            seen.add(key)
            manifests.append(item)
            if bears and (found := read(item, where, report)) is not None:
                pods.append(found)
                if found.count > MAX_PODS:
                    report(f"{where}.spec", "OutOfRange", f"asks for {found.count} pods; at most {MAX_PODS} are taken")
    _many(manifests, MAX_MANIFESTS, path, report)
    return Objects(manifests, pods)


def _is_object(item: Any, path: str, report: Report) -> bool:
    if not isinstance(item, dict):
        report(path, "WrongType", "must be a Kubernetes object")
        return False
    if "kind" not in item and (keys := _FROM_FILE & item.keys()):
        report(
            path,
            "NotInline",
            f"{{{min(keys)}: …}} is read by the command line (moorage apply -f); write the objects here",
        )
        return False
    before = True
    for field in ("apiVersion", "kind"):
        if not isinstance(item.get(field), str) or not item[field]:
            report(f"{path}.{field}", "Required", "is required: text, as in every Kubernetes object")
            before = False
    meta = item.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str) or not meta["name"]:
        report(f"{path}.metadata.name", "Required", "is required: objects are applied by name")
        return False
    if len(meta["name"]) > 253:
        report(f"{path}.metadata.name", "InvalidName", "must have at most 253 characters")
    return before


def _consumers(given: list[Consumer], path: str, report: Report) -> None:
    _many(given, MAX_CONSUMERS, path, report)
    for i, consumer in enumerate(given[:MAX_CONSUMERS]):
        _consumer(consumer, f"{path}[{i}]", report)


def _consumer(consumer: Consumer, path: str, report: Report) -> None:
    if consumer.name:
        _name(consumer.name, f"{path}.name", report)
    for field, text in (
        ("apiVersion", consumer.object.api_version),
        ("kind", consumer.object.kind),
        ("name", consumer.object.name),
    ):
        if not text:
            report(
                f"{path}.object.{field}", "Required", "is required: the object is found by apiVersion, kind and name"
            )
    if consumer.replicas is not None:
        if not 0 <= consumer.replicas <= MAX_PODS:
            report(f"{path}.replicas", "OutOfRange", f"must be 0 to {MAX_PODS}: pods in each cluster")
        elif consumer.replicas != 1 and consumer.object.kind not in REPLICATED:
            report(f"{path}.replicas", "NotReplicated", f"a {consumer.object.kind} has no spec.replicas to set")
    _many(consumer.needs, MAX_NEEDS, f"{path}.needs", report)
    allocatable = False
    seen: set[tuple[str, str, bool]] = set()
    for i, need in enumerate(consumer.needs[:MAX_NEEDS]):
        at = f"{path}.needs[{i}]"
        need_is_right(need, at, report)
        allocatable = allocatable or bool(need.resource)
        key = (need.resource, need.label, is_mandatory(need))
        if key in seen:
            report(at, "Duplicate", f"{need.resource or need.label} is asked for twice by this consumer")
        seen.add(key)
    if allocatable and not consumer.container:
        report(f"{path}.container", "Required", "a need for a resource belongs to a container; name it")


def need_is_right(need: Need, path: str, report: Report) -> None:
    if need.name:
        _name(need.name, f"{path}.name", report)
    if need.weight is not None and not 1 <= need.weight <= 10:
        report(f"{path}.weight", "OutOfRange", "must be 1 to 10")
    if bool(need.resource) == bool(need.label):
        report(path, "Contradiction", "give either resource (with requests or limits) or label (with its value)")
        if not need.resource:
            return
    if need.label:
        if _KEY.fullmatch(need.label) is None:
            report(f"{path}.label", "InvalidLabel", f"{need.label!r} is not the name of a Kubernetes label")
        if _VALUE.fullmatch(label_text(need.value)) is None:
            report(f"{path}.value", "InvalidLabel", f"{need.value!r} is not the value of a Kubernetes label")
        if need.requests is not None or need.limits is not None or need.units:
            report(path, "Contradiction", "a label has a value, not requests, limits or units")
        return
    if need.value != "":
        report(f"{path}.value", "Contradiction", "a resource has requests and limits, not a value")
    if _KEY.fullmatch(need.resource) is None or need.resource in (PODS, EXCLUSIVE):
        report(f"{path}.resource", "InvalidName", f"{need.resource!r} is not a resource that a container can ask for")
        return
    if need.requests is None and need.limits is None:
        report(path, "Required", "requests or limits or both are needed")
        return
    requests = _quantity(need, "requests", need.requests, path, report)
    limits = _quantity(need, "limits", need.limits, path, report)
    if requests is not None and limits is not None and requests > limits:
        report(f"{path}.requests", "RequestsAboveLimits", f"{need.requests} is more than the limits of {need.limits}")


def _quantity(need: Need, field: str, value: float | str | None, path: str, report: Report) -> int | None:
    if value is None:
        return None
    try:
        return need_amount(need.resource, value, need.units)
    except ValueError as error:
        report(f"{path}.{field}", "InvalidQuantity", str(error))
        return None


def _terms(terms: list[Term], path: str, report: Report) -> None:
    _many(terms, MAX_TERMS, path, report)
    for i, term in enumerate(terms[:MAX_TERMS]):
        at = f"{path}[{i}]"
        if bool(term.label) + bool(term.cluster) + bool(term.provider) + bool(term.any_of) + bool(term.all_of) != 1:
            report(at, "Contradiction", "give exactly one of label, cluster, provider, anyOf and allOf")
        _labels(term.label, f"{at}.label", report)
        if term.cluster and not (term.cluster.count("/") == 1 and all(map(is_name, term.cluster.split("/")))):
            report(f"{at}.cluster", "InvalidName", "must be a cluster's name as in moorage get clusters: PROVIDER/NAME")
        if term.provider and not is_name(term.provider):
            report(f"{at}.provider", "InvalidName", _NAME_IS)
        _terms(term.any_of, f"{at}.anyOf", report)
        _terms(term.all_of, f"{at}.allOf", report)


def _labels(labels: dict[str, str], path: str, report: Report) -> None:
    for key, value in labels.items():
        if _KEY.fullmatch(key) is None:
            report(f"{path}.{key}", "InvalidLabel", f"{key!r} is not the name of a label")
        if _VALUE.fullmatch(value) is None:
            report(f"{path}.{key}", "InvalidLabel", f"{value!r} is not the value of a label")


def _name(text: str, path: str, report: Report) -> None:
    if not is_name(text):
        report(path, "InvalidName", _NAME_IS if text else "is required")


def _many(items: Sequence[Any], most: int, path: str, report: Report) -> None:
    if len(items) > most:
        report(path, "TooMany", f"{len(items)} are given; at most {most} are taken")


def _distinct(names: list[str], path: str, field: str, what: str, report: Report) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name and name in seen:
            report(f"{path}[{i}].{field}", "Duplicate", f"there is a second {what} {name!r}")
        seen.add(name)
