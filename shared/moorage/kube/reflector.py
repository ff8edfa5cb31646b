"""A collection of an API server, followed: listed in pages, then watched, listed again when the server has forgotten where
we were. Whoever follows sees every object that is there and every one that went, also those that went unseen."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from .api import WELL_AFTER, Api, ApiError, Silent, Unreachable, decoded
from .objects import Key, Object

log = structlog.get_logger("kube")

PAGE = 500
#: The server ends a watch after this many seconds by itself.
WATCH = (240.0, 300.0)
#: A watch that says nothing for so long may be dead without anybody knowing; it is opened again where it stopped.
SILENCE = (40.0, 50.0)
FIRST_DELAY, LAST_DELAY = 0.4, 2.0
#: What the server does not serve or allow is asked for again after this long.
ABSENT = 30.0
_STEADY = 5.0
_GONE_AFTER = 5


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


class Reflector(Generic[T]):
    """`decode` makes of an object's JSON what `put` gets; `drop` gets who went. Both are quick and do not fail. `synced` is
    set once the first list is whole; `absent` says why the server does not let us follow, while it does not."""

    def __init__(
        self,
        api: Api,
        path: str,
        decode: Callable[[bytes | msgspec.Raw], T],
        put: Callable[[Key, T], None],
        drop: Callable[[Key, str], None],
        *,
        labels: str = "",
        synced: Callable[[], None] | None = None,
    ) -> None:
        self._api, self._path = api, path
        self._decode, self._put, self._drop = decode, put, drop
        self._selector = {"labelSelector": labels} if labels else {}
        self._on_synced = synced
        self._known: dict[Key, str] = {}  # uid
        self._version = ""
        self._paged = True
        self._failures = self._refusals = 0
        self._open = False
        self._heard = 0.0
        self.synced = asyncio.Event()
        self.listed = False
        self.absent = ""
        self.restarts = 0

    def current(self) -> float:
        """The last moment of the loop's clock for which the view is known to be whole; 0 before the first list."""
        return asyncio.get_running_loop().time() if self._open else self._heard

    async def run(self) -> None:
        """For ever."""
        while True:
            clean = False
            try:
                fresh = not self._version
                if fresh:
                    await self._list()
                clean = await self._watch(fresh)
            except ApiError as error:
                await self._refused(error)
            except Unreachable as error:
                self._note(str(error))
            finally:
                self._open = False
            if not clean:
                await self._pause()

    def _note(self, why: str) -> None:
        """Said once per spell of failures, not with every try."""
        if self._failures <= 1:
            log.warning("following is interrupted", path=self._path, why=why)

    async def _refused(self, error: ApiError) -> None:
        if error.expired:
            self._version = ""
        elif error.code in (401, 403, 404, 405):
            await self._wait_for_leave(error)
        else:
            if error.code < 500 and error.code != 429:
                self._version = ""
            self._note(error.message)

    async def _wait_for_leave(self, error: ApiError) -> None:
        """Not served or not allowed: for good, or while a server that has just started still loads its rules. What is known
        stays until the kind itself is gone for a while."""
        if not self.absent:
            log.warning("not followed", path=self._path, why=error.message)
        self.absent = error.message or f"HTTP {error.code}"
        self._version = ""
        self._refusals += 1
        if error.code == 404 and self._refusals > _GONE_AFTER:
            self._replace({})
        longest = ABSENT if not self.listed else min(ABSENT, 2.0 ** min(self._refusals - 1, 8))
        self._finish()
        await asyncio.sleep(longest * random.uniform(0.5, 1))

    async def _pause(self) -> None:
        """Also after a clean end that came at once: else it would be tried thousands of times a second."""
        self._failures += 1
        self.restarts += 1
        top = min(LAST_DELAY, FIRST_DELAY * 2 ** min(self._failures - 1, 8))
        await asyncio.sleep(top * random.uniform(0.5, 1))

    # --- listing

    async def _list(self) -> None:
        seen: dict[Key, str] = {}
        query = {"limit": str(PAGE)} if self._paged else {}
        version, following = "", ""
        while True:
            more = {"continue": following} if following else {}
            if not following:
                await self._api.following.turn()
            try:
                _, data = await self._api.call(
                    "GET",
                    self._path,
                    query={**self._selector, **query, **more},
                    timeout=30,
                    paced=False,
                )
            except ApiError as error:
                if error.expired and following:
                    self._paged = False  # pages went out of date while we read them: once without
                raise
            page = decoded(data, _Page)
            for raw in page.items or ():
                self._take(raw, seen)
            version, following = page.metadata.resource_version, page.metadata.next or ""
            if not following:
                break
            await asyncio.sleep(0)
        if not version:
            raise Unreachable(f"{self._path}: a list without a version")
        self._paged = True
        self._replace(seen)
        self._version = version
        self.absent, self._refusals, self.listed = "", 0, True
        self._heard = asyncio.get_running_loop().time()
        self._finish()

    def _take(self, raw: msgspec.Raw, seen: dict[Key, str]) -> None:
        try:
            meta = _metadata(raw).metadata
            item = self._decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreachable(f"{self._path}: an object that cannot be read: {error}") from error
        key = Key(meta.namespace, meta.name)
        before = self._known.get(key)
        if before is not None and before != meta.uid:
            self._drop(key, before)  # another one of the same name
        self._known[key] = seen[key] = meta.uid
        self._put(key, item)

    def _replace(self, seen: dict[Key, str]) -> None:
        """Those that are no longer there went while nobody looked."""
        for key in [key for key in self._known if key not in seen]:
            self._drop(key, self._known.pop(key))

    def _finish(self) -> None:
        first = not self.synced.is_set()
        self.synced.set()
        if self._on_synced is not None and first:
            self._on_synced()

    # --- watching

    async def _watch(self, fresh: bool) -> bool:
        """`fresh`: the list that it goes on from has just been read. True if it ended as watches end: nothing is wrong, go on at once."""
        query = {
            **self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(random.uniform(*WATCH))),
        }
        loop = asyncio.get_running_loop()
        opened = 0.0
        well: asyncio.TimerHandle | None = None
        try:
            async with contextlib.aclosing(
                self._api.stream(self._path, query, random.uniform(*SILENCE), urgent=fresh)
            ) as lines:
                async for line in lines:
                    if not line:
                        opened = loop.time()
                        well = loop.call_later(WELL_AFTER, self._api.is_well)
                        self._open = True
                        continue
                    self._heard = loop.time()
                    self._event(line)
        except Silent:
            if self._steady(opened):
                return True
            raise
        except Unreachable:
            self._api.is_failing()
            if self._steady(opened):
                return True
            raise
        except ApiError as error:
            if error.expired or error.passing:
                self._api.following.fail()
            if error.expired and self._failures == 0:  # the first time, list at once
                self._version, self._failures = "", 1
                return True
            raise
        finally:
            self._open = False
            if well is not None:
                well.cancel()
        if loop.time() - opened < WATCH[0]:
            self._api.following.fail()  # early: servers that stop end their watches properly
        return self._steady(opened)

    def _steady(self, opened: float) -> bool:
        """A watch that lasted ends a spell of failures."""
        if not opened or asyncio.get_running_loop().time() - opened < _STEADY:
            return False
        self._failures = 0
        return True

    def _event(self, line: bytes) -> None:
        try:
            event = _event(line)
            if event.type == "ERROR":
                status = _error(event.object)
                raise ApiError(
                    int(status.get("code") or 500), str(status.get("reason", "")), str(status.get("message", ""))
                )
            meta = _metadata(event.object).metadata
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise Unreachable(f"{self._path}: something that is no event: {line[:80]!r}") from error
        key = Key(meta.namespace, meta.name)
        if event.type in ("ADDED", "MODIFIED"):
            self._take(event.object, {})
        elif event.type == "DELETED":
            uid = self._known.pop(key, None)
            if uid is not None:
                self._drop(key, uid)
        if meta.resource_version:
            self._version = meta.resource_version
