"""One source of reports: its session, its sequence and the parts that have come. Nothing is applied that has a gap before
it or a part missing, and no more is kept than a large cluster needs to say."""

from __future__ import annotations

from enum import Enum

from moorage.model.reports import Report

MAX_PARTS = 10_000
#: The parts of one report together, as they came.
MAX_BYTES = 256 << 20


class Verdict(Enum):
    RESYNC = "resync"  # a gap: only a full report helps
    OLD = "old"  # said before
    WAIT = "wait"  # more parts are to come
    WHOLE = "whole"
    LARGE = "large"  # more than anybody keeps


class ReportSession:
    def __init__(self, name: str, session: str, now: float, period: float) -> None:
        self.name = name
        self.session = session
        self.heard = now
        self.period = period  # as it was last told
        self.seq = -1
        self.gathered = 0  # bytes of the parts that are here
        self._lost = False
        self._parts: dict[int, tuple[int, Report]] = {}
        self._gathering: tuple[int, str, int] = (-1, "", 0)

    def lose(self) -> None:
        """Of what it said something is not kept: it is to say it all again."""
        self._lost = True

    def accept(self, report: Report, size: int = 0, most: int = MAX_BYTES) -> tuple[Verdict, Report | None]:
        """The whole report once its last part is here. `size`: of this part; `most`: of all of them."""
        place, count = report.part
        if not 0 <= place < count <= MAX_PARTS or report.seq < 0:
            return Verdict.RESYNC, None
        if report.seq <= self.seq or report.seq < self._gathering[0]:
            return Verdict.OLD, None
        if report.kind == "delta" and (self._lost or self.seq < 0 or report.seq != self.seq + 1):
            return Verdict.RESYNC, None
        gathering = (report.seq, report.kind, count)
        if gathering != self._gathering:
            self._begin(gathering)
        self.gathered += size - self._parts.get(place, (0, report))[0]
        self._parts[place] = size, report
        if self.gathered > most:
            self._begin((-1, "", 0))
            return Verdict.LARGE, None
        if len(self._parts) < count:
            return Verdict.WAIT, None
        parts = [self._parts[i][1] for i in range(count)]
        self._begin((-1, "", 0))
        self.seq, self._lost = report.seq, self._lost and report.kind != "full"
        return Verdict.WHOLE, joined(parts)

    def _begin(self, gathering: tuple[int, str, int]) -> None:
        self._gathering, self._parts, self.gathered = gathering, {}, 0


def joined(parts: list[Report]) -> Report:
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
        labels=next((part.labels for part in parts if part.labels is not None), None),
        leaving=any(part.leaving for part in parts),
    )
