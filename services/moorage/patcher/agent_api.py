"""What agents are told when they ask what should run on their cluster, and what they say became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from moorage.bus import Bus, Incoming, subjects
from moorage.bus.failpoints import reached
from moorage.ledger import Ledger, LedgerFollower
from moorage.model.desired import Confirm, DesiredApp, DesiredAsk
from moorage.model.names import cluster_from_tokens
from moorage.model.problems import Problem, Refused
from moorage.telemetry import tracing

from .core.desired_state import WantedApp, desired_app, encoded, held_by, learn, may_go, parts, repeats, wanted_on
from .group_queue import GroupQueue

_confirm = msgspec.json.Decoder(Confirm).decode
_ask = msgspec.json.Decoder(DesiredAsk).decode
_encode = msgspec.json.Encoder().encode


class AgentApi:
    """`era`: what agents heard before a restore has smaller versions. `sure`: whether no other patcher can be active;
    otherwise nothing is answered, and whoever is active hears it too."""

    def __init__(
        self, bus: Bus, desk: GroupQueue, follower: LedgerFollower, generation: int, era: int, sure: Callable[[], bool]
    ) -> None:
        self.bus, self.desk, self.follower = bus, desk, follower
        self.generation, self.era, self._sure = generation, era, sure
        self._parts: dict[tuple[str, bytes], list[bytes]] = {}
        self._empty = parts([], generation)[0]

    @property
    def ledger(self) -> Ledger:
        return self.follower.ledger

    async def get(self, incoming: Incoming) -> bytes | None:
        if not self._sure():
            return None
        cluster, ask = _cluster(incoming), _ask(incoming.data)
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
        if not self._sure():
            return None
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

    async def _wanted(self, wanted: WantedApp, cluster: str, have: int) -> bytes | None:
        """What is new of one app for a cluster that has `have` of it, or is to be confirmed again."""
        group = wanted.group
        desired, decision = self.desk.desired.get(group), self.ledger.standing.get(group)
        if desired is not None and desired.version <= have:
            return self._unconfirmed(wanted, cluster, desired.version)
        if desired is None or desired.reasons:
            return None
        if desired.decision != (decision.id if decision is not None else ""):
            return None  # being worked on; a hint will come
        if not wanted.standing and not self._may_go(group, wanted.app):
            return None
        record = await self.desk.fetch(group, desired.revision) if wanted.standing else None
        if wanted.standing and record is None:
            return None
        return encoded(desired_app(wanted, cluster, desired, record))

    def _unconfirmed(self, wanted: WantedApp, cluster: str, version: int) -> bytes | None:
        """A version that the agent has and that we name again, without its objects, is one to say again what became of."""
        if not self.desk.missing(wanted.group, wanted.app, cluster, version):
            return None
        return encoded(DesiredApp(group=wanted.group, app=wanted.app, version=version))

    def _may_go(self, group: str, app: str) -> bool:
        desired = self.desk.desired.get(group)
        version = desired.version if desired is not None else 0
        return may_go(self.ledger.standing.get(group), app, version, self.desk.confirmed.get(group, {}))

    async def hint(self, group: str) -> None:
        """Clusters that an app has left may ask now what was kept from them."""
        desired = self.desk.desired.get(group)
        told = self.desk.confirmed.get(group, {})
        leaving = set()
        for held in held_by(self.ledger, group):
            place = (held.claim.app, held.claim.cluster)
            late = desired is not None and (place not in told or told[place].version < desired.version)
            if held.withdrawn and late and self._may_go(group, held.claim.app):
                leaving.add(held.claim.cluster)
        for cluster in leaving:
            await self.bus.publish(subjects.desired("changed", cluster), b"")

    async def confirmed(self, incoming: Incoming) -> bytes | None:
        if not self._sure():
            return None
        cluster, confirm = _cluster(incoming), _confirm(incoming.data)
        with tracing.carried("confirm", confirm.traceparent, **{"moorage.cluster": cluster}):
            await self._learned(cluster, confirm)
        # Who took over while it was being stored may have read what stood there before.
        return b"{}" if self._sure() else None

    async def _learned(self, cluster: str, confirm: Confirm) -> None:
        """Back once it is stored."""
        group, place = confirm.group, (confirm.app, cluster)
        if not any(h.claim.cluster == cluster and h.claim.app == confirm.app for h in held_by(self.ledger, group)):
            return  # long released
        mine = self.desk.confirmed.setdefault(group, {})
        before = mine.get(place)
        new = learn(confirm, cluster, before)
        if new is None:
            return
        mine[place] = new
        self.desk.hearing.heard(group, place)
        if before is not None and repeats(new, before) and self.desk.rests(group):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.desk.stored.setdefault(group, []).append(future)
        self.desk.mark(group)
        try:
            async with asyncio.timeout(5):
                await future
        except TimeoutError:
            problem = Problem(title="Not stored", status=503, code="NoAnswer", detail="say it again")
            raise Refused(problem) from None
        reached("patcher.confirmed")


def _cluster(incoming: Incoming) -> str:
    """The sender is who may speak on that subject, never who the body says."""
    provider, cluster = incoming.subject.rsplit(".", 2)[1:]
    return cluster_from_tokens(provider, cluster)
