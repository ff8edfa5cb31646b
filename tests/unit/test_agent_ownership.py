"""Tests which objects an agent recognises as its own although no record names them: never a copy."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.agent.core.owned_objects import APP_LABEL, MARK, OWNER, Ref, is_listed, label_of, mark_of, owned_object
from moorage.kube import ApiResource

GROUP, APP = "p/shop/v1/default", "web"
SERVICE = ApiResource("v1", "Service", "services", True, True)
KNATIVE = ApiResource("serving.knative.dev/v1", "Service", "services", True, True)
SCALER = ApiResource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, True)
ROLE = ApiResource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False, True)


def made(kind: ApiResource, name: str, namespace: str = "", *, by: str = "one") -> dict[str, Any]:
    mark = mark_of(by, kind, namespace or "default", name)
    meta = {"name": name, "labels": {APP_LABEL: label_of(GROUP, APP)}, "annotations": {OWNER: f"{GROUP} {APP}", MARK: mark}}  # fmt: skip
    return {"metadata": {**meta, **({"namespace": namespace} if namespace else {})}}


def test_what_was_made_here_is_found() -> None:
    found = owned_object("one", SERVICE, made(SERVICE, "s", "shop"))
    assert found == (GROUP, APP, Ref("v1", "Service", "shop", "s"))
    found = owned_object("one", ROLE, made(ROLE, "r"))
    assert found == (GROUP, APP, Ref(ROLE.api_version, "ClusterRole", "default", "r"))


def test_all_versions_of_a_kind_show_the_same_object() -> None:
    older = SCALER._replace(api_version="autoscaling/v1")
    found = owned_object("one", older, made(SCALER, "s", "shop"))
    assert found is not None and is_listed([Ref(SCALER.api_version, SCALER.kind, "shop", "s")], older, found.ref)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "copy"},
        {"namespace": "elsewhere"},
        {"labels": {}},
        {"labels": {APP_LABEL: "another"}},
        {"annotations": None},
        {"annotations": {OWNER: f"{GROUP} {APP}"}},
    ],
)
def test_a_copy_is_somebody_elses(change: dict[str, Any]) -> None:
    obj = made(SERVICE, "s", "shop")
    obj["metadata"] |= change
    assert owned_object("one", SERVICE, obj) is None


def test_what_another_agent_or_another_kind_has_is_not_ours() -> None:
    assert owned_object("one", SERVICE, made(SERVICE, "s", "shop", by="two")) is None
    assert owned_object("one", KNATIVE, made(SERVICE, "s", "shop")) is None


def test_objects_of_other_groups_and_places_are_other_objects() -> None:
    ref = Ref("v1", "Service", "shop", "s")
    assert is_listed([ref], SERVICE, ref)
    assert not is_listed([ref._replace(namespace="other"), ref._replace(name="t")], SERVICE, ref)
    assert not is_listed([Ref(KNATIVE.api_version, "Service", "shop", "s")], SERVICE, ref)
    role = Ref(ROLE.api_version, "ClusterRole", "default", "r")
    assert is_listed([role._replace(namespace="as-somebody-wrote-it")], ROLE, role)
