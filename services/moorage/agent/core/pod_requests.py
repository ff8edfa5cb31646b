"""Reads what a running pod takes of its node."""

from __future__ import annotations

from moorage import podspec
from moorage.parsing import parse_amount
from moorage.podspec import ContainerResources, host_port

from .kube_types import Amounts, Container, Pod


def requests(pod: Pod) -> dict[str, int]:
    spec, status = pod.spec, pod.status
    statuses = {s.name: s for s in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))}
    containers = []
    for container in _containers(pod):
        container_status = statuses.get(container.name)
        if container_status is not None:
            granted = container_status.resources.requests if container_status.resources is not None else None
            allocated = container_status.allocated_resources
            if granted or allocated:
                container = podspec.while_resized(container, _amounts(allocated), _amounts(granted))
        containers.append(container)
    return podspec.pod_requests(
        containers,
        requests=_amounts(spec.resources.requests if spec.resources is not None else None),
        overhead=_amounts(spec.overhead),
    )


def exclusive_cores(pod: Pod) -> int:
    """Counts the cores that a static CPU manager gives to this pod alone."""
    return podspec.exclusive_cores(_containers(pod)) if pod.status.qos_class == "Guaranteed" else 0


def has_exclusive_resources(pod: Pod) -> bool:
    """Returns whether the pod has cores or devices for itself."""
    containers = _containers(pod)
    if pod.status.qos_class == "Guaranteed" and any(podspec.whole_cores(c) for c in containers):
        return True
    return any("/" in name and amount > 0 for c in containers for name, amount in c.requests.items())


def host_ports(pod: Pod) -> tuple[str, ...]:
    """Returns the host ports that a pod uses as long as it runs. The API server has already made the ports of a pod in its
    node's network host ports."""
    sidecars = [c for c in pod.spec.init_containers or () if c.restart_policy == "Always"]
    ports = [port for c in (*(pod.spec.containers or ()), *sidecars) for port in c.ports or () if port.host_port]
    return tuple(sorted({str(host_port(p.host_port, p.protocol, p.host_ip)) for p in ports})) if ports else ()


def _containers(pod: Pod) -> list[ContainerResources]:
    spec = pod.spec
    app = [_container(container, False) for container in spec.containers or ()]
    return app + [_container(container, True) for container in spec.init_containers or ()]


def _container(container: Container, init: bool) -> ContainerResources:
    # The API server has already made limits the requests where those were missing.
    amounts = _amounts(container.resources.requests if container.resources is not None else None)
    return podspec.container_resources(container.name, amounts, {}, init=init, restart_policy=container.restart_policy)


def _amounts(quantities: Amounts) -> dict[str, int]:
    amounts = {}
    for resource, quantity in (quantities or {}).items():
        try:
            amounts[resource] = parse_amount(resource, quantity if isinstance(quantity, str) else repr(quantity), True)
        except ValueError:
            continue  # no API server accepts such a quantity
    return amounts
