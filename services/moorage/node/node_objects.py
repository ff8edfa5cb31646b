"""Follows the node's pods at the API server, and tells it what the node has to give."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from moorage.kube.api import Api, ApiError, Unreachable
from moorage.kube.objects import Key
from moorage.kube.reflector import Reflector

from .kube_config import connect
from .node_capacity import Capacity
from .pod_objects import KnownPod, decode_pod
from .pod_source import PodSource

__all__ = ["NodeObjects", "Unreachable"]

log = structlog.get_logger("node")


class NodeObjects:
    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self._written: dict[str, str] = {}
        self._problem = ""

    @classmethod
    async def connect(cls, kubeconfig: Path | None, node: str) -> NodeObjects:
        """Raises Unreachable where nothing says how to reach the API server."""
        return cls(await connect(kubeconfig), node)

    async def close(self) -> None:
        await self._api.close()

    async def watch_pods(self, source: PodSource) -> None:
        """Follows the pods that are bound to the node, for ever."""
        uids: dict[Key, str] = {}

        def put(key: Key, pod: KnownPod) -> None:
            uids[key] = pod.spec.uid
            source.put(pod)

        def drop(key: Key, _uid: str) -> None:
            source.drop(uids.pop(key, ""))

        def listed() -> None:
            if reflector.listed:
                source.listed.set()

        fields = f"spec.nodeName={self._node}"
        reflector = Reflector(self._api, "/api/v1/pods", decode_pod, put, drop, fields=fields, synced=listed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run())

    async def write_capacity(self, found: Capacity) -> None:
        """Writes the amounts of plugins' resources to the node's status, where they have changed."""
        # The kubelet sets allocatable to the capacity of resources that it does not own, so the allocatable amount is both.
        amounts = {name: str(amount) for name, amount in found.allocatable.items()}
        amounts |= {name: "0" for name in found.removed if "/" in name}
        if amounts == self._written:
            return
        body = msgspec.json.encode({"status": {"capacity": amounts, "allocatable": amounts}})
        path, kind = f"/api/v1/nodes/{self._node}/status", "application/strategic-merge-patch+json"
        try:
            await self._api.call("PATCH", path, body=body, content_type=kind, timeout=10)
        except (ApiError, Unreachable) as error:
            if str(error) != self._problem:
                log.warning("the node's status cannot be written", error=str(error))
            self._problem = str(error)
            return
        self._written, self._problem = amounts, ""
