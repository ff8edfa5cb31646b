"""Reconciles one app of a group in this cluster: applies the newest version, repairs drift, prunes, and removes the app.
Each app has one task, so versions come in order; a version that is overtaken is given up at its next object."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from moorage.bus.failpoints import reached
from moorage.dra.pins import is_pin
from moorage.dra.quotas import with_quotas
from moorage.dra.slices import Devices
from moorage.kube import ApiError, ApiResource, Unreachable, apply_order
from moorage.model.desired_state import DesiredApp, Pins
from moorage.model.status import Confirm, ObjectStatus
from moorage.podspec import SLOT_DEVICES, object_key
from moorage.telemetry import HANDLED, Handled, tracing

from .app_records import AppRecord, AppRecordContent
from .context import ClusterContext
from .core.device_annotations import SlotRun, read_slot_devices
from .core.owned_objects import Manifest, Ref, is_listed, objects_of, ref_of
from .managed_app import ManagedApp, Overtaken
from .object_health import EVENTS_INTERVAL, check_health
from .version_apply import apply_version

log = structlog.get_logger("agent")

#: Seconds until what failed is tried again, growing.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
#: Seconds until everything is compared again, and objects that are not ready and that no watch reports.
RESYNC, POLL = 300.0, 5.0


class AppReconciler:
    """`confirm` is called whenever the state of the app's objects has changed."""

    def __init__(self, cluster: ClusterContext, record: AppRecord, confirm: Callable[[Confirm], None]) -> None:
        self._cluster, self._confirm = cluster, confirm
        self._app = ManagedApp(cluster, record)
        self.wake = asyncio.Event()
        self.removed = False
        self.succeeds = ""  # the group whose objects the app takes over
        self._applied_version = 0  # whose objects were all tried
        self._invalid: list[ObjectStatus] = []  # of a version that cannot be applied at all
        self._named: set[str] = set()  # objects that the version names; others are namespaces that it needs
        self._extra: list[Ref] = []  # recorded objects that the version no longer has
        self._unrecorded: dict[Ref, ApiResource] = {}
        self._failures, self._retry_at = 0, 0.0
        self._confirmed: Confirm | None = None
        self._traceparent = ""  # for confirmations

    @property
    def label(self) -> str:
        return self._app.label

    @property
    def record(self) -> AppRecord:
        return self._app.record

    @property
    def is_removing(self) -> bool:
        return self._app.desired is not None and self._app.desired.remove

    @property
    def has_pins(self) -> bool:
        """Returns whether claims of the app are pinned to devices."""
        return any(is_pin(managed.obj) for managed in self._app.objects.values())

    def wanted(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Returns an object that the app wants, if it does."""
        for ref, managed in self._app.objects.items():
            if (ref.kind, ref.namespace, ref.name) == (kind, namespace, name):
                return managed.obj
        return None

    def decision_of(self, claim: str) -> str:
        """Returns the decision of a claim, if it is the app's."""
        desired = self._app.desired
        return desired.decision if desired is not None and claim in desired.claims else ""

    def slot_devices(self) -> dict[str, list[SlotRun]]:
        """Returns the devices that slots name and no ResourceClaim allocates, by claim."""
        found: dict[str, list[SlotRun]] = {}
        for managed in self._app.objects.values():
            text = (managed.obj["metadata"].get("annotations") or {}).get(SLOT_DEVICES)
            found |= read_slot_devices(text) if text else {}
        return found

    def set_desired(self, desired: DesiredApp) -> None:
        if self._app.desired is None or desired.version > self._app.desired.version:
            self._app.desired = desired
            if not desired.remove:
                self.succeeds = desired.succeeds
            self._failures, self._retry_at = 0, 0.0
            self.wake.set()

    def take_back(self) -> None:
        """Applies everything again, because an object that another app took over may be taken back."""
        self._applied_version = 0
        self.wake.set()

    def set_pins(self, pins: Pins) -> None:
        """Records the slots of the app's pods. An app that is not recorded yet is recorded with its first version."""
        self._app.record.set_pins(pins)
        self.wake.set()

    async def run(self) -> None:
        """Runs until the lease is lost. What the API server refuses stays with the object and is tried again."""
        app, due = self._app, 0.0
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due or None):
                    await self.wake.wait()
            self.wake.clear()
            HANDLED.set(Handled(app.group, cause=app.desired.decision if app.desired is not None else ""))
            try:
                if self._unrecorded:
                    await self._record_adopted()
                if app.desired is None:
                    due = 0.0
                    continue
                reconcile = self._remove if app.desired.remove else self._reconcile
                pause = await reconcile(app.desired)
            except Overtaken:
                pause = 0.0
            except (ApiError, Unreachable) as error:
                log.warning("app will be tried again", group=app.group, app=app.app, error=str(error))
                pause = self._backoff()
            due = loop.time() + pause

    def _backoff(self) -> float:
        self._failures += 1
        return min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(self._failures - 1, 8))

    async def _reconcile(self, desired: DesiredApp) -> float:
        """Applies a new version or repairs the current one. Returns the seconds until the next look."""
        if self._applied_version != desired.version:
            with tracing.stored_span("apply", desired.traceparent, **{"moorage.app": self._app.app}):
                self._traceparent = tracing.traceparent()
                await self._apply(desired)
        else:
            await self._repair(desired)
        if self._extra and not self._app.has_refusals:
            await self._prune(desired)
        await self._app.store_record()
        pause = await self._report_health()
        now = asyncio.get_running_loop().time()
        if not self._app.has_refusals:
            self._failures, self._retry_at = 0, 0.0
            return pause
        if now >= self._retry_at:
            self._retry_at = now + self._backoff()
        return min(pause, self._retry_at - now)

    async def _apply(self, desired: DesiredApp) -> None:
        try:
            objects, notices = self._with_quotas(objects_of(desired))
        except ValueError as error:
            self._invalid = [
                ObjectStatus(object=object_key(obj), state="Failed", message=str(error)) for obj in desired.objects
            ]
            self._app.objects, self._extra = {}, []
        else:
            self._invalid = []
            self._named = {ref.key for ref in objects}
            self._extra = await apply_version(self._app, desired, objects)
            for ref, managed in self._app.objects.items():
                managed.notice = notices.get(ref, "")
        self._applied_version = desired.version

    def _with_quotas(self, objects: dict[Ref, Manifest]) -> tuple[dict[Ref, Manifest], dict[Ref, str]]:
        """Returns the objects with pins in templates where quotas of the cluster want that, and what to tell of these."""
        state = self._cluster.state

        def devices() -> Devices:
            if not state.devices_known:
                raise ApiError(503, "Unavailable", "the devices of the cluster are not known yet")
            return state.devices

        found = with_quotas(list(objects.values()), state.quotas.of, devices)
        if not found.templates:
            return objects, {}
        pinned = {ref_of(obj): obj for obj in found.manifests}
        notices = {ref: found.notice(ref.kind, ref.namespace, ref.name) for ref in pinned}
        return pinned, notices

    async def _repair(self, desired: DesiredApp) -> None:
        """Applies objects again that were changed, deleted or refused."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for managed in sorted(self._app.objects.values(), key=lambda managed: apply_order(managed.ref.kind)):
            if managed.refused:
                if now >= self._retry_at:
                    await self._app.apply(desired, managed)
            elif await self._app.writer.has_drifted(managed) and managed.repairs.repair_now(loop.time()):
                await self._app.apply(desired, managed)

    async def _prune(self, desired: DesiredApp) -> None:
        """Removes what only earlier versions had, once all of the new version is applied."""
        await self._report_health()
        await self._app.remove(desired, self._extra)
        self.record.set_refs(list(self._app.objects), desired.version)
        await self._app.store_record()
        self._extra = []

    # --- confirmations

    async def _report_health(self) -> float:
        """Confirms the state of all objects if it has changed. Returns the seconds until it must be read again."""
        app, statuses = self._app, list(self._invalid)
        unwatched, must_poll = 0, False
        for managed in app.objects.values():
            health, watched = await check_health(self._cluster, managed)
            must_poll = must_poll or (health.state != "Ready" and not watched)
            unwatched += not managed.refused and await app.writer.is_unwatched(managed)
            if managed.ref.kind != "Namespace" or managed.ref.key in self._named:
                statuses.append(ObjectStatus(object=managed.ref.key, **health._asdict()))
        self._send(Confirm(group=app.group, app=app.app, version=self._applied_version, objects=statuses))
        self._cluster.unwatched[app.label] = unwatched
        pause = self._cluster.compare_interval() if unwatched else RESYNC
        if any(status.state != "Ready" for status in statuses):
            pause = min(pause, POLL if must_poll else EVENTS_INTERVAL)
        now = asyncio.get_running_loop().time()
        repairs = (managed.repairs.not_before - now for managed in app.objects.values())
        return min([pause, *(max(0.05, seconds) for seconds in repairs if seconds > 0)])

    def _send(self, confirm: Confirm) -> None:
        if self._confirmed != confirm:
            self._confirmed = confirm
            self.confirm_again(confirm.version)

    def confirm_again(self, version: int) -> None:
        """Repeats the last confirmation if it is of this version: it may have been lost before it was stored."""
        if self._confirmed is not None and self._confirmed.version >= version:
            self._confirm(msgspec.structs.replace(self._confirmed, as_of=time.time(), traceparent=self._traceparent))

    # --- adoption

    def adopt(self, kind: ApiResource, ref: Ref) -> None:
        """Takes an object of this app from a watch. If no record names it, its creator ended before it was recorded."""
        if not is_listed(self.record.content.refs, kind, ref):
            self._unrecorded[ref] = kind
            self.removed = False
            self.wake.set()

    async def _record_adopted(self) -> None:
        """Records adopted objects, so that they are kept, pruned or removed like all others."""
        refs = list(self.record.content.refs)
        adopted = dict(self._unrecorded)
        for ref, kind in adopted.items():
            if await self._app.writer.is_own(kind, ref) and not is_listed(refs, kind, ref):
                log.warning(
                    "object was created but not recorded", group=self._app.group, app=self._app.app, object=ref.key
                )
                refs.append(ref)
        if refs != self.record.content.refs:
            self.record.set_refs(refs, self.record.content.version)
            self._applied_version = 0
        if refs:
            await self._app.store_record()
        for ref in adopted:
            del self._unrecorded[ref]

    # --- removal

    async def _remove(self, desired: DesiredApp) -> float:
        """Confirms the removal only once all objects are gone: only then may others have their place."""
        app = self._app
        if self._applied_version != desired.version:
            refs = list(self.record.content.refs)
            if refs:
                await app.store_record()  # fails if a successor has taken over
            await app.remove(desired, refs)
            reached("agent.removed")
            await self._cluster.records.remove(self.record)
            self.record.content = AppRecordContent(group=app.group, app=app.app)
            app.objects, self._extra, self._invalid = {}, [], []
            self._cluster.unwatched.pop(app.label, None)
            self._applied_version = desired.version
            statuses = [ObjectStatus(object=ref.key, state="Removed") for ref in refs]
            self._send(Confirm(group=app.group, app=app.app, version=desired.version, removed=True, objects=statuses))
        self.removed = True
        return RESYNC
