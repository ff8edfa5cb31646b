"""Documents: all mistakes are answered together, with their places; other spellings are accepted."""

from __future__ import annotations

import copy
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.transitions import apply_document
from moorage.intents.core.validate import Accepted, AcceptedIntent
from moorage.model.documents import INTENT_SPECS
from moorage.model.intent_kinds import INTENT_KINDS
from moorage.model.problems import Problem, Refused
from moorage.parsing import yaml_json

REF = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"}


def manifest(kind: str = "StatefulSet", name: str = "db", **pod: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "x"}], **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}},
    }


def document(needs: list[Any] | None = None, **app: Any) -> dict[str, Any]:
    consumer = {"object": REF, "container": "main", "needs": needs or [{"resource": "cpu", "requests": 1}]}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": "shop"},
        "spec": {"apps": [{"name": "web", "manifests": [manifest()], "consumers": [consumer], **app}]},
    }


def refusal(data: dict[str, Any], kinds: Any = None) -> Problem:
    with pytest.raises(Refused) as caught:
        validate.accept(data, kinds or {})
    return caught.value.problem


def violations(data: dict[str, Any]) -> dict[str, str]:
    problem = refusal(data)
    assert (problem.status, problem.code) == (400, "Invalid")
    assert all(e.message for e in problem.errors)
    return {e.path: e.code for e in problem.errors}


NEED = "spec.apps[0].consumers[0].needs[0]"
WRONG_NEEDS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"resource": "cpu", "requests": 0}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "cpu", "requests": -1}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "cpu", "requests": "four"}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "cpu", "requests": True}, {f"{NEED}.requests": "WrongType"}),
    ({"resource": "cpu", "requests": [1]}, {f"{NEED}.requests": "WrongType"}),
    ({"resource": "cpu", "requests": 4, "limits": "3900m"}, {f"{NEED}.requests": "RequestsAboveLimits"}),
    ({"resource": "memory", "requests": "1Gi", "units": "MB"}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "memory", "requests": 1, "units": "cores"}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "nvidia.com/gpu", "requests": 1.5}, {f"{NEED}.requests": "InvalidQuantity"}),
    ({"resource": "cpu"}, {NEED: "Required"}),
    ({"resource": "cpu", "requests": None}, {NEED: "Required"}),
    ({"resource": "not a name", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "pods", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "foo", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "storage", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "Example.com/gpu", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "requests.example.com/gpu", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": f"{'d' * 250}/gpu", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "moorage.dev/exclusive-cpu", "requests": 1}, {f"{NEED}.resource": "InvalidName"}),
    ({"resource": "cpu", "requests": 1, "value": "x"}, {f"{NEED}.value": "Contradiction"}),
    ({"resource": "cpu", "requests": 1, "weight": 0}, {f"{NEED}.weight": "OutOfRange"}),
    ({"resource": "cpu", "requests": 1, "weight": 11}, {f"{NEED}.weight": "OutOfRange"}),
    ({"resource": "cpu", "requests": 1, "weight": 1.5}, {f"{NEED}.weight": "WrongType"}),
    ({"resource": "cpu", "requests": 1, "mandatory": "perhaps"}, {f"{NEED}.mandatory": "WrongType"}),
    ({"resource": "cpu", "label": "a", "requests": 1}, {NEED: "Contradiction"}),
    ({}, {NEED: "Contradiction"}),
    ({"label": "a", "value": "b", "requests": 1}, {NEED: "Contradiction"}),
    ({"label": "-a", "value": "b"}, {f"{NEED}.label": "InvalidLabel"}),
    ({"label": "a/b/c", "value": "b"}, {f"{NEED}.label": "InvalidLabel"}),
    ({"label": "a", "value": "not a value"}, {f"{NEED}.value": "InvalidLabel"}),
    ({"label": "a", "value": "b\n"}, {f"{NEED}.value": "InvalidLabel"}),
    ({"resource": "cpu", "request": 1}, {f"{NEED}.request": "UnknownField", NEED: "Required"}),
    ({"resource": "cpu", "requests": 1, "name": "-"}, {f"{NEED}.name": "InvalidName"}),
]


@pytest.mark.parametrize(
    "resource",
    [
        "cpu",
        "memory",
        "ephemeral-storage",
        "hugepages-2Mi",
        "nvidia.com/gpu",
        "gpu.intel.com/i915",
        "attachable.kubernetes.io/x",
    ],
)
def test_what_a_container_can_request_is_accepted(resource: str) -> None:
    assert isinstance(validate.accept(document([{"resource": resource, "requests": "2Mi"}]), {}), validate.Accepted)


@pytest.mark.parametrize(("need", "expected"), WRONG_NEEDS, ids=lambda v: str(v)[:60])
def test_wrong_needs_are_refused(need: dict[str, Any], expected: dict[str, str]) -> None:
    assert violations(document([need])) == expected


def change(path: str, value: Any) -> dict[str, Any]:
    """Returns the document with one place changed; `...` removes it."""
    data = copy.deepcopy(document())
    node: Any = data
    *steps, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    for step in steps:
        node = node[step]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return data


APP = "spec.apps[0]"
CONSUMER = f"{APP}.consumers[0]"
TEMPLATE = "spec/apps/0/manifests/0/spec/template/spec"
MANIFEST = f"{APP}.manifests[0]"
WRONG_PLACES: list[tuple[str, Any, dict[str, str]]] = [
    ("apiVersion", "v2", {"apiVersion": "UnknownVersion"}),
    ("extra", 1, {"extra": "UnknownField"}),
    ("metadata", ..., {"metadata": "Required"}),
    ("metadata/name", ..., {"metadata.name": "Required"}),
    ("metadata/name", "a/b", {"metadata.name": "InvalidName"}),
    ("metadata/name", "x" * 129, {"metadata.name": "InvalidName"}),
    ("metadata/name", "shop\n", {"metadata.name": "InvalidName"}),
    ("metadata/name", 5, {"metadata.name": "WrongType"}),
    ("metadata/project", "..", {"metadata.project": "InvalidName"}),
    ("metadata/labels", {"a": "b c"}, {"metadata.labels.a": "InvalidLabel"}),
    ("metadata/labels", ["a"], {"metadata.labels": "WrongType"}),
    ("spec", ..., {"spec": "Required"}),
    ("spec", [], {"spec": "WrongType"}),
    ("spec/apps", [], {"spec.apps": "Required"}),
    ("spec/apps", {}, {"spec.apps": "WrongType"}),
    ("spec/apps/0", 7, {APP: "WrongType"}),
    ("spec/apps/0/name", "", {f"{APP}.name": "InvalidName"}),
    ("spec/apps/0/replicas", 0, {f"{APP}.replicas": "OutOfRange"}),
    ("spec/apps/0/replicas", "two", {f"{APP}.replicas": "WrongType"}),
    ("spec/apps/0/placement", {"allOf": [{}]}, {f"{APP}.placement.allOf[0]": "Contradiction"}),
    (
        "spec/apps/0/placement",
        {"anyOf": [{"allOf": [{"cluster": "edge"}, {"provider": "a b"}]}]},
        {
            f"{APP}.placement.anyOf[0].allOf[0].cluster": "InvalidName",
            f"{APP}.placement.anyOf[0].allOf[1].provider": "InvalidName",
        },
    ),
    ("spec/apps/0/placement", {"labels": {}}, {f"{APP}.placement.labels": "UnknownField"}),
    ("spec/affinity", [{"together": ["web"]}], {"spec.affinity[0].together": "OutOfRange"}),
    ("spec/affinity", [{"apart": ["web", "db"]}], {"spec.affinity[0].apart[1]": "UnknownApp"}),
    ("spec/affinity", [{}], {"spec.affinity[0]": "Contradiction"}),
    ("spec/affinity", [{"apart": ["web", "a"], "together": ["web", "b"]}], {"spec.affinity[0]": "Contradiction"}),
    ("spec/apps/0/consumers/0/container", ..., {f"{CONSUMER}.container": "Required"}),
    ("spec/apps/0/consumers/0/container", 3, {f"{CONSUMER}.container": "WrongType"}),
    ("spec/apps/0/consumers/0/object", ..., {f"{CONSUMER}.object": "Required"}),
    ("spec/apps/0/consumers/0/object/name", ..., {f"{CONSUMER}.object.name": "Required"}),
    ("spec/apps/0/consumers/0/object/name", "", {f"{CONSUMER}.object.name": "Required"}),
    ("spec/apps/0/consumers/0/replicas", -1, {f"{CONSUMER}.replicas": "OutOfRange"}),
    ("spec/apps/0/consumers/0/needs", [{"resource": "cpu", "requests": 1}] * 2, {f"{CONSUMER}.needs[1]": "Duplicate"}),
    (
        "spec/apps/0/consumers/0/needs",
        [{"label": "a", "value": "b"}, {"label": "a", "value": "c"}],
        {f"{CONSUMER}.needs[1]": "Duplicate"},
    ),
    (
        "spec/apps/0/consumers/0/needs",
        [{"label": "a", "value": True, "weight": 2}, {"label": "a", "value": "true", "weight": 1}],
        {f"{CONSUMER}.needs[1]": "Duplicate"},
    ),
    ("spec/apps/0/manifests", {"file": "a.yaml"}, {f"{APP}.manifests": "NotInline"}),
    ("spec/apps/0/manifests/0", {"file": "a.yaml"}, {MANIFEST: "NotInline"}),
    ("spec/apps/0/manifests/0", {"chart": "c", "values": {}}, {MANIFEST: "NotInline"}),
    ("spec/apps/0/manifests/0", "text", {MANIFEST: "WrongType"}),
    ("spec/apps/0/manifests/0/kind", ..., {f"{MANIFEST}.kind": "Required"}),
    ("spec/apps/0/manifests/0/metadata", {}, {f"{MANIFEST}.metadata.name": "Required"}),
    ("spec/apps/0/manifests/0/spec", ..., {f"{MANIFEST}.spec": "InvalidManifest"}),
    ("spec/apps/0/manifests/0/spec/replicas", -1, {f"{MANIFEST}.spec.replicas": "OutOfRange"}),
    (f"{TEMPLATE}/containers", [], {f"{MANIFEST}.spec.template.spec.containers": "Required"}),
    (f"{TEMPLATE}/containers", [{}], {f"{MANIFEST}.spec.template.spec.containers[0]": "InvalidManifest"}),
    (
        f"{TEMPLATE}/containers/0/resources",
        {"requests": {"cpu": "x", "memory": "2Gi"}, "limits": {"memory": "1Gi"}},
        {
            f"{MANIFEST}.spec.template.spec.containers[0].resources.requests.cpu": "InvalidQuantity",
            f"{MANIFEST}.spec.template.spec.containers[0].resources.requests.memory": "RequestsAboveLimits",
        },
    ),
    (f"{TEMPLATE}/nodeSelector", {"a": 1}, {f"{MANIFEST}.spec.template.spec.nodeSelector": "InvalidManifest"}),
]


@pytest.mark.parametrize(("path", "value", "expected"), WRONG_PLACES, ids=lambda v: str(v)[:50])
def test_wrong_fields_are_refused(path: str, value: Any, expected: dict[str, str]) -> None:
    assert violations(change(path, value)) == expected


def test_each_kind_of_intent_has_a_spec() -> None:
    assert tuple(INTENT_SPECS) == INTENT_KINDS


def test_all_violations_of_a_document_are_answered_together() -> None:
    data = document([{"resource": "cpu", "requests": 5, "limits": 4, "weight": 12}, {"label": "a", "valu": "b"}])
    data["apiversion"] = data.pop("apiVersion")
    data["metadata"]["name"] = "_"
    app = data["spec"]["apps"][0]
    app["replicas"] = "many"
    app["consumers"].append({"object": {"kind": "StatefulSet", "name": 3}, "needs": "cpu"})
    data["spec"]["apps"].append({"name": "web"})
    assert violations(data) == {
        "apiversion": "UnknownField",
        "metadata.name": "InvalidName",
        f"{APP}.replicas": "WrongType",
        f"{NEED}.requests": "RequestsAboveLimits",
        f"{NEED}.weight": "OutOfRange",
        f"{CONSUMER}.needs[1].valu": "UnknownField",
        f"{APP}.consumers[1].object.name": "WrongType",
        f"{APP}.consumers[1].needs": "WrongType",
        "spec.apps[1].name": "Duplicate",
    }


def test_a_namespace_that_is_not_text_is_left_to_kubernetes() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": ["a"]}}
    assert isinstance(validate.accept(document(manifests=[manifest(), config]), {}), Accepted)
    assert violations(document(manifests=[manifest(), config, config])) == {
        f"{APP}.manifests[2].metadata.name": "Duplicate"
    }


def test_an_unknown_field_is_answered_with_the_closest_known_one() -> None:
    problem = refusal(change("spec/apps/0/replica", 2))
    assert problem.errors[0].message == "unknown field; did you mean 'replicas'?"
    assert problem.detail == "spec.apps[0].replica: unknown field; did you mean 'replicas'?"


def test_numbers_and_booleans_may_be_written_as_text() -> None:
    data = document(
        [
            {"resource": "cpu", "requests": "1", "mandatory": "false", "weight": "9"},
            {"label": "a", "value": True},
            {"label": "b", "value": 7},
        ],
        replicas="2",
        placement=None,
    )
    data["metadata"]["labels"] = {"prod": True, "tier": 1}
    accepted = validate.accept(data, {})
    assert isinstance(accepted, Accepted)
    plain = document(
        [
            {"resource": "cpu", "requests": "1", "mandatory": False, "weight": 9},
            {"label": "a", "value": "true"},
            {"label": "b", "value": "7"},
        ],
        replicas=2,
    )
    plain["metadata"]["labels"] = {"prod": "true", "tier": "1"}
    other = validate.accept(plain, {})
    assert isinstance(other, Accepted)
    assert accepted.document.metadata == other.document.metadata
    assert [s.key for s in resolve(accepted).apps[0].shapes] == [s.key for s in resolve(other).apps[0].shapes]


def intent(kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "i", **metadata}, "spec": spec}


WRONG_INTENTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    (intent("HpaIntent", {"app": "web"}), {"spec.group": "Required"}),
    (intent("HpaIntent", {"group": "a/b", "app": "web"}), {"spec.group": "InvalidName"}),
    (intent("HpaIntent", {"group": "p/a/v1/g", "app": "web"}, project="q"), {"spec.group": "Contradiction"}),
    (intent("HpaIntent", {"group": "shop", "app": "", "consumer": []}), {"spec.app": "InvalidName", "spec.consumer": "UnknownField"}),
    (intent("PlacementIntent", {"group": "shop", "app": "web", "allOf": [{}]}), {"spec.allOf[0]": "Contradiction"}),
    (
        intent("PlacementIntent", {"group": "shop", "app": "web", "anyOf": [{"provider": "x"}], "sets": [{"count": -1}]}),
        {"spec.sets": "Contradiction", "spec.sets[0].count": "OutOfRange"},
    ),
    (intent("AffinityIntent", {"group": "shop"}), {"spec.rules": "Required"}),
    (intent("AffinityIntent", {"group": "shop", "rules": [{"apart": ["a"]}]}), {"spec.rules[0].apart": "OutOfRange"}),
    (intent("Fleet", {}), {"kind": "UnknownKind"}),
    (intent("Nothing", {}), {"kind": "UnknownKind"}),
    ({"spec": {}}, {"kind": "UnknownKind"}),
    ({"kind": ["Application"]}, {"kind": "UnknownKind"}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), WRONG_INTENTS, ids=lambda v: str(v)[:70])
def test_wrong_standalone_intents_are_refused(data: dict[str, Any], expected: dict[str, str]) -> None:
    assert violations(data) == expected


def test_a_full_group_name_decides_the_project() -> None:
    found = validate.accept(intent("HpaIntent", {"group": "my-proj1/my-capp1/v1.0/my-dig1", "app": "fwall"}), {})
    assert isinstance(found, AcceptedIntent)
    assert (str(found.group), found.document.metadata.project) == ("my-proj1/my-capp1/v1.0/my-dig1", "my-proj1")


def code(text: bytes) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        yaml_json.parse_document(text)
    return caught.value.problem.status, caught.value.problem.code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", (400, "Empty")),
        (b" \n", (400, "Empty")),
        (b"{", (400, "Undecodable")),
        (b"\xff\xfe\x00", (400, "Undecodable")),
        (b"[1]", (400, "Undecodable")),
        (b"null", (400, "Empty")),
        (b"# nothing", (400, "Empty")),
        (b"just text", (400, "Undecodable")),
        (b"a: [", (400, "Undecodable")),
        (b"a: 1\n---\nb: 2\n", (400, "SeveralDocuments")),
        (b"a: !!python/object/apply:os.system [ls]", (400, "Undecodable")),
        (b"{" + b'"a":{' * 80 + b"}" * 81, (400, "TooDeep")),
        (b'{"a":' + b"[" * 100_000, (400, "TooDeep")),
        (b"x: " + b"[" * 3000 + b"]" * 3000, (400, "TooDeep")),
        (b"a" * (yaml_json.MAX_BYTES + 1), (413, "TooLarge")),
        (b'{"a":[' + b"[]," * 110_000 + b"[]]}", (413, "TooLarge")),
    ],
    ids=lambda v: str(v)[:40],
)
def test_unreadable_texts_are_refused(text: bytes, expected: tuple[int, str]) -> None:
    assert code(text) == expected


def multiplied(first: str, each: str) -> bytes:
    """Nine lines, each with ten aliases of the line before it."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {each.format(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, 9)]
    return "\n".join(lines).encode()


BOMBS = {
    "lists": multiplied("[[x]]", "[{}]"),
    "mappings": multiplied("{k: v}", "{{k: [{}]}}"),
    "merged": multiplied("{k: v, l: w, m: x}", "{{<<: [{}]}}"),
    "texts": b"a: &a " + b"x" * 10_000 + b"\nb: [" + b"*a, " * 100 + b"]",
    "nothing": b"a: &a [" + b"''," * 10_000 + b"]\nb: [" + b"*a, " * 1000 + b"]",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_alias_bombs_are_refused(bomb: str) -> None:
    began = time.thread_time()
    assert code(BOMBS[bomb]) == (413, "TooLarge")
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("opened", [b"[", b"{a: ", b"- ", b"? "])
def test_deep_nesting_is_refused(opened: bytes) -> None:
    assert code(b"x:\n " + opened * (600_000 // len(opened))) == (400, "TooDeep")


def test_a_value_that_contains_itself_is_refused() -> None:
    assert code(b"a: &a [*a]") == (400, "TooDeep")


def test_aliases_and_merge_keys_are_expanded() -> None:
    text = b"base: &base {a: 1, b: [x]}\nown: {<<: *base, a: 2}\nsame: [*base, *base]\n"
    base = {"a": 1, "b": ["x"]}
    assert yaml_json.parse_document(text) == {"base": base, "own": {"a": 2, "b": ["x"]}, "same": [base, base]}


@pytest.mark.parametrize("number", [b"1" + b":1" * 100_000, b"9" * 100_000, b"0x" + b"f" * 500])
def test_long_numbers_are_refused(number: bytes) -> None:
    began = time.thread_time()
    assert code(b"a: " + number) == (400, "Undecodable")
    assert time.thread_time() - began < 5


def test_dates_in_yaml_stay_text() -> None:
    text = b"kind: Application\nmetadata: {name: shop, labels: {since: 2024-01-01}}\nspec: {apps: []}\n"
    assert yaml_json.parse_document(text)["metadata"]["labels"] == {"since": "2024-01-01"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += places(value, (*at, key))
    return found


FULL = document(
    [{"resource": "cpu", "requests": 1, "limits": 2, "weight": 3}, {"label": "a", "value": "b"}],
    placement={"allOf": [{"label": {"region": "eu"}}], "anyOf": [{"cluster": "a/b"}, {"provider": "p"}]},
)
FULL["spec"]["apps"][0]["manifests"] = [
    manifest(
        initContainers=[{"name": "init", "restartPolicy": "Always", "resources": {"limits": {"cpu": 1}}}],
        nodeSelector={"a": "b"},
        tolerations=[{"key": "k", "operator": "Exists"}],
        overhead={"cpu": "10m"},
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}]
                }
            }
        },
    )
]
FULL["spec"]["affinity"] = [{"apart": ["web", "other"], "mandatory": False}]
FULL["spec"]["apps"].append({"name": "other", "manifests": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}]})  # fmt: skip


def accept_or_refuse(data: dict[str, Any]) -> None:
    """Anything but accepting it or refusing it as the sender's mistake raises."""
    try:
        accepted = validate.accept(data, {})
        if isinstance(accepted, Accepted):
            change = apply_document(None, accepted, data, [], "now")
            assert msgspec.json.decode(msgspec.json.encode(change.record))
    except Refused as refusal:
        assert 400 <= refusal.problem.status < 500
        assert msgspec.json.encode(refusal.problem)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), value=JSON)
def test_junk_anywhere_is_accepted_or_refused(data: st.DataObject, value: Any) -> None:
    junk = copy.deepcopy(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        all_places = places(junk)
        if not all_places:
            break
        *steps, last = data.draw(st.sampled_from(all_places))
        node: Any = junk
        for step in steps:
            node = node[step]
        if data.draw(st.booleans()) and isinstance(node, dict):
            node[data.draw(st.text(max_size=5))] = copy.deepcopy(value)
        else:
            node[last] = copy.deepcopy(value)
    accept_or_refuse(junk)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(["HpaIntent", "PlacementIntent", "AffinityIntent", "Own"]), spec=JSON, metadata=JSON)
def test_junk_intents_are_accepted_or_refused(kind: str, spec: Any, metadata: Any) -> None:
    data = {"kind": kind, "metadata": metadata, "spec": spec}
    try:
        validate.accept(data, {"Own": [{"type": "object", "properties": {"a": {"$ref": "http://localhost:1/x"}}}]})
    except Refused as refusal:
        assert refusal.problem.status == 400


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_junk_bytes_are_read_or_refused(text: bytes) -> None:
    try:
        assert isinstance(yaml_json.parse_document(text), dict)
    except Refused as refusal:
        assert 400 <= refusal.problem.status < 500


def test_wrong_types_are_named_in_words() -> None:
    messages = {
        e.path: e.message for e in refusal(document([{"resource": "cpu", "requests": 1, "weight": 5.5}])).errors
    }
    assert messages == {f"{NEED}.weight": "must be a whole number, not a number"}
    messages = {e.path: e.message for e in refusal(document([{"resource": "cpu", "requests": [1]}])).errors}
    assert messages == {f"{NEED}.requests": "must be a number or text, not a list"}
