"""`moorage check`: the health of everything, and what to do about what is not well."""

from __future__ import annotations

import os
import time
from typing import Any

from ..exit_codes import DONE, FAILED, UNREACHABLE, Failure
from ..gateway_client import Client
from ..output import Format, StateDir, show
from ..state_dir import StateDirectory, state_dir
from ..terminal import note, out, table


def check(*, output: Format = "table", state: StateDir = None) -> int:
    """Look at every process, worker, controller and cluster: 1 if anything is unhealthy, with what to do."""
    client = Client.find(state)
    endpoint = (
        None if os.environ.get("MOORAGE_URL") and state is None else StateDirectory(state_dir(state)).read_endpoint()
    )
    rows = _processes(endpoint) if endpoint else []
    try:
        health = client.call("GET", "/v1/health", timeout=5)
    except Failure as wrong:
        if wrong.code != UNREACHABLE:
            raise
        if not rows:
            raise
        rows.append(_row("gateway", client.url, "down", str(wrong), "see logs/gateway.log; `moorage up` restarts it"))
        health = {}
    rows += _workers(health, endpoint)
    rows += _controllers(health) + _clusters(health) + _groups(health)
    healthy = not any(row["state"] in ("down", "restarting", "unhealthy", "stale") for row in rows)
    if output in ("json", "yaml"):
        show({"healthy": healthy, "items": rows}, output)
    elif output == "name":
        out("\n".join(f"{row['kind']}/{row['name']}" for row in rows if row["state"] != "ok"))
    else:
        out(table(["WHAT", "NAME", "STATE", "DETAIL", "DO"], [list(row.values()) for row in rows]))
        note("everything is well" if healthy else "something is not well: see DO")
    return DONE if healthy else FAILED


def _row(kind: str, name: str, state: str, detail: str = "", do: str = "") -> dict[str, Any]:
    return {"kind": kind, "name": name, "state": state, "detail": detail, "do": do}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _processes(endpoint: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    supervisor = (endpoint["pids"].get("up") or [0])[0]
    supervised = bool(supervisor) and _alive(supervisor)
    if not supervised:
        do = "start it again with `moorage up`"
        rows.append(_row("process", "up", "down", f"process {supervisor} is gone", do))
    for worker in endpoint.get("workers", []):
        pid, log = worker["pid"], f"{endpoint.get('logs', '')}/{worker['name']}.log"
        past = ""
        if worker["restarts"]:
            ago = max(0.0, time.time() - worker["lastEnd"])
            times = "once" if worker["restarts"] == 1 else f"{worker['restarts']} times"
            past = f"restarted {times}, last {ago:.0f} s ago: {worker['lastExit']}"
        if pid and _alive(pid):
            rows.append(_row("process", worker["name"], "ok", f"pid {pid}" + (f"; {past}" if past else "")))
        elif supervised:
            rows.append(_row("process", worker["name"], "restarting", past or f"pid {pid} is gone", f"read {log}"))
        else:
            rows.append(_row("process", worker["name"], "down", f"pid {pid} is gone", "see up"))
    return rows


def _workers(health: dict[str, Any], endpoint: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What answers on the bus, against what should."""
    rows = []
    counts: dict[str, int] = {}
    for worker in health.get("workers", []):
        kind = worker["kind"]
        counts[kind] = counts.get(kind, 0) + 1
        missing = worker.get("missing", "")
        state = "ok" if worker["ok"] else "unhealthy"
        do = "" if worker["ok"] else f"it waits for: {missing or 'see its log'}"
        rows.append(
            _row("worker", kind, state, f"pid {worker.get('pid', '?')}, version {worker.get('version', '?')}", do)
        )
    if not health:
        return rows
    wanted: dict[str, int] = dict.fromkeys(health.get("expected", []), 1)
    for process in (endpoint or {}).get("workers", []):
        if process["kind"] not in ("nats", "redis", "agents"):
            wanted[process["kind"]] = sum(w["kind"] == process["kind"] for w in (endpoint or {})["workers"])
    for kind, count in wanted.items():
        if (silent := count - counts.get(kind, 0)) > 0:
            detail = "does not answer on the bus" if count == 1 else f"{silent} of {count} do not answer on the bus"
            rows.append(_row("worker", kind, "down", detail, f"read its log, or start one: moorage run {kind}"))
    return rows


def _controllers(health: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for controller in health.get("controllers", []):
        name, policy = controller["name"], controller["policy"]
        if controller["answers"]:
            rows.append(_row("controller", name, "ok", policy))
        elif policy == "required":
            do = f"start it, or: moorage controllers set {name} --policy optional"
            rows.append(_row("controller", name, "down", "required, and nobody answers: nothing is decided", do))
        else:
            rows.append(_row("controller", name, "down", f"{policy}, and nobody answers", "start it again"))
    return rows


def _clusters(health: dict[str, Any]) -> list[dict[str, Any]]:
    do = "look at its agent and its connection; a dead one: moorage delete cluster {}"
    rows = [
        _row("cluster", cluster, "stale", "no report for three periods", do.format(cluster))
        for cluster in health.get("stale", [])
    ]
    return rows + _more("cluster", "stale", health.get("staleCount", 0) - len(rows))


def _groups(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that run, or are to go, where nobody reports."""
    rows = []
    for one in health.get("away", []):
        places = [f"{c}, which is {how}" for how in ("gone", "stale") for c in one[how]]
        detail = "has claims on " + "; ".join(places[:3]) + (f"; and {len(places) - 3} more" if len(places) > 3 else "")
        do = f"bring it back, or: moorage delete cluster {(one['gone'] or one['stale'])[0]} --abandon-claims"
        rows.append(_row("group", one["group"], "unhealthy", detail, do))
    return rows + _more("group", "unhealthy", health.get("awayCount", 0) - len(rows))


def _more(kind: str, state: str, count: int) -> list[dict[str, Any]]:
    return [_row(kind, f"and {count} more", state, "not named here")] if count > 0 else []
