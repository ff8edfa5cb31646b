"""Reads what a node and the parts in it have free, by the names that amounts have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from moorage.fit.static_inside import StaticInside, consumed_entries
from moorage.fleet import Fleet
from moorage.model.claims import Claim
from moorage.model.slots import part_and_class, resource_of_part
from moorage.parts.layout import part_id
from moorage.qos.role_locks import ROLE_LOCK, is_mixed


def free_of(fleet: Fleet, row: int, name: str) -> int | None:
    """Returns what a node has free of a resource or of a part's class, also in the parts of which that is taken; None if no
    node ever had the resource, or the part is gone."""
    of_part = part_and_class(name)
    found = unshared_of(fleet, row, name)
    if of_part is None or found is None:
        return found
    _, layout = fleet.inside(row)
    part = layout.parts[layout.at[fleet.path_of(row, of_part[0], layout)]]
    for consumed, amount in consumed_entries(layout, part, of_part[1]):
        at, resource = layout.entries[consumed]
        above = unshared_of(
            fleet, row, resource_of_part(part_id(fleet.node_name(row), layout.parts[at].path), resource)
        )
        if above is not None and amount:
            found = min(found, above // amount)
    return found


def unshared_of(fleet: Fleet, row: int, name: str) -> int | None:
    """Returns what a node or the part itself has free, whatever it takes of other parts; None as `free_of`."""
    of_part = part_and_class(name)
    if of_part is None:
        column = fleet.free(name)
        return None if column is None else int(column[row])
    first, layout = fleet.inside(row)
    part, kind = of_part
    entry = layout.entry_at.get((fleet.path_of(row, part, layout), kind))
    if entry is None:
        return None
    columns, cid = fleet.parts.classes[kind], int(fleet.cluster[row])
    at = columns.position(cid, first + layout.entries[entry].part)
    assert at is not None  # each entry of a layout has a position
    free = int(columns.capacity[at] - columns.used[at] - columns.claimed[at])
    for number, each in StaticInside.of(layout).consumers.get(entry, {}).items():
        of_other, resource = layout.entries[number]
        other = fleet.parts.classes[resource]
        at_other = other.position(cid, first + of_other)
        assert at_other is not None  # each entry of a layout has a position
        free -= each * int(other.claimed[at_other])
    if kind == ROLE_LOCK and is_mixed(int(columns.capacity[at]) - free):
        return -1  # pods of roles that do not share would be together
    return free


def free_in_common(fleet: Fleet, cid: int, name: str, *, itself: bool = False) -> int | None:
    """Returns what a part that several nodes reach has free of a class, also in the parts of which that is taken, unless it is to be
    of the part `itself`; None if it is gone."""
    part, kind = part_and_class(name) or (name, "")
    rows, columns = _reaching(fleet, cid, part), fleet.parts.classes.get(kind)
    if columns is None or not len(rows):
        return None
    free = (unshared_of if itself else free_of)(fleet, int(fleet.parts.node[rows[0]]), name)
    _, at = columns.having(cid, rows)
    if free is None or not len(at):
        return None
    # The reports of the nodes may differ for a moment.
    return min(free, int((columns.capacity[at] - columns.used[at] - columns.claimed[at]).min()))


def is_reached(fleet: Fleet, cid: int, name: str) -> bool:
    """Returns whether a usable node reaches the part that an amount is of."""
    part, _ = part_and_class(name) or (name, "")
    return bool(fleet.usable[fleet.parts.node[_reaching(fleet, cid, part)]].any())


def _reaching(fleet: Fleet, cid: int, part: str) -> NDArray[np.int64]:
    rows = fleet.parts.reaching(cid, part)
    return rows if len(rows) else fleet.rows_of_part(cid, part)


def unclaimed_of(fleet: Fleet, row: int, name: str) -> int | None:
    """Returns what a part of a node would have free if no slot had any of it; None if it is gone."""
    of_part, cid = part_and_class(name), int(fleet.cluster[row])
    part = None if of_part is None else fleet.part_row(row, of_part[0])
    columns = None if of_part is None else fleet.parts.classes.get(of_part[1])
    at = None if part is None or columns is None else columns.position(cid, part)
    if at is None or columns is None or of_part is None:
        return None
    free = int(columns.capacity[at] - columns.used[at])
    return free - _taken_in_common(fleet, row, *of_part) if fleet.parts.claimed_in_common(cid) else free


def _taken_in_common(fleet: Fleet, row: int, ident: str, kind: str) -> int:
    """Returns what is taken of a part of a node for nobody on a node, also through devices that take of it."""
    held, (_, layout) = fleet.parts.claimed_in_common(int(fleet.cluster[row])), fleet.inside(row)
    found = held.get((ident, kind), 0)
    entry = layout.entry_at.get((fleet.path_of(row, ident, layout), kind), -1)
    for number, each in StaticInside.of(layout).consumers.get(entry, {}).items():
        at, name = layout.entries[number]
        found += each * held.get((part_id(fleet.node_name(row), layout.parts[at].path), name), 0)
    return found


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
