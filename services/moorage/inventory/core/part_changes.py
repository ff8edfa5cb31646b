"""Finds what reports change inside nodes, for the events about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from moorage.fleet import Fleet, NodeRow
from moorage.parts.layout import Layout, layout_of, part_id

#: Ids that an event lists of each kind of change; it has the number of all of them.
LISTED = 100


class InsideChanges(NamedTuple):
    """The changes inside nodes, by id. `parts`: those that come, go, move or have other amounts or conditions; `devices`: those that
    come, go, fail (they are unhealthy or a taint ends their pods) and recover, and those that taints close to new pods and that open
    again. Both are empty if all stays."""

    parts: dict[str, Any] = {}
    devices: dict[str, Any] = {}


def part_changes(fleet: Fleet, cid: int, rows: Iterable[NodeRow], gone: Iterable[str]) -> InsideChanges:
    """Returns what rows that are about to be written change inside their nodes."""
    known = cid < fleet.size and bool(fleet.known[cid])
    places = fleet.places(cid) if known and fleet.layout is not None else {}
    changes: dict[str, list[str]] = {"added": [], "removed": [], "moved": [], "changed": []}
    kinds = ("added", "removed", "failed", "recovered", "closed", "opened")
    devices: dict[str, list[str]] = {kind: [] for kind in kinds}
    for name, source in [(row.name, row.inside) for row in rows] + [(name, b"") for name in gone]:
        at = places.get(name)
        before = b"" if at is None else fleet.inside_source(at)
        if before != source:
            old, new = layout_of(before), layout_of(source)
            for change, paths in _between(old, new).items():
                changes[change].extend(part_id(name, path) for path in paths)
            for change, paths in _devices_between(old, new).items():
                devices[change].extend(part_id(name, path) for path in paths)
    return InsideChanges(_listed(changes), _listed(devices))


def _listed(changes: Mapping[str, list[str]]) -> dict[str, Any]:
    return {
        key: value
        for change, ids in changes.items()
        if ids
        for key, value in ((change, ids[:LISTED]), (f"{change}Count", len(ids)))
    }


def _devices_between(before: Layout, after: Layout) -> Mapping[str, list[str]]:
    old, new = _devices(before), _devices(after)
    both = old.keys() & new.keys()
    return {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "failed": sorted(path for path in both if new[path].wrong > old[path].wrong),
        "recovered": sorted(path for path in both if new[path].wrong < old[path].wrong),
        "closed": sorted(path for path in both if new[path].closing > old[path].closing),
        "opened": sorted(path for path in both if new[path].closing < old[path].closing),
    }


class _Device(NamedTuple):
    """How many things are wrong with a device, and how many taints only keep new pods away."""

    wrong: int
    closing: int


def _devices(layout: Layout) -> dict[str, _Device]:
    reports, found = layout.inside.devices, {}
    for part in layout.parts:
        if part.device >= 0:
            effects = Counter(taint.effect for taint in reports[part.device].taints)
            wrong = effects["NoExecute"] + (not reports[part.device].healthy)
            found[part.path] = _Device(wrong, effects["NoSchedule"])
    return found


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
    parent = layout.parts[layout.at[path]].parent
    return layout.parts[parent].path if parent >= 0 else ""


def _own(layout: Layout, path: str) -> object:
    """Returns what a part is, without its place."""
    return layout.parts[layout.at[path]]._replace(parent=0, consumes={})
