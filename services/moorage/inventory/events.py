"""Publishes events of clusters, and republishes those that were lost when inventory or the broker died.

The newest event of each cluster is recorded with the state: joined, gone and edited in the cluster's KV record, stale and ready
in Redis. Events of changed figures are not recorded: they are frequent, and the next one replaces a lost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
import structlog

from moorage.bus import Bucket, Bus, new_id, now_text, subjects
from moorage.bus.outbox import Outbox, RecordedEvent
from moorage.model.names import cluster_tokens

from .core.cluster_ids import ClusterRecord
from .core.fleet_state import FleetEvent, FleetState, event_data

log = structlog.get_logger("inventory")

#: Changes that Redis records, with the cluster's row.
FLAGS = ("stale", "ready")
#: Changes that nothing records: the next one replaces a lost one.
FIGURES = ("changed", "parts", "devices", "refused")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FleetEvent).decode


def with_ids(events: Iterable[FleetEvent]) -> list[FleetEvent]:
    """Gives ids to events of states: an id is recorded with the state, before the event is published."""
    return [
        event if event.change in FIGURES else event._replace(id=event.id or new_id(), time=now_text())
        for event in events
    ]


def shortened(events: list[FleetEvent], most: int) -> list[FleetEvent]:
    """Keeps the newest event of each cluster's state, and the newest of the others up to `most` in all."""
    last = {(event.change, event.cluster): at for at, event in enumerate(events) if event.id}
    rest = [at for at, event in enumerate(events) if not event.id]
    room = max(most - len(last), 0)
    keep = {*last.values(), *rest[len(rest) - min(room, len(rest)) :]}
    return [event for at, event in enumerate(events) if at in keep]


class ClusterEvents:
    """The newest recorded events of clusters."""

    def __init__(self, bus: Bus, records: Bucket) -> None:
        self._bus, self._records = bus, records
        self._fleet: FleetState | None = None
        # By cluster, the newest last: events that KV records, and events that Redis records.
        self._recorded: dict[str, FleetEvent] = {}
        self._flagged: dict[str, FleetEvent] = {}
        sources = [partial(self._newest, events) for events in (self._recorded, self._flagged)]
        self._outbox = Outbox(bus, *sources, in_order=True)
        bus.on_reconnect(self._outbox.recheck)

    async def begin(
        self, fleet: FleetState, records: Mapping[str, tuple[int, ClusterRecord]], flags: list[bytes]
    ) -> None:
        """Publishes what the inventory before did not, before anything else is published.

        `records` have the revisions at which they stand in KV; `flags` come from Redis.
        """
        self._fleet = fleet
        for cluster, (_, record) in sorted(records.items(), key=lambda item: item[1][0]):
            if len(record.told) == 3:
                change, ident, cause = record.told
                data = {} if change == "joined" else event_data(record)
                self._recorded[cluster] = FleetEvent(change, cluster, data, cause, ident)
        try:
            flagged = sorted((_decode(data) for data in flags), key=lambda event: event.time)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("events in Redis are not readable", error=str(error))
            flagged = []
        for event in flagged:
            if event.cluster in fleet.clusters and fleet.node_count(event.cluster) is not None:
                self._flagged[event.cluster] = event
        await self._outbox.republish_missing()
        self._outbox.start()

    def flags(self, events: Iterable[FleetEvent] = ()) -> dict[int, bytes]:
        """Returns what Redis records of these events, by cluster id."""
        assert self._fleet is not None
        clusters = self._fleet.clusters
        return {clusters[event.cluster].record.id: _encode(event) for event in events if event.change in FLAGS}

    def all_flags(self, events: Iterable[FleetEvent]) -> dict[int, bytes]:
        """Returns what Redis records of all clusters once these events have happened."""
        return self.flags([*self._flagged.values(), *events])

    async def publish(self, event: FleetEvent) -> None:
        if event.id:
            newest = self._flagged if event.change in FLAGS else self._recorded
            newest.pop(event.cluster, None)
            newest[event.cluster] = event
            if event.change == "gone":
                self._flagged.pop(event.cluster, None)
        await self._bus.emit(_subject(event), event.data, cause=event.cause, id=event.id, once=bool(event.id))

    async def _newest(self, newest: dict[str, FleetEvent]) -> list[RecordedEvent]:
        return [
            RecordedEvent(
                _subject(event), event.id, partial(self._recorded_at, event), partial(self._republish, newest, event)
            )
            for event in newest.values()
        ]

    async def _recorded_at(self, event: FleetEvent) -> str | None:
        if event.change in FLAGS:
            return event.time.rstrip("Z")
        return await self._records.written_at(cluster_tokens(event.cluster))

    async def _republish(self, newest: dict[str, FleetEvent], event: FleetEvent) -> None:
        if newest.get(event.cluster) is not event or self._fleet is None:
            return
        if event.change == "joined" and not event.data:
            nodes = self._fleet.node_count(event.cluster)
            if nodes is None:
                self._fleet.clusters[event.cluster].joining = True  # its first report publishes the event
                return
            event = event._replace(data={"nodes": nodes})
        await self.publish(event)


def _subject(event: FleetEvent) -> str:
    return subjects.fleet_event(event.change, event.cluster)
