"""Shows what applying a Fleet document adds and removes, before it is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .confirm import confirm
from .documents import Document
from .gateway_client import Client, Refusal
from .placement_text import some_of
from .terminal import counted, note


class FleetChange(NamedTuple):
    added: list[str]
    removed: list[str]
    stay: int
    running: dict[str, list[str]]  # group → removed clusters that it runs on


def apply_fleet_document(
    client: Client, document: Document, *, yes: bool, dry_run: bool = False, within: float = 120.0
) -> dict[str, Any]:
    """Shows what changes, asks where groups run on clusters that go, and makes the simulated fleet equal to the document."""
    from .up.bootstrap import apply_fleet

    change = fleet_change(client, document)
    if change is not None:
        for line in _lines(change):
            note(line)
        if dry_run:
            return {"clusters": change.added, "removed": change.removed, "dryRun": True}
        if change.running:
            confirm(f"{counted(len(change.running), 'group')} run on clusters that are removed", yes=yes)
    return apply_fleet(client, document, within)


def fleet_change(client: Client, document: Document) -> FleetChange | None:
    """Compares names of clusters. Returns None if the document is not valid, or if no simulator answers: then applying it
    says why."""
    names = _names(document.body)
    if names is None:
        return None
    try:
        current = {item["cluster"] for item in client.items("/v1/sim/clusters")}
    except Refusal:
        return None
    wanted = set(names)
    removed = sorted(current - wanted)
    return FleetChange(
        [name for name in names if name not in current],
        removed,
        len(current & wanted),
        _groups_on(client, set(removed)) if removed else {},
    )


def _names(body: dict[str, Any]) -> list[str] | None:
    from moorage.model.problems import Refused
    from moorage.sim.core.fleet_documents import cluster_names, decode

    try:
        return list(cluster_names(decode(body)))
    except Refused:
        return None


def _groups_on(client: Client, clusters: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in client.items("/v1/groups", limit="1000"):
        used = {cluster for app in item.get("apps", {}).values() for cluster in app.get("clusters", [])}
        if used & clusters:
            found[item["group"]] = sorted(used & clusters)
    return found


def _lines(change: FleetChange) -> Iterable[str]:
    if not change.added and not change.removed:
        return
    yield f"fleet: {len(change.added)} added, {len(change.removed)} removed, {change.stay} stay"
    for verb, names in (("added", change.added), ("removed", change.removed)):
        if names:
            yield f"  {verb}: {some_of(names, 5)}"
    for group, clusters in _first(change.running):
        yield f"  {group} runs on {some_of(clusters)}, which goes"
    if len(change.running) > _GROUPS:
        yield f"  and {len(change.running) - _GROUPS} more groups"


_GROUPS = 10


def _first(running: dict[str, list[str]]) -> Sequence[tuple[str, list[str]]]:
    return sorted(running.items())[:_GROUPS]
