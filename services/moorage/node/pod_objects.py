"""Reads pods of Kubernetes as the agent admits them: roles, claims, and what each container asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from moorage.parsing import parse_amount
from moorage.qos.messages import ContainerSpec, ContainerType, PodSpec

MAIN_CONTAINER = "kubernetes.io/main-container-name"
#: The annotation of a mirror pod with the uid under which the kubelet runs the static pod.
STATIC_UID = "kubernetes.io/config.hash"
CLAIM = "moorage.dev/claim"
#: Where a role and a resource type may stand. The first is ours, the second older, the third a label of KubeWharf's Katalyst.
_ROLE = ("moorage.dev/pod-role", "kubernetes.io/pod-role", "katalyst.kubewharf.io/pod_role")
_TYPE = ("moorage.dev/resource-type", "kubernetes.io/resource-type", "katalyst.kubewharf.io/pod_type")
_ENDED = frozenset({"Succeeded", "Failed"})


class _Kube(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """Optional fields may be null, because servers write that for empty."""


class _Metadata(_Kube, kw_only=True, frozen=True):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Resources(_Kube, kw_only=True, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(_Kube, kw_only=True, frozen=True):
    name: str = ""
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Spec(_Kube, kw_only=True, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    host_network: bool | None = None


class _Status(_Kube, kw_only=True, frozen=True):
    phase: str | None = None
    qos_class: str | None = None


class PodObject(_Kube, kw_only=True, frozen=True):
    """The fields of a pod that admission needs."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status | None = None

    @property
    def ended(self) -> bool:
        return self.status is not None and self.status.phase in _ENDED

    @property
    def uid(self) -> str:
        """The uid under which the runtime knows the pod: that of a static pod is not its mirror's."""
        return (self.metadata.annotations or {}).get(STATIC_UID) or self.metadata.uid


decode_pod = msgspec.json.Decoder(PodObject).decode


def convert_pod(data: Mapping[str, Any]) -> PodSpec:
    """Reads a pod that is plain data. Raises msgspec.ValidationError or ValueError for what is no pod."""
    return read_pod(msgspec.convert(data, PodObject))


def read_pod(pod: PodObject) -> PodSpec:
    """Returns the pod as it is admitted. Raises ValueError for an amount that is no quantity."""
    metadata, spec = pod.metadata, pod.spec
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    role, role_problem = _one_of(_ROLE, labels, annotations)
    kind, kind_problem = _one_of(_TYPE, labels, annotations)
    main = annotations.get(MAIN_CONTAINER, "")
    containers = _containers(spec, main)
    problem = role_problem or kind_problem
    if main and not any(c.name == main for c in spec.containers or ()):
        problem = problem or f"the annotation {MAIN_CONTAINER} names {main!r}, which is no container of the pod"
    return PodSpec(
        uid=pod.uid,
        namespace=metadata.namespace or "default",
        name=metadata.name,
        role=role,
        type=kind,
        qos_class=(pod.status.qos_class if pod.status else None) or _qos_class(containers),
        labels=labels,
        annotations=annotations,
        containers=containers,
        requests=_amounts(spec.resources.requests or {}) if spec.resources else {},
        claim=labels.get(CLAIM, ""),
        host_network=bool(spec.host_network),
        problem=problem,
    )


def told_by_runtime(
    uid: str, namespace: str, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> PodSpec:
    """Returns what the runtime interface tells of a pod whose manifest is not known."""
    role, problem = _one_of(_ROLE, labels, annotations)
    kind, other = _one_of(_TYPE, labels, annotations)
    return PodSpec(
        uid=uid,
        namespace=namespace,
        name=name,
        role=role,
        type=kind,
        labels=dict(labels),
        annotations=dict(annotations),
        claim=labels.get(CLAIM, ""),
        problem=problem or other,
        requests_known=False,
    )


def _one_of(names: Sequence[str], labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str]:
    """Returns the value that all given names agree on, and what is wrong if they do not."""
    *notes, label = names
    found = {name: annotations[name] for name in notes if annotations.get(name)}
    if labels.get(label):
        found[label] = labels[label]
    if len(set(found.values())) > 1:
        return "", " and ".join(f"{name} says {value!r}" for name, value in found.items())
    return next(iter(found.values()), ""), ""


def _containers(spec: _Spec, main: str) -> tuple[ContainerSpec, ...]:
    main = main or next((c.name for c in spec.containers or ()), "")
    found = []
    for i, container in enumerate(spec.init_containers or ()):
        restarts = container.restart_policy == "Always"
        kind = ContainerType.SIDECAR if restarts else ContainerType.INIT
        found.append(_container(container, kind, i, restarts))
    for i, container in enumerate(spec.containers or ()):
        kind = ContainerType.MAIN if container.name == main else ContainerType.SIDECAR
        found.append(_container(container, kind, i))
    return tuple(found)


def _container(container: _Container, kind: ContainerType, index: int, restarts: bool = False) -> ContainerSpec:
    resources = container.resources or _Resources()
    limits = _amounts(resources.limits or {})
    # Where a request is missing, the limit is the request; the API server has written it already, a manifest has not.
    requests = {**limits, **_amounts(resources.requests or {})}
    return ContainerSpec(
        name=container.name, type=kind, index=index, requests=requests, limits=limits, restarts=restarts
    )


def _amounts(amounts: Mapping[str, str | int | float]) -> dict[str, float]:
    found = {}
    for resource, text in amounts.items():
        amount = parse_amount(resource, str(text), True)
        found[resource] = amount / 1000 if resource == "cpu" else float(amount)
    return found


def _qos_class(containers: Sequence[ContainerSpec]) -> str:
    asked = [(c.requests.get(r, 0), c.limits.get(r, 0)) for c in containers for r in ("cpu", "memory")]
    if not any(request or limit for request, limit in asked):
        return "BestEffort"
    return "Guaranteed" if all(limit and request == limit for request, limit in asked) else "Burstable"
