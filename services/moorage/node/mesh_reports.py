"""Reports the node to the mesh as a source of its own: in full when asked to, then what changed, at once. The mesh away, the agent
goes on, and reports in full when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from moorage.bus import Bus, NoAnswer, Settings, new_id, subjects
from moorage.mesh.permissions import node_user
from moorage.model.problems import Refused
from moorage.model.reports import ReportReply

from .core.node_report import NOTHING, NodeRows, report_bodies

log = structlog.get_logger("node")

#: Seconds that changes are gathered, and between two reports at least.
GATHER, SPACING = 0.01, 0.05
REPLY_TIMEOUT = 3.0
#: Seconds until the broker is tried again.
RETRY = 1.0


class MeshCredentials(msgspec.Struct, rename="camel"):
    """The file that `moorage node join` writes."""

    cluster: str
    node: str
    nats: str
    seed: str


class BadCredentials(Exception):
    """Raised for a file that `moorage node join` did not write."""


def read_credentials(file: Path) -> MeshCredentials:
    """Reads the file of `moorage node join`; raises BadCredentials where it is none."""
    try:
        return msgspec.json.decode(file.read_bytes()[: 1 << 16], type=MeshCredentials)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCredentials(f"{file}: {error}; make it with `moorage node join PROVIDER/CLUSTER/NODE`") from error


class MeshReports:
    """Reports what `rows` returns. `changed` is to be set when that may be something else."""

    def __init__(self, credentials: MeshCredentials, rows: Callable[[], NodeRows]) -> None:
        self._credentials, self._rows = credentials, rows
        self._subject = subjects.reports(credentials.cluster, f"node-{credentials.node}")
        self._session, self._seq, self._full = new_id(), 0, True
        self._told = NOTHING
        self._period = 2.0
        self._refused = ""
        self.changed = asyncio.Event()
        self.sent = 0
        self.connected = False

    async def run(self) -> None:
        """Runs until cancelled."""
        user = node_user(f"{self._credentials.cluster}/{self._credentials.node}")
        while True:
            try:
                bus = await Bus.connect(Settings(self._credentials.nats, self._credentials.seed), worker=user)
            except (NoAnswer, OSError) as error:
                log.warning("the mesh is away", error=str(error))
                await asyncio.sleep(RETRY)
                continue
            try:
                await self._report_for_ever(bus)
            finally:
                self.connected = False
                await bus.close()

    async def _report_for_ever(self, bus: Bus) -> None:
        loop = asyncio.get_running_loop()
        sent_at = 0.0
        while True:
            if not self._full:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(sent_at + self._period):
                        await self.changed.wait()
                await asyncio.sleep(max(GATHER, sent_at + SPACING - loop.time()))
            sent_at = loop.time()
            self.changed.clear()
            await self._report(bus)

    async def _report(self, bus: Bus) -> None:
        now, full = self._rows(), self._full
        bodies = report_bodies(NOTHING if full else self._told, now)
        self._seq += 1
        for i, body in enumerate(bodies):
            reply = await self._send(bus, self._envelope(i, len(bodies), full, body))
            self._period = max(0.05, reply.period_ms / 1e3)
            self._full = bool(reply.refused) or reply.resync
            if reply.refused:
                if reply.refused != self._refused:
                    log.warning("reports of the node are refused", reason=reply.refused)
                self._refused = reply.refused
                await asyncio.sleep(self._period)
            if self._full:
                return
        self._told, self._refused = now, ""
        self.connected = True
        self.sent += 1

    def _envelope(self, part: int, parts: int, full: bool, body: bytes) -> bytes:
        session = self._session.encode()
        head = b'{"id":"%b.%d","session":"%b","seq":%d,"part":[%d,%d],"kind":"%b","asOf":%.3f'
        kind = b"full" if full else b"delta"
        return head % (session, self._seq, session, self._seq, part, parts, kind, time.time()) + body + b"}"

    async def _send(self, bus: Bus, payload: bytes) -> ReportReply:
        """Repeats the message until it is answered."""
        while True:
            try:
                return await bus.call(self._subject, payload, ReportReply, timeout=REPLY_TIMEOUT)
            except (NoAnswer, Refused, msgspec.DecodeError) as error:
                self.connected = False
                log.debug("a report is not answered", error=str(error))
                await asyncio.sleep(RETRY / 4)
