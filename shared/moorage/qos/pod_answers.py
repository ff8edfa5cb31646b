"""Looks at what pods ask for and what plugins answer: the order of admission, sums, contradictions, and the words for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .admission_calls import PodRecord
from .messages import (
    AllocationRefused,
    ContainerSpec,
    ContainerType,
    PodSpec,
    Refusal,
    ResourceAllocationInfo,
    ZoneMiss,
    is_oci_property,
    nodes_of,
)
from .topology_hints import Hint, Hints


def in_order(containers: Iterable[ContainerSpec]) -> list[ContainerSpec]:
    """Returns the order of admission: the main container, those beside it, then init containers, which run on what these have."""
    rank = {ContainerType.MAIN: 0, ContainerType.SIDECAR: 1, ContainerType.INIT: 2, ContainerType.EPHEMERAL: 3}
    return sorted(containers, key=lambda container: (rank[container.type], container.index))


def pod_total(pod: PodSpec) -> dict[str, float]:
    """Adds up what a pod requests: what runs together, or an init container with the sidecars before it, whichever is more."""
    running: dict[str, float] = {}
    beside: dict[str, float] = {}
    peak: dict[str, float] = dict(pod.requests)
    for container in pod.containers:
        for name, amount in container.requests.items():
            if container.type == ContainerType.INIT:
                peak[name] = max(peak.get(name, 0.0), beside.get(name, 0.0) + amount)
                continue
            running[name] = running.get(name, 0.0) + amount
            if container.restarts:
                beside[name] = beside.get(name, 0.0) + amount
    return {name: round(max(running.get(name, 0.0), peak.get(name, 0.0)), 3) for name in {**running, **peak}}


def requests_of(pod: PodSpec, container: str) -> Mapping[str, float]:
    """Returns what a container requests; without a name what the pod does as a whole."""
    if not container:
        return pod_total(pod)
    return next((c.requests for c in pod.containers if c.name == container), {})


def adoption_order(pod: PodSpec, containers: Iterable[str]) -> list[str]:
    """Returns the order in which plugins take over what containers of a pod have: as they were admitted, strangers last."""
    rank = {name: place for place, name in enumerate(["", *(c.name for c in in_order(pod.containers))])}
    return sorted(containers, key=lambda name: rank.get(name, len(rank)))


def check_conflicts(record: PodRecord) -> None:
    """Raises AllocationRefused where two plugins set one property, variable or annotation of a container differently."""
    for container, allocation in record.containers.items():
        said: dict[tuple[str, str], tuple[str, str]] = {}
        for resource, info in sorted(allocation.items()):
            given = [("property", info.oci_property_name, info.allocation_result)] if info.oci_property_name else []
            given += [("variable", name, value) for name, value in info.envs.items()]
            given += [("annotation", name, value) for name, value in info.annotations.items()]
            for what, name, value in given:
                other, before = said.setdefault((what, name), (resource, value))
                if before != value:
                    message = f"{other} and {resource} set the {what} {name} differently: {before!r} and {value!r}"
                    raise AllocationRefused(
                        Refusal(
                            code="UnexpectedAdmissionError", message=message, resource=resource, container=container
                        )
                    )


def plugin_of(resource: str) -> str:
    return "memory" if resource.startswith("hugepages-") else resource


def of_plugin(plugin: str, amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: round(amount, 3) for name, amount in amounts.items() if amount > 0 and plugin_of(name) == plugin}


def is_shared(info: ResourceAllocationInfo) -> bool:
    """Returns whether others have the same: CPUs of a pool are no amount that is compared with a request."""
    return info.oci_property_name == "CpusetCpus" and not info.topology_assignments and not info.resource_hints


def problem_of(info: ResourceAllocationInfo) -> str:
    if not is_oci_property(info.oci_property_name):
        return f"an unknown property {info.oci_property_name[:80]!r}"
    if info.oci_property_name and not info.allocation_result:
        return f"nothing for the property {info.oci_property_name}"
    return ""


def zones_text(mask: int) -> str:
    return ", ".join(map(str, nodes_of(mask)))


def hints_text(hints: Sequence[Hint]) -> str:
    sets = [zones_text(h.zones) or "any" if h.zones is not None else "any" for h in hints if h.preferred]
    return "{" + "} {".join(sets[:8]) + "}" if sets else "none preferred"


def disagreement(answers: Mapping[str, Hints], zones: int) -> tuple[ZoneMiss, ...]:
    """Says for each zone which resources could not have it, the zone that most could first."""
    lacking = {
        zone: [
            name
            for name, hints in sorted(answers.items())
            if hints is not None and not any(h.preferred and h.zones in (None, 1 << zone) for h in hints)
        ]
        for zone in range(zones)
    }
    ordered = sorted(lacking.items(), key=lambda found: (len(found[1]), found[0]))
    return tuple(ZoneMiss(zone=zone, message=f"not for {', '.join(names)}") for zone, names in ordered if names)
