"""Finds what reports change inside nodes, for the events about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.fleet import Fleet, NodeRow
from moorage.parts.inside import Layout, layout_of, part_id

#: Ids that an event lists of each kind of change; it has the number of all of them.
LISTED = 100


def part_changes(fleet: Fleet, cid: int, rows: Iterable[NodeRow], gone: Iterable[str]) -> dict[str, Any]:
    """Returns what rows that are about to be written change inside their nodes: the parts that come, go, move or have other
    amounts or conditions, by id. Nothing if all stays."""
    known = cid < fleet.size and bool(fleet.known[cid])
    places = fleet.places(cid) if known and fleet.layout is not None else {}
    changes: dict[str, list[str]] = {"added": [], "removed": [], "moved": [], "changed": []}
    for name, source in [(row.name, row.inside) for row in rows] + [(name, b"") for name in gone]:
        at = places.get(name)
        before = b"" if at is None else fleet.inside_source(at)
        if before != source:
            for change, paths in _between(layout_of(before), layout_of(source)).items():
                changes[change].extend(part_id(name, path) for path in paths)
    return {
        key: value
        for change, ids in changes.items()
        if ids
        for key, value in ((change, ids[:LISTED]), (f"{change}Count", len(ids)))
    }


def _between(before: Layout, after: Layout) -> Mapping[str, list[str]]:
    both = [path for path in after.at if path and path in before.at]
    moved = [path for path in both if _parent(before, path) != _parent(after, path)]
    return {
        "added": [path for path in after.at if path and path not in before.at],
        "removed": [path for path in before.at if path and path not in after.at],
        "moved": moved,
        "changed": [path for path in both if path not in moved and _own(before, path) != _own(after, path)],
    }


def _parent(layout: Layout, path: str) -> str:
    return layout.parts[layout.parts[layout.at[path]].parent].path


def _own(layout: Layout, path: str) -> object:
    """Returns what a part is, without its place."""
    return layout.parts[layout.at[path]]._replace(parent=0, consumes={})
