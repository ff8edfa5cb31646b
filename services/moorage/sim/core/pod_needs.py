"""Reads what Kubernetes' scheduler wants to know of a pod before it binds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from moorage.model.shapes import PODS, Requirement, Toleration
from moorage.parsing import parse_amount
from moorage.podspec import ContainerResources, container_resources, exclusive_cores, is_guaranteed, pod_requests

CLAIM = "moorage.dev/claim"
#: What the scheduler assumes of containers that request nothing, for its scores only.
_ASSUMED = {"cpu": 100, "memory": 200 * 1024 * 1024}
_DAEMON = tuple(
    Toleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)

Terms = tuple[tuple[Requirement, ...], ...]


class PodNeed(NamedTuple):
    """`terms` are ORed, None = every node; `preferred` are pairs of weight and term. `scored` is CPU and memory as the
    scheduler's scores count them."""

    requests: dict[str, int]
    terms: Terms | None
    preferred: tuple[tuple[int, tuple[Requirement, ...]], ...]
    tolerations: tuple[Toleration, ...]
    node_name: str
    cores: int  # taken exclusively where the CPU manager is static
    scored: tuple[int, int]
    labels: dict[str, str]

    @property
    def claim(self) -> str:
        return self.labels.get(CLAIM, "")


def _amounts(given: Any) -> dict[str, int]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError("resources must be objects")  # noqa: TRY004 - one exception for a pod that cannot be read
    return {str(name): parse_amount(str(name), v if isinstance(v, str) else repr(v), True) for name, v in given.items()}


def _resources(owner: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Requests and limits of a container or of a whole pod."""
    resources = owner.get("resources") or {}
    return _amounts(resources.get("requests")), _amounts(resources.get("limits"))


def _container(container: Mapping[str, Any], init: bool) -> ContainerResources:
    policy = container.get("restartPolicy")
    return container_resources(str(container.get("name", "")), *_resources(container), init=init, restart_policy=policy)


def _containers(spec: Mapping[str, Any]) -> list[ContainerResources]:
    init = [_container(container, True) for container in spec.get("initContainers") or []]
    return init + [_container(container, False) for container in spec.get("containers") or []]


def _requests(spec: Mapping[str, Any], containers: list[ContainerResources]) -> tuple[dict[str, int], tuple[int, int]]:
    """What the scheduler counts for its filters, and CPU and memory as it counts them for its scores."""
    requests, limits = _resources(spec)
    overhead = _amounts(spec.get("overhead"))
    total = pod_requests(containers, requests=requests, limits=limits, overhead=overhead)
    assumed = [c._replace(requests={**_ASSUMED, **c.requests}) for c in containers]
    scored = pod_requests(assumed, overhead=overhead)
    cpu, memory = (max(scored.get(resource, 0), total.get(resource, 0)) for resource in ("cpu", "memory"))
    amounts = {resource: amount for resource, amount in total.items() if amount}
    return {**amounts, PODS: 1}, (cpu, memory)


def _requirements(entries: Any) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(key=str(e["key"]), operator=str(e["operator"]), values=tuple(str(v) for v in e.get("values") or ()))
        for e in entries or ()
    )


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    return _requirements(term.get("matchExpressions")) + _requirements(term.get("matchFields"))


def _terms(spec: Mapping[str, Any]) -> Terms | None:
    selector = tuple(
        Requirement(key=str(k), operator="In", values=(str(v),)) for k, v in (spec.get("nodeSelector") or {}).items()
    )
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return (selector,) if selector else None
    # A term without any requirement matches nothing.
    terms = (_term(term) for term in required.get("nodeSelectorTerms") or ())
    return tuple(selector + term for term in terms if term)


def read_template(template: Mapping[str, Any], *, daemon: bool = False) -> PodNeed:
    """ValueError where Kubernetes would not take the pod."""
    spec, metadata = template.get("spec"), template.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise ValueError("a pod needs spec.containers")  # noqa: TRY004
    try:
        containers = _containers(spec)
        requests, scored = _requests(spec, containers)
        node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        preferred = tuple(
            (int(p.get("weight", 1)), _term(p.get("preference") or {}))
            for p in node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        )
        tolerations = tuple(
            Toleration(
                key=str(t.get("key") or ""),
                operator=str(t.get("operator") or "Equal"),
                value=str(t.get("value") or ""),
                effect=str(t.get("effect") or ""),
            )
            for t in spec.get("tolerations") or ()
        )
        return PodNeed(
            requests,
            _terms(spec),
            preferred,
            tolerations + _DAEMON if daemon else tolerations,
            str(spec.get("nodeName") or ""),
            exclusive_cores(containers) if all(map(is_guaranteed, containers)) else 0,
            scored,
            {str(k): str(v) for k, v in (metadata.get("labels") or {}).items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the pod cannot be read: {error}") from error


def read_pod(pod: Mapping[str, Any]) -> PodNeed:
    if not isinstance(pod, dict) or not (pod.get("metadata") or {}).get("name"):
        raise ValueError("a pod needs metadata.name")
    return read_template(pod)
