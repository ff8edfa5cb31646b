"""Adds up what a pod requests of its node, as Kubernetes counts it: like `PodRequests` of
`k8s.io/component-helpers/resource` and the static CPU manager policy of the kubelet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Amounts = Mapping[str, int]
_NOTHING: Amounts = {}


class ContainerResources(NamedTuple):
    """One container of a pod. Init containers run one after the other before the rest starts; sidecars are init containers
    that keep running."""

    name: str
    requests: Amounts
    limits: Amounts
    init: bool = False
    sidecar: bool = False


def container_resources(
    name: str, requests: Amounts, limits: Amounts, *, init: bool = False, restart_policy: str | None = None
) -> ContainerResources:
    """Describes a container as the API server stores it: where a request is missing, the limit is the request."""
    return ContainerResources(name, {**limits, **requests}, limits, init, init and restart_policy == "Always")


def while_resized(container: ContainerResources, *granted: Amounts) -> ContainerResources:
    """While a container is resized in place, the largest of what it asks for and what its status grants counts."""
    requests = dict(container.requests)
    for amounts in granted:
        for resource, amount in amounts.items():
            requests[resource] = max(amount, requests.get(resource, 0))
    return container._replace(requests=requests)


def pod_requests(
    containers: Iterable[ContainerResources],
    *,
    requests: Amounts = _NOTHING,
    limits: Amounts = _NOTHING,
    overhead: Amounts = _NOTHING,
) -> dict[str, int]:
    """Sums up a pod. `requests` and `limits` are those of the pod itself, not of its containers."""
    total = _peak(containers)
    # The API server takes a pod's limit for its request only where no container requests the resource.
    of_pod = {resource: amount for resource, amount in limits.items() if resource not in total} | dict(requests)
    for resource, amount in of_pod.items():
        # A valid pod requests at least as much as its containers; needs and a resize may raise them above it.
        total[resource] = max(amount, total.get(resource, 0))
    return _sum(total, overhead)


def is_guaranteed(container: ContainerResources) -> bool:
    """Requests and limits for CPU and memory are given and equal. A pod is Guaranteed if all its containers are."""
    limits = container.limits
    return all(limits.get(r, 0) > 0 and container.requests.get(r) == limits[r] for r in ("cpu", "memory"))


def whole_cores(container: ContainerResources) -> int:
    """Returns the cores a container requests; 0 where they include a part of a core."""
    cores, part = divmod(container.requests.get("cpu", 0), 1000)
    return 0 if part else cores


def exclusive_cores(containers: Iterable[ContainerResources]) -> int:
    """Counts the cores that the static CPU manager policy takes out of the shared pool for a Guaranteed pod."""
    return _peak(c._replace(requests={"cpu": whole_cores(c)}) for c in containers).get("cpu", 0)


def _peak(containers: Iterable[ContainerResources]) -> dict[str, int]:
    """Returns the most that is requested at one time: by all containers that run together, or by an init container and
    the sidecars started before it."""
    running: list[Amounts] = []
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in containers:
        if not container.init:
            running.append(container.requests)
            continue
        for resource, amount in container.requests.items():
            with_sidecars = sidecars.get(resource, 0) + amount
            if container.sidecar:
                sidecars[resource] = with_sidecars
            starting[resource] = max(with_sidecars, starting.get(resource, 0))
    total = _sum(*running, sidecars)
    for resource, amount in starting.items():
        total[resource] = max(amount, total.get(resource, 0))
    return total


def _sum(*parts: Amounts) -> dict[str, int]:
    total: dict[str, int] = {}
    for amounts in parts:
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total
