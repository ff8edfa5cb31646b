"""Assigns all pods of all apps to the nodes of one cluster jointly: the exact answer behind every claim.

An assignment always fits. The search is complete for up to 8 pods on 16 nodes and bounded beyond; then solutions that were
found elsewhere are used. Optional needs are granted to all pods of an object or to none: the six heaviest in the best
combination that fits, the others the heaviest first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from moorage.model.claims import Slot
from moorage.model.shapes import Shape

from .budget import BudgetExceeded
from .cluster_fit import unsupported_reason
from .cluster_nodes import MAX_STEPS, Assigned, ClusterNodes, Unassigned, pods_of
from .combinations import Need, combinations, needs_by_weight
from .packing import Packed, PackingSolutions
from .pod_rules import compile_rules
from .protocols import Ids, Rows


def keeps_rules(
    rows: Rows,
    where: Ids,
    shapes: Sequence[Shape],
    kept: Sequence[Sequence[Slot]],
    new: Sequence[Sequence[Slot]],
) -> bool:
    """Returns whether new slots keep the rules of pods about each other, beside those that stay."""
    if not any(shape.rules for shape in shapes):
        return True
    rules, _ = compile_rules(rows, where, shapes, pods_of(kept, rows, where), [], as_resources=False)
    return rules.holds(pods_of(new, rows, where))


def assign(
    rows: Rows,
    where: Ids,
    shapes: Sequence[Shape],
    *,
    kept: Sequence[Sequence[Slot]] | None = None,
    steps: int = MAX_STEPS,
    solutions: PackingSolutions | None = None,
    taken: Mapping[int, Mapping[str, int]] | None = None,
) -> Assigned | Unassigned:
    """Assigns all pods of `shapes` to the rows `where` of one cluster. `kept` has the slots that pods of each shape have
    there already, for the rules of pods about each other. `solutions` has the answers to hard problems, and learns which
    ones are missing. `taken`: by row, what is not free any more."""
    for number, shape in enumerate(shapes):
        reason = unsupported_reason(shape)
        if reason:
            return Unassigned("Unsupported", number, message=reason)
    cluster = ClusterNodes(rows, where, shapes, taken or {}, kept)
    granted: list[list[int]] = [[] for _ in shapes]
    order = needs_by_weight(shapes)
    if order:
        everything = [list(range(len(s.optional))) for s in shapes]
        all_granted = _try_pack(cluster, everything, 0) if cluster.may_hold(everything) else None
        if all_granted is not None:
            return cluster.assignment(all_granted, everything)
    if not order and solutions is not None and (chosen := cluster.chosen(solutions)) is not None:
        return cluster.assignment(chosen, granted)
    try:
        packed = cluster.pack(granted, steps, solutions)
    except BudgetExceeded as bound:
        gave_up = f"gave up after {bound.seconds * 1e3:.0f} ms; it may fit" if bound.seconds else ""
        return cluster.failure(Unassigned("SearchBound", 0, message=gave_up))
    if isinstance(packed, int):
        return cluster.failure(Unassigned("PackingFails", packed))
    if order:
        packed, granted = _best_grants(cluster, packed, order, steps)
    return cluster.assignment(packed, granted)


def _best_grants(
    cluster: ClusterNodes, packed: Packed, order: Sequence[Need], steps: int
) -> tuple[Packed, list[list[int]]]:
    """Grants the heaviest combination that fits, then other needs, the heaviest first. `packed`: with mandatory needs only."""
    shapes = cluster.shapes

    def by_shape(needs: Collection[Need]) -> list[list[int]]:
        return [[i for n, i in needs if n == number] for number in range(len(shapes))]

    chosen: tuple[Need, ...] = ()
    for needs in combinations(shapes)[:-1]:
        if not cluster.may_hold(by_shape(needs)):
            continue
        found = _try_pack(cluster, by_shape(needs), steps)
        if found is not None:
            packed, chosen = found, needs
            break
    for need in order:
        if need not in chosen and cluster.may_hold(by_shape([*chosen, need])):
            found = _try_pack(cluster, by_shape([*chosen, need]), steps)
            if found is not None:
                packed, chosen = found, (*chosen, need)
    return packed, by_shape(chosen)


def _try_pack(cluster: ClusterNodes, granted: Sequence[Sequence[int]], steps: int) -> Packed | None:
    """Packs with these optional needs granted. None where the search fails or is cut off: optional needs are granted
    only when proven to fit."""
    try:
        packed = cluster.pack(granted, steps)
    except BudgetExceeded:
        return None
    return None if isinstance(packed, int) else packed
