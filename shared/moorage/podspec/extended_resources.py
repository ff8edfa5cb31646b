"""Tells by which needs pods get devices for extended resources, where a DeviceClass of the cluster serves these."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

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
        needs = _of_resource(containers, resource)
        asked = sum(need.devices for need in needs)
        if 0 < asked <= MAX_DEVICES and asked == total.get(resource):
            found += needs
    return found


def _of_resource(containers: Sequence[PodContainer], resource: str) -> list[ExtendedNeed]:
    uses, name = container_uses(containers, resource), resource.replace("/", ".")
    return [
        ExtendedNeed(f"{name}.{use.container}" if len(uses) > 1 else name, resource, use.amount, use.containers)
        for use in uses
    ]


class AskingContainer(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def init(self) -> bool: ...
    @property
    def sidecar(self) -> bool: ...
    @property
    def requests(self) -> Mapping[str, int]: ...


class ContainerUse(NamedTuple):
    """The requests of one container for a resource, and all containers that have it, one after the other."""

    container: str
    amount: int
    containers: frozenset[str]


def container_uses(containers: Iterable[AskingContainer], resource: str) -> list[ContainerUse]:
    """Returns what each container requests that runs beside the others. Init containers have what one has that starts after them;
    where none has enough there are no uses that could be told apart."""
    asking = [one for one in containers if one.requests.get(resource)]
    amounts = {one.name: one.requests[resource] for one in asking}
    users = {one.name: {one.name} for one in asking if not one.init or one.sidecar}
    if asking and not users:
        most = max(amounts, key=lambda name: amounts[name])
        return [ContainerUse(most, amounts[most], frozenset(amounts))]
    for one in asking:
        if one.init and not one.sidecar:
            after = max((x.name for x in asking if not x.init), key=lambda name: amounts[name], default="")
            if amounts.get(after, 0) < amounts[one.name]:
                return []
            users[after].add(one.name)
    return [ContainerUse(first, amounts[first], frozenset(of)) for first, of in users.items()]
