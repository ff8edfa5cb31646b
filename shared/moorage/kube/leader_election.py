"""One of many acts: a Lease of the cluster itself, with a number that grows with every holder. The work is cancelled and
has ended before the lease is given up, and it ends by itself when the server cannot be asked any more. A holder that lacks
something else it needs says so on the lease, and gives way to the first who does not: to nobody, if all lack it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from .api import Api, ApiError, Unreachable, decoded

log = structlog.get_logger("kube")

#: Others take over after DURATION without a change; the holder stops after DEADLINE without a renewal.
DURATION, DEADLINE, RENEW = 10.0, 6.0, 2.0
#: A holder that is not able for so long would rather have another act.
PATIENCE = 10.0
_CALL = 3.0
#: On the lease: the holder would give way; somebody able asks it to.
_UNABLE, _WANTED = "moorage.dev/holder-unable", "moorage.dev/wanted-by"

Lease = dict[str, Any]


class Term:
    """One holder's time. `generation` is the fencing number; `before` are the annotations its predecessor left."""

    def __init__(self, generation: int, before: dict[str, str]) -> None:
        self.generation = generation
        self.before = before
        self.notes: dict[str, str] = {}
        self.good = 0.0

    @property
    def valid(self) -> bool:
        """No other can hold the lease at this moment, by this machine's own clock."""
        return asyncio.get_running_loop().time() < self.good + DEADLINE


class LeaderElector:
    """`notes` of a term become annotations of the Lease: what a successor should know. `able`: whether this process could
    do the work now; who is not does not contend."""

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

    async def run(self, work: Callable[[Term], Awaitable[None]]) -> None:
        """Contends, works, and contends again, for ever. A lease that ran out and that nobody else took is taken back at
        once. What the work raises ends this too."""
        while True:
            term = await self._acquire()
            log.info("acting", lease=self._name, generation=term.generation)
            task = asyncio.ensure_future(work(term))
            renewing = asyncio.ensure_future(self._renew(term))
            try:
                await asyncio.wait({task, renewing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                task.cancel()
                await _ended(task)  # before anything is given up
                renewing.cancel()
                await _ended(renewing)
                await self._release(term)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            log.warning("no longer acting", lease=self._name)

    # --- becoming the holder

    async def _acquire(self) -> Term:
        while True:
            while not self._able():  # noqa: ASYNC110 - somebody else's state, asked as often as the lease
                await asyncio.sleep(RENEW)
            try:
                seen = await self._read()
                if seen is not None and seen["spec"].get("holderIdentity") not in (None, "", self._identity):
                    await self._wait_for_silence(seen)
                    continue
                term = await self._take(seen)
                if term is not None:
                    self._api.is_well()
                    return term
            except (ApiError, Unreachable) as error:
                log.debug("electing", error=str(error))
            await asyncio.sleep(RENEW)

    async def _read(self) -> Lease | None:
        try:
            _, data = await self._api.call("GET", self._path, timeout=_CALL, paced=False)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        lease = decoded(data, dict[str, Any])
        lease.setdefault("spec", {})
        return lease

    async def _wait_for_silence(self, seen: Lease) -> None:
        """Until it changed or was released; or take it over when it did neither for its whole duration. Clocks of different
        machines are never compared."""
        loop = asyncio.get_running_loop()
        duration = float(seen["spec"].get("leaseDurationSeconds") or DURATION)
        end = loop.time() + duration
        while loop.time() < end:
            await asyncio.sleep(min(RENEW, max(0.05, end - loop.time())))
            with contextlib.suppress(Unreachable):
                now = await self._read()
                if now is None or not now["spec"].get("holderIdentity"):
                    return
                if now["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]:
                    seen, end = now, loop.time() + duration
                if not self._able():
                    return
                marks = now["metadata"].get("annotations") or {}
                if _UNABLE in marks and _WANTED not in marks:
                    await self._ask_for(now)
        # Silent for its whole duration: as if it had been released.
        released = {**seen, "spec": {**seen["spec"], "holderIdentity": ""}}
        self._lease = await self._write(released)

    async def _ask_for(self, lease: Lease) -> None:
        """The holder finds it when it next renews."""
        metadata = {**lease["metadata"], "annotations": {**lease["metadata"]["annotations"], _WANTED: self._identity}}
        with contextlib.suppress(ApiError):
            await self._write({**lease, "metadata": metadata})

    async def _take(self, seen: Lease | None) -> Term | None:
        loop = asyncio.get_running_loop()
        spec = dict(seen["spec"]) if seen is not None else {}
        before = dict((seen or {}).get("metadata", {}).get("annotations") or {})
        term = Term(int(spec.get("leaseTransitions") or 0) + 1, before)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION),
            "leaseTransitions": term.generation,
            "acquireTime": _now(),
            "renewTime": _now(),
        }
        began = loop.time()
        body: Lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        marks = {k: v for k, v in before.items() if k not in (_UNABLE, _WANTED)}
        body["metadata"] = {**seen["metadata"], "annotations": marks} if seen is not None else {"name": self._name}
        try:
            self._lease = await self._write(body, create=seen is None)
        except ApiError as error:
            if error.code == 409:  # another was faster
                return None
            raise
        term.good = began
        return term

    async def _write(self, lease: Lease, *, create: bool = False) -> Lease:
        method, path = ("POST", self._collection) if create else ("PUT", self._path)
        _, data = await self._api.call(method, path, body=msgspec.json.encode(lease), timeout=_CALL, paced=False)
        return decoded(data, dict[str, Any])

    # --- being it

    async def _renew(self, term: Term) -> None:
        """Ends when the lease is lost, or may be."""
        loop = asyncio.get_running_loop()
        self._unable_since = 0.0
        while True:
            await asyncio.sleep(RENEW)
            began = loop.time()
            if not term.valid:
                return
            self._unable_since = 0.0 if self._able() else self._unable_since or began
            try:
                async with asyncio.timeout_at(term.good + DEADLINE):
                    self._lease = await self._write(self._renewed(term))
            except ApiError as error:
                if error.code == 409 and (not await self._still_mine(term) or self._gives_way()):
                    return
                if error.code != 409:
                    continue
            except (Unreachable, TimeoutError):
                continue
            term.good = began

    @property
    def _unable(self) -> bool:
        return bool(self._unable_since) and asyncio.get_running_loop().time() - self._unable_since >= PATIENCE

    def _gives_way(self) -> bool:
        wanted = (self._lease["metadata"].get("annotations") or {}).get(_WANTED, "")
        if wanted and self._unable:
            log.warning("giving way", lease=self._name, to=wanted)
        return bool(wanted) and self._unable

    def _renewed(self, term: Term) -> Lease:
        metadata = {**self._lease["metadata"]}
        marks = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (_UNABLE, _WANTED)}
        metadata["annotations"] = {**marks, **term.notes, **({_UNABLE: "true"} if self._unable else {})}
        return {**self._lease, "metadata": metadata, "spec": {**self._lease["spec"], "renewTime": _now()}}

    async def _still_mine(self, term: Term) -> bool:
        """A write of ours may have been carried out and its answer lost."""
        with contextlib.suppress(ApiError, Unreachable):
            now = await self._read()
            if now is None:
                return False
            spec = now["spec"]
            if spec.get("holderIdentity") != self._identity or spec.get("leaseTransitions") != term.generation:
                return False
            self._lease = now
            return True
        return term.valid

    async def _release(self, term: Term) -> None:
        if not term.valid:
            return
        self._unable_since = 0.0  # nobody is, where nobody holds it
        lease = self._renewed(term)
        lease["spec"] = {**lease["spec"], "holderIdentity": ""}
        with contextlib.suppress(ApiError, Unreachable):
            await self._write(lease)


async def _ended(task: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
