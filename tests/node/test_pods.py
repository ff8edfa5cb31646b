"""Roles, types and claims of pods are read from all places where they may stand; contradictions are told."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.node.pod_objects import convert_pod
from moorage.qos.messages import ContainerType


def _pod(annotations: dict[str, str], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"uid": "u", "name": "p", "annotations": annotations, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], **spec}}


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [
        ({"moorage.dev/pod-role": "ETL"}, {}),
        ({"kubernetes.io/pod-role": "ETL"}, {}),
        ({}, {"katalyst.kubewharf.io/pod_role": "ETL"}),
        ({"moorage.dev/pod-role": "ETL", "kubernetes.io/pod-role": "ETL"}, {"katalyst.kubewharf.io/pod_role": "ETL"}),
    ],
)
def test_a_role_is_read_wherever_it_stands(annotations: dict[str, str], labels: dict[str, str]) -> None:
    pod = convert_pod(_pod(annotations, labels))
    assert (pod.role, pod.problem) == ("ETL", "")


def test_two_roles_are_a_problem_that_names_both() -> None:
    pod = convert_pod(_pod({"moorage.dev/pod-role": "ETL", "kubernetes.io/pod-role": "reranker"}))
    assert pod.role == "" and "moorage.dev/pod-role says 'ETL'" in pod.problem and "'reranker'" in pod.problem


def test_a_static_pod_has_the_uid_that_the_runtime_knows() -> None:
    assert convert_pod(_pod({"kubernetes.io/config.hash": "abc"})).uid == "abc"


def test_containers_have_types_and_amounts() -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "1Gi"}}
    pod = convert_pod(
        _pod(
            {"kubernetes.io/main-container-name": "work"},
            containers=[{"name": "mesh"}, {"name": "work", "resources": resources}],
            initContainers=[{"name": "setup"}, {"name": "logs", "restartPolicy": "Always"}],
        )
    )
    assert [(c.name, c.type, c.restarts) for c in pod.containers] == [
        ("setup", ContainerType.INIT, False),
        ("logs", ContainerType.SIDECAR, True),
        ("mesh", ContainerType.SIDECAR, False),
        ("work", ContainerType.MAIN, False),
    ]
    assert pod.containers[3].requests == {"cpu": 1.5, "memory": float(1 << 30)} == pod.containers[3].limits


def test_a_main_container_that_does_not_exist_is_a_problem() -> None:
    assert "'nobody'" in convert_pod(_pod({"kubernetes.io/main-container-name": "nobody"})).problem


def test_an_amount_that_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        convert_pod(_pod({}, containers=[{"name": "c", "resources": {"requests": {"cpu": "many"}}}]))
