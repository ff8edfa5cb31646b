"""Chooses the node and the devices for one request after the other. Only nodes that changed are scored again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moorage.collections import LruDict

from .algorithms import DeviceAlgorithm
from .columns import DeviceColumns, DeviceRequest, Floats, Ints, options, runs
from .mix import RequestMix
from .row_states import RowStates

#: Distinct requests whose scores are kept, and changes after which all are scored again.
_KEPT = 512
_CHANGES = 65536
_LOWEST = -1e300
#: More rows are scored once for equal ones.
_FEW = 64


class Choice(NamedTuple):
    row: int
    devices: tuple[int, ...]
    score: float


@dataclass(slots=True)
class _Scored:
    best: Floats  # by row; minus infinity where the request does not fit
    devices: Ints  # by row
    changes: int  # that are heeded


class Chooser:
    """Columns, an algorithm and the mix that it learns from."""

    def __init__(self, columns: DeviceColumns, algorithm: DeviceAlgorithm, mix: RequestMix | None = None) -> None:
        self.columns = columns
        self.mix = RequestMix() if mix is None else mix
        self._algorithm = algorithm
        self._version = self.mix.version
        self._scorer = algorithm.prepare(columns, self.mix)
        self._scored: LruDict[DeviceRequest, _Scored] = LruDict(_KEPT)
        self._changed: list[int] = []
        self._states: RowStates | None = None  # made when many rows are scored

    def choose(self, request: DeviceRequest) -> Choice | None:
        """Returns the best choice; None if the request fits nowhere."""
        scored = self._up_to_date(request)
        row = int(scored.best.argmax()) if len(scored.best) else -1
        if row < 0 or scored.best[row] == -np.inf:
            return None
        return Choice(row, tuple(scored.devices[row].tolist()), float(scored.best[row]))

    def choose_among(self, request: DeviceRequest, rows: Ints) -> Choice | None:
        """Returns the best choice on one of these rows."""
        scored = self._up_to_date(request)
        best = scored.best[rows]
        if not len(best) or best.max() == -np.inf:
            return None
        row = int(rows[best.argmax()])
        return Choice(row, tuple(scored.devices[row].tolist()), float(scored.best[row]))

    def best_by_row(self, request: DeviceRequest) -> Floats:
        """Returns the score of the best choice on each row, minus infinity where the request does not fit; read-only, and current until
        the next change."""
        return self._up_to_date(request).best

    def take(self, choice: Choice, request: DeviceRequest) -> None:
        self.columns.take(choice.row, choice.devices, request)
        self.note_change((choice.row,))

    def give_back(self, choice: Choice, request: DeviceRequest) -> None:
        self.columns.give_back(choice.row, choice.devices, request)
        self.note_change((choice.row,))

    def note_change(self, rows: Sequence[int]) -> None:
        """Makes sure that rows whose columns changed are scored again."""
        if len(self._changed) > _CHANGES:
            self._changed.clear()
            self._scored.clear()
        self._changed.extend(rows)
        if self._states is not None:
            self._states.note_change(rows)

    def _up_to_date(self, request: DeviceRequest) -> _Scored:
        if self._version != self.mix.version:
            self._version = self.mix.version
            self._scorer = self._algorithm.prepare(self.columns, self.mix)
            self._scored.clear()
        scored = self._scored.use(request)
        if scored is None:
            count = len(self.columns)
            scored = _Scored(np.full(count, -np.inf), np.zeros((count, request.devices), np.int64), len(self._changed))
            self._scored[request] = scored
            if count > _FEW:
                self._score_all(scored, request)
            else:
                self._score(scored, request, np.arange(count))
        elif scored.changes < len(self._changed):
            rows = np.unique(np.array(self._changed[scored.changes :], np.int64))
            scored.changes = len(self._changed)
            if len(rows) > len(self.columns) // 4 + _FEW:
                self._score_all(scored, request)
            else:
                self._score(scored, request, rows)
        return scored

    def _score_all(self, scored: _Scored, request: DeviceRequest) -> None:
        """Scores all rows; equal ones once."""
        if self._states is None:
            self._states = RowStates(self.columns)
        rows, of_row = self._states.representatives()
        self._score(scored, request, np.sort(rows))
        scored.best = scored.best[rows][of_row]
        scored.devices = scored.devices[rows][of_row]

    def _score(self, scored: _Scored, request: DeviceRequest, rows: Ints) -> None:
        """Scores some rows, which are ascending."""
        scored.best[rows] = -np.inf
        found = options(self.columns, request, rows, first=self._algorithm.takes_first)
        if not len(found.rows):
            return
        scores = np.nan_to_num(self._scorer(found, request), nan=_LOWEST, neginf=_LOWEST)  # what fits has a score
        starts, of_row = runs(found.rows)
        best = np.maximum.reduceat(scores, starts)
        at = np.flatnonzero(scores >= best[of_row])
        first = at[runs(of_row[at])[0]]
        scored.best[found.rows[starts]] = best
        scored.devices[found.rows[starts]] = found.devices[first]
