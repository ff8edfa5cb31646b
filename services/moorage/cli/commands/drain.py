"""`moorage cluster cordon`, `uncordon` and `drain`."""

from __future__ import annotations

import time
from typing import Any

from ..durations import seconds
from ..exit_codes import DONE, FAILED, TIMEOUT
from ..gateway_client import Client, Refusal, group_path, path
from ..names import cluster_parts
from ..output import StateDir
from ..terminal import note, out
from .completion import Cluster
from .why import reason_lines

_POLL_SECONDS = 0.3
_REQUEST_AGAIN_SECONDS = 3.0


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


def drain(name: Cluster, /, *, timeout: str = "5m", state: StateDir = None) -> int:
    """Cordon a cluster and move its groups to other clusters.

    A group runs on its new cluster before it is removed from this one. Exits with 1 if no other cluster fits a group.

    Parameters
    ----------
    timeout
        Maximum time to wait, for example 30s or 5m.
    """
    client = Client.find(state)
    end = time.monotonic() + seconds(timeout)
    _cordon(client, name, True)
    while client.get(_path(name))["state"] == "Ready" and time.monotonic() < end:
        time.sleep(0.05)
    return _move(client, name, end)


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
