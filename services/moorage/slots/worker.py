"""The worker `slots`: gives out the slots of machines while it holds the lease, and stands by while it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog

from moorage.bus import Bus, Lease, Settings
from moorage.fleet import Fleet, FleetFollower
from moorage.ledger import keep_capacity, open_ledger
from moorage.ledger.metrics import LEDGER_CONFLICTS, follower_metrics
from moorage.telemetry import ACTIVE, MetricValue

from .documents import MachineDocuments
from .service import SlotService

log = structlog.get_logger("slots")


async def main(settings: Settings) -> None:
    bus = await Bus.connect(settings, worker="slots")
    lease = Lease(bus, "slots")
    fleet = Fleet()
    nodes = FleetFollower(settings.redis_url, fleet)
    service: SlotService | None = None

    def health() -> dict[str, Any]:
        return {"ok": True, "role": "standby" if service is None else "active"}

    def values() -> Iterator[MetricValue]:
        yield MetricValue(*ACTIVE, float(service is not None))
        if service is not None:
            yield MetricValue(*LEDGER_CONFLICTS, service.conflicts)
            yield MetricValue(
                "moorage_slots_clusters", "Clusters that reported Machines in full", float(service.known_clusters)
            )

    try:
        bus.process_health.add_values(values)
        await bus.announce(health)
        await lease.hold()
        follower = await open_ledger(bus)
        bus.process_health.add_values(lambda: follower_metrics(nodes, follower.ledger))
        # Without nodes nothing fits, and reservations that stand would be dropped.
        await nodes.start()
        capacity = keep_capacity(follower, fleet, lazy=True)
        service = SlotService(bus, follower, capacity, lease.generation, lambda: lease.is_certain)
        documents = MachineDocuments(bus, service, fleet, lambda: lease.is_certain)
        await documents.start()
        await service.start()
        log.info("active", generation=lease.generation, sequence=follower.ledger.seq)
        # Without the lease another worker is active: end, and be started again as a standby.
        await lease.until_lost()
    finally:
        await nodes.stop()
        await lease.release()
        await bus.close()
