"""Settles clusters on which pods started elsewhere than expected, as soon as a report or a commit shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer, subjects
from moorage.bus.failpoints import reached
from moorage.collections import LruDict
from moorage.fleet import FleetChange
from moorage.ledger import Changes, Dropped, Guard, Ledger, displaced_reason
from moorage.ledger.ledger import DEVICE_FAILED, MASS_FAILURE
from moorage.mesh import stores
from moorage.model.attempts import AppView, Attempt
from moorage.model.base import Model
from moorage.model.claims import Commit, Decision, Settlement, Shortfall
from moorage.model.groups import Revision
from moorage.model.names import group_tokens
from moorage.model.problems import Problem, Refused
from moorage.model.status import GroupStatus

from .core.settle import Settled, groups_to_settle, is_unsettled, settle
from .core.settlement_draft import Draft, Progress, Surroundings
from .decider import Decider
from .device_events import mass_failures, moves, outcomes, tell_masses, tell_move
from .device_watch import DeviceWatch
from .lost_nodes import LostNodes

log = structlog.get_logger("merger")

#: Seconds until a cluster is looked at again after settling it failed.
RETRY = 1.0
#: Clusters that are settled at the same time. Most of the time goes to reading documents and to the log's answers.
AT_ONCE = 32
#: How often the documents of groups are read that are to be settled together: others may join them meanwhile.
TRIES = 3
#: Seconds until a displaced group is decided again: at once, then after 1, 2, 4 ... up to the second value.
BACK_OFF, BACK_OFF_MOST = 1.0, 300.0
#: Seconds that an order to move devices waits for the settlement.
MOVE_TIMEOUT = 5.0
#: Documents, and groups that were displaced before, that are remembered.
REMEMBERED = 4096


_SETTLED = Dropped("", "nothing is to be settled any more")
_LATER = Dropped("", "more has to be known first")


class _Record(Model, kw_only=True):
    """The part of a group's record that settling needs; manifests stay undecoded."""

    revision: int
    resolved: Revision


_record = msgspec.json.Decoder(_Record).decode
_status = msgspec.json.Decoder(GroupStatus).decode

#: Is called for a group that was displaced, with the seconds until it is to be decided again.
OnDisplaced = Callable[[Revision, float], None]


class Settling:
    """Runs while this merger holds the lease of what waits."""

    def __init__(self, bus: Bus, decider: Decider, on_displaced: OnDisplaced) -> None:
        self._bus, self._decider, self._on_displaced = bus, decider, on_displaced
        self._suspects: dict[str, None] = {}
        self._active: set[str] = set()
        self._forced: set[str] = set()  # clusters to look at although the capacity shows nothing
        self._lost = LostNodes(bus, decider.fleet, decider.capacity, self._force)
        self._devices = DeviceWatch(decider.fleet, lambda: decider.ledger, self._force)
        self._left: dict[
            str, tuple[frozenset[str], int]
        ] = {}  # group that lost devices → its clusters, and its pods there
        self._wake = asyncio.Event()
        self._documents = LruDict[tuple[str, int], Revision](REMEMBERED)
        self._tries = LruDict[tuple[str, int], int](REMEMBERED)  # group, revision → times it was displaced

    async def run(self) -> None:
        """Runs until it is cancelled."""
        follower, fleet = self._decider.follower, self._decider.fleet
        fleet.on_change.append(self._fleet_changed)
        follower.on_fold.append(self._folded)
        follower.on_reload.append(self._reloaded)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._load_times()
                tasks.create_task(self._lost.run())
                self._suspect(self._decider.ledger.by_cluster)
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    for cluster in self._ready():
                        self._active.add(cluster)
                        tasks.create_task(self._settle_safely(cluster))
        finally:
            fleet.on_change.remove(self._fleet_changed)
            follower.on_fold.remove(self._folded)
            follower.on_reload.remove(self._reloaded)
            self._devices.close()

    async def _load_times(self) -> None:
        """Reads since when nodes are unusable. Without an answer they count from now on, as nothing may wait for that."""
        try:
            await self._lost.load()
        except (NoAnswer, BusError) as error:
            log.warning("since when nodes are unusable is not known", error=str(error))

    def _ready(self) -> list[str]:
        """Takes suspected clusters that are unsettled, as many as may be settled now."""
        suspects, self._suspects = self._suspects, {}
        ready: list[str] = []
        for cluster in suspects:
            self._lost.check(cluster)
            self._devices.check(cluster)
            if cluster not in self._forced and not self._may_be_unsettled(cluster):
                continue
            if cluster in self._active or len(self._active) + len(ready) >= AT_ONCE:
                self._suspects[cluster] = None  # looked at again when a settlement is done
            else:
                ready.append(cluster)
        return ready

    def _may_be_unsettled(self, cluster: str) -> bool:
        decider = self._decider
        if decider.capacity.may_be_unsettled(cluster) or decider.ledger.displaced_on(cluster):
            return True
        return self._devices.matters(cluster)

    async def _settle_safely(self, cluster: str) -> None:
        """Settles the cluster. A failure holds up neither other clusters nor later tries."""
        try:
            await self._settle(cluster)
        except (NoAnswer, BusError) as error:
            log.warning("a cluster will be settled later", cluster=cluster, error=str(error))
            asyncio.get_running_loop().call_later(RETRY, self._force, [cluster])
        except Exception:
            self._bus.count("failed_settlements")
            log.exception("settling a cluster failed; it will be tried again", cluster=cluster)
            asyncio.get_running_loop().call_later(RETRY, self._force, [cluster])
        finally:
            self._active.discard(cluster)
            if self._suspects:
                self._wake.set()

    # -- changes ------------------------------------------------------------------------------------------------------

    def _suspect(self, clusters: Iterable[str]) -> None:
        by_cluster = self._decider.ledger.by_cluster
        self._suspects.update((cluster, None) for cluster in clusters if cluster in by_cluster)
        if self._suspects:
            self._wake.set()

    def _force(self, clusters: Iterable[str]) -> None:
        self._forced.update(clusters)
        self._suspect(clusters)

    def _fleet_changed(self, change: FleetChange) -> None:
        names = self._decider.fleet.names
        self._force([names[cid] for cid in change.node_sets.tolist()])  # slots of DaemonSets follow the nodes
        self._suspect(self._decider.ledger.by_cluster if change.reset else (names[cid] for cid in change.clusters))

    def _folded(self, _commit: Commit, changes: Changes) -> None:
        known = self._decider.ledger.claims
        claims = [active.claim for ident in changes.claims if (active := known.get(ident)) is not None]
        withdrawn = {known[ident].claim.cluster for ident in changes.withdrawn if ident in known}
        self._devices.claims_changed(claims, withdrawn | changes.released_on)
        self._count_departures(changes)
        self._suspect({claim.cluster for claim in claims})

    def _count_departures(self, changes: Changes) -> None:
        """Counts the pods of groups that lost devices and were placed on another cluster."""
        for group in changes.groups & self._left.keys():
            clusters, pods = self._left[group]
            standing = self._decider.ledger.standing.get(group)
            if group in self._decider.ledger.displaced and standing is not None:
                continue
            del self._left[group]
            if standing is not None and not clusters >= {claim.cluster for claim in standing.claims}:
                self._decider.metrics.devices_moved("elsewhere", pods)

    def _reloaded(self, ledger: Ledger) -> None:
        self._devices.reloaded()
        self._suspect(ledger.by_cluster)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def move_devices(self, cluster: str, kind: str) -> list[str]:
        """Lets pods leave devices of a cluster that failed together. Returns the kinds of these once no group waits for them any
        more; after a restart of the merger nothing else would be known of the order."""
        self._devices.check(cluster)
        kinds = self._devices.end_masses(cluster, kind)
        if kinds:
            self._force([cluster])
        until = asyncio.get_running_loop().time() + MOVE_TIMEOUT
        while any(
            lack.code == MASS_FAILURE and lack.resource in kinds
            for lack in self._decider.ledger.displaced_on(cluster).values()
        ):
            if asyncio.get_running_loop().time() > until:
                detail = f"{cluster} could not be settled yet; the order holds unless the merger ends, retry"
                raise Refused(Problem(title="Not settled", status=503, code="NoAnswer", detail=detail))
            await asyncio.sleep(0.02)
        return kinds

    # -- settling -----------------------------------------------------------------------------------------------------

    async def _settle(self, cluster: str) -> None:
        decider = self._decider
        # The next change of these rows lets this merger look again.
        if decider.ledger.settled_from_newer_rows(cluster, str(decider.fleet.epoch)):
            return
        forced = cluster in self._forced
        if not forced and await self._settle_open(cluster):
            return
        draft = self._draft(cluster, {}, {}, whole=forced)
        if draft is None or not (forced or is_unsettled(draft)):
            return
        self._forced.discard(cluster)
        documents: dict[str, Revision] = {}
        progress: Mapping[str, Progress] = {}
        if groups := groups_to_settle(draft):
            documents = await self._documents_of(groups)
            found = self._compute(cluster, documents, progress, whole=forced)
        else:
            found = settle(draft)
        self._devices.noted(cluster)
        # After a mass failure a group waits for its devices; it is displaced once it may leave them.
        known = set(_that_leave(decider.ledger.displaced_on(cluster)))
        if set(_that_leave(found.displaced)) - known:
            groups = {decider.ledger.claims[ident].group for ident in decider.ledger.by_cluster.get(cluster, ())}
            progress = await self._progress_of(groups - known)
            found = self._compute(cluster, documents, progress, whole=forced)
        if found.entry is None:
            return
        reached("merger.settling")
        guard = self._guard(found.entry, documents, progress, whole=forced)
        new = [group for group in _that_leave(found.displaced) if group not in known and group in documents]
        ended = {group for group in new if self._ends(group, found.entry)}
        found.entry.moved = moves(decider.ledger, found.entry, self._devices.on(cluster))
        masses = list(mass_failures(decider.ledger.displaced_on(cluster), found.entry.displaced))
        result = await decider.committer.commit(found.entry, guard)
        reached("merger.settled")
        if isinstance(result, Dropped):
            self._suspect([cluster])
            return
        for outcome, pods in outcomes(found.entry.moved).items():
            decider.metrics.devices_moved(outcome, pods)
        for move in found.entry.moved:
            await tell_move(self._bus, move)
        await tell_masses(self._bus, cluster, masses)
        for group in new:
            if found.displaced[group].code == DEVICE_FAILED:
                decider.metrics.devices_moved("waiting", len(found.displaced[group].devices))
                self._left.setdefault(group, (frozenset({cluster}), len(found.displaced[group].devices)))
            wait = self._next_wait(documents[group])
            self._on_displaced(documents[group], wait)
            if group in ended:
                await self._tell(cluster, documents[group], found.displaced[group])

    async def _settle_open(self, cluster: str) -> bool:
        """Settles a cluster where nothing failed and nobody is displaced. The settlement is computed once, right before it is
        appended. Returns whether that was all there is to do."""
        for _ in range(TRIES):
            missing = await self._append_open(cluster)
            if missing is None:
                return True
            if not missing or len(await self._documents_of(missing)) < len(missing):
                return False
        return False

    async def _append_open(self, cluster: str) -> Collection[str] | None:
        """Appends a settlement of open slots, if there is one. Returns None, or which groups' documents are to be read before; none
        of them if it takes more than a look at open slots."""
        failed: Exception | None = None
        missing: Collection[str] = ()

        def guard(_ledger: Ledger) -> Dropped | Settlement:
            nonlocal failed, missing
            try:
                found, missing = self._compute_open(cluster)
            except Exception as error:  # noqa: BLE001 - raised where it was asked for, not in the committer
                found, failed = None, error
            if found is None:
                return _LATER
            if found.entry is None:
                return _SETTLED
            reached("merger.settling")
            return found.entry

        # The guard makes another entry in the place of this one.
        result = await self._decider.committer.commit(Settlement(cluster=cluster, epoch=""), guard)
        if failed is not None:
            raise failed
        if result is _LATER:
            return missing
        if isinstance(result, Dropped):
            if result is not _SETTLED:
                self._suspect([cluster])
            return None
        reached("merger.settled")
        return None

    def _compute_open(self, cluster: str) -> tuple[Settled | None, Collection[str]]:
        """Computes a settlement of open slots. Without the first the documents of these groups are missing, or it takes more."""
        ledger = self._decider.ledger
        if self._lost.on(cluster) or self._devices.matters(cluster) or ledger.displaced_on(cluster):
            return None, ()
        documents: dict[str, Revision] = {}
        draft = self._draft(cluster, documents, {}, whole=False)
        if draft is None or not is_unsettled(draft):
            return Settled(None), ()
        known = {group: self._known_document(group) for group in groups_to_settle(draft)}
        if missing := [group for group, document in known.items() if document is None]:
            return None, missing
        documents.update((group, self._decider.bound(document)) for group, document in known.items() if document)
        found = settle(draft)
        return (None if found.displaced else found), ()

    def _known_document(self, group: str) -> Revision | None:
        """Returns the document that the group's decision was made from, if it was decided or read here."""
        standing = self._decider.ledger.standing.get(group)
        if standing is None:
            return None
        key = (group, standing.revision)
        return self._decider.documents.get(key) or self._documents.get(key)

    def _ends(self, group: str, entry: Settlement) -> bool:
        standing = self._decider.ledger.standing.get(group)
        return standing is not None and standing.id in entry.ended

    def _compute(
        self, cluster: str, documents: Mapping[str, Revision], progress: Mapping[str, Progress], *, whole: bool
    ) -> Settled:
        """Computes the settlement at this moment."""
        bound = {group: self._decider.bound(document) for group, document in documents.items()}
        draft = self._draft(cluster, bound, progress, whole=whole)
        return Settled(None) if draft is None else settle(draft)

    def _draft(
        self, cluster: str, documents: Mapping[str, Revision], progress: Mapping[str, Progress], *, whole: bool
    ) -> Draft | None:
        """Reads what may have to be settled of the cluster at this moment, or the `whole` of it. None: it is not usable."""
        decider = self._decider
        cid = decider.fleet.ids.get(cluster)
        if cid is None or not decider.fleet.usable_clusters[cid]:
            return None
        held, lost = decider.capacity.held_on(cluster), self._lost.on(cluster)
        whole = whole or bool(lost) or self._devices.matters(cluster)
        objects = decider.capacity.to_settle(cluster, whole=whole)
        around = Surroundings(documents, held, lost, progress.get, self._devices.on(cluster), objects)
        return Draft(cid, decider.ledger, decider.fleet, around)

    def _guard(
        self, entry: Settlement, documents: Mapping[str, Revision], progress: Mapping[str, Progress], *, whole: bool
    ) -> Guard:
        """Lets the settlement pass only if it is what the newest state asks for."""
        standing = {group: self._decider.ledger.standing.get(group) for group in progress}

        def guard(ledger: Ledger) -> Dropped | None:
            again = self._compute(entry.cluster, documents, progress, whole=whole).entry
            same = again is not None and msgspec.structs.replace(again, epoch=entry.epoch, moved=entry.moved) == entry
            # The document and the progress of a group were read for the decision that stood then.
            if same and all(_ident(ledger.standing.get(g)) == _ident(d) for g, d in standing.items()):
                return None
            return Dropped("Overtaken", "the cluster changed meanwhile")

        return guard

    async def _documents_of(self, groups: Iterable[str]) -> dict[str, Revision]:
        """Returns the documents that the groups' decisions were made from, by group, as far as they are there."""
        standing = self._decider.ledger.standing
        wanted = {group: standing[group].revision for group in groups if group in standing}
        found = {key: self._decider.documents.get(key) or self._documents.get(key) for key in wanted.items()}
        unread = [key for key, document in found.items() if document is None]
        if unread:
            found.update(zip(unread, await asyncio.gather(*(self._document(*key) for key in unread)), strict=True))
        return {group: document for (group, _), document in found.items() if document is not None}

    async def _document(self, group: str, revision: int) -> Revision | None:
        key = (group, revision)
        document = self._documents.get(key)
        if document is not None:
            return document
        tokens = group_tokens(group)
        for bucket, name in ((stores.GROUPS, tokens), (stores.REVISIONS, f"{tokens}.{revision}")):
            stored = await self._bus.bucket(bucket).get(name)
            record = _record(stored.value) if stored is not None else None
            if record is not None and record.revision == revision:
                self._documents[key] = record.resolved
                return record.resolved
        return None

    async def _progress_of(self, groups: Iterable[str]) -> dict[str, Progress]:
        """Returns how far the groups' decisions came, by group, for those that have one."""
        wanted = [group for group in groups if group in self._decider.ledger.standing]
        found = await asyncio.gather(*(self._progress(group) for group in wanted))
        return {group: progress for group, progress in zip(wanted, found, strict=True) if progress is not None}

    async def _progress(self, group: str) -> Progress | None:
        ledger = self._decider.ledger
        standing, previous = ledger.standing.get(group), ledger.previous.get(group)
        if standing is None:
            return None
        stored = await self._bus.bucket(stores.STATUS).get(group_tokens(group))
        status = _status(stored.value) if stored is not None else None
        ran = status is not None and (status.reached or status.ran)
        return Progress(
            reached=status is not None and status.reached and status.decision == standing.id,
            ran=ran,
            restorable=previous is not None and await self._document(group, previous[-1].revision) is not None,
        )

    def _next_wait(self, document: Revision) -> float:
        """Returns the seconds until a displaced group is decided again: longer from time to time."""
        key = (document.group, document.revision)
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        return 0.0 if tries == 1 else min(BACK_OFF_MOST, BACK_OFF * 2 ** min(tries - 2, 16))

    async def _tell(self, cluster: str, document: Revision, shortfall: Shortfall) -> None:
        """Publishes that the group's decision ended."""
        attempt = Attempt(
            group=document.group,
            revision=document.revision,
            phase="Pending",
            epoch=str(self._decider.fleet.epoch),
            apps={app.name: AppView(replicas=app.replicas) for app in document.apps},
            reasons=[displaced_reason(cluster, shortfall)],
        )
        await self._bus.emit(subjects.decision_event("pending", document.group), attempt)


def _ident(decision: Decision | None) -> str:
    return decision.id if decision is not None else ""


def _that_leave(lacking: Mapping[str, Shortfall]) -> list[str]:
    """Returns the groups that may leave the cluster: those of a mass failure wait for their devices."""
    return [group for group, lack in lacking.items() if lack.code != MASS_FAILURE]
