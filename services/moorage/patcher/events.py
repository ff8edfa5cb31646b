"""The events of phases, and that they are kept: who stored a phase may die, or the broker with him, before its event is. So
the newest phases are compared with the kept events on starting and after each reconnect."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial

import structlog

from moorage.bus import Bus, BusError, NoAnswer, subjects
from moorage.bus.fenced_bucket import FencedBucket
from moorage.mesh import stores
from moorage.model.desired import GroupStatus, PhaseChange
from moorage.model.names import group_tokens
from moorage.telemetry import tracing

from .group_queue import RETRY, WORKERS, GroupQueue

log = structlog.get_logger("patcher")

OWN_PHASES = ("Deploying", "Running", "Degraded", "Terminating", "Terminated")
#: Phases whose events may have got lost when a patcher or the broker died: more than are worked on at once.
NEWEST = 4 * WORKERS


class Telling:
    def __init__(self, bus: Bus, desk: GroupQueue, statuses: FencedBucket) -> None:
        self._bus, self._desk, self._statuses = bus, desk, statuses
        self._newest: OrderedDict[str, None] = OrderedDict()  # groups whose phase was told last

    def learn(self, group: str) -> None:
        """In the order of their writing."""
        self._newest[group] = None
        if len(self._newest) > NEWEST:
            self._newest.popitem(last=False)

    async def tell(self, status: GroupStatus) -> None:
        change = PhaseChange(
            group=status.group,
            revision=status.revision,
            phase=status.phase,
            decision=status.decision,
            reasons=status.reasons,
        )
        self.learn(status.group)
        self._newest.move_to_end(status.group)
        subject = subjects.decision_event(status.phase.lower(), status.group)
        desired = self._desk.desired.get(status.group)
        of = desired.traceparent if desired is not None else ""
        with tracing.carried(status.phase.lower(), of, **{"moorage.group": status.group}):
            await self._bus.emit(subject, change, cause=status.decision, id=status.told, once=True)

    async def retell(self) -> None:
        """The newest phases of all, where the one before us, or the broker, died before their events were kept."""
        events = self._bus.log(stores.EVENTS)
        try:
            for group in list(self._newest):
                status = self._desk.statuses.get(group)
                if status is None or group in self._desk.busy or not status.told or status.phase not in OWN_PHASES:
                    continue
                written = partial(self._statuses.time, group_tokens(group))
                if await events.is_missing(subjects.decision_event(status.phase.lower(), group), status.told, written):
                    log.warning("an event was missing", group=group, phase=status.phase)
                    await self.tell(status)
        except (NoAnswer, BusError) as error:
            log.warning("events could not be compared with phases", error=str(error))
            asyncio.get_running_loop().call_later(RETRY, lambda: self._bus.spawn(self.retell()))
