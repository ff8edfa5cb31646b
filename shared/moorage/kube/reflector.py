"""Reflects a collection of an API server: lists it in pages, watches it from the list's resourceVersion, and lists it again
when that version has expired.

Handlers see every object and every deletion, also of objects that were deleted while no watch was open.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from .api import HEALTHY_AFTER, Api, ApiError, Unreachable, WatchTimeout, decode
from .objects import Key, Object

log = structlog.get_logger("kube")

PAGE_SIZE = 500
#: The server ends a watch after a random number of seconds in this range.
WATCH_TIMEOUT = (240.0, 300.0)
#: A watch without an event or a bookmark for this long may be dead. It is opened again from its last version.
IDLE_TIMEOUT = (40.0, 50.0)
MIN_BACKOFF, MAX_BACKOFF = 0.4, 2.0
#: A collection that the server does not serve or allow is tried again after this many seconds.
ABSENT_RETRY = 30.0
_STABLE_AFTER = 5.0
_MAX_NOT_FOUND = 5


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, kw_only=True):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    next: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_event = msgspec.json.Decoder(_Event).decode
_metadata = msgspec.json.Decoder(Object).decode
_error = msgspec.json.Decoder(dict[str, Any]).decode

T = TypeVar("T")


async def list_objects(api: Api, path: str, labels: str) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the objects of a collection. They are read in pages and one by one, so that memory never holds them all."""
    query = {"labelSelector": labels, "limit": str(PAGE_SIZE)}
    while True:
        _, data = await api.call("GET", path, query=query, timeout=30)
        page = decode(data, _Page)
        for raw in page.items or ():
            yield decode(bytes(raw), dict[str, Any])
        if not page.metadata.next:
            return
        query["continue"] = page.metadata.next


class Reflector(Generic[T]):
    """Calls `put` with every object, as `decode` reads it, and `drop` with every deleted one; both are fast and never raise.
    `synced` is set after the first complete list. `absent` is the reason while the server does not serve the collection."""

    def __init__(
        self,
        api: Api,
        path: str,
        decode: Callable[[bytes | msgspec.Raw], T],
        put: Callable[[Key, T], None],
        drop: Callable[[Key, str], None],
        *,
        labels: str = "",
        fields: str = "",
        synced: Callable[[], None] | None = None,
    ) -> None:
        self._api, self._path = api, path
        self._decode, self._put, self._drop = decode, put, drop
        self._selector = {"labelSelector": labels} if labels else {}
        if fields:
            self._selector["fieldSelector"] = fields
        self._on_synced = synced
        self._known: dict[Key, str] = {}  # uid
        self._resource_version = ""
        self._paged = True
        self._failures = self._refusals = 0
        self._connected = False
        self._last_event = 0.0
        self.synced = asyncio.Event()
        self.listed = False
        self.absent = ""
        self.restarts = 0

    def current(self) -> float:
        """Returns the last time, by the clock of the event loop, at which the view is known to be complete; 0 before the
        first list."""
        return asyncio.get_running_loop().time() if self._connected else self._last_event

    async def run(self) -> None:
        """Lists and watches forever."""
        while True:
            clean = False
            try:
                relist = not self._resource_version
                if relist:
                    await self._list()
                clean = await self._watch(after_list=relist)
            except ApiError as error:
                await self._on_error(error)
            except Unreachable as error:
                self._log_interruption(str(error))
            finally:
                self._connected = False
            if not clean:
                await self._back_off()

    def _log_interruption(self, reason: str) -> None:
        """Logs the first of consecutive failures only."""
        if self._failures <= 1:
            log.warning("watch interrupted", path=self._path, reason=reason)

    async def _on_error(self, error: ApiError) -> None:
        if error.is_expired:
            self._resource_version = ""
        elif error.code in (401, 403, 404, 405):
            await self._wait_until_served(error)
        else:
            if error.code < 500 and error.code != 429:
                self._resource_version = ""
            self._log_interruption(error.message)

    async def _wait_until_served(self, error: ApiError) -> None:
        """Waits while the collection is not served or not allowed: for good, or because a server that has just started still
        loads its rules. Known objects are dropped only when the kind itself is gone for a while."""
        if not self.absent:
            log.warning("collection not available", path=self._path, reason=error.message)
        self.absent = error.message or f"HTTP {error.code}"
        self._resource_version = ""
        self._refusals += 1
        if error.code == 404 and self._refusals > _MAX_NOT_FOUND:
            self._drop_missing({})
        longest = ABSENT_RETRY if not self.listed else min(ABSENT_RETRY, 2.0 ** min(self._refusals - 1, 8))
        self._set_synced()
        await asyncio.sleep(longest * random.uniform(0.5, 1))

    async def _back_off(self) -> None:
        """Waits before the next attempt, also after a clean end that came at once: otherwise a server that ends watches at
        once would be asked thousands of times a second."""
        self._failures += 1
        self.restarts += 1
        delay = min(MAX_BACKOFF, MIN_BACKOFF * 2 ** min(self._failures - 1, 8))
        await asyncio.sleep(delay * random.uniform(0.5, 1))

    # --- listing

    async def _list(self) -> None:
        """Lists the whole collection, and drops the objects that are not in it."""
        listed: dict[Key, str] = {}
        continue_token = ""
        await self._api.watch_pacer.wait_turn()
        while True:
            page = await self._page(continue_token)
            for raw in page.items or ():
                key, uid = self._put_object(raw)
                listed[key] = uid
            version, continue_token = page.metadata.resource_version, page.metadata.next or ""
            if not continue_token:
                break
            await asyncio.sleep(0)
        if not version:
            raise Unreachable(f"{self._path}: a list without a resourceVersion")
        self._paged = True
        self._drop_missing(listed)
        self._resource_version = version
        self.absent, self._refusals, self.listed = "", 0, True
        self._last_event = asyncio.get_running_loop().time()
        self._set_synced()

    async def _page(self, continue_token: str) -> _Page:
        query = dict(self._selector)
        if self._paged:
            query["limit"] = str(PAGE_SIZE)
        if continue_token:
            query["continue"] = continue_token
        try:
            _, data = await self._api.call("GET", self._path, query=query, timeout=30, paced=False)
        except ApiError as error:
            if error.is_expired and continue_token:
                self._paged = False  # the list expired between its pages: the next one is read in a single request
            raise
        return decode(data, _Page)

    def _put_object(self, raw: msgspec.Raw) -> tuple[Key, str]:
        """Hands over an object, and returns its key and uid."""
        try:
            meta = _metadata(raw).metadata
            item = self._decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreachable(f"{self._path}: an object cannot be decoded: {error}") from error
        key = Key(meta.namespace, meta.name)
        before = self._known.get(key)
        if before is not None and before != meta.uid:
            self._drop(key, before)  # an earlier object of the same name
        self._known[key] = meta.uid
        self._put(key, item)
        return key, meta.uid

    def _drop_missing(self, listed: dict[Key, str]) -> None:
        """Drops known objects that are not listed: they were deleted while no watch was open."""
        for key in [key for key in self._known if key not in listed]:
            self._drop(key, self._known.pop(key))

    def _set_synced(self) -> None:
        first = not self.synced.is_set()
        self.synced.set()
        if self._on_synced is not None and first:
            self._on_synced()

    # --- watching

    async def _watch(self, *, after_list: bool) -> bool:
        """Watches from the current version. `after_list`: the list has just been read, so the watch goes before other
        requests. Returns True if the watch ended normally, so that the next one may begin at once."""
        query = {
            **self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(round(random.uniform(*WATCH_TIMEOUT))),
        }
        loop = asyncio.get_running_loop()
        opened = 0.0
        healthy: asyncio.TimerHandle | None = None
        stream = self._api.stream(self._path, query, random.uniform(*IDLE_TIMEOUT), urgent=after_list)
        try:
            async with contextlib.aclosing(stream) as lines:
                async for line in lines:
                    if not line:
                        opened = loop.time()
                        healthy = loop.call_later(HEALTHY_AFTER, self._api.mark_healthy)
                        self._connected = True
                        continue
                    self._last_event = loop.time()
                    self._on_event(line)
        except WatchTimeout:
            if self._was_stable(opened):
                return True
            raise
        except Unreachable:
            self._api.mark_failing()
            if self._was_stable(opened):
                return True
            raise
        except ApiError as error:
            if error.is_expired or error.is_transient:
                self._api.watch_pacer.mark_failing()
            if error.is_expired and self._failures == 0:  # relist at once the first time
                self._resource_version, self._failures = "", 1
                return True
            raise
        finally:
            self._connected = False
            if healthy is not None:
                healthy.cancel()
        if loop.time() - opened < WATCH_TIMEOUT[0]:
            self._api.watch_pacer.mark_failing()  # an early end: a server that shuts down ends its watches properly
        return self._was_stable(opened)

    def _was_stable(self, opened: float) -> bool:
        """Returns whether the watch lasted long enough to end a series of failures."""
        if not opened or asyncio.get_running_loop().time() - opened < _STABLE_AFTER:
            return False
        self._failures = 0
        return True

    def _on_event(self, line: bytes) -> None:
        try:
            event = _event(line)
            if event.type == "ERROR":
                status = _error(event.object)
                raise ApiError(
                    int(status.get("code") or 500), str(status.get("reason", "")), str(status.get("message", ""))
                )
            meta = _metadata(event.object).metadata
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise Unreachable(f"{self._path}: not a watch event: {line[:80]!r}") from error
        key = Key(meta.namespace, meta.name)
        if event.type in ("ADDED", "MODIFIED"):
            self._put_object(event.object)
        elif event.type == "DELETED":
            uid = self._known.pop(key, None)
            if uid is not None:
                self._drop(key, uid)
        if meta.resource_version:
            self._resource_version = meta.resource_version
