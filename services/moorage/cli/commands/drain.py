"""`moorage cluster cordon`, `uncordon` and `drain`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter

from ..confirm import confirm
from ..durations import seconds
from ..exit_codes import DONE, FAILED, TIMEOUT
from ..gateway_client import Client, Refusal, group_path, path
from ..names import cluster_parts
from ..output import StateDir, Yes
from ..placement_text import reason_lines, some_of
from ..terminal import counted, note, out
from .completion import Cluster

_POLL_SECONDS = 0.3
_REQUEST_AGAIN_SECONDS = 3.0
#: Groups that are listed before they move.
_PREVIEWED = 10


def cordon(name: Cluster, /, *, state: StateDir = None) -> int:
    """Mark a cluster as unschedulable.

    Running groups stay.
    """
    return _set(name, True, state)


def uncordon(name: Cluster, /, *, state: StateDir = None) -> int:
    """Mark a cluster as schedulable."""
    return _set(name, False, state)


def _set(name: str, cordoned: bool, state: Any) -> int:
    _cordon(Client.find(state), name, cordoned)
    out(f"{name} {'cordoned' if cordoned else 'uncordoned'}")
    return DONE


def _cordon(client: Client, name: str, cordoned: bool) -> None:
    client.call("PATCH", _path(name), body={"cordoned": cordoned})


def _path(name: str) -> str:
    return path("clusters", *cluster_parts(name))


def drain(
    name: Cluster,
    /,
    *,
    timeout: str = "5m",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Yes = False,
    state: StateDir = None,
) -> int:
    """Cordon a cluster and move its groups to other clusters.

    Shows what moves, and asks if data in volumes stays behind. A group runs on its new cluster before it is removed from this
    one. Exits with 1 if no other cluster fits a group.

    Parameters
    ----------
    timeout
        Maximum time to wait, for example 30s or 5m.
    dry_run
        Only show what moves.
    """
    within = seconds(timeout)
    client = Client.find(state)
    claims = client.get(_path(name))["claims"]
    lost = _preview(client, name, [claim for claim in claims if not claim["withdrawn"]])
    if dry_run:
        return DONE
    if lost:
        confirm(f"data in volumes of {some_of(lost)} stays on {name}", yes=yes)
    end = time.monotonic() + within
    _cordon(client, name, True)
    while client.get(_path(name))["state"] == "Ready" and time.monotonic() < end:
        time.sleep(0.05)
    return _move(client, name, end)


def _preview(client: Client, name: str, claims: list[dict[str, Any]]) -> list[str]:
    """Prints which groups move, and returns the objects whose volumes stay behind."""
    groups: dict[str, dict[str, list[str]]] = {}
    for claim in claims:
        groups.setdefault(claim["group"], {}).setdefault(claim["app"], []).append(claim["object"])
    note(f"{name}: {counted(len(groups), 'group')} to move")
    for number, (group, apps) in enumerate(sorted(groups.items())):
        if number == _PREVIEWED:
            note(f"  and {len(groups) - number} more groups")
            break
        others = _other_clusters(client, group, name)
        for app, objects in apps.items():
            note(
                f"  {group}  {app}: {some_of([o for o in objects if o]) or 'no pods'}; {others.get(app, '')}".rstrip(
                    "; "
                )
            )
    return [found for group, apps in groups.items() for found in _with_volumes(client, group, apps)]


def _other_clusters(client: Client, group: str, name: str) -> dict[str, str]:
    """Says by app how many other clusters qualify now. Whether all pods fit there together is decided when the group moves."""
    try:
        merged = client.get(group_path(group, "candidates"), names="1000")["merged"]
        running = client.get(group_path(group))["apps"]
    except Refusal:
        return {}
    found = {}
    for app, sets in merged.items():
        here = {name, *running.get(app, {}).get("clusters", [])}
        listed = [cluster for one in sets for cluster in one["clusters"] if cluster not in here]
        if any(one["mode"] == "deny" for one in sets):
            found[app] = "most other clusters qualify"
        else:
            count = len(listed) + sum(one.get("more", 0) for one in sets)
            found[app] = (
                "no other cluster qualifies now"
                if not count
                else (f"{counted(count, 'other cluster')} {'qualifies' if count == 1 else 'qualify'}")
            )
    return found


def _with_volumes(client: Client, group: str, apps: Iterable[str]) -> Iterable[str]:
    """Yields the objects of these apps that keep data in volumes of the cluster."""
    project, name, *rest = group.split("/")
    if rest != ["v1", "default"]:
        return
    try:
        document = client.get(path("applications", project, name))
    except Refusal:
        return
    for app in document["spec"].get("apps", []):
        for manifest in app.get("manifests", []) if app.get("name") in apps else ():
            if _keeps_data(manifest):
                yield f"{name}: {manifest['kind']}/{manifest['metadata']['name']}"


def _keeps_data(manifest: dict[str, Any]) -> bool:
    """Returns whether an object claims storage or keeps files of a node."""
    if manifest.get("kind") == "PersistentVolumeClaim":
        return True
    spec = manifest.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or spec
    volumes = template.get("volumes") if isinstance(template, dict) else None
    on_node = any("hostPath" in volume for volume in volumes or () if isinstance(volume, dict))
    return bool(spec.get("volumeClaimTemplates")) or on_node


def _move(client: Client, name: str, end: float) -> int:
    """Requests new decisions for all groups on the cluster until they have moved. Requests are repeated, because a merger
    that has not seen the cordon yet decides for the same cluster again."""
    requested: dict[str, float] = {}
    stuck: dict[str, dict[str, Any]] = {}
    left: set[str] = set()
    while True:
        before, left = left, set(_groups(client, name))
        for group in sorted(before - left):
            _print_move(client, group, name)
        if not left:
            out(f"{name} drained")
            return DONE
        for group in _groups(client, name, standing=True):
            why = _why(client, group) or {}
            stuck.pop(group, None)
            if why.get("pendingRevision") and group in requested:
                if why.get("pendingPhase") != "Deciding" and time.monotonic() - requested[group] > 1:
                    stuck[group] = why
            elif time.monotonic() - requested.get(group, 0.0) > _REQUEST_AGAIN_SECONDS:
                requested[group] = time.monotonic()
                _redecide(client, group)
        if left <= set(stuck):
            for group, why in sorted(stuck.items()):
                note(f"{group} not moved: no other cluster fits")
                for line in reason_lines(why["reasons"]):
                    note(f"  {line}")
            return FAILED
        if time.monotonic() > end:
            note(f"timed out; still on {name}: {', '.join(sorted(left))}")
            return TIMEOUT
        time.sleep(_POLL_SECONDS)


def _redecide(client: Client, group: str) -> None:
    try:
        client.call("POST", group_path(group, "redecide"))
    except Refusal as refusal:
        if refusal.status not in (404, 409):
            raise


def _print_move(client: Client, group: str, name: str) -> None:
    if why := _why(client, group):
        clusters = dict.fromkeys(cluster for app in why.get("apps", {}).values() for cluster in app.get("clusters", []))
        note(f"{group} moved from {name} to {', '.join(clusters)}" if clusters else f"{group} left {name}")


def _groups(client: Client, name: str, *, standing: bool = False) -> list[str]:
    claims = client.get(_path(name))["claims"]
    return sorted({claim["group"] for claim in claims if not (standing and claim["withdrawn"])})


def _why(client: Client, group: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get(group_path(group, "why"))
    except Refusal as refusal:
        if refusal.status == 404:
            return None
        raise
    return found
