"""Brings each group from the decision in the ledger to a stored desired state, and from confirmations to a status."""

from __future__ import annotations

import asyncio

import structlog

from moorage.bus import BusError, NoAnswer, new_id
from moorage.bus.failpoints import reached
from moorage.ledger import Changes, Ledger, LedgerFollower
from moorage.model.claims import Commit, Decision, Withdrawal
from moorage.model.desired_state import DesiredRecord
from moorage.telemetry import HANDLED, Handled, tracing

from .action_fanout import ActionFanout
from .agent_api import AgentApi
from .core.claimed_devices import pins_by_claim
from .core.desired_state import confined_pods, held_pods, nodes_of, parts_of, ready_pods
from .core.group_status import conclude, runs
from .events import OWN_PHASES, PhaseEvents
from .group_queue import GroupQueue
from .removals import Removals
from .stored_state import StoredState

log = structlog.get_logger("patcher")


class GroupReconciler:
    def __init__(
        self,
        groups: GroupQueue,
        stored: StoredState,
        follower: LedgerFollower,
        actions: ActionFanout,
        agents: AgentApi,
        removals: Removals,
        events: PhaseEvents,
        era: int,
    ) -> None:
        self._groups, self._stored, self._follower, self._actions = groups, stored, follower, actions
        self._agents, self._removals, self._events, self._era = agents, removals, events, era
        self._withdrawn_by: dict[str, str] = {}  # group → traceparent of its withdrawal, where there are traces
        self._decided_at: dict[
            str, int
        ] = {}  # group → sequence of its newest decision, until its desired state is stored
        self._moved: dict[str, set[str]] = {}  # group → clusters where slots of pinned pods changed
        follower.on_fold.append(self._learn_commit)
        follower.on_reload.append(lambda _ledger: self.mark_all())

    @property
    def _ledger(self) -> Ledger:
        return self._follower.ledger

    def mark_all(self) -> None:
        for group in self._groups.all_groups(self._ledger):
            self._groups.mark(group)

    def mark_cluster(self, cluster: str) -> None:
        for ident in self._ledger.by_cluster.get(cluster, ()):
            self._groups.mark(self._ledger.claims[ident].group)

    def _learn_commit(self, commit: Commit, changes: Changes) -> None:
        for withdrawal in commit.entries_of(Withdrawal):
            if withdrawal.traceparent:
                self._withdrawn_by[withdrawal.group] = withdrawal.traceparent
        for decision in commit.entries_of(Decision):
            if decision.id not in changes.refused:
                self._decided_at[decision.group] = changes.seq
        for ident in changes.claims:
            active = self._ledger.claims.get(ident)
            if active is not None and active.claim.pinned:
                self._moved.setdefault(active.group, set()).add(active.claim.cluster)
        for group in changes.groups:
            self._groups.mark(group)

    async def run(self) -> None:
        """Reconciles marked groups for ever. Several tasks may run it, each with a group of its own."""
        groups = self._groups
        while True:
            group = groups.take()
            if group is None:
                await groups.wait_marked()
                continue
            decision = self._ledger.standing.get(group)
            HANDLED.set(Handled(group, cause=decision.id if decision is not None else ""))
            confirmations = groups.stored.pop(group, [])
            try:
                await self._reconcile(group)
            except (NoAnswer, BusError) as error:
                log.warning("group will be tried again", group=group, error=str(error))
                groups.stored.setdefault(group, []).extend(confirmations)
                groups.mark_later(group)
            else:
                for future in confirmations:
                    if not future.done():
                        future.set_result(None)
            finally:
                groups.done(group)

    async def _reconcile(self, group: str) -> None:
        """Brings a group from whatever state it is in to where it should be. Safe to repeat."""
        decision = self._ledger.standing.get(group)
        active = self._ledger.has_active_claims(group)
        if group not in self._groups.heads and decision is None and not active:
            await self._stored.forget(group)
            self._withdrawn_by.pop(group, None)
            self._decided_at.pop(group, None)
            self._moved.pop(group, None)
            return
        desired = self._groups.desired.get(group)
        ident = decision.id if decision is not None else ""
        if desired is None:
            outdated = bool(ident) or active  # otherwise never decided, or long over
        else:
            outdated = desired.decision != ident or bool(desired.reasons) or desired.version < self._era
            outdated = outdated or (decision is not None and nodes_of(decision, desired) != desired.nodes)
            outdated = outdated or (decision is not None and pins_by_claim(decision) != desired.devices)
            outdated = outdated or self._held_runs(desired)
        if outdated:
            await self._update_desired(group, decision, desired)
        await self._update_status(group)
        if group in self._moved:  # without hints agents ask once a period
            await self._agents.hint_clusters(self._moved.pop(group))

    def _held_runs(self, desired: DesiredRecord) -> bool:
        """Returns whether pods that were held back may come: the others run under the changed template."""
        if not desired.held:
            return False
        held = {(a.claim.app, a.claim.cluster) for ident in desired.held if (a := self._ledger.claims.get(ident))}
        confirmed = self._groups.confirmed.get(desired.group, {})
        return all(runs(confirmed.get(place), desired.version) for place in held)

    async def _update_desired(self, group: str, decision: Decision | None, before: DesiredRecord | None) -> None:
        """Stores the new desired state, then sends hints to agents."""
        version = max(self._era + self._ledger.seq, before.version + 1 if before is not None else 1)
        decided_at = self._decided_at.get(group, self._ledger.seq)
        if decision is None:
            record = self._removal(group, version, before)
        else:
            record = await self._rollout(decision, version, decided_at, before)
            known = None
            if before is not None and before.version >= self._era:
                known = before.decision, before.reasons, before.nodes, before.held, before.parts, before.devices
            if known == (record.decision, record.reasons, record.nodes, record.held, record.parts, record.devices):
                return
        reached("patcher.asked")
        await self._stored.put_desired(record)
        self._groups.missing_confirmations.expect(group, asyncio.get_running_loop().time())
        if self._decided_at.get(group) == decided_at:
            del self._decided_at[group]
        if self._groups.older.get(group, (record.revision,))[0] != record.revision:
            del self._groups.older[group]
        reached("patcher.desired")
        await self._agents.hint(group)

    def _removal(self, group: str, version: int, before: DesiredRecord | None) -> DesiredRecord:
        with tracing.stored_span("take away", self._withdrawn_by.pop(group, ""), **{"moorage.group": group}):
            traceparent = tracing.traceparent()
        revision = before.revision if before is not None else 0
        return DesiredRecord(group=group, revision=revision, decision="", version=version, traceparent=traceparent)

    async def _rollout(
        self, decision: Decision, version: int, decided_at: int, before: DesiredRecord | None
    ) -> DesiredRecord:
        group = decision.group
        document = await self._groups.fetch(group, decision.revision)
        if document is None:
            raise NoAnswer(f"revision {decision.revision} of {group} is not stored (yet)")
        with tracing.stored_span("patch", decision.traceparent, **{"moorage.group": group}):
            contributed = await self._actions.contributions(document, decision)
            traceparent = tracing.traceparent()
        if contributed.retry:
            self._groups.mark_later(group)
        same_decision = before is not None and before.decision == decision.id
        nodes, pods = nodes_of(decision, before), confined_pods(decision)
        ready = ready_pods(decision, self._groups.confirmed.get(group, {}))
        held = held_pods(pods, nodes, before, ready, runs=before is None or self._held_runs(before))
        return DesiredRecord(
            group=group,
            revision=decision.revision,
            decision=decision.id,
            version=version,
            seq=(before.seq or before.version) if same_decision and before is not None else decided_at,
            contributions=contributed.contributions if not contributed.reasons else [],
            nodes=nodes,
            confined=pods,
            held=held,
            parts=parts_of(decision, before),
            devices=pins_by_claim(decision),
            succeeds=document.resolved.succession.group if document.resolved.succession is not None else "",
            reasons=contributed.reasons,
            warnings=contributed.warnings,
            traceparent=traceparent,
        )

    async def _update_status(self, group: str) -> None:
        """Derives the status and the phase; stores and publishes what is new."""
        groups = self._groups
        before, desired = groups.statuses.get(group), groups.desired.get(group)
        confirmed = groups.confirmed.get(group, {})
        status = conclude(group, groups.heads.get(group), self._ledger, desired, before, confirmed, groups.left)
        if before is None and status.phase not in OWN_PHASES:
            return
        if before is not None:
            status.told, status.generation = before.told, before.generation
            if before == status:
                return
        new_phase = before is None or (before.phase, before.decision) != (status.phase, status.decision)
        publish = new_phase and status.phase in OWN_PHASES
        if publish:
            status.told = new_id()
        await self._stored.put_status(status)
        reached("patcher.concluded")
        if publish:
            await self._events.publish(status)
        if group in self._removals:
            await self._removals.publish(group)
            await self._agents.hint_removals(group)
        if not self._ledger.has_active_claims(group):
            await self._stored.end(group)
