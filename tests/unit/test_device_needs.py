"""Needs for devices in documents: what is refused, and the groups and relations that a pod asks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.intents.core import v2_normalize, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import Accepted
from moorage.intents.core.v2_requirements import device_need
from moorage.model import v2_bodies
from moorage.model.part_requests import AttributeRelation, DeviceAsk, PartGroup, SameSubtree
from moorage.model.problems import Refused
from moorage.model.shapes import PODS, NeedRef, OptionalNeed, Shape
from moorage.model.v2_resources import KINDS

NEED = "spec.apps[0].consumers[0].needs[0]"
TOPOLOGY = "spec.apps[0].consumers[0].topology"
REF = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}


def _document(consumers: list[dict[str, Any]], containers: list[dict[str, Any]]) -> dict[str, Any]:
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    app = {"name": "web", "manifests": [manifest], "consumers": consumers}
    return {"kind": "Application", "metadata": {"name": "shop"}, "spec": {"apps": [app]}}


def _consumer(*needs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"object": REF, "container": "main", "needs": list(needs), **fields}


def _shape(*consumers: dict[str, Any], **resources: Any) -> Shape:
    given = validate.accept(_document(list(consumers), [{"name": "main", "resources": resources}, {"name": "side"}]), {})
    assert isinstance(given, Accepted)
    (found,) = resolve(given, []).apps[0].shapes
    return found


def _violations(*consumers: dict[str, Any], **resources: Any) -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        _shape(*consumers, **resources)
    return {error.path: error.code for error in caught.value.problem.errors}


def test_needs_become_groups_and_relations() -> None:
    gpu = {"name": "gpu", "oneOf": [{"class": "h200", "count": 2}, {"class": "h100", "count": 4}]}
    nic = {"name": "nic", "class": "fast.nic", "capacity": {"bandwidth": "10G"}, "algorithm": "best-fit", "group": "_N"}
    cpu = {"resource": "cpu", "requests": 2, "group": "_N"}
    topology = {
        "match": [{"attribute": "resource.kubernetes.io/pcieRoot", "needs": ["gpu", "nic"]}],
        "distinct": [{"attribute": "numa", "needs": ["gpu"]}],
    }
    shape = _shape(_consumer(gpu, nic, cpu, topology=topology))
    assert shape.groups == [
        PartGroup(suffix="_N", resources={"cpu": 2000}),
        PartGroup(
            suffix="gpu",
            devices=(DeviceAsk(resource_class="h200", count=2), DeviceAsk(resource_class="h100", count=4)),
        ),
        PartGroup(
            suffix="nic",
            devices=(DeviceAsk(resource_class="fast.nic", capacity={"bandwidth": "10G"}, algorithm="best-fit"),),
        ),
    ]
    assert shape.relations == [
        SameSubtree(groups=("_N", "nic")),
        AttributeRelation(groups=("gpu", "nic"), attribute="resource.kubernetes.io/pcieRoot"),
        AttributeRelation(groups=("gpu",), attribute="numa", distinct=True),
    ]
    assert [(n.consumer, n.name, n.group) for n in shape.needs if n.group in ("gpu", "nic")] == [
        ("x", "gpu", "gpu"),
        ("x", "nic", "nic"),
    ]
    assert shape.resources == {"cpu": 2000, PODS: 1}


def test_a_group_with_devices_alone_stands_in_relations() -> None:
    one, two = {"class": "a", "group": "_A"}, {"class": "b", "group": "_B"}
    shape = _shape(_consumer(one, two, topology={"sameSubtree": [["_A", "_B"]]}))
    assert [group.suffix for group in shape.groups] == ["a", "b"]
    assert shape.relations == [SameSubtree(groups=("a", "b"))]


def test_classes_among_the_resources_of_a_manifest_are_needs() -> None:
    shape = _shape(requests={"cpu": "500m", "nvidia.high.mem": 2}, limits={"nvidia.high.mem": 2, "shared.gpu": "250m"})
    assert shape.resources == {"cpu": 500, PODS: 1}
    assert shape.groups == [
        PartGroup(suffix="nvidia.high.mem", devices=(DeviceAsk(resource_class="nvidia.high.mem", count=2),)),
        PartGroup(suffix="shared.gpu", devices=(DeviceAsk(resource_class="shared.gpu", share=250),)),
    ]
    assert NeedRef(consumer="", name="shared.gpu", group="shared.gpu") in shape.needs
    beside = _shape(_consumer({"class": "a", "count": 3}), requests={"a": 1})
    assert [(g.suffix, g.devices[0].count) for g in beside.groups] == [("a", 3), ("a.manifest", 1)]


def test_an_optional_need_for_devices_is_granted_or_not() -> None:
    shape = _shape(_consumer({"name": "gpu", "class": "a", "weight": 5}))
    assert shape.groups == [PartGroup(suffix="gpu", devices=(DeviceAsk(resource_class="a"),), optional=True)]
    assert shape.optional == [OptionalNeed(consumer="x", name="gpu", weight=5, group="gpu")]


@pytest.mark.parametrize("count", ["500m", 0.5, "0.5"])
def test_a_count_below_one_is_a_share(count: object) -> None:
    assert _shape(_consumer({"class": "a", "count": count})).groups[0].devices[0].share == 500


def test_different_needs_are_different_shapes_and_templates() -> None:
    shapes = [
        _shape(_consumer({"class": "a"})),
        _shape(_consumer({"class": "b"})),
        _shape(_consumer({"class": "a", "count": 2})),
        _shape(_consumer({"class": "a", "algorithm": "spread"})),
        _shape(_consumer({"class": "a", "weight": 2})),
        _shape(requests={"c": 1}),
    ]
    assert len({shape.key for shape in shapes}) == len({shape.template for shape in shapes}) == len(shapes)


@pytest.mark.parametrize(
    ("need", "path", "code"),
    [
        ({"class": "a b"}, f"{NEED}.class", "InvalidName"),
        ({"class": "a", "count": 0}, f"{NEED}.count", "InvalidQuantity"),
        ({"class": "a", "count": 1.5}, f"{NEED}.count", "InvalidQuantity"),
        ({"class": "a", "count": "many"}, f"{NEED}.count", "InvalidQuantity"),
        ({"class": "a", "count": 33}, f"{NEED}.count", "OutOfRange"),
        ({"class": "a", "requests": 1}, f"{NEED}.requests", "Contradiction"),
        ({"class": "a", "resource": "cpu"}, f"{NEED}.resource", "Contradiction"),
        ({"class": "a", "oneOf": [{"class": "b"}]}, f"{NEED}.class", "Contradiction"),
        ({"oneOf": [{"class": "b", "count": -1}]}, f"{NEED}.oneOf[0].count", "InvalidQuantity"),
        ({"oneOf": [{"class": "b"}] * 9}, f"{NEED}.oneOf", "TooMany"),
        ({"class": "a", "capacity": {"b": "ten"}}, f"{NEED}.capacity.b", "InvalidQuantity"),
        ({"class": "a", "algorithm": "worst-fit"}, f"{NEED}.algorithm", "BadValue"),
        ({"resource": "cpu", "requests": 1, "count": 2}, NEED, "Contradiction"),
        ({"resource": "foo", "requests": 1}, f"{NEED}.resource", "InvalidName"),
    ],
)
def test_what_is_wrong_with_a_need_is_told_with_its_path(need: dict[str, Any], path: str, code: str) -> None:
    assert _violations(_consumer(need))[path] == code


def test_relations_name_needs_that_there_are() -> None:
    match = {"match": [{"attribute": "numa", "needs": ["gpu"]}]}
    assert _violations(_consumer({"class": "a"}, topology=match)) == {f"{TOPOLOGY}.match[0].needs[0]": "UnknownGroup"}
    wrong = {"distinct": [{"attribute": "", "needs": []}]}
    assert set(_violations(_consumer({"class": "a"}, topology=wrong)).values()) == {"InvalidName", "Required"}
    twice = _violations(_consumer({"class": "a"}, {"class": "a", "count": 2}))
    assert twice == {"spec.apps[0].consumers[0].needs[1].name": "Duplicate"}


def test_a_fraction_of_several_devices_in_a_manifest_is_refused() -> None:
    found = _violations(requests={"gpu": "1500m"})
    assert found == {"spec.apps[0].manifests[0].spec.template.spec.containers[0].resources.requests.gpu": "InvalidQuantity"}


def _requirement(resource: dict[str, Any], **spec: Any) -> Any:
    kind = next(k for k in KINDS if "resource-requirements" in k.path[-2])
    return v2_normalize.read(kind, {"metadata": {"name": "gpu"}, "spec": {"resource": resource, **spec}}).body


def test_requirements_of_v2_name_classes() -> None:
    body = _requirement({"class": "h100", "count": 2, "algorithm": "spread"}, weight=3)
    assert isinstance(body, v2_bodies.Requirement) and not body.spec.mandatory
    assert device_need(body.spec.resource) == {"class": "h100", "count": 2, "algorithm": "spread"}
    body = _requirement({"one-of": [{"class": "h200"}, {"class": "h100", "count": 4}]})
    found = device_need(msgspec.convert(msgspec.to_builtins(body), v2_bodies.Requirement).spec.resource)
    assert found == {"oneOf": [{"class": "h200"}, {"class": "h100", "count": 4}]}


def test_mistakes_in_requirements_of_v2_are_told() -> None:
    for resource in ({"class": "a", "requests": 1}, {"class": "a", "count": 0}, {"class": "a", "key": "b", "value": "c"}):
        with pytest.raises(Refused) as caught:
            _requirement(resource)
        assert all(error.path.startswith("spec.resource.") for error in caught.value.problem.errors)
