"""Readiness of objects, derived from the status that their controllers write."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.agent.core.readiness import readiness_of


def obj(
    kind: str, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **meta: Any
) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"name": "x", "generation": 2, **meta},
        "spec": spec or {},
        "status": status or {},
    }


def cond(type: str, status: str = "True", **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": type, "status": status, **more}]}


ROLLED = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3}


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (obj("Deployment", {"replicas": 3}, ROLLED), "Ready", ""),
        (obj("Deployment", {"replicas": 3}, ROLLED | {"observedGeneration": 1}), "Progressing", "not seen"),
        (obj("Deployment", {"replicas": 3}), "Progressing", "not seen"),
        (obj("Deployment", {"replicas": 3}, ROLLED | {"replicas": 4}), "Progressing", "1 old"),
        (obj("Deployment", {"replicas": 3}, ROLLED | {"updatedReplicas": 1}), "Progressing", "1 of 3"),
        (obj("Deployment", {"replicas": 0}, {"observedGeneration": 2}), "Ready", ""),
        (
            obj("Deployment", {"replicas": 1}, ROLLED | cond("ReplicaFailure", message="exceeded quota")),
            "Failed",
            "quota",
        ),
        (
            obj("Deployment", {}, ROLLED | cond("Progressing", "False", reason="ProgressDeadlineExceeded")),
            "Failed",
            "Deadline",
        ),
        (obj("StatefulSet", {"replicas": 3}, ROLLED), "Ready", ""),
        (
            obj(
                "StatefulSet",
                {"replicas": 3},
                ROLLED | {"updateRevision": "b", "currentRevision": "a", "updatedReplicas": 1},
            ),
            "Progressing",
            "1 of 3",
        ),
        (obj("DaemonSet", {}, {"observedGeneration": 2, "desiredNumberScheduled": 0}), "Ready", ""),
        (
            obj(
                "DaemonSet",
                {},
                {
                    "observedGeneration": 2,
                    "desiredNumberScheduled": 2,
                    "updatedNumberScheduled": 2,
                    "numberAvailable": 1,
                },
            ),
            "Progressing",
            "1 of 2",
        ),
        (obj("Job", {}, {"ready": 1, "active": 1}), "Ready", ""),
        (obj("Job", {}, {"succeeded": 1} | cond("Complete")), "Ready", ""),
        (obj("Job", {}, cond("Failed", message="backoff limit")), "Failed", "backoff"),
        (
            obj("Pod", {}, {"phase": "Pending"} | cond("PodScheduled", "False", message="0/3 nodes")),
            "Progressing",
            "0/3",
        ),
        (obj("Pod", {}, {"phase": "Running"} | cond("Ready")), "Ready", ""),
        (obj("Pod", {}, {"phase": "Failed", "reason": "Evicted"}), "Failed", "Evicted"),
        (obj("CustomResourceDefinition", {}, cond("NamesAccepted", "False", message="taken")), "Failed", "taken"),
        (obj("Widget", {}, cond("Ready", "False", message="soon")), "Progressing", "soon"),
        (obj("Widget", {}, cond("Stalled", message="stuck")), "Failed", "stuck"),
        (obj("ConfigMap"), "Ready", ""),
        (obj("Service", deletionTimestamp="now"), "Progressing", "deleted"),
    ],
)
def test_standing(given: dict[str, Any], state: str, words: str) -> None:
    found = readiness_of(given)
    assert (found.state, words in found.message) == (state, True), found
