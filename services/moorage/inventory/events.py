"""What is said of clusters, and that it is said: inventory may die, or the broker with it, between the write of a state and
the kept event. How the newest change of each cluster is told stands where the state stands, and is compared with the kept
events on taking over and after each reconnect: of coming, going and an operator's edits in KV, of falling silent and being
back in Redis. Mere figures change too often for that: their events may get lost, and the next one says it all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer, new_id, now_text, subjects
from moorage.bus.stores import Bucket
from moorage.mesh import stores
from moorage.model.names import cluster_tokens

from .core.cluster_ids import ClusterRecord
from .core.fleet_state import FleetEvent, FleetState, told_of

log = structlog.get_logger("inventory")

#: Events that are asked for at once. Where so many in a row were kept, all before them were: they are said in order.
NEWEST = 256
#: An event that is only on its way is not repeated.
GRACE = 1.0
#: Changes that Redis has with the state itself.
FLAGS = ("stale", "ready")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FleetEvent).decode


def named(said: Iterable[FleetEvent]) -> list[FleetEvent]:
    """What tells a state has a name before the state is written."""
    return [one if one.change == "changed" else one._replace(id=one.id or new_id(), time=now_text()) for one in said]


def shortened(said: list[FleetEvent], most: int) -> list[FleetEvent]:
    """The newest of what tells a state, by cluster and change, and the newest of the rest as long as there is room."""
    last = {(one.change, one.cluster): at for at, one in enumerate(said) if one.id}
    rest = [at for at, one in enumerate(said) if not one.id]
    room = max(most - len(last), 0)
    keep = {*last.values(), *rest[len(rest) - min(room, len(rest)) :]}
    return [one for at, one in enumerate(said) if at in keep]


class Telling:
    def __init__(self, bus: Bus, records: Bucket) -> None:
        self._bus, self._records = bus, records
        self._core: FleetState | None = None
        self._mending = asyncio.Lock()
        # The newest of each cluster, the newest last.
        self._recorded: dict[str, FleetEvent] = {}
        self._flagged: dict[str, FleetEvent] = {}
        bus.on_reconnect(self._anew)

    async def begin(
        self, core: FleetState, records: Mapping[str, tuple[int, ClusterRecord]], flags: list[bytes]
    ) -> None:
        """What the one before may not have said is said before anything else is."""
        self._core = core
        for cluster, (_, record) in sorted(records.items(), key=lambda item: item[1][0]):
            if len(record.told) == 3:
                change, ident, cause = record.told
                data = {} if change == "joined" else told_of(record)
                self._recorded[cluster] = FleetEvent(change, cluster, data, cause, ident)
        try:
            found = sorted((_decode(data) for data in flags), key=lambda said: said.time)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("what Redis has of events is not readable", error=str(error))
            found = []
        self._flagged = {
            s.cluster: s for s in found if s.cluster in core.clusters and core.nodes(s.cluster) is not None
        }
        try:
            async with self._mending:
                await self._mend()
        except (NoAnswer, BusError) as error:
            log.warning("events could not be compared with clusters", error=str(error))
            self._bus.spawn(self._anew())

    def flags(self, said: Iterable[FleetEvent] = ()) -> dict[int, bytes]:
        """By cluster, for Redis: what tells that it is silent or back."""
        assert self._core is not None
        clusters = self._core.clusters
        return {clusters[one.cluster].record.id: _encode(one) for one in said if one.change in FLAGS}

    def all_flags(self, said: Iterable[FleetEvent]) -> dict[int, bytes]:
        return self.flags([*self._flagged.values(), *said])

    async def tell(self, said: FleetEvent) -> None:
        if said.id:
            held = self._flagged if said.change in FLAGS else self._recorded
            held.pop(said.cluster, None)
            held[said.cluster] = said
            if said.change == "gone":
                self._flagged.pop(said.cluster, None)
        subject = subjects.fleet_event(said.change, said.cluster)
        await self._bus.emit(subject, said.data, cause=said.cause, id=said.id, once=bool(said.id))

    async def _anew(self) -> None:
        """A broker that died may have lost what it had only in memory."""
        while True:
            await asyncio.sleep(GRACE)
            try:
                async with self._mending:
                    return await self._mend()
            except (NoAnswer, BusError) as error:
                log.warning("events could not be compared with clusters", error=str(error))

    async def _mend(self) -> None:
        for held in (self._recorded, self._flagged):
            for said in await self._missing(held):
                if held.get(said.cluster) is not said or self._core is None:
                    continue
                if said.change == "joined" and not said.data:
                    nodes = self._core.nodes(said.cluster)
                    if nodes is None:  # its first report says it
                        self._core.clusters[said.cluster].joining = True
                        continue
                    said = said._replace(data={"nodes": nodes})
                log.warning("an event was missing", cluster=said.cluster, event_name=said.change)
                await self.tell(said)

    async def _missing(self, held: Mapping[str, FleetEvent]) -> list[FleetEvent]:
        newest, missing = list(held.values())[::-1], list[FleetEvent]()
        for at in range(0, len(newest), NEWEST):
            part = newest[at : at + NEWEST]
            lacks = await asyncio.gather(*(self._lacks(said) for said in part))
            if not any(lacks):
                break
            missing += [said for said, lacking in zip(part, lacks, strict=True) if lacking]
        return missing[::-1]

    async def _lacks(self, said: FleetEvent) -> bool:
        async def written() -> str | None:
            if said.change in FLAGS:
                return said.time.rstrip("Z")
            return await self._records.time(cluster_tokens(said.cluster))

        subject = subjects.fleet_event(said.change, said.cluster)
        return await self._bus.log(stores.EVENTS).is_missing(subject, said.id, written)
