"""Needs for devices in documents: what is refused, and the groups and relations that a pod asks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fit.asked_parts import Asked
from moorage.fit.node_state import NodeState
from moorage.intents.core import v2_normalize, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.v2_requirements import whole_need
from moorage.intents.core.validate import Accepted
from moorage.model import v2_bodies
from moorage.model.part_reports import DeviceReport, PropertyValue, Typed
from moorage.model.part_requests import AttributeRelation, DeviceAsk, PartGroup, PropertyCondition, SameSubtree
from moorage.model.problems import Refused
from moorage.model.shapes import PODS, NeedRef, OptionalNeed, Shape
from moorage.model.v2_resources import KINDS
from moorage.parts.device_parts import named_devices
from moorage.parts.inside import Inside, encode
from moorage.parts.layout import layout_of

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
    given = validate.accept(
        _document(list(consumers), [{"name": "main", "resources": resources}, {"name": "side"}]), {}
    )
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
    pages = _shape(requests={"hugepages-1gig": 3, "hugepages-1Gi": "2Gi"}, limits={"hugepages-1Gi": "2Gi"})
    assert pages.resources == {"hugepages-1Gi": 2 << 30, PODS: 1}, "Kubernetes has pages of 1Gi, and none of 1gig"
    assert [(g.suffix, g.devices[0].count) for g in pages.groups] == [("hugepages-1gig", 3)]
    beside = _shape(_consumer({"class": "a", "count": 3}), requests={"a": 1})
    assert [(g.suffix, g.devices[0].count) for g in beside.groups] == [("a", 3), ("a.manifest", 1)]
    assert not _shape(requests={"a": 0}, limits={"a": "0"}).groups, "as Kubernetes takes none of a resource"


def test_each_container_that_requests_a_class_has_its_own_devices() -> None:
    given = validate.accept(
        _document(
            [],
            [
                {"name": "main", "resources": {"limits": {"big": 2}}},
                {"name": "side", "resources": {"limits": {"big": "500m", "one": 1}}},
            ],
        ),
        {},
    )
    assert isinstance(given, Accepted)
    (shape,) = resolve(given, []).apps[0].shapes
    found = [(g.suffix, g.devices[0].resource_class, g.devices[0].count, g.devices[0].share) for g in shape.groups]
    assert found == [("big.main", "big", 2, 0), ("big.side", "big", 1, 500), ("one", "one", 1, 0)]


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
        ({"class": "a", "capacity": {"b": "1e30"}}, f"{NEED}.capacity.b", "InvalidQuantity"),
        ({"class": "a", "capacity": {"a b": "1"}}, f"{NEED}.capacity.a b", "InvalidName"),
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


@pytest.mark.parametrize("amount", ["1500m", "1000001", "9E", "1e30"])
def test_an_amount_that_is_no_number_of_devices_in_a_manifest_is_refused(amount: str) -> None:
    found = _violations(requests={"gpu": amount})
    assert found == {
        "spec.apps[0].manifests[0].spec.template.spec.containers[0].resources.requests.gpu": "InvalidQuantity"
    }


def _requirement(resource: dict[str, Any], **spec: Any) -> Any:
    kind = next(k for k in KINDS if "resource-requirements" in k.path[-2])
    return v2_normalize.read(kind, {"metadata": {"name": "gpu"}, "spec": {"resource": resource, **spec}}).body


def test_requirements_of_v2_name_classes() -> None:
    body = _requirement({"class": "h100", "count": 2, "algorithm": "spread"}, weight=3)
    assert isinstance(body, v2_bodies.Requirement) and not body.spec.mandatory
    assert whole_need(body.spec.resource) == {"class": "h100", "count": 2, "algorithm": "spread"}
    body = _requirement({"one-of": [{"class": "h200"}, {"class": "h100", "count": 4}]})
    found = whole_need(msgspec.convert(msgspec.to_builtins(body), v2_bodies.Requirement).spec.resource)
    assert found == {"oneOf": [{"class": "h200"}, {"class": "h100", "count": 4}]}


def test_mistakes_in_requirements_of_v2_are_told() -> None:
    for resource in (
        {"class": "a", "requests": 1},
        {"class": "a", "count": 0},
        {"class": "a", "key": "b", "value": "c"},
    ):
        with pytest.raises(Refused) as caught:
            _requirement(resource)
        assert all(error.path.startswith("spec.resource.") for error in caught.value.problem.errors)


# --- which devices a node gives ---------------------------------------------------------------------------------------


def _devices(count: int, **fields: Any) -> list[DeviceReport]:
    return [
        DeviceReport(
            id=f"gpu.d/n/g{i}",
            driver="gpu.d",
            pool="n",
            name=f"g{i}",
            attributes={"model": "A" if i < 2 else "B", "numa": i % 2},
            **fields,
        )
        for i in range(count)
    ]


def _assigned(devices: list[DeviceReport], shape: Shape, pods: int = 1, granted: Sequence[int] = ()) -> Any:
    """Returns the devices of each pod by need, or None."""
    layout = layout_of(encode(Inside(devices=named_devices("n", devices))))
    free = tuple(layout.parts[entry.part].inventories[entry.resource].capacity for entry in layout.entries)
    found = NodeState(layout, free).assign([(Asked(shape, granted), pods)])
    return None if found is None else [sorted((g.need, g.part[-2:]) for g in one.grants) for one in found[0]]


def _bound(shape: Shape, model: str = "B") -> Shape:
    """Returns the shape with all its classes bound to the devices of a model."""
    selector = ((PropertyCondition(key="model", operator="In", values=(model,)),),)
    groups = [
        msgspec.structs.replace(
            group, devices=tuple(msgspec.structs.replace(ask, properties=selector) for ask in group.devices)
        )
        for group in shape.groups
    ]
    return msgspec.structs.replace(shape, groups=groups)


def test_a_class_selects_devices_by_properties() -> None:
    shape = _bound(_shape(_consumer({"name": "gpu", "class": "b", "count": 2})))
    assert _assigned(_devices(4), shape) == [[("gpu", "g2"), ("gpu", "g3")]]
    assert _assigned(_devices(3), shape) is None
    assert _assigned(_devices(6), shape, 2) == [[("gpu", "g2"), ("gpu", "g3")], [("gpu", "g4"), ("gpu", "g5")]]
    unknown = _shape(_consumer({"name": "gpu", "class": "b"}))
    assert _assigned(_devices(4), unknown) is None


def test_properties_of_devices_are_equal_or_distinct() -> None:
    need, condition = {"name": "gpu", "class": "b", "count": 2}, [{"attribute": "numa", "needs": ["gpu"]}]
    alike = _bound(_shape(_consumer(need, topology={"match": condition})))
    apart = _bound(_shape(_consumer(need, topology={"distinct": condition})))
    assert _assigned(_devices(4), alike) is None
    assert _assigned(_devices(5), alike) == [[("gpu", "g2"), ("gpu", "g4")]]
    assert _assigned(_devices(5), apart) == [[("gpu", "g2"), ("gpu", "g3")]]
    none = _bound(_shape(_consumer(need, topology={"match": [{"attribute": "socket", "needs": ["gpu"]}]})))
    assert _assigned(_devices(6), none) is None


def test_a_share_is_of_each_capacity_of_one_device() -> None:
    shape = _bound(_shape(_consumer({"name": "gpu", "class": "b", "count": "300m"})))
    divided = _devices(4, divisible=True, capacity={"memory": "10", "engines": "7"})
    assert _assigned(_devices(4), shape) is None  # these cannot be shared
    found = _assigned(divided, shape, 5)
    assert found is None  # 3 engines of 7: two to a device
    four = _assigned(divided, shape, 4)
    assert four is not None
    assert sorted(part for pod in four for part in {part for _, part in pod}) == ["g2", "g2", "g3", "g3"]


def test_of_a_device_without_a_driver_only_the_capacity_that_is_named_is_taken() -> None:
    speed: dict[str, PropertyValue] = {"speed": Typed(bandwidth="100Gbps"), "model": "B"}
    capacity = {"speed": "100000000000", "bandwidth": "100G"}
    nics = [DeviceReport(name=f"g{i}", kind="nic", properties=speed, capacity=capacity, divisible=True) for i in (0, 1)]
    ten = _bound(_shape(_consumer({"name": "nic", "class": "b", "capacity": {"bandwidth": "10G"}})))
    assert len(_assigned(nics, ten, 20)) == 20 and _assigned(nics, ten, 21) is None
    everything = _bound(_shape(_consumer({"name": "nic", "class": "b"})))
    assert _assigned(nics, everything, 2) is not None and _assigned(nics, everything, 3) is None
    of_driver = [msgspec.structs.replace(nic, driver="d", pool="n") for nic in nics]
    assert _assigned(of_driver, ten, 2) is not None and _assigned(of_driver, ten, 3) is None


def test_an_optional_need_takes_devices_where_it_is_granted() -> None:
    shape = _bound(_shape(_consumer({"name": "gpu", "class": "b", "weight": 1})))
    assert _assigned(_devices(4), shape) == [[]]
    assert _assigned(_devices(4), shape, granted=[0]) == [[("gpu", "g2")]]
    assert _assigned(_devices(2), shape, granted=[0]) is None


@given(
    st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 1), st.integers(0, 2)), max_size=5),
    st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 2)), min_size=1, max_size=2),
    st.sampled_from(["", "match", "distinct"]),
    st.integers(1, 2),
)
@settings(deadline=None, max_examples=120)
def test_devices_are_found_where_an_exhaustive_search_finds_some(
    there: list[tuple[str, int, int]], asked: list[tuple[str, int]], relation: str, pods: int
) -> None:
    """`there`: model, zone and root of each device; `asked`: model and count of each need. The relation is of all needs."""
    devices = [
        DeviceReport(driver="d", pool="n", name=f"g{i}", attributes={"model": model, "numa": zone, "root": root})
        for i, (model, zone, root) in enumerate(there)
    ]
    needs = [{"name": f"n{i}", "class": model, "count": count} for i, (model, count) in enumerate(asked)]
    conditions = [{"attribute": "root", "needs": [need["name"] for need in needs]}]
    shape = _shape(_consumer(*needs, topology={relation: conditions} if relation else {}))
    groups = [
        msgspec.structs.replace(
            group,
            devices=(
                msgspec.structs.replace(
                    group.devices[0],
                    properties=((PropertyCondition(key="model", operator="In", values=(model,)),),),
                ),
            ),
        )
        for group, (model, _) in zip(shape.groups, asked, strict=True)
    ]
    found = _assigned(devices, msgspec.structs.replace(shape, groups=groups), pods)
    slots = [model for _ in range(pods) for model, count in asked for _ in range(count)]
    each = len(slots) // pods

    def holds(choice: tuple[int, ...]) -> bool:
        if any(there[device][0] != model for device, model in zip(choice, slots, strict=True)):
            return False
        for pod in range(pods):
            roots = [there[device][2] for device in choice[pod * each : (pod + 1) * each]]
            if (relation == "match" and len(set(roots)) > 1) or (relation == "distinct" and len(set(roots)) < each):
                return False
        return True

    assert (found is not None) == any(map(holds, permutations(range(len(there)), len(slots))))


def test_equal_devices_are_one_part() -> None:
    shape = _bound(_shape(_consumer({"name": "gpu", "class": "b", "count": 3})))
    equal = [DeviceReport(name="four", kind="gpu", quantity=4, properties={"model": "B"})]
    found = _assigned(equal, shape)
    assert found is not None and set(found[0]) == {("gpu", "ur")}
    assert _assigned(equal, shape, 2) is None
    assert _assigned(equal, _bound(_shape(_consumer({"name": "gpu", "class": "b", "count": 4})))) is not None
    assert _assigned(equal, _bound(_shape(_consumer({"name": "gpu", "class": "b", "count": 5})))) is None


@pytest.mark.parametrize(
    ("algorithm", "device"), [("", "g3"), ("first-fit", "g2"), ("spread", "g2"), ("best-fit", "g3")]
)
def test_the_algorithm_chooses_among_devices_of_a_node(algorithm: str, device: str) -> None:
    need = {"name": "gpu", "class": "b", "count": "300m", **({"algorithm": algorithm} if algorithm else {})}
    shape = _bound(_shape(_consumer(need)))
    layout = layout_of(
        encode(Inside(devices=named_devices("n", _devices(4, divisible=True, capacity={"memory": "10"}))))
    )
    free = tuple(4 if layout.parts[entry.part].path.endswith("g3") else 10 for entry in layout.entries)
    found = NodeState(layout, free).assign([(Asked(shape), 1)])
    assert found is not None and [grant.part[-2:] for grant in found[0][0].grants] == [device]
