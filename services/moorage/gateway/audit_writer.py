"""The audit's lines on their way out: a moment after the answers they are about, together, so that nobody waits for them."""

from __future__ import annotations

import asyncio

import nats.errors
import structlog

from moorage.bus import Bus, BusError, subjects
from moorage.model.auth import Audit

log = structlog.get_logger("gateway")
#: Seconds.
_MOMENT = 0.02


class AuditWriter:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: list[tuple[Audit, str]] = []

    def add(self, line: Audit, ident: str) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(_MOMENT, self._go)
        self._waiting.append((line, ident))

    def _go(self) -> None:
        if self._waiting and not self._bus.closed.is_set():
            self._bus.spawn(self.flush())

    async def flush(self) -> None:
        lines, self._waiting = self._waiting, []
        for line, ident in lines:
            try:
                await self._bus.emit(subjects.audit_event(line.outcome, line.who or "nobody"), line, id=ident)
            except (nats.errors.Error, BusError, OSError) as error:
                self._bus.count("audit_lines_lost")
                log.error("a line of the audit was not kept", error=str(error), **_told(line))


def _told(line: Audit) -> dict[str, str]:
    return {"who": line.who, "method": line.method, "path": line.path, "outcome": line.outcome}
