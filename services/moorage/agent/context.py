"""What all apps of a cluster share, and which objects an app is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

import structlog

from moorage.kube import MANAGER, Api, ApiDiscovery, ApiError, ApiResource, Term, Unreachable
from moorage.model.desired import DesiredApp
from moorage.podspec import object_key

from .app_records import APP_LABEL, OWNER, AppRecord, AppRecordContent, AppRecords, Ref, label_of
from .core.cluster_state import ClusterState
from .object_watches import Live, ObjectWatches
from .ownership import MARK, OwnershipRegistry

log = structlog.get_logger("agent")

#: What cannot be followed is compared this often, or less so that all of it asks at most this many times a second.
COMPARE, PER_SECOND = 30.0, 2.0
#: Who takes over waits this long at most until all that was ever made here was listed; what is seen later is taken in then.
LISTED = 10.0

Manifest = dict[str, Any]
Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


class Settled(Protocol):
    """An app, as others of the same cluster see it."""

    label: str
    record: AppRecord

    def found(self, kind: ApiResource, ref: Ref) -> None: ...


class ClusterContext:
    def __init__(self, api: Api, term: Term, records: AppRecords, kinds: ApiDiscovery, following: ObjectWatches, view: ClusterState) -> None:  # fmt: skip
        self.api, self.term, self.records, self.kinds = api, term, records, kinds
        self.following, self.view = following, view
        self.together = asyncio.Semaphore(16)
        self.spaces = asyncio.Lock()  # apps that start together would make one namespace twice
        self.unfollowed: dict[str, int] = {}  # per app, objects that somebody has to look at
        self.apps: Mapping[str, Settled] = {}
        self._adopt: Callable[[AppRecord], Settled] | None = None

    def among(self, apps: Mapping[str, Settled], adopt: Callable[[AppRecord], Settled]) -> None:
        self.apps, self._adopt = apps, adopt

    def others_in(self, namespace: str, label: str) -> bool:
        return any(
            ref.namespace == namespace for a in self.apps.values() if a.label != label for ref in a.record.content.refs
        )

    def compare_every(self) -> float:
        return max(COMPARE, sum(self.unfollowed.values()) / PER_SECOND)

    # --- what was made and not written down

    async def search(self, spawn: Spawn) -> None:
        """From here on everything is seen that was made under a mark."""
        seeking = [spawn(self._seek(*which)) for which in self.records.marks.kinds]
        if seeking and (await asyncio.wait(seeking, timeout=LISTED))[1]:
            log.warning("not all that was made here can be listed yet")

    async def _seek(self, api_version: str, name: str) -> None:
        pause = 1.0
        while True:
            try:
                kind = await self.kinds.find(api_version, name)
                break
            except (ApiError, Unreachable) as error:
                log.warning("a kind cannot be asked for", kind=name, api_version=api_version, error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, 60.0)
        if kind is not None:  # else it is no longer served, and nothing of it is there
            self.following.follow(kind)
            await self.following.asked(kind)

    def seen(self, kind: ApiResource, live: Live) -> None:
        """An object of whatever app: is it written down?"""
        lost = lost_of(self.records.marks, kind, live)
        if lost is None:
            return
        app = self.apps.get(label_of(lost.group, lost.app))
        if app is None and self._adopt is not None:
            app = self._adopt(AppRecord(AppRecordContent(group=lost.group, app=lost.app)))
        if app is not None:
            app.found(kind, lost.ref)

    async def findable(self, ref: Ref) -> ApiResource | None:
        """The kind of what would be found again though nobody wrote it down. Secrets would not: they are not listed."""
        try:
            kind = await self.kinds.find(ref.api_version, ref.kind)
        except ApiError:
            return None
        return kind if kind is not None and kind.kind != "Secret" and self.following.sees(kind) else None

    async def kind(self, ref: Ref) -> ApiResource:
        kind = await self.kinds.find(ref.api_version, ref.kind)
        if kind is None:
            raise ApiError(422, "NoKind", f"the cluster has no kind {ref.kind} in {ref.api_version}")
        return kind


class Owner(NamedTuple):
    """An app, as it stands on what it made."""

    label: str
    name: str

    @property
    def manager(self) -> str:
        """On objects of others each app has a name of its own: what one takes back stays another's."""
        return f"{MANAGER}-{self.label}"


class Lost(NamedTuple):
    group: str
    app: str
    ref: Ref


def lost_of(marks: OwnershipRegistry, kind: ApiResource, live: Live) -> Lost | None:
    """What an object says of itself, if it is one that was made here: copies of it say the same, and their mark is wrong."""
    meta = live["metadata"]
    notes = meta.get("annotations") or {}
    group, _, app = str(notes.get(OWNER, "")).rpartition(" ")
    namespace, name = str(meta.get("namespace", "")), str(meta["name"])
    if not group or (meta.get("labels") or {}).get(APP_LABEL) != label_of(group, app):
        return None
    if notes.get(MARK) != marks.of(kind, namespace, name):
        return None
    return Lost(group, app, Ref(kind.api_version, kind.kind, namespace or "default", name))


def objects_of(desired: DesiredApp) -> dict[Ref, Manifest]:
    """Returns the objects to apply. Raises ValueError if one has no name."""
    for obj in desired.objects:
        if not isinstance(obj.get("metadata"), dict) or not obj["metadata"].get("name"):
            raise ValueError(f"{object_key(obj)}: an object without a name cannot be applied")
    return {ref_of(obj): obj for obj in desired.objects}


def ref_of(obj: Manifest) -> Ref:
    meta = obj["metadata"]
    return Ref(
        str(obj.get("apiVersion", "")),
        str(obj.get("kind", "")),
        str(meta.get("namespace") or "default"),
        str(meta["name"]),
    )
