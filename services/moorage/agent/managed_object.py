"""Writes one object of an app to the cluster: creates it, applies its manifest, detects drift and removes it. On an object
that somebody else created, the app sets only fields without conflict, and gives them back when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from moorage.dra.pins import UnknownClass, completed, is_pin, with_gate
from moorage.dra.shares import has_shares, with_shares
from moorage.dra.slices import Devices
from moorage.kube import AlreadyExists, ApiError, ApiResource, apply, create, delete, release
from moorage.machine_groups.names import ENABLED, NAMESPACE_LABELS
from moorage.model.reasons import CODES
from moorage.podspec import PIN_PREFIX

from .context import ClusterContext
from .core.drift import AppliedState, RepairBackoff, digest, resource_version
from .core.guest_namespaces import enabled, has_guests, is_enabled
from .core.owned_objects import Live, Manifest, Owner, Ref, body_of, owned_body, owner_of

log = structlog.get_logger("agent")

#: Seconds that a removal waits until an object is taken back by the app from which it was taken over.
TAKE_BACK = 10.0
#: Raises if nothing more may be written: a newer version was decided, or the lease is lost.
CheckCurrent = Callable[[], None]
#: Kinds whose objects keep a namespace that the agent created.
_INHABITANTS = (
    ("/api/v1", "pods"),
    ("/api/v1", "services"),
    ("/api/v1", "persistentvolumeclaims"),
    ("/apis/apps/v1", "deployments"),
    ("/apis/apps/v1", "statefulsets"),
    ("/apis/apps/v1", "daemonsets"),
    ("/apis/batch/v1", "jobs"),
)


class ManagedObject:
    """An object that an app wants, and what is known of it in the cluster."""

    def __init__(self, ref: Ref, obj: Manifest) -> None:
        self.ref, self.obj = ref, obj
        self.shared = False  # somebody else created it
        self.refused = ""  # why the last apply failed, as a rule in the API server's words
        self.notice = ""  # what users should know although it is ready: its pins are in the template
        self.refusal_code = ""  # of the reasons of decisions; empty for what only the API server knows
        self.enables_machines = False  # a namespace with pods that run in slots of machines
        self.live: Live | None = None  # as it was read last
        self.applied: AppliedState | None = None
        self.sent: Manifest | None = None  # a class that pins a request, as it was sent last
        self.repairs = RepairBackoff()
        self._compared_at = 0.0
        self.warned_at = 0.0  # when its events were read last; 0: not since it was ready
        self.warning = ""

    def accepted(self) -> None:
        self.refused = self.refusal_code = ""

    def refuse(self, error: ApiError) -> None:
        self.refused, self.refusal_code = error.message, error.reason if error.reason in CODES else ""

    def learn_applied(self, live: Live) -> None:
        live["metadata"].pop("managedFields", None)
        self.applied = AppliedState(live)
        self._compared_at = _now()
        self.live = live

    def compare_now(self, interval: float) -> bool:
        """Returns whether a comparison with the server is due, and if so counts it as done."""
        if _now() - self._compared_at < interval:
            return False
        self._compared_at = _now()
        return True


class ObjectWriter:
    """Writes the objects of one app."""

    def __init__(self, cluster: ClusterContext, owner: Owner) -> None:
        self._cluster, self._owner = cluster, owner

    # --- apply

    async def apply(self, managed: ManagedObject, check_current: CheckCurrent, *, fresh: bool) -> None:
        """`fresh`: the app never had this object, so most likely nobody has."""
        ref, api = managed.ref, self._cluster.api
        await self._check_namespace(managed)
        kind = await self._cluster.kind(ref)
        live = self._cluster.watches.get(kind, ref.namespace, ref.name)
        if live is None and fresh and await self._create(managed):
            return
        if live is None:
            live = await api.get(kind.path(ref.namespace, ref.name))
        while live is not None and live["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(0.2)
            check_current()
            live = await api.get(kind.path(ref.namespace, ref.name))
        owner = owner_of(live)
        if live is not None and owner != self._owner.name:
            if not owner or ref.kind == "Namespace":
                await self._share(kind, managed, made_by_agent=bool(owner))
                return
            if self._cluster.is_handed_over(self._owner, owner):
                managed.learn_applied(live)
                return
            if not self._cluster.may_take(self._owner, owner):
                raise ApiError(409, "Taken", f"{ref.key} belongs to {owner.replace(' ', ', app ')}")
        if live is None:
            applied = await create(api, kind, self._body(kind, managed))
        else:
            applied = await self._update(kind, managed, live, check_current)
        self._learn_own(managed, kind, applied)

    async def create(self, managed: ManagedObject) -> bool:
        """Creates the object. An existing one is left as it is, and the answer is False."""
        await self._check_namespace(managed)
        return await self._create(managed)

    async def _create(self, managed: ManagedObject) -> bool:
        kind = await self._cluster.kind(managed.ref)
        try:
            created = await create(self._cluster.api, kind, self._body(kind, managed))
        except AlreadyExists:
            return False
        self._learn_own(managed, kind, created)
        return True

    async def _update(self, kind: ApiResource, managed: ManagedObject, live: Live, check_current: CheckCurrent) -> Live:
        ref, body = managed.ref, self._body(kind, managed)
        try:
            return (await apply(self._cluster.api, kind, body, force=True))[0]
        except ApiError as error:
            is_made = ref.kind == "ResourceClaimTemplate" and ref.name.startswith(PIN_PREFIX)
            if error.code != 422 or not (is_made or ref.kind in ("Job", "Pod")):
                raise
            # Most fields of Jobs and Pods are immutable, so they are replaced; and templates that pin: pods keep their claims.
            await self._delete(kind, ref, str(live["metadata"]["uid"]), check_current)
            return (await apply(self._cluster.api, kind, body, force=True))[0]

    def _body(self, kind: ApiResource, managed: ManagedObject) -> Manifest:
        obj = enabled(managed.obj) if managed.enables_machines else managed.obj
        if is_pin(obj):
            obj = managed.sent = self._completed(obj)
        elif has_shares(obj):
            obj = with_shares(obj, self._devices())
        elif self._cluster.allocates:
            obj = with_gate(obj)
        return owned_body(kind, managed.ref, obj, self._owner, self._cluster.records.ownership.id)

    def _devices(self) -> Devices:
        state = self._cluster.state
        if not state.devices_known:
            raise ApiError(503, "Unavailable", "the devices of the cluster are not known yet")
        return state.devices

    def _completed(self, obj: Manifest) -> Manifest:
        devices = self._devices()
        try:
            return completed(obj, self._cluster.state.device_classes, devices)
        except UnknownClass as error:
            raise ApiError(422, "ClassNotFound", str(error)) from error

    def _learn_own(self, managed: ManagedObject, kind: ApiResource, live: Live) -> None:
        managed.shared = False
        managed.learn_applied(live)
        self._cluster.watches.watch(kind)

    async def _check_namespace(self, managed: ManagedObject) -> None:
        """Raises where pods that run in slots of machines would not be let into them."""
        if not has_guests(managed.obj):
            return
        name = managed.ref.namespace
        live = await self._cluster.api.get(f"/api/v1/namespaces/{name}", brief=True)
        if live is not None and not is_enabled(live):
            message = (
                f"namespace {name} is not enabled for machines, so pods in it get no slots;"
                f" `kubectl label namespace {name} {NAMESPACE_LABELS[0]}={ENABLED}` enables it"
            )
            raise ApiError(409, "NamespaceNotEnabled", message)

    async def _share(self, kind: ApiResource, managed: ManagedObject, *, made_by_agent: bool) -> None:
        """Applies to an object that somebody else created, or this agent for another app."""
        obj, ref = managed.obj, managed.ref
        if managed.enables_machines and made_by_agent:
            obj = enabled(obj)
        managed.shared = True
        if ref.kind == "Namespace" and not obj["metadata"].get("labels") and not obj.get("spec"):
            managed.live = {"kind": "Namespace", "metadata": {"name": ref.name}}  # it only has to exist
            return
        body = body_of(kind, ref, obj)
        applied, _ = await apply(self._cluster.api, kind, body, force=False, manager=self._owner.manager)
        managed.learn_applied(applied)

    # --- drift

    async def has_drifted(self, managed: ManagedObject) -> bool:
        """Returns whether the object was changed or deleted."""
        applied = managed.applied
        if applied is None:
            return False
        if is_pin(managed.obj) and self._is_outdated(managed):
            return True
        kind = await self._cluster.kind(managed.ref)
        if not managed.shared:
            live = self._cluster.watches.get(kind, managed.ref.namespace, managed.ref.name)
            if live is not None:
                return applied.differs(live)
            if self._cluster.watches.is_complete(kind):
                return await self._differs_on_server(managed, applied, kind)
        due = managed.compare_now(self._cluster.compare_interval())
        return due and await self._differs_on_server(managed, applied, kind)

    def _is_outdated(self, managed: ManagedObject) -> bool:
        """Returns whether devices have other attributes than when the class that names them was sent."""
        try:
            return self._completed(managed.obj) != managed.sent
        except ApiError as error:
            return error.code != 503

    async def is_unwatched(self, managed: ManagedObject) -> bool:
        """Returns whether the object must be compared now and then, because no watch reports its changes."""
        if managed.applied is None:
            return False
        return managed.shared or not self._cluster.watches.is_complete(await self._cluster.kind(managed.ref))

    async def _differs_on_server(self, managed: ManagedObject, applied: AppliedState, kind: ApiResource) -> bool:
        """Reads only the metadata first: the content of Secrets travels only after a change."""
        path = kind.path(managed.ref.namespace, managed.ref.name)
        brief = await self._cluster.api.get(path, brief=True)
        if brief is None:
            return True
        if resource_version(brief) == applied.version:
            return False
        live = await self._cluster.api.get(path)
        return live is None or managed.shared or digest(live) != applied.digest

    async def is_own(self, kind: ApiResource, ref: Ref) -> bool:
        """Returns whether a listed object exists and is this app's. Asks the server, because a watch may show a removed
        object for a while."""
        try:
            live = await self._cluster.api.get(kind.path(ref.namespace, ref.name), brief=True)
        except ApiError as error:
            if error.is_transient:
                raise
            return True  # it was listed
        return owner_of(live) == self._owner.name

    # --- removal

    async def remove(self, ref: Ref, check_current: CheckCurrent) -> None:
        """Deletes the app's own object and returns once it is gone; releases the fields of an object of somebody else."""
        api = self._cluster.api
        kind = await self._cluster.discovery.find(ref.api_version, ref.kind)
        if kind is None:
            return
        live = await api.get(kind.path(ref.namespace, ref.name))
        if live is None:
            return
        uid = str(live["metadata"]["uid"])
        if owner_of(live) != self._owner.name:
            await release(api, kind, ref.namespace, ref.name, uid, manager=self._owner.manager)
            return
        if ref.kind == "Namespace" and (reason := await self._inhabited(ref.name)):
            log.warning("namespace is kept, because others use it", namespace=ref.name, reason=reason)
            await release(api, kind, ref.namespace, ref.name, uid)
            return
        if is_stuck(live) or not await self._is_taken_back(kind, ref, uid, check_current):
            await self._delete(kind, ref, uid, check_current)
            self._cluster.give_back(self._owner, ref)  # the app from which it was taken over makes it anew

    async def _is_taken_back(self, kind: ApiResource, ref: Ref, uid: str, check_current: CheckCurrent) -> bool:
        """Returns whether the app from which the object was taken over has it again. Its pods are not ended for that."""
        if not self._cluster.give_back(self._owner, ref):
            return False
        end = _now() + TAKE_BACK
        while _now() < end:
            await asyncio.sleep(0.1)
            check_current()
            live = await self._cluster.api.get(kind.path(ref.namespace, ref.name), brief=True)
            if live is None or live["metadata"].get("uid") != uid or owner_of(live) != self._owner.name:
                return True
        return False

    async def _inhabited(self, namespace: str) -> str:
        """Names the objects of others in a namespace; empty if there are none."""
        if self._cluster.has_other_app_in(namespace, self._owner.label):
            return "another app is in it"
        for path, plural in _INHABITANTS:
            try:
                found = await self._cluster.api.get(f"{path}/namespaces/{namespace}/{plural}", query={"limit": "1"})
            except ApiError as error:
                return f"{plural} cannot be listed: {error.message}"
            if found and found.get("items"):
                return f"there are {plural} in it"
        return ""

    async def _delete(self, kind: ApiResource, ref: Ref, uid: str, check_current: CheckCurrent) -> None:
        check_current()
        pause = 0.05
        gone = await delete(self._cluster.api, kind, ref.namespace, ref.name, uid)
        while not gone:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 2.0)
            check_current()
            live = await self._cluster.api.get(kind.path(ref.namespace, ref.name))
            gone = live is None or live["metadata"].get("uid") != uid


def is_stuck(live: Live) -> bool:
    """Returns whether another version of the object would never be rolled out: Kubernetes waits for each pod of a StatefulSet to be
    ready before it replaces the next one, and that one itself."""
    if live.get("kind") != "StatefulSet":
        return False
    wanted = live["spec"].get("replicas", 1)
    return int((live.get("status") or {}).get("readyReplicas") or 0) < int(wanted)


def _now() -> float:
    return asyncio.get_running_loop().time()
