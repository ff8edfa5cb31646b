"""Tests consumers and their needs: which object they mean, how their needs add up, and host ports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.model.documents import HpaIntentSpec, PlacementIntentSpec
from moorage.podspec import ports_in

from .documents import CPU4, accept, manifest, own, ref, refusal, revision, shape


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
