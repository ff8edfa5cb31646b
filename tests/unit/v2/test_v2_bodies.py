"""Tests bodies of /v2 resources in every spelling, and their mistakes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.v2_normalize import read
from moorage.model.problems import Refused
from moorage.model.v2_resources import (
    KINDS,
    ResourceKind,
)

from .bodies import BASE, BY_SEGMENT, GROUP, composed, form, need


def wrong(segment: str, body: Any) -> dict[str, str]:
    with pytest.raises(Refused) as refused:
        read(BY_SEGMENT[segment], body)
    assert refused.value.problem.status == 400
    return {v.path: v.code for v in refused.value.problem.errors}


CPU = {"mandatory": True, "allocatable": True, "resource": {"name": "cpu", "requests": 4, "limits": 4}}


@pytest.mark.parametrize(
    "spec",
    [
        {"mandatory": True, "allocatable": True, "name": "cpu", "requests": 4, "limits": 4},
        {"mandatory": True, "allocatable": True, "resource": {"name": "cpu", "requests": 4, "limits": 4}},
        {"resource": {"name": "cpu", "requests": "4", "limits": "4"}},
        {"Mandatory": "true", "Allocatable": "true", "Name": "cpu", "Requests": 4, "Limits": 4},
    ],
)
def test_every_spelling_of_a_requirement_is_stored_in_one_form(spec: dict[str, Any]) -> None:
    assert form("resource-requirements", need(**spec))["spec"] == CPU


@pytest.mark.parametrize(
    ("spec", "mandatory"),
    [({}, True), ({"weight": 9}, False), ({"mandatory": True, "weight": 9}, True), ({"mandatory": False}, False)],
)
def test_a_weight_alone_makes_a_requirement_optional(spec: dict[str, Any], mandatory: bool) -> None:
    found = form("resource-requirements", need(name="cpu", requests=1, **spec))
    assert found["spec"]["mandatory"] is mandatory


@pytest.mark.parametrize(
    "spec",
    [
        {"allocatable": False, "name": "a.b/c", "value": True},
        {"allocatable": False, "resource": {"key": "a.b/c", "value": "true"}},
        {"resource": {"key": "a.b/c", "value": True}},
    ],
)
def test_every_spelling_of_a_label_is_stored_in_one_form(spec: dict[str, Any]) -> None:
    found = form("resource-requirements", need(**spec))["spec"]
    assert found == {"mandatory": True, "allocatable": False, "resource": {"key": "a.b/c", "value": "true"}}


@pytest.mark.parametrize(
    "spec",
    [
        {"machine": "g/large", "window": "night", "maxRuntime": "2h"},
        {"resource": {"machine": "g/large", "window": "night", "maxRuntime": "2h"}},
        {"allocatable": True, "Resource": {"Machine": "g/large", "window": "night", "max-runtime": "2h"}},
    ],
)
def test_every_spelling_of_a_machine_is_stored_in_one_form(spec: dict[str, Any]) -> None:
    found = form("resource-requirements", need(**spec))["spec"]
    resource = {"machine": "g/large", "window": "night", "maxRuntime": "2h"}
    assert found == {"mandatory": True, "allocatable": True, "resource": resource}


@pytest.mark.parametrize(
    ("spec", "violations"),
    [
        (
            {"name": "cpu", "requests": 1, "resource": {"name": "cpu", "requests": 1}},
            {"spec.resource": "Contradiction"},
        ),
        ({"name": "cpu", "requests": 1, "value": "x"}, {"spec.value": "Contradiction"}),
        ({"allocatable": True, "name": "l", "value": "x"}, {"spec.value": "Contradiction"}),
        (
            {"allocatable": False, "name": "cpu", "requests": 1},
            {"spec.requests": "Contradiction", "spec.value": "Required"},
        ),
        ({"name": "cpu", "requests": 5, "limits": 4}, {"spec.requests": "RequestsAboveLimits"}),
        ({"name": "cpu", "requests": 1, "weight": 11}, {"spec.weight": "OutOfRange"}),
        ({"name": "cpu", "requests": 1, "weight": 0}, {"spec.weight": "OutOfRange"}),
        (
            {"name": "cpu", "requests": "x", "limits": "y", "weight": 99},
            {"spec.requests": "InvalidQuantity", "spec.limits": "InvalidQuantity", "spec.weight": "OutOfRange"},
        ),
        ({"name": "cpu", "requests": 0}, {"spec.requests": "InvalidQuantity"}),
        ({"name": "cpu"}, {"spec": "Required"}),
        (
            {"resource": {"name": "memory", "requests": "1Gi", "units": "MB"}},
            {"spec.resource.requests": "InvalidQuantity"},
        ),
        ({"name": "nvidia.com/gpu", "requests": "1.5"}, {"spec.requests": "InvalidQuantity"}),
        ({"resource": {"machine": "General"}}, {"spec.resource.machine": "InvalidName"}),
        ({"resource": {"machine": ""}}, {"spec.resource.machine": "Required"}),
        ({"machine": "g/large", "maxRuntime": "soon"}, {"spec.maxRuntime": "InvalidQuantity"}),
        ({"machine": "g/large", "requests": 1}, {"spec.requests": "Contradiction"}),
        ({"machine": "g/large", "one_of": []}, {"spec.one_of": "Contradiction"}),
        ({"resource": {"oneOf": []}}, {"spec.resource.oneOf": "Required"}),
        ({"class": ""}, {"spec.class": "Required"}),
        ({"machine": "g/large", "weight": 3}, {"spec": "Contradiction"}),
        ({"machine": "g/large", "mandatory": False}, {"spec": "Contradiction"}),
        ({"machine": "g/large", "allocatable": False}, {"spec.machine": "Contradiction"}),
        ({"name": "cpu", "requests": 1, "max-runtime": "2h"}, {"spec.max-runtime": "Contradiction"}),
    ],
)
def test_all_mistakes_in_a_requirement_are_listed(spec: dict[str, Any], violations: dict[str, str]) -> None:
    assert wrong("resource-requirements", need(**spec)) == violations


CONSUMER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "core", "container": "c"}


@pytest.mark.parametrize(
    "spec",
    [
        CONSUMER,
        {"consumer": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "core", "container-name": "c"}},
        {"api-version": "apps/v1", "Kind": "StatefulSet", "name": "core", "containerName": "c"},
    ],
)
def test_every_spelling_of_a_consumer_is_stored_in_one_form(spec: dict[str, Any]) -> None:
    assert form("hpa-resource-consumers", need(**spec))["spec"] == CONSUMER


@pytest.mark.parametrize(
    ("segment", "spec", "violations"),
    [
        (
            "hpa-resource-consumers",
            {"consumer": {"api-version": 3, "kind": "Job", "container-name": ["c"], "replicas": -1}},
            {
                "spec.consumer.api-version": "WrongType",
                "spec.consumer.container-name": "WrongType",
                "spec.consumer.replicas": "OutOfRange",
                "spec.consumer.name": "Required",
            },
        ),
        (
            "hpa-resource-consumers",
            {"containerName": ["c"]},
            {"spec.containerName": "WrongType", "spec.name": "Required"},
        ),
        (
            "hpa-resource-consumers",
            {"name": "a", "container": "c", "Consumer": {"container-name": "d"}},
            {"spec.container": "Contradiction"},
        ),
        (
            "resource-requirements",
            {"Name": "cpu", "Requests": "x", "Weight": 99},
            {"spec.Requests": "InvalidQuantity", "spec.Weight": "OutOfRange"},
        ),
        (
            "resource-requirements",
            {"Resource": {"Name": "cpu", "Limits": "x"}},
            {"spec.Resource.Limits": "InvalidQuantity"},
        ),
        ("resource-requirements", {"allocatable": False, "name": "-", "value": "v"}, {"spec.name": "InvalidLabel"}),
        ("resource-requirements", {"name": "foo", "requests": 1}, {"spec.name": "InvalidName"}),
        ("hpa-intents", {"app-name": "-"}, {"spec.app-name": "InvalidName"}),
        ("composite-apps", {"version": "-"}, {"spec.version": "InvalidName"}),
        (
            "app-intents",
            {"app-name": "a", "intent": {"allOf": [{"provider-name": "lab", "cluster-label-name": "-"}]}},
            {"spec.intent.allOf[0].cluster-label-name": "InvalidLabel"},
        ),
        (
            "deployment-intent-groups",
            {"override-values": [{"app-name": "-"}], "logical-cloud": 7.5},
            {"spec.override-values[0].app-name": "InvalidName"},
        ),
    ],
)
def test_errors_name_the_path_that_was_written(segment: str, spec: dict[str, Any], violations: dict[str, str]) -> None:
    found = wrong(segment, need(**spec))
    assert {path: code for path, code in found.items() if path in violations} == violations
    assert found.keys() <= violations.keys() | {"spec.logical-cloud"}


async def test_errors_of_a_composed_group_name_its_resources() -> None:
    consumer = "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w"
    wrong_needs = {
        consumer: {"spec": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gone"}},
        f"{consumer}/resource-requirements/again": {"spec": {"name": "cpu", "requests": 1}},
    }
    found = await composed(BASE | wrong_needs)
    with pytest.raises(Refused) as refused:
        validate.application(found.document, GROUP)
    problem = found.written.problem(refused.value.problem)
    at = "hpa-intents/h/hpa-resource-consumers/w"
    assert {v.path: v.code for v in problem.errors} == {
        f"{at}: spec.container": "Required",
        f"{at}/resource-requirements/cpu": "Duplicate",
    }
    assert problem.detail.startswith(f"{problem.errors[0].path}: ")
    found = await composed(BASE | {consumer: {"spec": {"name": "gone", "container": "c"}}})
    with pytest.raises(Refused) as refused:
        resolve(validate.application(found.document, GROUP))
    problem = found.written.problem(refused.value.problem)
    assert [v.path for v in problem.errors] == [f"{at}: spec"]
    assert problem.detail.startswith(f"{at}: spec: consumer 'w'")


def test_two_names_for_one_field_must_agree() -> None:
    assert form("hpa-intents", need(app="a", appName="a"))["spec"] == {"app": "a"}
    assert wrong("hpa-intents", need(**{"app": "a", "app-name": "b"})) == {"spec.app-name": "Contradiction"}
    both = {**CONSUMER, "consumer": {"name": "other"}}
    assert wrong("hpa-resource-consumers", need(**both)) == {"spec.name": "Contradiction"}


def test_metadata_is_bounded() -> None:
    long = {"name": "x" * 129, "description": "x" * 1025, "userData1": "x" * 513, "userData2": "x" * 513}
    paths = {"metadata.name", "metadata.description", "metadata.userData1", "metadata.userData2"}
    assert wrong("projects", {"metadata": long}).keys() == paths
    most = {"name": "x" * 128, "description": "x" * 1024, "userData1": "x" * 512, "userData2": "x" * 512}
    assert form("projects", {"metadata": most})["metadata"] == most
    for name in ("a", "0", "v1.0", "a_b-c.d"):
        assert form("projects", {"metadata": {"name": name}})["metadata"] == {"name": name}
    for name in ("", "-a", "a-", ".a", "a/b", "ä", "a b", "a\n"):
        assert wrong("projects", {"metadata": {"name": name}}) == {"metadata.name": "InvalidName"}


def test_read_only_fields_may_be_sent_back() -> None:
    shown = need(**CONSUMER, resourceRequirements=[{"anything": 1}])
    found = read(BY_SEGMENT["hpa-resource-consumers"], shown)
    assert not found.warnings


words = st.sampled_from(
    [
        "metadata",
        "spec",
        "name",
        "description",
        "mandatory",
        "weight",
        "allocatable",
        "resource",
        "requests",
        "limits",
        "units",
        "key",
        "value",
        "consumer",
        "container-name",
        "intent",
        "allOf",
        "anyOf",
        "clusterLabel",
        "kv",
        "manifests",
        "overrideValues",
    ]
)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | words, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(KINDS), st.dictionaries(words, plain, max_size=6))
def test_junk_is_read_or_refused_with_places(kind: ResourceKind, body: dict[str, Any]) -> None:
    try:
        found = read(kind, body)
    except Refused as refusal:
        assert refusal.problem.status == 400
        assert refusal.problem.errors
        return
    again = read(kind, msgspec.to_builtins(found.body))
    assert again.body == found.body, "the stored form is read as itself"
    assert not again.warnings
