"""Says which properties of its cgroup a container should have, and takes over what plugins say later."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from moorage.qos.admission import PodRecord
from moorage.qos.messages import PodAllocations, ResourceAllocation, ResourceAllocationInfo, is_oci_property

CPUSET_CPUS = "CpusetCpus"
CPUSET_MEMS = "CpusetMems"
CPU_QUOTA = "CpuQuota"


def is_exclusive(allocation: ResourceAllocation) -> bool:
    """Returns whether the container has CPUs for itself."""
    info = allocation.get("cpu")
    return info is not None and info.oci_property_name == CPUSET_CPUS and bool(info.topology_assignments)


def oci_properties(allocation: ResourceAllocation) -> dict[str, str]:
    """Returns the properties by their names. A container with CPUs for itself has no quota: it would throttle them."""
    found = {info.oci_property_name: info.allocation_result for info in allocation.values() if info.oci_property_name}
    if is_exclusive(allocation):
        found.setdefault(CPU_QUOTA, "-1")
    return found


def environment(allocation: ResourceAllocation) -> dict[str, str]:
    """Returns the variables of a container."""
    return {name: value for info in allocation.values() for name, value in info.envs.items()}


def container_annotations(allocation: ResourceAllocation) -> dict[str, str]:
    """Returns the annotations of a container."""
    return {name: value for info in allocation.values() for name, value in info.annotations.items()}


def take_over(
    records: Mapping[str, PodRecord], resource: str, answer: PodAllocations
) -> tuple[dict[str, PodRecord], list[str]]:
    """Takes over what the plugin of a resource says that containers should have now. Returns the records that changed, and what
    is wrong in the answer; that costs only its container. Hints that are not sent stay."""
    changed: dict[str, PodRecord] = {}
    problems: list[str] = []
    for uid, containers in answer.items():
        record = records.get(uid)
        if record is None:
            continue
        for name in record.containers:
            given = containers.get(name, containers.get(""))
            if not given:
                continue
            before = record.containers[name]
            after, wrong = _merged(before, resource, given)
            problems += [
                f"{record.pod.namespace}/{record.pod.name} {name}: the plugin {resource} says {w}" for w in wrong
            ]
            if after != before:
                now = changed.setdefault(uid, msgspec.structs.replace(record, containers=dict(record.containers)))
                now.containers[name] = after
    return changed, problems


def _merged(
    before: ResourceAllocation, resource: str, given: ResourceAllocation
) -> tuple[ResourceAllocation, list[str]]:
    after, wrong = dict(before), []
    for name, info in given.items():
        if not is_oci_property(info.oci_property_name):
            wrong.append(f"an unknown property {info.oci_property_name[:80]!r}")
        elif info.oci_property_name and not info.allocation_result:
            wrong.append(f"nothing for {info.oci_property_name}, which stays")
        elif (other := _clash(before, resource, name, info)) is not None:
            wrong.append(f"{info.oci_property_name} = {info.allocation_result!r}, which {other} sets differently")
        else:
            old = before.get(name)
            hints = info.resource_hints or (old.resource_hints if old is not None else ())
            after[name] = msgspec.structs.replace(info, resource_hints=hints)
    return after, wrong


def _clash(before: ResourceAllocation, resource: str, name: str, info: ResourceAllocationInfo) -> str | None:
    """Returns the resource of another plugin that sets the same property to something else."""
    for other, had in before.items():
        same = had.oci_property_name and had.oci_property_name == info.oci_property_name
        if other not in (name, resource) and same and had.allocation_result != info.allocation_result:
            return other
    return None
