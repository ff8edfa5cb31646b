"""Keeps to devices that pods can be held to. Of devices that no selector tells apart though they take of other counters, like cards
and their halves without names of their own, the scheduler gives a pod the first one that fits. So pods are given what it will give
them; where that leaves too little for some of them, they do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations

from .device_search import NO_DEVICE
from .pod_choices import NodeTree, PodProblem

#: Sets of groups that are tried.
_TRIED = 64
Choices = list[tuple[int, list[int]]]  # by pod
#: Returns choices for all pods of which each may not have some parts; None if there are none.
Search = Callable[[Sequence[Collection[int]]], Choices | None]


def held_choices(tree: NodeTree, problems: Sequence[PodProblem], find: Search, give: Search) -> Choices | None:
    """Returns what pods get that are pinned to what `find` finds; None if not all get something, whichever groups of devices are left
    out. `give` gives one pod after the other the first that fits."""
    groups: dict[int, set[int]] = {}
    for i in {i for problem in problems for slot in problem.slots if slot.device for i in slot.parts if i != NO_DEVICE}:
        device = tree.parts[i].device
        if device >= 0:
            groups.setdefault(tree.table.devices[device].alike, set()).add(i)
    alone = groups.pop(0, set())
    for number, some in enumerate(_fewest_first(sorted(groups))):
        if number == _TRIED:
            break
        out = set[int]().union(*(groups[one] for one in some))
        found = find([out] * len(problems))
        if found is None:
            continue
        used: dict[int, set[int]] = {}  # by kind of pod
        for problem, (_, choice) in zip(problems, found, strict=True):
            parts = {slot.parts[k] for slot, k in zip(problem.slots, choice, strict=True) if slot.device}
            used.setdefault(id(problem), set()).update(parts)
        selected = {
            kind: (parts & alone).union(*(of for of in groups.values() if not parts.isdisjoint(of)))
            for kind, parts in used.items()
        }
        others = alone.union(*groups.values())
        given = give([others - selected[id(problem)] for problem in problems])
        if given is not None:
            return given
    return None


def _fewest_first(groups: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields sets of groups to leave out."""
    for size in range(len(groups) + 1):
        yield from combinations(groups, size)
