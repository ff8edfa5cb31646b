"""Keeps the mesh and a cluster's machines in step: reports what changed, and takes over slots and grants. While the mesh does not answer,
the cluster grants alone what it may."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer, new_id, subjects
from moorage.kube import LeaderTerm
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.object_writes import REPAIR_INTERVAL
from moorage.machine_groups.reports import MeshReports
from moorage.model.machines import MachineDocument, MachinesSynced
from moorage.model.problems import Refused

from .mesh_documents import changes

log = structlog.get_logger("machines")
#: Seconds that changes are gathered after a report, and between two reports without changes.
GATHER, PERIOD = 0.01, 10.0
TIMEOUT = 5.0
#: Seconds until the mesh is asked again that did not answer, and after which it counts as unreachable.
RETRY, UNREACHABLE_AFTER = 1.0, 5.0


class MeshSync:
    """`planned` is called when something of the answer has to be carried out. `is_complete`: all Machines and guests are known."""

    def __init__(
        self,
        bus: Bus,
        state: ClusterMachines,
        cluster: str,
        planned: Callable[[], None],
        write_documents: Callable[[Mapping[str, MachineDocument]], Awaitable[None]],
    ) -> None:
        """`write_documents` makes the Machines that the mesh has for this cluster, and removes others of its."""
        self._bus, self._state, self._cluster, self._planned = bus, state, cluster, planned
        self._write_documents = write_documents
        self._news = asyncio.Event()
        self._reports: MeshReports | None = None
        self._answered = 0.0
        self._written = -REPAIR_INTERVAL  # when Machines of the mesh were put back last
        self.sent = 0

    async def listen(self) -> None:
        """Subscribes once to hints, for all terms of this process."""
        await self._bus.subscribe(subjects.machines("changed", self._cluster), lambda _subject, _data: self._hint())

        async def again() -> None:
            self._hint()

        self._bus.on_reconnect(again)

    def _hint(self) -> None:
        self._news.set()

    def notice(self) -> None:
        """Looks whether something of the cluster changed that the mesh has to know."""
        if self._reports is not None and (self._reports.has_news or self._needs_repair(self._reports)):
            self._news.set()

    def _needs_repair(self, reports: MeshReports) -> bool:
        """Returns whether somebody changed Machines of the mesh that are to be put back now."""
        if reports.documents is None or time.monotonic() < self._written + REPAIR_INTERVAL:
            return False
        return any(changes(self._state.machines, reports.documents))

    async def run(self, term: LeaderTerm) -> None:
        reports = self._reports = MeshReports(self._state, self._cluster, new_id(), term.generation)
        self._answered = time.monotonic()
        try:
            while True:
                if await self._sync(reports):
                    reported = time.monotonic()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PERIOD):
                            await self._news.wait()
                    await asyncio.sleep(max(0.0, reported + GATHER - time.monotonic()))
                else:
                    if time.monotonic() > self._answered + UNREACHABLE_AFTER:
                        self._set_connected(False)
                    await asyncio.sleep(RETRY)
        finally:
            self._reports = None

    async def _sync(self, reports: MeshReports) -> bool:
        """Reports once. Returns whether the mesh took it."""
        self._news.clear()
        try:
            subject = subjects.machines("sync", self._cluster)
            answer = await self._bus.call(subject, reports.report(), MachinesSynced, timeout=TIMEOUT)
        except (NoAnswer, BusError, Refused, msgspec.DecodeError) as error:
            log.debug("the mesh does not answer", error=str(error))
            reports.begin_again()
            return False
        self.sent += 1
        reports.take(answer, time.time())
        if answer.refused:
            log.warning("the report of Machines is refused", reason=answer.refused)
            return False
        if answer.resync:
            self._news.set()
            return True
        self._answered = time.monotonic()
        self._set_connected(True)
        if reports.documents is not None:
            if answer.full or answer.documents or answer.documents_gone:
                # No repair, so that the first change by others is put back at once.
                await self._write_documents(reports.documents)
            elif self._needs_repair(reports):
                self._written = time.monotonic()
                await self._write_documents(reports.documents)
        self._planned()
        return True

    def _set_connected(self, connected: bool) -> None:
        if self._state.connected != connected:
            log.info("slots are given out by the mesh" if connected else "the mesh cannot be reached")
            self._state.set_connected(connected)
            self._planned()
