"""Tells whether a kubelet admits all of a set of pods, in whatever order they arrive.

Equal pods are counted exactly. Pods that differ leave gaps that depend on their order. For them a sufficient condition is
tested: wherever the others are, they cannot fill all zones that one of them could take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import gcd

from .kubelet import Alignment, Amounts, Kubelet, Step, TopologyManager, ZoneAmounts, fewest_zones_for, is_memory

#: The steps of a search for pods that fill zones. A search that needs more ends with "they might".
SEARCH_STEPS = 5000


def can_hold(manager: TopologyManager, zones: Sequence[ZoneAmounts], pods: Mapping[Alignment, int]) -> bool:
    """Tells whether all these pods are admitted. `zones`: what is free of each, lowest zone first, not counting `pods`.
    `pods`: those to come, and those that are there but that the report of the zones does not count yet."""
    asked = {steps: count for steps, count in pods.items() if steps and count > 0}
    if not asked or not manager.rejects:
        return True
    if len(asked) == 1:
        [(steps, count)] = asked.items()
        return most_equal_pods(manager, zones, steps, count) == count
    free = [zone.free for zone in _kubelet(manager, zones).zones]
    if manager.policy == "restricted":
        widths = [_width(zones, step) for steps in asked for step in steps]
        if None in widths:
            return False
        if any(width != 1 for width in widths):
            return _sets_hold_everything(zones, free, asked)
    return _zones_hold_everything(free, asked) or _others_cannot_fill(free, asked)


def most_equal_pods(manager: TopologyManager, zones: Sequence[ZoneAmounts], pod: Alignment, limit: int) -> int:
    """Returns how many of these equal pods are admitted one after the other, up to `limit`."""
    if not pod or not manager.rejects:
        return limit
    kubelet = _kubelet(manager, zones)
    if len(pod) == 1 and (manager.policy == "single-numa-node" or _width(zones, pod[0]) == 1):
        amounts = pod[0].amounts
        return min(limit, sum(min(zone.free.get(n, 0) // a for n, a in amounts) for zone in kubelet.zones))
    return next((count for count in range(limit) if kubelet.admit(pod) is None), limit)


def _kubelet(manager: TopologyManager, zones: Sequence[ZoneAmounts]) -> Kubelet:
    """Returns the node as reported. Of memory in use it is not known whether it spans zones; mostly it does not."""
    kubelet = Kubelet(manager, zones)
    for i, zone in enumerate(kubelet.zones):
        if any(zone.free[name] < zone.total[name] for name in zone.total if is_memory(name)):
            zone.users, zone.group = 1, 1 << i
    return kubelet


def _width(zones: Sequence[ZoneAmounts], step: Step) -> int | None:
    """Returns the number of zones that a restricted node gives a step; None: it gives none, because its classes differ."""
    totals = [zone.total for zone in zones]
    memory = {name: amount for name, amount in step.amounts if is_memory(name)}
    together = [{name: amount} for name, amount in step.amounts if name not in memory] + ([memory] if memory else [])
    widths = {fewest_zones_for(totals, amounts) for amounts in together}
    return widths.pop() if len(widths) == 1 else None


def _total(pods: Mapping[Alignment, int]) -> Counter[str]:
    """Adds up the pods, as if nothing of an init container were used again."""
    total: Counter[str] = Counter()
    for steps, count in pods.items():
        for step in steps:
            for name, amount in step.amounts:
                total[name] += count * amount
    return total


def _fits(free: Amounts, amounts: Sequence[tuple[str, int]]) -> bool:
    return all(free.get(name, 0) >= amount for name, amount in amounts)


def _zones_hold_everything(free: Sequence[Amounts], pods: Mapping[Alignment, int]) -> bool:
    """Tells whether each zone holds all the pods, or is so full that it is never chosen."""
    everything = tuple(_total(pods).items())
    holding = [_fits(zone, everything) for zone in free]
    return any(holding) and not any(
        _fits(zone, step.amounts)
        for zone, holds in zip(free, holding, strict=True)
        if not holds
        for steps in pods
        for step in steps
    )


def _sets_hold_everything(zones: Sequence[ZoneAmounts], free: Sequence[Amounts], pods: Mapping[Alignment, int]) -> bool:
    """Tells whether each step has a set of zones with room for it beside everything else. Memory that spans zones excludes
    other memory there, and what an init container holds binds its pod to zones: then all must span all zones."""
    total = _total(pods)
    steps = {step for pod in pods for step in pod}
    spanning = any(
        (_width(zones, step) != 1 and any(is_memory(name) for name, _ in step.amounts)) or step.reusable
        for step in steps
    )
    if spanning and (
        any(_width(zones, step) != len(zones) for step in steps)
        or any(zone.total[n] > free[i].get(n, 0) for i, zone in enumerate(zones) for n in zone.total if is_memory(n))
    ):
        return False
    return all(
        any(
            all(sum(zone.get(name, 0) for zone in chosen) >= total[name] for name, _ in step.amounts)
            for chosen in combinations(free, _width(zones, step) or 1)
        )
        for step in steps
    )


def _others_cannot_fill(free: Sequence[Amounts], pods: Mapping[Alignment, int]) -> bool:
    """Tells whether each pod finds a zone wherever the others are."""
    items: Counter[tuple[tuple[str, int], ...]] = Counter()
    for steps, count in pods.items():
        independent = _independent(steps)
        if independent is None:
            return False
        for item in independent:
            items[item] += count
    classes = sorted({name for item in items for name, _ in item})
    search = _FillSearch([[zone.get(name, 0) for name in classes] for zone in free])
    columns = {item: tuple(dict(item).get(name, 0) for name in classes) for item in items}
    return all(
        not search.can_fill(columns[item], {columns[other]: n - (other == item) for other, n in items.items()})
        for item in items
    )


def _independent(steps: Alignment) -> list[tuple[tuple[str, int], ...]] | None:
    """Returns amounts that may be in a zone each for itself. None: an init container may bind its pod to a zone in which
    the containers after it have no room."""
    if not any(step.reusable and any(not is_memory(name) for name, _ in step.amounts) for step in steps):
        return [step.amounts for step in steps]
    first = dict(steps[0].amounts)
    running: Counter[str] = Counter()
    for step in steps[1:]:
        if step.reusable and not _fits(first, step.amounts):
            return None
        if not step.reusable:
            running.update(dict(step.amounts))
    # The first init container takes as much as all that follows: the pod needs no more and stays where that one was.
    return [steps[0].amounts] if steps[0].reusable and _fits(first, tuple(running.items())) else None


def starting(steps: Alignment) -> Amounts:
    """Returns what an init container takes of a zone, if that may bind its pod to a zone without room for the rest."""
    if _independent(steps) is not None:
        return {}
    return next(dict(step.amounts) for step in steps if step.reusable)


class _FillSearch:
    """Searches for a way in which pods fill all zones so that another pod finds none. Columns are classes."""

    def __init__(self, free: Sequence[Sequence[int]]) -> None:
        self._free = free
        self._left = SEARCH_STEPS

    def can_fill(self, pod: tuple[int, ...], others: Mapping[tuple[int, ...], int]) -> bool:
        open_zones = [zone for zone in self._free if all(f >= a for f, a in zip(zone, pod, strict=True))]
        kinds = [kind for kind, count in others.items() if count]
        counts = tuple(others[kind] for kind in kinds)
        if self._surely_not(pod, open_zones, kinds, counts):
            return False
        self._left = SEARCH_STEPS
        failed: set[tuple[int, tuple[int, ...]]] = set()
        return self._fill(0, counts, pod, open_zones, kinds, failed)

    def _surely_not(
        self,
        pod: tuple[int, ...],
        zones: Sequence[Sequence[int]],
        kinds: Sequence[tuple[int, ...]],
        counts: Sequence[int],
    ) -> bool:
        """Compares sums: each zone must be filled in one of the classes."""
        share, usable = 0.0, set()
        units = [gcd(*(kind[c] for kind in kinds)) for c in range(len(pod))] if kinds else [0] * len(pod)
        sums = [sum(kind[c] * n for kind, n in zip(kinds, counts, strict=True)) for c in range(len(pod))]
        for zone in zones:
            least = None
            for c, (free, amount) in enumerate(zip(zone, pod, strict=True)):
                if amount and units[c]:
                    needed = ((free - amount) // units[c] + 1) * units[c] / sums[c]
                    if needed <= 1:
                        usable.add(c)
                        least = needed if least is None else min(least, needed)
            if least is None:
                return True
            share += least
        return share > len(usable) + 1e-9 if zones else False

    def _fill(
        self,
        at: int,
        counts: tuple[int, ...],
        pod: tuple[int, ...],
        zones: Sequence[Sequence[int]],
        kinds: Sequence[tuple[int, ...]],
        failed: set[tuple[int, tuple[int, ...]]],
    ) -> bool:
        if at == len(zones):
            return True
        if (at, counts) in failed:
            return False
        for left in self._fillings(zones[at], pod, kinds, counts, 0):
            if self._left <= 0 or self._fill(at + 1, left, pod, zones, kinds, failed):
                return True
        if self._left <= 0:
            return True
        failed.add((at, counts))
        return False

    def _fillings(
        self,
        free: Sequence[int],
        pod: tuple[int, ...],
        kinds: Sequence[tuple[int, ...]],
        counts: tuple[int, ...],
        first: int,
    ) -> Iterator[tuple[int, ...]]:
        """Yields what is left of the pods once some of them fill a zone. No more are put in than it takes."""
        self._left -= 1
        if any(f < a for f, a in zip(free, pod, strict=True)):
            yield counts
            return
        if self._left <= 0:
            return
        for k in range(first, len(kinds)):
            if counts[k] and all(f >= a for f, a in zip(free, kinds[k], strict=True)):
                rest = [f - a for f, a in zip(free, kinds[k], strict=True)]
                left = (*counts[:k], counts[k] - 1, *counts[k + 1 :])
                yield from self._fillings(rest, pod, kinds, left, k)
