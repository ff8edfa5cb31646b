"""Runs a merger: it receives hints, commits decisions to the log and publishes their events. Any number of mergers share
the hints; the one that holds the lease also decides waiting groups again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from moorage.bus import Bus, Incoming, Settings, subjects
from moorage.fleet import Fleet, FleetFollower
from moorage.ledger import keep_capacity, open_ledger
from moorage.ledger.metrics import CapacityCollector, cluster_metrics, follower_metrics
from moorage.mesh import stores
from moorage.model.controllers import Controller
from moorage.model.groups import Decide, Withdraw
from moorage.model.names import untoken

from .concurrency import ConcurrencyLimit
from .decider import Decider
from .durability import DurableRevisions
from .events import DecisionEvents, tell
from .metrics import merger_metrics
from .wait_loop import LeasedWaitLoop, WaitLoop

#: Hints that are queued. The wait loop finds the groups of further ones, which are dropped.
MAX_HINTS = 20_000
MAX_HINT = 4 << 20

_decides = msgspec.json.Decoder(Decide)
_withdraws = msgspec.json.Decoder(Withdraw)
_controllers = msgspec.json.Decoder(Controller)


class Merger:
    """Handles the messages that a merger gets."""

    def __init__(self, bus: Bus, decider: Decider, wait_loop: LeasedWaitLoop) -> None:
        self._bus, self._decider, self._wait_loop = bus, decider, wait_loop
        self._concurrency = ConcurrencyLimit()
        self.durable_revisions = DurableRevisions()

    def controller_changed(self, key: str, data: bytes | None, _revision: int) -> None:
        controllers, name = self._decider.controllers, untoken(key)
        before = controllers.get(name)
        if data is None:
            controllers.pop(name, None)
        else:
            controller = _controllers.decode(data)
            controllers[controller.name] = controller
        if before != controllers.get(name):
            self._wait_loop.registry_changed()

    async def decide(self, incoming: Incoming) -> bytes:
        hint = _decides.decode(incoming.data)
        async with self._concurrency.slot():
            outcome = await self._decider.decide(hint.record, hint.id, self.durable_revisions if hint.ahead else None)
        if outcome is not None:
            await tell(self._bus, outcome.attempt, hint.id)
        return b"{}"

    async def withdraw(self, incoming: Incoming) -> bytes:
        hint = _withdraws.decode(incoming.data)
        await self._decider.withdraw(hint.group, hint.revision)
        return b"{}"

    async def simulate(self, incoming: Incoming) -> msgspec.Struct:
        hint = _decides.decode(incoming.data)
        async with self._concurrency.slot():
            return await self._decider.simulate(hint.record, hint.id)


@dataclass
class Started:
    """A running merger. Its fleet is kept current by the caller."""

    decider: Decider
    leased_wait_loop: LeasedWaitLoop

    @property
    def wait_loop(self) -> WaitLoop | None:
        """The running wait loop; None while another merger holds the lease."""
        return self.leased_wait_loop.loop

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"seq": self.decider.ledger.seq, "conflicts": self.decider.committer.conflicts}
        if self.wait_loop is not None:
            state["waiting"] = len(self.wait_loop.waiting.groups)
        return state


async def start(bus: Bus, fleet: Fleet) -> Started:
    log = await open_ledger(bus)
    decider = Decider(bus, fleet, log, keep_capacity(log, fleet))
    wait_loop = LeasedWaitLoop(bus, decider, DecisionEvents(bus, log))
    merger = Merger(bus, decider, wait_loop)
    await bus.bucket(stores.CONTROLLERS).mirror(merger.controller_changed)
    queue = subjects.MERGERS
    await bus.subscribe(subjects.GROUPS_STORED, merger.durable_revisions.record_stored)
    await bus.serve(subjects.GROUPS_DECIDE, merger.decide, queue=queue, limit=MAX_HINTS, max_bytes=MAX_HINT)
    await bus.serve(subjects.GROUPS_WITHDRAW, merger.withdraw, queue=queue, limit=MAX_HINTS)
    await bus.serve(subjects.MERGER_SIMULATE, merger.simulate, queue=queue, max_bytes=MAX_HINT)
    started = Started(decider, wait_loop)
    bus.vitals.add_values(lambda: merger_metrics(started))
    bus.spawn(wait_loop.run())
    return started


async def main(settings: Settings) -> None:
    bus = await Bus.connect(settings, worker="merger")
    fleet = Fleet()
    nodes = FleetFollower(settings.redis_url, fleet)
    try:
        bus.set_waiting_for("the fleet in Redis")
        await nodes.start()
        bus.set_waiting_for("the decision log")
        started = await start(bus, fleet)
        ledger = started.decider.follower
        bus.vitals.add_values(lambda: follower_metrics(nodes, ledger.ledger))
        bus.vitals.add_values(lambda: cluster_metrics(fleet))
        bus.vitals.registry.register(CapacityCollector(fleet))

        def health() -> dict[str, Any]:
            missing = [] if nodes.healthy else ["the fleet in Redis"]
            return {"ok": not missing, "missing": missing, "epoch": str(fleet.epoch), **started.state()}

        await bus.announce(health)
        await bus.closed.wait()
    finally:
        await nodes.stop()
        await bus.close()
