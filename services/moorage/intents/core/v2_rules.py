"""Checks the fields of /v2 resources one by one: names, labels, terms."""

from __future__ import annotations

import re

import msgspec

from moorage.model import v2_bodies
from moorage.model.documents import Topology

from .diagnostics import Diagnostics
from .field_rules import LABEL_VALUE, check_name
from .manifest_rules import MAX_PODS
from .topology_rules import check_topology

_LABEL = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)


def metadata(meta: v2_bodies.Meta, diagnostics: Diagnostics) -> None:
    check_name(meta.name, "metadata.name", diagnostics)
    for field, text, limit in (
        ("description", meta.description, v2_bodies.MAX_DESCRIPTION),
        ("userData1", meta.user_data1, v2_bodies.MAX_USER_DATA),
        ("userData2", meta.user_data2, v2_bodies.MAX_USER_DATA),
    ):
        if len(text) > limit:
            diagnostics.error(
                f"metadata.{field}", "TooLong", f"has {len(text)} characters; at most {limit} are allowed"
            )


def label_of(text: str) -> tuple[str, str]:
    """Splits `region=eu` into key and value; `east` has no value."""
    key, _, value = text.partition("=")
    return key, value


def label(text: str, diagnostics: Diagnostics) -> None:
    key, value = label_of(text)
    if not _LABEL.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
        message = f"{text!r} is not a label: write a name, or NAME=VALUE" if text else "is required"
        diagnostics.error("clusterLabel", "InvalidLabel", message)


def body(resource: msgspec.Struct, diagnostics: Diagnostics) -> None:
    """Checks what is particular to a kind of resource."""
    if isinstance(resource, v2_bodies.OfApp):
        check_name(resource.spec.app, "spec.app", diagnostics)
    elif isinstance(resource, v2_bodies.AppIntent):
        check_name(resource.spec.app, "spec.app", diagnostics)
        if not resource.spec.intent.all_of and not resource.spec.intent.any_of:
            diagnostics.error("spec.intent", "Required", "allOf or anyOf is needed")
        _terms(resource.spec.intent.all_of, "spec.intent.allOf", diagnostics)
        _terms(resource.spec.intent.any_of, "spec.intent.anyOf", diagnostics)
    elif isinstance(resource, v2_bodies.Consumer):
        _consumer(resource.spec, diagnostics)
    elif isinstance(resource, v2_bodies.Group):
        for i, override in enumerate(resource.spec.override_values):
            check_name(override.app, f"spec.overrideValues[{i}].app", diagnostics)
    elif isinstance(resource, v2_bodies.ClusterReference):
        check_name(resource.spec.cluster_provider, "spec.clusterProvider", diagnostics)
        check_name(resource.spec.cluster, "spec.cluster", diagnostics)


def _consumer(spec: v2_bodies.ConsumerSpec, diagnostics: Diagnostics) -> None:
    if not spec.name:
        diagnostics.error("spec.name", "Required", "is required: the name of the object that has the pods")
    if spec.replicas is not None and not 0 <= spec.replicas <= MAX_PODS:
        diagnostics.error("spec.replicas", "OutOfRange", f"must be 0 to {MAX_PODS}: pods in each cluster")
    if spec.topology is not None:
        check_topology(topology_document(spec.topology), "spec.topology", diagnostics)


def topology_document(topology: v2_bodies.Topology) -> Topology:
    return msgspec.convert(msgspec.to_builtins(topology), Topology)


def _terms(terms: list[v2_bodies.ClusterTerm], path: str, diagnostics: Diagnostics) -> None:
    for i, term in enumerate(terms):
        at = f"{path}[{i}]"
        nested = bool(term.all_of or term.any_of)
        if nested and (term.cluster or term.cluster_label or term.cluster_provider):
            diagnostics.error(at, "Contradiction", "give either clusters by name or label, or allOf or anyOf, not both")
        elif not nested and not term.cluster_provider:
            diagnostics.error(f"{at}.clusterProvider", "Required", "is required")
        elif not nested and bool(term.cluster) == bool(term.cluster_label):
            diagnostics.error(at, "Contradiction", "give either cluster or clusterLabel")
        if term.cluster_provider:
            check_name(term.cluster_provider, f"{at}.clusterProvider", diagnostics)
        if term.cluster:
            check_name(term.cluster, f"{at}.cluster", diagnostics)
        if term.cluster_label and not _LABEL.fullmatch(label_of(term.cluster_label)[0]):
            diagnostics.error(f"{at}.clusterLabel", "InvalidLabel", f"{term.cluster_label!r} is not a label")
        _terms(term.all_of, f"{at}.allOf", diagnostics)
        _terms(term.any_of, f"{at}.anyOf", diagnostics)
