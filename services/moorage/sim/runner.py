"""Runs a simulator over one connection: sends its messages, hands it replies and hints, and keeps the time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from moorage.bus import MAX_PAYLOAD, Bus, subjects
from moorage.model.names import cluster_from_tokens
from moorage.model.problems import Problem, Refused

from .core.cluster_spec import ClusterSpec
from .core.fleet_status import refused_clusters
from .core.simulator import Simulator

#: The timers are checked at most this often, so that the messages of many clusters leave in batches.
MIN_TICK = 0.01
#: When a simulator ends, its clusters have this many seconds to leave, because the user waits for it.
LEAVE_TIMEOUT = 2.5


def wall_clock_offset() -> float:
    """Returns the difference between the wall clock and the clock of the event loop."""
    return time.time() - asyncio.get_running_loop().time()


class SimulatorRunner:
    """`hints` is the subject of the hints that desired state changed, `slot_hints` of those that slots of machines did."""

    def __init__(
        self,
        bus: Bus,
        core: Simulator,
        hints: str = "moorage.desired.changed.*.*",
        slot_hints: str = "moorage.machines.changed.*.*",
    ) -> None:
        self.bus = bus
        self.core = core
        self._hints, self._slot_hints = hints, slot_hints
        self.inbox = bus.nc.new_inbox()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._applying = asyncio.Lock()
        self._subjects: dict[tuple[str, str], str] = {}

    @property
    def now(self) -> float:
        return self._loop.time()

    async def start(self) -> None:
        await self.bus.subscribe(f"{self.inbox}.>", self._on_reply, max_bytes=MAX_PAYLOAD)
        await self.bus.subscribe(self._hints, self._on_hint)
        await self.bus.subscribe(self._slot_hints, self._on_slots_hint)
        self.bus.spawn(self._run())

    def _subject(self, verb: str, cluster: str) -> str:
        key = (verb, cluster)
        subject = self._subjects.get(key)
        if subject is None:
            if verb == "report":
                subject = subjects.reports(cluster, "cluster")
            elif verb == "machines":
                subject = subjects.machines("sync", cluster)
            else:
                subject = subjects.desired("get" if verb == "ask" else "confirm", cluster)
            self._subjects[key] = subject
        return subject

    def _on_reply(self, subject: str, data: bytes) -> None:
        token, nonce = subject[len(self.inbox) + 1 :].split(".")
        self.core.on_reply(token, nonce, data, self.now)
        self._wake.set()

    def _on_hint(self, subject: str, _data: bytes) -> None:
        provider, cluster = subject.rsplit(".", 2)[1:]
        self.core.on_hint(cluster_from_tokens(provider, cluster), self.now)
        self._wake.set()

    def _on_slots_hint(self, subject: str, _data: bytes) -> None:
        provider, cluster = subject.rsplit(".", 2)[1:]
        self.core.on_slots_hint(cluster_from_tokens(provider, cluster), self.now)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self.core.tick(self.now)
            while self.core.out:
                await self._send_all()
            self._wake.clear()
            due = self.core.next_timer()
            wait = 1.0 if due is None else max(MIN_TICK, due - self.now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _send_all(self) -> None:
        batch = self.core.out[:]
        self.core.out.clear()
        for verb, cluster, payload, token in batch:
            with contextlib.suppress(Exception):  # a message lost while NATS is away is resent
                await self.bus.nc.publish(self._subject(verb, cluster), payload, f"{self.inbox}.{token}")

    def fault(self, cluster: str, fault: str, seconds: float | None) -> bool:
        """Makes a cluster misbehave. False: it is not simulated here."""
        known = self.core.fault(cluster, fault, seconds, self.now)
        self._wake.set()
        return known

    async def apply_fleet(self, wanted: dict[str, ClusterSpec], timeout: float = 600) -> dict[str, Any]:
        """Makes the fleet equal to `wanted`, and returns when the inventory has accepted or refused every cluster."""
        async with self._applying:
            change = self.core.apply(wanted, self.now)
            self._wake.set()
            try:
                async with asyncio.timeout(timeout):
                    while self.core.unacknowledged:  # noqa: ASYNC110 - emptied by many replies, one at a time
                        await asyncio.sleep(0.005)
            except TimeoutError:
                missing = sorted(self.core.unacknowledged)
                detail = f"the inventory has not accepted {len(missing)} clusters, among them {', '.join(missing[:5])}"
                raise Refused(Problem(title="No answer", status=504, code="NoAnswer", detail=detail)) from None
        return {
            "accepted": True,
            "clusters": sorted(self.core.agents),
            "added": len(change.added),
            "changed": len(change.changed),
            "removed": len(change.removed),
            "refused": refused_clusters(self.core),
        }

    async def leave(self) -> tuple[list[str], list[str]]:
        """Removes the clusters without apps. Returns the clusters that stay because they have apps, and those whose removal
        the inventory did not acknowledge in time."""
        in_use = {ident: agent.cluster.spec for ident, agent in self.core.agents.items() if agent.has_apps}
        self.core.apply(in_use, self.now)
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT):
                while self.core.agents.keys() - in_use:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.005)
        return sorted(in_use), sorted(self.core.agents.keys() - in_use)
