"""Publishes the outcomes of decisions, and republishes the events of decisions, and of moves off devices that failed, whose merger
died after the commit.

The newest of these of every committer are compared with the kept events after a start, on taking over what waits, after each
reconnect, and now and then.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import msgspec
import structlog

from moorage.bus import Bus, subjects
from moorage.bus.outbox import Outbox, RecordedEvent
from moorage.collections import LruDict
from moorage.ledger import LOG, Changes, LedgerFollower, decode_commit
from moorage.model.attempts import AppView, Attempt, ClaimView
from moorage.model.claims import Commit, Decision, GroupMove, Settlement
from moorage.podspec.slot_views import slot_views

from .device_events import tell_move

log = structlog.get_logger("merger")

#: Decisions and moves that are remembered of a committer: more than it can have under way at once.
NEWEST = 128
#: Committers whose decisions are remembered. Most of them have ended.
COMMITTERS = 16
#: Commits from before the start that are looked at: others go on while a merger that died is started again.
BACK = 512


def placed(decision: Decision, seq: int) -> Attempt:
    """Returns the outcome of a decision that is in the log."""
    scores = decision.scores
    apps = {name: AppView(replicas=count, score=scores.get(name)) for name, count in decision.replicas.items()}
    seen: set[tuple[str, str]] = set()
    for claim in decision.claims:
        app, cluster = claim.app, claim.cluster
        if (app, cluster) not in seen:
            seen.add((app, cluster))
            apps[app].clusters.append(cluster)
        if claim.object:
            slots = slot_views(claim.slots)
            view = ClaimView(cluster=cluster, object=claim.object, slots=slots, optional=claim.optional)
            apps[app].claims.append(view)
    return Attempt(
        group=decision.group,
        revision=decision.revision,
        phase="Placed",
        decision=decision.id,
        epoch=decision.epoch,
        seq=seq,
        apps=apps,
        controllers=decision.controllers,
        warnings=decision.warnings,
    )


async def tell(bus: Bus, attempt: Attempt, cause: str) -> None:
    """Publishes the event of an attempt. That of a decision has the decision's id, so the broker keeps it once; an attempt
    that failed is also sent to the merger that looks after waiting groups."""
    subject = subjects.decision_event(attempt.phase.lower(), attempt.group)
    if attempt.phase == "Placed":
        await bus.emit(subject, attempt, cause=cause, id=attempt.decision, once=True)
    else:
        await bus.emit(subject, attempt, cause=cause)
        await bus.publish(subjects.MERGER_WAITING, attempt)
    await bus.send_now()
    log.info(attempt.phase.lower(), **_log_fields(attempt), cause=cause)  # last: nobody waits for it


def _log_fields(attempt: Attempt) -> dict[str, object]:
    """Returns the fields of the log line of an attempt: where the group was placed, or why it was not."""
    fields: dict[str, object] = {"group": attempt.group, "revision": attempt.revision}
    if attempt.phase == "Placed":
        clusters = {name: app.clusters for name, app in attempt.apps.items()}
        return {**fields, "decision": attempt.decision, "clusters": clusters}
    return {**fields, "reasons": list(dict.fromkeys(reason.code for reason in attempt.reasons))}


class DecisionEvents:
    """The events of the newest decisions and moves in the log."""

    def __init__(self, bus: Bus, follower: LedgerFollower) -> None:
        self._bus, self._follower = bus, follower
        self._log = bus.log(LOG)
        self._newest = LruDict[str, deque[tuple[int, Decision | GroupMove]]](COMMITTERS)  # by committer
        self._start = follower.ledger.seq
        self._read_start = False  # whether the commits up to the start were read from the log
        self._outbox = Outbox(bus, self._recorded)
        follower.on_fold.append(lambda commit, changes: self._remember(changes.seq, commit, changes))
        bus.on_reconnect(self._outbox.recheck)
        self._outbox.start()
        self._outbox.check()

    def check(self) -> None:
        """Schedules a comparison of the newest decisions with the kept events."""
        self._outbox.check()

    def _remember(self, seq: int, commit: Commit, changes: Changes | None = None) -> None:
        refused = changes.refused if changes is not None else ()
        found: list[Decision | GroupMove] = [one for one in commit.entries_of(Decision) if one.id not in refused]
        for entry in commit.entries_of(Settlement):
            if entry.moved and (changes is None or not changes.claims.isdisjoint(entry.slots)):
                found += entry.moved
        if not found:
            return
        newest = self._newest.get(commit.by)
        if newest is None:
            newest = self._newest[commit.by] = deque(maxlen=NEWEST)
        newest.extend((seq, one) for one in found)

    async def _remember_start(self) -> None:
        """Reads the log's last commits up to the start, which the follower did not fold one by one."""
        found: dict[int, bytes] = {}
        first = max(await self._log.first(), self._start - BACK + 1)
        if first <= self._start:
            await (await self._log.follow(first, found.__setitem__)).stop()
        folded, self._newest = self._newest, LruDict(COMMITTERS)
        for seq, data in found.items():
            try:
                if seq <= self._start:
                    self._remember(seq, decode_commit(data))
            except msgspec.DecodeError:
                continue  # the ledger counts it
        for committer, newer in folded.items():
            self._newest.setdefault(committer, deque(maxlen=NEWEST)).extend(newer)
        self._read_start = True

    async def _recorded(self) -> list[RecordedEvent]:
        if not self._read_start:
            await self._remember_start()
        recent = [item for newest in self._newest.values() for item in newest]
        recent.sort(key=lambda item: item[0])
        return [self._event(seq, one) for seq, one in recent if isinstance(one, GroupMove) or self._stands(one)]

    def _event(self, seq: int, of: Decision | GroupMove) -> RecordedEvent:
        recorded_at = partial(self._log.appended_at, seq)
        if isinstance(of, GroupMove):
            subject = subjects.decision_event("moved", of.group)
            return RecordedEvent(subject, of.told, recorded_at, partial(tell_move, self._bus, of))
        subject = subjects.decision_event("placed", of.group)
        return RecordedEvent(subject, of.id, recorded_at, partial(self._publish, seq, of))

    def _stands(self, decision: Decision) -> bool:
        current = self._follower.ledger.standing.get(decision.group)
        return current is not None and current.id == decision.id

    async def _publish(self, seq: int, decision: Decision) -> None:
        if self._stands(decision):
            await tell(self._bus, placed(decision, seq), "")
