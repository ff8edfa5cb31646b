"""The combinations of optional needs that scores and assignments try, in the same order, in every cluster alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moorage.model.shapes import Shape

from .cluster_fit import MAX_COMBINED, by_weight

#: An optional need: the number of its shape, and its index there.
Need = tuple[int, int]


def needs_by_weight(shapes: Sequence[Shape]) -> list[Need]:
    """Returns the optional needs of all shapes, the heaviest first."""
    ranked = [
        (-s.optional[i].weight, number, rank, i)
        for number, s in enumerate(shapes)
        for rank, i in enumerate(by_weight(s))
    ]
    return [(number, i) for _, number, _, i in sorted(ranked)]


def combinations(shapes: Sequence[Shape]) -> list[tuple[Need, ...]]:
    """Returns all subsets of the heaviest needs, and all of these together with the heaviest others. The largest weight comes
    first, of equal ones the one with the heavier needs. The last is empty."""
    order = needs_by_weight(shapes)
    combined = order[:MAX_COMBINED]
    longer = [tuple(order[:length]) for length in range(len(order), len(combined), -1)]
    subsets = [
        tuple(need for rank, need in enumerate(combined) if subset >> rank & 1) for subset in range(1 << len(combined))
    ]

    def preference(needs: tuple[Need, ...]) -> tuple[int, list[int]]:
        return -sum(shapes[n].optional[i].weight for n, i in needs), [order.index(need) for need in needs]

    return [*longer, *sorted(subsets, key=preference)]


def grants_of(shape: Shape, granted: Iterable[int]) -> tuple[int, int]:
    """Returns `grants` and `further` of a cluster that can be granted these needs of the shape, and no more."""
    chosen, order = set(granted), by_weight(shape)
    combined = order[:MAX_COMBINED]
    mask = sum(1 << rank for rank, i in enumerate(combined) if i in chosen)
    grants = sum(1 << subset for subset in range(1 << len(combined)) if subset & mask == subset)
    further = 0
    if mask == (1 << len(combined)) - 1:
        for i in order[MAX_COMBINED:]:
            if i not in chosen:
                break
            further += 1
    return grants, further
