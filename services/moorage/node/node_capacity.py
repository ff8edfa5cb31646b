"""Tells the API server what plugins have to give that the kubelet knows nothing of: scalar node resources of a domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import structlog

from moorage.kube.api import Api, ApiError, Unreachable
from moorage.qos.messages import AllocatableResource

log = structlog.get_logger("node")


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


class NodeStatus:
    """Writes the capacity of a node where it has changed."""

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._path = api, f"/api/v1/nodes/{node}/status"
        self._written: dict[str, str] | None = None
        self.problem = ""

    async def write(self, found: Capacity) -> None:
        # The kubelet sets allocatable to the capacity of resources that it does not own, so the allocatable amount is both.
        amounts = {name: str(amount) for name, amount in found.allocatable.items()}
        amounts |= {name: "0" for name in found.removed if "/" in name}
        if amounts == (self._written or {}):
            return
        body = msgspec.json.encode({"status": {"capacity": amounts, "allocatable": amounts}})
        try:
            await self._api.call(
                "PATCH", self._path, body=body, content_type="application/strategic-merge-patch+json", timeout=10
            )
        except (ApiError, Unreachable) as error:
            if str(error) != self.problem:
                log.warning("the node's status cannot be written", error=str(error))
            self.problem = str(error)
            return
        self._written, self.problem = amounts, ""
