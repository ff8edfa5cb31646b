"""Reads from a pod what the Kubernetes scheduler needs to bind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from moorage.model.shapes import PODS, Requirement, Toleration
from moorage.parsing import parse_amount
from moorage.podspec import (
    CLAIM,
    DAEMON_SET_TOLERATIONS,
    GATE,
    PARTS,
    ContainerResources,
    HostPort,
    container_resources,
    exclusive_cores,
    host_port,
    is_guaranteed,
    pod_requests,
    tolerations_of,
)

from .pod_constraints import PodConstraints, read_constraints

#: The requests that the scheduler assumes for containers without any, in its scores only.
_ASSUMED = {"cpu": 100, "memory": 200 * 1024 * 1024}

Terms = tuple[tuple[Requirement, ...], ...]


class DeviceClaimNeed(NamedTuple):
    """A ResourceClaim of a pod: its name for it, and the claim, or the template of which it is made."""

    name: str
    claim: str = ""
    template: str = ""


class PodNeed(NamedTuple):
    """The needs of a pod. `terms` are ORed, None = every node; `preferred` are pairs of weight and term; `scored` is CPU and
    memory as the scheduler's scores count them; `deadline`: the seconds for which it may run, 0: for ever."""

    requests: dict[str, int]
    terms: Terms | None
    preferred: tuple[tuple[int, tuple[Requirement, ...]], ...]
    tolerations: tuple[Toleration, ...]
    node_name: str
    cores: int  # exclusive where the CPU manager policy is static
    scored: tuple[int, int]
    labels: dict[str, str]
    host_ports: tuple[HostPort, ...] = ()
    namespace: str = "default"
    constraints: PodConstraints = PodConstraints()
    containers: tuple[ContainerResources, ...] = ()
    gates: tuple[str, ...] = ()
    annotations: dict[str, str] = {}
    device_claims: tuple[DeviceClaimNeed, ...] = ()
    deadline: int = 0

    @property
    def claim(self) -> str:
        return self.labels.get(CLAIM, "")


def _amounts(quantities: Any) -> dict[str, int]:
    if quantities is None:
        return {}
    if not isinstance(quantities, dict):
        raise ValueError("resources must be objects")  # noqa: TRY004 - one exception type for invalid pods
    return {
        str(name): parse_amount(str(name), quantity if isinstance(quantity, str) else repr(quantity), True)
        for name, quantity in quantities.items()
    }


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


def _host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    """Returns the host ports that the pod uses as long as it runs. In the node's network, every port is one."""
    shared = bool(spec.get("hostNetwork"))
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    ports = [port for c in (*(spec.get("containers") or []), *sidecars) for port in c.get("ports") or []]
    numbers = [int(port.get("hostPort") or (port.get("containerPort") if shared else 0) or 0) for port in ports]
    used = zip(ports, numbers, strict=True)
    return tuple(sorted({host_port(n, port.get("protocol"), port.get("hostIP")) for port, n in used if n > 0}))


def _requests(spec: Mapping[str, Any], containers: list[ContainerResources]) -> tuple[dict[str, int], tuple[int, int]]:
    """Returns the requests that the scheduler's filters count, and CPU and memory as its scores count them."""
    requests, limits = _resources(spec)
    overhead = _amounts(spec.get("overhead"))
    total = pod_requests(containers, requests=requests, limits=limits, overhead=overhead)
    scored = total
    if not all(_ASSUMED.keys() <= c.requests.keys() for c in containers):
        assumed = [c._replace(requests={**_ASSUMED, **c.requests}) for c in containers]
        scored = pod_requests(assumed, overhead=overhead)
    cpu, memory = (max(scored.get(resource, 0), total.get(resource, 0)) for resource in ("cpu", "memory"))
    amounts = {resource: amount for resource, amount in total.items() if amount}
    return {**amounts, PODS: 1}, (cpu, memory)


def _requirements(entries: Any) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            key=str(e["key"]),
            operator=str(e["operator"]),
            values=tuple(str(quantity) for quantity in e.get("values") or ()),
        )
        for e in entries or ()
    )


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    return _requirements(term.get("matchExpressions")) + _requirements(term.get("matchFields"))


def pinned(need: PodNeed, node: str, parts: str) -> PodNeed:
    """Returns the need of a pod whose gate is open, with node affinity to one node, and the annotation with what it takes of parts
    there, unless that is ""."""
    named = Requirement(key="metadata.name", operator="In", values=(node,))
    terms = ((named,),) if need.terms is None else tuple((*term, named) for term in need.terms)
    annotations = {**need.annotations, PARTS: parts} if parts else need.annotations
    gates = tuple(gate for gate in need.gates if gate != GATE)
    return need._replace(terms=terms, gates=gates, annotations=annotations)


def _terms(spec: Mapping[str, Any]) -> Terms | None:
    selector = tuple(
        Requirement(key=str(k), operator="In", values=(str(quantity),))
        for k, quantity in (spec.get("nodeSelector") or {}).items()
    )
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return (selector,) if selector else None
    # A term without any requirement matches nothing.
    terms = (_term(term) for term in required.get("nodeSelectorTerms") or ())
    return tuple(selector + term for term in terms if term)


def _device_claims(spec: Mapping[str, Any]) -> tuple[DeviceClaimNeed, ...]:
    return tuple(
        DeviceClaimNeed(
            str(entry["name"]),
            str(entry.get("resourceClaimName") or ""),
            str(entry.get("resourceClaimTemplateName") or ""),
        )
        for entry in spec.get("resourceClaims") or ()
    )


def read_template(
    template: Mapping[str, Any],
    *,
    daemon: bool = False,
    namespace: str = "default",
    generated: Mapping[str, str] | None = None,
) -> PodNeed:
    """Reads a pod template. `generated` are the labels that its controller adds. Raises ValueError where Kubernetes would
    refuse the pod."""
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
        tolerations = tolerations_of(spec)
        ports = _host_ports(spec)
        labels = {str(k): str(value) for k, value in (metadata.get("labels") or {}).items()} | dict(generated or {})
        return PodNeed(
            requests,
            _terms(spec),
            preferred,
            tolerations + DAEMON_SET_TOLERATIONS if daemon else tolerations,
            str(spec.get("nodeName") or ""),
            exclusive_cores(containers) if all(map(is_guaranteed, containers)) else 0,
            scored,
            labels,
            ports,
            namespace,
            read_constraints(spec, labels, namespace),
            tuple(containers),
            tuple(str(gate["name"]) for gate in spec.get("schedulingGates") or ()),
            {str(k): str(value) for k, value in (metadata.get("annotations") or {}).items()},
            _device_claims(spec),
            int(spec.get("activeDeadlineSeconds") or 0),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the pod cannot be read: {error}") from error


def read_pod(pod: Mapping[str, Any]) -> PodNeed:
    """Reads a bare pod. Raises ValueError where Kubernetes would refuse it."""
    if not isinstance(pod, dict) or not (pod.get("metadata") or {}).get("name"):
        raise ValueError("a pod needs metadata.name")
    return read_template(pod, namespace=str(pod["metadata"].get("namespace") or "default"))
