"""The patcher as a worker: follows the decision log and the documents, serves agents, and publishes each group's phase. One
is active, the others stand by; everything it keeps can be read again from the log, the documents and KV."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, Lease, Settings, subjects
from moorage.bus.lease import ERA
from moorage.ledger import open_ledger
from moorage.mesh import stores
from moorage.model.controllers import Controller
from moorage.model.names import cluster_from_tokens
from moorage.telemetry import ACTIVE, MetricValue

from .action_fanout import ActionFanout
from .agent_api import AgentApi
from .diff_api import DiffApi
from .events import PhaseEvents
from .group_queue import WORKERS, GroupQueue
from .group_reconciler import GroupReconciler
from .removals import Removals
from .stored_state import StoredState

log = structlog.get_logger("patcher")

#: Confirmations are answered once they are stored; this many may wait for that at once.
CONFIRMS = 8192

_controller = msgspec.json.Decoder(Controller).decode


class _Presence(msgspec.Struct):
    """The presence of a cluster in the fleet, from inventory's record of it."""

    gone: bool = False


_presence = msgspec.json.Decoder(_Presence).decode


class Patcher:
    """`era`: versions that agents got before a restore are smaller."""

    def __init__(self, bus: Bus, lease: Lease, era: int = 0) -> None:
        self._bus, self._lease, self._era = bus, lease, era
        self.groups = GroupQueue(bus.bucket(stores.REVISIONS))
        self._actions = ActionFanout(bus)
        self._stored = StoredState(bus, self.groups, lease.generation)
        self._reconciler: GroupReconciler | None = None
        self._events = PhaseEvents(bus, self.groups, self._stored.statuses)

    def metrics(self) -> Iterable[MetricValue]:
        """Returns the metrics that are computed when they are collected."""
        groups = self.groups
        phases = Tally(status.phase for status in groups.statuses.values())
        yield MetricValue("moorage_rollouts", "Groups that have been decided, by phase", phases, "phase")
        backlog = len(groups.dirty) + len(groups.busy)
        yield MetricValue("moorage_patcher_backlog_groups", "Groups whose work is queued or in progress", backlog)

    async def start(self) -> None:
        bus, groups, lease = self._bus, self.groups, self._lease
        await self._stored.load(self._events.learn)
        await bus.bucket(stores.CONTROLLERS).mirror(self._learn_controller)
        await bus.bucket(stores.GROUPS).mirror(groups.learn_record)
        await bus.bucket(stores.CLUSTERS).mirror(self._learn_cluster)
        follower = await open_ledger(bus)
        removals = Removals(bus, groups, follower)
        agents = AgentApi(bus, groups, follower, lease.generation, self._era, lambda: lease.is_certain)
        self._reconciler = reconciler = GroupReconciler(
            groups, self._stored, follower, self._actions, agents, removals, self._events, self._era
        )
        reconciler.mark_all()
        for _ in range(WORKERS):
            bus.spawn(reconciler.run())
        bus.spawn(removals.run())
        self._events.outbox.start()
        self._events.outbox.check()
        bus.on_reconnect(self._recover)
        await bus.serve("moorage.desired.get.*.*", agents.get, limit=4096)
        await bus.serve("moorage.desired.confirm.*.*", agents.confirmed, limit=CONFIRMS)
        await bus.serve(subjects.PATCHER_DIFF, DiffApi(groups, follower).diff)

    def _learn_controller(self, key: str, value: bytes | None, _revision: int) -> None:
        if value is None:
            self._actions.registry.pop(key, None)
        else:
            self._actions.registry[key] = _controller(value)
        for group, desired in self.groups.desired.items():
            if desired.reasons:
                self.groups.mark(group)

    def _learn_cluster(self, key: str, value: bytes | None, _revision: int) -> None:
        cluster, left = cluster_from_tokens(*key.split(".", 1)), self.groups.left
        gone = value is not None and _presence(value).gone
        if gone == (cluster in left):
            return
        (left.add if gone else left.discard)(cluster)
        if self._reconciler is not None:
            self._reconciler.mark_cluster(cluster)

    async def _recover(self) -> None:
        await self._stored.recover()
        await self._events.outbox.recheck()


async def main(settings: Settings) -> None:
    bus = await Bus.connect(settings, worker="patcher")
    lease = Lease(bus, "patcher")
    state: dict[str, Any] = {"role": "standby"}
    try:
        bus.process_health.add_values(lambda: [MetricValue(*ACTIVE, float(state["role"] == "active"))])
        await bus.announce(lambda: {"ok": True, **state})
        await lease.hold()
        era = await bus.bucket(stores.LEASES).get(ERA)
        patcher = Patcher(bus, lease, int(era.value) if era is not None else 0)
        bus.process_health.add_values(patcher.metrics)
        await patcher.start()
        state.update(role="active", generation=lease.generation)
        log.info("active", generation=lease.generation, groups=len(patcher.groups.heads))
        # Without the lease another patcher is active: end, and be started again as a standby.
        await lease.until_lost()
    finally:
        await lease.release()
        await bus.close()
