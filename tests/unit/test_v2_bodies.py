"""Bodies of /v2 resources in every spelling, their mistakes, and the document that a group's resources are composed into."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.intents.core import v2_compose, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.v2_normalize import read
from moorage.intents.v2 import uploads
from moorage.model.names import GroupName
from moorage.model.problems import Refused
from moorage.model.v2_resources import (
    KINDS,
    Path,
    Resource,
    ResourceKind,
    ResourceTree,
    group_path,
    key_of,
    kind_of,
    path_of,
)

BY_SEGMENT: dict[str, ResourceKind] = {kind.segment: kind for kind in KINDS}


def form(segment: str, body: Any) -> Any:
    return msgspec.to_builtins(read(BY_SEGMENT[segment], body).body)


def wrong(segment: str, body: Any) -> dict[str, str]:
    with pytest.raises(Refused) as refused:
        read(BY_SEGMENT[segment], body)
    assert refused.value.problem.status == 400
    return {v.path: v.code for v in refused.value.problem.errors}


def need(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "spec": spec}


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


# --- composing -------------------------------------------------------------------------------------------------------

GROUP = GroupName("p", "ca", "v1.0", "g")
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
}


CLOUD: dict[str, Any] = {
    "../../../logical-clouds/lc": {"spec": {"level": "1", "namespace": "ns1"}},
    "../../../logical-clouds/lc/cluster-references/one": {"spec": {"clusterProvider": "lab", "cluster": "b"}},
    "../../../logical-clouds/lc/cluster-references/two": {"spec": {"provider": "lab", "cluster-name": "a"}},
}
IN_CLOUD: dict[str, Any] = {"deployment-intent-groups/g": {"spec": {"logicalCloud": "lc"}}}


def tree_of(resources: dict[str, Any]) -> ResourceTree:
    """`resources`: bodies by path below the composite app."""
    tree = ResourceTree()
    root = "projects/p/composite-apps/ca/v1.0"
    for number, (below, body) in enumerate(resources.items(), 1):
        path: Path = tuple(os.path.normpath(f"{root}/{below}").split("/"))
        kind = kind_of(path)
        assert kind is not None, path
        whole = {"metadata": {"name": path[-1]}, **body}
        objects, chart = whole.pop("objects", []), whole.pop("chart", "")
        raw = msgspec.Raw(msgspec.json.encode(read(kind, whole).body))
        tree.put(path, Resource(body=raw, objects=objects, chart=chart), number)
    return tree


async def no_charts(*_: Any) -> list[dict[str, Any]]:
    raise AssertionError("there is no chart")


async def composed(resources: dict[str, Any]) -> v2_compose.ComposedGroup:
    return await v2_compose.compose(tree_of(resources), GROUP, no_charts)


BASE: dict[str, Any] = {
    "apps/web": {"objects": [DEPLOYMENT]},
    "deployment-intent-groups/g": {},
    "deployment-intent-groups/g/hpa-intents/h": {"spec": {"app": "web"}},
    "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w": {
        "spec": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "container": "c", "replicas": 2}
    },
    "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w/resource-requirements/cpu": {
        "spec": {"name": "cpu", "requests": "500m"}
    },
    "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w/resource-requirements/fast": {
        "spec": {"allocatable": False, "name": "disk", "value": "ssd"}
    },
}


async def test_a_requirement_for_a_machine_puts_the_pod_into_one_of_its_slots() -> None:
    consumer = "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w"
    slot = {"spec": {"resource": {"machine": "g/large", "window": "night", "maxRuntime": "2h"}}}
    found = await composed({**BASE, f"{consumer}/resource-requirements/cpu": slot})
    (shape,) = resolve(validate.application(found.document, GROUP)).apps[0].shapes
    assert (shape.machine, shape.resources, shape.count) == ("g/large", {"machine:g/large@night": 1}, 2)
    assert found.document["spec"]["apps"][0]["consumers"][0]["needs"][0]["maxRuntime"] == "2h"


async def test_resources_are_composed_into_one_document() -> None:
    found = await composed(BASE)
    given = validate.application(found.document, GROUP)
    revision = resolve(given)
    assert revision.group == "p/ca/v1.0/g"
    (shape,) = revision.apps[0].shapes
    assert (shape.object, shape.count, shape.resources) == ("Deployment/web", 2, {"cpu": 500, "pods": 1})
    assert [(r.key, r.values) for r in shape.terms[0]] == [("disk", ("ssd",))]


async def test_an_empty_value_of_a_label_is_kept() -> None:
    spec = {"allocatable": False, "name": "disk", "value": ""}
    stored = form("resource-requirements", need(**spec))
    assert stored["spec"]["resource"] == {"key": "disk", "value": ""}
    assert form("resource-requirements", stored) == stored
    at = "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w/resource-requirements/fast"
    found = await composed({**BASE, at: {"spec": spec}})
    (shape,) = resolve(validate.application(found.document, GROUP)).apps[0].shapes
    assert [(r.key, r.values) for r in shape.terms[0]] == [("disk", ("",))]


async def test_the_release_of_a_chart_is_the_version_of_the_group() -> None:
    rendered: list[v2_compose.Chart] = []

    async def render(chart: v2_compose.Chart) -> list[dict[str, Any]]:
        rendered.append(chart)
        return [DEPLOYMENT]

    chart = {"apps/web": {"chart": "Y2hhcnQ="}}
    named = {
        "deployment-intent-groups/g": {
            "spec": {"version": "r1", "overrideValues": [{"app": "web", "values": {"a": 1}}]}
        }
    }
    for resources in (BASE | chart | named, BASE | chart):
        await v2_compose.compose(tree_of(resources), GROUP, render)
    assert [(c.app, c.release, c.archive, c.overrides) for c in rendered] == [
        ("web", "r1", b"chart", {"a": 1}),
        ("web", "web", b"chart", {}),
    ]


async def test_a_logical_cloud_bounds_its_groups() -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "own"}}
    objects = {"apps/web": {"objects": [DEPLOYMENT, role, service]}}
    placement = {
        "deployment-intent-groups/g/generic-placement-intents/p": {},
        "deployment-intent-groups/g/generic-placement-intents/p/app-intents/x": {
            "spec": {"app": "web", "intent": {"allOf": [{"clusterProvider": "lab", "clusterLabel": "east"}]}}
        },
    }
    within = {"anyOf": [{"cluster": "lab/a"}, {"cluster": "lab/b"}]}
    (app,) = (await composed(BASE | IN_CLOUD | CLOUD | objects)).document["spec"]["apps"]
    assert app["placement"] == {"allOf": [within]}
    assert [m["metadata"].get("namespace") for m in app["manifests"]] == ["ns1", None, "own"]
    assert "namespace" not in DEPLOYMENT["metadata"]
    (app,) = (await composed(BASE | IN_CLOUD | CLOUD | placement)).document["spec"]["apps"]
    assert app["placement"]["allOf"] == [within]
    assert [s["count"] for s in app["placement"]["sets"]] == [0]


async def test_a_cloud_of_many_clusters_is_a_valid_placement() -> None:
    many = {
        f"../../../logical-clouds/lc/cluster-references/c{n}": {"spec": {"clusterProvider": "lab", "cluster": f"c{n}"}}
        for n in range(450)
    }
    found = await composed(BASE | IN_CLOUD | CLOUD | many)
    validate.application(found.document, GROUP)
    assert str(found.document["spec"]["apps"][0]["placement"]).count("lab/") == 452


@pytest.mark.parametrize(
    ("clouds", "path", "code"),
    [
        ({}, "spec.logicalCloud", "UnknownCloud"),
        ({"../../../logical-clouds/lc": {}}, "spec.logicalCloud", "NoClusters"),
        (
            CLOUD | {"../../../logical-clouds/lc": {"spec": {"nameSpace": "-"}}},
            "logical-clouds/lc: spec.namespace",
            "InvalidName",
        ),
    ],
)
async def test_a_cloud_that_bounds_nothing_is_refused(clouds: dict[str, Any], path: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        await composed(BASE | IN_CLOUD | clouds)
    assert refused.value.problem.status == 409
    assert [(v.path, v.code) for v in refused.value.problem.errors] == [(path, code)]


async def test_a_map_of_intents_selects_placement_intents() -> None:
    placements = {
        f"deployment-intent-groups/g/generic-placement-intents/{name}/app-intents/x": {
            "spec": {"app": "web", "intent": {"allOf": [{"clusterProvider": "lab", "cluster": name}]}}
        }
        for name in ("one", "two")
    }
    parents: dict[str, Any] = {path.rsplit("/", 2)[0]: {} for path in placements}
    found = await composed(BASE | parents | placements)
    sets = found.document["spec"]["apps"][0]["placement"]["sets"]
    assert [s["allOf"][0]["cluster"] for s in sets] == ["lab/one", "lab/two"]
    named = {"deployment-intent-groups/g/intents/m": {"spec": {"intent": {"genericPlacementIntent": "two"}}}}
    found = await composed(BASE | parents | placements | named)
    sets = found.document["spec"]["apps"][0]["placement"]["sets"]
    assert [s["allOf"][0]["cluster"] for s in sets] == ["lab/two"]


async def test_all_contradictions_among_resources_are_listed() -> None:
    broken = {
        **BASE,
        "deployment-intent-groups/g": {"spec": {"overrideValues": [{"app": "none", "values": {}}]}},
        "deployment-intent-groups/g/hpa-intents/odd": {"spec": {"app": "nothing"}},
        "deployment-intent-groups/g/intents/m": {"spec": {"intent": {"genericPlacementIntent": "gone"}}},
    }
    with pytest.raises(Refused) as refused:
        await composed(broken)
    problem = refused.value.problem
    assert problem.status == 409
    assert {v.path: v.code for v in problem.errors} == {
        "spec.overrideValues[0].app": "UnknownApp",
        "hpa-intents/odd: spec.app": "UnknownApp",
        "intents/m: spec.intent.genericPlacementIntent": "UnknownIntent",
    }


# --- the tree --------------------------------------------------------------------------------------------------------

names = st.text(alphabet="abAB01.-_=/ ", min_size=1, max_size=6)


@given(st.lists(names, min_size=1, max_size=8))
def test_paths_and_keys_convert_both_ways(parts: list[str]) -> None:
    path = tuple(parts)
    assert path_of(key_of(path)) == path


@given(st.permutations(range(6)))
def test_own_writes_and_the_mirror_agree_in_any_order(order: list[int]) -> None:
    """A resource is created, changed and deleted here, and the mirror reports each of the three at any later time."""
    tree = ResourceTree()
    path = group_path("p/ca/v1/g")
    own = [lambda: tree.put(path, "a", 1), lambda: tree.put(path, "b", 2), lambda: tree.drop(path, 2)]
    mirrored = [
        lambda: tree.put(path, "a", 1),
        lambda: tree.put(path, "b", 2),
        lambda: tree.drop(path, 3, mirrored=True),
    ]
    rest = {0: list(own), 1: list(mirrored)}
    for number in order:
        side = number % 2
        rest[side].pop(0)()
    assert tree.get(path) is None
    assert tree.members(path[:-1]) == []
    assert tree.put(path, "c", 4)
    assert tree.members(path[:-1]) == [path]


@pytest.mark.parametrize("data", [b"\x1f\x8b", b"a: [", b"\x00\x01", b"- 1\n- 2", b"&a [*a]", b"a: &x [1]\nb: *x"])
def test_unreadable_files_are_refused(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        uploads.app(data)
    assert refused.value.problem.status == 400


def test_archive_bombs_are_refused() -> None:
    import gzip

    with pytest.raises(Refused) as refused:
        uploads.app(gzip.compress(b"\0" * (uploads.MAX_UNPACKED + 10)))
    assert refused.value.problem.errors[0].code == "TooLarge"
    laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
    )
    with pytest.raises(Refused):
        uploads.app(laughs.encode())


def test_a_sparse_file_larger_than_the_archive_is_refused() -> None:
    """The header of a sparse member claims bytes that are not in the archive."""
    import tarfile

    header = bytearray(tarfile.TarInfo("app.yaml").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[483:495] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(Refused) as refused:
        uploads.app(bytes(header) + bytes(1024))
    assert refused.value.problem.errors[0].code == "TooLarge"
