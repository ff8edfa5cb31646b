"""Tracks a source of reports: its session, its sequence, and the parts of a report that have arrived.

A report is applied only if it has all parts and no gap before it. The parts that are kept are bounded by what a large cluster
needs.
"""

from __future__ import annotations

from enum import Enum

from moorage.model.reports import Report

MAX_PARTS = 10_000
#: Bytes of all parts of a report.
MAX_BYTES = 256 << 20


class Verdict(Enum):
    RESYNC = "resync"  # there is a gap: a full report is needed
    OLD = "old"  # a repetition
    WAIT = "wait"  # parts are missing
    COMPLETE = "whole"
    TOO_LARGE = "large"  # more bytes than are kept


class ReportSession:
    """A session of a source, from its first report until another session replaces it."""

    def __init__(self, name: str, session: str, now: float, period: float) -> None:
        self.name = name
        self.session = session
        self.last_report_at = now
        self.period = period  # seconds between reports, as last answered
        self.seq = -1
        self.buffered_bytes = 0  # of the parts that have arrived
        self._incomplete = False
        self._parts: dict[int, tuple[int, Report]] = {}
        self._gathering: tuple[int, str, int] = (-1, "", 0)

    def mark_incomplete(self) -> None:
        """Asks for a full report, because something that was reported is not kept."""
        self._incomplete = True

    def accept(self, report: Report, size: int = 0, most: int = MAX_BYTES) -> tuple[Verdict, Report | None]:
        """Returns the report once its last part has arrived. `size` is the part's bytes, `most` the limit of all parts."""
        place, count = report.part
        if not 0 <= place < count <= MAX_PARTS or report.seq < 0:
            return Verdict.RESYNC, None
        if report.seq <= self.seq or report.seq < self._gathering[0]:
            return Verdict.OLD, None
        if report.kind == "delta" and (self._incomplete or self.seq < 0 or report.seq != self.seq + 1):
            return Verdict.RESYNC, None
        gathering = (report.seq, report.kind, count)
        if gathering != self._gathering:
            self._begin(gathering)
        self.buffered_bytes += size - self._parts.get(place, (0, report))[0]
        self._parts[place] = size, report
        if self.buffered_bytes > most:
            self._begin((-1, "", 0))
            return Verdict.TOO_LARGE, None
        if len(self._parts) < count:
            return Verdict.WAIT, None
        parts = [self._parts[i][1] for i in range(count)]
        self._begin((-1, "", 0))
        self.seq, self._incomplete = report.seq, self._incomplete and report.kind != "full"
        return Verdict.COMPLETE, merge_parts(parts)

    def _begin(self, gathering: tuple[int, str, int]) -> None:
        self._gathering, self._parts, self.buffered_bytes = gathering, {}, 0


def merge_parts(parts: list[Report]) -> Report:
    """Returns one report with the content of all its parts."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return Report(
        id=first.id,
        cause=first.cause,
        session=first.session,
        seq=first.seq,
        kind=first.kind,
        as_of=max(part.as_of for part in parts),
        nodes=[node for part in parts for node in part.nodes],
        nodes_gone=[node for part in parts for node in part.nodes_gone],
        pods=[pod for part in parts for pod in part.pods],
        pods_gone=[pod for part in parts for pod in part.pods_gone],
        admissions=[admission for part in parts for admission in part.admissions],
        labels=next((part.labels for part in parts if part.labels is not None), None),
        leaving=any(part.leaving for part in parts),
    )
