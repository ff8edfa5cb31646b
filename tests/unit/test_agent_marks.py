"""Which objects an agent takes for its own though nobody wrote them down: never a copy, whoever made it."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.agent.app_records import APP_LABEL, OWNER, Ref, label_of, names
from moorage.agent.context import lost_of
from moorage.agent.fenced_configmap import FencedConfigMap
from moorage.agent.ownership import MARK, OwnershipContent, OwnershipRegistry
from moorage.kube import ApiResource

GROUP, APP = "p/shop/v1/default", "web"
SERVICE = ApiResource("v1", "Service", "services", True, True)
KNATIVE = ApiResource("serving.knative.dev/v1", "Service", "services", True, True)
SCALER = ApiResource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, True)
ROLE = ApiResource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False, True)


def marks(name: str = "one") -> OwnershipRegistry:
    made = OwnershipRegistry.__new__(OwnershipRegistry)
    made._sheet = FencedConfigMap("marks", OwnershipContent(id=name))
    return made


def made(kind: ApiResource, name: str, namespace: str = "", *, by: OwnershipRegistry | None = None) -> dict[str, Any]:
    mark = (by or marks()).of(kind, namespace or "default", name)
    meta = {"name": name, "labels": {APP_LABEL: label_of(GROUP, APP)}, "annotations": {OWNER: f"{GROUP} {APP}", MARK: mark}}  # fmt: skip
    return {"metadata": {**meta, **({"namespace": namespace} if namespace else {})}}


def test_what_was_made_here_is_found() -> None:
    lost = lost_of(marks(), SERVICE, made(SERVICE, "s", "shop"))
    assert lost == (GROUP, APP, Ref("v1", "Service", "shop", "s"))
    lost = lost_of(marks(), ROLE, made(ROLE, "r"))
    assert lost == (GROUP, APP, Ref(ROLE.api_version, "ClusterRole", "default", "r"))


def test_all_versions_of_a_kind_show_the_same_object() -> None:
    older = SCALER._replace(api_version="autoscaling/v1")
    lost = lost_of(marks(), older, made(SCALER, "s", "shop"))
    assert lost is not None and names([Ref(SCALER.api_version, SCALER.kind, "shop", "s")], older, lost.ref)


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
    assert lost_of(marks(), SERVICE, obj) is None


def test_what_another_agent_or_another_kind_has_is_not_ours() -> None:
    assert lost_of(marks(), SERVICE, made(SERVICE, "s", "shop", by=marks("two"))) is None
    assert lost_of(marks(), KNATIVE, made(SERVICE, "s", "shop")) is None


def test_names_of_other_groups_and_places_are_other_objects() -> None:
    ref = Ref("v1", "Service", "shop", "s")
    assert names([ref], SERVICE, ref)
    assert not names([ref._replace(namespace="other"), ref._replace(name="t")], SERVICE, ref)
    assert not names([Ref(KNATIVE.api_version, "Service", "shop", "s")], SERVICE, ref)
    role = Ref(ROLE.api_version, "ClusterRole", "default", "r")
    assert names([role._replace(namespace="as-somebody-wrote-it")], ROLE, role)
