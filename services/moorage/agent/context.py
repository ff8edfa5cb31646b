"""Holds the state that all apps of a cluster share: the API server, watches, records, and the list of other apps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from moorage.kube import Api, ApiDiscovery, ApiError, ApiResource, LeaderTerm

from .app_records import AppRecord, AppRecords
from .core.cluster_state import ClusterState
from .core.owned_objects import Owner, Ref, label_of
from .object_watches import ObjectWatches

#: Seconds between two comparisons of objects that no watch reports, or more, so that there are at most this many a second.
COMPARE, COMPARES_PER_SECOND = 30.0, 2.0
#: Objects that are written at once.
_WRITES = 16


class RecordedApp(Protocol):
    """An app as other apps of the same cluster see it."""

    @property
    def label(self) -> str: ...

    @property
    def record(self) -> AppRecord: ...

    @property
    def succeeds(self) -> str: ...

    @property
    def is_removing(self) -> bool: ...

    def take_back(self) -> None: ...


class ClusterContext:
    """`apps` is by label."""

    def __init__(
        self,
        api: Api,
        term: LeaderTerm,
        records: AppRecords,
        watches: ObjectWatches,
        state: ClusterState,
        apps: Mapping[str, RecordedApp],
    ) -> None:
        self.api, self.term, self.records, self.watches, self.state = api, term, records, watches, state
        self.discovery = ApiDiscovery(api)
        self.allocates = False  # the agent allocates claims to devices itself
        self.objects_changed: Callable[[], None] = lambda: None  # called when an app wants other objects
        self.writes = asyncio.Semaphore(_WRITES)
        self.namespace_writes = asyncio.Lock()  # apps that start together would create one namespace twice
        self.unwatched: dict[str, int] = {}  # app label → number of its objects that no watch reports
        self._apps = apps

    def has_other_app_in(self, namespace: str, label: str) -> bool:
        return any(
            ref.namespace == namespace
            for app in self._apps.values()
            if app.label != label
            for ref in app.record.content.refs
        )

    # --- objects that pass from a group to the one that takes its place

    def is_handed_over(self, owner: Owner, other: str) -> bool:
        """Returns whether an object of this owner rightly belongs to the other one, by its name, which takes its place."""
        app = self._app_of(other)
        return app is not None and app.succeeds == owner.group and not app.is_removing

    def may_take(self, owner: Owner, other: str) -> bool:
        """Returns whether this owner may take an object from the other one, by its name: it takes its place, or gets the object back
        from an app that took its place and is removed."""
        mine, app = self._apps.get(owner.label), self._app_of(other)
        if mine is not None and mine.succeeds == other.rpartition(" ")[0]:
            return True
        return app is not None and app.succeeds == owner.group and app.is_removing

    def give_back(self, owner: Owner, ref: Ref) -> bool:
        """Lets the app whose object this owner took over have it back. Returns whether there is one that wants it."""
        mine = self._apps.get(owner.label)
        for app in self._apps.values() if mine is not None and mine.succeeds else ():
            content = app.record.content
            theirs = mine is not None and content.group == mine.succeeds and not app.is_removing
            if theirs and any(known.place == ref.place for known in content.refs):
                app.take_back()
                return True
        return False

    def _app_of(self, owner: str) -> RecordedApp | None:
        group, _, app = owner.rpartition(" ")
        return self._apps.get(label_of(group, app))

    def compare_interval(self) -> float:
        return max(COMPARE, sum(self.unwatched.values()) / COMPARES_PER_SECOND)

    async def kind(self, ref: Ref) -> ApiResource:
        kind = await self.discovery.find(ref.api_version, ref.kind)
        if kind is None:
            raise ApiError(422, "NoKind", f"the cluster has no kind {ref.kind} in {ref.api_version}")
        return kind

    async def findable_kind(self, ref: Ref) -> ApiResource | None:
        """Returns the kind if an object of it would be found again although no record names it. Secrets would not: the
        agent has no right to list them."""
        try:
            kind = await self.discovery.find(ref.api_version, ref.kind)
        except ApiError:
            return None
        return kind if kind is not None and kind.kind != "Secret" and self.watches.is_complete(kind) else None
