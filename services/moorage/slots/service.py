"""Answers clusters: takes their reports of Machines and guests, commits what is planned for them, and tells them the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from moorage.bus import Bus, BusError, Incoming, NoAnswer, new_id, subjects
from moorage.bus.failpoints import reached
from moorage.fleet import FleetChange
from moorage.ledger import Capacity, Changes, Committer, Dropped, Ledger, LedgerFollower
from moorage.model.claims import Commit, SlotGrants, SlotReservations
from moorage.model.machine_slots import GrantedSlot, ReservedSlots
from moorage.model.machine_views import MachinesAsk, MachinesShown
from moorage.model.machines import MachinesSync, MachinesSynced
from moorage.model.names import cluster_from_tokens
from moorage.model.problems import Problem, Refused

from .core.answers import Told
from .core.mesh_layout import MeshLayout, lay_out_over_clusters
from .core.mesh_machines import StoredMachine
from .core.planner import Answer, Planner
from .core.state import ClusterMachines
from .core.views import MachineViews

log = structlog.get_logger("slots")
T = TypeVar("T")

_decode = msgspec.json.Decoder(MachinesSync).decode
_decode_ask = msgspec.json.Decoder(MachinesAsk).decode
#: How often a plan is made again because others took its room.
ATTEMPTS = 8
#: Grants of one entry. Each entry takes effect whole or not at all.
MOST_GRANTS = 256
#: Seconds for which changes of the fleet and of the log are gathered.
GATHER = 0.02
#: Seconds until a cluster is planned again after an error.
RETRY = 1.0
#: How often in a row the log may refuse reservations until what is held is given out without them.
REFUSALS = 3
#: Seconds until reservations that the log refused are planned again, whatever changed.
RETRY_REFUSED = 5.0


class SlotService:
    """Runs while this worker holds the lease. Each cluster is planned by one task at a time."""

    def __init__(
        self,
        bus: Bus,
        follower: LedgerFollower,
        capacity: Capacity,
        generation: int,
        is_certain: Callable[[], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._bus, self._follower, self._capacity = bus, follower, capacity
        self._generation, self._is_certain, self._now = generation, is_certain, now
        self._committer = Committer(bus, follower, capacity)
        self.clusters: dict[str, ClusterMachines] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._told: dict[str, Told] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._dirty: set[str] = set()
        self.documents: dict[str, StoredMachine] = {}
        self._layouts: dict[str, MeshLayout] = {}  # of documents, the newest
        self._laying_out = asyncio.Lock()
        self._claims: dict[str, str] = {}  # claim of an application that uses slots → its cluster
        self._wake = asyncio.Event()
        follower.on_fold.append(self._folded)
        follower.on_reload.append(self._reloaded)
        capacity.fleet.on_change.append(self._fleet_changed)

    @property
    def conflicts(self) -> int:
        return self._committer.conflicts

    @property
    def known_clusters(self) -> int:
        return sum(cluster.known for cluster in self.clusters.values())

    async def start(self) -> None:
        self._bus.spawn(self._follow())
        await self._bus.serve(subjects.MACHINES_LIST, self.show)
        await self._bus.serve(subjects.MACHINES_SYNC.replace(subjects.OF_CLUSTER, "*.*"), self.sync, limit=256)

    async def sync(self, incoming: Incoming) -> MachinesSynced | None:
        """Takes a report and answers with the slots of its cluster."""
        if not self._is_certain():
            return None  # the worker that holds the lease answers
        name = cluster_from_tokens(*incoming.subject.split(".")[-2:])
        report = _decode(incoming.data)
        if report.cluster and report.cluster != name:
            detail = f"the subject is that of {name}; {report.cluster} cannot be reported on it"
            raise Refused(Problem(title="another cluster", status=403, code="Forbidden", detail=detail))
        cluster = self.clusters.get(name)
        if cluster is None:
            cluster = self.clusters[name] = ClusterMachines(name)
        refusal = cluster.refusal(report)
        if refusal == "resync":
            return MachinesSynced(cause=report.id, generation=self._generation, revision=0, resync=True)
        if refusal:
            return MachinesSynced(cause=report.id, generation=self._generation, revision=0, refused=refusal)
        cluster.take(report)
        answer = await self._settle_with_documents(cluster)
        told = self._told.setdefault(name, Told(self._generation))
        return told.reply(report, answer)

    async def show(self, incoming: Incoming) -> MachinesShown | None:
        """Answers with Machines, slots or guests as they are shown."""
        if not self._is_certain():
            return None
        ask = _decode_ask(incoming.data)
        views = MachineViews(self.clusters, self._follower.ledger, self._answer_of, self.documents)
        shown = MachinesShown(cause=ask.id)
        if ask.kind == "machines":
            shown.machines = list(views.machines())
        elif ask.kind == "slots":
            shown.slots = list(views.slots(ask.machine, ask.cluster))
        else:
            shown.guests = list(views.guests(ask.machine, ask.cluster))
        return shown

    def _answer_of(self, cluster: str) -> Answer:
        told = self._told.get(cluster)
        return told.answer if told is not None else Answer()

    async def _settle_with_documents(self, cluster: ClusterMachines) -> Answer:
        if any(cluster.name in stored.clusters for stored in self.documents.values()):
            async with self._lock(cluster.name):
                grants = self._planner(cluster, self._now()).grants(new=False)
                if grants.withdrawn or grants.observed:  # before slots of the documents are laid out
                    await self._grant(grants.observed, grants.withdrawn, observed=True)
            await self._settle_documents(cluster.name)
        return await self._settle(cluster)

    def _lock(self, cluster: str) -> asyncio.Lock:
        return self._locks.setdefault(cluster, asyncio.Lock())

    async def _settle(self, cluster: ClusterMachines) -> Answer:
        """Commits what is planned for the cluster until nothing is left to do."""
        async with self._lock(cluster.name):
            refusals = 0
            for _ in range(ATTEMPTS):
                now = self._now()
                planner = self._planner(cluster, now)
                grants = planner.grants()
                if grants.withdrawn or grants.observed:
                    # Before slots are laid out: those that somebody has are not promised to others.
                    await self._grant(grants.observed, grants.withdrawn, observed=True)
                    refusals = 0
                    continue
                reservations = planner.reservations()
                # Slots that are held are given out even where the log takes no new ones.
                if reservations.changed and refusals < REFUSALS:
                    dropped = await _in_parts(reservations.changed, _group_of, self._reserve)
                    if dropped is not None and dropped.code == "Deposed":
                        break
                    refusals = 0 if dropped is None else refusals + 1
                    continue
                if not grants.granted:
                    again = reservations.again - now if reservations.again else None
                    if reservations.changed or self._is_unreserved(cluster.name):
                        again = RETRY_REFUSED if again is None else min(again, RETRY_REFUSED)
                    self._plan_later(cluster.name, again)
                    return self._with_documents(cluster.name, planner.answer(reservations, grants.waiting))
                for begin in range(0, len(grants.granted), MOST_GRANTS):
                    await _in_parts(grants.granted[begin : begin + MOST_GRANTS], _node_of, self._grant)
            self._plan_later(cluster.name, RETRY)
            planner = self._planner(cluster, self._now())
            answer = planner.answer(planner.reservations(), planner.grants().waiting)
            return self._with_documents(cluster.name, answer)

    def _planner(self, cluster: ClusterMachines, now: float) -> Planner:
        documents = [stored for stored in self.documents.values() if cluster.name in stored.clusters]
        why = {key: text for s in documents if (found := self._layouts.get(s.name)) for key, text in found.why.items()}
        self._capacity.refresh()
        return Planner(self._capacity.fleet, self._follower.ledger, cluster, now, documents, why)

    def _with_documents(self, cluster: str, answer: Answer) -> Answer:
        for name, layout in self._layouts.items():
            if (share := layout.shares.get(cluster)) is not None:
                answer.documents[name] = share
        return answer

    async def _settle_documents(self, cluster: str = "") -> None:
        """Lays out the Machines of the mesh, or those with nodes in one cluster, and tells clusters of new shares."""
        async with self._laying_out:
            for stored in list(self.documents.values()):
                if not cluster or cluster in stored.clusters:
                    await self._settle_document(stored)

    async def _settle_document(self, stored: StoredMachine) -> None:
        refusals = 0
        for _ in range(ATTEMPTS):
            fleet, ledger = self._capacity.fleet, self._follower.ledger
            self._capacity.refresh()
            layout = lay_out_over_clusters(stored, self.clusters, fleet, ledger, self._now())
            if not layout.changed or refusals == REFUSALS:
                break
            dropped = await self._reserve(layout.changed)
            refusals = 0 if dropped is None else refusals + 1
        before = self._layouts.get(stored.name)
        self._layouts[stored.name] = layout
        changed = [c for c, share in layout.shares.items() if before is None or before.shares.get(c) != share]
        for name in changed:
            if name in self.clusters:
                self._mark(name)
            else:  # its agent of Machines may only wait for the first one
                await self._bus.publish(subjects.machines("changed", name), b"")

    async def set_document(self, name: str, stored: StoredMachine | None) -> None:
        """Takes over a Machine of the mesh, or its removal, which is stored."""
        before = self.documents.pop(name, None)
        if stored is not None:
            self.documents[name] = stored
        gone = set(before.clusters if before is not None else ()) - set(stored.clusters if stored is not None else ())
        if before is not None and gone:
            await self._release(before, gone)
        if stored is None:
            self._layouts.pop(name, None)
        else:
            await self._settle_documents()
        self._mark(*gone)

    async def _release(self, before: StoredMachine, clusters: set[str]) -> None:
        """Gives back the slots of a Machine in clusters where it is not any more."""
        keys = [f"{before.machine.group}/{kind.name}" for kind in before.machine.types]
        gone = [ReservedSlots(machine=key, cluster=cluster) for key in keys for cluster in sorted(clusters)]
        held = [one for one in gone if one.claim in self._follower.ledger.machines.reserved]
        if held:
            await self._reserve(held)

    def _is_unreserved(self, cluster: str) -> bool:
        """Returns whether the log did not take what is planned for a Machine of the mesh that has nodes in a cluster."""
        return any(
            layout.changed and cluster in self.documents[name].clusters
            for name, layout in self._layouts.items()
            if name in self.documents
        )

    async def _reserve(self, reserved: list[ReservedSlots]) -> Dropped | None:
        entry = SlotReservations(id=new_id(), generation=self._generation, reserved=reserved)
        self._capacity.hold_reservations(entry)
        outcome = await self._committer.commit(entry)
        if isinstance(outcome, Dropped):
            return outcome
        for one in reserved:
            slots = {"machine": one.machine, "cluster": one.cluster, "slots": one.slots}
            await self._bus.emit(subjects.slot_event("reserved", one.cluster, one.machine), slots)
        return None

    async def _grant(
        self, granted: list[GrantedSlot], withdrawn: Sequence[str] = (), *, observed: bool = False
    ) -> Dropped | None:
        entry = SlotGrants(
            id=new_id(),
            generation=self._generation,
            granted=granted,
            withdrawn=list(withdrawn),
            observed=observed,
        )
        before = self._follower.ledger.machines.granted
        ended = [slot for uid in withdrawn if (slot := before.get(uid)) is not None]
        self._capacity.hold_grants(entry)
        outcome = await self._committer.commit(entry)
        reached("slots.committed")
        if isinstance(outcome, Dropped):
            return outcome
        await self._tell("granted", granted)
        await self._tell("withdrawn", ended)
        return None

    async def _tell(self, change: str, slots: Sequence[GrantedSlot]) -> None:
        """Publishes an event for each machine type and cluster, with its guests."""
        guests: dict[tuple[str, str], list[dict[str, str]]] = {}
        for slot in slots:
            guest = {"uid": slot.uid, "namespace": slot.namespace, "name": slot.name, "node": slot.node}
            guests.setdefault((slot.cluster, slot.machine), []).append(guest)
        for (cluster, machine), found in guests.items():
            data = {"machine": machine, "cluster": cluster, "guests": found}
            await self._bus.emit(subjects.slot_event(change, cluster, machine), data)

    # -- what others change ------------------------------------------------------------------------------------------

    def _folded(self, commit: Commit, changes: Changes) -> None:
        machines = self._follower.ledger.machines
        # Whoever made an entry here goes on with its result.
        own = commit.by == self._committer.ident
        for claim in () if own else changes.reservations:
            if (reserved := machines.reserved.get(claim)) is not None:
                self._mark(reserved.cluster)
        for ident in changes.claims:
            active = self._follower.ledger.claims.get(ident)
            if active is not None and active.claim.within:
                self._claims[ident] = active.claim.cluster
                self._mark(active.claim.cluster)
            elif active is None and ident in self._claims:
                self._mark(self._claims.pop(ident))

    def _reloaded(self, _: Ledger) -> None:
        self._mark(*self.clusters)

    def _fleet_changed(self, change: FleetChange) -> None:
        fleet = self._capacity.fleet
        self._mark(*(self.clusters if change.reset else (fleet.names[c] for c in change.clusters.tolist())))

    def _mark(self, *names: str) -> None:
        for name in names:
            if name in self.clusters:
                self._dirty.add(name)
        if self._dirty:
            self._wake.set()

    def _plan_later(self, name: str, seconds: float | None) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(max(0.0, seconds), self._mark, name)

    async def _follow(self) -> None:
        """Plans clusters again after changes, and tells those for which something is new."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER)
            self._wake.clear()
            dirty, self._dirty = self._dirty, set()
            for name in sorted(dirty):
                try:
                    await self._look_again(self.clusters[name])
                except (BusError, NoAnswer) as error:
                    log.warning("slots of a cluster could not be planned", cluster=name, error=str(error))
                    self._plan_later(name, RETRY)

    async def _look_again(self, cluster: ClusterMachines) -> None:
        if not cluster.known or not self._is_certain():
            return
        answer = await self._settle_with_documents(cluster)
        told = self._told.get(cluster.name)
        if told is None or told.differs(answer):
            await self._bus.publish(subjects.machines("changed", cluster.name), b"")


def _group_of(reserved: ReservedSlots) -> str:
    return reserved.machine.partition("/")[0]


def _node_of(granted: GrantedSlot) -> str:
    return granted.node


async def _in_parts(
    items: list[T], part_of: Callable[[T], str], commit: Callable[[list[T]], Awaitable[Dropped | None]]
) -> Dropped | None:
    """Commits items together, or, where not all of them can be had, those of each part. Returns why some were dropped."""
    dropped = await commit(items)
    parts: dict[str, list[T]] = {}
    for item in items:
        parts.setdefault(part_of(item), []).append(item)
    if dropped is None or dropped.code == "Deposed" or len(parts) == 1:
        return dropped
    outcomes = [await commit(part) for part in parts.values()]
    return next(filter(None, outcomes), None)
