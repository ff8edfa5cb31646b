"""Publishes the events of phases, and republishes those that were lost when a patcher or the broker died."""

from __future__ import annotations

from functools import partial

from moorage.bus import Bus, subjects
from moorage.bus.fenced_bucket import FencedBucket
from moorage.bus.outbox import Outbox, RecordedEvent
from moorage.collections import LruDict
from moorage.model.names import group_tokens
from moorage.model.status import GroupStatus, PhaseChange
from moorage.telemetry import tracing

from .group_queue import WORKERS, GroupQueue

OWN_PHASES = ("Deploying", "Running", "Degraded", "Terminating", "Terminated")
#: Phases whose events may be lost: more than are worked on at once.
NEWEST = 4 * WORKERS


class PhaseEvents:
    """The events of the phases that were stored last."""

    def __init__(self, bus: Bus, groups: GroupQueue, statuses: FencedBucket) -> None:
        self._bus, self._groups, self._statuses = bus, groups, statuses
        self._newest = LruDict[str, None](NEWEST)  # groups whose phase was stored last
        self.outbox = Outbox(bus, self._recorded)

    def learn(self, group: str) -> None:
        """Remembers a group whose phase was stored; to be called in the order of storing."""
        self._newest[group] = None

    async def publish(self, status: GroupStatus) -> None:
        change = PhaseChange(
            group=status.group,
            revision=status.revision,
            phase=status.phase,
            decision=status.decision,
            reasons=status.reasons,
        )
        self.learn(status.group)
        desired = self._groups.desired.get(status.group)
        traceparent = desired.traceparent if desired is not None else ""
        with tracing.stored_span(status.phase.lower(), traceparent, **{"moorage.group": status.group}):
            await self._bus.emit(_subject(status), change, cause=status.decision, id=status.told, once=True)

    async def _recorded(self) -> list[RecordedEvent]:
        statuses = [status for group in self._newest if (status := self._stored_status(group)) is not None]
        return [
            RecordedEvent(
                _subject(status),
                status.told,
                partial(self._statuses.written_at, group_tokens(status.group)),
                partial(self._republish, status),
            )
            for status in statuses
        ]

    def _stored_status(self, group: str) -> GroupStatus | None:
        """Returns the status of a group unless its phase has no event here. One that is worked on may not be stored yet."""
        status = self._groups.statuses.get(group)
        if status is None or group in self._groups.busy or not status.told or status.phase not in OWN_PHASES:
            return None
        return status

    async def _republish(self, status: GroupStatus) -> None:
        current = self._groups.statuses.get(status.group)
        if current is not None and current.told == status.told:
            await self.publish(current)


def _subject(status: GroupStatus) -> str:
    return subjects.decision_event(status.phase.lower(), status.group)
