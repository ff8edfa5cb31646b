"""Tests the rules of pods about each other that manifests have, and what the key of a shape covers."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from moorage.intents.core import transitions, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import AcceptedIntent
from moorage.model.shapes import EXCLUSIVE, Shape
from moorage.parsing import yaml_json

from .documents import CPU4, EXAMPLE, accept, manifest, own, ref, refusal, required, revision, shape


def workload(
    name: str, labels: dict[str, str], kind: str = "Deployment", namespace: str = "", **pod: Any
) -> dict[str, Any]:
    made = manifest(kind, {}, **pod)
    made["metadata"] = {"name": name, **({"namespace": namespace} if namespace else {})}
    made["spec"]["template"]["metadata"] = {"labels": labels}
    return made


def selected(rule: dict[str, Any], *others: dict[str, Any], **pod: Any) -> tuple[list[str], list[str]]:
    """Returns the objects that a rule of the Deployment `own` selects, and the codes of warnings."""
    own = workload("own", {"app": "own"}, **rule, **pod)
    found = revision([own, *others], [])
    shapes = found.apps[0].shapes
    marks = {rule.pods for rule in shapes[0].rules if rule.pods}
    return [s.object.partition("/")[2] for s in shapes if marks & set(s.marks)], [w.code for w in found.warnings]


WEB, DB = workload("web", {"app": "web"}), workload("db", {"app": "db"}, namespace="data")
SAME = {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}


@pytest.mark.parametrize(
    ("term", "names", "codes"),
    [
        (SAME, ["own", "web"], []),
        ({**SAME, "namespaces": ["data"]}, ["db"], []),
        ({**SAME, "namespaces": ["default", "data"]}, ["own", "web", "db"], []),
        ({**SAME, "namespaces": ["data", "other"]}, ["db"], ["UnreportedPods"]),
        ({**SAME, "namespaceSelector": {}}, ["own", "web", "db"], ["UnreportedPods"]),
        (
            {**SAME, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "data"}}},
            ["db"],
            ["UnreportedPods"],
        ),
        ({**SAME, "namespaceSelector": {"matchLabels": {"team": "a"}}}, [], ["NotConsidered"]),
        ({**SAME, "matchLabelKeys": ["app"]}, ["own"], []),
        ({**SAME, "mismatchLabelKeys": ["app"]}, ["web"], []),
        ({**SAME, "matchLabelKeys": ["pod-template-hash"]}, ["own"], []),
        ({**SAME, "matchLabelKeys": ["absent"]}, ["own", "web"], []),
        ({"topologyKey": "zone", "labelSelector": {}}, ["own", "web"], ["UnreportedPods"]),
        ({"topologyKey": "zone"}, [], []),
        ({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "cache"}}}, [], ["UnreportedPods"]),
    ],
)
def test_selectors_of_anti_affinity_select_pods_of_the_group(
    term: dict[str, Any], names: list[str], codes: list[str]
) -> None:
    assert selected(required("podAntiAffinity", term), WEB, DB) == (names, codes)


def test_pods_of_affinity_match_all_terms() -> None:
    web = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "web"}}}
    assert selected(required("podAffinity", SAME, web), WEB) == (["web"], [])
    assert selected(required("podAntiAffinity", SAME, web), WEB) == (["own", "web"], [])


@pytest.mark.parametrize(
    ("constraint", "names", "codes"),
    [
        ({"labelSelector": {"matchLabels": {"app": "own"}}}, ["own"], []),
        ({"labelSelector": {"matchLabels": {"app": "db"}}}, [], ["UnreportedPods"]),
        ({"labelSelector": {}}, [], []),
        ({}, [], []),
        ({"labelSelector": SAME["labelSelector"], "matchLabelKeys": ["pod-template-hash"]}, ["own"], []),
        ({"labelSelector": SAME["labelSelector"], "whenUnsatisfiable": "ScheduleAnyway"}, [], []),
    ],
)
def test_spread_counts_pods_of_its_namespace(constraint: dict[str, Any], names: list[str], codes: list[str]) -> None:
    spread = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **constraint}
    assert selected({"topologySpreadConstraints": [spread]}, WEB, DB) == (names, codes)


def test_labels_that_differ_from_pod_to_pod_are_left_to_kubernetes() -> None:
    own = {"matchLabels": {"statefulset.kubernetes.io/pod-name": "own-0"}}
    rule = required("podAntiAffinity", {"topologyKey": "zone", "labelSelector": own})
    assert selected(rule, workload("web", {}, "StatefulSet")) == ([], ["NotConsidered"])


def test_rules_reach_across_apps_and_belong_to_the_key() -> None:
    rule = required("podAntiAffinity", {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}})
    own = workload("own", {"app": "own"}, **rule)

    def shapes(labels: dict[str, str]) -> list[Shape]:
        apps = [{"name": "a", "manifests": [own]}, {"name": "b", "manifests": [workload("web", labels)]}]
        found = resolve(accept({"kind": "Application", "metadata": {"name": "shop"}, "spec": {"apps": apps}}))
        return [shape for app in found.apps for shape in app.shapes]

    first, second = shapes({"app": "web"})
    assert first.rules[0].pods in second.marks and not first.marks
    alone, other = shapes({"app": "another"})
    assert not alone.rules and (alone.key, other.key) != (first.key, second.key)


def test_a_spread_without_a_skew_is_refused() -> None:
    spread = {"topologyKey": "zone", "maxSkew": 0, "whenUnsatisfiable": "DoNotSchedule"}
    problem = refusal([workload("own", {}, topologySpreadConstraints=[spread])], [])
    assert problem.errors[0].path.endswith("topologySpreadConstraints[0].maxSkew")


def test_items_of_lists_are_objects_of_the_app() -> None:
    found = revision([{"apiVersion": "v1", "kind": "List", "items": [manifest(), manifest("Pod")]}], [])
    assert [s.object for s in found.apps[0].shapes] == ["Deployment/x", "Pod/x"]


def test_the_key_covers_what_decides_and_the_template_what_runs() -> None:
    base = shape(manifest(), CPU4)
    assert shape(manifest(), CPU4) == base
    other_image = shape(manifest(containers=[{"name": "main", "image": "other"}]), CPU4)
    assert other_image.key == base.key and other_image.template != base.template
    more_pods = shape(manifest("Deployment", {"replicas": 2}), CPU4)
    assert more_pods.key != base.key and more_pods.template == base.template
    renamed = shape(manifest(), CPU4, name="another")
    assert (renamed.key, renamed.template) == (base.key, base.template)
    more_cpu = shape(manifest(), {**CPU4, "limits": 5})
    assert more_cpu.key == base.key and more_cpu.template != base.template  # the limit runs, but does not decide


def test_the_document_is_not_changed() -> None:
    data = yaml_json.parse_document(EXAMPLE)
    before = copy.deepcopy(data)
    given = accept(data)
    first = transitions.apply_document(None, given, data, [], "now").record
    assert data == before
    second = transitions.apply_document(None, accept(copy.deepcopy(data)), data, [], "now").record
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


def test_stored_intents_are_read_as_they_were_accepted() -> None:
    given = validate.intent(own("HpaIntent", "h", app="web"), {})
    assert isinstance(given, AcceptedIntent)
    again = validate.read_stored(msgspec.json.decode(msgspec.json.encode(given.document)))
    assert again == given


def test_limits_of_several_consumers_add_up_as_they_are_written_into_the_manifest() -> None:
    of = manifest()
    consumers = [
        {"name": "one", "object": ref(of), "container": "main", "needs": [CPU4, {"resource": "memory", "requests": 2}]},
        {
            "name": "two",
            "object": ref(of),
            "container": "main",
            "needs": [{"resource": "memory", "requests": 2, "limits": 3}],
        },
    ]
    (found,) = revision([of], consumers).apps[0].shapes
    assert found.resources[EXCLUSIVE] == 4  # memory is written with requests of 4 MB and a limit raised to them
