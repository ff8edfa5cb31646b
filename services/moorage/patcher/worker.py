"""The patcher as a worker: follows the log and the documents, hands out desired state, takes confirmations, and says what
phase each group is in. One is active, others stand by; all it keeps is found again in the log, the documents and KV."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, BusError, Incoming, Lease, NoAnswer, Settings, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.bus.fenced_bucket import FencedBucket
from moorage.bus.lease import ERA
from moorage.ledger import Changes, Ledger, LedgerFollower, open_ledger
from moorage.mesh import stores
from moorage.model.claims import Commit, Decision, Withdrawal
from moorage.model.controllers import Controller
from moorage.model.desired import DesiredRecord, DiffAsk, DiffReply, GroupStatus
from moorage.model.names import GroupName, cluster_from_tokens, group_tokens
from moorage.model.problems import Refused, not_found
from moorage.telemetry import ACTIVE, HANDLED, Handled, MetricValue, tracing

from .agent_api import AgentApi
from .contributions import ActionFanout
from .core.desired_state import claims_of, diff_items, nodes_of
from .core.group_status import conclude
from .events import OWN_PHASES, PhaseEvents
from .group_queue import RETRY, WORKERS, GroupQueue
from .removals import Removals

log = structlog.get_logger("patcher")

#: Confirmations are answered once they are stored; so many may wait for that at once.
CONFIRMS = 8192
DIFF_BYTES = 4 << 20
#: A record larger than a message of the broker's default would be refused by it; its contributions are asked again.
RECORD_BYTES = 7 << 20

_desired = msgspec.json.Decoder(DesiredRecord).decode
_status = msgspec.json.Decoder(GroupStatus).decode
_controller = msgspec.json.Decoder(Controller).decode
_encode = msgspec.json.Encoder().encode


class _Presence(msgspec.Struct):
    """Of inventory's record of a cluster: whether it left."""

    gone: bool = False


_presence = msgspec.json.Decoder(_Presence).decode


class Patcher:
    def __init__(self, bus: Bus, lease: Lease, era: int = 0) -> None:
        self.bus, self.lease = bus, lease
        self.generation = generation = lease.generation
        self.era = era  # what agents heard before a restore has smaller versions
        self.desk = GroupQueue(bus.bucket(stores.REVISIONS))
        self.asking = ActionFanout(bus)
        self.follower: LedgerFollower
        self.removals: Removals
        self.agents: AgentApi
        self._started = False
        self._left: set[str] = set()  # clusters that are no longer part of the fleet
        self._ending: dict[str, str] = {}  # group → the trace its withdrawal belongs to, where there are traces
        self._at: dict[str, int] = {}  # group → where its newest decision stands in the log, until it is carried out
        self._desired = FencedBucket(bus.bucket(stores.DESIRED), generation)
        self._statuses = FencedBucket(bus.bucket(stores.STATUS), generation)
        self.events = PhaseEvents(bus, self.desk, self._statuses)

    @property
    def ledger(self) -> Ledger:
        return self.follower.ledger

    def figures(self) -> Iterable[MetricValue]:
        """What is counted when somebody collects it."""
        desk = self.desk
        phases = Tally(status.phase for status in desk.statuses.values())
        yield MetricValue("moorage_rollouts", "Groups that have been decided, by phase", phases, "phase")
        backlog = len(desk.dirty) + len(desk.busy)
        yield MetricValue("moorage_patcher_backlog_groups", "Groups that wait for their turn or are worked on", backlog)

    async def start(self) -> None:
        desk = self.desk
        mirrors = [
            await self.bus.bucket(stores.DESIRED).mirror(self._learn_desired),
            await self.bus.bucket(stores.STATUS).mirror(self._learn_status),
        ]
        for mirror in mirrors:
            await mirror.stop()  # from now on, this is their only writer
        await self.bus.bucket(stores.CONTROLLERS).mirror(self._learn_controller)
        await self.bus.bucket(stores.GROUPS).mirror(desk.learn_record)
        await self.bus.bucket(stores.CLUSTERS).mirror(self._learn_cluster)
        self.follower = await open_ledger(self.bus)
        self.follower.on_fold.append(self._folded)
        self.follower.on_reload.append(lambda _ledger: self._everything())
        self.removals = Removals(self.bus, desk, self.follower, self._left)
        self.agents = AgentApi(self.bus, desk, self.follower, self.generation, self.era, self._sure)
        self._everything()
        self._started = True
        for _ in range(WORKERS):
            self.bus.spawn(self._work())
        self.bus.spawn(self.removals.remind())
        self.events.outbox.start()
        self.events.outbox.check()
        self.bus.on_reconnect(self._recover)
        await self.bus.serve("moorage.desired.get.*.*", self.agents.get, limit=4096)
        await self.bus.serve("moorage.desired.confirm.*.*", self.agents.confirmed, limit=CONFIRMS)
        await self.bus.serve(subjects.PATCHER_DIFF, self._diff)

    def _sure(self) -> bool:
        return self.lease.is_certain

    # --- what comes in

    def _learn_desired(self, key: str, value: bytes | None, revision: int) -> None:
        if value is not None:
            self._desired.learn(key, revision)
            self.desk.desired[str(GroupName.from_tokens(key))] = _desired(value)

    def _learn_status(self, key: str, value: bytes | None, revision: int) -> None:
        if value is not None:
            self._statuses.learn(key, revision)
            group = str(GroupName.from_tokens(key))
            self.desk.learn_status(group, _status(value))
            self.events.learn(group)

    def _learn_controller(self, key: str, value: bytes | None, _revision: int) -> None:
        if value is None:
            self.asking.registry.pop(key, None)
        else:
            self.asking.registry[key] = _controller(value)
        for group, desired in self.desk.desired.items():
            if desired.reasons:
                self.desk.mark(group)

    def _learn_cluster(self, key: str, value: bytes | None, _revision: int) -> None:
        cluster = cluster_from_tokens(*key.split(".", 1))
        gone = value is not None and _presence(value).gone
        if gone == (cluster in self._left):
            return
        (self._left.add if gone else self._left.discard)(cluster)
        if self._started:  # else all are looked at anyway
            for ident in self.ledger.by_cluster.get(cluster, ()):
                self.desk.mark(self.ledger.claims[ident].group)

    def _folded(self, commit: Commit, changes: Changes) -> None:
        for withdrawal in commit.entries_of(Withdrawal):
            if withdrawal.traceparent:
                self._ending[withdrawal.group] = withdrawal.traceparent
        for decision in commit.entries_of(Decision):
            if decision.id not in changes.refused:
                self._at[decision.group] = changes.seq
        for group in changes.groups:
            self.desk.mark(group)

    def _everything(self) -> None:
        for group in self.desk.all_groups(self.ledger):
            self.desk.mark(group)

    # --- the work on one group

    async def _work(self) -> None:
        desk = self.desk
        while True:
            group = desk.take()
            if group is None:
                await desk.work()
                continue
            decision = self.ledger.standing.get(group)
            HANDLED.set(Handled(group, cause=decision.id if decision is not None else ""))
            waiting = desk.stored.pop(group, [])
            try:
                await self._advance(group)
            except (NoAnswer, BusError) as error:
                log.warning("will be tried again", group=group, error=str(error))
                desk.stored.setdefault(group, []).extend(waiting)
                desk.later(group)
            else:
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
            finally:
                desk.done(group)

    async def _advance(self, group: str) -> None:
        """From whatever state a group is in to where it should be now. Safe to repeat."""
        desk, ledger = self.desk, self.ledger
        decision = ledger.standing.get(group)
        counting = ledger.has_active_claims(group)
        if group not in desk.heads and decision is None and not counting:
            await self._forget(group)
            return
        desired = desk.desired.get(group)
        ident = decision.id if decision is not None else ""
        if desired is None and not ident and not counting:
            pass  # never decided, or long over
        elif desired is None or desired.decision != ident or desired.reasons or desired.version < self.era:
            await self._desire(group, decision, desired)
        await self._conclude(group)

    async def _desire(self, group: str, decision: Decision | None, before: DesiredRecord | None) -> None:
        """Store what is to run from now on; only then do agents hear of it."""
        version = max(self.era + self.ledger.seq, before.version + 1 if before is not None else 1)
        at = self._at.get(group, self.ledger.seq)
        if decision is None:
            with tracing.carried("take away", self._ending.pop(group, ""), **{"moorage.group": group}):
                traceparent = tracing.traceparent()
            revision = before.revision if before is not None else 0
            made = DesiredRecord(group=group, revision=revision, decision="", version=version, traceparent=traceparent)
        else:
            record = await self.desk.fetch(group, decision.revision)
            if record is None:
                raise NoAnswer(f"revision {decision.revision} of {group} is not stored (yet)")
            with tracing.carried("patch", decision.traceparent, **{"moorage.group": group}):
                found = await self.asking.contributions(record, decision)
                traceparent = tracing.traceparent()
            again = before is not None and before.decision == decision.id
            made = DesiredRecord(
                group=group,
                revision=decision.revision,
                decision=decision.id,
                version=version,
                seq=(before.seq or before.version) if again and before is not None else at,
                contributions=found.contributions if not found.reasons else [],
                nodes=nodes_of(decision, before),
                reasons=found.reasons,
                warnings=found.warnings,
                traceparent=traceparent,
            )
            if found.again:
                self.desk.later(group)
            same = before is not None and before.decision == made.decision and before.reasons == made.reasons
            if before is not None and same and before.version >= self.era:
                return
        made.generation = self.generation
        data = _encode(made)
        if len(data) > RECORD_BYTES:
            data = _encode(msgspec.structs.replace(made, contributions=[], decision=""))
        reached("patcher.asked")
        await self._desired.put(group_tokens(group), data)
        self.desk.desired[group] = made
        self.desk.hearing.wanted(group, asyncio.get_running_loop().time())
        if self._at.get(group) == at:
            del self._at[group]
        if self.desk.older.get(group, (made.revision,))[0] != made.revision:
            del self.desk.older[group]
        reached("patcher.desired")
        clusters = {held.claim.cluster for held in claims_of(self.ledger, group)}
        for cluster in clusters:
            await self.bus.publish(subjects.desired("changed", cluster), b"")

    async def _conclude(self, group: str) -> None:
        """Work out the status and the phase; store and tell what is new."""
        desk = self.desk
        before = desk.statuses.get(group)
        confirmed = desk.confirmed.get(group, {})
        head, desired = desk.heads.get(group), desk.desired.get(group)
        status = conclude(group, head, self.ledger, desired, before, confirmed, self._left)
        if before is None and status.phase not in OWN_PHASES:
            return
        told = before.told if before is not None else ""
        status.told, status.generation = told, before.generation if before is not None else 0
        if before is not None and before == status:
            return
        status.generation = self.generation
        new = before is None or (before.phase, before.decision) != (status.phase, status.decision)
        status.told = new_id() if new and status.phase in OWN_PHASES else told
        desk.statuses[group] = status
        try:
            await self._statuses.put(group_tokens(group), _encode(status))
        except BaseException:
            # What is not stored was not concluded: the next try must find it new again.
            if before is None:
                desk.statuses.pop(group, None)
            else:
                desk.statuses[group] = before
            raise
        reached("patcher.concluded")
        if status.told != told:
            await self.events.publish(status)
        if group in self.removals:
            await self.removals.tell(group)
            await self.agents.hint_removals(group)
        if not self.ledger.has_active_claims(group) and group in desk.desired:
            await self._desired.delete(group_tokens(group))
            desk.end(group)

    async def _recover(self, only: AbstractSet[str] | None = None) -> None:
        """These buckets are not synced at each write: a broker that died may have lost what it acknowledged last. What it
        has is where each group goes on from."""
        stored: list[dict[str, tuple[bytes, int]]] = [{}, {}]
        for found, name in zip(stored, (stores.DESIRED, stores.STATUS), strict=True):

            def learn(key: str, value: bytes | None, at: int, found: dict[str, tuple[bytes, int]] = found) -> None:
                if value is not None:
                    found[str(GroupName.from_tokens(key))] = (value, at)

            await (await self.bus.bucket(name).mirror(learn)).stop()
        desk = self.desk
        groups = {*desk.desired, *desk.statuses, *stored[0], *stored[1]}
        groups = groups if only is None else groups & only
        if busy := groups & desk.busy:  # once their writes have failed or not
            asyncio.get_running_loop().call_later(RETRY, lambda: self.bus.spawn(self._recover(busy)))
        for group in groups - busy:
            (desired, at), (status, at_status) = (found.get(group, (b"", 0)) for found in stored)
            key = group_tokens(group)
            if self._desired.differs(key, at):
                desk.desired.pop(group, None)
                if desired:
                    desk.desired[group] = _desired(desired)
                desk.mark(group)
            if self._statuses.differs(key, at_status):
                desk.statuses.pop(group, None)
                if status:
                    desk.statuses[group] = _status(status)
                desk.mark(group)
        await self.events.outbox.recheck()

    async def _forget(self, group: str) -> None:
        """The document is gone and nothing of it runs."""
        if group in self.desk.desired:
            await self._desired.delete(group_tokens(group))
        if group in self.desk.statuses:
            await self._statuses.delete(group_tokens(group))
        self.desk.forget(group)

    # --- operators

    async def _diff(self, incoming: Incoming) -> DiffReply:
        group = msgspec.json.decode(incoming.data, type=DiffAsk).group
        decision, desired = self.ledger.standing.get(group), self.desk.desired.get(group)
        head = self.desk.heads.get(group)
        if head is None and decision is None:
            raise Refused(not_found(f"group {group}"))
        revision = decision.revision if decision is not None else head.revision if head is not None else 0
        reply = DiffReply(group=group, revision=revision)
        if decision is None or desired is None or desired.decision != decision.id:
            return reply
        record = await self.desk.fetch(group, decision.revision)
        if record is None:
            return reply
        reply.decision, reply.reasons = decision.id, desired.reasons
        size = 0
        for item in diff_items(record, decision, desired):
            size += len(_encode(item))
            if size > DIFF_BYTES:
                reply.truncated = True
                break
            reply.items.append(item)
        return reply


async def main(settings: Settings) -> None:
    bus = await Bus.connect(settings, worker="patcher")
    lease = Lease(bus, "patcher")
    state: dict[str, Any] = {"role": "standby"}
    try:
        bus.vitals.show(lambda: [MetricValue(*ACTIVE, float(state["role"] == "active"))])
        await bus.announce(lambda: {"ok": True, **state})
        await lease.hold()
        era = await bus.bucket(stores.LEASES).get(ERA)
        patcher = Patcher(bus, lease, int(era.value) if era is not None else 0)
        bus.vitals.show(patcher.figures)
        await patcher.start()
        state.update(role="active", generation=lease.generation)
        log.info("active", generation=lease.generation, groups=len(patcher.desk.heads))
        closed = asyncio.create_task(bus.closed.wait())
        lost = asyncio.create_task(lease.lost.wait())
        try:
            # Another one is active now: end, and be started again as the one that stands by.
            await asyncio.wait({closed, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            lost.cancel()
    finally:
        await lease.release()
        await bus.close()
