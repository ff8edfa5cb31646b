"""Allocates the ResourceClaims of gated pods to the devices of their slots, and opens the gates. Only on clusters that are labelled
so: the API server accepts two claims for one device, so nothing else may allocate there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from moorage.bus import until_done
from moorage.bus.failpoints import reached
from moorage.dra.objects import DeviceClaim
from moorage.kube import Api, ApiError, LeaderTerm, Unreachable
from moorage.kube.objects import Key, pod_path
from moorage.podspec import CLASS_OF_PIN, DEVICES_GATE

from .core.claim_allocation import ClaimAllocation, GatedClaims, PodAllocation, allocation_of, classes_of
from .core.cluster_state import ClusterState
from .core.kube_types import Pod
from .object_watches import Spawn

log = structlog.get_logger("agent")

#: Keeps a claim while its devices are allocated.
FINALIZER = "resource.kubernetes.io/delete-protection"
#: Seconds that changes are gathered, and until something is tried again that the API server refused.
GATHER, RETRY = 0.02, 2.0
_MERGE = "application/merge-patch+json"
Manifest = dict[str, Any]


class DeviceAllocation:
    """`objects` returns the objects that apps want, by kind, namespace and name."""

    def __init__(
        self,
        api: Api,
        term: LeaderTerm,
        state: ClusterState,
        version: str,
        objects: Callable[[str, str, str], Manifest | None],
        spawn: Spawn,
        *,
        allocates: bool,
    ) -> None:
        self._api, self._term, self._state, self._objects = api, term, state, objects
        self._path = f"/apis/resource.k8s.io/{version}/namespaces"
        self._allocates, self._spawn = allocates, spawn
        self._claims = GatedClaims()
        self._pods_busy: set[str] = set()
        self._changed = asyncio.Event()
        self.allocated = 0

    # --- what is known

    def put_pod(self, key: Key, pod: Pod) -> None:
        self._claims.put_pod(key, pod)
        self._changed.set()

    def drop_pod(self, _key: Key, uid: str) -> None:
        self._claims.drop_pod(uid)
        self._changed.set()

    def put_claim(self, key: Key, claim: DeviceClaim) -> None:
        self._claims.put_claim(key, claim)
        self._changed.set()

    def drop_claim(self, key: Key, _uid: str) -> None:
        self._claims.drop_claim(key)
        self._changed.set()

    def changed(self) -> None:
        self._changed.set()

    # --- what is done

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY if self._claims.waiting else None):
                    await self._changed.wait()
            await asyncio.sleep(GATHER)
            self._changed.clear()
            if not self._claims.waiting:
                continue
            if not self._state.devices_known:
                self._later(0.2)
                continue
            for found in self._plan():
                if found.pod.uid not in self._pods_busy:
                    self._pods_busy.add(found.pod.uid)
                    for one in found.claims:
                        self._claims.allocating[one.claim.uid] = frozenset(d for of in one.devices.values() for d in of)
                    self._spawn(self._allocate(found))

    def _plan(self) -> list[PodAllocation]:
        if not self._allocates:  # the label went: the scheduler does it, by the pins
            return [PodAllocation(pod, "", []) for pod in self._claims.waiting.values()]
        return list(self._claims.plan(self._template, self._state.devices.is_allocable))

    def _template(self, namespace: str, name: str) -> Manifest | None:
        return self._objects("ResourceClaimTemplate", namespace, name)

    def _later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._changed.set)

    async def _allocate(self, found: PodAllocation) -> None:
        """Allocates all claims of a pod, and then opens its gate. Each request fails if its object has changed."""
        try:
            for one in found.claims:
                await self._allocate_claim(one, found.node)
                reached("agent.allocated")
            if self._term.is_valid:
                await self._open(found)
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.code in (404, 409)):
                log.warning("claims cannot be allocated", pod=found.pod.key.name, error=str(error))
            await asyncio.sleep(RETRY)
            for one in found.claims:
                await self._read_again(one)
        finally:
            self._pods_busy.discard(found.pod.uid)
            self._changed.set()

    async def _read_again(self, one: ClaimAllocation) -> None:
        """Finds out what became of a claim. Until then nobody else gets its devices: it may have them although the answer was lost,
        and the watch may not show it yet."""
        path = self._path_of(one.key)
        async for attempt in until_done((Unreachable, ApiError), first=RETRY):
            with attempt:
                data = await self._api.get(path)
        self._claims.confirm(one.key, one.claim.uid, None if data is None else msgspec.convert(data, DeviceClaim))

    async def _allocate_claim(self, one: ClaimAllocation, node: str) -> None:
        if not self._term.is_valid:
            return
        template = self._template(one.key.namespace, one.template) or {}
        path = self._path_of(one.key)
        metadata = {"uid": one.claim.uid, "resourceVersion": one.claim.version}
        if FINALIZER not in one.claim.finalizers:
            body: Manifest = {"metadata": {**metadata, "finalizers": [*one.claim.finalizers, FINALIZER]}}
            _, data = await self._api.call("PATCH", path, body=msgspec.json.encode(body), content_type=_MERGE)
            metadata["resourceVersion"] = str(msgspec.json.decode(data)["metadata"]["resourceVersion"])
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        allocation = allocation_of(one.devices, node, template, self._configs(template), now)
        body = {"metadata": metadata, "status": {"allocation": allocation}}
        await self._api.call("PATCH", f"{path}/status", body=msgspec.json.encode(body), content_type=_MERGE)
        self.allocated += 1

    def _path_of(self, claim: Key) -> str:
        return f"{self._path}/{quote(claim.namespace)}/resourceclaims/{quote(claim.name)}"

    def _configs(self, template: Manifest) -> Mapping[str, list[Any]]:
        """Returns the configuration that the class of each request has."""
        found: dict[str, list[Any]] = {}
        for request, name in classes_of(template).items():
            pin = self._objects("DeviceClass", "default", name) or {"metadata": {}}
            original = (pin["metadata"].get("annotations") or {}).get(CLASS_OF_PIN, name)
            found[request] = (self._state.device_classes.spec(original) or {}).get("config", [])
        return found

    async def _open(self, found: PodAllocation) -> None:
        pod = found.pod
        gates = [{"name": gate} for gate in pod.gates if gate != DEVICES_GATE]
        metadata = {"uid": pod.uid, "resourceVersion": pod.version}
        body = msgspec.json.encode({"metadata": metadata, "spec": {"schedulingGates": gates or None}})
        path = pod_path(pod.key)
        await self._api.call("PATCH", path, body=body, content_type=_MERGE)
