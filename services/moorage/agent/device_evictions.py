"""Ends pods whose devices failed, once their classes name others: Kubernetes itself does so only for taints."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from moorage.bus.failpoints import reached
from moorage.dra.objects import DeviceClaim, DeviceClass
from moorage.kube import Api, ApiError, LeaderTerm, Unreachable
from moorage.kube.objects import Key, pod_path

from .core.kube_types import Pod
from .core.vacated_devices import PodOnDevice, VacatedDevices
from .object_watches import Spawn

log = structlog.get_logger("agent")

#: Seconds until a pod is tried again that the API server did not delete.
RETRY = 2.0


class DeviceEvictions:
    def __init__(self, api: Api, term: LeaderTerm, spawn: Spawn) -> None:
        self._api, self._term, self._spawn = api, term, spawn
        self._devices = VacatedDevices()
        self._ending: set[str] = set()
        self._changed = asyncio.Event()

    # --- what is known

    def put_pod(self, key: Key, pod: Pod) -> None:
        self._devices.put_pod(key, pod)
        self._notice()

    def drop_pod(self, _key: Key, uid: str) -> None:
        self._devices.drop_pod(uid)

    def put_claim(self, key: Key, claim: DeviceClaim) -> None:
        self._devices.put_claim(key, claim)
        self._notice()

    def drop_claim(self, key: Key, _uid: str) -> None:
        self._devices.drop_claim(key)

    def put_class(self, name: str, found: DeviceClass) -> None:
        self._devices.put_class(name, found)
        self._notice()

    def drop_class(self, name: str) -> None:
        self._devices.drop_class(name)

    def _notice(self) -> None:
        if not self._devices.is_idle:
            self._changed.set()

    # --- what is done

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for pod in list(self._devices.pods()):
                if pod.uid not in self._ending:
                    self._ending.add(pod.uid)
                    self._spawn(self._end(pod))

    async def _end(self, pod: PodOnDevice) -> None:
        path = pod_path(pod.key)
        try:
            if self._term.is_valid:
                body = msgspec.json.encode({"preconditions": {"uid": pod.uid}})
                await self._api.call("DELETE", path, body=body)
                log.info("a pod left a device that failed", pod=pod.key.name, namespace=pod.key.namespace)
                reached("agent.vacated")
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.code in (404, 409)):
                log.warning("a pod whose device failed was not deleted", pod=pod.key.name, error=str(error))
        finally:
            # The watch shows that it ends; if not, it is tried again.
            asyncio.get_running_loop().call_later(RETRY, self._again, pod.uid)

    def _again(self, uid: str) -> None:
        self._ending.discard(uid)
        self._notice()
