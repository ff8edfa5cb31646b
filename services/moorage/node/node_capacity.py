"""Says what plugins have to give that the kubelet knows nothing of: scalar node resources of a domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moorage.qos.messages import AllocatableResource


class Capacity(NamedTuple):
    """Amounts by resource, and the names whose plugins are gone."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    removed: tuple[str, ...]


def capacity_of(resources: Mapping[str, AllocatableResource], removed: Iterable[str]) -> Capacity:
    """Returns what is written to the node: whole numbers, rounded down, of resources with a domain in their names."""
    shown = {
        name: resource
        for name, resource in resources.items()
        if resource.is_node_resource and resource.is_scalar_resource and "/" in name
    }
    return Capacity(
        {name: int(resource.aggregated_capacity) for name, resource in shown.items()},
        {name: int(resource.aggregated_allocatable) for name, resource in shown.items()},
        tuple(sorted(name for name in removed if name not in shown)),
    )
