"""Performs the effects of the core at the API server. Each is one request; its answer goes back to the core."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from moorage.bus.failpoints import reached
from moorage.kube import Api, ApiError, LeaderTerm, Unreachable
from moorage.machine_groups.effects import Effect
from moorage.machine_groups.names import GROUP_VERSION

log = structlog.get_logger("machines")
MAX_AT_ONCE = 64
_MERGE = "application/merge-patch+json"
_ROOTS = {
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Machine": (f"/apis/{GROUP_VERSION}", "machines"),
    "MachineNodePool": (f"/apis/{GROUP_VERSION}", "machinenodepools"),
    "Event": ("/apis/events.k8s.io/v1", "events"),
}
#: Where a test may stop the process: what a request of a purpose has done when it is reached.
_POINTS = {"grant": "machines.scaled", "open": "machines.opened", "node": "machines.cleaned"}
_BEFORE = {"grant": "machines.granted", "open": "machines.vacated"}

Answer = dict[str, Any]
Done = Callable[[Effect, Answer | None, bool], None]
Spawn = Callable[[Coroutine[Any, Any, Any]], Any]


def collection(kind: str, namespace: str = "") -> str:
    root, plural = _ROOTS[kind]
    return f"{root}/namespaces/{quote(namespace)}/{plural}" if namespace else f"{root}/{plural}"


class Requests:
    """`writes` counts requests by purpose. `done` is called with each answer; None where there is none, and whether the API server refused the request."""

    def __init__(
        self, api: Api, term: LeaderTerm, identity: str, writes: Counter[str], done: Done, spawn: Spawn
    ) -> None:
        self._api, self._term, self._identity = api, term, identity
        self._done, self._spawn = done, spawn
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._writes = writes

    def send(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._spawn(self._send(effect))

    async def _send(self, effect: Effect) -> None:
        answer: Answer | None = None
        failed = False
        try:
            async with self._slots:
                if self._term.is_valid:
                    answer = await self._request(effect)
        except ApiError as error:
            # Of a conflict the watch shows what changed. An earlier attempt may have succeeded although its answer was lost.
            failed = error.code not in (404, 409, 429) and not error.is_transient
            if failed:
                log.warning("refused", verb=effect.verb, kind=effect.kind, name=effect.name, error=error.message)
        except Unreachable as error:
            log.debug("no answer", verb=effect.verb, kind=effect.kind, name=effect.name, error=str(error))
        finally:
            self._done(effect, answer, failed)

    async def _request(self, effect: Effect) -> Answer:
        if (point := _BEFORE.get(effect.purpose)) is not None:
            reached(point)
        self._writes[effect.purpose or effect.kind] += 1
        path = f"{collection(effect.kind, effect.namespace)}/{quote(effect.name)}"
        method, content_type, body = "PATCH", _MERGE, effect.body
        if effect.verb == "status":
            path += "/status"
        elif effect.verb == "create":
            method, content_type, path = "POST", "application/json", collection(effect.kind, effect.namespace)
        elif effect.verb == "delete":
            method, content_type = "DELETE", "application/json"
        elif effect.verb == "evict":
            method, content_type, path = "POST", "application/json", f"{path}/eviction"
        elif effect.verb == "event":
            method, content_type, path = "POST", "application/json", collection("Event", effect.namespace or "default")
            body = self._event(effect)
        _, data = await self._api.call(method, path, body=msgspec.json.encode(body), content_type=content_type)
        if (point := _POINTS.get(effect.purpose)) is not None:
            reached(point)
        answer: Answer = msgspec.json.decode(data)
        return answer

    def _event(self, effect: Effect) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{effect.name[:200].rstrip('-.')}-",
                "namespace": effect.namespace or "default",
            },
            "eventTime": now,
            "reportingController": "moorage.dev/machines",
            "reportingInstance": self._identity[:128],
            "action": "Slot",
            **effect.body,
        }
