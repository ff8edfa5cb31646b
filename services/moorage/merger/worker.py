"""Runs a merger: it receives hints, commits decisions to the log and publishes their events. Any number of mergers share
the hints; the one that holds the lease also decides waiting groups again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from moorage.bus import Bus, Incoming, Settings, subjects
from moorage.classes import ClassCatalog
from moorage.fleet import Fleet, FleetFollower
from moorage.ledger import keep_capacity, open_ledger
from moorage.ledger.metrics import CapacityCollector, cluster_metrics, follower_metrics
from moorage.ledger.records import NotRecorded, decode_batch
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.controllers import Controller
from moorage.model.groups import Decide, EndedGroups, Withdraw
from moorage.model.names import group_tokens, untoken
from moorage.model.problems import Problem, Refused, not_found
from moorage.model.records import ReplayAsk
from moorage.telemetry.health import version_of_moorage

from .class_events import ClassEvents
from .concurrency import ConcurrencyLimit
from .core.replay import replay
from .decider import Decider
from .durability import Confirmation, DurableRevisions
from .events import DecisionEvents, tell
from .metrics import merger_metrics
from .wait_loop import LeasedWaitLoop, WaitLoop

#: Hints that are queued. The wait loop finds the groups of further ones, which are dropped.
MAX_HINTS = 20_000
MAX_HINT = 4 << 20


class _Created(Model, kw_only=True):
    """The part of a group's record that distinguishes groups which had the same name one after the other."""

    created: str = ""


class DevicesMoved(Model, kw_only=True, omit_defaults=False):
    kinds: list[str]


class _DevicesMove(Model, kw_only=True, forbid_unknown_fields=True):
    """Lets pods leave devices of a cluster that failed together; without a kind, of all kinds."""

    cluster: str
    kind: str = ""
    cause: str = ""


_moves = msgspec.json.Decoder(_DevicesMove)
_decides = msgspec.json.Decoder(Decide)
_ended = msgspec.json.Decoder(EndedGroups)
_created = msgspec.json.Decoder(_Created)
_withdraws = msgspec.json.Decoder(Withdraw)
_controllers = msgspec.json.Decoder(Controller)
_replays = msgspec.json.Decoder(ReplayAsk)


class Merger:
    """Handles the messages that a merger gets."""

    def __init__(self, bus: Bus, decider: Decider, wait_loop: LeasedWaitLoop) -> None:
        self._bus, self._decider, self._wait_loop = bus, decider, wait_loop
        self._concurrency = ConcurrencyLimit()
        self._groups = bus.bucket(stores.GROUPS)
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
        hint, based_on = _decides.decode(incoming.data), self._decider.based_on
        confirmation = Confirmation(self.durable_revisions, hint.id) if hint.ahead else None
        async with self._concurrency.slot():
            outcome = await self._decider.decide(hint.record, hint.id, based_on, confirmation)
        if outcome is not None:
            await tell(self._bus, outcome.attempt, hint.id)
        return b"{}"

    async def withdraw(self, incoming: Incoming) -> bytes:
        hint, based_on = _withdraws.decode(incoming.data), self._decider.based_on
        entry = await self._groups.get(group_tokens(hint.group))
        if entry is not None:
            # A hint that was on its way for minutes may name a group that was deleted and made again since.
            if _created.decode(entry.value).created == hint.created:
                await self._decider.withdraw(hint.group, hint.revision, based_on)
        elif (standing := self._decider.ledger.standing.get(hint.group)) is not None:
            await self._decider.withdraw(hint.group, standing.revision, based_on)
        return b"{}"

    async def replay(self, incoming: Incoming) -> msgspec.Struct:
        ask = _replays.decode(incoming.data)
        data = await self._bus.log(stores.RECORDS).get(ask.records)
        if data is None:
            raise Refused(not_found(f"a record of decision {ask.decision}"))
        try:
            return await asyncio.to_thread(lambda: replay(decode_batch(data), ask.decision, version_of_moorage()))
        except NotRecorded:
            raise Refused(not_found(f"a record of decision {ask.decision}")) from None
        except msgspec.DecodeError as error:
            detail = f"the record of decision {ask.decision} cannot be read: {error}"
            raise Refused(Problem(title="Damaged", status=500, code="Damaged", detail=detail)) from error

    async def ended(self, incoming: Incoming) -> EndedGroups:
        ledger = self._decider.ledger
        return EndedGroups(groups=[group for group in _ended.decode(incoming.data).groups if ledger.knows(group)])

    async def move_devices(self, incoming: Incoming) -> DevicesMoved | None:
        """Answers if this merger settles, once it has."""
        order = _moves.decode(incoming.data)
        loop = self._wait_loop.loop
        if loop is None:
            return None
        if order.cluster not in self._decider.fleet.ids:
            raise Refused(not_found(f"cluster {order.cluster}"))
        return DevicesMoved(kinds=await loop.move_devices(order.cluster, order.kind))

    async def simulate(self, incoming: Incoming) -> msgspec.Struct:
        hint = _decides.decode(incoming.data)
        async with self._concurrency.slot():
            return await self._decider.simulate(hint.record, hint.id, hint.classes)


@dataclass
class Started:
    """A running merger. Its fleet is kept current by the caller."""

    decider: Decider
    leased_wait_loop: LeasedWaitLoop

    @property
    def wait_loop(self) -> WaitLoop | None:
        """Returns the running wait loop; None while another merger holds the lease."""
        return self.leased_wait_loop.loop

    def state(self) -> dict[str, Any]:
        decider = self.decider
        state: dict[str, Any] = {"seq": decider.ledger.seq, "conflicts": decider.committer.conflicts}
        state["unrecorded"] = decider.recorder.lost
        if self.wait_loop is not None:
            state["waiting"] = len(self.wait_loop.waiting.groups)
        return state


async def start(bus: Bus, fleet: Fleet) -> Started:
    log = await open_ledger(bus)
    catalog = ClassCatalog()
    decider = Decider(bus, fleet, log, keep_capacity(log, fleet), catalog)
    decider.devices.learn_again(log.ledger.newest_first())
    wait_loop = LeasedWaitLoop(bus, decider, DecisionEvents(bus, log))
    merger = Merger(bus, decider, wait_loop)
    await bus.bucket(stores.CLASSES).mirror(catalog.put)
    catalog.on_change.append(lambda _key: wait_loop.registry_changed())
    await bus.bucket(stores.CONTROLLERS).mirror(merger.controller_changed)
    queue = subjects.MERGERS
    await bus.subscribe(subjects.GROUPS_STORED, merger.durable_revisions.record_stored)
    await bus.serve(subjects.GROUPS_DECIDE, merger.decide, queue=queue, limit=MAX_HINTS, max_bytes=MAX_HINT)
    await bus.serve(subjects.GROUPS_WITHDRAW, merger.withdraw, queue=queue, limit=MAX_HINTS)
    await bus.serve(subjects.MERGER_SIMULATE, merger.simulate, queue=queue, max_bytes=MAX_HINT)
    await bus.serve(subjects.MERGER_REPLAY, merger.replay, queue=queue)
    await bus.serve(subjects.DEVICES_MOVE, merger.move_devices)
    await bus.serve(subjects.MERGER_ENDED, merger.ended, queue=queue)
    classes = ClassEvents(bus, fleet, log, catalog, lambda: wait_loop.loop is not None)
    bus.process_health.add_values(classes.metrics)
    bus.spawn(classes.run())
    started = Started(decider, wait_loop)
    bus.process_health.add_values(lambda: merger_metrics(started))
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
        bus.process_health.add_values(lambda: follower_metrics(nodes, ledger.ledger))
        bus.process_health.add_values(lambda: cluster_metrics(fleet))
        bus.process_health.registry.register(CapacityCollector(fleet))

        def health() -> dict[str, Any]:
            missing = [] if nodes.healthy else ["the fleet in Redis"]
            return {"ok": not missing, "missing": missing, "epoch": str(fleet.epoch), **started.state()}

        await bus.announce(health)
        await bus.closed.wait()
    finally:
        await nodes.stop()
        await bus.close()
