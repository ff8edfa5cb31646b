"""Reports of one cluster: in full when asked, then what changed, gathered for a moment so that a burst becomes one; each
sent again as it was until somebody answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
import structlog

from moorage.bus import Bus, NoAnswer, new_id, subjects
from moorage.model.problems import Refused
from moorage.model.reports import ReportReply, parts_of

from .core.cluster_state import ClusterState, NodeRows

log = structlog.get_logger("agent")

SOURCE = "cluster"
GATHER = 0.05
#: At least this long from one report to the next.
SPACING = 0.1
ANSWER = 3.0
#: A view older than this is nobody's to decide on: we fall silent, and the cluster becomes stale.
TOO_OLD = 15.0

_encode = msgspec.json.Encoder().encode


def cut(rows: NodeRows, kind: str, labels: dict[str, str], succeeds: str) -> list[bytes]:
    """The bodies of a report's parts, each without its envelope."""
    more = b',"labels":%b' % _encode(labels) if kind == "full" else b""
    if succeeds:
        more += b',"succeeds":%b' % _encode(succeeds)
    lists = {
        "nodes": rows.nodes,
        "pods": rows.pods,
        "nodesGone": map(_encode, rows.nodes_gone),
        "podsGone": map(_encode, rows.pods_gone),
    }
    return [b'"kind":"%b"%b%b' % (kind.encode(), body, more) for body in parts_of(lists)]


class Reporting:
    """`age`: how many seconds old the view is; None while it is not whole."""

    def __init__(
        self,
        bus: Bus,
        cluster: str,
        view: ClusterState,
        age: Callable[[], float | None],
        labels: dict[str, str],
        succeeds: str,
    ) -> None:
        self._bus, self._subject = bus, subjects.reports(cluster, SOURCE)
        self._view, self._age, self._labels = view, age, labels
        self.session = new_id()
        self._succeeds = succeeds
        self._seq = 0
        self._full = True
        self._refused = ""
        self.period = 2.0
        self.changed = asyncio.Event()
        self.accepted = asyncio.Event()  # a full report of this session has arrived
        self.sent = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while True:
            if not self._full:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(beat + self.period):
                        await self.changed.wait()
                if self.changed.is_set():
                    await asyncio.sleep(GATHER)
            age = self._age()
            if age is None or age > TOO_OLD:
                await asyncio.sleep(0.1)
                continue
            beat = loop.time()
            await self._report()
            await asyncio.sleep(max(0.0, beat + SPACING - loop.time()))

    async def _report(self) -> None:
        self.changed.clear()
        full, self._full = self._full, False
        rows = self._view.full() if full else self._view.changed()
        bodies = cut(rows, "full" if full else "delta", self._labels, self._succeeds)
        self._seq += 1
        as_of = time.time() - (self._age() or 0.0)
        for i, body in enumerate(bodies):
            reply = await self._send(self._envelope(i, len(bodies), as_of, body))
            self.period = max(0.05, reply.period_ms / 1e3)
            if reply.refused:
                await self._wait(reply.refused)
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
        """Until it is answered: what was said once is what is said again."""
        pause = 0.2
        while True:
            try:
                return await self._bus.call(self._subject, payload, ReportReply, timeout=ANSWER)
            except Refused as refused:
                log.warning("a report was refused", code=refused.problem.code, detail=refused.problem.detail)
            except NoAnswer:
                pass
            except msgspec.DecodeError as error:
                log.warning("an answer cannot be read", error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _wait(self, reason: str) -> None:
        """Another session speaks for this cluster: until it is silent."""
        if self._refused != reason:
            log.warning("reports are refused", reason=reason)
        self._refused, self._full = reason, True
        await asyncio.sleep(self.period)


async def leave(bus: Bus, cluster: str, session: str) -> None:
    """The cluster goes for good. `session`: the one that reported last."""
    me = new_id().encode()
    head = b'{"id":"%b.1","session":"%b","seq":1,"asOf":%.3f,"kind":"full","leaving":true,"succeeds":%b}'
    payload = head % (me, me, time.time(), _encode(session))
    try:
        reply = await bus.call(subjects.reports(cluster, SOURCE), payload, ReportReply, timeout=10)
    except Refused as refused:
        raise NoAnswer(str(refused)) from refused
    if reply.refused:
        raise NoAnswer(reply.refused)
