"""Reads what a node and the parts in it have free, by the names that amounts have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moorage.fit.inside import StaticInside
from moorage.fleet import Fleet
from moorage.model.claims import Claim
from moorage.model.slots import part_and_class


def free_of(fleet: Fleet, row: int, name: str) -> int | None:
    """Returns what a node has free of a resource or of a part's class; None if no node ever had the resource, or the part is
    gone."""
    of_part = part_and_class(name)
    if of_part is None:
        column = fleet.free(name)
        return None if column is None else int(column[row])
    first, layout = fleet.inside(row)
    part, kind = of_part
    entry = layout.entry_at.get((part.removeprefix(fleet.node_name(row)), kind))
    if entry is None:
        return None
    columns, cid = fleet.parts.classes[kind], int(fleet.cluster[row])

    def position(number: int) -> int:
        at = columns.position(cid, first + layout.entries[number].part)
        assert at is not None  # each entry of a layout has a position
        return at

    at = position(entry)
    free = int(columns.capacity[at] - columns.used[at] - columns.claimed[at])
    below = StaticInside.of(layout).consumers.get(entry, ())
    return free - sum(int(columns.claimed[position(number)]) for number in below)


def unclaimed_of(fleet: Fleet, row: int, name: str) -> int | None:
    """Returns what a part of a node would have free if nothing of it were claimed; None if it is gone."""
    of_part = part_and_class(name)
    part = None if of_part is None else fleet.part_row(row, of_part[0])
    columns = None if of_part is None else fleet.parts.classes.get(of_part[1])
    at = None if part is None or columns is None else columns.position(int(fleet.cluster[row]), part)
    return None if at is None or columns is None else int(columns.capacity[at] - columns.used[at])


def gone_parts(claims: Iterable[Claim], fleet: Fleet) -> list[str]:
    """Returns the parts that slots name and that their nodes do not report any more."""
    gone: set[str] = set()
    for claim in claims:
        cid = fleet.ids.get(claim.cluster)
        for slot in claim.slots if cid is not None else ():
            row = fleet.row_of(cid, slot.node) if slot.parts and cid is not None else None
            if row is not None:
                gone.update(part for part in slot.parts if fleet.part_row(row, part) is None)
    return sorted(gone)


def of_node(amounts: Mapping[str, int]) -> dict[str, int]:
    """Returns the amounts of the node itself among these."""
    return {name: amount for name, amount in amounts.items() if part_and_class(name) is None}
