"""Opens the scheduling gates of pods that are pinned to slots, and deletes pods that were pinned to a node without a slot before they
were bound: their affinity cannot be changed any more, so their controllers make others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from moorage.bus import until_done
from moorage.bus.failpoints import reached
from moorage.kube import Api, ApiError, LeaderTerm, Unreachable
from moorage.kube.objects import Key, pod_path
from moorage.model.desired_state import Pins

from .core.cluster_state import ClusterState
from .core.gated_pods import GatedPods
from .core.kube_types import Pod
from .object_watches import Spawn

log = structlog.get_logger("agent")

#: Seconds that changes are gathered: a rollout makes several pods at once.
GATHER = 0.02
#: Seconds until a pod is tried again that had changed, and one that the API server refused to change.
CHANGED_RETRY, REFUSED_RETRY = 1.0, 10.0
_MERGE = "application/merge-patch+json"


class ClaimGates:
    """`is_complete`: whether all nodes and pods are known. Slots that pods have are read from the pods themselves, so nothing is opened
    before that."""

    def __init__(
        self, api: Api, term: LeaderTerm, state: ClusterState, is_complete: Callable[[], bool], spawn: Spawn
    ) -> None:
        self._api, self._term, self._state = api, term, state
        self._is_complete, self._spawn = is_complete, spawn
        self._pods = GatedPods()
        self._later: dict[str, float] = {}  # uid → when the API server is asked again
        self._deleting: set[str] = set()
        self._changed = asyncio.Event()
        self.opened = 0

    # --- what is known

    def put_pod(self, key: Key, pod: Pod) -> None:
        self._pods.put(key, pod, _now())
        self._changed.set()

    def drop_pod(self, _key: Key, uid: str) -> None:
        self._pods.drop(uid)
        self._later.pop(uid, None)
        self._changed.set()

    def nodes_changed(self) -> None:
        self._changed.set()

    def set_pins(self, app: str, pins: Pins) -> None:
        self._pods.set_pins(app, pins)
        self._changed.set()

    # --- what is done

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER)
            self._changed.clear()
            if self._pods.is_idle:
                continue
            if not self._is_complete():
                self._wake_at(_now() + 0.2)
                continue
            self._act()

    def _act(self) -> None:
        now, pods = _now(), self._pods
        assignment = pods.assign(self._state.free_on, now)
        for uid, node in assignment.opened.items():
            if self._later.get(uid, 0.0) <= now:
                patch, waiting = pods.open(uid, node), pods.waiting[uid]
                self._spawn(self._open(uid, waiting.key, patch))
        for uid in assignment.misplaced:
            if uid in pods.waiting and uid not in self._deleting and uid not in pods.pinning:
                self._deleting.add(uid)
                waiting = pods.waiting[uid]
                self._spawn(self._delete(uid, waiting.key, waiting.version))
        if (pause_ends := pods.refusals.next(now)) is not None:
            self._wake_at(pause_ends)

    def _wake_at(self, when: float) -> None:
        asyncio.get_running_loop().call_at(when, self._changed.set)

    async def _open(self, uid: str, key: Key, patch: bytes) -> None:
        """Pins a pod and opens its gate with one request, which fails if the pod has changed. Until the answer is known the slot is
        taken."""
        pinning = self._pods.pinning
        request = pinning.get(uid)
        try:
            async for attempt in until_done(_is_open):
                with attempt:
                    if not self._term.is_valid:
                        return  # the next leader reads what became of it
                    await self._api.call("PATCH", pod_path(key), body=patch, content_type=_MERGE)
            self.opened += 1
            reached("agent.opened")
        except ApiError as error:
            # Of a conflict the watch shows what changed: an earlier attempt may have succeeded although its answer was lost.
            pause = CHANGED_RETRY
            if error.code not in (404, 409):
                log.warning("a gate cannot be opened", pod=key.name, namespace=key.namespace, error=str(error))
                pause = REFUSED_RETRY
                if pinning.get(uid) == request:
                    del pinning[uid]
            self._later[uid] = _now() + pause
            asyncio.get_running_loop().call_later(pause, self._try_again, uid, request)

    def _try_again(self, uid: str, request: tuple[str, str] | None) -> None:
        if self._pods.pinning.get(uid) == request:
            self._pods.pinning.pop(uid, None)
        self._later.pop(uid, None)
        self._changed.set()

    async def _delete(self, uid: str, key: Key, version: str) -> None:
        """Deletes a pod, unless it was bound meanwhile."""
        options = {"preconditions": {"uid": uid, "resourceVersion": version}}
        try:
            if self._term.is_valid:
                await self._api.call("DELETE", pod_path(key), body=msgspec.json.encode(options))
        except (ApiError, Unreachable) as error:
            log.debug("a pod without a slot was not deleted", pod=key.name, error=str(error))
            self._wake_at(_now() + 1.0)
        finally:
            self._deleting.discard(uid)


def _is_open(error: Exception) -> bool:
    """Returns whether it is open what became of a request, or it may succeed later."""
    return isinstance(error, Unreachable) or (isinstance(error, ApiError) and error.is_transient)


def _now() -> float:
    return asyncio.get_running_loop().time()
