"""The inventory worker: takes reports from the bus, stores cluster records in KV, and has changes written to Redis.

After a restart it begins with the rows that Redis still has. If Redis has none, nothing is published until every known cluster has reported or the time for that is over,
and followers keep the rows that they have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, Conflict, Entry, Incoming, Lease, NoAnswer, Settings, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.classes import DeviceSources, with_built_in
from moorage.fleet import FleetStore
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.names import cluster_from_tokens, cluster_tokens, is_name, untoken
from moorage.model.problems import Problem, Refused, Violation, invalid, not_found, still_reports, wrong_state
from moorage.model.reports import Report, ReportReply
from moorage.model.resource_classes import DEVICE_SOURCE, DeviceSourceSpec
from moorage.parts.inside import AddedNames
from moorage.telemetry import ACTIVE, MetricValue

from .core.cluster_ids import ClusterRecord, changed_record, clusters_with_taken_ids
from .core.fleet_state import FleetState
from .events import ClusterEvents
from .redis_writer import RedisWriter

log = structlog.get_logger("inventory")

ATTEMPTS, PAUSE = 5, 0.1
REFUSED_PODS = "moorage_refused_pods_total"

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


class _Addition(Model, kw_only=True):
    """Traits and aggregates of a node or part, CLUSTER/ID."""

    name: str
    traits: list[str] = []
    aggregates: list[str] = []


class _AdditionRecord(Model, kw_only=True):
    addition: _Addition | None = None


_addition = msgspec.json.Decoder(_AdditionRecord)
_edit = msgspec.json.Decoder(ClusterEdit)


async def main(settings: Settings) -> None:
    bus = await Bus.connect(settings, worker="inventory")
    store = FleetStore(settings.redis_url)
    lease = Lease(bus, "inventory")
    inventory = InventoryWorker(bus, store, lease)
    bus.process_health.add_values(inventory.metrics)
    tasks = [asyncio.create_task(lease.hold()), asyncio.create_task(bus.closed.wait())]
    try:
        done, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        if not done:  # another inventory is active: a standby is ready
            await bus.announce(inventory.health)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not bus.closed.is_set():
            bus.set_waiting_for("Redis")
            await inventory.take_over(lease.generation)
            if done:
                await bus.announce(inventory.health)
            tasks[0] = asyncio.create_task(lease.lost.wait())
            tasks.append(asyncio.create_task(inventory.redis.run()))
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


class _StoredSource(msgspec.Struct):
    spec: DeviceSourceSpec


_source = msgspec.json.Decoder(_StoredSource)


def _by_name(stored: Mapping[str, DeviceSourceSpec]) -> DeviceSources:
    """Returns the sources of which the specs are given by key."""
    return with_built_in({untoken(key.rpartition(".")[2]): spec for key, spec in stored.items()})


class InventoryWorker:
    def __init__(self, bus: Bus, store: FleetStore, lease: Lease) -> None:
        self.bus, self.lease = bus, lease
        self.kv = bus.bucket(stores.CLUSTERS)
        self.state: FleetState | None = None
        self.cluster_events = ClusterEvents(bus, self.kv)
        self.redis = RedisWriter(store, self.cluster_events)
        self._term = 0  # the lease's generation
        self._joining: dict[str, asyncio.Task[None]] = {}

    def metrics(self) -> Iterable[MetricValue]:
        """Yields gauges when they are collected."""
        yield MetricValue(*ACTIVE, float(self.state is not None))
        yield MetricValue("moorage_redis_up", "1 while changes are written to Redis, else 0", float(self.redis.is_up))
        yield MetricValue(
            "moorage_fleet_changes_total", "Changes of the fleet written to the stream in Redis", self.redis.counter
        )
        parts = self.state.writer.fleet.parts.counts() if self.state is not None else {}
        yield MetricValue("moorage_fleet_parts", "Parts of nodes, by kind", parts, "kind")
        refused = self.state.refused_pods if self.state is not None else {}
        yield MetricValue(
            REFUSED_PODS, "Pods of claims that their node refused, by the kubelet's reason", refused, "reason"
        )

    def health(self) -> dict[str, Any]:
        missing = [] if self.redis.is_up else ["Redis"]
        if self.state is None:
            return {"ok": not missing, "missing": missing, "role": "standby"}
        return {
            "ok": not missing,
            "missing": missing,
            "role": "active",
            "generation": self.redis.generation,
            "counter": self.redis.counter,
            "clusters": self.state.present,
            "whole": self.redis.complete,
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
        inherited, recorded_events = await self.redis.inherit(generation)
        now = time.monotonic()
        core = FleetState(self.redis.writer, self.redis.generation)
        late = clusters_with_taken_ids({name: record for name, (_, record) in records.items()})
        begun = {name: record for name, (_, record) in records.items() if name not in late}
        for _ in core.begin(begun, now):
            await asyncio.sleep(0)
        for name in late:
            revision, record = records[name]
            record = core.with_new_id(name, msgspec.structs.replace(record, generation=generation))
            records[name] = await self.kv.update(cluster_tokens(name), msgspec.json.encode(record), revision), record
            core.register(name, record, now)
        await self.bus.bucket(stores.PROVIDERS).mirror(partial(self._addition_changed, core), f"{stores.ADDED_PREFIX}>")
        await self._follow_sources(core)
        await self.cluster_events.begin(core, records, recorded_events)
        self.state = core
        self.redis.begin(core, now, inherited=inherited)
        log.info("inventory is active", generation=self.redis.generation, clusters=core.present, inherited=inherited)
        await self.bus.serve("moorage.reports.*.*.*", self.on_report, limit=8192)
        await self.bus.serve(subjects.CLUSTERS_SET, self.on_set)

    async def _follow_sources(self, core: FleetState) -> None:
        """Maps devices as the stored sources of devices say, from the start and whenever these change."""
        stored: dict[str, DeviceSourceSpec] = {}
        is_complete = False

        def learn(key: str, value: bytes | None, _revision: int) -> None:
            stored.pop(key, None)
            if value is not None:
                stored[key] = _source.decode(value).spec
            if is_complete:
                core.set_sources(_by_name(stored))

        await self.bus.bucket(stores.CLASSES).mirror(learn, f"{DEVICE_SOURCE.kind}.>")
        is_complete = True
        if stored:
            core.set_sources(_by_name(stored))

    def _addition_changed(self, core: FleetState, key: str, value: bytes | None, _revision: int) -> None:
        """Takes over what a client of the Placement interface added to a node or part. What it removed is an empty record."""
        if value is None or (addition := _addition.decode(value).addition) is None:
            return
        names = AddedNames(traits=sorted(addition.traits), aggregates=sorted(addition.aggregates))
        self.redis.queue_events(core.add_names(addition.name, names))
        if self.state is not None and self.redis.writer.pending:
            self.redis.wake()

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
                    period_ms=round(self.state.period * 1000),
                    resync=not report.leaving,
                    generation=self.redis.generation,
                )
            await self._join(cluster, report)
            if not self.lease.is_certain:  # it took long: a successor assigns an id, too
                return None
        outcome = self.state.report(cluster, source, report, time.monotonic(), len(incoming.data))
        if outcome.gone:
            await self._update_record(cluster, report.id, gone=True)
        self.redis.queue_events(outcome.events)
        if outcome.problems:
            errors = [Violation(path="nodes", code="Invalid", message=text) for text in outcome.problems[:20]]
            await self.bus.reject(incoming.subject, incoming.data, invalid(errors))
        if self.redis.writer.pending:
            self.redis.wake()
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
        if self.redis.writer.pending:
            self.redis.wake()
        return b'{"accepted":true}'

    async def _forget(self, edit: ClusterEdit) -> None:
        assert self.state is not None
        known = self.state.clusters[edit.cluster]
        if known.record.gone:
            return
        if not self.state.is_stale(edit.cluster):
            raise Refused(wrong_state(still_reports(edit.cluster)))
        await self._update_record(edit.cluster, edit.cause, gone=True)
        self.state.forget(known)
        self.redis.wake()

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
            again = {"joined_at": time.time()} if known.record.gone else {}
            await self._update_record(cluster, report.id, gone=False, **again)
            return
        record = self.state.new_record(cluster, report.labels or {})
        record.generation, record.told = self._term, ["joined", new_id(), report.id]
        record.joined_at = time.time()
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
        self.redis.queue_events(self.state.edit(cluster, _record.decode(after.value)))
