"""One app of a group in this cluster: brought to what was decided last, kept there, and taken away when it is to go. One
task per app, so versions come in order; whatever is overtaken while it is applied is left at the next object."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
import structlog

from moorage.bus.failpoints import reached
from moorage.kube import ApiError, ApiResource, Unreachable, apply_order
from moorage.kube.apply import gates
from moorage.model.desired import Confirm, DesiredApp, ObjectStatus
from moorage.podspec import object_key
from moorage.telemetry import HANDLED, Handled, tracing

from .app_records import AppRecord, AppRecordContent, Ref, label_of, names
from .context import ClusterContext, Manifest, Owner, objects_of
from .core.readiness import readiness_of
from .fenced_configmap import StaleTerm
from .managed_object import ManagedObject, ObjectWriter
from .object_health import EVENTS_EVERY, check_health

log = structlog.get_logger("agent")

#: What failed is tried again after so many seconds, more each time.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
#: Everything is looked at again this often; not-ready things that cannot be followed, more often.
RESYNC, POLL = 300.0, 5.0
#: A custom resource waits this long for its kind to be served.
ESTABLISHED = 15.0


class Overtaken(Exception):
    """Something newer was decided; nothing more of this version is applied."""


class AppReconciler:
    """`say` gets what became of it, whenever that changes."""

    def __init__(self, site: ClusterContext, record: AppRecord, say: Callable[[Confirm], None]) -> None:
        self.site, self.record, self._say = site, record, say
        self.group, self.app = record.content.group, record.content.app
        self.label = label_of(self.group, self.app)
        self._hands = ObjectWriter(site, Owner(self.label, f"{self.group} {self.app}"))
        self.want: DesiredApp | None = None
        self.wake = asyncio.Event()
        self.gone = False
        self._things: dict[Ref, ManagedObject] = {}
        self._invalid: list[ObjectStatus] = []  # of a version that cannot be applied at all
        self._asked: set[str] = set()  # the objects that somebody named
        self._extra: list[Ref] = []  # what earlier versions made and this one has not
        self._found: dict[Ref, ApiResource] = {}  # what somebody made for this app and is not written down
        self._done = 0  # version whose objects were all tried
        self._retry, self._retry_at = 0, 0.0
        self._said: Confirm | None = None
        self._traceparent = ""  # what confirmations go on with

    def decide(self, desired: DesiredApp) -> None:
        if self.want is None or desired.version > self.want.version:
            self.want = desired
            self._retry, self._retry_at = 0, 0.0
            self.wake.set()

    async def run(self) -> None:
        """Until the lease is lost; what the server refuses stays with the object and is tried again."""
        due = 0.0
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due or None):
                    await self.wake.wait()
            self.wake.clear()
            HANDLED.set(Handled(self.group, cause=self.want.decision if self.want is not None else ""))  # for log lines
            try:
                if self._found:
                    await self._take_in()
                if self.want is None:
                    due = 0.0
                    continue
                pause = await self._remove(self.want) if self.want.remove else await self._bring(self.want)
            except Overtaken:
                pause = 0.0
            except (ApiError, Unreachable) as error:
                log.warning("not done yet", group=self.group, app=self.app, error=str(error))
                pause = self._backoff()
            due = loop.time() + pause

    def _backoff(self) -> float:
        self._retry += 1
        return min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(self._retry - 1, 8))

    def _current(self, desired: DesiredApp) -> None:
        if self.want is not desired:
            raise Overtaken
        if not self.site.term.valid:
            raise StaleTerm("the lease was not renewed in time")

    @property
    def _refused(self) -> bool:
        return any(thing.refused for thing in self._things.values())

    # --- bringing it there

    async def _bring(self, desired: DesiredApp) -> float:
        """Apply what is new, repair what drifted, look at how it is. Back with the seconds until the next look."""
        if self._done != desired.version:
            with tracing.stored_span("apply", desired.traceparent, **{"moorage.app": self.app}):
                self._traceparent = tracing.traceparent()
                await self._apply(desired)
        else:
            await self._repair(desired)
        if self._extra and not self._refused:
            await self._prune(desired)
        waiting = await self._tell()
        loop = asyncio.get_running_loop()
        if not self._refused:
            self._retry, self._retry_at = 0, 0.0
            return waiting
        if loop.time() >= self._retry_at:
            self._retry_at = loop.time() + self._backoff()
        return min(waiting, self._retry_at - loop.time())

    async def _apply(self, desired: DesiredApp) -> None:
        try:
            objects = objects_of(desired)
        except ValueError as error:
            self._invalid = [
                ObjectStatus(object=object_key(o), state="Failed", message=str(error)) for o in desired.objects
            ]
            self._things, self._extra, self._done = {}, [], desired.version
            return
        self._invalid = []
        self._asked = {ref.key for ref in objects}
        known = dict.fromkeys(self.record.content.refs)
        objects = {**await self._missing_namespaces(objects), **objects}
        fresh = [ref for ref in objects if ref not in known]
        self._things = {ref: self._thing(ref, obj) for ref, obj in objects.items()}
        levels = sorted({apply_order(ref.kind) for ref in objects})
        first = await self._first([self._things[ref] for ref in fresh if apply_order(ref.kind) == levels[0]])
        self.record.refer([*known, *fresh], desired.version)
        settled: set[Ref] = set()
        await _all([*(self._make(desired, thing, settled) for thing in first), self._write_down()])
        reached("agent.recorded")
        untried = set(fresh) - {thing.ref for thing in first}
        for level in levels:
            things = [thing for ref, thing in self._things.items() if apply_order(ref.kind) == level]
            self._current(desired)
            await _all(self._try(desired, t, fresh=t.ref in untried) for t in things if t.ref not in settled)
            await self._established(desired, things)
        reached("agent.applied")
        self._current(desired)
        self._done = desired.version
        kept = {ref.place for ref in objects}
        self._extra = [ref for ref in known if ref.place not in kept]

    def _thing(self, ref: Ref, obj: Manifest) -> ManagedObject:
        thing = self._things.get(ref) or ManagedObject(ref, obj)
        thing.obj = obj
        return thing

    async def _write_down(self) -> None:
        """Whoever comes after us must know."""
        if self.record.behind:
            await self.site.records.store(self.record)

    async def _first(self, things: list[ManagedObject]) -> list[ManagedObject]:
        """Those that need not wait until they are written down: where nothing stands as far as we see, and whoever comes
        after us finds them by their marks."""
        kinds = [(thing, await self.site.findable(thing.ref)) for thing in things]
        first = [
            (thing, kind)
            for thing, kind in kinds
            if kind is not None and self.site.following.get(kind, thing.ref.namespace, thing.ref.name) is None
        ]
        try:
            if first:
                await self.site.records.marks.note(kind for _, kind in first)
        except ApiError as error:
            log.warning("the marks cannot be written", error=error.message)
            return []
        return [thing for thing, _ in first]

    async def _make(self, desired: DesiredApp, thing: ManagedObject, settled: set[Ref]) -> None:
        """One object, if nothing stands there; what does is not touched before it is written down."""
        async with self._room(thing):
            self._current(desired)
            try:
                if not await self._hands.make(thing):
                    return
                thing.refused = ""
                reached("agent.made")
            except ApiError as error:
                thing.refused = error.message
            settled.add(thing.ref)

    def _room(self, thing: ManagedObject) -> asyncio.Semaphore | asyncio.Lock:
        return self.site.spaces if thing.ref.kind == "Namespace" else self.site.together

    async def _missing_namespaces(self, objects: dict[Ref, Manifest]) -> dict[Ref, Manifest]:
        """Namespaces that objects are in, that no manifest makes and that are not there."""
        named = {ref.name for ref in objects if ref.kind == "Namespace"}
        made = {}
        for name in sorted({ref.namespace for ref in objects} - named - {"default"}):
            ref = Ref("v1", "Namespace", "default", name)
            if ref in self.record.content.refs or await self.site.api.get(f"/api/v1/namespaces/{name}") is None:
                made[ref] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        return made

    async def _try(self, desired: DesiredApp, thing: ManagedObject, *, fresh: bool = False) -> None:
        """One object; what the server says against it stays with it."""
        async with self._room(thing):
            self._current(desired)
            try:
                await self._hands.apply(thing, lambda: self._current(desired), fresh=fresh)
                thing.refused = ""
            except ApiError as error:
                thing.refused = error.message

    async def _established(self, desired: DesiredApp, things: list[ManagedObject]) -> None:
        """Custom resources come after their kind is served."""
        loop = asyncio.get_running_loop()
        end = loop.time() + ESTABLISHED
        for thing in things:
            if thing.ref.kind != "CustomResourceDefinition" or thing.refused:
                continue
            kind = await self.site.kind(thing.ref)
            while loop.time() < end:
                live = await self.site.api.get(kind.path("", thing.ref.name))
                if live is not None and readiness_of(live).state == "Ready":
                    break
                await asyncio.sleep(0.2)
                self._current(desired)

    # --- keeping it there

    async def _repair(self, desired: DesiredApp) -> None:
        """Objects that somebody changed or removed, and those that were refused before."""
        now = asyncio.get_running_loop().time()
        for thing in sorted(self._things.values(), key=lambda t: apply_order(t.ref.kind)):
            if thing.refused:
                if now >= self._retry_at:
                    await self._try(desired, thing)
            elif await self._hands.drifted(thing) and thing.repair_again():
                await self._try(desired, thing)

    async def _prune(self, desired: DesiredApp) -> None:
        """Only once all of the new version is there."""
        await self._tell()
        await self._take_away(self._extra, desired)
        self.record.refer(list(self._things), desired.version)
        await self._write_down()
        self._extra = []

    # --- saying how it is

    async def _tell(self) -> float:
        """Confirm, if there is something new. Back with the seconds until somebody should look again."""
        statuses, poll, unfollowed = list(self._invalid), False, 0
        for thing in self._things.values():
            seen, followed = await check_health(self.site, thing)
            poll = poll or (seen.state != "Ready" and not followed)
            unfollowed += not thing.refused and await self._hands.unfollowed(thing)
            if thing.ref.kind == "Namespace" and thing.ref.key not in self._asked:
                continue  # nobody asked for it by name
            statuses.append(
                ObjectStatus(
                    object=thing.ref.key, state=seen.state, message=seen.message, ready=seen.ready, wanted=seen.wanted
                )
            )
        self._confirm(Confirm(group=self.group, app=self.app, version=self._done, objects=statuses))
        self.site.unfollowed[self.label] = unfollowed
        now = asyncio.get_running_loop().time()
        again = [max(0.05, thing.not_before - now) for thing in self._things.values() if thing.not_before > now]
        usual = self.site.compare_every() if unfollowed else RESYNC
        if any(s.state != "Ready" for s in statuses):
            usual = min(usual, POLL if poll else EVENTS_EVERY)
        return min([usual, *again])

    def _confirm(self, confirm: Confirm) -> None:
        if self._said != confirm:
            self._said = confirm
            self._say(msgspec.structs.replace(confirm, as_of=time.time(), traceparent=self._traceparent))

    def say_again(self, version: int) -> None:
        """What was said last, where it is about that version: it may have been lost on the way to where it is kept."""
        if self._said is not None and self._said.version >= version:
            self._say(msgspec.structs.replace(self._said, as_of=time.time(), traceparent=self._traceparent))

    # --- what was made and not written down

    def found(self, kind: ApiResource, ref: Ref) -> None:
        """An object of this app: if nobody wrote it down, whoever made it was ended before."""
        if not names(self.record.content.refs, kind, ref):
            self._found[ref] = kind
            self.gone = False
            self.wake.set()

    async def _take_in(self) -> None:
        """From here on it is an object like any other: kept, pruned or removed."""
        refs = list(self.record.content.refs)
        found = dict(self._found)
        for ref, kind in found.items():
            if await self._hands.stands(kind, ref) and not names(refs, kind, ref):
                log.warning("made and not written down", group=self.group, app=self.app, object=ref.key)
                refs.append(ref)
        if refs != self.record.content.refs:
            self.record.refer(refs, self.record.content.version)
            self._done = 0
        if refs:
            await self._write_down()
        for ref in found:
            del self._found[ref]

    # --- taking it away

    async def _remove(self, desired: DesiredApp) -> float:
        """Said to be removed only once all of it is gone: only then may others have its place."""
        if self._done != desired.version:
            refs = list(self.record.content.refs)
            if refs:
                await self._write_down()  # what is refused to a predecessor
            await self._take_away(refs, desired)
            reached("agent.removed")
            await self.site.records.remove(self.record)
            self.record.content = AppRecordContent(group=self.group, app=self.app)
            self._things, self._extra, self._invalid = {}, [], []
            self.site.unfollowed.pop(self.label, None)
            self._done = desired.version
            removed = [ObjectStatus(object=ref.key, state="Removed") for ref in refs]
            self._confirm(
                Confirm(group=self.group, app=self.app, version=desired.version, removed=True, objects=removed)
            )
        self.gone = True
        return RESYNC

    async def _take_away(self, refs: list[Ref], desired: DesiredApp) -> None:
        """In the reverse of the order they were made in; what others stand in goes last, when they are gone."""
        for last in (False, True):
            part = [ref for ref in refs if gates(ref.kind) is last]
            for level in sorted({apply_order(ref.kind) for ref in part}, reverse=True):
                ones = [ref for ref in part if apply_order(ref.kind) == level]
                await _all(self._hands.take(ref, lambda: self._current(desired)) for ref in ones)


async def _all(ones: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them, to their end; then the first failure."""
    for outcome in await asyncio.gather(*ones, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
