"""Makes the revision of a group out of its documents: shapes, numbers of clusters, and the intents that controllers are
asked with. Pure; equal documents give equal revisions, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from moorage.model.documents import AffinityIntentSpec, App, Consumer, HpaIntentSpec, ObjectRef, PlacementIntentSpec
from moorage.model.groups import Revision
from moorage.model.problems import Problem, Refused, Violation
from moorage.model.shapes import Intent, ShapedApp

from .consumer_matching import SourcedConsumer, match_consumers
from .diagnostics import Diagnostics
from .group_rules import resolve_rules
from .shapes import app_shapes
from .topology_rules import check_groups_of_pod
from .validate import Accepted, AcceptedIntent

_encode = msgspec.json.Encoder().encode
_TITLES = {
    "Contradiction": "Consumers of a pod contradict each other",
    "ResourcelessGroup": "A group has no resources",
    "UnknownGroup": "Unknown group",
    "ConsumerAmbiguous": "A consumer matches several objects",
    "ConsumerMatchesNothing": "A consumer matches nothing",
    "NotReplicated": "An object has no replicas",
    "ReplicasConflict": "Replicas contradict each other",
    "UnknownApp": "Unknown app",
}


def resolve(
    application: Accepted, attached: Iterable[AcceptedIntent] = (), *, revision: int = 1, instantiated: str = ""
) -> Revision:
    """Raises Refused where the documents contradict each other. `attached` are the standalone intents of the group."""
    group = str(application.group)
    apps = application.document.spec.apps
    standalone = sorted(attached, key=lambda intent: intent.key)
    _check_apps(standalone, [app.name for app in apps])
    diagnostics = Diagnostics()
    intents: list[Intent] = []
    shaped = []
    templates = [(app.name, objects.pods) for app, objects in zip(apps, application.objects, strict=True)]
    rules = resolve_rules(templates, diagnostics)
    for i, (app, objects) in enumerate(zip(apps, application.objects, strict=True)):
        written = [SourcedConsumer(c, f"spec.apps[{i}].consumers[{j}]") for j, c in enumerate(app.consumers)]
        own = match_consumers(app.name, objects, written, diagnostics)
        consumers = list(own)
        for k, intent in enumerate(standalone):
            if isinstance(intent.spec, HpaIntentSpec) and intent.spec.app == app.name:
                at = f"{intent.key}: spec.consumers"
                written = [SourcedConsumer(c, f"{at}[{j}]") for j, c in enumerate(intent.spec.consumers)]
                found = match_consumers(app.name, objects, written, diagnostics)
                spec = msgspec.structs.replace(intent.spec, consumers=[sourced.consumer for sourced in found])
                standalone[k] = intent._replace(spec=spec)
                consumers += found
        _check_groups(consumers, diagnostics)
        shapes = app_shapes(objects, consumers, rules.get(app.name, {}), diagnostics, pinned=app.steering == "pinned")
        shaped.append(
            ShapedApp(
                name=app.name,
                replicas=_replicas(app, standalone, diagnostics),
                shapes=shapes,
                steering=app.steering or "",
            )
        )
        intents += _app_intents(group, app, [sourced.consumer for sourced in own])
    if diagnostics.errors:
        raise _refused(diagnostics.errors)
    if application.document.spec.affinity:
        affinity = AffinityIntentSpec(group=group, rules=application.document.spec.affinity)
        intents.append(_intent("AffinityIntent", application.group.app, affinity))
    intents += [_intent(i.document.kind, i.document.metadata.name, i.spec) for i in standalone]
    return Revision(
        group=group,
        revision=revision,
        tenant=application.group.project,
        apps=shaped,
        intents=intents,
        warnings=list(dict.fromkeys(diagnostics.warnings)),
        instantiated=instantiated,
    )


def _check_groups(consumers: Sequence[SourcedConsumer], diagnostics: Diagnostics) -> None:
    """Checks the groups of each pod, which consumers of several documents may share."""
    of_object: dict[ObjectRef, list[SourcedConsumer]] = {}
    for sourced in consumers:
        of_object.setdefault(sourced.consumer.object, []).append(sourced)
    for of_pod in of_object.values():
        check_groups_of_pod(of_pod, diagnostics)


def _refused(errors: list[Violation]) -> Refused:
    first = errors[0]
    detail = f"{first.path}: {first.message}"
    return Refused(Problem(title=_TITLES[first.code], status=409, code=first.code, detail=detail, errors=errors))


def _intent(kind: str, name: str, spec: object) -> Intent:
    return Intent(kind=kind, name=name, spec=msgspec.Raw(_encode(spec)))


def _app_intents(group: str, app: App, consumers: list[Consumer]) -> list[Intent]:
    """Returns the intents of an app of an Application in the form of standalone intents, the only form controllers know.
    `consumers` have the full references of their objects."""
    intents = []
    if consumers:
        intents.append(_intent("HpaIntent", app.name, HpaIntentSpec(group=group, app=app.name, consumers=consumers)))
    placement = app.placement
    if placement is not None and (placement.all_of or placement.any_of or placement.sets):
        spec = PlacementIntentSpec(
            group=group, app=app.name, all_of=placement.all_of, any_of=placement.any_of, sets=placement.sets
        )
        intents.append(_intent("PlacementIntent", app.name, spec))
    return intents


def _check_apps(intents: Sequence[AcceptedIntent], apps: list[str]) -> None:
    """Refuses intents for apps that the group does not have."""
    errors = [
        Violation(
            path=f"{intent.key}: {path}",
            code="UnknownApp",
            message=f"the group has no app {name!r}; it has {', '.join(apps)}",
        )
        for intent in intents
        for path, name in _named_apps(intent)
        if name not in apps
    ]
    if errors:
        raise _refused(errors)


def _named_apps(intent: AcceptedIntent) -> list[tuple[str, str]]:
    """Returns the apps that an intent names, each with its path in the document."""
    if isinstance(intent.spec, HpaIntentSpec | PlacementIntentSpec):
        return [("spec.app", intent.spec.app)]
    if isinstance(intent.spec, AffinityIntentSpec):
        return [
            (f"spec.rules[{i}]", name)
            for i, rule in enumerate(intent.spec.rules)
            for name in rule.together + rule.apart
        ]
    return []


def _replicas(app: App, intents: Sequence[AcceptedIntent], diagnostics: Diagnostics) -> int:
    """Returns on how many clusters the app runs: its `replicas`, else the sum of its placement sets (0: all that they
    select), else 1. Where replicas and sets contradict each other, this only warns: no candidate set will satisfy both,
    and the merger says so."""
    sets = list(app.placement.sets) if app.placement is not None else []
    for intent in intents:
        if isinstance(intent.spec, PlacementIntentSpec) and intent.spec.app == app.name:
            sets += intent.spec.sets
    if not sets:
        return 1 if app.replicas is None else app.replicas
    total = 0 if any(s.count == 0 for s in sets) else sum(s.count for s in sets)
    if app.replicas is None:
        return total
    if total and app.replicas != total:
        message = f"app {app.name}: replicas is {app.replicas}, but its placement sets count {total} together"
        diagnostics.warn("ReplicasConflict", message)
    return app.replicas
