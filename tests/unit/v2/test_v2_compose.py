"""Tests the document that the /v2 resources of a group are composed into, and the tree of resources."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.intents.core import v2_compose, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.v2 import uploads
from moorage.model.problems import Refused
from moorage.model.v2_resources import (
    ResourceTree,
    group_path,
    key_of,
    path_of,
)

from .bodies import BASE, DEPLOYMENT, GROUP, composed, form, need, tree_of

CLOUD: dict[str, Any] = {
    "../../../logical-clouds/lc": {"spec": {"level": "1", "namespace": "ns1"}},
    "../../../logical-clouds/lc/cluster-references/one": {"spec": {"clusterProvider": "lab", "cluster": "b"}},
    "../../../logical-clouds/lc/cluster-references/two": {"spec": {"provider": "lab", "cluster-name": "a"}},
}


IN_CLOUD: dict[str, Any] = {"deployment-intent-groups/g": {"spec": {"logicalCloud": "lc"}}}


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
