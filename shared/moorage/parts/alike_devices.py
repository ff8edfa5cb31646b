"""Keeps to devices that pods can be held to. Of devices that no selector tells apart though they take of other counters, like cards
and their halves without names of their own, the scheduler gives a pod the first one that fits. So pods are given what it will give
them; where that leaves too little for some of them, they do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, islice

from .device_search import NO_DEVICE
from .pod_choices import NodeTree, PodProblem

#: How often devices are left out.
_TRIED = 64
Choices = list[tuple[int, list[int]]]  # by pod
#: Finds choices for all pods where none may have these parts; None if there are none.
Find = Callable[[Collection[int]], Choices | None]
#: Gives one pod after the other its first choice, each without some parts; None if a pod has none.
Give = Callable[[Sequence[Collection[int]]], Choices | None]


def held_choices(tree: NodeTree, problems: Sequence[PodProblem], find: Find, give: Give) -> Choices | None:
    """Returns what pods get that are pinned to what is found; None if not all get something, whichever devices are left out:
    single ones, or groups of those that are alike."""
    devices = {i for problem in problems for slot in problem.slots if slot.device for i in slot.parts if i != NO_DEVICE}
    groups: dict[int, set[int]] = {}
    for i in sorted(devices):
        groups.setdefault(tree.table.devices[tree.parts[i].device].alike, set()).add(i)
    alone = groups.pop(0, set())
    first = find(())
    if first is None or not groups:
        return first
    sets = [*groups.values(), *({i} for i in sorted(alone) if tree.parts[i].consumes)]
    for out in islice(_fewest_first(sets), _TRIED):
        found = find(out) if out else first
        if found is None:
            continue
        pinned: dict[int, set[int]] = {}  # by kind of pod
        for problem, (_, choice) in zip(problems, found, strict=True):
            parts = {slot.parts[k] for slot, k in zip(problem.slots, choice, strict=True) if slot.device}
            pinned.setdefault(id(problem), set()).update(parts)
        selected = {
            kind: parts.union(*(of for of in groups.values() if not parts.isdisjoint(of)))
            for kind, parts in pinned.items()
        }
        given = give([devices - selected[id(problem)] for problem in problems])
        if given is not None:
            return given
    return None


def _fewest_first(sets: Sequence[Collection[int]]) -> Iterator[set[int]]:
    """Yields the unions of some of these sets, those of fewer ones first."""
    for size in range(len(sets) + 1):
        for some in combinations(sets, size):
            yield set[int]().union(*some)
