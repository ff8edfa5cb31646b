"""Writes on pods which devices their claims have."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import structlog

from moorage.dra.objects import DeviceClaim
from moorage.kube import Api, ApiError, LeaderTerm, Unreachable
from moorage.kube.objects import Key, pod_path

from .core.device_annotations import DeviceAnnotations, PodAnnotations
from .core.kube_types import Pod
from .object_watches import Spawn

log = structlog.get_logger("agent")

#: Seconds that changes are gathered, and until a pod is tried again.
GATHER, RETRY = 0.1, 5.0


class PodAnnotator:
    def __init__(self, api: Api, term: LeaderTerm, annotations: DeviceAnnotations, spawn: Spawn) -> None:
        self._api, self._term, self._annotations, self._spawn = api, term, annotations, spawn
        self._writing: set[str] = set()
        self._changed = asyncio.Event()
        self._slots_changed = False

    def put_pod(self, key: Key, pod: Pod) -> None:
        self._annotations.put_pod(key, pod)
        self._writing.discard(pod.metadata.uid)
        self.changed()

    def objects_changed(self) -> None:
        """Looks again at pods of which slots may name other devices, once for several changes."""
        self._slots_changed = True
        self._changed.set()

    def changed(self) -> None:
        if not self._annotations.is_idle:
            self._changed.set()

    def drop_pod(self, _key: Key, uid: str) -> None:
        self._annotations.drop_pod(uid)
        self._writing.discard(uid)

    def put_claim(self, key: Key, claim: DeviceClaim) -> None:
        self._annotations.put_claim(key, claim)
        self.changed()

    def drop_claim(self, key: Key, _uid: str) -> None:
        self._annotations.drop_claim(key)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):  # templates that are to come
                async with asyncio.timeout(None if self._annotations.is_idle else RETRY):
                    await self._changed.wait()
            await asyncio.sleep(GATHER)
            self._changed.clear()
            if self._slots_changed:
                self._slots_changed = False
                self._annotations.check_slots()
            for found in list(self._annotations.missing()):
                if found.uid not in self._writing:
                    self._writing.add(found.uid)
                    self._spawn(self._write(found))

    async def _write(self, found: PodAnnotations) -> None:
        """Writes annotations, unless the pod has changed; then the watch shows it."""
        metadata = {"uid": found.uid, "resourceVersion": found.version, "annotations": found.annotations}
        path = pod_path(found.key)
        try:
            if self._term.is_valid:
                body = msgspec.json.encode({"metadata": metadata})
                await self._api.call("PATCH", path, body=body, content_type="application/merge-patch+json")
        except (ApiError, Unreachable) as error:
            log.debug("a pod was not annotated", pod=found.key.name, error=str(error))
            asyncio.get_running_loop().call_later(RETRY, self._again, found.uid)

    def _again(self, uid: str) -> None:
        self._writing.discard(uid)
        self._annotations.check_again(uid)
        self._changed.set()
