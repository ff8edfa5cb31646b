"""What Kubernetes reads out of a pod before it binds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from moorage.model.shapes import PODS, Requirement, Toleration
from moorage.parsing import parse_amount

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
    """`terms`: ORed, None = every node; `preferred`: (weight, one term). `scored`: CPU and memory for the scores."""

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


def _requests(of: Mapping[str, Any]) -> dict[str, int]:
    """Limits stand in for requests that are not given."""
    resources = of.get("resources") or {}
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0) + value


def _total(spec: Mapping[str, Any]) -> tuple[dict[str, int], tuple[int, int]]:
    """The pod's requests as the scheduler counts them: the sum of its containers, or what an init container needs beside
    the sidecars before it, whichever is more, and the overhead."""
    running: dict[str, int] = {}
    scored = [0, 0]
    for container in spec.get("containers") or []:
        requests = _requests(container)
        _add(running, requests)
        for i, name in enumerate(("cpu", "memory")):
            scored[i] += requests.get(name, _ASSUMED[name])
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, requests)
            now = sidecars
        else:
            now = dict(sidecars)
            _add(now, requests)
        for name, value in now.items():
            peak[name] = max(peak.get(name, 0), value)
    _add(running, sidecars)
    for name, value in peak.items():
        running[name] = max(running.get(name, 0), value)
    running.update(_requests(spec))  # of the whole pod: they stand for those of its containers
    overhead = _amounts(spec.get("overhead"))
    _add(running, overhead)
    total = (
        max(scored[0] + overhead.get("cpu", 0), running.get("cpu", 0)),
        max(scored[1] + overhead.get("memory", 0), running.get("memory", 0)),
    )
    return {**{name: value for name, value in running.items() if value}, PODS: 1}, total


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


def _exclusive(spec: Mapping[str, Any]) -> int:
    """Whole cores of a Guaranteed pod's containers."""
    cores = 0
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        resources = container.get("resources") or {}
        limits = _amounts(resources.get("limits"))
        requests = {**limits, **_amounts(resources.get("requests"))}
        for name in ("cpu", "memory"):
            if not limits.get(name) or limits[name] != requests[name]:
                return 0
        if limits["cpu"] % 1000 == 0:
            cores += limits["cpu"] // 1000
    return cores


def read_template(template: Mapping[str, Any], *, daemon: bool = False) -> PodNeed:
    """ValueError where Kubernetes would not take the pod."""
    spec, metadata = template.get("spec"), template.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise ValueError("a pod needs spec.containers")  # noqa: TRY004
    try:
        requests, scored = _total(spec)
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
            _exclusive(spec),
            scored,
            {str(k): str(v) for k, v in (metadata.get("labels") or {}).items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the pod cannot be read: {error}") from error


def read_pod(pod: Mapping[str, Any]) -> PodNeed:
    if not isinstance(pod, dict) or not (pod.get("metadata") or {}).get("name"):
        raise ValueError("a pod needs metadata.name")
    return read_template(pod)
