"""Reads the records of decisions, and keeps the newest entries of their history from the first time that somebody asks."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import structlog

from moorage.bus import Bus, BusError, NoAnswer, subjects
from moorage.ledger.records import NotRecorded, decode_batch, record_of
from moorage.mesh import stores
from moorage.model.problems import Problem, Refused, not_found
from moorage.model.records import DecisionRecord, History

from .core.history import DecisionHistory, RecordedDecision
from .responses import unavailable

log = structlog.get_logger("gateway")

#: Decisions of the history that are kept. There may be more in the stream.
MOST = 20_000
#: Seconds within which a decision is recorded. Who asks earlier waits.
SOON = 2.0

_history = msgspec.json.Decoder(History).decode


class RecordsState(NamedTuple):
    messages: int
    bytes: int
    since: str  # the time of the oldest one; "" if there is none


class DecisionRecords:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._log = bus.log(stores.RECORDS)
        self._kept = DecisionHistory(MOST)
        self._opening = asyncio.Lock()
        self._followed = False
        self._changed = asyncio.Event()

    async def history(self) -> DecisionHistory:
        """Returns the history, which is followed from then on."""
        async with self._opening:
            if not self._followed:
                try:
                    # Each batch is a message with records and one with entries, so these have at least as many as are kept.
                    start = max(1, await self._log.first(), await self._log.last() - 2 * MOST)
                    await self._log.follow(start, self._received, keys=subjects.RECORDS_HISTORY)
                except (NoAnswer, BusError) as error:
                    detail = f"the records of decisions cannot be read: {error}; `moorage bus provision` creates their stream"
                    raise Refused(unavailable(detail)) from error
                self._followed = True
        return self._kept

    def _received(self, _seq: int, data: bytes) -> None:
        try:
            self._kept.add(_history(data))
        except msgspec.DecodeError as error:
            self._bus.count("unreadable_records")
            log.error("an entry of the history of decisions cannot be read", error=str(error))
        self._changed.set()
        self._changed = asyncio.Event()

    async def state(self) -> RecordsState | None:
        """Returns what the stream holds; None if there is none."""
        try:
            state = await self._log.state()
        except BusError:
            return None
        since = str(state["first_ts"]) if state["messages"] else ""
        return RecordsState(int(state["messages"]), int(state["bytes"]), since)

    async def find(self, decision: str, *, wait: bool) -> RecordedDecision | None:
        """Returns a decision of the history. `wait`: it exists, so it will be there soon."""
        history = await self.history()
        end = asyncio.get_running_loop().time() + SOON
        while (found := history.find(decision)) is None and wait:
            try:
                async with asyncio.timeout_at(end):
                    await self._changed.wait()
            except TimeoutError:
                return None
        return found

    async def record(self, found: RecordedDecision) -> tuple[DecisionRecord, dict[str, bytes]] | None:
        """Returns the record of a decision and the answers that it names; None if it has none, or none any more."""
        if not found.records:
            return None
        try:
            data = await self._log.get(found.records)
            if data is None:
                return None
            batch = await asyncio.to_thread(decode_batch, data)
            return record_of(batch, found.past.id), batch.answers
        except NotRecorded:
            return None
        except (NoAnswer, BusError) as error:
            raise Refused(unavailable(f"the records of decisions cannot be read: {error}")) from error
        except msgspec.DecodeError as error:
            detail = f"the record of decision {found.past.id} cannot be read: {error}"
            raise Refused(Problem(title="Damaged", status=500, code="Damaged", detail=detail)) from error


def no_record(found: RecordedDecision | None, decision: str) -> Refused:
    """Returns the refusal for a decision whose record is missing, with the reason."""
    if found is None:
        return Refused(not_found(f"decision {decision}"))
    why = (
        "it is not kept any more (see MOORAGE_RECORDS_AGE and MOORAGE_RECORDS_BYTES)"
        if found.records
        else "the merger had no time to write it"
    )
    detail = f"decision {decision} of {found.past.group} has no record: {why}"
    return Refused(Problem(title="Not found", status=404, code="NotRecorded", detail=detail))
