"""Finds the object that each consumer names. A consumer need not name it exactly where only one object can be meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from moorage.model.documents import Consumer, ObjectRef
from moorage.podspec import REPLICATED
from moorage.podspec.needs import DEDICATED, is_mandatory, kubernetes_need

from .diagnostics import Diagnostics
from .manifest_rules import AppObjects
from .pod_templates import PodTemplate

#: Objects that an error lists by name where a consumer names none of them.
_LISTED = 8


class SourcedConsumer(NamedTuple):
    """A consumer with the path where it was written, for error messages. `asks_dedicated`: it asks for dedicated cores by their class,
    which everything behind the decoders has as cpu."""

    consumer: Consumer
    path: str
    asks_dedicated: bool = False

    @property
    def name(self) -> str:
        return self.consumer.name or self.consumer.object.name


def match_consumers(
    app: str, objects: AppObjects, consumers: Iterable[SourcedConsumer], diagnostics: Diagnostics
) -> list[SourcedConsumer]:
    """Returns the consumers with the full reference of their objects and the resources of Kubernetes. Those that match none are left out, with an error."""
    matched = []
    for sourced in consumers:
        pods = _object_of(app, sourced, objects, diagnostics)
        if pods is None:
            continue
        if not _matches(app, sourced, pods, diagnostics):
            continue
        ref = sourced.consumer.object
        if ref.api_version not in ("", pods.api_version):
            message = f"consumer {sourced.name!r} of app {app!r} names {pods.object} ({ref.api_version}); it has {pods.api_version}"
            diagnostics.warn("ApiVersionDiffers", message)
        exact = ObjectRef(api_version=pods.api_version, kind=pods.kind, name=pods.name)
        needs = [kubernetes_need(need) for need in sourced.consumer.needs]
        if exact != ref or any(a is not b for a, b in zip(needs, sourced.consumer.needs, strict=True)):
            consumer = msgspec.structs.replace(sourced.consumer, object=exact, needs=needs)
            dedicated = any(need.resource == DEDICATED and is_mandatory(need) for need in sourced.consumer.needs)
            sourced = sourced._replace(consumer=consumer, asks_dedicated=dedicated)
        matched.append(sourced)
    return matched


def _object_of(app: str, sourced: SourcedConsumer, objects: AppObjects, diagnostics: Diagnostics) -> PodTemplate | None:
    ref = sourced.consumer.object
    candidates = [pods for pods in objects.pods if pods.name == ref.name and ref.kind in ("", pods.kind)]
    exact = [pods for pods in candidates if pods.api_version == ref.api_version]
    exactly_named = not exact and any(
        (m["apiVersion"], m["kind"], m["metadata"]["name"]) == (ref.api_version, ref.kind, ref.name)
        for m in objects.manifests
    )
    if exact or exactly_named:  # an object that is named exactly, but has no pods, stands for no other
        candidates = exact
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        code, there = "ConsumerAmbiguous", f"which {_names(candidates)} match; give its kind"
    else:
        code, there = "ConsumerMatchesNothing", "which has no pods" if exactly_named else _alternatives(objects)
    message = f"consumer {sourced.name!r} of app {app!r} names {_text(ref)}, {there}"
    diagnostics.error(f"{sourced.path}.object", code, message)
    return None


def _text(ref: ObjectRef) -> str:
    named = f"{ref.kind}/{ref.name}" if ref.kind else repr(ref.name)
    return f"{named} ({ref.api_version})" if ref.api_version else named


def _matches(app: str, sourced: SourcedConsumer, pods: PodTemplate, diagnostics: Diagnostics) -> bool:
    """Checks that the object can be what the consumer describes."""
    consumer, about = sourced.consumer, f"consumer {sourced.name!r} of app {app!r}"
    if consumer.container and all(c.name != consumer.container for c in pods.containers):
        names = ", ".join(c.name for c in pods.containers)
        message = f"{about} names container {consumer.container!r}; {pods.object} has {names}"
        diagnostics.error(f"{sourced.path}.container", "ConsumerMatchesNothing", message)
        return False
    if not consumer.object.kind and consumer.replicas not in (None, 1) and pods.kind not in REPLICATED:
        message = f"{about}: a {pods.kind} has no spec.replicas to set"
        diagnostics.error(f"{sourced.path}.replicas", "NotReplicated", message)
        return False
    return True


def _alternatives(objects: AppObjects) -> str:
    if not objects.manifests:
        return "but the app has no manifests"
    if objects.pods:
        return f"but the manifests have {_names(objects.pods)}"
    names = [f"{m['kind']}/{m['metadata']['name']} ({m['apiVersion']})" for m in objects.manifests]
    return f"but the manifests have {_listed(names)}"


def _names(pods: Sequence[PodTemplate]) -> str:
    return _listed([f"{p.object} ({p.api_version})" for p in pods])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"
