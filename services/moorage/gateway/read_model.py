"""ReadModel: mirrors of groups, status, documents, resources and controllers, followers of the ledger and the fleet, and the
last attempt to decide each group."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from moorage.bus import MAX_PAYLOAD, Bus, NoAnswer, Settings, subjects
from moorage.classes import ClassCatalog
from moorage.collections import LruDict
from moorage.fleet import ClassStatus, Fleet, FleetFollower
from moorage.ledger import Capacity, Changes, Ledger, LedgerFollower, open_ledger
from moorage.ledger.room import gone_parts
from moorage.mesh import stores
from moorage.model.attempts import Attempt
from moorage.model.claims import Commit, Decision
from moorage.model.controllers import Controller
from moorage.model.desired_state import DesiredRecord
from moorage.model.events import Event
from moorage.model.groups import GroupRecord
from moorage.model.names import GroupName, group_tokens, untoken
from moorage.model.phases import ENDED
from moorage.model.status import GroupStatus
from moorage.model.v2_resources import Path, ResourceTree, ShownResource, path_of

from .core.explain import Known
from .core.redaction import shown_body, shown_record

log = structlog.get_logger("gateway")

_status = msgspec.json.Decoder(GroupStatus).decode
_controller = msgspec.json.Decoder(Controller).decode
_attempt = msgspec.json.Decoder(Attempt).decode
_event = msgspec.json.Decoder(Event).decode
_shown = msgspec.json.Decoder(ShownResource).decode
_document = msgspec.json.Decoder(dict[str, Any]).decode

#: Seconds within which who wrote something can read it, however busy the machine is; then the answer comes without waiting.
SHOWN_WITHIN = 10.0
#: Decision events that have an Attempt as data; the patcher's phases are in the status.
_ATTEMPT_PHASES = ("placed", "pending", "failed")
#: Groups without a record of which something is kept: the record is on its way, or was deleted.
_EARLY = 1024


class _Lazy:
    """A record that is decoded on first use, because most records change again before they are read."""

    __slots__ = ("raw", "revision", "value")

    def __init__(self, raw: bytes, revision: int) -> None:
        self.raw = raw
        self.revision = revision
        self.value: Any = None

    def get(self, decode: Callable[[bytes], Any]) -> Any:
        if self.value is None:
            self.value = decode(self.raw)
        return self.value


class ReadModel:
    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus = bus
        self._fleet = Fleet()
        self.follower = FleetFollower(settings.redis_url, self._fleet)
        self.catalog = ClassCatalog()
        self._class_status = ClassStatus(self._fleet, self.catalog)
        self.controllers: dict[str, Controller] = {}
        self.documents: dict[str, dict[str, Any]] = {}  # by KIND.project.name tokens
        self.document_revisions: dict[str, int] = {}  # by the same keys
        self.resources = ResourceTree()  # of /v2, with encoded bodies
        self._groups: dict[str, _Lazy] = {}
        self._statuses: dict[str, _Lazy] = {}
        self._attempts: dict[str, _Lazy] = {}
        self._seqs: dict[str, tuple[str, int]] = {}  # the newest decision of each group, and its sequence in the log
        # Attempts and sequences that arrived before the group's record, or after its deletion.
        self._early_attempts = LruDict[str, _Lazy](_EARLY)
        self._early_seqs = LruDict[str, tuple[str, int]](_EARLY)
        self._changed = asyncio.Event()
        self._log: LedgerFollower | None = None
        self._capacity: Capacity | None = None
        self.on_label_change: list[Callable[[Path], None]] = []  # called with changed paths below cluster-providers

    # --- following -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        bus = self.bus
        await bus.subscribe("moorage.events.decisions.>", self._on_decision_event, max_bytes=MAX_PAYLOAD)
        await bus.bucket(stores.CONTROLLERS).mirror(self._on_controller)
        await bus.bucket(stores.DOCUMENTS).mirror(self._on_document)
        await bus.bucket(stores.CLASSES).mirror(self._on_fleet_object)
        await bus.bucket(stores.RESOURCES).mirror(self._on_resource)
        await bus.bucket(stores.STATUS).mirror(self._on_status)
        await bus.bucket(stores.GROUPS).mirror(self._on_group)
        self._log = await open_ledger(bus)
        self._log.on_fold.append(self._on_commit)
        self._log.on_reload.append(self._on_reload)
        self._capacity = Capacity(self._fleet, self._log.ledger, lazy=True)
        bus.spawn(self._recall())
        bus.spawn(self._follow_fleet())

    async def _follow_fleet(self) -> None:
        """Runs in the background, so that groups can be shown and documents accepted while Redis is down."""
        await self.follower.start()

    async def stop(self) -> None:
        await self.follower.stop()
        if self._log is not None:
            await self._log.stop()

    @property
    def fleet(self) -> Fleet:
        """Returns the fleet, with what is free now. What goes on with it later asks again."""
        self._count()
        return self._fleet

    @property
    def class_status(self) -> ClassStatus:
        self._count()
        return self._class_status

    def _count(self) -> None:
        if self._capacity is not None:
            self._capacity.refresh()

    @property
    def ledger(self) -> Ledger:
        assert self._log is not None
        return self._log.ledger

    def missing(self) -> list[str]:
        return [] if self.follower.healthy else ["the fleet in Redis"]

    def _on_group(self, key: str, value: bytes | None, revision: int) -> None:
        group = str(GroupName.from_tokens(key))
        if value is None:
            self._groups.pop(group, None)
            for known in (self._attempts, self._seqs, self._early_attempts, self._early_seqs):
                known.pop(group, None)
        else:
            if group not in self._groups:
                if (attempt := self._early_attempts.pop(group, None)) is not None:
                    self._attempts[group] = attempt
                if (seq := self._early_seqs.pop(group, None)) is not None:
                    self._seqs[group] = seq
            self._groups[group] = _Lazy(value, revision)
        self._notify()

    def _on_status(self, key: str, value: bytes | None, revision: int) -> None:
        group = str(GroupName.from_tokens(key))
        if value is None:
            self._statuses.pop(group, None)
        else:
            self._statuses[group] = _Lazy(value, revision)
        self._notify()

    def _on_controller(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self.controllers.pop(untoken(key), None)
        else:
            controller = _controller(value)
            self.controllers[controller.name] = controller

    def _on_document(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self.documents.pop(key, None)
            self.document_revisions.pop(key, None)
        else:
            self.documents[key] = _document(value)
            self.document_revisions[key] = revision
        self._notify()

    def _on_fleet_object(self, key: str, value: bytes | None, revision: int) -> None:
        self.catalog.put(key, value, revision)
        self._notify()

    def _on_resource(self, key: str, value: bytes | None, revision: int) -> None:
        path = path_of(key)
        if value is None:
            self.resources.drop(path, revision, mirrored=True)
        else:
            self.put_resource(path, bytes(_shown(value).body), revision)
        self.notify_resource(path)

    def put_resource(self, path: Path, body: bytes, revision: int) -> bytes:
        """Stores a resource, and returns its body without values of Secrets."""
        shown = shown_body(path, body)
        self.resources.put(path, shown, revision)
        return shown

    def notify_resource(self, path: Path) -> None:
        if path[0] == "cluster-providers":
            for callback in self.on_label_change:
                callback(path)

    def _on_decision_event(self, subject: str, data: bytes) -> None:
        phase, _, tokens = subject.removeprefix("moorage.events.decisions.").partition(".")
        group = str(GroupName.from_tokens(tokens))
        if phase in _ATTEMPT_PHASES:
            (self._attempts if group in self._groups else self._early_attempts)[group] = _Lazy(data, 0)
        self._notify()

    def _on_commit(self, commit: Commit, changes: Changes) -> None:
        for decision in commit.entries_of(Decision):
            if decision.id not in changes.refused:
                seqs = self._seqs if decision.group in self._groups else self._early_seqs
                seqs[decision.group] = decision.id, changes.seq
        if self._capacity is not None:
            self._capacity.folded(changes)
        self._notify()

    def _on_reload(self, ledger: Ledger) -> None:
        if self._capacity is not None:
            self._capacity.reload(ledger)
        self._notify()

    def _notify(self) -> None:
        """Wakes requests that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _recall(self) -> None:
        """Reads the last attempts of pending groups from the event log, because their events were published before the
        start."""
        events = self.bus.log(stores.EVENTS)
        for group in list(self._groups):
            known = self.known(group)
            if known is None or known.record.state != "Instantiated" or known.attempt is not None:
                continue
            if known.decision is not None and known.decision.revision >= known.record.revision:
                continue
            attempts: list[bytes] = []
            for phase in ("pending", "failed"):
                with contextlib.suppress(NoAnswer):
                    if found := await events.latest(subjects.decision_event(phase, group)):
                        attempts.append(found)
            if attempts and group not in self._attempts:
                self._attempts[group] = _Lazy(max(attempts, key=lambda raw: _event(raw).time), 0)
                self._notify()

    # --- queries -------------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> list[str]:
        return sorted(self._groups)

    def record(self, group: str) -> GroupRecord | None:
        found = self._groups.get(group)
        return None if found is None else found.get(shown_record)

    def revision_of(self, group: str) -> int:
        """Returns the revision of the group's record in its bucket, which grows with every change of document or state."""
        found = self._groups.get(group)
        return 0 if found is None else found.revision

    def known(self, group: str) -> Known | None:
        record = self.record(group)
        if record is None:
            return None
        status = self._statuses.get(group)
        reported: GroupStatus | None = None if status is None else status.get(_status)
        standing = self.ledger.standing.get(group)
        return Known(
            record,
            standing,
            self._is_counting(record, reported),
            self._attempt(group),
            reported,
            self._clusters(group),
            gone_parts(standing.claims, self._fleet) if standing is not None and self.follower.healthy else (),
        )

    def _is_counting(self, record: GroupRecord, status: GroupStatus | None) -> bool:
        """Returns whether claims of the group count, or may still come to count although it is terminated."""
        if record.state not in ENDED:
            return self.ledger.has_active_claims(record.group)
        terminated = status is not None and status.phase == "Terminated" and status.revision == record.revision
        return self.ledger.is_terminating(record.group, record.revision, was_terminated=terminated)

    def _clusters(self, group: str) -> dict[str, float | None]:
        """Returns clusters with claims of the group, and for stale ones the seconds since the last report, `inf` if it was
        before the mesh started. While the fleet cannot be read, none is shown as stale."""
        fleet, ledger = self._fleet, self.ledger
        found: dict[str, float | None] = {}
        for ident in ledger.by_group.get(group, ()):
            cluster = ledger.claims[ident].claim.cluster
            if cluster not in found:
                cid = fleet.ids.get(cluster, fleet.size)
                stale = cid < fleet.size and bool(fleet.known[cid]) and fleet.state(cid) == "Stale"
                found[cluster] = fleet.report_age(cid, time.time()) if stale and self.follower.healthy else None
        return found

    def _attempt(self, group: str) -> Attempt | None:
        found = self._attempts.get(group)
        if found is None:
            return None
        try:
            attempt: Attempt = found.get(lambda raw: _attempt(_event(raw).data))
        except msgspec.DecodeError as error:
            log.error("cannot decode an attempt, ignoring it", group=group, error=str(error))
            del self._attempts[group]
            return None
        return attempt

    async def seq_of(self, group: str, decision: str) -> int:
        """Returns a decision's sequence in the log. For decisions older than the snapshot, the desired state has it."""
        known = self._seqs.get(group)
        if known is not None and known[0] == decision:
            return known[1]
        entry = await self.bus.bucket(stores.DESIRED).get(group_tokens(group))
        desired = None if entry is None else msgspec.json.decode(entry.value, type=DesiredRecord)
        if desired is None or desired.decision != decision:
            return 0
        self._seqs[group] = decision, desired.seq or desired.version
        return self._seqs[group][1]

    async def wait_for_group(self, group: str, within: float = SHOWN_WITHIN) -> None:
        """Waits until an acknowledged write is mirrored, so that the writer can read it."""
        with contextlib.suppress(NoAnswer, TimeoutError):
            entry = await self.bus.bucket(stores.GROUPS).get(group_tokens(group))
            async with asyncio.timeout(within):
                while not self._is_mirrored(group, None if entry is None else entry.revision):
                    await self._changed.wait()

    async def wait_for_document(self, key: str, within: float = SHOWN_WITHIN) -> None:
        """Waits like `wait_for_group` for a standalone intent."""
        with contextlib.suppress(NoAnswer, TimeoutError):
            entry = await self.bus.bucket(stores.DOCUMENTS).get(key)
            async with asyncio.timeout(within):
                while entry is not None and self.document_revisions.get(key, 0) < entry.revision:
                    await self._changed.wait()
                while entry is None and key in self.document_revisions:
                    await self._changed.wait()

    async def wait_for_fleet_object(self, key: str, within: float = SHOWN_WITHIN) -> None:
        """Waits like `wait_for_group` for a resource class or what belongs to it."""
        with contextlib.suppress(NoAnswer, TimeoutError):
            entry = await self.bus.bucket(stores.CLASSES).get(key)
            async with asyncio.timeout(within):
                while entry is not None and self.catalog.revisions.get(key, 0) < entry.revision:
                    await self._changed.wait()
                while entry is None and key in self.catalog.objects:
                    await self._changed.wait()

    def _is_mirrored(self, group: str, revision: int | None) -> bool:
        have = self._groups.get(group)
        if revision is None:
            return have is None
        return have is not None and have.revision >= revision
