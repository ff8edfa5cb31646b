"""Lists the ways in which trees can meet a request.

Conditions are evaluated for all parts at once. Trees that may have candidates are then solved, only as many as asked, and those
that are alike together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.parsing import CAPACITY_MAX

from .alike_trees import alike
from .candidate_parts import Cells, SharedParts
from .conditions import Choice, Rows, choices_of, has_any, meets_conditions, possible_trees
from .forest import POOLS, Forest
from .request import INTERNAL, NAMELESS, Request
from .solver import Budget, Problem, Slot, Subtree, assignments_in_steps

#: Trees that are compared at a time: few at first, for most requests ask for few candidates.
_CHUNKS = (16, 128, 1024)
#: Rows are looked up one by one where they are fewer than one of so many.
_FEW = 64
#: Stands for the classes whose units take of parents, together.
_OF_PARENTS = "of parents"
#: Parts of a tree whose room is read between two steps.
_PARTS_AT_ONCE = 512
#: Choices whose parts are marked in one number.
_BITS = 62


class Candidate(NamedTuple):
    """Amounts by part (row) and class, and the parts that meet each group."""

    anchor: int
    allocations: dict[int, dict[str, int]]
    mappings: dict[str, tuple[int, ...]]


class Pattern(NamedTuple):
    """A candidate of trees that are alike. Its parts are counted from the tree's first row."""

    allocations: Mapping[int, Mapping[str, int]]
    mappings: Mapping[str, tuple[int, ...]]

    def at(self, anchor: int) -> Candidate:
        allocations = {anchor + part: dict(amounts) for part, amounts in self.allocations.items()}
        return Candidate(
            anchor, allocations, {s: tuple(anchor + p for p in parts) for s, parts in self.mappings.items()}
        )


class Round(NamedTuple):
    """A candidate each of some trees: the first rows of the trees, and the numbers of their patterns."""

    anchors: Rows
    which: NDArray[np.intp]
    patterns: Sequence[Pattern]

    def first(self, count: int) -> Round:
        return Round(self.anchors[:count], self.which[:count], self.patterns)


def candidates(
    forest: Forest, request: Request, budget: Budget, one_part_a_tree: bool = False, start: float = 0.0
) -> Iterator[Candidate]:
    """Yields candidates, one from each tree in turn, until all were seen or the budget is spent.

    `start`, from 0 to 1, tells with which of the trees to begin."""
    steps = candidates_in_steps(forest, request, budget, one_part_a_tree, start)
    return (found for found in steps if found is not None)


def candidates_in_steps(
    forest: Forest, request: Request, budget: Budget, one_part_a_tree: bool = False, start: float = 0.0
) -> Iterator[Candidate | None]:
    """Yields candidates, and None now and then: its caller may do something else in between, but not write to the forest."""
    for found in candidate_rounds(forest, request, budget, one_part_a_tree, start):
        if found is None:
            yield None
            continue
        for anchor, which in zip(found.anchors.tolist(), found.which.tolist(), strict=True):
            yield found.patterns[which].at(anchor)


def candidate_rounds(
    forest: Forest, request: Request, budget: Budget, one_part_a_tree: bool = False, start: float = 0.0
) -> Iterator[Round | None]:
    """Yields candidates of many trees at a time, otherwise as `candidates_in_steps`."""
    choices = yield from choices_of(forest, request)
    if choices is None:
        return
    serving = forest.sharing_with() if any(choice.shared for choice in choices) else {}
    anchors = yield from possible_trees(forest, request, choices, serving)
    if not len(anchors):
        return
    anchors = np.roll(anchors, -int(start * len(anchors)))
    solver = _Solver(forest, request, choices, serving, budget)
    if any(choice.shared for choice in choices):
        yield from _one_by_one(solver, anchors, one_part_a_tree)
    else:
        yield from _alike_together(solver, anchors, one_part_a_tree)


def _one_by_one(solver: _Solver, anchors: Rows, one_part_a_tree: bool) -> Iterator[Round | None]:
    """Yields rounds of one tree: what parts of other trees may serve depends on each tree."""
    seen: set[tuple[object, ...]] = set()
    only = np.zeros(1, np.intp)
    trees: Iterable[tuple[int, Iterator[Pattern | None]]]
    trees = ((anchor, solver.of_tree(anchor)) for anchor in anchors.tolist())  # made when their turn comes
    while True:
        again: list[tuple[int, Iterator[Pattern | None]]] = []
        for anchor, tree in trees:
            for pattern in tree:
                if pattern is None:
                    yield None
                    continue
                found = pattern.at(anchor)
                if one_part_a_tree and _twice_in_a_tree(solver.forest, found):
                    continue
                if solver.is_new(found, seen):
                    yield Round(np.array([anchor]), only, (pattern,))
                    again.append((anchor, tree))
                    break
            else:
                yield None
            if solver.budget.spent:
                return
        if not again:
            return
        trees = again


def _alike_together(solver: _Solver, anchors: Rows, one_part_a_tree: bool) -> Iterator[Round | None]:
    """Yields rounds of many trees, of which those that are alike have the same pattern."""
    kinds: dict[bytes, _Kind] = {}
    chunks: Iterable[tuple[Rows, NDArray[np.intp], list[_Kind]]]
    chunks = _chunks(solver, anchors, kinds, one_part_a_tree)  # made when their turn comes
    turn = 0
    while True:
        turn += 1
        again: list[tuple[Rows, NDArray[np.intp], list[_Kind]]] = []
        for trees, which, of in chunks:
            for kind in of:
                yield from kind.advance(turn)
                if solver.budget.spent:
                    return
            has = np.array([kind.pattern is not None for kind in of], np.bool_)
            if not has.all():
                trees, which = trees[has[which]], which[has[which]]
            if len(trees):
                yield Round(trees, which, [kind.pattern or _NO_PATTERN for kind in of])
                again.append((trees, which, of))
            else:
                yield None
        if not again:
            return
        chunks = again


def _chunks(
    solver: _Solver, anchors: Rows, kinds: dict[bytes, _Kind], one_part_a_tree: bool
) -> Iterator[tuple[Rows, NDArray[np.intp], list[_Kind]]]:
    """Yields some trees at a time, and their kinds."""
    begin = 0
    while begin < len(anchors):
        trees = anchors[begin : begin + (_CHUNKS[0] if not begin else _CHUNKS[1] if begin < 1024 else _CHUNKS[2])]
        begin += len(trees)
        found = alike(trees, solver.forest.leave[trees], solver.columns)
        of: list[_Kind] = []
        for key, tree in zip(found.keys, found.tree, strict=True):
            if key not in kinds:
                kinds[key] = _Kind(solver.of_tree(int(trees[tree])), one_part_a_tree)
            of.append(kinds[key])
        yield trees, found.kind, of


_NO_PATTERN = Pattern({}, {})


class _Kind:
    """The candidates of trees that are alike: `pattern` is that of the turn, None if there are no more."""

    def __init__(self, patterns: Iterator[Pattern | None], one_part: bool) -> None:
        self._patterns, self._one_part, self._turn = patterns, one_part, 0
        self.pattern: Pattern | None = None

    def advance(self, turn: int) -> Iterator[None]:
        """Finds the pattern of a turn, which is the last one or follows it."""
        if turn == self._turn:
            return
        self._turn, self.pattern = turn, None
        for pattern in self._patterns:
            if pattern is None:
                yield None
            elif not self._one_part or len(pattern.allocations) == 1:
                self.pattern = pattern
                return


class _Solver:
    """Makes the problem of one tree and translates its assignments."""

    def __init__(
        self,
        forest: Forest,
        request: Request,
        choices: list[Choice],
        serving: Mapping[int, set[int]],
        budget: Budget,
    ) -> None:
        self.forest = forest
        self.budget = budget
        self._request = request
        self._choices = choices
        self._serving = serving
        asked: dict[str, int] = {}
        for choice in choices:
            for name in choice.resources:
                pool = self._pool(name)
                asked[pool] = asked.get(pool, 0) + 1
        self._contended = {name for c in choices for name in c.resources if asked[self._pool(name)] > 1}
        taking = [name for name in self._contended if forest.classes[name].any_takes]
        self._taken_with = forest.taken_with(taking)
        number = {c.suffix: i for i, c in enumerate(choices) if c.suffix != NAMELESS}
        self._subtrees = tuple(
            Subtree(tuple(sorted(number[s] for s in r.together)), tuple(sorted(number[s] for s in r.apart)))
            for r in request.same_subtree
            if len(r.together) > 1 or r.apart
        )
        nameless = request.groups.get(NAMELESS)
        self._together = nameless.required if nameless is not None and nameless.resources else ()
        self._witness = nameless if nameless is not None and not nameless.resources else None
        self._room_by_row: dict[str, list[Rows]] = {}
        self._shared = SharedParts(forest, {row for choice in choices for row in choice.shared})

    def _pool(self, name: str) -> str:
        """Returns what stands for all classes whose units may be taken of the same amounts."""
        return _OF_PARENTS if self.forest.classes[name].any_takes else POOLS.get(name, name)

    def columns(self, rows: Rows) -> list[Rows]:
        """Returns all that matters of these rows to trees without parts of others."""
        forest = self.forest
        found: list[Rows] = []
        for number, of in enumerate({id(choice.rows): choice.rows for choice in self._choices}.values()):
            if number % _BITS == 0:
                found.append(np.zeros(len(rows), np.int64))
            at = np.minimum(of.searchsorted(rows), len(of) - 1)
            found[-1] |= (of[at] == rows).astype(np.int64) << number % _BITS
        for name, most in self._contended_amounts():
            *room, takes = self._rooms(name, most, rows)
            found += room
            if forest.classes[name].any_takes:
                found += [takes, np.where(takes > 0, rows - forest.parent[rows], 0)]
        for name in self._taken_with:
            found.append(self._rooms(name, CAPACITY_MAX, rows)[0])
        if self._subtrees:
            found.append(forest.leave[rows] - rows)
        for any_of in self._together:
            found.append(has_any(forest, any_of)[forest.trait_set[rows]].astype(np.int64))
        if self._witness is not None:
            found.append(meets_conditions(forest, self._witness, rows, spread=False).astype(np.int64))
        return found

    def _contended_amounts(self) -> list[tuple[str, int]]:
        """Returns the classes that several choices ask, with as much as they ask together."""
        asked: dict[str, int] = {}
        for choice in self._choices:
            for name, amount in choice.resources.items():
                pool = self._pool(name)
                asked[pool] = asked.get(pool, 0) + amount
        return [(name, asked[self._pool(name)]) for name in sorted(self._contended)]

    def _rooms(self, name: str, most: int, rows: Rows) -> list[Rows]:
        if name not in self._room_by_row and len(rows) * _FEW < self.forest.n:
            return self.forest.room_of(name, rows, most)
        if name not in self._room_by_row:
            self._room_by_row[name] = self.forest.room_by_row(name, most)
        return [column[rows] for column in self._room_by_row[name]]

    def of_tree(self, anchor: int) -> Iterator[Pattern | None]:
        forest = self.forest
        cells = Cells(forest)
        leave: dict[int, int] = {}
        slots: list[Slot] = []
        same: dict[object, Slot] = {}  # equal groups choose of the same lists
        for choice in self._choices:
            contended = tuple((name, n) for name, n in choice.resources.items() if name in self._contended)
            covering = bool(self._together) and choice.suffix == NAMELESS
            asked = id(choice.rows), choice.shared, contended, covering
            known = same.get(asked)
            if known is None:
                rows, shared = self._rows_in_tree(choice, anchor)
                parts = rows + [self._shared.number[row] for row in shared]
                rows += shared
                takes: list[tuple[tuple[int, int], ...]] = []
                for row in rows if contended else ():
                    takes.append(cells.taken(row, contended))
                    if not len(takes) % _PARTS_AT_ONCE:
                        yield None
                if self._subtrees:
                    leave.update(zip(parts, forest.leave[rows].tolist(), strict=True))
                    leave.update((part, self._shared.leave[part]) for part in parts[len(parts) - len(shared) :])
                known = same[asked] = Slot(parts, takes, self._covers(rows) if covering else ())
            single = choice.suffix != NAMELESS and not choice.suffix.startswith(INTERNAL)
            isolated = single and choice.suffix in self._request.isolated
            slots.append(known._replace(apart_from_others=isolated, single=single))
        if self._contended and not self._has_enough(cells):
            return
        problem = Problem(slots, cells.room, leave, self._subtrees, (1 << len(self._together)) - 1)
        for found in assignments_in_steps(problem, self.budget):
            yield None if found is None else self._pattern(anchor, found)

    def _rows_in_tree(self, choice: Choice, anchor: int) -> tuple[list[int], list[int]]:
        """Returns the parts of a choice that a tree may take: its own, and those of others that serve it."""
        end = int(self.forest.leave[anchor])
        first, last = choice.rows.searchsorted((anchor, end))
        there = [row for row in choice.shared if not anchor <= row < end and anchor in self._serving[row]]
        return choice.rows[first:last].tolist(), sorted(there, key=self._shared.number.__getitem__)

    def _covers(self, rows: list[int]) -> list[int]:
        """Returns which of the traits that the nameless group requires together each part has."""
        sets, numbers = self.forest.traits.sets, self.forest.trait_set[rows].tolist()
        return [sum(1 << b for b, any_of in enumerate(self._together) if any_of & sets[n]) for n in numbers]

    def _has_enough(self, cells: Cells) -> bool:
        """Compares, for each class that several choices ask, what is asked with what the tree has. A necessary condition."""
        have: dict[str, int] = {}
        for (_, name), cell in cells.numbers.items():
            have[name] = have.get(name, 0) + max(cells.room[cell], 0)
        need: dict[str, int] = {}
        for choice in self._choices:
            for name, amount in choice.resources.items():
                need[name] = need.get(name, 0) + amount
        return all(need.get(name, 0) <= total for name, total in have.items())

    def _pattern(self, anchor: int, found: list[int]) -> Pattern:
        allocations: dict[int, dict[str, int]] = {}
        mappings: dict[str, tuple[int, ...]] = {}
        spread = {number for choice, number in zip(self._choices, found, strict=True) if choice.suffix == NAMELESS}
        if spread:
            mappings[NAMELESS] = tuple(self._shared.rows.get(number, number) - anchor for number in sorted(spread))
        for choice, number in zip(self._choices, found, strict=True):
            part = self._shared.rows.get(number, number) - anchor
            if choice.resources:
                amounts = allocations.setdefault(part, {})
                for name, amount in choice.resources.items():
                    amounts[name] = amounts.get(name, 0) + amount
            if choice.suffix != NAMELESS:
                mappings[choice.suffix] = (part,)
        if self._witness is not None:
            mappings[NAMELESS] = (self._first_witness(anchor) - anchor,)
        return Pattern(allocations, mappings)

    def _first_witness(self, anchor: int) -> int:
        assert self._witness is not None
        rows = np.arange(anchor, int(self.forest.leave[anchor]), dtype=np.int64)
        return int(rows[meets_conditions(self.forest, self._witness, rows, spread=False)][0])

    def is_new(self, found: Candidate, seen: set[tuple[object, ...]]) -> bool:
        """Tells whether no other tree gave the same. Only a candidate with a part that serves other trees can be equal to another."""
        if not any(row in self._serving for rows in found.mappings.values() for row in rows):
            return True
        key = (
            tuple(sorted((row, *sorted(amounts.items())) for row, amounts in found.allocations.items())),
            tuple(sorted((suffix, *sorted(rows)) for suffix, rows in found.mappings.items())),
        )
        if key in seen:
            return False
        seen.add(key)
        return True


def _twice_in_a_tree(forest: Forest, found: Candidate) -> bool:
    roots = [int(forest.root[row]) for row in found.allocations]
    return len(set(roots)) < len(roots)
