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
from moorage.kube import ApiError, Unreachable, rank
from moorage.kube.applying import gates
from moorage.manifests import PatchError
from moorage.model.desired import Confirm, DesiredApp, ObjectStatus
from moorage.telemetry import HANDLED, Handled, traces

from .looking import EVENTS_EVERY, look
from .records import Content, Fenced, Record, Ref, label_of
from .site import Manifest, Owner, Site, key_of, objects_of
from .states import standing
from .things import Hands, Thing

log = structlog.get_logger("agent")

#: What failed is tried again after so many seconds, more each time.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
#: Everything is looked at again this often; not-ready things that cannot be followed, more often.
RESYNC, POLL = 300.0, 5.0
#: A custom resource waits this long for its kind to be served.
ESTABLISHED = 15.0


class Overtaken(Exception):
    """Something newer was decided; nothing more of this version is applied."""


class App:
    """`say` gets what became of it, whenever that changes."""

    def __init__(self, site: Site, record: Record, say: Callable[[Confirm], None]) -> None:
        self.site, self.record, self._say = site, record, say
        self.group, self.app = record.content.group, record.content.app
        self.label = label_of(self.group, self.app)
        self._hands = Hands(site, Owner(self.label, f"{self.group} {self.app}"))
        self.want: DesiredApp | None = None
        self.wake = asyncio.Event()
        self.gone = False
        self._things: dict[Ref, Thing] = {}
        self._misfits: list[ObjectStatus] = []  # where the patch and the manifests do not go together
        self._asked: set[str] = set()  # the objects that somebody named
        self._extra: list[Ref] = []  # what earlier versions made and this one has not
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
            if self.want is None:
                due = 0.0
                continue
            HANDLED.set(Handled(self.group, cause=self.want.decision))  # for log lines
            try:
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
            raise Fenced("the lease was not renewed in time")

    @property
    def _refused(self) -> bool:
        return any(thing.refused for thing in self._things.values())

    # --- bringing it there

    async def _bring(self, desired: DesiredApp) -> float:
        """Apply what is new, repair what drifted, look at how it is. Back with the seconds until the next look."""
        if self._done != desired.version:
            with traces.carried("apply", desired.traceparent, **{"moorage.app": self.app}):
                self._traceparent = traces.traceparent()
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
        except PatchError as error:
            said = f"the patch does not fit: {error}"
            self._misfits = [ObjectStatus(object=key_of(o), state="Failed", message=said) for o in desired.objects]
            self._things, self._extra, self._done = {}, [], desired.version
            return
        self._misfits = []
        self._asked = {ref.key for ref in objects}
        known = dict.fromkeys(self.record.content.refs)
        objects = {**await self._missing_namespaces(objects), **objects}
        await self._write_down([*known, *(ref for ref in objects if ref not in known)], desired.version)
        reached("agent.recorded")
        self._things = {ref: self._thing(ref, obj) for ref, obj in objects.items()}
        for level in sorted({rank(ref.kind) for ref in objects}):
            things = [thing for ref, thing in self._things.items() if rank(ref.kind) == level]
            self._current(desired)
            await _all(self._try(desired, thing, fresh=thing.ref not in known) for thing in things)
            await self._established(desired, things)
        reached("agent.applied")
        self._current(desired)
        self._done = desired.version
        self._extra = [ref for ref in known if ref not in objects]

    def _thing(self, ref: Ref, obj: Manifest) -> Thing:
        thing = self._things.get(ref) or Thing(ref, obj)
        thing.obj = obj
        return thing

    async def _write_down(self, refs: list[Ref], version: int) -> None:
        """Before any of it is made: whoever comes after us must know."""
        before = self.record.content
        if self.record.version and refs == before.refs and version == before.version:
            return
        self.record.content = Content(group=self.group, app=self.app, version=version, refs=refs)
        try:
            await self.site.records.store(self.record)
        except BaseException:
            self.record.content = before  # else the next try would find nothing to write
            raise

    async def _missing_namespaces(self, objects: dict[Ref, Manifest]) -> dict[Ref, Manifest]:
        """Namespaces that objects are in, that no manifest makes and that are not there."""
        named = {ref.name for ref in objects if ref.kind == "Namespace"}
        made = {}
        for name in sorted({ref.namespace for ref in objects} - named - {"default"}):
            ref = Ref("v1", "Namespace", "default", name)
            if ref in self.record.content.refs or await self.site.api.get(f"/api/v1/namespaces/{name}") is None:
                made[ref] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        return made

    async def _try(self, desired: DesiredApp, thing: Thing, *, fresh: bool = False) -> None:
        """One object; what the server says against it stays with it."""
        async with self.site.spaces if thing.ref.kind == "Namespace" else self.site.together:
            self._current(desired)
            try:
                await self._hands.apply(thing, lambda: self._current(desired), fresh=fresh)
                thing.refused = ""
            except ApiError as error:
                thing.refused = error.message

    async def _established(self, desired: DesiredApp, things: list[Thing]) -> None:
        """Custom resources come after their kind is served."""
        loop = asyncio.get_running_loop()
        end = loop.time() + ESTABLISHED
        for thing in things:
            if thing.ref.kind != "CustomResourceDefinition" or thing.refused:
                continue
            kind = await self.site.kind(thing.ref)
            while loop.time() < end:
                live = await self.site.api.get(kind.path("", thing.ref.name))
                if live is not None and standing(live).state == "Ready":
                    break
                await asyncio.sleep(0.2)
                self._current(desired)

    # --- keeping it there

    async def _repair(self, desired: DesiredApp) -> None:
        """Objects that somebody changed or removed, and those that were refused before."""
        now = asyncio.get_running_loop().time()
        for thing in sorted(self._things.values(), key=lambda t: rank(t.ref.kind)):
            if thing.refused:
                if now >= self._retry_at:
                    await self._try(desired, thing)
            elif await self._hands.drifted(thing) and thing.repair_again():
                await self._try(desired, thing)

    async def _prune(self, desired: DesiredApp) -> None:
        """Only once all of the new version is there."""
        await self._tell()
        await self._take_away(self._extra, desired)
        self._extra = []
        await self._write_down(list(self._things), desired.version)

    # --- saying how it is

    async def _tell(self) -> float:
        """Confirm, if there is something new. Back with the seconds until somebody should look again."""
        statuses, poll, unfollowed = list(self._misfits), False, 0
        for thing in self._things.values():
            seen, followed = await look(self.site, thing)
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

    # --- taking it away

    async def _remove(self, desired: DesiredApp) -> float:
        """Said to be removed only once all of it is gone: only then may others have its place."""
        if self._done != desired.version:
            refs = list(self.record.content.refs)
            await self._take_away(refs, desired)
            reached("agent.removed")
            await self.site.records.remove(self.record)
            self.record.content = Content(group=self.group, app=self.app)
            self._things, self._extra, self._misfits = {}, [], []
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
            for level in sorted({rank(ref.kind) for ref in part}, reverse=True):
                ones = [ref for ref in part if rank(ref.kind) == level]
                await _all(self._hands.take(ref, lambda: self._current(desired)) for ref in ones)


async def _all(ones: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them, to their end; then the first failure."""
    for outcome in await asyncio.gather(*ones, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
