"""Publishes audit events in batches shortly after the answers, so that requests do not wait for them."""

from __future__ import annotations

import asyncio

import nats.errors
import structlog

from moorage.bus import Bus, BusError, subjects
from moorage.model.auth import Audit

log = structlog.get_logger("audit")
_DELAY_SECONDS = 0.02


class AuditWriter:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue: list[tuple[Audit, str]] = []

    def add(self, line: Audit, ident: str) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._start_flush)
        self._queue.append((line, ident))

    def _start_flush(self) -> None:
        if self._queue and not self._bus.closed.is_set():
            self._bus.spawn(self.flush())

    async def flush(self) -> None:
        lines, self._queue = self._queue, []
        for line, ident in lines:
            try:
                await self._bus.emit(subjects.audit_event(line.outcome, line.who or "nobody"), line, id=ident)
            except (nats.errors.Error, BusError, OSError) as error:
                self._bus.count("audit_lines_lost")
                about = {"who": line.who, "method": line.method, "path": line.path, "outcome": line.outcome}
                log.error("audit event lost", error=str(error), **about)
