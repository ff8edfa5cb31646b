"""Composes the /v2 resources of a deployment intent group into one Application: manifests, consumers, placement sets. From
there on it is a group like any other."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from moorage.model import v2_bodies
from moorage.model.documents import API_VERSION
from moorage.model.names import GroupName
from moorage.model.problems import Problem, Refused
from moorage.model.reasons import Warn
from moorage.model.v2_resources import Path, Resource, ResourceTree, group_path

from .diagnostics import Diagnostics
from .v2_clouds import read_boundary
from .v2_requirements import whole_need
from .v2_rules import label_of
from .v2_spelling import plain
from .written_paths import WrittenPaths

Objects = list[dict[str, Any]]
_B = TypeVar("_B", bound=msgspec.Struct)
#: The key of placement intents in the group's map of intents.
_PLACEMENT = "genericplacementintent"


class Chart(NamedTuple):
    """An app's chart, and how it is rendered. `overrides` win over `values`."""

    app: str
    release: str
    namespace: str
    archive: bytes
    values: dict[str, Any]
    overrides: dict[str, Any]


Render = Callable[[Chart], Awaitable[Objects]]


class ComposedGroup(NamedTuple):
    """`written`: the resources, by the paths of the document that was made of them."""

    document: dict[str, Any]
    warnings: tuple[Warn, ...]
    written: WrittenPaths


class _Parts:
    """The resources of one group, decoded, and the contradictions found among them."""

    def __init__(self, tree: ResourceTree, group: GroupName) -> None:
        self.tree = tree
        self.root = group_path(str(group))
        self.app_root = self.root[:5]
        self.diagnostics = Diagnostics()
        self.apps = [path[-1] for path in tree.members((*self.app_root, "apps"))]

    def resource(self, path: Path) -> Resource | None:
        stored = self.tree.get(path)
        return None if stored is None else stored.value

    def body(self, path: Path, kind: type[_B]) -> _B:
        stored = self.tree.get(path)
        assert stored is not None
        return msgspec.json.decode(stored.value.body, type=kind)

    def each(self, collection: Path, kind: type[_B]) -> list[tuple[str, _B]]:
        return [(path[-1], self.body(path, kind)) for path in self.tree.members(collection)]

    def is_app(self, app: str, where: str) -> bool:
        """Adds an error where the composite app has no such app."""
        if app in self.apps:
            return True
        message = f"the composite app has no app {app!r}; it has {', '.join(self.apps) or 'none'}"
        self.diagnostics.error(where, "UnknownApp", message)
        return False


async def compose(tree: ResourceTree, group: GroupName, render: Render) -> ComposedGroup:
    """Raises Refused (409) with all contradictions among the resources."""
    parts = _Parts(tree, group)
    spec = parts.body(parts.root, v2_bodies.Group).spec
    if not parts.apps:
        message = "the composite app has no apps; add them with their manifests first"
        parts.diagnostics.error("apps", "Required", message)
    consumers = _consumers(parts)
    sets = _sets(parts)
    overrides: dict[str, dict[str, Any]] = {}
    for i, override in enumerate(spec.override_values):
        if parts.is_app(override.app, f"spec.overrideValues[{i}].app"):
            overrides.setdefault(override.app, {}).update(override.values)
    values = _values(parts, spec.composite_profile)
    boundary = read_boundary(tree, group.project, spec.logical_cloud, parts.diagnostics)
    if errors := parts.diagnostics.errors:
        first = errors[0]
        raise Refused(
            Problem(
                title="The resources of the group contradict each other",
                status=409,
                code=first.code,
                detail=f"{first.path}: {first.message}",
                errors=errors,
            )
        )
    apps: list[dict[str, Any]] = []
    written = WrittenPaths()
    for name in parts.apps:
        at = f"spec.apps[{len(apps)}]"
        written.add(at, f"apps/{name}")
        written.add(f"{at}.manifests", f"apps/{name}: spec.manifests")
        given, over = values.get(name, {}), overrides.get(name, {})
        chart = Chart(name, spec.version or name, boundary.namespace, b"", given, over)
        objects = boundary.place(await _manifests(parts, chart, render))
        app: dict[str, Any] = {"name": name, "manifests": objects}
        if placement := boundary.bound({"sets": sets[name]} if name in sets else {}):
            app["placement"] = placement
        if name in consumers:
            app["consumers"] = [consumer.document for consumer in consumers[name]]
            for i, consumer in enumerate(consumers[name]):
                consumer.note(f"{at}.consumers[{i}]", written)
        apps.append(app)
    document = {
        "apiVersion": API_VERSION,
        "kind": "Application",
        "metadata": {"name": group.app, "project": group.project},
        "spec": {"apps": apps},
    }
    return ComposedGroup(document, tuple(parts.diagnostics.warnings), written)


# --- manifests -------------------------------------------------------------------------------------------------------


def _values(parts: _Parts, profile: str) -> dict[str, dict[str, Any]]:
    """Returns the values of the profiles in the group's composite profile, by app."""
    if not profile:
        return {}
    root = (*parts.app_root, "composite-profiles", profile)
    if parts.tree.get(root) is None:
        charts = [name for name in parts.apps if _chart(parts, name)]
        message = f"there is no composite profile {profile!r}"
        if charts:
            message += f", and {', '.join(charts)} would be rendered without its values"
            parts.diagnostics.error("spec.compositeProfile", "UnknownProfile", message)
        else:
            parts.diagnostics.warn("UnknownProfile", message)
        return {}
    values: dict[str, dict[str, Any]] = {}
    for path in parts.tree.members((*root, "profiles")):
        resource = parts.resource(path)
        assert resource is not None
        app = parts.body(path, v2_bodies.OfApp).spec.app
        if parts.is_app(app, f"composite-profiles/{profile}/profiles/{path[-1]}: spec.app"):
            values.setdefault(app, {}).update(resource.values)
    return values


def _chart(parts: _Parts, app: str) -> str:
    resource = parts.resource((*parts.app_root, "apps", app))
    return resource.chart if resource is not None else ""


async def _manifests(parts: _Parts, chart: Chart, render: Render) -> Objects:
    """Returns the objects of an app: those of its chart, or its plain manifests."""
    resource = parts.resource((*parts.app_root, "apps", chart.app))
    assert resource is not None
    if resource.chart:
        return await render(chart._replace(archive=base64.b64decode(resource.chart)))
    if chart.values or chart.overrides:
        message = f"app {chart.app} has plain manifests; its values in profiles and in the group have no effect"
        parts.diagnostics.warn("ValuesUnused", message)
    return resource.objects


# --- hardware --------------------------------------------------------------------------------------------------------


class _ComposedConsumer(NamedTuple):
    document: dict[str, Any]
    resource: str  # its path below the group

    def note(self, at: str, written: WrittenPaths) -> None:
        """Notes the resources of the consumer and its needs. `at` is the path of the consumer in the document."""
        written.add(at, self.resource)
        written.add(f"{at}.object", f"{self.resource}: spec")
        for field in ("container", "replicas", "topology"):
            written.add(f"{at}.{field}", f"{self.resource}: spec.{field}")
        for i, need in enumerate(self.document["needs"]):
            resource = f"{self.resource}/resource-requirements/{need['name']}"
            written.add(f"{at}.needs[{i}]", resource)
            for field, name in _WRITTEN_AS.items():
                written.add(f"{at}.needs[{i}].{field}", f"{resource}: spec.{name}")


#: Fields of needs, as requirements have them.
_WRITTEN_AS = {"mandatory": "mandatory", "weight": "weight", "resource": "resource.name", "label": "resource.key"} | {
    field: f"resource.{field}" for field in ("requests", "limits", "units", "group", "value")
}


def _consumers(parts: _Parts) -> dict[str, list[_ComposedConsumer]]:
    consumers: dict[str, list[_ComposedConsumer]] = {}
    root = (*parts.root, "hpa-intents")
    for intent, body in parts.each(root, v2_bodies.OfApp):
        if not parts.is_app(body.spec.app, f"hpa-intents/{intent}: spec.app"):
            continue
        below = (*root, intent, "hpa-resource-consumers")
        for name, consumer in parts.each(below, v2_bodies.Consumer):
            needs = [
                _need(n, r.spec) for n, r in parts.each((*below, name, "resource-requirements"), v2_bodies.Requirement)
            ]
            spec = consumer.spec
            document: dict[str, Any] = {
                "name": name,
                "object": _object(spec),
                "needs": needs,
            }
            if spec.container:
                document["container"] = spec.container
            if spec.replicas is not None:
                document["replicas"] = spec.replicas
            if spec.topology is not None:
                document["topology"] = msgspec.to_builtins(spec.topology)
            resource = f"hpa-intents/{intent}/hpa-resource-consumers/{name}"
            consumers.setdefault(body.spec.app, []).append(_ComposedConsumer(document, resource))
    return consumers


def _object(spec: v2_bodies.ConsumerSpec) -> dict[str, str]:
    given = {"apiVersion": spec.api_version, "kind": spec.kind, "name": spec.name}
    return {field: text for field, text in given.items() if text}


def _need(name: str, spec: v2_bodies.RequirementSpec) -> dict[str, Any]:
    need: dict[str, Any] = {"name": name, "mandatory": spec.mandatory}
    if spec.weight is not msgspec.UNSET:
        need["weight"] = spec.weight
    resource = spec.resource
    if whole := whole_need(resource):
        need |= whole
    elif spec.allocatable:
        need["resource"] = resource.name
        need |= {k: v for k in ("requests", "limits") if (v := getattr(resource, k)) is not None}
        if resource.units:
            need["units"] = resource.units
        if resource.group:
            need["group"] = resource.group
    else:
        need |= {"label": resource.key, "value": resource.value or ""}
    return need


# --- clusters --------------------------------------------------------------------------------------------------------


def _sets(parts: _Parts) -> dict[str, list[dict[str, Any]]]:
    """Returns the placement sets by app. In `allOf` a name means that cluster and a label every cluster that has it;
    `anyOf` means one cluster of all that its terms select."""
    root = (*parts.root, "generic-placement-intents")
    named: set[str] = set()
    for map_name, body in parts.each((*parts.root, "intents"), v2_bodies.Intents):
        for key, value in body.spec.intent.items():
            if plain(key) == _PLACEMENT:
                named.add(value)
                if parts.tree.get((*root, value)) is None:
                    message = f"there is no generic placement intent {value!r}"
                    at = f"intents/{map_name}: spec.intent.{key}"
                    parts.diagnostics.error(at, "UnknownIntent", message)
    found: dict[str, list[dict[str, Any]]] = {}
    for path in parts.tree.members(root):
        if named and path[-1] not in named:
            continue
        for name, intent in parts.each((*path, "app-intents"), v2_bodies.AppIntent):
            where = f"generic-placement-intents/{path[-1]}/app-intents/{name}: spec.app"
            if parts.is_app(intent.spec.app, where):
                found.setdefault(intent.spec.app, []).extend(_sets_of(intent.spec.intent))
    return found


def _sets_of(terms: v2_bodies.ClusterTerms) -> list[dict[str, Any]]:
    sets: list[dict[str, Any]] = []
    for term in terms.all_of:
        if term.all_of:
            sets += _sets_of(v2_bodies.ClusterTerms(all_of=term.all_of))
        if term.any_of:
            sets.append({"count": 1, "anyOf": [_term(t) for t in term.any_of]})
        if term.cluster:
            sets.append({"count": 1, "allOf": [_term(term)]})
        elif term.cluster_label:
            sets.append({"count": 0, "allOf": [_term(term)]})
    if terms.any_of:
        sets.append({"count": 1, "anyOf": [_term(t) for t in terms.any_of]})
    return sets


def _term(term: v2_bodies.ClusterTerm) -> dict[str, Any]:
    if term.cluster:
        return {"cluster": f"{term.cluster_provider}/{term.cluster}"}
    if term.all_of or term.any_of:
        nested: list[dict[str, Any]] = []
        if term.all_of:
            nested.append({"allOf": [_term(t) for t in term.all_of]})
        if term.any_of:
            nested.append({"anyOf": [_term(t) for t in term.any_of]})
        return nested[0] if len(nested) == 1 else {"allOf": nested}
    key, value = label_of(term.cluster_label)
    # A label given only by name has an empty value, or "true" where other tools labelled the fleet.
    labels = (
        [{"label": {key: value}}] if "=" in term.cluster_label else [{"label": {key: ""}}, {"label": {key: "true"}}]
    )
    return {"allOf": [{"provider": term.cluster_provider}, {"anyOf": labels}]}
