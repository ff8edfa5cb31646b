"""`moorage check`: shows the health of processes, workers, controllers, clusters and groups, and how to fix problems."""

from __future__ import annotations

import os
import time
from typing import Any

from ..exit_codes import DONE, FAILED, UNREACHABLE, Failure
from ..gateway_client import Client
from ..output import Format, StateDir, show
from ..state_dir import StateDirectory, state_dir
from ..table import table
from ..terminal import counted, note, out

#: Commits that a worker may be behind: those on their way.
_BEHIND = 100


def check(*, output: Format = "table", state: StateDir = None) -> int:
    """Check the health of the mesh.

    Checks every process, worker, controller, cluster and group, and says how to fix problems. Exits with 1 if there are any.
    """
    client = Client.find(state)
    endpoint = (
        None if os.environ.get("MOORAGE_URL") and state is None else StateDirectory(state_dir(state)).read_endpoint()
    )
    rows = _processes(endpoint) if endpoint else []
    try:
        health = client.call("GET", "/v1/health", timeout=5)
    except Failure as failure:
        if failure.code != UNREACHABLE or not rows:
            raise
        action = "see logs/gateway.log; `moorage up` restarts it"
        rows.append(_row("gateway", client.url, "down", str(failure), action))
        health = {}
    rows += _workers(health, endpoint)
    rows += _controllers(health) + _clusters(health) + _groups(health) + _records(health)
    problems = sum(row["state"] in ("down", "restarting", "unhealthy", "stale") for row in rows)
    healthy = not problems
    if output in ("json", "yaml"):
        show({"healthy": healthy, "items": rows}, output)
    elif output == "name":
        out("\n".join(f"{row['kind']}/{row['name']}" for row in rows if row["state"] != "ok"))
    else:
        out(table(["KIND", "NAME", "STATE", "DETAIL", "ACTION"], [list(row.values()) for row in rows]))
        note("no problems" if healthy else f"{counted(problems, 'problem')}; see ACTION")
    return DONE if healthy else FAILED


def _row(kind: str, name: str, state: str, detail: str = "", action: str = "") -> dict[str, Any]:
    return {"kind": kind, "name": name, "state": state, "detail": detail, "do": action}


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
        action = "start it again with `moorage up`"
        rows.append(_row("process", "up", "down", f"process {supervisor} has ended", action))
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
            rows.append(_row("process", worker["name"], "restarting", past or f"process {pid} has ended", f"see {log}"))
        else:
            rows.append(_row("process", worker["name"], "down", f"process {pid} has ended", "see up"))
    return rows


def _workers(health: dict[str, Any], endpoint: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Compares the workers that answer on the bus with those that are expected."""
    rows = []
    counts: dict[str, int] = {}
    for worker in health.get("workers", []):
        kind = worker["kind"]
        counts[kind] = counts.get(kind, 0) + 1
        missing = worker.get("missing", "")
        state = "ok" if worker["ok"] else "unhealthy"
        action = "" if worker["ok"] else f"waiting for {missing}" if missing else "see its log"
        detail = f"pid {worker.get('pid', '?')}, version {worker.get('version', '?')}"
        detail += f", {role}" if (role := worker.get("role")) else ""
        if (behind := worker.get("behind", 0)) > _BEHIND:
            state, action = "unhealthy", "if it stays behind, restart it"
            detail += f", {behind} commits behind the decision log"
        rows.append(_row("worker", kind, state, detail, action))
    roles: dict[str, set[str]] = {}
    for worker in health.get("workers", []):
        if worker.get("role"):
            roles.setdefault(worker["kind"], set()).add(worker["role"])
    for kind in sorted(kind for kind, found in roles.items() if "active" not in found):
        detail = "all stand by, none is active"
        rows.append(_row("worker", kind, "unhealthy", detail, "wait some seconds; else see its log"))
    if not health:
        return rows
    expected: dict[str, int] = dict.fromkeys(health.get("expected", []), 1)
    for process in (endpoint or {}).get("workers", []):
        if process["kind"] not in ("nats", "redis", "agents"):
            expected[process["kind"]] = sum(w["kind"] == process["kind"] for w in (endpoint or {})["workers"])
    for kind, count in expected.items():
        if (silent := count - counts.get(kind, 0)) > 0:
            detail = "does not answer on the bus" if count == 1 else f"{silent} of {count} do not answer on the bus"
            rows.append(_row("worker", kind, "down", detail, f"see its log, or start one: moorage run {kind}"))
    return rows


def _controllers(health: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for controller in health.get("controllers", []):
        name, policy = controller["name"], controller["policy"]
        if controller["answers"]:
            rows.append(_row("controller", name, "ok", policy))
        elif policy == "required":
            action = f"start it, or: moorage controllers set {name} --policy optional"
            rows.append(_row("controller", name, "down", "required, but not answering: nothing is placed", action))
        else:
            rows.append(_row("controller", name, "down", f"{policy}, but not answering", "start it again"))
    return rows


def _clusters(health: dict[str, Any]) -> list[dict[str, Any]]:
    action = "check its agent and its connection; if it is lost: moorage delete cluster {}"
    rows = [
        _row("cluster", cluster, "stale", "reports are overdue", action.format(cluster))
        for cluster in health.get("stale", [])
    ]
    return rows + _more("cluster", "stale", health.get("staleCount", 0) - len(rows))


def _groups(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Lists groups with claims on clusters that are stale or no longer in the fleet."""
    rows = []
    for group in health.get("away", []):
        places = [f"{c}, which is {how}" for how in ("gone", "stale") for c in group[how]]
        detail = "has claims on " + "; ".join(places[:3]) + (f"; and {len(places) - 3} more" if len(places) > 3 else "")
        rows.append(_row("group", group["group"], "unhealthy", detail, _away_action(group)))
    return rows + _more("group", "unhealthy", health.get("awayCount", 0) - len(rows))


def _away_action(group: dict[str, Any]) -> str:
    """Advises what has not been done yet: a group that is already to be placed elsewhere needs another cluster."""
    name = group["group"]
    if group["stale"]:
        return f"bring it back, or: moorage delete cluster {group['stale'][0]} --abandon-claims"
    if group.get("state") == "InstantiateStopped":
        return f"the group is stopped; to place it again: moorage instantiate {name}"
    if group.get("pending"):
        return f"it waits for another cluster; see: moorage why {name}"
    return f"bring it back, or: moorage delete cluster {group['gone'][0]} --abandon-claims"


def _records(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Tells how far back decisions can be replayed. A gateway from before has nothing to tell."""
    records = health.get("records")
    if records is None:
        return []
    if not records["kept"]:
        action = "create their stream: moorage bus provision"
        return [_row("records", "decisions", "unhealthy", "decisions are not recorded", action)]
    detail = (
        f"since {records['since'][:19]}Z, {records['bytes'] / (1 << 20):.1f} MiB"
        if records.get("since")
        else "none yet"
    )
    lost = f"; {counted(records['lost'], 'decision')} without a record" if records["lost"] else ""
    return [_row("records", "decisions", "ok", detail + lost)]


def _more(kind: str, state: str, count: int) -> list[dict[str, Any]]:
    return [_row(kind, f"and {count} more", state, "not listed")] if count > 0 else []
