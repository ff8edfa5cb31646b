"""Keeps to devices that pods can be held to. Of devices that no selector tells apart though they take of other counters, like cards
and their halves without names of their own, the scheduler gives a pod the first one that fits. So pods are given what it will give
them, which may look like what other pods of their claim have; where that leaves too little for some of them, they do not fit together.
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
    looks: dict[int, set[int]] = {}
    for i in sorted(devices):
        looks.setdefault(_number(tree, i), set()).add(i)
    of_others = {id(problem): looks.keys() & problem.alike for problem in problems}
    groups = [parts for number, parts in looks.items() if number and _differ(tree, parts)]
    first = find(())
    if first is None or not (groups or any(of_others.values())):
        return first
    alone = devices.difference(*groups)
    sets = [*groups, *({i} for i in sorted(alone) if tree.parts[i].consumes)]
    for out in islice(_fewest_first(sets), _TRIED):
        found = find(out) if out else first
        if found is None:
            continue
        selected = {kind: set[int]().union(*(looks[number] for number in of)) for kind, of in of_others.items()}
        for problem, (_, choice) in zip(problems, found, strict=True):
            for slot, k in zip(problem.slots, choice, strict=True):
                if slot.device and slot.parts[k] != NO_DEVICE:
                    number = _number(tree, slot.parts[k])
                    selected[id(problem)] |= looks[number] if number else {slot.parts[k]}
        given = give([devices - selected[id(problem)] for problem in problems])
        if given is not None:
            return given
    return None


def _number(tree: NodeTree, part: int) -> int:
    return tree.table.devices[tree.parts[part].device].alike


def _differ(tree: NodeTree, parts: Collection[int]) -> bool:
    """Returns whether these parts take of different counters."""
    first = tree.parts[next(iter(parts))].consumes
    return any(tree.parts[i].consumes != first for i in parts)


def _fewest_first(sets: Sequence[Collection[int]]) -> Iterator[set[int]]:
    """Yields the unions of some of these sets, those of fewer ones first."""
    for size in range(len(sets) + 1):
        for some in combinations(sets, size):
            yield set[int]().union(*some)
