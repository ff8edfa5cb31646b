"""One object of an app in the cluster: made where nothing stands, brought to what its manifest says, compared with how it
was left, and taken away. An object that somebody else made gets only fields nobody disagrees about, and gives them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from moorage.kube import ApiError, ApiResource, Exists, apply, create, delete, release

from .app_records import APP_LABEL, OWNER, Ref
from .context import ClusterContext, Manifest, Owner
from .object_watches import Live, digest, version
from .ownership import MARK

log = structlog.get_logger("agent")

#: An object that somebody keeps changing back is repaired less and less often.
FIRST_REPAIR, LAST_REPAIR, CALM = 0.2, 30.0, 60.0

#: Raises where nothing more may be done: something newer was decided, or the lease is lost.
Current = Callable[[], None]


class ManagedObject:
    def __init__(self, ref: Ref, obj: Manifest) -> None:
        self.ref, self.obj = ref, obj
        self.shared = False  # somebody else made it
        self.refused = ""
        self.left: Live | None = None  # as we saw it last
        self._settled: tuple[int, int] | None = None  # digest and version as our last apply left it
        self._compared = 0.0
        self._repairs = 0
        self._repaired = 0.0
        self.not_before = 0.0
        self.asked_why = 0.0
        self.why = ""

    def learn(self, made: Live) -> None:
        made["metadata"].pop("managedFields", None)
        self._settled = (digest(made), version(made))
        self._compared = _now()
        self.left = made

    def differs(self, live: Live) -> bool:
        if self._settled is None:
            return False
        settled, at = self._settled
        return version(live) > at and digest(live) != settled

    @property
    def settled(self) -> tuple[int, int] | None:
        return self._settled

    def compare_again(self, every: float) -> bool:
        if _now() - self._compared < every:
            return False
        self._compared = _now()
        return True

    def repair_again(self) -> bool:
        """Whether it may be repaired now; then it counts as repaired."""
        now = _now()
        if now < self.not_before:
            return False
        self._repairs = 0 if now - self._repaired > CALM else self._repairs + 1
        self._repaired = now
        self.not_before = now + min(LAST_REPAIR, FIRST_REPAIR * 2.0 ** min(self._repairs, 10))
        return True


class ObjectWriter:
    """What one app does to its objects."""

    def __init__(self, site: ClusterContext, owner: Owner) -> None:
        self.site, self.owner = site, owner

    # --- bringing it there

    async def apply(self, thing: ManagedObject, current: Current, *, fresh: bool) -> None:
        """`fresh`: this app never had such an object, so most likely nobody has."""
        ref, api = thing.ref, self.site.api
        kind = await self.site.kind(ref)
        live = self.site.following.get(kind, ref.namespace, ref.name)
        if live is None and fresh and await self.make(thing):
            return
        if live is None:
            live = await api.get(kind.path(ref.namespace, ref.name))
        while live is not None and live["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(0.2)  # what stands there is on its way out
            current()
            live = await api.get(kind.path(ref.namespace, ref.name))
        owner = owner_of(live)
        if live is not None and owner != self.owner.name:
            if owner and ref.kind != "Namespace":
                raise ApiError(409, "Taken", f"{ref.key} belongs to {owner.replace(' ', ', app ')}")
            await self._share(kind, thing)
            return
        if live is None:
            made = await create(api, kind, self._marked(kind, thing))
        else:
            made = await self._change(kind, thing, live, current)
        self._made(thing, kind, made)

    async def make(self, thing: ManagedObject) -> bool:
        """Not where something stands: that is left as it is."""
        kind = await self.site.kind(thing.ref)
        try:
            made = await create(self.site.api, kind, self._marked(kind, thing))
        except Exists:
            return False
        self._made(thing, kind, made)
        return True

    async def _change(self, kind: ApiResource, thing: ManagedObject, live: Live, current: Current) -> Live:
        ref, obj = thing.ref, self._marked(kind, thing)
        try:
            return (await apply(self.site.api, kind, obj, force=True))[0]
        except ApiError as error:
            if error.code != 422 or ref.kind not in ("Job", "Pod"):
                raise
            # These are made again, never changed.
            await self.remove(kind, ref, str(live["metadata"]["uid"]), current)
            return (await apply(self.site.api, kind, obj, force=True))[0]

    def _made(self, thing: ManagedObject, kind: ApiResource, made: Live) -> None:
        thing.shared = False
        thing.learn(made)
        self.site.following.follow(kind)

    def _marked(self, kind: ApiResource, thing: ManagedObject) -> Manifest:
        meta = dict(thing.obj["metadata"])
        meta["labels"] = {**(meta.get("labels") or {}), APP_LABEL: self.owner.label}
        meta["annotations"] = {
            **(meta.get("annotations") or {}),
            OWNER: self.owner.name,
            MARK: self.site.records.marks.of(kind, thing.ref.namespace, thing.ref.name),
        }
        return _body(kind, thing, meta)

    async def _share(self, kind: ApiResource, thing: ManagedObject) -> None:
        """An object that somebody else made."""
        obj, ref = thing.obj, thing.ref
        thing.shared = True
        if ref.kind == "Namespace":  # being there is all that is asked of it
            fields = {k: v for k, v in obj["metadata"].items() if k in ("labels",) and v}
            if not fields and not obj.get("spec"):
                thing.left = {"kind": "Namespace", "metadata": {"name": ref.name}}
                return
        body = _body(kind, thing, dict(obj["metadata"]))
        made, _ = await apply(self.site.api, kind, body, force=False, manager=self.owner.manager)
        thing.learn(made)

    # --- keeping it there

    async def drifted(self, thing: ManagedObject) -> bool:
        """Whether somebody changed or removed it."""
        if thing.settled is None:
            return False
        kind = await self.site.kind(thing.ref)
        if not thing.shared:
            live = self.site.following.get(kind, thing.ref.namespace, thing.ref.name)
            if live is not None:
                return thing.differs(live)
            if self.site.following.sees(kind):
                return await self._changed(thing, kind)
        return thing.compare_again(self.site.compare_every()) and await self._changed(thing, kind)

    async def unfollowed(self, thing: ManagedObject) -> bool:
        """Whether it has to be looked at, because nobody tells when it changes."""
        if thing.settled is None:
            return False
        return thing.shared or not self.site.following.sees(await self.site.kind(thing.ref))

    async def _changed(self, thing: ManagedObject, kind: ApiResource) -> bool:
        """Asked of the server, in as few words as will do: what is in Secrets travels only when they changed."""
        path = kind.path(thing.ref.namespace, thing.ref.name)
        brief = await self.site.api.get(path, brief=True)
        if brief is None or thing.settled is None:
            return True
        if version(brief) == thing.settled[1]:
            return False
        live = await self.site.api.get(path)
        return live is None or thing.shared or digest(live) != thing.settled[0]

    async def stands(self, kind: ApiResource, ref: Ref) -> bool:
        """Whether what was listed is there and this app's. Asked of the server: what is followed may show for a while what
        we have taken away."""
        try:
            live = await self.site.api.get(kind.path(ref.namespace, ref.name), brief=True)
        except ApiError as error:
            if error.passing:
                raise
            return True  # it was listed
        return owner_of(live) == self.owner.name

    # --- taking it away

    async def take(self, ref: Ref, current: Current) -> None:
        api = self.site.api
        kind = await self.site.kinds.find(ref.api_version, ref.kind)
        if kind is None:
            return
        live = await api.get(kind.path(ref.namespace, ref.name))
        if live is None:
            return
        uid = str(live["metadata"]["uid"])
        if owner_of(live) != self.owner.name:
            await release(api, kind, ref.namespace, ref.name, uid, manager=self.owner.manager)
            return
        if ref.kind == "Namespace" and (reason := await self._inhabited(ref.name)):
            log.warning("namespace is left", namespace=ref.name, reason=reason)
            await release(api, kind, ref.namespace, ref.name, uid)
            return
        await self.remove(kind, ref, uid, current)

    async def _inhabited(self, namespace: str) -> str:
        """What others have in a namespace we made: then it is theirs too, and stays."""
        if self.site.others_in(namespace, self.owner.label):
            return "another app is in it"
        for path, kept in (("/api/v1", "pods"), ("/api/v1", "services"), ("/api/v1", "persistentvolumeclaims"), ("/apis/apps/v1", "deployments"), ("/apis/apps/v1", "statefulsets"), ("/apis/apps/v1", "daemonsets"), ("/apis/batch/v1", "jobs")):  # fmt: skip
            try:
                found = await self.site.api.get(f"{path}/namespaces/{namespace}/{kept}", query={"limit": "1"})
            except ApiError as error:
                return f"{kept} cannot be listed: {error.message}"
            if found and found.get("items"):
                return f"there are {kept} in it"
        return ""

    async def remove(self, kind: ApiResource, ref: Ref, uid: str, current: Current) -> None:
        """Back when it is gone."""
        current()
        pause = 0.05
        gone = await delete(self.site.api, kind, ref.namespace, ref.name, uid)
        while not gone:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 2.0)
            current()
            live = await self.site.api.get(kind.path(ref.namespace, ref.name))
            gone = live is None or live["metadata"].get("uid") != uid


def _now() -> float:
    return asyncio.get_running_loop().time()


def owner_of(live: Live | None) -> str:
    return str(((live or {}).get("metadata", {}).get("annotations") or {}).get(OWNER, ""))


#: What the server writes itself is nothing a manifest can say.
_SERVERS = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "namespace")


def _body(kind: ApiResource, thing: ManagedObject, metadata: dict[str, Any]) -> Manifest:
    meta = {k: v for k, v in metadata.items() if k not in _SERVERS}
    if kind.namespaced:
        meta["namespace"] = thing.ref.namespace
    return {**{k: v for k, v in thing.obj.items() if k != "status"}, "metadata": meta}
