"""Finds objects that the agent created but that no record names, because their creator ended in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from moorage.bus import until_done
from moorage.kube import ApiError, ApiResource, Unreachable

from .app_records import AppRecord, AppRecordContent
from .context import ClusterContext
from .core.owned_objects import Live, Ref, owned_object
from .object_watches import Spawn

log = structlog.get_logger("agent")

#: After a take-over the agent waits this long until all kinds are listed; objects seen later are adopted then.
LIST_TIMEOUT = 10.0

#: Adopts an object into the app of a record. An app that runs already keeps its own record.
Adopt = Callable[[AppRecord, ApiResource, Ref], None]


class UnrecordedObjects:
    def __init__(self, cluster: ClusterContext, adopt: Adopt) -> None:
        self._cluster, self._adopt = cluster, adopt

    async def search(self, spawn: Spawn) -> None:
        """Watches all kinds of which objects may have been created without a record."""
        kinds = self._cluster.records.ownership.kinds
        searches = [spawn(self._watch(api_version, kind)) for api_version, kind in kinds]
        if searches and (await asyncio.wait(searches, timeout=LIST_TIMEOUT))[1]:
            log.warning("some kinds cannot be listed yet, so objects without a record may be found later")

    async def _watch(self, api_version: str, kind_name: str) -> None:
        kind = None
        async for attempt in until_done((ApiError, Unreachable), first=1.0, longest=60.0):
            with attempt:
                kind = await self._cluster.discovery.find(api_version, kind_name)
        if kind is not None:  # a kind that is no longer served has no objects
            self._cluster.watches.watch(kind)
            await self._cluster.watches.wait_listed(kind)

    def learn_object(self, kind: ApiResource, live: Live) -> None:
        """Takes an object of any app from a watch."""
        owned = owned_object(self._cluster.records.ownership.id, kind, live)
        if owned is not None:
            self._adopt(AppRecord(AppRecordContent(group=owned.group, app=owned.app)), kind, owned.ref)
