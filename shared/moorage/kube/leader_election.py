"""Elects a leader with a Kubernetes Lease, whose number of transitions fences older leaders.

A leader's work is cancelled and has ended before the lease is released, and also ends when the lease could not be renewed
before the deadline. A leader that lacks something else that it needs marks the lease, and hands it over to the first
candidate that has it; if all lack it, the leader stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from .api import Api, ApiError, Unreachable, decode

log = structlog.get_logger("kube")

#: Others take over after LEASE_DURATION without a change; the leader stops after RENEW_DEADLINE without a renewal.
LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD = 10.0, 6.0, 2.0
#: A leader that is unable to work for this many seconds offers the lease to others.
UNABLE_AFTER = 10.0
_REQUEST_TIMEOUT = 3.0
#: Annotations of the lease: the holder offers it; a candidate asks for it.
_UNABLE, _WANTED = "moorage.dev/holder-unable", "moorage.dev/wanted-by"

Lease = dict[str, Any]


class LeaderTerm:
    """One leader's term. `generation` is the fencing number. `annotations` are written to the lease, for the next leader;
    `previous_annotations` are those of the leader before."""

    def __init__(self, generation: int, previous_annotations: dict[str, str]) -> None:
        self.generation = generation
        self.previous_annotations = previous_annotations
        self.annotations: dict[str, str] = {}
        self.renewed_at = 0.0

    @property
    def is_valid(self) -> bool:
        """By this machine's own clock, no other process can hold the lease now."""
        return asyncio.get_running_loop().time() < self.renewed_at + RENEW_DEADLINE


class LeaderElector:
    """A candidate for one lease. `able` returns whether this process could do the work now; otherwise it does not
    contend."""

    def __init__(
        self, api: Api, namespace: str, name: str, identity: str, able: Callable[[], bool] = lambda: True
    ) -> None:
        self._api, self._able = api, able
        self._unable_since = 0.0
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._identity = name, identity
        self._lease: Lease = {}

    @property
    def _path(self) -> str:
        return f"{self._collection}/{self._name}"

    async def run(self, work: Callable[[LeaderTerm], Awaitable[None]]) -> None:
        """Contends for the lease, works as leader, and contends again, forever. An expired lease that no other process took
        is taken back at once. An exception of the work ends the loop."""
        while True:
            term = await self._acquire()
            log.info("became leader", lease=self._name, generation=term.generation)
            task = asyncio.ensure_future(work(term))
            renewing = asyncio.ensure_future(self._renew(term))
            try:
                await asyncio.wait({task, renewing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                task.cancel()
                await _wait_ended(task)  # before the lease is released
                renewing.cancel()
                await _wait_ended(renewing)
                await self._release(term)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            log.warning("stopped leading", lease=self._name)

    # --- becoming the leader

    async def _acquire(self) -> LeaderTerm:
        while True:
            while not self._able():  # noqa: ASYNC110 - a callback, polled as often as the lease
                await asyncio.sleep(RETRY_PERIOD)
            try:
                lease = await self._read()
                if lease is not None and lease["spec"].get("holderIdentity") not in (None, "", self._identity):
                    await self._wait_for_expiry(lease)
                    continue
                term = await self._claim(lease)
                if term is not None:
                    self._api.mark_healthy()
                    return term
            except (ApiError, Unreachable) as error:
                log.debug("cannot read or claim the lease", error=str(error))
            await asyncio.sleep(RETRY_PERIOD)

    async def _read(self) -> Lease | None:
        try:
            _, data = await self._api.call("GET", self._path, timeout=_REQUEST_TIMEOUT, paced=False)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        lease = decode(data, dict[str, Any])
        lease.setdefault("spec", {})
        return lease

    async def _wait_for_expiry(self, lease: Lease) -> None:
        """Waits until the lease is released, or until it did not change for its whole duration and counts as released.
        Clocks of different machines are never compared."""
        loop = asyncio.get_running_loop()
        duration = float(lease["spec"].get("leaseDurationSeconds") or LEASE_DURATION)
        end = loop.time() + duration
        while loop.time() < end:
            await asyncio.sleep(min(RETRY_PERIOD, max(0.05, end - loop.time())))
            with contextlib.suppress(Unreachable):
                now = await self._read()
                if now is None or not now["spec"].get("holderIdentity"):
                    return
                if now["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
                    lease, end = now, loop.time() + duration
                if not self._able():
                    return
                annotations = now["metadata"].get("annotations") or {}
                if _UNABLE in annotations and _WANTED not in annotations:
                    await self._request_handover(now)
        # Expired: it counts as released.
        released = {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
        self._lease = await self._write(released)

    async def _request_handover(self, lease: Lease) -> None:
        """Asks the holder for the lease; it sees this at its next renewal."""
        metadata = {**lease["metadata"], "annotations": {**lease["metadata"]["annotations"], _WANTED: self._identity}}
        with contextlib.suppress(ApiError):
            await self._write({**lease, "metadata": metadata})

    async def _claim(self, lease: Lease | None) -> LeaderTerm | None:
        loop = asyncio.get_running_loop()
        spec = dict(lease["spec"]) if lease is not None else {}
        before = dict((lease or {}).get("metadata", {}).get("annotations") or {})
        term = LeaderTerm(int(spec.get("leaseTransitions") or 0) + 1, before)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_DURATION),
            "leaseTransitions": term.generation,
            "acquireTime": _timestamp(),
            "renewTime": _timestamp(),
        }
        began = loop.time()
        body: Lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        annotations = {k: v for k, v in before.items() if k not in (_UNABLE, _WANTED)}
        body["metadata"] = (
            {**lease["metadata"], "annotations": annotations} if lease is not None else {"name": self._name}
        )
        try:
            self._lease = await self._write(body, create=lease is None)
        except ApiError as error:
            if error.code == 409:  # another candidate was faster
                return None
            raise
        term.renewed_at = began
        return term

    async def _write(self, lease: Lease, *, create: bool = False) -> Lease:
        method, path = ("POST", self._collection) if create else ("PUT", self._path)
        _, data = await self._api.call(
            method, path, body=msgspec.json.encode(lease), timeout=_REQUEST_TIMEOUT, paced=False
        )
        return decode(data, dict[str, Any])

    # --- being the leader

    async def _renew(self, term: LeaderTerm) -> None:
        """Renews the lease, and returns when it is lost or may be lost."""
        loop = asyncio.get_running_loop()
        self._unable_since = 0.0
        while True:
            await asyncio.sleep(RETRY_PERIOD)
            began = loop.time()
            if not term.is_valid:
                return
            self._unable_since = 0.0 if self._able() else self._unable_since or began
            try:
                async with asyncio.timeout_at(term.renewed_at + RENEW_DEADLINE):
                    self._lease = await self._write(self._renewed_lease(term))
            except ApiError as error:
                if error.code == 409 and (not await self._still_holds(term) or self._hands_over()):
                    return
                if error.code != 409:
                    continue
            except (Unreachable, TimeoutError):
                continue
            term.renewed_at = began

    @property
    def _unable(self) -> bool:
        return bool(self._unable_since) and asyncio.get_running_loop().time() - self._unable_since >= UNABLE_AFTER

    def _hands_over(self) -> bool:
        """Returns whether this leader is unable to work and another candidate asks for the lease."""
        candidate = (self._lease["metadata"].get("annotations") or {}).get(_WANTED, "")
        if candidate and self._unable:
            log.warning("handing over", lease=self._name, to=candidate)
        return bool(candidate) and self._unable

    def _renewed_lease(self, term: LeaderTerm) -> Lease:
        metadata = {**self._lease["metadata"]}
        annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (_UNABLE, _WANTED)}
        metadata["annotations"] = {**annotations, **term.annotations, **({_UNABLE: "true"} if self._unable else {})}
        return {**self._lease, "metadata": metadata, "spec": {**self._lease["spec"], "renewTime": _timestamp()}}

    async def _still_holds(self, term: LeaderTerm) -> bool:
        """Reads the lease after a conflict: an earlier renewal may have succeeded although its answer was lost."""
        with contextlib.suppress(ApiError, Unreachable):
            now = await self._read()
            if now is None:
                return False
            spec = now["spec"]
            if spec.get("holderIdentity") != self._identity or spec.get("leaseTransitions") != term.generation:
                return False
            self._lease = now
            return True
        return term.is_valid

    async def _release(self, term: LeaderTerm) -> None:
        if not term.is_valid:
            return
        self._unable_since = 0.0  # a released lease carries no offer
        lease = self._renewed_lease(term)
        lease["spec"] = {**lease["spec"], "holderIdentity": ""}
        with contextlib.suppress(ApiError, Unreachable):
            await self._write(lease)


async def _wait_ended(task: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
