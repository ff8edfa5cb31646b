"""Tells by which needs pods get devices for extended resources, where a DeviceClass of the cluster serves these."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from moorage.model.part_requests import PodContainer

from .device_claims import MAX_DEVICES


class ExtendedNeed(NamedTuple):
    """Devices instead of so much of an extended resource, which these containers request."""

    name: str
    resource: str
    devices: int
    containers: frozenset[str]


def extended_needs(
    containers: Sequence[PodContainer], total: Mapping[str, int], resources: Container[str] | None = None
) -> list[ExtendedNeed]:
    """Returns the needs of a pod that requests `total`; None of `resources`: for all of its extended resources. There are none for a
    resource that is not requested by containers alone, and for more devices than a claim may have."""
    found: list[ExtendedNeed] = []
    names = dict.fromkeys(name for one in containers for name in one.requests if "/" in name)
    for resource in sorted(names):
        if resources is not None and resource not in resources:
            continue
        needs = _of_resource([one for one in containers if one.requests.get(resource)], resource)
        asked = sum(need.devices for need in needs)
        if 0 < asked <= MAX_DEVICES and asked == total.get(resource):
            found += needs
    return found


def _of_resource(asking: Sequence[PodContainer], resource: str) -> list[ExtendedNeed]:
    """Returns a need for each container that runs beside the others. Init containers have the devices of one that starts after them;
    where none has enough, or none follows, there is no need."""
    name = resource.replace("/", ".")
    users = {one.name: {one.name} for one in asking if not one.init or one.sidecar}
    amounts = {one.name: one.requests[resource] for one in asking}
    before = [one for one in asking if one.init and not one.sidecar]
    if not users:
        return [ExtendedNeed(name, resource, max(amounts.values()), frozenset(amounts))] if asking else []
    for one in before:
        after = _largest((other for other in asking if not other.init), amounts)
        if after is None or amounts[after] < amounts[one.name]:
            return []
        users[after].add(one.name)
    several = len(users) > 1
    return [
        ExtendedNeed(f"{name}.{first}" if several else name, resource, amounts[first], frozenset(of))
        for first, of in users.items()
    ]


def _largest(containers: Iterable[PodContainer], amounts: Mapping[str, int]) -> str | None:
    return max((one.name for one in containers), key=lambda name: amounts[name], default=None)
