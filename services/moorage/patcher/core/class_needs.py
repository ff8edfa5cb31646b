"""Returns what the pods of objects ask for by classes of devices, and which of their containers it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moorage.model.groups import Revision
from moorage.model.part_requests import AttributeRelation, DeviceAsk, PodContainer
from moorage.model.slots import is_of_claim
from moorage.parsing import parse_nanos
from moorage.podspec import object_key, template, template_path, with_value
from moorage.podspec.device_shares import class_of_resource, is_class_resource
from moorage.podspec.extended_resources import ExtendedNeed, container_uses, extended_needs

Manifest = dict[str, Any]


class ClassNeeds(NamedTuple):
    """The requests of an object's pods by classes: alternatives by need, relations between needs, and the containers of needs.
    `extended`: needs for devices that DeviceClasses serve where they are there for extended resources."""

    asks: Mapping[str, Sequence[DeviceAsk]]
    relations: Sequence[AttributeRelation]
    containers: Mapping[str, set[str]]
    extended: Mapping[str, ExtendedNeed] = {}


def without_classes(manifest: Manifest) -> Manifest:
    """Returns the object without the classes that its containers request as resources, which no API server knows."""
    found = template(manifest)
    if found is None or not _requests_classes(found):
        return manifest
    spec = dict(found["spec"])
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_without_classes(container) for container in spec[field]]
    changed: Manifest = with_value(manifest, template_path(manifest) or (), {**found, "spec": spec})
    return changed


def _without_classes(container: Manifest) -> Manifest:
    resources = dict(container.get("resources") or {})
    for field in ("requests", "limits"):
        if resources.get(field):
            resources[field] = {k: v for k, v in resources[field].items() if not is_class_resource(k)}
    return {**container, "resources": resources} if resources else container


def _requests_classes(pod_template: Manifest) -> bool:
    """Returns whether a container requests a class as a resource."""
    spec = pod_template.get("spec") or {}
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        if any(map(is_class_resource, [*(resources.get("requests") or ()), *(resources.get("limits") or ())])):
            return True
    return False


def _containers_of_classes(pod_template: Manifest) -> dict[str, frozenset[str]]:
    """Returns the containers that request classes as resources, by need: each that runs beside the others has its own."""
    spec = pod_template.get("spec") or {}
    containers: list[PodContainer] = []
    for field in ("initContainers", "containers"):
        for one in spec.get(field) or ():
            resources = one.get("resources") or {}
            given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            asked = {name: parse_nanos(str(n)) for name, n in given.items() if is_class_resource(name)}
            init, sidecar = field == "initContainers", one.get("restartPolicy") == "Always"
            containers.append(PodContainer(name=str(one.get("name", "")), init=init, sidecar=sidecar, requests=asked))
    found: dict[str, frozenset[str]] = {}
    for resource in {name for one in containers for name in one.requests}:
        uses, name = container_uses(containers, resource), class_of_resource(resource)
        if len(uses) > 1:
            found |= {f"{name}.{use.container}": use.containers for use in uses}
        else:
            found[name] = frozenset(one.name for one in containers if one.requests.get(resource))
    return found


def class_needs(revision: Revision, app: str, manifests: Sequence[Manifest]) -> dict[str, ClassNeeds]:
    """Returns what the pods of an app ask for by classes, by object."""
    templates = {object_key(m): of for m in manifests if (of := template(m)) is not None}
    found: dict[str, ClassNeeds] = {}
    for shape in next((one.shapes for one in revision.apps if one.name == app), ()):
        asks = {g.suffix: g.devices for g in shape.groups if g.devices and not is_of_claim(g.suffix)}
        needs = extended_needs(shape.containers, shape.resources)
        extended = {need.name: need for need in needs if need.name not in asks}
        if asks or extended:
            relations = [r for r in shape.relations if isinstance(r, AttributeRelation)]
            containers = _containers(revision, app, shape.object)
            for need, users in _containers_of_classes(templates.get(shape.object, {})).items():
                containers.setdefault(need if need in asks else f"{need}.manifest", set()).update(users)
            containers |= {name: set(need.containers) for name, need in extended.items()}
            found[shape.object] = ClassNeeds(asks, relations, containers, extended)
    return found


def _containers(revision: Revision, app: str, obj: str) -> dict[str, set[str]]:
    """Returns the containers that needs are for, by their names."""
    found: dict[str, set[str]] = {}
    for intent in revision.intents:
        spec = intent.read()
        for consumer in spec.get("consumers") or () if spec.get("app") == app else ():
            of = consumer.get("object") or {}
            if f"{of.get('kind')}/{of.get('name')}" != obj or not consumer.get("container"):
                continue
            for need in consumer.get("needs") or ():
                classes = [c.get("class", "") for c in need.get("oneOf") or ()] or [need.get("class", "")]
                found.setdefault(need.get("name") or "-or-".join(classes), set()).add(consumer["container"])
    return found
