"""The patcher as a worker: follows the log and the documents, hands out desired state, takes confirmations, and says what
phase each group is in. One is active, others stand by; all it keeps is found again in the log, the documents and KV."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import msgspec
import nats.errors
import structlog

from moorage.bus import Bus, BusError, Incoming, Lease, NoAnswer, Settings, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.bus.lease import ERA
from moorage.ledger import Changes, Ledger, LedgerFollower, open_ledger
from moorage.model.claims import Commit, Decision
from moorage.model.controllers import Controller
from moorage.model.desired import (
    Confirm,
    DesiredApp,
    DesiredAsk,
    DesiredRecord,
    DiffAsk,
    DiffReply,
    GroupStatus,
    PhaseChange,
)
from moorage.model.groups import GroupRecord
from moorage.model.names import GroupName, cluster_from_tokens, group_tokens
from moorage.model.problems import Problem, Refused, not_found
from moorage.telemetry import ACTIVE, HANDLED, Figure, Handled, traces

from .asking import Asking
from .core import (
    Wanted,
    abandoned,
    conclude,
    desired_app,
    diff_items,
    encoded,
    learn,
    may_go,
    nodes_of,
    parts,
    removable,
    wanted_on,
)
from .desk import Desk
from .owning import Owned

log = structlog.get_logger("patcher")

WORKERS = 32
#: Confirmations are answered once they are stored; so many may wait for that at once.
CONFIRMS = 8192
RETRY = 2.0
REMIND = 1.0
#: Phases whose events may have got lost when a patcher or the broker died: more than are worked on at once.
NEWEST = 4 * WORKERS
DIFF_BYTES = 4 << 20
#: A record larger than a message of the broker's default would be refused by it; its contributions are asked again.
RECORD_BYTES = 7 << 20
OWN_PHASES = ("Deploying", "Running", "Degraded", "Terminating", "Terminated")

_desired = msgspec.json.Decoder(DesiredRecord).decode
_status = msgspec.json.Decoder(GroupStatus).decode
_controller = msgspec.json.Decoder(Controller).decode
_confirm = msgspec.json.Decoder(Confirm).decode
_ask = msgspec.json.Decoder(DesiredAsk).decode
_record = msgspec.json.Decoder(GroupRecord).decode
_encode = msgspec.json.Encoder().encode


class _Presence(msgspec.Struct):
    """Of inventory's record of a cluster: whether it left."""

    gone: bool = False


_presence = msgspec.json.Decoder(_Presence).decode


class Patcher:
    def __init__(self, bus: Bus, generation: int, era: int = 0) -> None:
        self.bus = bus
        self.generation = generation
        self.era = era  # what agents heard before a restore has smaller versions
        self.desk = Desk()
        self.asking = Asking(bus)
        self.follower: LedgerFollower
        self._stored: dict[str, list[asyncio.Future[None]]] = {}  # group → confirmations that wait for its status
        self._left: set[str] = set()  # clusters that are no longer part of the fleet
        self._removing: dict[str, None] = {}  # groups with withdrawn claims
        self._ending: dict[str, str] = {}  # group → the trace its withdrawal belongs to, where there are traces
        self._at: dict[str, int] = {}  # group → where its newest decision stands in the log, until it is carried out
        self._parts: dict[tuple[str, bytes], list[bytes]] = {}
        self._newest: OrderedDict[str, None] = OrderedDict()  # groups whose phase was told last
        self._empty = parts([], generation)[0]
        self._desired = Owned(bus.bucket("moorage-desired"), generation)
        self._statuses = Owned(bus.bucket("moorage-status"), generation)
        self._revisions = bus.bucket("moorage-revisions")

    @property
    def ledger(self) -> Ledger:
        return self.follower.ledger

    def figures(self) -> Iterable[Figure]:
        """What is counted when somebody collects it."""
        desk = self.desk
        phases = Tally(status.phase for status in desk.statuses.values())
        yield Figure("moorage_rollouts", "Groups that have been decided, by phase", phases, "phase")
        backlog = len(desk.dirty) + len(desk.busy)
        yield Figure("moorage_patcher_backlog_groups", "Groups that wait for their turn or are worked on", backlog)

    async def start(self) -> None:
        desk = self.desk
        mirrors = [
            await self.bus.bucket("moorage-desired").mirror(self._learn_desired),
            await self.bus.bucket("moorage-status").mirror(self._learn_status),
        ]
        for mirror in mirrors:
            await mirror.stop()  # from now on, this is their only writer
        await self.bus.bucket("moorage-controllers").mirror(self._learn_controller)
        await self.bus.bucket("moorage-groups").mirror(desk.learn_record)
        await self.bus.bucket("moorage-clusters").mirror(self._learn_cluster)
        self.follower = await open_ledger(self.bus)
        self.follower.on_fold.append(self._folded)
        self.follower.on_reload.append(lambda _ledger: self._everything())
        self._everything()
        for _ in range(WORKERS):
            self.bus.spawn(self._work())
        self.bus.spawn(self._remind())
        self.bus.spawn(self._retell())
        self.bus.on_reconnect(self._recover)
        await self.bus.serve("moorage.desired.get.*.*", self._get, limit=4096)
        await self.bus.serve("moorage.desired.confirm.*.*", self._confirmed, limit=CONFIRMS)
        await self.bus.serve(subjects.PATCHER_DIFF, self._diff)

    # --- what comes in

    def _learn_desired(self, key: str, value: bytes | None, revision: int) -> None:
        if value is not None:
            self._desired.learn(key, revision)
            self.desk.desired[str(GroupName.from_tokens(key))] = _desired(value)

    def _learn_status(self, key: str, value: bytes | None, revision: int) -> None:
        if value is not None:
            self._statuses.learn(key, revision)
            group, status = str(GroupName.from_tokens(key)), _status(value)
            self.desk.statuses[group] = status
            self.desk.confirmed[group] = {(app.app, app.cluster): app for app in status.apps if app.version}
            self._newest[group] = None  # in the order of their writing
            if len(self._newest) > NEWEST:
                self._newest.popitem(last=False)

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
        if value is not None and _presence(value).gone:
            self._left.add(cluster)
        else:
            self._left.discard(cluster)

    def _folded(self, commit: Commit, changes: Changes) -> None:
        for withdrawal in commit.withdrawals:
            if withdrawal.traceparent:
                self._ending[withdrawal.group] = withdrawal.traceparent
        for decision in commit.decisions:
            if decision.id not in changes.refused:
                self._at[decision.group] = changes.seq
        for group in changes.groups:
            self.desk.mark(group)
        for ident in changes.withdrawn - changes.released:
            self._removing[self.ledger.claims[ident].group] = None
        if changes.released:
            for group in list(self._removing):
                if not any(held.withdrawn for held in self._held(group)):
                    del self._removing[group]
                    self.desk.mark(group)

    def _held(self, group: str) -> list[Any]:
        return [self.ledger.claims[ident] for ident in self.ledger.by_group.get(group, ())]

    def _everything(self) -> None:
        for group in self.desk.all_groups(self.ledger):
            self.desk.mark(group)
        self._removing = {held.group: None for held in self.ledger.claims.values() if held.withdrawn}

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
            waiting = self._stored.pop(group, [])
            try:
                await self._advance(group)
            except (NoAnswer, BusError) as error:
                log.warning("will be tried again", group=group, error=str(error))
                self._stored.setdefault(group, []).extend(waiting)
                self._later(group)
            else:
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
            finally:
                desk.done(group)

    def _later(self, group: str) -> None:
        asyncio.get_running_loop().call_later(RETRY, self.desk.mark, group)

    async def _advance(self, group: str) -> None:
        """From whatever state a group is in to where it should be now. Safe to repeat."""
        desk, ledger = self.desk, self.ledger
        decision = ledger.standing.get(group)
        counting = ledger.counting(group)
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
            with traces.carried("take away", self._ending.pop(group, ""), **{"moorage.group": group}):
                traceparent = traces.traceparent()
            revision = before.revision if before is not None else 0
            made = DesiredRecord(group=group, revision=revision, decision="", version=version, traceparent=traceparent)
        else:
            record = await self._record(group, decision.revision)
            if record is None:
                raise NoAnswer(f"revision {decision.revision} of {group} is not stored (yet)")
            with traces.carried("patch", decision.traceparent, **{"moorage.group": group}):
                found = await self.asking.contributions(record, decision)
                traceparent = traces.traceparent()
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
                self._later(group)
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
        if self._at.get(group) == at:
            del self._at[group]
        if self.desk.older.get(group, (made.revision,))[0] != made.revision:
            del self.desk.older[group]
        reached("patcher.desired")
        clusters = {held.claim.cluster for held in self._held(group)}
        for cluster in clusters:
            await self.bus.publish(subjects.desired("changed", cluster), b"")

    async def _record(self, group: str, revision: int) -> GroupRecord | None:
        found = self.desk.record(group, revision)
        if found is None:
            entry = await self._revisions.get(f"{group_tokens(group)}.{revision}")
            if entry is None:
                return None
            self.desk.older[group] = (revision, entry.value)
            found = self.desk.record(group, revision) or _record(entry.value)
        return found

    async def _conclude(self, group: str) -> None:
        """Work out the status and the phase; store and tell what is new."""
        desk = self.desk
        before = desk.statuses.get(group)
        confirmed = desk.confirmed.get(group, {})
        status = conclude(group, desk.heads.get(group), self.ledger, desk.desired.get(group), before, confirmed)
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
            await self._tell(status)
        if group in self._removing:
            await self._removed(group)
            await self._hint(group)
        if not self.ledger.counting(group) and group in desk.desired:
            await self._desired.delete(group_tokens(group))
            desk.desired.pop(group, None)
            desk.confirmed.pop(group, None)

    async def _tell(self, status: GroupStatus) -> None:
        change = PhaseChange(
            group=status.group,
            revision=status.revision,
            phase=status.phase,
            decision=status.decision,
            reasons=status.reasons,
        )
        self._newest[status.group] = None
        self._newest.move_to_end(status.group)
        if len(self._newest) > NEWEST:
            self._newest.popitem(last=False)
        subject = subjects.decision_event(status.phase.lower(), status.group)
        desired = self.desk.desired.get(status.group)
        of = desired.traceparent if desired is not None else ""
        with traces.carried(status.phase.lower(), of, **{"moorage.group": status.group}):
            await self.bus.emit(subject, change, cause=status.decision, id=status.told, once=True)

    async def _recover(self, only: AbstractSet[str] | None = None) -> None:
        """These buckets are not synced at each write: a broker that died may have lost what it acknowledged last. What it
        has is where each group goes on from."""
        stored: list[dict[str, tuple[bytes, int]]] = [{}, {}]
        for found, name in zip(stored, ("moorage-desired", "moorage-status"), strict=True):

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
        await self._retell()

    async def _retell(self) -> None:
        """The newest phases of all, where the one before us, or the broker, died before their events were kept."""
        events = self.bus.log("MOORAGE_EVENTS")
        try:
            for group in list(self._newest):
                status = self.desk.statuses.get(group)
                if status is None or group in self.desk.busy or not status.told or status.phase not in OWN_PHASES:
                    continue
                written = partial(self._statuses.time, group_tokens(group))
                if await events.lacks(subjects.decision_event(status.phase.lower(), group), status.told, written):
                    log.warning("an event was missing", group=group, phase=status.phase)
                    await self._tell(status)
        except (NoAnswer, BusError) as error:
            log.warning("events could not be compared with phases", error=str(error))
            asyncio.get_running_loop().call_later(RETRY, lambda: self.bus.spawn(self._retell()))

    async def _forget(self, group: str) -> None:
        """The document is gone and nothing of it runs."""
        if group in self.desk.desired:
            await self._desired.delete(group_tokens(group))
        if group in self.desk.statuses:
            await self._statuses.delete(group_tokens(group))
        self.desk.forget(group)

    async def _remind(self) -> None:
        """Mergers hear of confirmed removals until the log shows the release."""
        while True:
            await asyncio.sleep(REMIND)
            for group in list(self._removing):
                await self._removed(group)

    async def _removed(self, group: str) -> None:
        confirmed = self.desk.confirmed.get(group, {})
        found = removable(self.ledger, group, self.desk.desired.get(group), confirmed)
        for removed in [*found, *abandoned(self.ledger, group, self._left)]:
            with contextlib.suppress(BusError, nats.errors.Error, OSError):
                await self.bus.publish(subjects.MERGER_REMOVED, removed)

    # --- agents

    def _cluster(self, incoming: Incoming) -> str:
        """The sender is who may speak on that subject, never who the body says."""
        provider, cluster = incoming.subject.rsplit(".", 2)[1:]
        return cluster_from_tokens(provider, cluster)

    async def _get(self, incoming: Incoming) -> bytes:
        cluster, ask = self._cluster(incoming), _ask(incoming.data)
        have = _encode(ask.have)
        if ask.part:
            kept = self._parts.get((cluster, have))
            if kept is not None and ask.part < len(kept):
                return kept[ask.part]
        apps: list[bytes] = []
        known = wanted_on(self.ledger, cluster)
        if self.era:
            apps += self._strays(ask.have, {f"{wanted.group} {wanted.app}" for wanted in known})
        for wanted in known:
            app = await self._wanted(wanted, cluster, ask.have.get(f"{wanted.group} {wanted.app}", 0))
            if app is not None:
                apps.append(app)
        if not apps:
            return self._empty
        made = parts(apps, self.generation)
        if len(made) > 1:
            self._parts[cluster, have] = made
            if len(self._parts) > 16:
                del self._parts[next(iter(self._parts))]
        return made[min(ask.part, len(made) - 1)]

    def _strays(self, have: Mapping[str, int], known: AbstractSet[str]) -> Iterable[bytes]:
        """What a cluster was told before a restore and nobody knows of any more: taken away once."""
        for name, version in have.items():
            group, _, app = name.rpartition(" ")
            if version < self.era and name not in known and self._may_go(group, app):
                yield encoded(DesiredApp(group=group, app=app, version=self.era, remove=True))

    async def _wanted(self, wanted: Wanted, cluster: str, have: int) -> bytes | None:
        """What is new of one app for a cluster that has `have` of it."""
        group = wanted.group
        desired, decision = self.desk.desired.get(group), self.ledger.standing.get(group)
        if desired is None or desired.version <= have or desired.reasons:
            return None
        if desired.decision != (decision.id if decision is not None else ""):
            return None  # being worked on; a hint will come
        if not wanted.standing and not self._may_go(group, wanted.app):
            return None
        record = await self._record(group, desired.revision) if wanted.standing else None
        if wanted.standing and record is None:
            return None
        return encoded(desired_app(wanted, cluster, desired, record))

    def _may_go(self, group: str, app: str) -> bool:
        desired = self.desk.desired.get(group)
        version = desired.version if desired is not None else 0
        return may_go(self.ledger.standing.get(group), app, version, self.desk.confirmed.get(group, {}))

    async def _hint(self, group: str) -> None:
        """Clusters that an app has left may ask now what was kept from them."""
        desired = self.desk.desired.get(group)
        told = self.desk.confirmed.get(group, {})
        leaving = set()
        for held in self._held(group):
            place = (held.claim.app, held.claim.cluster)
            late = desired is not None and (place not in told or told[place].version < desired.version)
            if held.withdrawn and late and self._may_go(group, held.claim.app):
                leaving.add(held.claim.cluster)
        for cluster in leaving:
            await self.bus.publish(subjects.desired("changed", cluster), b"")

    async def _confirmed(self, incoming: Incoming) -> bytes:
        cluster, confirm = self._cluster(incoming), _confirm(incoming.data)
        with traces.carried("confirm", confirm.traceparent, **{"moorage.cluster": cluster}):
            return await self._learned(cluster, confirm)

    async def _learned(self, cluster: str, confirm: Confirm) -> bytes:
        """Answered once it is stored."""
        group = confirm.group
        if not any(h.claim.cluster == cluster and h.claim.app == confirm.app for h in self._held(group)):
            return b"{}"  # long released
        mine = self.desk.confirmed.setdefault(group, {})
        new = learn(confirm, cluster, mine.get((confirm.app, cluster)))
        if new is None:
            return b"{}"
        mine[confirm.app, cluster] = new
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stored.setdefault(group, []).append(future)
        self.desk.mark(group)
        try:
            async with asyncio.timeout(5):
                await future
        except TimeoutError:
            problem = Problem(title="Not stored", status=503, code="NoAnswer", detail="say it again")
            raise Refused(problem) from None
        reached("patcher.confirmed")
        return b"{}"

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
        record = await self._record(group, decision.revision)
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
        bus.vitals.show(lambda: [Figure(*ACTIVE, float(state["role"] == "active"))])
        await bus.announce(lambda: {"ok": True, **state})
        await lease.hold()
        era = await bus.bucket("moorage-leases").get(ERA)
        patcher = Patcher(bus, lease.generation, int(era.value) if era is not None else 0)
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
