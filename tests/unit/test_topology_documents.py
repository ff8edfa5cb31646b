"""Groups of parts in documents: what is refused, and what a pod asks in the end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.intents.core import v2_normalize, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import Accepted
from moorage.model.documents import HpaIntentSpec
from moorage.model.part_requests import Isolated, OneZone, PartGroup, RootConditions, SameSubtree
from moorage.model.problems import Problem, Refused
from moorage.model.shapes import EXCLUSIVE, NeedRef, OptionalNeed, Shape
from moorage.model.v2_resources import KINDS

REF = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
CPU = {"resource": "cpu", "requests": 2, "group": "_C"}
FPGA = {"resource": "FPGA", "requests": 1, "group": "_A"}
CONSUMER = "spec.apps[0].consumers[0]"
TOPOLOGY = f"{CONSUMER}.topology"


def _manifest(**pod: Any) -> dict[str, Any]:
    inner = {"containers": [{"name": "main"}, {"name": "side"}], "initContainers": [{"name": "first"}], **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"template": {"spec": inner}},
    }


def _consumer(*needs: dict[str, Any], container: str = "main", **fields: Any) -> dict[str, Any]:
    return {"object": REF, "container": container, "needs": list(needs), **fields}


def _document(*consumers: dict[str, Any], **pod: Any) -> dict[str, Any]:
    app = {"name": "web", "manifests": [_manifest(**pod)], "consumers": list(consumers)}
    return {"kind": "Application", "metadata": {"name": "shop"}, "spec": {"apps": [app]}}


def _shape(*consumers: dict[str, Any], attached: Any = (), **pod: Any) -> Shape:
    given = validate.accept(_document(*consumers, **pod), {})
    assert isinstance(given, Accepted)
    (found,) = resolve(given, [validate.intent(a, {}) for a in attached]).apps[0].shapes
    return found


def _violations(*consumers: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        validate.accept(_document(*consumers), {})
    problem = caught.value.problem
    assert (problem.status, problem.code) == (400, "Invalid")
    assert all(error.message for error in problem.errors)
    return {error.path: error.code for error in problem.errors}


WRONG_TOPOLOGIES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"sameSubtree": [["_C", "_B"]]}, {f"{TOPOLOGY}.sameSubtree[0][1]": "UnknownGroup"}),
    ({"sameSubtree": [["_C", "!_B"]]}, {f"{TOPOLOGY}.sameSubtree[0][1]": "UnknownGroup"}),
    ({"sameSubtree": [["!_C", "!_A"]]}, {f"{TOPOLOGY}.sameSubtree[0]": "Required"}),
    ({"sameSubtree": [[]]}, {f"{TOPOLOGY}.sameSubtree[0]": "Required"}),
    ({"sameSubtree": [["_C", "!_C"]]}, {f"{TOPOLOGY}.sameSubtree[0][0]": "Contradiction"}),
    ({"sameSubtree": ["_C"]}, {f"{TOPOLOGY}.sameSubtree[0]": "WrongType"}),
    ({"sameSubtree": [["a b", "_C"]]}, {f"{TOPOLOGY}.sameSubtree[0][0]": "BadSuffix"}),
    ({"isolate": ["_X"]}, {f"{TOPOLOGY}.isolate[0]": "UnknownGroup"}),
    ({"isolate": ["_C"], "groupPolicy": "none"}, {f"{TOPOLOGY}.isolate": "Contradiction"}),
    ({"groupPolicy": "all"}, {f"{TOPOLOGY}.groupPolicy": "BadValue"}),
    ({"zone": "maybe"}, {f"{TOPOLOGY}.zone": "BadValue"}),
    ({"zones": "required"}, {f"{TOPOLOGY}.zones": "UnknownField"}),
    ({"groups": {"_N": {"required": ["T"]}}}, {f"{TOPOLOGY}.groups._N": "ResourcelessGroup"}),
    ({"groups": {"a.b": {}}}, {f"{TOPOLOGY}.groups.a.b": "BadSuffix"}),
    ({"groups": {"": {}}}, {f"{TOPOLOGY}.groups.": "BadSuffix"}),
    ({"groups": {"_C": {"required": ["low"]}}}, {f"{TOPOLOGY}.groups._C.required[0]": "InvalidName"}),
    ({"groups": {"_C": {"required": ["in:A,"]}}}, {f"{TOPOLOGY}.groups._C.required[0]": "InvalidName"}),
    ({"groups": {"_C": {"required": ["!in:A,B"]}}}, {f"{TOPOLOGY}.groups._C.required[0]": "InvalidName"}),
    ({"groups": {"_C": {"required": ["A", "!A"]}}}, {f"{TOPOLOGY}.groups._C.required": "Contradiction"}),
    ({"groups": {"_C": {"memberOf": ["a b"]}}}, {f"{TOPOLOGY}.groups._C.memberOf[0]": "InvalidName"}),
    ({"groups": {"_C": {"memberOf": ["in:a,b", "!in:b,a"]}}}, {f"{TOPOLOGY}.groups._C.memberOf": "Contradiction"}),
    ({"groups": {"_C": {"inTree": "x" * 256}}}, {f"{TOPOLOGY}.groups._C.inTree": "InvalidName"}),
    ({"groups": {"_C": {"requires": []}}}, {f"{TOPOLOGY}.groups._C.requires": "UnknownField"}),
    ({"groups": ["_C"]}, {f"{TOPOLOGY}.groups": "WrongType"}),
    ({"rootRequired": ["A", "!A"]}, {f"{TOPOLOGY}.rootRequired": "Contradiction"}),
    ({"rootMemberOf": [""]}, {f"{TOPOLOGY}.rootMemberOf[0]": "InvalidName"}),
    ({"groups": {"_E": {}}, "sameSubtree": [["_C", "_E"]]}, {f"{TOPOLOGY}.groups._E": "ResourcelessGroup"}),
    ({"groups": {"_C": {"required": ["CUSTOM_"]}}}, {f"{TOPOLOGY}.groups._C.required[0]": "InvalidName"}),
    ({"groups": {"_C": {"inTree": "a b"}}}, {f"{TOPOLOGY}.groups._C.inTree": "InvalidName"}),
    ({"groups": {"_C": {"memberOf": ["!in:"]}}}, {f"{TOPOLOGY}.groups._C.memberOf[0]": "InvalidName"}),
    ({"sameSubtree": [["_C", "_A"], ["_C", "!_A"]]}, {f"{TOPOLOGY}.sameSubtree[1]": "Contradiction"}),
    ({"rootRequired": [f"T{i}" for i in range(65)]}, {f"{TOPOLOGY}.rootRequired": "TooMany"}),
    ({"isolate": ["_C"] * 65}, {f"{TOPOLOGY}.isolate": "TooMany"}),
]


@pytest.mark.parametrize(("topology", "expected"), WRONG_TOPOLOGIES, ids=lambda v: str(v)[:60])
def test_wrong_topologies_are_refused(topology: dict[str, Any], expected: dict[str, str]) -> None:
    assert _violations(_consumer(CPU, FPGA, topology=topology)) == expected


NEED = f"{CONSUMER}.needs[0]"
WRONG_NEEDS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"resource": "cpu", "requests": 2, "group": "a b"}, {f"{NEED}.group": "BadSuffix"}),
    ({"resource": "cpu", "requests": 2, "group": "x" * 65}, {f"{NEED}.group": "BadSuffix"}),
    ({"resource": "cpu", "requests": 2, "group": "ä"}, {f"{NEED}.group": "BadSuffix"}),
    ({"label": "a", "value": "b", "group": "_C"}, {f"{NEED}.group": "Contradiction"}),
    ({"resource": "FPGA", "requests": 0.5}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "FPGA", "requests": 1, "units": "MB"}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "FPGA", "requests": 2, "limits": 1}, {f"{NEED}.requests": "RequestsAboveLimits"}),
    ({"resource": "MEMORY_MB", "requests": 1, "units": "MB"}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "MEMORY_MB", "requests": "1.5"}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "Fpga", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "FPGA"}, {NEED: "Required"}),
]


@pytest.mark.parametrize(("need", "expected"), WRONG_NEEDS, ids=lambda v: str(v)[:60])
def test_wrong_needs_are_refused(need: dict[str, Any], expected: dict[str, str]) -> None:
    assert _violations(_consumer(need)) == expected


def test_a_resource_may_be_asked_once_in_each_group() -> None:
    other = CPU | {"group": "_D"}
    assert [g.suffix for g in _shape(_consumer(CPU, other)).groups] == ["_C", "_D"]
    twice = {"resource": "VCPU", "requests": 1, "group": "_C"}
    assert _violations(_consumer(CPU, twice)) == {f"{CONSUMER}.needs[1]": "Duplicate"}


def test_needs_of_parts_name_no_container() -> None:
    assert _shape(_consumer(FPGA, container="")).groups == [PartGroup(suffix="_A", resources={"FPGA": 1})]
    assert _violations(_consumer(CPU, container="")) == {f"{CONSUMER}.container": "Required"}


def test_consumers_of_one_object_share_groups() -> None:
    relation = {"sameSubtree": [["_C", "_A"]]}
    found = _shape(_consumer(CPU), _consumer(CPU, FPGA, container="side", topology=relation))
    assert found.groups == [
        PartGroup(suffix="_A", resources={"FPGA": 1}),
        PartGroup(suffix="_C", resources={"cpu": 4000}),
    ]
    assert found.relations == [SameSubtree(groups=("_A", "_C"))]
    assert found.resources == {"cpu": 4000, "pods": 1}
    zones = [_consumer(CPU, topology={"zone": "required"}), _consumer(topology={"zone": "preferred"})]
    assert _violations(*zones) == {"spec.apps[0].consumers[1].topology.zone": "Contradiction"}
    policies = [_consumer(CPU, topology={"isolate": ["_C"]}), _consumer(topology={"groupPolicy": "none"})]
    assert _violations(*policies) == {f"{TOPOLOGY}.isolate": "Contradiction"}


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ({"required": ["A"]}, {"required": ["!A"]}, "required"),
        ({"memberOf": ["a"]}, {"memberOf": ["!a"]}, "memberOf"),
        ({"inTree": "n-0"}, {"inTree": "n-1"}, "inTree"),
    ],
)
def test_consumers_of_one_object_say_the_same_of_a_group(
    first: dict[str, Any], second: dict[str, Any], path: str
) -> None:
    found = [_consumer(CPU, topology={"groups": {"_C": first}}), _consumer(topology={"groups": {"_C": second}})]
    other = "spec.apps[0].consumers[1].topology"
    assert _violations(*found) == {f"{other}.groups._C.{path}": "Contradiction"}


def test_a_pod_asks_for_more_than_groups_without_resources() -> None:
    topology = {"groups": {"_N": {"required": ["HW_NIC_ROOT"]}}, "sameSubtree": [["_N"]]}
    label = {"label": "a", "value": "b"}
    for needs in ([], [label]):
        assert _violations(_consumer(*needs, topology=topology)) == {f"{TOPOLOGY}.groups._N": "ResourcelessGroup"}
    plain = {"resource": "cpu", "requests": 1}
    assert [g.suffix for g in _shape(_consumer(plain, topology=topology)).groups] == ["_N"]


def test_the_amount_of_a_group_is_that_of_the_pod() -> None:
    """Init containers run before the others; what only parts have is held all the time."""
    found = _shape(
        _consumer(CPU, FPGA),
        _consumer(CPU | {"requests": 1}, container="side"),
        _consumer(CPU | {"requests": 4}, FPGA, container="first"),
    )
    assert [(g.suffix, g.resources) for g in found.groups] == [("_A", {"FPGA": 2}), ("_C", {"cpu": 4000})]
    assert found.resources["cpu"] == 4000


def test_topologies_become_relations_and_conditions() -> None:
    topology = {
        "groups": {
            "_C": {"required": ["CUSTOM_T", "!U", "in:V,W"], "memberOf": ["!in:r1,r2", "in:r3"], "inTree": "n-0"},
            "_N": {"required": ["HW_NIC_ROOT"]},
        },
        "sameSubtree": [["_C", "_N"], ["_C", "!_A"]],
        "groupPolicy": "isolate",
        "rootRequired": ["COMPUTE_X", "!CUSTOM_Y"],
        "rootMemberOf": ["in:r1,r2", "!r9"],
        "zone": "preferred",
    }
    found = _shape(_consumer(CPU, FPGA, topology=topology))
    assert found.groups == [
        PartGroup(suffix="_A", resources={"FPGA": 1}),
        PartGroup(
            suffix="_C",
            resources={"cpu": 2000},
            required=(("T",), ("V", "W")),
            forbidden=("U",),
            member_of=(("r3",),),
            not_member_of=("r1", "r2"),
            in_tree="n-0",
        ),
        PartGroup(suffix="_N", required=(("HW_NIC_ROOT",),)),
    ]
    assert found.relations == [
        SameSubtree(groups=("_C", "_N")),
        SameSubtree(groups=("_C",), apart=("_A",)),
        Isolated(groups=("_A", "_C", "_N")),
        OneZone(required=False),
        RootConditions(required=(("COMPUTE_X",),), forbidden=("Y",), member_of=(("r1", "r2"),), not_member_of=("r9",)),
    ]


def test_optional_needs_may_have_a_group() -> None:
    optional = [need | {"mandatory": False, "weight": 5} for need in (CPU, FPGA)]
    found = _shape(_consumer(*optional, topology={"sameSubtree": [["_C", "_A"]]}))
    assert found.optional == [
        OptionalNeed(
            consumer="x", name="cpu", weight=5, group="_C", resources={"cpu": 2000}, part_resources={"cpu": 2000}
        ),
        OptionalNeed(consumer="x", name="FPGA", weight=5, group="_A", part_resources={"FPGA": 1}),
    ]
    assert found.groups == [PartGroup(suffix="_A", optional=True), PartGroup(suffix="_C", optional=True)]
    assert found.resources == {"pods": 1}


def test_needs_without_a_group_are_the_nameless_one() -> None:
    found = _shape(_consumer({"resource": "CUSTOM_VF", "requests": 2}, {"resource": "cpu", "requests": 1}))
    assert found.groups == [PartGroup(resources={"VF": 2})]
    assert found.needs == [
        NeedRef(consumer="x", name="VF", amount=2),
        NeedRef(consumer="x", name="cpu", amount=1000),
    ]


def test_standard_classes_are_resources_of_kubernetes() -> None:
    found = _shape(
        _consumer(
            {"resource": "PCPU", "requests": 2, "group": "_C"},
            {"resource": "MEMORY_MB", "limits": 3, "requests": 3, "group": "_C"},
            {"resource": "DISK_GB", "requests": 1},
        ),
        containers=[{"name": "main"}],
        initContainers=[],
    )
    assert found.resources == {"cpu": 2000, "memory": 3 << 20, "ephemeral-storage": 1 << 30, EXCLUSIVE: 2, "pods": 1}
    assert found.groups == [PartGroup(suffix="_C", resources={"cpu": 2000, "memory": 3 << 20})]
    assert _shape(_consumer({"resource": "VCPU", "requests": "500m"})).resources["cpu"] == 500


def test_a_plain_pod_asks_nothing_of_parts() -> None:
    plain = _shape(_consumer({"resource": "cpu", "requests": 1}))
    assert (plain.groups, plain.relations, plain.containers, plain.guaranteed) == ([], [], [], False)


def test_pods_that_a_kubelet_may_align_have_their_containers() -> None:
    amounts = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    guaranteed = _shape(containers=[{"name": "main", "resources": amounts}], initContainers=[])
    assert guaranteed.guaranteed
    assert [(c.name, c.init, c.requests) for c in guaranteed.containers] == [
        ("main", False, {"cpu": 2000, "memory": 1 << 30})
    ]
    device = _shape(_consumer({"resource": "nvidia.com/gpu", "limits": 1}))
    assert not device.guaranteed
    assert [(c.name, c.init, c.requests) for c in device.containers] == [
        ("main", False, {"nvidia.com/gpu": 1}),
        ("side", False, {}),
        ("first", True, {}),
    ]


def test_what_is_asked_of_parts_is_in_the_key_and_in_the_identity_of_claims() -> None:
    plain = _shape(_consumer(CPU | {"group": ""}))
    grouped = _shape(_consumer(CPU))
    isolated = _shape(_consumer(CPU, topology={"isolate": ["_C"]}))
    shapes = (plain, grouped, isolated, _shape(_consumer(CPU | {"group": ""}, FPGA)))
    assert len({shape.key for shape in shapes}) == len({shape.template for shape in shapes}) == 4
    assert _shape(_consumer(CPU, FPGA)).key == _shape(_consumer(FPGA, CPU)).key


def _intent(*consumers: dict[str, Any]) -> dict[str, Any]:
    spec = {"group": "shop", "app": "web", "consumers": list(consumers)}
    return {"kind": "TopologyIntent", "metadata": {"name": "inside"}, "spec": spec}


def test_intents_of_their_own_may_relate_the_groups_of_an_application() -> None:
    intent = _intent(_consumer(FPGA, container="", topology={"sameSubtree": [["_C", "_A"]]}))
    found = _shape(_consumer(CPU), attached=[intent])
    assert [g.suffix for g in found.groups] == ["_A", "_C"]
    assert found.relations == [SameSubtree(groups=("_A", "_C"))]


@pytest.mark.parametrize(
    ("topology", "code", "path"),
    [
        ({"sameSubtree": [["_C", "_B"]]}, "UnknownGroup", "sameSubtree[0][1]"),
        ({"groups": {"_B": {}}}, "ResourcelessGroup", "groups._B"),
        ({"zone": "preferred"}, "Contradiction", "zone"),
    ],
)
def test_intents_that_do_not_go_with_the_application_are_refused(
    topology: dict[str, Any], code: str, path: str
) -> None:
    with pytest.raises(Refused) as caught:
        _shape(_consumer(CPU, topology={"zone": "required"}), attached=[_intent(_consumer(topology=topology))])
    problem: Problem = caught.value.problem
    assert (problem.status, problem.code) == (409, code)
    assert [e.path for e in problem.errors] == [f"TopologyIntent/inside: spec.consumers[0].topology.{path}"]


def test_controllers_get_needs_with_the_names_of_kubernetes() -> None:
    given = validate.accept(_document(_consumer({"resource": "MEMORY_MB", "requests": 3, "group": "_C"}, FPGA)), {})
    assert isinstance(given, Accepted)
    (intent,) = resolve(given).intents
    (consumer,) = msgspec.json.decode(intent.spec, type=HpaIntentSpec).consumers
    assert [(n.resource, n.requests, n.units, n.group) for n in consumer.needs] == [
        ("memory", 3 << 20, "B", "_C"),
        ("FPGA", 1, "", "_A"),
    ]


def _v2(kind: str, spec: dict[str, Any]) -> v2_normalize.NormalizedBody:
    of = next(k for k in KINDS if kind in k.path[-2])
    return v2_normalize.read(of, {"metadata": {"name": "r"}, "spec": spec})


def test_v2_consumers_and_requirements_have_the_same_words() -> None:
    topology = {
        "same-subtree": [["_C", "_A"]],
        "groupPolicy": "none",
        "groups": {"_C": {"member-of": ["r1"]}, "same_subtree": {"inTree": "n"}},
        "zone": "required",
    }
    found = msgspec.to_builtins(_v2("hpa-resource-consumers", {"name": "x", "topology": topology}).body)
    assert found["spec"]["topology"] == {
        "sameSubtree": [["_C", "_A"]],
        "groupPolicy": "none",
        "groups": {"_C": {"memberOf": ["r1"]}, "same_subtree": {"inTree": "n"}},
        "zone": "required",
    }
    need = _v2("resource-requirements", {"resource": {"name": "FPGA", "requests": "1", "group": "_A"}})
    assert msgspec.to_builtins(need.body)["spec"]["resource"] == {"name": "FPGA", "requests": 1, "group": "_A"}


@pytest.mark.parametrize(
    ("kind", "spec", "path", "code"),
    [
        ("hpa-resource-consumers", {"name": "x", "topology": {"same-subtree": [["!_A"]]}}, "spec.topology.same-subtree[0]", "Required"),
        ("hpa-resource-consumers", {"name": "x", "topology": {"zone": "no"}}, "spec.topology.zone", "BadValue"),
        ("resource-requirements", {"resource": {"name": "FPGA", "requests": 1, "group": "a b"}}, "spec.resource.group", "BadSuffix"),
        ("resource-requirements", {"resource": {"key": "l", "value": "v", "group": "_A"}}, "spec.resource.key", "Contradiction"),
    ],
)  # fmt: skip
def test_v2_bodies_are_checked_alike(kind: str, spec: dict[str, Any], path: str, code: str) -> None:
    with pytest.raises(Refused) as caught:
        _v2(kind, spec)
    assert [(e.path, e.code) for e in caught.value.problem.errors] == [(path, code)]
