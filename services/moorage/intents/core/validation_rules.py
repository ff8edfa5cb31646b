"""Checks what documents must keep to beyond the types of their fields. Every rule reports what is wrong and where, and none
stops the others."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.model.documents import (
    API_VERSION,
    AffinityIntentSpec,
    AffinityRule,
    App,
    Application,
    HpaIntentSpec,
    Metadata,
    PlacementIntentSpec,
    PlacementSet,
    Term,
)
from moorage.model.names import GroupName, is_name

from .consumer_rules import check_consumers
from .diagnostics import Diagnostics
from .field_rules import NAME_IS, check_count, check_distinct, check_labels, check_name
from .manifest_rules import AppObjects, read_objects
from .topology_rules import check_groups

MAX_APPS = 64
MAX_TERMS = 200
MAX_CLUSTERS = 100_000


def metadata(meta: Metadata, diagnostics: Diagnostics) -> None:
    check_name(meta.name, "metadata.name", diagnostics)
    check_name(meta.project, "metadata.project", diagnostics)
    check_labels(meta.labels, "metadata.labels", diagnostics)
    if sum(map(len, meta.annotations)) + sum(map(len, meta.annotations.values())) > 256 << 10:
        diagnostics.error("metadata.annotations", "TooLarge", "must have at most 256 KiB together")


def version(text: str, diagnostics: Diagnostics) -> None:
    if text != API_VERSION:
        diagnostics.error("apiVersion", "UnknownVersion", f"must be {API_VERSION}")


def application(document: Application, diagnostics: Diagnostics) -> list[AppObjects]:
    """Checks an Application and returns the objects of each app, in the order of the apps."""
    version(document.api_version, diagnostics)
    metadata(document.metadata, diagnostics)
    apps = document.spec.apps
    if not apps:
        diagnostics.error("spec.apps", "Required", "at least one app is needed")
    check_count(apps, MAX_APPS, "spec.apps", diagnostics)
    objects = [_app(app, f"spec.apps[{i}]", diagnostics) for i, app in enumerate(apps[:MAX_APPS])]
    names = [app.name for app in apps]
    check_distinct(names, "spec.apps", "app", diagnostics)
    for i, rule in enumerate(document.spec.affinity):
        _affinity_rule(rule, f"spec.affinity[{i}]", diagnostics, names)
    return objects


def _app(app: App, path: str, diagnostics: Diagnostics) -> AppObjects:
    check_name(app.name, f"{path}.name", diagnostics)
    if app.replicas is not None and not 1 <= app.replicas <= MAX_CLUSTERS:
        diagnostics.error(
            f"{path}.replicas", "OutOfRange", f"must be 1 to {MAX_CLUSTERS}: on how many clusters the app runs"
        )
    if app.placement is not None:
        _terms(app.placement.all_of, f"{path}.placement.allOf", diagnostics)
        _terms(app.placement.any_of, f"{path}.placement.anyOf", diagnostics)
        _sets(app.placement.sets, f"{path}.placement.sets", diagnostics)
    check_consumers(app.consumers, f"{path}.consumers", diagnostics)
    check_groups(app.consumers, f"{path}.consumers", diagnostics)
    return read_objects(app.manifests, f"{path}.manifests", diagnostics)


def group(text: object, project: str, diagnostics: Diagnostics) -> GroupName | None:
    """Reads the group that a standalone intent is for. A full name decides the project where the document names none."""
    if not isinstance(text, str) or not text:
        diagnostics.error(
            "spec.group", "Required", "name the group this intent is for, like shop or default/shop/v1/default"
        )
        return None
    try:
        name = GroupName.parse(text, project)
    except ValueError as error:
        diagnostics.error("spec.group", "InvalidName", str(error))
        return None
    if name.project != project and project != "default":
        diagnostics.error("spec.group", "Contradiction", f"is in project {name.project!r}, the document in {project!r}")
    return name


def hpa_intent(spec: HpaIntentSpec, diagnostics: Diagnostics) -> None:
    check_name(spec.app, "spec.app", diagnostics)
    check_consumers(spec.consumers, "spec.consumers", diagnostics)


def placement_intent(spec: PlacementIntentSpec, diagnostics: Diagnostics) -> None:
    check_name(spec.app, "spec.app", diagnostics)
    if spec.sets and (spec.all_of or spec.any_of):
        diagnostics.error("spec.sets", "Contradiction", "give either sets or allOf and anyOf, not both")
    _terms(spec.all_of, "spec.allOf", diagnostics)
    _terms(spec.any_of, "spec.anyOf", diagnostics)
    _sets(spec.sets, "spec.sets", diagnostics)


def affinity_intent(spec: AffinityIntentSpec, diagnostics: Diagnostics) -> None:
    if not spec.rules:
        diagnostics.error("spec.rules", "Required", "at least one rule is needed")
    check_count(spec.rules, MAX_TERMS, "spec.rules", diagnostics)
    for i, rule in enumerate(spec.rules):
        _affinity_rule(rule, f"spec.rules[{i}]", diagnostics)


def _affinity_rule(rule: AffinityRule, path: str, diagnostics: Diagnostics, apps: Sequence[str] | None = None) -> None:
    """`apps`: those that may be named; None: any."""
    if bool(rule.together) == bool(rule.apart):
        diagnostics.error(path, "Contradiction", "give either together or apart, with the names of two or more apps")
        return
    field, names = ("together", rule.together) if rule.together else ("apart", rule.apart)
    if len(set(names)) < max(2, len(names)):
        diagnostics.error(f"{path}.{field}", "OutOfRange", "must name two or more different apps")
    for i, name in enumerate(names):
        if apps is not None and name not in apps:
            message = f"this document has no app {name!r}; it has {', '.join(apps)}"
            diagnostics.error(f"{path}.{field}[{i}]", "UnknownApp", message)


def _sets(sets: list[PlacementSet], path: str, diagnostics: Diagnostics) -> None:
    check_count(sets, MAX_TERMS, path, diagnostics)
    for i, placement_set in enumerate(sets):
        at = f"{path}[{i}]"
        if not 0 <= placement_set.count <= MAX_CLUSTERS:
            diagnostics.error(
                f"{at}.count", "OutOfRange", f"must be 0 (all clusters that the terms select) to {MAX_CLUSTERS}"
            )
        if placement_set.partial and placement_set.count:
            diagnostics.error(f"{at}.partial", "Contradiction", "allows a part of all clusters; it needs count: 0")
        _terms(placement_set.all_of, f"{at}.allOf", diagnostics)
        _terms(placement_set.any_of, f"{at}.anyOf", diagnostics)


def _terms(terms: list[Term], path: str, diagnostics: Diagnostics) -> None:
    check_count(terms, MAX_TERMS, path, diagnostics)
    for i, term in enumerate(terms[:MAX_TERMS]):
        at = f"{path}[{i}]"
        if bool(term.label) + bool(term.cluster) + bool(term.provider) + bool(term.any_of) + bool(term.all_of) != 1:
            diagnostics.error(at, "Contradiction", "give exactly one of label, cluster, provider, anyOf and allOf")
        check_labels(term.label, f"{at}.label", diagnostics)
        if term.cluster and not (term.cluster.count("/") == 1 and all(map(is_name, term.cluster.split("/")))):
            diagnostics.error(f"{at}.cluster", "InvalidName", "must be PROVIDER/NAME, as moorage get clusters shows it")
        if term.provider and not is_name(term.provider):
            diagnostics.error(f"{at}.provider", "InvalidName", NAME_IS)
        _terms(term.any_of, f"{at}.anyOf", diagnostics)
        _terms(term.all_of, f"{at}.allOf", diagnostics)
