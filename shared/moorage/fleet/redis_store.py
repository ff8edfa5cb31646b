"""Stores the fleet in Redis (6.2): a snapshot per cluster, the dictionary, a counter, and one stream of changes.

Keys have the generation, and the stream id of a change is its epoch, `generation-counter`. So every value tells its writer,
Redis refuses a repeated write, and readers see gaps. `current` names the generation to read, which is complete, and the
counter at which it was written; it is written last, and is missing when Redis was emptied.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
from redis import __version__ as redis_version
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError

from moorage.model.reports import Taint

from . import delta
from .delta import Epoch, FleetDelta
from .fleet import Fleet
from .writer import Dictionary, FleetFlush, FleetWriter

PREFIX = "moorage:fleet"
CURRENT = f"{PREFIX}:current"
STREAM = f"{PREFIX}:stream"
#: Changes that are kept for readers that were away for a moment; others load the snapshots.
STREAM_LENGTH = 2000
CHUNK = 256
#: Without it, each connection would search the installed packages for the version.
_DRIVER = DriverInfo(lib_version=redis_version)
FAILURES = (RedisError, OSError, asyncio.TimeoutError)

_labels = msgspec.msgpack.Decoder(dict[str, str])
_taints = msgspec.msgpack.Decoder(list[Taint])
_ports = msgspec.msgpack.Decoder(list[str])
_layouts = msgspec.msgpack.Decoder(bytes)
_KINDS = ("labels", "taints", "ports", "layouts")
_NO_ENTRIES = Dictionary({}, {}, {})


class GenerationChanged(Exception):
    """The generation that was being read is not current any more."""


class StoreSuperseded(Exception):
    """A newer generation has written here; this one must stop."""


def still_wanted() -> None:
    """Raises CancelledError in a cancelled task: redis-py may swallow a cancellation while it closes something."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def key(generation: int, what: str) -> str:
    return f"{PREFIX}:{generation}:{what}"


class FleetStore:
    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        # No hidden retries: the caller knows whether a write may be repeated.
        self.redis: Redis = Redis.from_url(
            url,
            protocol=2,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            driver_info=_DRIVER,
        )

    async def close(self) -> None:
        with contextlib.suppress(*FAILURES):
            await self.redis.aclose()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def current(self) -> Epoch:
        """Returns the epoch of the complete fleet; generation 0 if there is none."""
        return _current(await self.redis.get(CURRENT))

    async def counter(self, generation: int) -> int:
        return int(await self.redis.get(key(generation, "counter")) or 0)

    async def read(self, current: Epoch) -> Fleet:
        """Reads the fleet as of at least the counter in its epoch. Raises `Changed` if it is written again meanwhile."""
        generation = current.generation
        counter = await self.counter(generation)
        ids = await self.redis.hkeys(key(generation, "clusters"))
        fleet = Fleet()
        found: list[FleetDelta] = []
        for at in range(0, len(ids), CHUNK):
            chunk: Any = await self.redis.hmget(key(generation, "clusters"), ids[at : at + CHUNK])
            found.append(delta.merge([delta.decode(data) for data in chunk if data is not None]))
        # Read after the snapshots, so the dictionary has every number that they name.
        entries: list[Any] = [await self.redis.hgetall(key(generation, kind)) for kind in _KINDS]
        if await self.current() != current:
            raise GenerationChanged
        dictionary = _dictionary(*entries)
        layouts, dictionary.layout_sets = dictionary.layout_sets, []
        fleet.apply(dictionary)
        for at in range(0, len(layouts), CHUNK):
            fleet.apply(FleetDelta(layouts_from=1 + at, layout_sets=layouts[at : at + CHUNK]))
            await asyncio.sleep(0)
        for patch in found:
            fleet.apply(patch)
            await asyncio.sleep(0)
        fleet.epoch = Epoch(generation, counter)
        return fleet

    async def recorded_events(self, generation: int) -> list[bytes]:
        """Returns the recorded events of clusters' states, as they were given to `write`."""
        found: Any = await self.redis.hvals(key(generation, "told"))
        return list(found)

    async def changes(self, after: Epoch, block_ms: int | None) -> list[tuple[Epoch, bytes]]:
        at = f"{after.generation}-{after.counter}"
        answer: Any = await self.redis.xread({STREAM: at}, count=64, block=block_ms)
        return [(_epoch(id), fields[b"p"]) for _, entries in answer or () for id, fields in entries]

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write(self, generation: int, flush: FleetFlush, events: Mapping[int, bytes] | None = None) -> Epoch:
        """Writes snapshots, dictionary entries, counter and change in one transaction, and returns the current epoch.

        After a failure the counter tells whether the write happened. `events`: those to record, by cluster.
        """
        clusters = key(generation, "clusters")
        async with self.redis.pipeline(transaction=True) as pipe:
            present = {str(cid): data for cid, data in flush.snapshots.items() if data is not None}
            gone = [str(cid) for cid, data in flush.snapshots.items() if data is None]
            _fill(pipe, generation, present, flush.dictionary)
            if gone:
                pipe.hdel(clusters, *gone)
                pipe.hdel(key(generation, "told"), *gone)
            if events:
                pipe.hset(key(generation, "told"), mapping={str(cid): data for cid, data in events.items()})
            pipe.set(key(generation, "counter"), flush.counter)
            self._add(pipe, Epoch(generation, flush.counter), flush.patch)
            pipe.get(CURRENT)
            answers = await pipe.execute()
        return _current(answers[-1])

    async def rewrite(
        self, generation: int, counter: int, writer: FleetWriter, events: Mapping[int, bytes] | None = None
    ) -> None:
        """Writes everything from memory, `current` last. Changes meanwhile stay pending in the writer."""
        if (await self.last()).generation > generation:
            raise StoreSuperseded
        sent = writer.entries
        if (await self.current()).generation == generation:  # not to be read until it is complete
            await self.redis.delete(CURRENT)
        fresh = [key(generation, what) for what in ("clusters", *_KINDS, "counter", "told")]
        await self.redis.unlink(*fresh)
        fleet = writer.fleet
        ids = [cid for cid in range(fleet.size) if fleet.known[cid]]
        for at in range(0, len(ids), CHUNK):
            snapshots = {
                str(cid): writer.snapshot(cid, generation, counter) for cid in ids[at : at + CHUNK] if fleet.known[cid]
            }
            async with self.redis.pipeline(transaction=True) as pipe:
                _fill(pipe, generation, snapshots, _NO_ENTRIES)
                await pipe.execute()
        gone = [str(cid) for cid in ids if not fleet.known[cid]]
        dictionary = writer.dictionary()
        async with self.redis.pipeline(transaction=True) as pipe:
            _fill(pipe, generation, {}, dictionary)
            if gone:
                pipe.hdel(key(generation, "clusters"), *gone)
            if events:
                pipe.hset(key(generation, "told"), mapping={str(cid): data for cid, data in events.items()})
            pipe.set(key(generation, "counter"), counter)
            self._add(pipe, Epoch(generation, counter), delta.encode(FleetDelta(generation, counter)))
            pipe.set(CURRENT, f"{generation}-{counter}")
            await pipe.execute()
        writer.sent(sent)
        old = [k async for k in self.redis.scan_iter(match=f"{PREFIX}:*:*", count=1000)]
        old = [k for k in old if k.decode() not in fresh]
        if old:
            await self.redis.unlink(*old)

    async def last(self) -> Epoch:
        """Returns the epoch of the newest change in the stream."""
        newest: Any = await self.redis.xrevrange(STREAM, count=1)
        return _epoch(newest[0][0]) if newest else Epoch(0, 0)

    async def intact(self, generation: int, counter: int, clusters: int | None) -> bool:
        """Returns whether Redis still has what was written: it may have been emptied, or restarted with older data."""
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.get(CURRENT)
            pipe.get(key(generation, "counter"))
            pipe.hlen(key(generation, "clusters"))
            current, count, there = await pipe.execute()
        if _current(current).generation != generation or int(count or 0) != counter:
            return False
        return clusters is None or there == clusters

    def _add(self, pipe: Any, epoch: Epoch, patch: bytes) -> None:
        place = f"{epoch.generation}-{epoch.counter}"
        pipe.xadd(STREAM, {"p": patch}, id=place, maxlen=STREAM_LENGTH, approximate=True)


def _fill(pipe: Any, generation: int, clusters: Mapping[str, bytes], dictionary: Dictionary) -> None:
    if clusters:
        pipe.hset(key(generation, "clusters"), mapping=dict(clusters))
    for kind, entries in zip(_KINDS, dictionary, strict=True):
        if entries:
            pipe.hset(key(generation, kind), mapping={str(n): data for n, data in entries.items()})


def _dictionary(
    labels: Mapping[bytes, bytes],
    taints: Mapping[bytes, bytes],
    ports: Mapping[bytes, bytes],
    layouts: Mapping[bytes, bytes],
) -> FleetDelta:
    """Returns a patch with the entries in the order of their numbers. A missing number is one that no row names."""
    try:
        sets = {int(n): _labels.decode(data) for n, data in labels.items()}
        tolerated = {int(n): _taints.decode(data) for n, data in taints.items()}
        used = {int(n): _ports.decode(data) for n, data in ports.items()}
        inside = {int(n): _layouts.decode(data) for n, data in layouts.items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise delta.Malformed(str(error)) from error
    return FleetDelta(
        labels_from=1,
        label_sets=[sets.get(n, {}) for n in range(1, max(sets, default=0) + 1)],
        taints_from=1,
        taint_sets=[tolerated.get(n, []) for n in range(1, max(tolerated, default=0) + 1)],
        ports_from=1,
        port_sets=[used.get(n, []) for n in range(1, max(used, default=0) + 1)],
        layouts_from=1,
        layout_sets=[inside.get(n, b"") for n in range(1, max(inside, default=0) + 1)],
    )


def _current(value: Any) -> Epoch:
    return _epoch(value) if value else Epoch(0, 0)


def _epoch(id: bytes) -> Epoch:
    generation, _, counter = id.decode().partition("-")
    return Epoch(int(generation), int(counter))
