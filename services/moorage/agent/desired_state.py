"""Requests desired state from the patcher, passes it to one reconciler per app, and confirms the results until they are
stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from moorage.bus import Bus, NoAnswer, subjects
from moorage.kube import ApiResource
from moorage.model.desired_state import DesiredApp, DesiredAsk, DesiredReply, Pins
from moorage.model.problems import Refused
from moorage.model.status import Confirm

from .app_reconciler import AppReconciler
from .app_records import AppRecord, AppRecordContent
from .context import ClusterContext
from .core.owned_objects import Ref, label_of
from .object_watches import Spawn

log = structlog.get_logger("agent")

REPLY_TIMEOUT = 5.0
#: What is known of an app is forgotten this many seconds after its removal was confirmed. Until then the patcher may name the
#: app again; after that it is removed again, which changes nothing.
REMEMBERED_FOR = 120.0


class DesiredStateClient:
    """`apps` is filled here, by label. `period`: seconds between two requests without a hint. `set_pins` is called with the slots to
    which an app's pods are pinned, by the app's label."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        cluster: ClusterContext,
        apps: dict[str, AppReconciler],
        spawn: Spawn,
        period: Callable[[], float],
        set_pins: Callable[[str, Pins], None],
    ) -> None:
        self._bus, self._name, self._cluster, self._apps = bus, name, cluster, apps
        self._spawn, self._period, self._set_pins = spawn, period, set_pins
        self.ask_now = asyncio.Event()
        self._have: dict[str, int] = {}
        self._pins: dict[str, str] = {}  # by name, the tags of pins
        self._generation = 0  # of the patcher that answered last
        self._confirms: dict[str, Confirm] = {}
        self._has_confirms = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by the app's label
        self._removed: dict[str, tuple[Confirm, float]] = {}  # by name, the confirmed removal and its time

    def start_app(self, record: AppRecord) -> AppReconciler:
        content = record.content
        app = AppReconciler(self._cluster, record, self._confirm)
        self._apps[app.label] = app
        # An app without a decision is named in requests, too: after a restore it must be removed.
        self._have.setdefault(f"{content.group} {content.app}", 0)
        self._tasks[app.label] = self._spawn(app.run())
        if content.pins is not None:
            self._pins[f"{content.group} {content.app}"] = content.pins.tag
            self._set_pins(app.label, content.pins)
        return app

    def adopt(self, record: AppRecord, kind: ApiResource, ref: Ref) -> None:
        app = self._apps.get(label_of(record.content.group, record.content.app)) or self.start_app(record)
        app.adopt(kind, ref)

    def wake(self, label: str) -> None:
        app = self._apps.get(label)
        if app is not None:
            app.wake.set()

    # --- requests

    async def run_requests(self) -> None:
        """Asks for ever. Replies come from the state of that moment, so what was withdrawn in between is never begun."""
        while True:
            self.ask_now.clear()
            try:
                await self._ask()
                pause = self._period()
            except (NoAnswer, Refused, msgspec.DecodeError) as error:
                log.debug("desired state could not be read", error=str(error))
                pause = 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.ask_now.wait()

    async def _ask(self) -> None:
        self._forget_removed()
        have, pins = dict(self._have), dict(self._pins)  # all parts answer the same question
        part = 0
        while True:
            payload = DesiredAsk(have=have, part=part, pins=pins)
            subject = subjects.desired("get", self._name)
            reply = await self._bus.call(subject, payload, DesiredReply, timeout=REPLY_TIMEOUT)
            if reply.generation < self._generation:
                raise NoAnswer("the reply is from a patcher that was replaced")
            self._generation = reply.generation
            for app in reply.apps:
                self._take(app)
            part += 1
            if part >= reply.part[1]:
                return

    def _take(self, desired: DesiredApp) -> None:
        name = f"{desired.group} {desired.app}"
        app = self._apps.get(label_of(desired.group, desired.app))
        if self._have.get(name, 0) >= desired.version:
            if app is not None:  # named again, because its slots moved or its confirmation is missing
                self._take_pins(app, name, desired.pins)
                app.confirm_again(desired.version)
            return
        self._have[name] = desired.version
        if app is None:
            app = self.start_app(AppRecord(AppRecordContent(group=desired.group, app=desired.app)))
        self._take_pins(app, name, Pins() if desired.remove else desired.pins)
        app.set_desired(desired)

    def _take_pins(self, app: AppReconciler, name: str, pins: Pins | None) -> None:
        if pins is None or pins.tag == self._pins.get(name, ""):
            return
        self._pins[name] = pins.tag
        if not pins.tag:
            del self._pins[name]
        self._set_pins(app.label, pins)
        app.set_pins(pins)

    def _forget_removed(self) -> None:
        """Ends apps that were removed long ago, so that nothing grows with the number of apps that ever were."""
        now = asyncio.get_running_loop().time()
        for name, (confirm, since) in list(self._removed.items()):
            if now - since < REMEMBERED_FOR:
                break
            del self._removed[name]
            label = label_of(confirm.group, confirm.app)
            app = self._apps.get(label)
            if (
                app is not None
                and app.removed
                and self._have.get(name) == confirm.version
                and name not in self._confirms
            ):
                del self._have[name], self._apps[label]
                self._pins.pop(name, None)
                self._tasks.pop(label).cancel()

    # --- confirmations

    def _confirm(self, confirm: Confirm) -> None:
        self._confirms[f"{confirm.group} {confirm.app}"] = confirm  # only the newest is needed
        self._has_confirms.set()

    async def run_confirms(self) -> None:
        pause = 0.2
        while True:
            await self._has_confirms.wait()
            self._has_confirms.clear()
            for name in list(self._confirms):
                confirm = self._confirms.pop(name)
                try:
                    subject = subjects.desired("confirm", self._name)
                    await self._bus.call(subject, confirm, msgspec.Raw, timeout=REPLY_TIMEOUT + 1)
                    pause = 0.2
                    self._removed.pop(name, None)
                    if confirm.removed:
                        self._removed[name] = confirm, asyncio.get_running_loop().time()
                except (NoAnswer, Refused) as error:
                    log.debug("confirmation was not stored", error=str(error))
                    self._confirms.setdefault(name, confirm)
                    self._has_confirms.set()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 5.0)
