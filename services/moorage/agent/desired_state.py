"""What should run here: asked for when we come, every period and on a hint, and handed to one task per app; what became of
it is said until the patcher has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from moorage.bus import Bus, NoAnswer, subjects
from moorage.model.desired import Confirm, DesiredApp, DesiredAsk, DesiredReply
from moorage.model.problems import Refused

from .app_reconciler import AppReconciler
from .app_records import AppRecord, AppRecordContent, label_of
from .context import ClusterContext, Spawn

log = structlog.get_logger("agent")

ANSWER = 5.0


class DesiredStateClient:
    def __init__(self, bus: Bus, cluster: str, site: ClusterContext, spawn: Spawn, period: Callable[[], float]) -> None:
        self._bus, self._cluster, self._site, self._spawn, self._period = bus, cluster, site, spawn, period
        self._apps: dict[str, AppReconciler] = {}
        site.among(self._apps, self.adopt)
        self.asking = asyncio.Event()
        self._have: dict[str, int] = {}
        self._generation = 0
        self._confirms: dict[str, Confirm] = {}
        self._telling = asyncio.Event()

    def adopt(self, record: AppRecord) -> AppReconciler:
        app = AppReconciler(self._site, record, self._confirm)
        self._apps[app.label] = app
        # Also what nobody decides about any more is named when we ask: after a restore it is to go.
        self._have.setdefault(f"{app.group} {app.app}", 0)
        self._spawn(app.run())
        return app

    def _confirm(self, confirm: Confirm) -> None:
        self._confirms[f"{confirm.group} {confirm.app}"] = confirm  # only the newest matters
        self._telling.set()

    def woken(self, label: str) -> None:
        app = self._apps.get(label)
        if app is not None:
            app.wake.set()

    # --- asking

    async def ask(self) -> None:
        """For ever. Answers come from the state of that moment, so what was withdrawn is never begun."""
        while True:
            self.asking.clear()
            try:
                await self._ask()
                pause = self._period()
            except (NoAnswer, Refused, msgspec.DecodeError) as error:
                log.debug("asking what should run", error=str(error))
                pause = 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.asking.wait()

    async def _ask(self) -> None:
        have = dict(self._have)  # all parts answer the same question
        part = 0
        while True:
            payload = DesiredAsk(have=have, part=part)
            reply = await self._bus.call(subjects.desired("get", self._cluster), payload, DesiredReply, timeout=ANSWER)
            if reply.generation < self._generation:
                raise NoAnswer("an answer of a patcher that was replaced")
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
            if app is not None:  # named again: the patcher does not know what became of it
                app.say_again(desired.version)
            return
        self._have[name] = desired.version
        if app is None:
            app = self.adopt(AppRecord(AppRecordContent(group=desired.group, app=desired.app)))
        app.decide(desired)

    # --- telling

    async def tell(self) -> None:
        pause = 0.2
        while True:
            await self._telling.wait()
            self._telling.clear()
            for name in list(self._confirms):
                confirm = self._confirms.pop(name)
                try:
                    subject = subjects.desired("confirm", self._cluster)
                    await self._bus.call(subject, confirm, msgspec.Raw, timeout=ANSWER + 1)
                    pause = 0.2
                except (NoAnswer, Refused) as error:
                    log.debug("a confirmation was not taken", error=str(error))
                    self._confirms.setdefault(name, confirm)
                    self._telling.set()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 5.0)
