"""Serves agents: hands out the desired state of their cluster and takes their confirmations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from moorage.bus import Bus, Incoming, subjects
from moorage.bus.failpoints import reached
from moorage.collections import LruDict
from moorage.ledger import Ledger, LedgerFollower
from moorage.model.desired_state import DesiredAsk, DesiredRecord, Pins
from moorage.model.names import cluster_from_tokens
from moorage.model.problems import Problem, Refused
from moorage.model.status import Confirm
from moorage.telemetry import tracing

from .core.claim_removal import may_remove
from .core.cluster_apps import AppOnCluster, ClusterApps
from .core.desired_state import (
    claims_of,
    encode_app,
    encode_confirm_again,
    encode_removal,
    final_objects,
    pins_of,
    reply_parts,
)
from .core.final_objects import FinalObjects
from .core.group_status import learn, repeats
from .group_queue import GroupQueue

_confirm = msgspec.json.Decoder(Confirm).decode
_ask = msgspec.json.Decoder(DesiredAsk).decode
_encode = msgspec.json.Encoder().encode
#: Replies of several parts that are kept until their agent has asked for all of them.
_KEPT_REPLIES = 16
#: Apps whose final objects are kept for other clusters.
_KEPT_APPS = 64
#: Seconds that a confirmation waits until it is stored.
STORE_TIMEOUT = 5.0


class AgentApi:
    """`era`: versions that agents got before a restore are smaller. `is_certain`: whether no other patcher can be active;
    if not, nothing is answered, because the active patcher receives each request too."""

    def __init__(
        self,
        bus: Bus,
        groups: GroupQueue,
        follower: LedgerFollower,
        generation: int,
        era: int,
        is_certain: Callable[[], bool],
    ) -> None:
        self._bus, self._groups, self._follower = bus, groups, follower
        self._generation, self._era, self._is_certain = generation, era, is_certain
        self._apps = ClusterApps(follower.ledger)
        follower.on_fold.append(lambda _commit, changes: self._apps.folded(changes))
        follower.on_reload.append(self._apps.reload)
        self._replies = LruDict[tuple[str, bytes], list[bytes]](_KEPT_REPLIES)
        self._empty = reply_parts([], generation)[0]
        self._final = LruDict[tuple[str, str], tuple[DesiredRecord, FinalObjects]](_KEPT_APPS)

    @property
    def _ledger(self) -> Ledger:
        return self._follower.ledger

    async def get(self, incoming: Incoming) -> bytes | None:
        """Answers with the apps of the cluster that differ from the versions the agent has."""
        if not self._is_certain():
            return None
        cluster, ask = _cluster(incoming), _ask(incoming.data)
        if ask.part:
            kept = self._replies.get((cluster, _what_it_has(ask)))
            if kept is not None and ask.part < len(kept):
                return kept[ask.part]
        apps = await self._changed_apps(cluster, ask)
        if not self._is_certain():
            return None
        if not apps:
            return self._empty
        parts = reply_parts(apps, self._generation)
        if len(parts) > 1:
            self._replies[cluster, _what_it_has(ask)] = parts
        return parts[min(ask.part, len(parts) - 1)]

    async def _changed_apps(self, cluster: str, ask: DesiredAsk) -> list[bytes]:
        have = ask.have
        on_cluster = self._apps.on(cluster)
        changed: list[bytes] = []
        if self._era:
            changed += self._unknown_apps(have, {app.name for app in on_cluster})
        for app in on_cluster:
            name = app.name
            untied = not (app.pinned or name in ask.pins)
            if untied and self._groups.is_done(app.group, app.app, cluster, have.get(name, 0)):
                continue  # as most are
            pins = self._changed_pins(app, ask.pins.get(name, ""))
            encoded = await self._changed_app(app, cluster, have.get(name, 0), pins)
            if encoded is not None:
                changed.append(encoded)
        return changed

    def _unknown_apps(self, have: Mapping[str, int], known: AbstractSet[str]) -> Iterable[bytes]:
        """Removes, once, what a cluster got before a restore and the restored log does not know."""
        for name, version in have.items():
            group, _, app = name.rpartition(" ")
            if version < self._era and name not in known and self._may_remove(group, app):
                yield encode_removal(group, app, self._era)

    def _changed_pins(self, app: AppOnCluster, has: str) -> Pins | None:
        """Returns the app's pins if the agent has others. Once an agent has any, whose tag is `has`, it is told of changes even where
        pods are not pinned any more: some may still wait at their gates."""
        if not (app.pinned or has):
            return None
        pins = pins_of(self._ledger, app.families)
        return pins if pins.tag != has else None

    async def _changed_app(self, app: AppOnCluster, cluster: str, have: int, pins: Pins | None) -> bytes | None:
        """Encodes the app if the cluster, which has version `have`, must change it, pin its pods elsewhere or confirm it again."""
        group = app.group
        desired, decision = self._groups.desired.get(group), self._ledger.standing.get(group)
        if desired is not None and desired.version <= have:
            if pins is not None or self._groups.must_confirm_again(group, app.app, cluster, desired.version):
                return encode_confirm_again(group, app.app, desired.version, pins)
            return None
        if desired is None or desired.reasons:
            return None
        if desired.decision != (decision.id if decision is not None else ""):
            return None  # the new desired state is still being made; a hint follows
        if not app.claims:
            if not self._may_remove(group, app.app):
                return None
            return encode_removal(group, app.app, desired.version, desired.traceparent)
        final = await self._final_objects(app, desired)
        if final is None:
            return None
        # A later group of that name is another one.
        succeeds = desired.succeeds if self._ledger.has_active_claims(desired.succeeds) else ""
        return encode_app(app, desired, final.encoded_on_cluster(cluster, app.claims), pins, succeeds)

    async def _final_objects(self, app: AppOnCluster, desired: DesiredRecord) -> FinalObjects | None:
        """None if the revision's record is not stored yet."""
        key = (app.group, app.app)
        kept = self._final.use(key)
        if kept is not None and kept[0] is desired:
            return kept[1]
        record = await self._groups.fetch(app.group, desired.revision)
        if record is None:
            return None
        final = final_objects(record, desired, app.app)
        self._final[key] = desired, final
        return final

    def _may_remove(self, group: str, app: str) -> bool:
        desired = self._groups.desired.get(group)
        version = desired.version if desired is not None else 0
        return may_remove(self._ledger.standing.get(group), app, version, self._groups.confirmed.get(group, {}))

    async def hint(self, group: str) -> None:
        """Sends a hint to all clusters with claims of the group."""
        await self.hint_clusters({active.claim.cluster for active in claims_of(self._ledger, group)})

    async def hint_clusters(self, clusters: Iterable[str]) -> None:
        for cluster in clusters:
            await self._bus.publish(subjects.desired("changed", cluster), b"")

    async def hint_removals(self, group: str) -> None:
        """Sends a hint to clusters that apps of the group have left, once the apps may be removed there."""
        desired = self._groups.desired.get(group)
        confirmed = self._groups.confirmed.get(group, {})
        clusters = set()
        for active in claims_of(self._ledger, group):
            app, cluster = active.claim.app, active.claim.cluster
            status = confirmed.get((app, cluster))
            behind = desired is not None and (status is None or status.version < desired.version)
            if active.withdrawn and behind and self._may_remove(group, app):
                clusters.add(cluster)
        await self.hint_clusters(clusters)

    async def confirmed(self, incoming: Incoming) -> bytes | None:
        """Takes a confirmation and answers once it is stored."""
        if not self._is_certain():
            return None
        cluster, confirm = _cluster(incoming), _confirm(incoming.data)
        with tracing.stored_span("confirm", confirm.traceparent, **{"moorage.cluster": cluster}):
            await self._store(cluster, confirm)
        # A patcher that took over while it was being stored may have read the status from before.
        return b"{}" if self._is_certain() else None

    async def _store(self, cluster: str, confirm: Confirm) -> None:
        group, place = confirm.group, (confirm.app, cluster)
        if not any((c.claim.app, c.claim.cluster) == place for c in claims_of(self._ledger, group)):
            return  # long released
        confirmed = self._groups.confirmed.setdefault(group, {})
        before = confirmed.get(place)
        status = learn(confirm, cluster, before)
        if status is None:
            return
        confirmed[place] = status
        self._groups.missing_confirmations.received(group, place)
        if before is not None and repeats(status, before) and self._groups.is_stored(group):
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._groups.stored.setdefault(group, []).append(stored)
        self._groups.mark(group)
        try:
            async with asyncio.timeout(STORE_TIMEOUT):
                await stored
        except TimeoutError:
            problem = Problem(title="Not stored", status=503, code="NoAnswer", detail="confirm it again")
            raise Refused(problem) from None
        reached("patcher.confirmed")


def _what_it_has(ask: DesiredAsk) -> bytes:
    return _encode([ask.have, ask.pins])


def _cluster(incoming: Incoming) -> str:
    """Takes the sender from the subject it may publish on, never from the body."""
    provider, cluster = incoming.subject.rsplit(".", 2)[1:]
    return cluster_from_tokens(provider, cluster)
