"""One app of a group in this cluster: brought to what was decided last, kept there, and taken away when it is to go. One
task per app, so versions come in order; whatever is overtaken while it is applied is left at the next object."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog

from moorage.kube import MANAGER, Api, ApiError, Kind, Kinds, Term, Unreachable, apply, delete, rank, release
from moorage.kube.applying import gates
from moorage.manifests import PatchError, template
from moorage.manifests import apply as patched
from moorage.model.desired import Confirm, DesiredApp, ObjectStatus

from .core import CLAIM, View
from .following import Following, Live, digest, version
from .records import APP_LABEL, OWNER, Content, Fenced, Record, Records, Ref, label_of
from .states import Standing, standing

log = structlog.get_logger("agent")

#: What failed is tried again after so many seconds, more each time.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
#: Everything is compared again this often, also what cannot be followed; not-ready things that cannot be, more often.
RESYNC, POLL = 300.0, 5.0
#: An object that somebody keeps changing back is repaired less and less often.
FIRST_REPAIR, LAST_REPAIR, CALM = 0.2, 30.0, 60.0
EVENTS_EVERY = 10.0


class Overtaken(Exception):
    """Something newer was decided; nothing more of this version is applied."""


class Site:
    """What all apps of a cluster share."""

    def __init__(self, api: Api, term: Term, records: Records, kinds: Kinds, following: Following, view: View) -> None:  # fmt: skip
        self.api, self.term, self.records, self.kinds = api, term, records, kinds
        self.following, self.view = following, view
        self.together = asyncio.Semaphore(16)
        self.spaces = asyncio.Lock()  # apps that start together would make one namespace twice
        self.apps: dict[str, App] = {}

    def others_in(self, namespace: str, label: str) -> bool:
        return any(
            ref.namespace == namespace for a in self.apps.values() if a.label != label for ref in a.record.content.refs
        )


def objects_of(desired: DesiredApp) -> list[dict[str, Any]]:
    """PatchError where the patch does not fit its objects."""
    made = patched({"objects": desired.objects}, desired.patch)["objects"]
    for obj in made:
        if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict) or not obj["metadata"].get("name"):
            raise PatchError("an object without a name")
    return list(made)


def ref_of(obj: dict[str, Any]) -> Ref:
    meta = obj["metadata"]
    return Ref(
        str(obj.get("apiVersion", "")),
        str(obj.get("kind", "")),
        str(meta.get("namespace") or "default"),
        str(meta["name"]),
    )


class App:
    """`say` gets what became of it, whenever that changes."""

    def __init__(self, site: Site, record: Record, say: Callable[[Confirm], None]) -> None:
        self.site, self.record, self._say = site, record, say
        self.group, self.app = record.content.group, record.content.app
        self.label = label_of(self.group, self.app)
        self.owner = f"{self.group} {self.app}"
        self.want: DesiredApp | None = None
        self.wake = asyncio.Event()
        self.gone = False
        self._objects: dict[Ref, dict[str, Any]] = {}
        self._done = 0  # version whose objects were all tried
        self._settled: dict[Ref, tuple[int, int]] = {}  # digest and version as our last apply left it
        self._shared: set[Ref] = set()
        self._polled: dict[Ref, Live] = {}
        self._refused: dict[Ref, str] = {}
        self._repairs: dict[Ref, tuple[int, float, float]] = {}  # how many, not before, last
        self._events: dict[Ref, tuple[float, str]] = {}
        self._compared: dict[Ref, float] = {}  # those that cannot be followed
        self._seen: dict[Ref, Live | None] = {}  # what stood there a moment ago
        self._retry, self._retry_at = 0, 0.0
        self._said: Confirm | None = None

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

    # --- bringing it there

    async def _bring(self, desired: DesiredApp) -> float:
        """Apply what is new, repair what drifted, look at how it is. Back with the seconds until the next look."""
        if self._done != desired.version:
            await self._apply(desired)
        else:
            await self._repair(desired)
        waiting = await self._tell(desired)
        loop = asyncio.get_running_loop()
        if not self._refused:
            self._retry, self._retry_at = 0, 0.0
            return waiting
        if loop.time() >= self._retry_at:
            self._retry_at = loop.time() + self._backoff()
        return min(waiting, self._retry_at - loop.time())

    async def _apply(self, desired: DesiredApp) -> None:
        try:
            made = objects_of(desired)
        except PatchError as error:
            self._objects, self._done = {}, desired.version
            failed = [
                ObjectStatus(object=_key(o), state="Failed", message=f"the patch does not fit: {error}")
                for o in desired.objects
            ]
            self._confirm(Confirm(group=self.group, app=self.app, version=desired.version, objects=failed))
            return
        objects = {ref_of(obj): obj for obj in made}
        spaces = await self._missing_namespaces(objects)
        objects = {**spaces, **objects}
        known = dict.fromkeys(self.record.content.refs)
        before = self.record.content
        content = Content(
            group=self.group, app=self.app, version=desired.version, refs=list({**known, **dict.fromkeys(objects)})
        )
        # While the record is written. Namespaces are looked at under their lock.
        looks = {ref: asyncio.ensure_future(self._look(ref)) for ref in objects if ref.kind != "Namespace"}
        try:
            if content.refs != before.refs or content.version != before.version or not self.record.version:
                self.record.content = content
                await self.site.records.store(self.record)
            await asyncio.gather(*looks.values(), return_exceptions=True)
            # What cannot be looked at is refused by itself, when it is its turn.
            self._seen = {ref: look.result() for ref, look in looks.items() if look.exception() is None}
        finally:
            for look in looks.values():
                look.cancel()
        self._objects = objects
        self._refused = {ref: why for ref, why in self._refused.items() if ref in objects}
        for level in sorted({rank(ref.kind) for ref in objects}):
            self._current(desired)
            await _all(self._try(desired, ref) for ref in objects if rank(ref.kind) == level)
            await self._established(desired, [ref for ref in objects if rank(ref.kind) == level])
        self._current(desired)
        self._done = desired.version
        extra = [ref for ref in known if ref not in objects]
        if extra and not self._refused:
            await self._tell(desired)
            await self._take_away(extra, desired)
            self.record.content.refs = list(objects)
            await self.site.records.store(self.record)

    async def _missing_namespaces(self, objects: dict[Ref, dict[str, Any]]) -> dict[Ref, dict[str, Any]]:
        """Namespaces that objects are in, that no manifest makes and that are not there."""
        named = {ref.name for ref in objects if ref.kind == "Namespace"}
        wanted = set()
        for ref in objects:
            if ref.namespace != "default" and ref.namespace not in named:
                wanted.add(ref.namespace)
        made = {}
        for name in sorted(wanted):
            ref = Ref("v1", "Namespace", "default", name)
            if ref in self.record.content.refs or await self.site.api.get(f"/api/v1/namespaces/{name}") is None:
                made[ref] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        return made

    async def _try(self, desired: DesiredApp, ref: Ref) -> None:
        """One object; what the server says against it stays with it."""
        async with self.site.spaces if ref.kind == "Namespace" else self.site.together:
            self._current(desired)
            try:
                await self._apply_one(desired, ref)
                self._refused.pop(ref, None)
            except ApiError as error:
                self._refused[ref] = error.message

    async def _kind(self, ref: Ref) -> Kind:
        kind = await self.site.kinds.find(ref.api_version, ref.kind)
        if kind is None:
            raise ApiError(422, "NoKind", f"the cluster has no kind {ref.kind} in {ref.api_version}")
        return kind

    async def _live(self, kind: Kind, ref: Ref) -> Live | None:
        return self.site.following.get(kind, ref.namespace, ref.name) or await self.site.api.get(
            kind.path(ref.namespace, ref.name)
        )

    async def _look(self, ref: Ref) -> Live | None:
        kind = await self.site.kinds.find(ref.api_version, ref.kind)
        return await self._live(kind, ref) if kind is not None else None

    async def _apply_one(self, desired: DesiredApp, ref: Ref) -> None:
        kind = await self._kind(ref)
        live = self._seen.pop(ref) if ref in self._seen else await self._live(kind, ref)
        while live is not None and live["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(0.2)  # what stands there is on its way out
            self._current(desired)
            live = await self.site.api.get(kind.path(ref.namespace, ref.name))
        owner = ((live or {}).get("metadata", {}).get("annotations") or {}).get(OWNER, "")
        if live is not None and owner != self.owner:
            if owner and ref.kind != "Namespace":
                raise ApiError(409, "Taken", f"{ref.key} belongs to {owner.replace(' ', ', app ')}")
            await self._share(kind, ref)
            return
        obj = self._marked(kind, ref)
        try:
            made, created = await apply(self.site.api, kind, obj, force=True)
        except ApiError as error:
            if error.code != 422 or live is None or ref.kind not in ("Job", "Pod"):
                raise
            # These are made again, never changed.
            await self._gone(kind, ref, str(live["metadata"]["uid"]), desired)
            made, created = await apply(self.site.api, kind, obj, force=True)
        if live is None and not created:
            await release(self.site.api, kind, ref.namespace, ref.name, str(made["metadata"]["uid"]))
            await self._share(kind, ref)  # somebody made it at the same moment
            return
        self._shared.discard(ref)
        self._learn(ref, made)
        self.site.following.follow(kind)

    def _learn(self, ref: Ref, made: Live) -> None:
        made["metadata"].pop("managedFields", None)
        self._settled[ref] = (digest(made), version(made))
        self._compared[ref] = asyncio.get_running_loop().time()
        self._polled[ref] = made

    def _marked(self, kind: Kind, ref: Ref) -> dict[str, Any]:
        obj = self._objects[ref]
        meta = dict(obj["metadata"])
        meta["labels"] = {**(meta.get("labels") or {}), APP_LABEL: self.label}
        meta["annotations"] = {**(meta.get("annotations") or {}), OWNER: self.owner}
        return {**_placed(obj, kind, ref), "metadata": _space(meta, kind, ref)}

    async def _share(self, kind: Kind, ref: Ref) -> None:
        """An object that somebody else made gets the manifest's fields where nobody disagrees, and gives them back later."""
        obj = self._objects[ref]
        self._shared.add(ref)
        if ref.kind == "Namespace":  # being there is all that is asked of it
            fields = {k: v for k, v in obj["metadata"].items() if k in ("labels",) and v}
            if not fields and not obj.get("spec"):
                self._polled[ref] = {"kind": "Namespace", "metadata": {"name": ref.name}}
                return
        body = {**_placed(obj, kind, ref), "metadata": _space(dict(obj["metadata"]), kind, ref)}
        made, _ = await apply(self.site.api, kind, body, force=False, manager=self.manager)
        self._learn(ref, made)

    @property
    def manager(self) -> str:
        """On objects of others each app has a name of its own: what one takes back stays another's."""
        return f"{MANAGER}-{self.label}"

    async def _established(self, desired: DesiredApp, refs: list[Ref]) -> None:
        """Custom resources come after their kind is served."""
        loop = asyncio.get_running_loop()
        end = loop.time() + 15
        for ref in refs:
            if ref.kind != "CustomResourceDefinition" or ref in self._refused:
                continue
            kind = await self._kind(ref)
            while loop.time() < end:
                live = await self.site.api.get(kind.path("", ref.name))
                if live is not None and standing(live).state == "Ready":
                    break
                await asyncio.sleep(0.2)
                self._current(desired)

    # --- keeping it there

    async def _repair(self, desired: DesiredApp) -> None:
        """Objects that somebody changed or removed, and those that were refused before."""
        now = asyncio.get_running_loop().time()
        for ref in sorted(self._objects, key=lambda r: rank(r.kind)):
            if ref in self._refused:
                if now >= self._retry_at:
                    await self._try(desired, ref)
                continue
            if not await self._drifted(ref):
                continue
            count, not_before, last = self._repairs.get(ref, (0, 0.0, 0.0))
            if now < not_before:
                continue
            count = 0 if now - last > CALM else count + 1
            self._repairs[ref] = (count, now + min(LAST_REPAIR, FIRST_REPAIR * 2.0 ** min(count, 10)), now)
            await self._try(desired, ref)

    async def _drifted(self, ref: Ref) -> bool:
        if ref not in self._settled:
            return False
        kind = await self._kind(ref)
        settled, at = self._settled[ref]
        live = self.site.following.get(kind, ref.namespace, ref.name)
        if live is not None and ref not in self._shared:
            return version(live) > at and digest(live) != settled
        if ref in self._shared or not self.site.following.sees(kind):
            now = asyncio.get_running_loop().time()
            if now - self._compared.get(ref, 0.0) < RESYNC:
                return False
            self._compared[ref] = now
            if ref in self._shared:
                return True  # applying it again changes nothing if nothing changed
        live = await self.site.api.get(kind.path(ref.namespace, ref.name))
        return live is None or digest(live) != settled

    # --- saying how it is

    async def _tell(self, desired: DesiredApp) -> float:
        """Confirm, if there is something new. Back with the seconds until somebody should look again."""
        statuses, poll = [], False
        for ref in self._objects:
            seen, followed = await self._standing(ref, desired)
            poll = poll or (seen.state != "Ready" and not followed)
            if ref.kind == "Namespace" and not any(_key(o) == ref.key for o in desired.objects):
                continue  # nobody asked for it by name
            statuses.append(
                ObjectStatus(
                    object=ref.key, state=seen.state, message=seen.message, ready=seen.ready, wanted=seen.wanted
                )
            )
        self._confirm(Confirm(group=self.group, app=self.app, version=self._done, objects=statuses))
        if self._repairs and any(not_before > 0 for _, not_before, _ in self._repairs.values()):
            now = asyncio.get_running_loop().time()
            soon = [t - now for _, t, _ in self._repairs.values() if t > now]
            if soon:
                return max(0.05, min(soon))
        return POLL if poll else EVENTS_EVERY if any(s.state != "Ready" for s in statuses) else RESYNC

    async def _standing(self, ref: Ref, desired: DesiredApp) -> tuple[Standing, bool]:
        if ref in self._refused:
            return Standing("Failed", self._refused[ref]), True
        try:
            kind = await self._kind(ref)
        except ApiError as error:
            return Standing("Failed", error.message), True
        live = self.site.following.get(kind, ref.namespace, ref.name)
        followed = live is not None
        before = self._polled.get(ref)
        if live is None or (before is not None and version(before) > version(live)):
            live = before
            if live is not None and not followed and standing(live).state != "Ready":
                live = self._polled[ref] = await self.site.api.get(kind.path(ref.namespace, ref.name)) or live
        if live is None:
            return Standing("Progressing", "is not there yet"), followed
        seen = standing(live)
        if seen.state == "Ready":
            self._events.pop(ref, None)
            return seen, followed
        return await self._explained(ref, live, seen), followed

    async def _explained(self, ref: Ref, live: Live, seen: Standing) -> Standing:
        """Why it is not ready, in the words of whoever knows best: its pods, else its warnings."""
        body = template(self._objects[ref]) if ref in self._objects else None
        claim = str(((body or {}).get("metadata", {}).get("labels") or {}).get(CLAIM, ""))
        stuck, message = self.site.view.trouble([claim] if claim else [])
        if stuck:
            return seen._replace(state="Failed", message=message)
        if not message and body is not None:
            message = await self._warning(ref, live)
        return seen._replace(
            message=f"{seen.message}: {message}" if seen.message and message else message or seen.message
        )

    async def _warning(self, ref: Ref, live: Live) -> str:
        now = asyncio.get_running_loop().time()
        asked, message = self._events.get(ref, (0.0, ""))
        if asked and now - asked < EVENTS_EVERY:
            return message
        self._events[ref] = (now, message)
        if not asked:  # what has only just begun need not be explained
            return ""
        selector = f"involvedObject.uid={live['metadata'].get('uid', '')},type=Warning"
        try:
            found = await self.site.api.get(
                f"/api/v1/namespaces/{ref.namespace}/events", query={"fieldSelector": selector, "limit": "50"}
            )
        except ApiError:
            return message  # not allowed to: then without
        events = sorted(
            (found or {}).get("items") or (), key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or "")
        )
        if events:
            message = str(events[-1].get("message", ""))
        self._events[ref] = (now, message)
        return message

    def _confirm(self, confirm: Confirm) -> None:
        if self._said != confirm:
            self._said = confirm
            self._say(Confirm(group=confirm.group, app=confirm.app, version=confirm.version, removed=confirm.removed, objects=confirm.objects, as_of=time.time()))  # fmt: skip

    # --- taking it away

    async def _remove(self, desired: DesiredApp) -> float:
        """Said to be removed only once all of it is gone: only then may others have its place."""
        if self._done != desired.version:
            refs = list(self.record.content.refs)
            await self._take_away(refs, desired)
            await self.site.records.remove(self.record)
            self.record.content = Content(group=self.group, app=self.app)
            self._objects, self._settled, self._refused, self._polled = {}, {}, {}, {}
            self._shared.clear()
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
                await _all(self._take_one(ref, desired) for ref in part if rank(ref.kind) == level)
        for ref in refs:
            for table in (self._settled, self._polled, self._refused, self._repairs, self._events, self._compared):
                table.pop(ref, None)

    async def _take_one(self, ref: Ref, desired: DesiredApp) -> None:
        kind = await self.site.kinds.find(ref.api_version, ref.kind)
        if kind is None:
            return
        live = await self.site.api.get(kind.path(ref.namespace, ref.name))
        if live is None:
            return
        uid = str(live["metadata"]["uid"])
        if ((live["metadata"].get("annotations")) or {}).get(OWNER, "") != self.owner:
            await release(self.site.api, kind, ref.namespace, ref.name, uid, manager=self.manager)
            return
        if ref.kind == "Namespace" and (reason := await self._inhabited(ref.name)):
            log.warning("namespace is left", namespace=ref.name, reason=reason)
            await release(self.site.api, kind, ref.namespace, ref.name, uid)
            return
        await self._gone(kind, ref, uid, desired)

    async def _inhabited(self, namespace: str) -> str:
        """What others have in a namespace we made: then it is theirs too, and stays."""
        if self.site.others_in(namespace, self.label):
            return "another app is in it"
        for path, kept in (("/api/v1", "pods"), ("/api/v1", "services"), ("/api/v1", "persistentvolumeclaims"), ("/apis/apps/v1", "deployments"), ("/apis/apps/v1", "statefulsets"), ("/apis/apps/v1", "daemonsets"), ("/apis/batch/v1", "jobs")):  # fmt: skip
            try:
                found = await self.site.api.get(f"{path}/namespaces/{namespace}/{kept}", query={"limit": "1"})
            except ApiError as error:
                return f"{kept} cannot be listed: {error.message}"
            if found and found.get("items"):
                return f"there are {kept} in it"
        return ""

    async def _gone(self, kind: Kind, ref: Ref, uid: str, desired: DesiredApp) -> None:
        self._current(desired)
        pause = 0.05
        gone = await delete(self.site.api, kind, ref.namespace, ref.name, uid)
        while not gone:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 2.0)
            self._current(desired)
            live = await self.site.api.get(kind.path(ref.namespace, ref.name))
            gone = live is None or live["metadata"].get("uid") != uid


async def _all(ones: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them, to their end; then the first failure."""
    for outcome in await asyncio.gather(*ones, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _key(obj: dict[str, Any]) -> str:
    return f"{obj.get('kind', '')}/{(obj.get('metadata') or {}).get('name', '')}"


def _placed(obj: dict[str, Any], kind: Kind, ref: Ref) -> dict[str, Any]:
    """What the server writes itself is nothing a manifest can say."""
    return {k: v for k, v in obj.items() if k != "status"}


def _space(meta: dict[str, Any], kind: Kind, ref: Ref) -> dict[str, Any]:
    meta = {
        k: v
        for k, v in meta.items()
        if k not in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation")
    }
    meta.pop("namespace", None)
    return meta | ({"namespace": ref.namespace} if kind.namespaced else {})
