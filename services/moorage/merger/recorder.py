"""Writes records of decisions to their stream, in batches and after the commit. They are encoded while nothing is being decided.
Where there is no time, decisions go into the history only, and these are counted."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from moorage.bus import Bus, BusError, NoAnswer, now_text, subjects
from moorage.ledger import Changes
from moorage.ledger.records import encode_batch
from moorage.mesh import stores
from moorage.model.claims import Commit, Decision, Settlement, Withdrawal
from moorage.model.records import History, PastDecision, PastEnd
from moorage.telemetry.health import version_of_moorage

from .core.recording import Recording
from .metrics import RecordMetrics

log = structlog.get_logger("merger")

#: The part of this worker's time that records may take while decisions follow each other without a pause, and the seconds of
#: it that are saved up while there are fewer.
SHARE, SAVED = 0.02, 0.05
#: Entries that wait to be written, how many of them have records, and the memory of these. Further ones are lost.
MAX_WAITING, MAX_RECORDINGS, MAX_MEMORY = 4096, 512, 64 << 20
#: Records of one message, and their bytes before compression.
BATCH, BATCH_BYTES = 64, 1 << 20
#: A message must stay below the broker's limit however badly it is compressed.
MAX_MESSAGE = 6 << 20
#: Seconds for which entries are gathered, and between two warnings about lost ones.
GATHER, WARN_EVERY = 0.1, 60.0
#: Seconds after which it is looked again whether there is time to encode a record.
_LOOK_AGAIN = 0.02


class Allowance:
    """Time that may be spent: `share` of all time, at most `saved` seconds at once. `now` and the times are in seconds."""

    def __init__(self, share: float, saved: float, now: float) -> None:
        self._share, self._saved = share, saved
        self._left, self._at = saved, now

    def has_any(self, now: float) -> bool:
        self._left = min(self._saved, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left > 0

    def spend(self, seconds: float) -> None:
        self._left -= seconds


class Recorder:
    """`committer` is the id of the committer whose decisions are recorded here; others record their own. `is_deciding` tells
    whether decisions are under way."""

    def __init__(self, bus: Bus, committer: str, is_deciding: Callable[[], bool]) -> None:
        self._bus, self._committer, self._is_deciding = bus, committer, is_deciding
        self._records = bus.log(stores.RECORDS, subjects.RECORDS_DECISIONS)
        self._history = bus.log(stores.RECORDS, subjects.RECORDS_HISTORY)
        self._metrics = RecordMetrics(bus.process_health.registry)
        self._allowance = Allowance(SHARE, SAVED, time.monotonic())
        self._decided: deque[tuple[PastDecision, Recording | None]] = deque()
        self._recordings, self._memory = 0, 0  # that wait to be encoded
        self._ended: deque[PastEnd] = deque()
        self._wake = asyncio.Event()
        self._release = version_of_moorage()
        self.lost = 0
        self._untold = 0  # lost since the last warning
        self._warned_at = -WARN_EVERY
        bus.spawn(self._run())

    @property
    def affordable(self) -> bool:
        """Returns whether there is time to record another decision."""
        is_full = self._recordings >= MAX_RECORDINGS or self._memory >= MAX_MEMORY
        return not is_full and self._allowance.has_any(time.monotonic())

    def spent(self, seconds: float) -> None:
        self._allowance.spend(seconds)

    def decided(self, decision: Decision, seq: int, recording: Recording | None) -> None:
        """Notes a decision that is in the log. `recording` is what it was made from, if there was time to keep that."""
        if len(self._decided) >= MAX_WAITING:
            self._lose(1)
            return
        if recording is None:
            self._lose(1)
        else:
            self._recordings += 1
            self._memory += recording.size
        self._decided.append((_past(decision, seq), recording))
        self._wake.set()

    def folded(self, commit: Commit, changes: Changes) -> None:
        """Notes what a commit ended, if it is of this process."""
        if commit.by != self._committer or len(self._ended) >= MAX_WAITING:
            return
        for withdrawal in commit.entries_of(Withdrawal):
            self._ended.append(
                PastEnd(group=withdrawal.group, revision=withdrawal.revision, seq=changes.seq, ended=now_text())
            )
            self._wake.set()
        for settlement in commit.entries_of(Settlement):
            self._ended += [_displaced(decision, changes.seq) for decision in settlement.ended]
            self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER)
            self._wake.clear()
            while self._decided or self._ended:
                await self._write()

    async def _write(self) -> None:
        """Writes one batch: first its records, then the history that names them."""
        history, data = History(), b""
        while self._ended and len(history.ends) < BATCH:
            history.ends.append(self._ended.popleft())
        records: dict[str, bytes] = {}
        answers: dict[str, bytes] = {}
        size = 0
        while self._decided and len(history.decisions) < BATCH and size < BATCH_BYTES:
            past, recording = self._decided.popleft()
            history.decisions.append(past)
            if recording is not None:
                await self._wait_for_time()
                self._recordings -= 1
                self._memory -= recording.size
                records[past.id] = self._encode(recording)
                answers.update(recording.answers())
                size = sum(map(len, answers.values())) + sum(map(len, records.values()))
        if records:
            data = await asyncio.to_thread(encode_batch, records, answers)
        try:
            if len(data) > MAX_MESSAGE:
                self._lose(len(records))
            elif data:
                history.records = await self._records.append(data)
                for past in history.decisions:
                    past.recorded = past.id in records
                self._metrics.written(len(records))
        except (NoAnswer, BusError) as error:
            self._lose(len(records), str(error))
        try:
            await self._history.append(history)
        except (NoAnswer, BusError) as error:
            self._lose(0, str(error))

    async def _wait_for_time(self) -> None:
        """Waits until nothing is being decided, or there is time to encode a record all the same."""
        await asyncio.sleep(0)
        while self._is_deciding() and not self._allowance.has_any(time.monotonic()):  # noqa: ASYNC110 - time cannot signal
            await asyncio.sleep(_LOOK_AGAIN)

    def _encode(self, recording: Recording) -> bytes:
        takes_time = self._is_deciding()
        began = time.thread_time()  # on a busy machine it waits, which is not its fault
        record = recording.encode(self._release)
        if takes_time:
            self.spent(time.thread_time() - began)
        return record

    def _lose(self, records: int, error: str = "") -> None:
        """Counts decisions without a record, and tells it now and then."""
        self._metrics.lost(records)
        self.lost += records
        self._untold += records
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY:
            log.warning("decisions are not recorded, so they cannot be replayed", decisions=self._untold, error=error)
            self._untold, self._warned_at = 0, now


def _displaced(decision: str, seq: int) -> PastEnd:
    return PastEnd(decision=decision, seq=seq, ended=now_text(), outcome="Displaced")


def _past(decision: Decision, seq: int) -> PastDecision:
    apps: dict[str, list[str]] = {name: [] for name in decision.replicas}
    for claim in decision.claims:
        clusters = apps.setdefault(claim.app, [])
        if claim.cluster not in clusters:
            clusters.append(claim.cluster)
    return PastDecision(
        id=decision.id,
        group=decision.group,
        revision=decision.revision,
        seq=seq,
        decided=now_text(),
        apps=apps,
        claims=len(decision.claims),
    )
