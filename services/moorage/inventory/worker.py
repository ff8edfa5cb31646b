"""The inventory worker: takes reports from the bus, stores cluster records in KV, and writes changes to Redis.

Changes are gathered for some milliseconds, so that a burst is written at once. After a restart it begins with the rows that
Redis still has. If Redis has none, nothing is published until every known cluster has reported or the time for that is over,
and followers keep the rows that they have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, Conflict, Entry, Incoming, Lease, NoAnswer, Settings, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.fleet import (
    FAILURES,
    Changed,
    Fleet,
    FleetFlush,
    FleetStore,
    FleetWriter,
    Malformed,
    StoreSuperseded,
    still_wanted,
)
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.names import cluster_from_tokens, cluster_tokens, is_name
from moorage.model.problems import Problem, Refused, Violation, invalid, not_found, wrong_state
from moorage.model.reports import Report, ReportReply
from moorage.telemetry import ACTIVE, MetricValue

from .core.cluster_ids import ClusterRecord, changed_record, clusters_with_taken_ids
from .core.fleet_state import BATCH, TAKEOVER, FleetEvent, FleetState
from .events import ClusterEvents, shortened, with_ids

log = structlog.get_logger("inventory")

GATHER = 0.010
#: Gathering takes this many times as long as the last write: snapshots of huge clusters delay writes, not reports.
REST = 3
CHECK_EVERY = 1.0  # seconds between checks for silent clusters and of Redis, and between mere signs of life
#: Counters left out when the dictionary's numbers change their meaning: followers that see a gap load everything. One is not
#: enough, because a write that was given up may still arrive.
COUNTER_GAP = 2
MAX_EVENTS = 10_000
ATTEMPTS, PAUSE = 5, 0.1

_report = msgspec.json.Decoder(Report)
_record = msgspec.json.Decoder(ClusterRecord)


class ClusterEdit(Model, kw_only=True, forbid_unknown_fields=True):
    """An operator's change of a cluster. `labels` replace those given before; absent fields stay. `forget` removes a dead cluster
    from the fleet."""

    cluster: str
    labels: dict[str, str] | None = None
    cordoned: bool | None = None
    forget: bool = False
    cause: str = ""


_edit = msgspec.json.Decoder(ClusterEdit)


async def main(settings: Settings) -> None:
    bus = await Bus.connect(settings, worker="inventory")
    store = FleetStore(settings.redis_url)
    lease = Lease(bus, "inventory")
    shell = InventoryWorker(bus, store, lease)
    bus.vitals.add_values(shell.figures)
    tasks = [asyncio.create_task(lease.hold()), asyncio.create_task(bus.closed.wait())]
    try:
        done, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        if not done:  # another inventory is active: a standby is ready
            await bus.announce(shell.health)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not bus.closed.is_set():
            bus.set_waiting_for("Redis")
            await shell.take_over(lease.generation)
            if done:
                await bus.announce(shell.health)
            tasks[0] = asyncio.create_task(lease.lost.wait())
            tasks.append(asyncio.create_task(shell.write()))
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
        # Another inventory may be active already: the process ends, to start again as a standby without this state.
        raise RuntimeError("the connection to NATS is closed" if bus.closed.is_set() else "the lease is lost")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lease.release()
        await store.close()
        await bus.close()


class InventoryWorker:
    def __init__(self, bus: Bus, store: FleetStore, lease: Lease) -> None:
        self.bus, self.store, self.lease = bus, store, lease
        self.kv = bus.bucket(stores.CLUSTERS)
        self.state: FleetState | None = None
        self.writer = FleetWriter()
        self.generation = 0  # in Redis: the lease's, or a larger one if Redis has seen that
        self._term = 0  # the lease's generation
        self.counter = 0
        self.redis_ok = True
        self._rewrite_at = 0.0  # Redis has nothing yet: it is written when all clusters have reported, or at this time
        self._complete = False  # Redis has everything that is in memory
        self._dirty = asyncio.Event()
        self.cluster_events = ClusterEvents(bus, self.kv)
        self._events: list[FleetEvent] = []
        self._max_events = MAX_EVENTS
        self._unconfirmed: FleetFlush | None = None
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._heard_at = self._ticked_at = self._checked_at = 0.0

    def figures(self) -> Iterable[MetricValue]:
        """Yields gauges when they are collected."""
        yield MetricValue(*ACTIVE, float(self.state is not None))
        yield MetricValue("moorage_redis_up", "1 while Redis takes what changed", float(self.redis_ok))
        yield MetricValue(
            "moorage_fleet_changes_total", "Changes of the fleet that were written for others", self.counter
        )

    def health(self) -> dict[str, Any]:
        missing = [] if self.redis_ok else ["Redis"]
        if self.state is None:
            return {"ok": not missing, "missing": missing, "role": "standby"}
        return {
            "ok": not missing,
            "missing": missing,
            "role": "active",
            "generation": self.generation,
            "counter": self.counter,
            "clusters": self.state.present,
            "whole": self._complete,
        }

    # -- beginning ----------------------------------------------------------------------------------------------------

    async def take_over(self, generation: int) -> None:
        records: dict[str, tuple[int, ClusterRecord]] = {}

        def learn(key: str, value: bytes | None, revision: int) -> None:
            if value is not None:
                records[cluster_from_tokens(*key.split("."))] = (revision, _record.decode(value))

        mirror = await self.kv.mirror(learn)
        await mirror.stop()
        self._term = generation
        inherited, recorded_events = await self._inherit(generation)
        now = time.monotonic()
        core = FleetState(self.writer, self.generation)
        late = clusters_with_taken_ids({name: record for name, (_, record) in records.items()})
        begun = {name: record for name, (_, record) in records.items() if name not in late}
        for _ in core.begin(begun, now):
            await asyncio.sleep(0)
        for name in late:
            revision, record = records[name]
            record = core.with_new_id(name, msgspec.structs.replace(record, generation=generation))
            records[name] = await self.kv.update(cluster_tokens(name), msgspec.json.encode(record), revision), record
            core.register(name, record, now)
        if not inherited and core.present:
            self._rewrite_at = now + TAKEOVER * core.period
        await self.cluster_events.begin(core, records, recorded_events)
        self.state = core
        log.info("inventory is active", generation=self.generation, clusters=core.present, inherited=inherited)
        await self.bus.serve("moorage.reports.*.*.*", self.on_report, limit=8192)
        await self.bus.serve(subjects.CLUSTERS_SET, self.on_set)
        self._dirty.set()

    async def _inherit(self, generation: int) -> tuple[bool, list[bytes]]:
        """Takes over the rows that an inventory before left in Redis.

        Returns whether there were any, and the recorded events. Waits until Redis answers.
        """
        while True:
            still_wanted()
            try:
                current = await self.store.current()
                newest = await self.store.last()
                self.generation = max(generation, current.generation + 1, newest.generation + 1)
                fleet, recorded_events = Fleet(), list[bytes]()
                if current.generation:
                    fleet = await self.store.read(current)
                    recorded_events = await self.store.told(current.generation)
            except FAILURES as error:
                self.redis_ok = False
                log.warning("waiting for Redis", error=f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(0.5)
                continue
            except Changed:
                continue
            except Malformed as error:
                log.warning("rows in Redis are not readable; agents will report", error=str(error)[:300])
                current, fleet = current._replace(generation=0), Fleet()
            self.redis_ok = True
            self.writer = FleetWriter(fleet)
            self.writer.compact()
            return current.generation > 0, recorded_events

    # -- messages -----------------------------------------------------------------------------------------------------

    async def on_report(self, incoming: Incoming) -> ReportReply | None:
        assert self.state is not None
        if not self.lease.is_certain:
            return None  # a successor gets the report, too; an id assigned now might be assigned twice
        _, _, provider, name, source = incoming.subject.split(".")
        cluster = cluster_from_tokens(provider, name)
        report = _report.decode(incoming.data)
        known = self.state.clusters.get(cluster)
        if known is None or (known.record.gone and report.session not in known.retired):
            if report.kind != "full" or report.leaving:
                return ReportReply(
                    period_ms=round(self.state.period * 1000), resync=not report.leaving, generation=self.generation
                )
            await self._join(cluster, report)
            if not self.lease.is_certain:  # it took long: a successor assigns an id, too
                return None
        outcome = self.state.report(cluster, source, report, time.monotonic(), len(incoming.data))
        if outcome.gone:
            await self._update_record(cluster, report.id, gone=True)
        self._queue_events(outcome.events)
        if outcome.problems:
            errors = [Violation(path="nodes", code="Invalid", message=text) for text in outcome.problems[:20]]
            await self.bus.reject(incoming.subject, incoming.data, invalid(errors))
        if self.writer.pending:
            self._dirty.set()
        reached("inventory.reported")
        return outcome.reply

    async def on_set(self, incoming: Incoming) -> bytes | None:
        assert self.state is not None
        if not self.lease.is_certain:
            return None
        edit = _edit.decode(incoming.data)
        if edit.cluster not in self.state.clusters:
            raise Refused(not_found(f"cluster {edit.cluster}"))
        if edit.forget:
            await self._forget(edit)
            return b'{"accepted":true}'
        changes: dict[str, Any] = {}
        if edit.labels is not None:
            changes["labels"] = edit.labels
        if edit.cordoned is not None:
            changes["cordoned"] = edit.cordoned
        await self._update_record(edit.cluster, edit.cause, **changes)
        if self.writer.pending:
            self._dirty.set()
        return b'{"accepted":true}'

    async def _forget(self, edit: ClusterEdit) -> None:
        assert self.state is not None
        known = self.state.clusters[edit.cluster]
        if known.record.gone:
            return
        if not self.state.is_stale(edit.cluster):
            raise Refused(wrong_state(f"{edit.cluster} still reports; stop its agent or simulator first"))
        await self._update_record(edit.cluster, edit.cause, gone=True)
        self.state.forget(known)
        self._dirty.set()

    async def _join(self, cluster: str, report: Report) -> None:
        """Registers a new cluster once its id is durable. All parts of its first report wait for one registration."""
        task = self._joining.get(cluster)
        if task is None:
            task = self._joining[cluster] = asyncio.create_task(self._assign_id(cluster, report))
            task.add_done_callback(lambda _: self._joining.pop(cluster, None))
        await asyncio.shield(task)

    async def _assign_id(self, cluster: str, report: Report) -> None:
        assert self.state is not None
        provider, _, name = cluster.partition("/")
        if not (is_name(provider) and is_name(name)):
            problem = Problem(
                title="Not valid", status=400, code="Invalid", detail=f"{cluster!r} is not a valid cluster name"
            )
            raise Refused(problem)
        known = self.state.clusters.get(cluster)
        if known is not None:
            await self._update_record(cluster, report.id, gone=False)
            return
        record = self.state.new_record(cluster, report.labels or {})
        record.generation, record.told = self._term, ["joined", new_id(), report.id]
        key = cluster_tokens(cluster)
        try:
            await self.kv.create(key, msgspec.json.encode(record))
        except Conflict:
            entry = await self.kv.get(key)
            if entry is None:
                raise
            # Our own write, whose acknowledgement was lost; or a write of the inventory before, so late that its id may
            # belong to another cluster by now.
            stored = _record.decode(entry.value)
            new, record = record, msgspec.structs.replace(stored, generation=self._term)
            if self.state.ids.belongs_to_other(cluster, stored.id):
                record = msgspec.structs.replace(record, id=new.id, block=new.block, region=new.region)
            if record != stored:
                await self.kv.update(key, msgspec.json.encode(record), entry.revision)
        reached("inventory.numbered")
        self.state.register(cluster, record, time.monotonic())

    async def _update_record(self, cluster: str, cause: str, **changes: Any) -> None:
        assert self.state is not None
        ident, known = new_id(), self.state.clusters[cluster]

        async def change(entry: Entry | None) -> bytes:
            # From what KV has: an inventory that was stopped in between must not bring back an old record.
            before = known.record if entry is None else _record.decode(entry.value)
            after = changed_record(before, ident, cause, quiet=known.joining, **changes)
            return entry.value if entry is not None and after == before else msgspec.json.encode(after)

        for attempt in range(ATTEMPTS):
            try:
                before, after = await self.kv.modify(cluster_tokens(cluster), change, ATTEMPTS)
                break
            except NoAnswer:  # the next attempt sees whether the write happened
                if not self.lease.is_certain or attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(PAUSE)
        assert after is not None
        if before is not after:
            reached("inventory.kept")
        self._queue_events(self.state.edit(cluster, _record.decode(after.value)))

    def _queue_events(self, events: list[FleetEvent]) -> None:
        if not events:
            return
        self._events += with_ids(events)
        if len(self._events) > self._max_events:  # Redis is away: only the newest event of each state matters
            self._events = shortened(self._events, MAX_EVENTS // 2)
            self._max_events = max(MAX_EVENTS, 2 * len(self._events))

    # -- Redis --------------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Writes changes until cancelled; an error ends it only if another inventory has taken over."""
        delay = 0.0
        while True:
            still_wanted()
            try:
                async with asyncio.timeout(CHECK_EVERY / 4):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(max(GATHER, delay))
            began = time.monotonic()
            try:
                await self._step(began)
                if not self.redis_ok:
                    log.info("Redis answers again")
                self.redis_ok = True
                delay = min((time.monotonic() - began) * REST, 0.5)
            except FAILURES as error:
                if self.redis_ok:
                    log.warning("Redis does not answer", error=f"{type(error).__name__}: {error}"[:300])
                self.redis_ok = False
                delay = min(max(delay * 2, 0.05), 1.0)
                await asyncio.sleep(delay)

    async def _step(self, now: float) -> None:
        assert self.state is not None
        if now - self._ticked_at >= CHECK_EVERY / 2:
            self._ticked_at = now
            self._queue_events(self.state.tick(now))
        if now - self._checked_at >= CHECK_EVERY:
            self._checked_at = now
            await self._check()
        if self._rewrite_at:
            if self.state.awaits_reports() and now < self._rewrite_at:
                return
            self._rewrite_at = 0.0
        if self._unconfirmed is not None:
            await self._confirm(self._unconfirmed)
        if self._complete and self.writer.crowded():
            self.writer.compact()
            self.counter += COUNTER_GAP
            self._complete = False
        if not self._complete:
            await self._rewrite()
        lively = self.writer.heard and now - self._heard_at >= CHECK_EVERY
        self._dirty.clear()
        if self.writer.pending or lively:
            self._heard_at = now
            ready = await self._flush()
        else:
            ready, self._events = self._events, []
        if self.writer.pending:
            self._dirty.set()
        if ready:
            reached("inventory.written")
        for event in ready:
            await self.cluster_events.publish(event)

    async def _check(self) -> None:
        """Has Redis written again if it was emptied or came back with older data."""
        if not self._complete or self._unconfirmed is not None:
            return
        known = int(self.writer.fleet.known.sum())
        pending = self.writer.pending  # clusters that came or went since make the number differ
        if not await self.store.intact(self.generation, self.counter, None if pending else known):
            log.warning("Redis lost the fleet; writing it again")
            self._complete = False

    async def _rewrite(self) -> None:
        first = self.counter == 0
        if first:
            self.writer.settle()
        self.counter += 1
        await self.store.rewrite(
            self.generation, self.counter, self.writer, self.cluster_events.all_flags(self._events)
        )
        self._complete = True

    async def _flush(self) -> list[FleetEvent]:
        """Writes pending changes and returns the events that may be published: those of clusters that were written."""
        assert self.state is not None
        flush = self.writer.flush(self.generation, self.counter + 1, BATCH)
        self._unconfirmed = flush
        clusters, ready, later = self.state.clusters, list[FleetEvent](), list[FleetEvent]()
        for event in self._events:
            (later if self.writer.waits(clusters[event.cluster].record.id) else ready).append(event)
        self._events = later
        try:
            current = await self.store.write(self.generation, flush, self.cluster_events.flags(ready))
        except BaseException:
            self._events = ready + self._events
            raise
        self._unconfirmed, self.counter = None, flush.counter
        if current.generation > self.generation:
            raise StoreSuperseded
        if current.generation != self.generation:
            self._complete = False
            self._dirty.set()
        return ready

    async def _confirm(self, flush: FleetFlush) -> None:
        """Finds out by the counter in Redis whether a write happened whose answer was lost."""
        if (await self.store.current()).generation > self.generation:
            raise StoreSuperseded
        there = await self.store.counter(self.generation)
        if there == flush.counter:
            self.counter = there
        else:
            self.writer.again(flush)
            self._complete = self._complete and there == self.counter
            self.counter += not self._complete
        self._unconfirmed = None
