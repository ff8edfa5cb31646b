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

_AGAIN = 0.3
_ASK_AGAIN = 3.0


def cordon(name: Cluster, /, *, state: StateDir = None) -> int:
    """Let nothing new go to a cluster; what runs there goes on."""
    return _set(name, True, state)


def uncordon(name: Cluster, /, *, state: StateDir = None) -> int:
    """Let new things go to a cluster again."""
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
    """Cordon a cluster and move what can be moved: the new place first, then the removal.

    Parameters
    ----------
    name
        PROVIDER/NAME of the cluster.
    timeout
        How long to wait for it: 30s, 5m.
    """
    client = Client.find(state)
    end = time.monotonic() + seconds(timeout)
    _cordon(client, name, True)
    while client.get(_path(name))["state"] == "Ready" and time.monotonic() < end:
        time.sleep(0.05)
    return _move(client, name, end)


def _move(client: Client, name: str, end: float) -> int:
    """Groups are asked for again while they stand there as if nothing were: who decides may hear of the cordon late."""
    asked: dict[str, float] = {}
    stuck: dict[str, dict[str, Any]] = {}
    while True:
        left = set(_groups(client, name))
        if not left:
            out(f"{name} drained")
            return DONE
        for group in _groups(client, name, standing=True):
            why = _why(client, group) or {}
            stuck.pop(group, None)
            if why.get("pendingRevision") and group in asked:
                if why.get("pendingPhase") != "Deciding" and time.monotonic() - asked[group] > 1:
                    stuck[group] = why
            elif time.monotonic() - asked.get(group, 0.0) > _ASK_AGAIN:
                asked[group] = time.monotonic()
                _redecide(client, group)
        if left <= set(stuck):
            for group, why in sorted(stuck.items()):
                note(f"{group} stays: nowhere else to go")
                for line in reason_lines(why["reasons"]):
                    note(f"  {line}")
            return FAILED
        if time.monotonic() > end:
            note(f"still on {name}: {', '.join(sorted(left))}")
            return TIMEOUT
        time.sleep(_AGAIN)


def _redecide(client: Client, group: str) -> None:
    try:
        client.call("POST", group_path(group, "redecide"))
        note(f"{group}: decided anew")
    except Refusal as refusal:
        if refusal.status not in (404, 409):
            raise


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
