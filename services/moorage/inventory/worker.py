"""The shell around the core: takes reports from the bus, numbers from KV, and writes what changed to Redis, gathered for
some milliseconds so that a burst of changes is one. After a restart it begins with the rows that Redis still has; if Redis
has none, nothing is published until every known cluster reported or its time is over, and followers keep what they have."""

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

from .core.cluster_ids import ClusterRecord, changed, later
from .core.fleet_state import AT_ONCE, TAKEOVER, FleetEvent, FleetState
from .events import ClusterEvents, shortened, with_ids

log = structlog.get_logger("inventory")

GATHER = 0.010
#: Flushing takes at most a quarter of the time: snapshots of huge clusters stretch the gathering instead of the queue.
REST = 3
EVERY = 1.0  # seconds between looks at who is silent, at Redis, and between mere signs of life to followers
#: Changes left out where the dictionary's numbers mean other entries from then on: followers that see a gap load whole. One
#: is not enough: a write that was given up may still arrive.
APART = 2
MAX_SAID = 10_000
ATTEMPTS, PAUSE = 5, 0.1

_report = msgspec.json.Decoder(Report)
_record = msgspec.json.Decoder(ClusterRecord)


class ClusterEdit(Model, kw_only=True, forbid_unknown_fields=True):
    """`labels` replace those an operator gave before; absent fields stay. `forget`: it is dead, and no part of the fleet."""

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
        if not done:  # another one is active: standing by is being ready
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
        # Another may be active already: begin anew as a standby, with nothing of what this one remembers.
        raise RuntimeError("the bus is gone" if bus.closed.is_set() else "the lease is lost")
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
        self.core: FleetState | None = None
        self.writer = FleetWriter()
        self.generation = 0  # in Redis: the lease's, or more if Redis has seen more
        self._term = 0  # the lease's
        self.counter = 0
        self.redis_ok = True
        self._publish_by = 0.0  # nothing stands in Redis yet: write it when all are there, or at this time
        self._whole = False  # all that is in memory stands in Redis
        self._dirty = asyncio.Event()
        self.events = ClusterEvents(bus, self.kv)
        self._said: list[FleetEvent] = []
        self._said_most = MAX_SAID
        self._unsure: FleetFlush | None = None
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._heard_at = self._ticked_at = self._checked_at = 0.0

    def figures(self) -> Iterable[MetricValue]:
        """What is counted when somebody collects it."""
        yield MetricValue(*ACTIVE, float(self.core is not None))
        yield MetricValue("moorage_redis_up", "1 while Redis takes what changed", float(self.redis_ok))
        yield MetricValue(
            "moorage_fleet_changes_total", "Changes of the fleet that were written for others", self.counter
        )

    def health(self) -> dict[str, Any]:
        missing = [] if self.redis_ok else ["Redis"]
        if self.core is None:
            return {"ok": not missing, "missing": missing, "role": "standby"}
        return {
            "ok": not missing,
            "missing": missing,
            "role": "active",
            "generation": self.generation,
            "counter": self.counter,
            "clusters": self.core.present,
            "whole": self._whole,
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
        inherited, told = await self._inherit(generation)
        now = time.monotonic()
        core = FleetState(self.writer, self.generation)
        late = later({name: record for name, (_, record) in records.items()})
        begun = {name: record for name, (_, record) in records.items() if name not in late}
        for _ in core.begin(begun, now):
            await asyncio.sleep(0)
        for name in late:
            revision, record = records[name]
            record = core.numbered_anew(name, msgspec.structs.replace(record, generation=generation))
            records[name] = await self.kv.update(cluster_tokens(name), msgspec.json.encode(record), revision), record
            core.register(name, record, now)
        if not inherited and core.present:
            self._publish_by = now + TAKEOVER * core.period
        await self.events.begin(core, records, told)
        self.core = core
        log.info("inventory is active", generation=self.generation, clusters=core.present, inherited=inherited)
        await self.bus.serve("moorage.reports.*.*.*", self.on_report, limit=8192)
        await self.bus.serve(subjects.CLUSTERS_SET, self.on_set)
        self._dirty.set()

    async def _inherit(self, generation: int) -> tuple[bool, list[bytes]]:
        """Takes the rows that a former inventory left in Redis, and says whether there were any and how their states are
        told. Waits for Redis: what it has is worth it."""
        while True:
            still_wanted()
            try:
                current = await self.store.current()
                newest = await self.store.last()
                self.generation = max(generation, current.generation + 1, newest.generation + 1)
                fleet, told = Fleet(), list[bytes]()
                if current.generation:
                    fleet = await self.store.read(current)
                    told = await self.store.told(current.generation)
            except FAILURES as error:
                self.redis_ok = False
                log.warning("waiting for Redis", error=f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(0.5)
                continue
            except Changed:
                continue
            except Malformed as error:
                log.warning("what Redis has is not readable; agents will report", error=str(error)[:300])
                current, fleet = current._replace(generation=0), Fleet()
            self.redis_ok = True
            self.writer = FleetWriter(fleet)
            self.writer.compact()
            return current.generation > 0, told

    # -- messages -----------------------------------------------------------------------------------------------------

    async def on_report(self, incoming: Incoming) -> ReportReply | None:
        assert self.core is not None
        if not self.lease.is_certain:
            return None  # who took over hears it too; a number given now might be given twice
        _, _, provider, name, source = incoming.subject.split(".")
        cluster = cluster_from_tokens(provider, name)
        report = _report.decode(incoming.data)
        known = self.core.clusters.get(cluster)
        if known is None or (known.record.gone and report.session not in known.retired):
            if report.kind != "full" or report.leaving:
                return ReportReply(
                    period_ms=round(self.core.period * 1000), resync=not report.leaving, generation=self.generation
                )
            await self._join(cluster, report)
            if not self.lease.is_certain:  # it took long: who took over numbers it, too
                return None
        outcome = self.core.report(cluster, source, report, time.monotonic(), len(incoming.data))
        if outcome.gone:
            await self._keep(cluster, report.id, gone=True)
        self._say(outcome.said)
        if outcome.problems:
            errors = [Violation(path="nodes", code="Invalid", message=text) for text in outcome.problems[:20]]
            await self.bus.reject(incoming.subject, incoming.data, invalid(errors))
        if self.writer.pending:
            self._dirty.set()
        reached("inventory.reported")
        return outcome.reply

    async def on_set(self, incoming: Incoming) -> bytes | None:
        assert self.core is not None
        if not self.lease.is_certain:
            return None
        edit = _edit.decode(incoming.data)
        if edit.cluster not in self.core.clusters:
            raise Refused(not_found(f"cluster {edit.cluster}"))
        if edit.forget:
            await self._forget(edit)
            return b'{"accepted":true}'
        changes: dict[str, Any] = {}
        if edit.labels is not None:
            changes["labels"] = edit.labels
        if edit.cordoned is not None:
            changes["cordoned"] = edit.cordoned
        await self._keep(edit.cluster, edit.cause, **changes)
        if self.writer.pending:
            self._dirty.set()
        return b'{"accepted":true}'

    async def _forget(self, edit: ClusterEdit) -> None:
        assert self.core is not None
        known = self.core.clusters[edit.cluster]
        if known.record.gone:
            return
        if not self.core.silent(edit.cluster):
            raise Refused(wrong_state(f"{edit.cluster} reports; end its agent or simulator first"))
        await self._keep(edit.cluster, edit.cause, gone=True)
        self.core.forget(known)
        self._dirty.set()

    async def _join(self, cluster: str, report: Report) -> None:
        """A number that is durable before anybody hears of it. Parts of one report wait for the same one."""
        task = self._joining.get(cluster)
        if task is None:
            task = self._joining[cluster] = asyncio.create_task(self._number(cluster, report))
            task.add_done_callback(lambda _: self._joining.pop(cluster, None))
        await asyncio.shield(task)

    async def _number(self, cluster: str, report: Report) -> None:
        assert self.core is not None
        provider, _, name = cluster.partition("/")
        if not (is_name(provider) and is_name(name)):
            problem = Problem(
                title="Not valid", status=400, code="Invalid", detail=f"{cluster!r} is no name of a cluster"
            )
            raise Refused(problem)
        known = self.core.clusters.get(cluster)
        if known is not None:
            await self._keep(cluster, report.id, gone=False)
            return
        record = self.core.record_for(cluster, report.labels or {})
        record.generation, record.told = self._term, ["joined", new_id(), report.id]
        key = cluster_tokens(cluster)
        try:
            await self.kv.create(key, msgspec.json.encode(record))
        except Conflict:
            entry = await self.kv.get(key)
            if entry is None:
                raise
            # Our own write whose answer was lost; or one of who was active before us, which took so long to get here that
            # its number may be another's by now.
            there = _record.decode(entry.value)
            given, record = record, msgspec.structs.replace(there, generation=self._term)
            if self.core.ids.others(cluster, there.id):
                record = msgspec.structs.replace(record, id=given.id, block=given.block, region=given.region)
            if record != there:
                await self.kv.update(key, msgspec.json.encode(record), entry.revision)
        reached("inventory.numbered")
        self.core.register(cluster, record, time.monotonic())

    async def _keep(self, cluster: str, cause: str, **changes: Any) -> None:
        assert self.core is not None
        ident, known = new_id(), self.core.clusters[cluster]

        async def change(entry: Entry | None) -> bytes:
            # From what KV has: an inventory that was stopped in between must not bring back an old record.
            before = known.record if entry is None else _record.decode(entry.value)
            after = changed(before, ident, cause, quiet=known.joining, **changes)
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
        self._say(self.core.edit(cluster, _record.decode(after.value)))

    def _say(self, said: list[FleetEvent]) -> None:
        if not said:
            return
        self._said += with_ids(said)
        if len(self._said) > self._said_most:  # Redis is away: of what tells the same the newest matters
            self._said = shortened(self._said, MAX_SAID // 2)
            self._said_most = max(MAX_SAID, 2 * len(self._said))

    # -- Redis --------------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Writes what changed, for ever; ends only with an error that another inventory's presence explains."""
        delay = 0.0
        while True:
            still_wanted()
            try:
                async with asyncio.timeout(EVERY / 4):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(max(GATHER, delay))
            began = time.monotonic()
            try:
                await self._step(began)
                if not self.redis_ok:
                    log.info("Redis is back")
                self.redis_ok = True
                delay = min((time.monotonic() - began) * REST, 0.5)
            except FAILURES as error:
                if self.redis_ok:
                    log.warning("Redis does not answer", error=f"{type(error).__name__}: {error}"[:300])
                self.redis_ok = False
                delay = min(max(delay * 2, 0.05), 1.0)
                await asyncio.sleep(delay)

    async def _step(self, now: float) -> None:
        assert self.core is not None
        if now - self._ticked_at >= EVERY / 2:
            self._ticked_at = now
            self._say(self.core.tick(now))
        if now - self._checked_at >= EVERY:
            self._checked_at = now
            await self._check()
        if self._publish_by:
            if self.core.unheard() and now < self._publish_by:
                return
            self._publish_by = 0.0
        if self._unsure is not None:
            await self._settle(self._unsure)
        if self._whole and self.writer.crowded():
            self.writer.compact()
            self.counter += APART
            self._whole = False
        if not self._whole:
            await self._rewrite()
        lively = self.writer.heard and now - self._heard_at >= EVERY
        self._dirty.clear()
        if self.writer.pending or lively:
            self._heard_at = now
            ready = await self._flush()
        else:
            ready, self._said = self._said, []
        if self.writer.pending:
            self._dirty.set()
        if ready:
            reached("inventory.written")
        for said in ready:
            await self.events.publish(said)

    async def _check(self) -> None:
        """Redis may have been emptied, or have come back with an older memory."""
        if not self._whole or self._unsure is not None:
            return
        known = int(self.writer.fleet.known.sum())
        pending = self.writer.pending  # clusters that came or went since make the number differ
        if not await self.store.intact(self.generation, self.counter, None if pending else known):
            log.warning("Redis lost the fleet; writing it again")
            self._whole = False

    async def _rewrite(self) -> None:
        first = self.counter == 0
        if first:
            self.writer.settle()
        self.counter += 1
        await self.store.rewrite(self.generation, self.counter, self.writer, self.events.all_flags(self._said))
        self._whole = True

    async def _flush(self) -> list[FleetEvent]:
        """Back with what may be said now; what comes while Redis writes, and of clusters that did not go with it, not yet."""
        assert self.core is not None
        flush = self.writer.flush(self.generation, self.counter + 1, AT_ONCE)
        self._unsure = flush
        clusters, ready, later = self.core.clusters, list[FleetEvent](), list[FleetEvent]()
        for said in self._said:
            (later if self.writer.waits(clusters[said.cluster].record.id) else ready).append(said)
        self._said = later
        try:
            current = await self.store.write(self.generation, flush, self.events.flags(ready))
        except BaseException:
            self._said = ready + self._said
            raise
        self._unsure, self.counter = None, flush.counter
        if current.generation > self.generation:
            raise StoreSuperseded
        if current.generation != self.generation:
            self._whole = False
            self._dirty.set()
        return ready

    async def _settle(self, flush: FleetFlush) -> None:
        """Whether a write whose answer was lost happened: the counter in Redis tells."""
        if (await self.store.current()).generation > self.generation:
            raise StoreSuperseded
        there = await self.store.counter(self.generation)
        if there == flush.counter:
            self.counter = there
        else:
            self.writer.again(flush)
            self._whole = self._whole and there == self.counter
            self.counter += not self._whole
        self._unsure = None
