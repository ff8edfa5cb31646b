"""Reports the cluster: in full when asked to, then what changed, gathered for a moment so that a burst becomes one report.
Each report is repeated unchanged until it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
import structlog

from moorage.bus import Bus, NoAnswer, new_id, subjects, until_done
from moorage.model.problems import Refused
from moorage.model.reports import ReportReply

from .core.cluster_state import ClusterState
from .core.report_bodies import report_bodies

log = structlog.get_logger("agent")

SOURCE = "cluster"
#: Seconds that changes are gathered before a report.
GATHER = 0.05
#: Seconds between two reports, at least.
SPACING = 0.1
REPLY_TIMEOUT = 3.0
#: No decision may rest on a view that is older, in seconds: nothing is reported then, and the cluster becomes stale.
TOO_OLD = 15.0

_encode = msgspec.json.Encoder().encode


class Reporting:
    """`age`: seconds since the view was current; None while it is incomplete. `succeeds`: the session of the predecessor."""

    def __init__(
        self,
        bus: Bus,
        cluster: str,
        state: ClusterState,
        age: Callable[[], float | None],
        labels: dict[str, str],
        succeeds: str,
    ) -> None:
        self._bus, self._subject = bus, subjects.reports(cluster, SOURCE)
        self._state, self._age, self._labels = state, age, labels
        self.session = new_id()
        self._succeeds = succeeds
        self._seq = 0
        self._full = True
        self._refused = ""
        self.period = 2.0
        self.changed = asyncio.Event()
        self.accepted = asyncio.Event()  # a full report of this session was accepted
        self.sent = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while True:
            if not self._full:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(sent_at + self.period):
                        await self.changed.wait()
                if self.changed.is_set():
                    await asyncio.sleep(GATHER)
            age = self._age()
            if age is None or age > TOO_OLD:
                await asyncio.sleep(0.1)
                continue
            sent_at = loop.time()
            await self._report()
            await asyncio.sleep(max(0.0, sent_at + SPACING - loop.time()))

    async def _report(self) -> None:
        self.changed.clear()
        full, self._full = self._full, False
        rows = self._state.full() if full else self._state.changed()
        bodies = report_bodies(rows, "full" if full else "delta", self._labels, self._succeeds)
        self._seq += 1
        as_of = time.time() - (self._age() or 0.0)
        for i, body in enumerate(bodies):
            reply = await self._send(self._envelope(i, len(bodies), as_of, body))
            self.period = max(0.05, reply.period_ms / 1e3)
            if reply.refused:
                await self._wait_refused(reply.refused)
                return
            if reply.resync:
                self._full = True
                return
        self.sent += 1
        self._refused, self._succeeds = "", ""
        self.accepted.set()

    def _envelope(self, part: int, parts: int, as_of: float, body: bytes) -> bytes:
        session = self.session.encode()
        head = b'{"id":"%b.%d","session":"%b","seq":%d,"part":[%d,%d],"asOf":%.3f,'
        return head % (session, self._seq, session, self._seq, part, parts, as_of) + body + b"}"

    async def _send(self, payload: bytes) -> ReportReply:
        """Repeats the message until it is answered."""
        async for attempt in until_done((NoAnswer, Refused, msgspec.DecodeError)):
            with attempt:
                return await self._bus.call(self._subject, payload, ReportReply, timeout=REPLY_TIMEOUT)
        raise AssertionError("attempts never end")

    async def _wait_refused(self, reason: str) -> None:
        """Another session reports this cluster. Waits, and then reports in full, until that session is silent."""
        if self._refused != reason:
            log.warning("reports are refused", reason=reason)
        self._refused, self._full = reason, True
        await asyncio.sleep(self.period)


async def leave(bus: Bus, cluster: str, session: str) -> None:
    """Reports that the cluster leaves for good. `session`: the one that reported last."""
    own = new_id().encode()
    head = b'{"id":"%b.1","session":"%b","seq":1,"asOf":%.3f,"kind":"full","leaving":true,"succeeds":%b}'
    payload = head % (own, own, time.time(), _encode(session))
    try:
        reply = await bus.call(subjects.reports(cluster, SOURCE), payload, ReportReply, timeout=10)
    except Refused as refused:
        raise NoAnswer(str(refused)) from refused
    if reply.refused:
        raise NoAnswer(reply.refused)
