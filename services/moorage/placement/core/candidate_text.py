"""Shows allocation candidates in the form of the version, as JSON: candidates of one pattern differ in their uuids only."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.parts import Pattern, Round

from .reported_columns import cluster_of
from .reported_summaries import MANY, summaries_of_nodes
from .state import State

#: Summaries that are made between two steps of a long answer.
_SLICE = 200
#: Trees whose kept summaries are gathered between two steps.
_TREES = 2000


class CandidateText:
    """The candidates of one answer."""

    def __init__(self, state: State, version: int) -> None:
        self._state, self._version = state, version
        self.requests: list[bytes] = []  # pieces of JSON
        self._giving: list[NDArray[np.int64]] = []  # rows that give resources

    def add(self, found: Round) -> int:
        """Adds candidates, and returns how many."""
        forms = {number: _Form(found.patterns[number], self._version) for number in np.unique(found.which).tolist()}
        for number, form in forms.items():
            anchors = found.anchors[found.which == number]
            self._giving.append((anchors[:, None] + form.giving).reshape(-1))
        ids = self._state.forest.ids
        texts: list[str] = []
        for begin, end in _runs(found.which):
            form = forms[int(found.which[begin])]
            rows = (found.anchors[begin:end, None] + form.named).reshape(-1).tolist()
            texts.append(",".join([form.text] * (end - begin)) % tuple([ids[row] for row in rows]))
        if texts:
            self.requests.append(f"{',' if self.requests else ''}{','.join(texts)}".encode())
        return len(found.anchors)

    def summaries(self, asked: set[str]) -> Generator[None, None, list[bytes]]:
        """Shows every provider of every tree that gives resources; before 1.29 only those that give. `asked`: classes. Returns
        pieces of JSON."""
        forest, state = self._state.forest, self._state
        rows = np.unique(np.concatenate(self._giving)) if self._giving else np.empty(0, np.int64)
        texts: list[str] = []
        pieces: list[bytes] = []
        made = 0

        def finish() -> None:
            if texts:
                pieces.append(f"{',' if pieces else ''}{','.join(texts)}".encode())
                texts.clear()

        if self._version < 29:
            wanted = None if self._version >= 27 else asked
            for uuid in [forest.ids[row] for row in rows.tolist()]:
                texts.append(f'"{uuid}":{_json(state.summaries.of(uuid, wanted, self._version >= 17))}')
                if len(texts) == _SLICE:
                    finish()
                    yield
            finish()
            return pieces
        yield
        roots = np.unique(forest.root[rows])
        gathered = 0
        for begin, end in _runs(forest.block[roots]):
            of_block = roots[begin:end]
            found = None
            cid = cluster_of(int(forest.block[of_block[0]])) if len(of_block) >= MANY else None
            if cid is not None:
                nodes = of_block.tolist()
                found = yield from summaries_of_nodes(state.reported.columns, forest, cid, nodes)
            if found is not None:
                for start in range(0, len(found), _SLICE):
                    texts += found[start : start + _SLICE]
                    finish()
                    yield
                continue
            for root in of_block.tolist():
                known = state.summaries.kept(root)
                if known is None:
                    known = yield from state.summaries.of_tree(root, 10 * _SLICE)
                    made += int(forest.leave[root]) - root
                texts.append(known)
                gathered += 1
                if made >= _SLICE or gathered == _TREES:
                    made = gathered = 0
                    finish()
                    yield
        finish()
        return pieces


class _Form:
    """The text of a pattern, with a place for each uuid. `named` are the parts at these places, `giving` those that give
    resources, counted from the tree's first row."""

    def __init__(self, pattern: Pattern, version: int) -> None:
        named = list(pattern.allocations)
        if version >= 12:
            shown = [f'"%s":{{"resources":{_json(amounts)}}}' for amounts in pattern.allocations.values()]
            text = f'"allocations":{{{",".join(shown)}}}'
        else:
            shown = [
                f'{{"resource_provider":{{"uuid":"%s"}},"resources":{_json(amounts)}}}'
                for amounts in pattern.allocations.values()
            ]
            text = f'"allocations":[{",".join(shown)}]'
        if version >= 34:
            met = [f'"{suffix}":[{",".join([_UUID] * len(parts))}]' for suffix, parts in pattern.mappings.items()]
            text += f',"mappings":{{{",".join(met)}}}'
            named += [part for parts in pattern.mappings.values() for part in parts]
        self.text = f"{{{text}}}"
        self.named = np.array(named, np.int64)
        self.giving = np.array(list(pattern.allocations), np.int64)


_UUID = '"%s"'


def _json(amounts: Any) -> str:
    return msgspec.json.encode(amounts).decode()


def _runs(numbers: NDArray[np.signedinteger[Any]]) -> list[tuple[int, int]]:
    """Returns begin and end of the runs of equal numbers."""
    ends = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return list(zip([0, *ends], ends, strict=False)) if len(numbers) else []
