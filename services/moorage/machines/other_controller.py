"""Looks whether another controller acts on Machines, and once it is gone, what it left: hooks that nobody answers any more, and objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from moorage.kube import Api, ApiError, Unreachable
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.names import MACHINE_TYPE, OTHER_CONTROLLER, OTHER_HOOKS, OTHER_NAMESPACE

from .hook_configurations import paths
from .requests import collection

log = structlog.get_logger("machines")
#: Seconds between two looks.
INTERVAL = 10.0
DEPLOYMENT = f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/deployments/{OTHER_CONTROLLER}"


class OtherController:
    """`changed` is called when something was found out. `acts`: whether this process may write."""

    def __init__(self, api: Api, state: ClusterMachines, changed: Callable[[], None], acts: Callable[[], bool]) -> None:
        self._api, self._state, self._changed, self._acts = api, state, changed, acts
        self._is_clean = False  # nothing of it was left at the last look

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            await self.look()

    async def look(self) -> None:
        """Looks once. What cannot be found out stays as it is known."""
        try:
            is_there = await self._api.get(DEPLOYMENT) is not None
            self._state.set_other_controller(f"Deployment {OTHER_NAMESPACE}/{OTHER_CONTROLLER}" if is_there else "")
            if is_there:
                self._is_clean = False
            elif self._acts() and not self._is_clean:
                await self._remove_hooks()
                self._is_clean = await self._list_left_over()
        except (ApiError, Unreachable) as error:
            log.warning("cannot tell whether another controller acts on Machines", error=str(error))
            return
        self._changed()

    async def _remove_hooks(self) -> None:
        """Removes its hooks: until then the API server refuses all Pods about which it would ask them."""
        for path, name in zip(paths().values(), OTHER_HOOKS, strict=True):
            if await self._api.get(f"{path}/{name}") is None:
                continue
            try:
                await self._api.call("DELETE", f"{path}/{name}")
                log.info("hooks of the controller that is gone are removed", name=name)
            except ApiError as error:
                if error.code != 404:
                    raise

    async def _list_left_over(self) -> bool:
        """Puts the objects that it left. Returns whether nothing is there any more."""
        found: list[tuple[str, dict[str, Any]]] = []
        for kind in ("StatefulSet", "Service"):
            path = collection(kind, OTHER_NAMESPACE)
            try:
                listed = await self._api.get(path, query={"labelSelector": MACHINE_TYPE})
            except ApiError as error:
                if error.code != 403:
                    raise
                if not self._state.left_over.groups:
                    return True  # without the namespace there are no rights in it
                log.warning("no rights to replace the reservations of the controller that is gone: join the cluster again", namespace=OTHER_NAMESPACE)  # fmt: skip
                return False
            found += [(kind, obj) for obj in (listed or {}).get("items") or ()]
        self._state.set_left_over(found)
        return not found and not self._state.left_over.groups
