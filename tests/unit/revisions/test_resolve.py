"""Tests the shapes of revisions, as Kubernetes' scheduler counts pods, after the group's needs have replaced values of the manifests."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from moorage.intents.core import transitions
from moorage.intents.core.resolve import resolve
from moorage.model.documents import HpaIntentSpec
from moorage.model.shapes import EXCLUSIVE, NeedRef, OptionalNeed, Requirement, Toleration
from moorage.parsing import yaml_json

from .documents import CPU4, EXAMPLE, accept, manifest, ref, refusal, revision, shape


def resources(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


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
