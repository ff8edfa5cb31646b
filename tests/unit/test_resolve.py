"""Revisions: shapes as Kubernetes' scheduler counts pods, after the group's needs have replaced values of the manifests."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import moorage.cli.example
from moorage.intents.core import transitions, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import Accepted, AcceptedIntent
from moorage.model.documents import HpaIntentSpec, PlacementIntentSpec
from moorage.model.groups import Revision
from moorage.model.problems import Problem, Refused
from moorage.model.shapes import EXCLUSIVE, NeedRef, OptionalNeed, Requirement, Shape, Toleration
from moorage.parsing import yaml_json
from moorage.podspec import ports_in

EXAMPLE = (Path(next(iter(moorage.cli.example.__path__))) / "application.yaml").read_bytes()


def accept(data: dict[str, Any]) -> Accepted:
    found = validate.accept(data, {})
    assert isinstance(found, Accepted)
    return found


def manifest(kind: str = "Deployment", spec: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    groups = {"Job": "batch/v1", "CronJob": "batch/v1", "Pod": "v1", "ReplicationController": "v1"}
    inner = {"containers": [{"name": "main"}], **pod}
    found: dict[str, Any] = {"apiVersion": groups.get(kind, "apps/v1"), "kind": kind, "metadata": {"name": "x"}}
    work = {**(spec or {}), "template": {"spec": inner}}
    found["spec"] = inner if kind == "Pod" else {"jobTemplate": {"spec": work}} if kind == "CronJob" else work
    return found


def ref(of: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": of["apiVersion"], "kind": of["kind"], "name": of["metadata"]["name"]}


def revision(
    manifests: list[dict[str, Any]], consumers: list[dict[str, Any]], attached: list[Any] | None = None, **app: Any
) -> Revision:
    spec = {"apps": [{"name": "web", "manifests": manifests, "consumers": consumers, **app}]}
    given = accept({"kind": "Application", "metadata": {"name": "shop"}, "spec": spec})
    own = [validate.intent(a, {}) for a in attached or ()]
    return resolve(given, own)


def shape(of: dict[str, Any], *needs: dict[str, Any], container: str = "main", **consumer: Any) -> Shape:
    consumers = [{"object": ref(of), "container": container, "needs": list(needs), **consumer}]
    (found,) = revision([of], consumers if needs or consumer else []).apps[0].shapes
    return found


def refusal(*args: Any, **kwargs: Any) -> Problem:
    with pytest.raises(Refused) as caught:
        revision(*args, **kwargs)
    return caught.value.problem


def resources(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


CPU4 = {"resource": "cpu", "requests": 4, "limits": 4}
GB = {"resource": "memory", "requests": 1000, "limits": 1000, "units": "MB"}


def test_the_usage_example() -> None:
    found = resolve(accept(yaml_json.parse_document(EXAMPLE)))
    assert (found.group, found.tenant, found.warnings) == ("default/app1/v1/default", "default", [])
    fwall, analytics = found.apps
    assert [(a.name, a.replicas) for a in found.apps] == [("fwall", 1), ("analytics", 1)]
    core_fwall, api_server = fwall.shapes
    assert core_fwall.object == "StatefulSet/core-fwall"
    assert core_fwall.resources == {"cpu": 4000, "memory": 10**9, EXCLUSIVE: 4, "pods": 1}
    gpu = OptionalNeed(consumer="core-fwall", name="nvidia.com/gpu", weight=9, resources={"nvidia.com/gpu": 1})
    assert core_fwall.optional == [gpu]
    assert core_fwall.needs == [
        NeedRef(consumer="core-fwall", name="cpu", amount=4000),
        NeedRef(consumer="core-fwall", name="memory", amount=10**9),
        NeedRef(consumer="core-fwall", name=EXCLUSIVE, amount=4),
    ]
    assert (api_server.object, api_server.resources) == (
        "Deployment/api-server",
        {"cpu": 1000, "memory": 2 * 10**8, "pods": 1},
    )
    ai_model, logger = analytics.shapes
    assert (ai_model.object, ai_model.resources) == ("StatefulSet/ai-model", {"cpu": 2000, "pods": 1})
    assert (logger.object, logger.resources) == ("Deployment/logger", {"intel.com/qat": 1, "pods": 1})
    assert all(s.count == 1 and not s.terms and not s.optional for s in (api_server, ai_model, logger))
    assert [s.surge for s in (core_fwall, api_server, ai_model, logger)] == [0, 1, 0, 1]
    assert len({s.key for a in found.apps for s in a.shapes}) == 4
    specs = {i.name: msgspec.json.decode(i.spec, type=HpaIntentSpec) for i in found.intents}
    assert [c.name for c in specs["fwall"].consumers] == ["core-fwall", "api-server"]


def test_the_example_costs_less_than_a_millisecond() -> None:
    text = msgspec.json.encode(yaml_json.parse_document(EXAMPLE))

    def once() -> bytes:
        data = yaml_json.parse_document(text)
        return msgspec.json.encode(transitions.apply_document(None, accept(data), data, [], "now").record)

    once()
    best = 1.0
    for _ in range(20):
        start = time.thread_time()
        for _ in range(5):
            once()
        best = min(best, (time.thread_time() - start) / 5)
    assert best < 1e-3


@pytest.mark.parametrize(
    ("kind", "spec", "count", "per_node", "surge", "unavailable"),
    [
        ("Deployment", {}, 1, False, 1, 0),
        ("Deployment", {"replicas": 10}, 10, False, 3, 2),
        ("Deployment", {"replicas": 4}, 4, False, 1, 1),
        ("Deployment", {"replicas": 4, "strategy": {"rollingUpdate": {"maxSurge": 2}}}, 4, False, 2, 1),
        ("Deployment", {"replicas": 3, "strategy": {"rollingUpdate": {"maxSurge": "50%"}}}, 3, False, 2, 0),
        ("Deployment", {"replicas": 3, "strategy": {"rollingUpdate": {"maxUnavailable": "50%"}}}, 3, False, 1, 1),
        ("Deployment", {"replicas": 3, "strategy": {"rollingUpdate": {"maxUnavailable": 2}}}, 3, False, 1, 2),
        ("Deployment", {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}, 1, False, 0, 1),
        ("Deployment", {"replicas": 3, "strategy": {"type": "Recreate"}}, 3, False, 0, 1),
        ("StatefulSet", {"replicas": 3}, 3, False, 0, 1),
        ("ReplicaSet", {"replicas": 2}, 2, False, 0, 1),
        ("ReplicationController", {"replicas": 2}, 2, False, 0, 1),
        ("DaemonSet", {}, 1, True, 0, 1),
        ("DaemonSet", {"updateStrategy": {"type": "OnDelete"}}, 1, True, 0, 1),
        ("DaemonSet", {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, 1, True, 1, 0),
        ("DaemonSet", {"updateStrategy": {"rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}}, 1, True, 1, 0),
        ("Job", {}, 1, False, 0, 1),
        ("Job", {"parallelism": 5}, 5, False, 0, 1),
        ("Job", {"parallelism": 5, "completions": 2}, 2, False, 0, 1),
        ("CronJob", {"parallelism": 3}, 3, False, 0, 1),
        ("Pod", {}, 1, False, 0, 1),
    ],
)
def test_counts_and_surges_of_all_kinds(
    kind: str, spec: dict[str, Any], count: int, per_node: bool, surge: int, unavailable: int
) -> None:
    found = shape(manifest(kind, spec), {"resource": "cpu", "requests": 2})
    assert (found.object, found.count, found.per_node) == (f"{kind}/x", count, per_node)
    assert (found.surge, found.unavailable) == (surge, unavailable)
    assert found.resources == {"cpu": 2000, "pods": 1}


def test_replicas_of_a_consumer_replace_those_of_the_manifest() -> None:
    of = manifest("Deployment", {"replicas": 2})
    assert shape(of, replicas=8).count == 8 and shape(of, replicas=8).surge == 2
    two = [{"object": ref(of), "replicas": n} for n in (3, 4)]
    assert refusal([of], two).code == "ReplicasConflict"


def test_objects_without_pods_have_no_shape() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    stranger = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": {"tasks": 1},
    }
    found = revision([service, stranger, manifest("Deployment", {"replicas": 0})], [])
    assert found.apps[0].shapes == []


def test_init_containers_sidecars_and_overhead_count_as_in_kubernetes() -> None:
    of = manifest(
        containers=[
            {"name": "a", **resources({"cpu": 1, "memory": "1Gi"})},
            {"name": "b", **resources({"cpu": "500m"})},
        ],
        initContainers=[
            {"name": "first", **resources({"cpu": 3})},
            {"name": "side", "restartPolicy": "Always", **resources({"cpu": 1, "memory": "1Gi"})},
            {"name": "second", **resources({"cpu": 1, "memory": "4Gi"})},
        ],
        overhead={"cpu": "250m"},
    )
    # first: 3; second beside side: 2 and 5Gi; afterwards a + b + side: 2.5 and 2Gi.
    assert shape(of).resources == {"cpu": 3250, "memory": 5 << 30, "pods": 1}
    assert shape(of, {"resource": "cpu", "requests": 2}, container="a").resources["cpu"] == 3750
    assert shape(of, {"resource": "cpu", "requests": 1}, container="first").resources["cpu"] == 2750


def test_limits_are_requests_where_none_are_given() -> None:
    of = manifest(containers=[{"name": "main", **resources({"cpu": 1}, {"cpu": 2, "memory": "1Gi", "a.b/c": 2})}])
    assert shape(of).resources == {"a.b/c": 2, "cpu": 1000, "memory": 1 << 30, "pods": 1}
    assert shape(of, {"resource": "a.b/c", "limits": 3}).resources["a.b/c"] == 3
    assert shape(of).needs == [
        NeedRef(consumer="", name="a.b/c", amount=2),
        NeedRef(consumer="", name="cpu", amount=1000),
        NeedRef(consumer="", name="memory", amount=1 << 30),
    ]


def test_requests_above_a_limit_of_the_manifest_raise_it() -> None:
    of = manifest(containers=[{"name": "main", **resources({}, {"cpu": 2, "memory": "1Gi"})}])
    assert shape(of, {"resource": "cpu", "requests": 3}).resources == {"cpu": 3000, "memory": 1 << 30, "pods": 1} | {
        EXCLUSIVE: 3  # the pod is Guaranteed then
    }


def test_needed_labels_are_required_in_every_term() -> None:
    node = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
            {},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        ]
    }
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": node}}
    selector = Requirement(key="disk", operator="In", values=("ssd",))
    label = Requirement(key="avx", operator="In", values=("true",))
    wanted = {"label": "avx", "value": True}
    assert shape(manifest(nodeSelector={"disk": "ssd"}, affinity=affinity), wanted).terms == [
        [selector, Requirement(key="zone", operator="In", values=("a", "b")), label],
        [selector, Requirement(key="metadata.name", operator="In", values=("n1",)), label],
    ]
    assert shape(manifest(nodeSelector={"disk": "ssd"}), wanted).terms == [[selector, label]]
    assert shape(manifest(), wanted).terms == [[label]]
    assert shape(manifest(), wanted).needs == [NeedRef(consumer="x", name="avx", label=("avx", "true"))]
    node["nodeSelectorTerms"] = [{}]  # in Kubernetes it matches no node
    (term,) = shape(manifest(affinity=affinity)).terms
    assert term == [Requirement(key="metadata.name", operator="In", values=())]
    assert shape(manifest(nodeName="n7")).terms == [[Requirement(key="metadata.name", operator="In", values=("n7",))]]


def test_tolerations_come_from_the_manifest_and_the_daemonset_controller() -> None:
    given = [{"key": "k", "operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoSchedule"}]
    assert shape(manifest(tolerations=given)).tolerations == [
        Toleration(key="k", operator="Exists"),
        Toleration(key="k", value="v", effect="NoSchedule"),
    ]
    assert any(t.key == "node.kubernetes.io/unschedulable" for t in shape(manifest("DaemonSet")).tolerations)


def test_optional_needs_require_nothing() -> None:
    of = manifest(containers=[{"name": "main", **resources({"cpu": 1})}])
    found = shape(
        of,
        {"resource": "cpu", "requests": "2500m", "weight": 3},
        {"resource": "nvidia.com/gpu", "limits": 1, "mandatory": False},
        {"label": "ssd", "value": "true", "mandatory": False, "weight": 10},
        {"resource": "memory", "requests": 1, "mandatory": True, "weight": 5},
    )
    assert found.resources == {"cpu": 1000, "memory": 10**6, "pods": 1} and found.terms == []
    assert found.optional == [
        OptionalNeed(consumer="x", name="cpu", weight=3, resources={"cpu": 1500}),
        OptionalNeed(consumer="x", name="nvidia.com/gpu", weight=1, resources={"nvidia.com/gpu": 1}),
        OptionalNeed(consumer="x", name="ssd", weight=10, label=("ssd", "true")),
    ]


def test_optional_needs_add_to_mandatory_ones_and_replace_the_manifests() -> None:
    gpus = {"resource": "nvidia.com/gpu", "requests": 1, "limits": 4}
    found = shape(manifest(), gpus, {**gpus, "weight": 5})
    assert found.resources["nvidia.com/gpu"] == 1  # of counted resources Kubernetes gives exactly what is requested
    assert found.optional[0].resources == {"nvidia.com/gpu": 1}
    less = manifest(containers=[{"name": "main", **resources({"cpu": 4})}])
    assert shape(less, {"resource": "cpu", "requests": 2, "weight": 1}).optional[0].resources == {}


def test_exclusive_cores_take_an_integer_cpu_need_of_a_guaranteed_container() -> None:
    assert shape(manifest(), CPU4, GB).resources[EXCLUSIVE] == 4
    limits_only: list[dict[str, Any]] = [{"resource": "cpu", "limits": 2}, {"resource": "memory", "limits": "1Gi"}]
    assert shape(manifest(), *limits_only).resources[EXCLUSIVE] == 2
    loose: list[list[dict[str, Any]]] = [
        [CPU4],
        [CPU4, {"resource": "memory", "requests": 1}],
        [{"resource": "cpu", "requests": 4}, GB],
        [{"resource": "cpu", "requests": "1500m", "limits": "1500m"}, GB],
        [{"resource": "cpu", "requests": 1, "limits": 2}, GB],
    ]
    for needs in loose:
        assert EXCLUSIVE not in shape(manifest(), *needs).resources
    # Memory may come from the manifest; cores that no need asks for stay ordinary requests.
    whole = manifest(containers=[{"name": "main", **resources({}, {"cpu": 2, "memory": "1Gi"})}])
    assert shape(whole, CPU4).resources[EXCLUSIVE] == 4
    assert EXCLUSIVE not in shape(whole).resources


def test_all_exclusive_cores_of_a_pod_count_once_a_need_asks_for_some() -> None:
    two = resources({}, {"cpu": 2, "memory": "1Gi"})
    beside = manifest(containers=[{"name": "main"}, {"name": "other", **two}])
    assert shape(beside, CPU4, GB).resources[EXCLUSIVE] == 6
    sidecar = manifest(initContainers=[{"name": "side", "restartPolicy": "Always", **two}])
    assert shape(sidecar, CPU4, GB).resources[EXCLUSIVE] == 6
    first = manifest(containers=[{"name": "main", **two}], initContainers=[{"name": "init"}])
    eight = {"resource": "cpu", "requests": 8, "limits": 8}
    assert shape(first, eight, GB, container="init").resources[EXCLUSIVE] == 8, "its cores are used again by the rest"


def test_an_optional_need_for_whole_cores_is_one_for_exclusive_cores() -> None:
    wish = {"resource": "cpu", "requests": 6, "limits": 6, "mandatory": False, "weight": 5}
    found = shape(manifest(), wish, GB)
    assert EXCLUSIVE not in found.resources
    assert [o.resources for o in found.optional] == [{"cpu": 6000, EXCLUSIVE: 6}]
    (wider,) = shape(manifest(), CPU4, wish, GB).optional
    assert wider.resources == {"cpu": 6000, EXCLUSIVE: 6}
    (loose,) = shape(manifest(), wish).optional
    assert loose.resources == {"cpu": 6000}


def test_the_spelling_of_a_need_does_not_change_the_template() -> None:
    cpu, wish = {"resource": "cpu", "requests": 1}, {"resource": "x/y", "requests": 1, "weight": 3}
    plain = shape(manifest(), cpu, GB, wish).template
    giga = {"resource": "memory", "requests": "1G", "limits": "1G"}
    assert shape(manifest(), giga, wish | {"weight": 4}, cpu | {"name": "its-own", "mandatory": True}).template == plain
    assert shape(manifest(), cpu | {"requests": 2}, GB, wish).template != plain
    assert shape(manifest(), cpu | {"limits": 1}, GB, wish).template != plain
    assert shape(manifest(), cpu, GB, wish | {"requests": 2}).template != plain
    label = {"label": "a", "value": "b", "weight": 1}
    assert shape(manifest(), label).template != shape(manifest(), label | {"weight": 2}).template


def test_requests_of_the_pod_itself_count() -> None:
    whole = manifest(containers=[{"name": "main", **resources({"cpu": 1})}], **resources({"cpu": 4}, {"memory": "1Gi"}))
    assert shape(whole).resources == {"cpu": 4000, "memory": 1 << 30, "pods": 1}
    assert shape(whole, {"resource": "cpu", "requests": 5}).resources["cpu"] == 5000


def test_the_count_of_a_job_is_its_parallelism() -> None:
    job = manifest("Job", {"parallelism": 3})
    assert shape(job, CPU4, replicas=1).count == 3


def test_a_container_that_is_not_guaranteed_costs_the_pod_its_exclusive_cores() -> None:
    of = manifest(containers=[{"name": "main"}, {"name": "proxy", **resources({"cpu": "100m"})}])
    found = revision([of], [{"object": ref(of), "container": "main", "needs": [CPU4, GB]}])
    assert EXCLUSIVE not in found.apps[0].shapes[0].resources
    assert [w.code for w in found.warnings] == ["NotGuaranteed"] and "proxy" in found.warnings[0].message


@pytest.mark.parametrize(
    ("requests", "needs", "lacks"),
    [
        ({}, [{"resource": "PCPU", "requests": 2}], "requests and limits"),
        ({"cpu": "500m", "memory": "1Gi"}, [{"resource": "PCPU", "requests": 1}, {"resource": "cpu", "requests": "500m", "limits": "500m"}], "whole cores"),
        ({"memory": "1Gi"}, [{"resource": "PCPU", "requests": 2}], ""),
        ({}, [{"resource": "VCPU", "requests": 2}], ""),
    ],
)  # fmt: skip
def test_containers_that_ask_for_dedicated_cores_and_get_none_are_told(
    requests: dict[str, str], needs: list[dict[str, Any]], lacks: str
) -> None:
    of = manifest(containers=[{"name": "main", **resources(requests, requests)}])
    found = revision([of], [{"object": ref(of), "container": "main", "needs": [need]} for need in needs])
    assert [w.code for w in found.warnings] == (["NotDedicated"] if lacks else [])
    assert not lacks or lacks in found.warnings[0].message


def test_a_gate_is_part_of_the_template() -> None:
    def template(steering: str | None, kind: str = "Deployment") -> str:
        of = manifest(kind)
        return revision([of], [], None, **({"steering": steering} if steering else {})).apps[0].shapes[0].template

    assert template(None) == template("preferred") == template("required") != template("pinned")
    assert template("pinned", "DaemonSet") == template(None, "DaemonSet")


def test_needs_of_several_consumers_of_one_object_add_up() -> None:
    of = manifest(containers=[{"name": "a"}, {"name": "b"}])
    consumers = [
        {"name": "one", "object": ref(of), "container": "a", "needs": [{"resource": "cpu", "requests": 1}]},
        {"name": "two", "object": ref(of), "container": "b", "needs": [{"resource": "cpu", "requests": 2}]},
        {"name": "three", "object": ref(of), "container": "b", "needs": [{"resource": "cpu", "requests": "500m"}]},
        {"name": "four", "object": ref(of), "needs": [{"label": "a", "value": "b"}]},
    ]
    (found,) = revision([of], consumers).apps[0].shapes
    assert found.resources == {"cpu": 3500, "pods": 1}
    assert [n.consumer for n in found.needs] == ["one", "two", "three", "four"]


def test_a_consumer_that_matches_nothing_is_answered_with_what_there_is() -> None:
    of = manifest()
    wrong = [
        {"object": {**ref(of), "name": "y"}},
        {"object": {**ref(of), "kind": "StatefulSet"}},
        {"object": ref(of), "container": "nginx"},
    ]
    problem = refusal([of], wrong)
    assert (problem.status, problem.code) == (409, "ConsumerMatchesNothing")
    assert [e.path for e in problem.errors] == [
        "spec.apps[0].consumers[0].object",
        "spec.apps[0].consumers[1].object",
        "spec.apps[0].consumers[2].container",
    ]
    assert "Deployment/x (apps/v1)" in problem.errors[0].message and "has main" in problem.errors[2].message
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    assert "has no pods" in refusal([service], [{"object": ref(service)}]).detail
    assert "no manifests" in refusal([], [{"object": ref(service)}]).detail


@pytest.mark.parametrize(
    "given", [{}, {"kind": "Deployment"}, {"apiVersion": "apps/v1"}, {"apiVersion": "apps/v1", "kind": "Deployment"}]
)
def test_a_name_that_one_object_has_is_enough(given: dict[str, str]) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    consumer = {"object": {"name": "x", **given}, "container": "main", "needs": [CPU4]}
    attached = own("HpaIntent", "h", app="web", consumers=[{**consumer, "name": "second"}])
    found = revision([manifest(), service], [consumer], [attached])
    assert found.apps[0].shapes[0].resources["cpu"] == 8000 and found.warnings == []
    for intent in found.intents:  # who reads an intent needs no manifests to know the object
        (kept,) = msgspec.json.decode(intent.spec, type=HpaIntentSpec).consumers
        assert msgspec.to_builtins(kept.object) == ref(manifest())


def test_another_api_version_is_a_warning() -> None:
    found = revision(
        [manifest()], [{"object": {**ref(manifest()), "apiVersion": "v19"}, "container": "main", "needs": [CPU4]}]
    )
    assert found.apps[0].shapes[0].resources["cpu"] == 4000
    (warning,) = found.warnings
    assert warning.code == "ApiVersionDiffers" and "v19" in warning.message and "apps/v1" in warning.message


def test_a_name_that_several_objects_have_needs_their_kind() -> None:
    both = [manifest(), manifest("StatefulSet")]
    problem = refusal(both, [{"object": {"name": "x"}}])
    assert (problem.status, problem.code) == (409, "ConsumerAmbiguous")
    assert "Deployment/x (apps/v1), StatefulSet/x (apps/v1)" in problem.detail
    assert len(revision(both, [{"object": {"name": "x", "kind": "StatefulSet"}}]).apps[0].shapes) == 2


def test_an_object_without_pods_that_is_named_exactly_stands_for_no_other() -> None:
    other = {"apiVersion": "batch.example.com/v1", "kind": "Job", "metadata": {"name": "x"}}
    objects = [manifest("Job"), other]
    assert "which has no pods" in refusal(objects, [{"object": ref(other)}]).detail
    assert revision(objects, [{"object": {"name": "x"}}]).warnings == []


def test_replicas_of_an_object_without_them_are_refused_whether_its_kind_is_given_or_not() -> None:
    problem = refusal([manifest("DaemonSet")], [{"object": {"name": "x"}, "replicas": 2}])
    assert (problem.code, problem.errors[0].path) == ("NotReplicated", "spec.apps[0].consumers[0].replicas")


def test_two_optional_values_of_one_label_are_alternatives() -> None:
    needs = [{"label": "isa", "value": v, "weight": w} for v, w in (("avx512", 9), ("avx2", 3))]
    found = shape(manifest(), *needs)
    assert [(o.label, o.weight) for o in found.optional] == [(("isa", "avx512"), 9), (("isa", "avx2"), 3)]


def own(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": {"group": "shop", **spec}}


def test_replicas_come_from_the_app_or_its_sets() -> None:
    def sets(*counts: int) -> list[Any]:
        return [
            own("PlacementIntent", "p", app="web", sets=[{"count": c, "anyOf": [{"provider": "lab"}]} for c in counts])
        ]

    assert revision([], []).apps[0].replicas == 1
    assert revision([], [], replicas=4).apps[0].replicas == 4
    assert revision([], [], sets(2, 3)).apps[0].replicas == 5
    assert revision([], [], sets(2, 0)).apps[0].replicas == 0  # as many as the sets select
    assert revision([], [], sets(2, 3), replicas=5).warnings == []
    found = revision([], [], sets(2, 3), replicas=2)
    assert (found.apps[0].replicas, [w.code for w in found.warnings]) == (2, ["ReplicasConflict"])


def test_parts_of_an_application_become_intents() -> None:
    of = manifest()
    given = {
        "kind": "Application",
        "metadata": {"name": "shop"},
        "spec": {
            "apps": [
                {"name": "web", "manifests": [of], "placement": {"allOf": [{"label": {"region": "eu"}}]}},
                {"name": "db"},
            ],
            "affinity": [{"apart": ["web", "db"], "mandatory": False}],
        },
    }
    found = resolve(accept(given), [validate.intent(own("HpaIntent", "h", app="db"), {})])
    assert [(i.kind, i.name) for i in found.intents] == [
        ("PlacementIntent", "web"),
        ("AffinityIntent", "shop"),
        ("HpaIntent", "h"),
    ]
    placement = msgspec.json.decode(found.intents[0].spec, type=PlacementIntentSpec)
    assert (placement.group, placement.app, placement.all_of[0].label) == (found.group, "web", {"region": "eu"})


@pytest.mark.parametrize(
    "intent",
    [
        own("HpaIntent", "h", app="nowhere"),
        own("PlacementIntent", "p", app="nowhere"),
        own("AffinityIntent", "a", rules=[{"apart": ["web", "nowhere"]}]),
    ],
    ids=lambda i: str(i["kind"]),
)
def test_intents_for_an_unknown_app_are_refused(intent: dict[str, Any]) -> None:
    problem = refusal([], [], [intent])
    assert (problem.status, problem.code) == (409, "UnknownApp")
    assert "nowhere" in problem.detail and problem.errors[0].path.startswith(f"{intent['kind']}/")


def test_host_ports_are_needs_of_the_pod() -> None:
    port, taken = {"containerPort": 80}, {"containerPort": 80, "hostPort": 8080, "hostIP": "1.1.1.1", "protocol": "UDP"}
    starting = {"name": "i", "ports": [{"containerPort": 1, "hostPort": 7}]}
    sidecar = {**starting, "name": "s", "restartPolicy": "Always"}
    for fields, ports in (
        ({"containers": [{"name": "main", "ports": [port]}]}, []),
        ({"containers": [{"name": "main", "ports": [taken]}]}, ["1.1.1.1:8080/UDP"]),
        ({"containers": [{"name": "main", "ports": [port]}], "hostNetwork": True}, ["80/TCP"]),
        ({"initContainers": [starting]}, []),
        ({"initContainers": [sidecar]}, ["7/TCP"]),
    ):
        found = revision([manifest(**fields)], [])
        assert not found.warnings
        assert ports_in(found.apps[0].shapes[0].resources) == ports
        assert not any("port" in need.name for need in found.apps[0].shapes[0].needs)


def test_a_host_port_that_cannot_be_is_refused() -> None:
    port = {"containerPort": 1, "hostPort": 70000}
    problem = refusal([manifest(containers=[{"name": "main", "ports": [port]}])], [])
    assert problem.errors[0].path.endswith("spec.template.spec.containers[0].ports[0].hostPort")


def workload(
    name: str, labels: dict[str, str], kind: str = "Deployment", namespace: str = "", **pod: Any
) -> dict[str, Any]:
    made = manifest(kind, {}, **pod)
    made["metadata"] = {"name": name, **({"namespace": namespace} if namespace else {})}
    made["spec"]["template"]["metadata"] = {"labels": labels}
    return made


def required(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


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
