"""Computes the status of a Machine and of its MachineNodePool afresh; only the times of conditions that did not change stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from moorage.model.machines import Condition, Machine

from .effects import Effect, machine_event
from .handover_records import TypeCounts

#: Conditions that are bad when they are true.
_BAD = ("CapacityShort",)


class Finding(NamedTuple):
    """One condition."""

    type: str
    status: bool
    reason: str
    message: str = ""


def usage_rows(counts: Mapping[str, TypeCounts]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "usage": {"maximum": row.maximum, "reserved": row.reserved, "used": row.used, "waiting": row.waiting},
        }
        for name, row in counts.items()
    ]


def findings(
    machine: Machine, short: Mapping[str, tuple[int, int]], nodes: Mapping[str, Condition], left_over: int = 0
) -> list[Finding]:
    """`short`: per type how many slots find no room, and of how many; `left_over`: reservations of another controller."""
    sick = [name for name, state in nodes.items() if state == "NotReady"]
    lacking = [f"{name}: {count} of {most} slots find no room" for name, (count, most) in short.items() if count]
    return [
        Finding("Ready", True, "TakingOver", f"{left_over} reservations of another controller are being replaced")
        if left_over
        else Finding("Ready", True, "Reconciled"),
        Finding("CapacityShort", bool(lacking), "CapacityShort" if lacking else "AllSlotsHeld", "; ".join(lacking)),
        Finding("NodesHealthy", not sick, "NodesNotReady" if sick else "AllNodesReady", ", ".join(sick[:10])),
    ]


def condition_events(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Effect]:
    """Returns events about what changed in the conditions of a Machine, and about what is wrong with a new one."""
    old = {c.get("type"): c for c in (before.get("status") or {}).get("conditions") or ()}
    events = []
    for found in (after.get("status") or {}).get("conditions") or ():
        known = old.get(found["type"])
        is_good = (found["status"] == "True") == (found["type"] not in _BAD)
        if known is None and is_good and found["type"] != "Ready":
            continue
        if known is None or (known.get("status"), known.get("reason")) != (found["status"], found.get("reason")):
            text = f"{found['type']} is {found['status']}: {found.get('message') or found.get('reason', '')}"
            events.append(machine_event(after, str(found.get("reason")), text, "Normal" if is_good else "Warning"))
    return events


def conditions(
    found: Sequence[Finding], before: Sequence[Mapping[str, Any]], generation: int, now: float
) -> list[dict[str, Any]]:
    """Returns the conditions; one whose status is as before keeps its time."""
    old = {c.get("type"): c for c in before}
    time = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = []
    for finding in found:
        status = "True" if finding.status else "False"
        known = old.get(finding.type)
        since = known.get("lastTransitionTime") if known is not None and known.get("status") == status else None
        made.append(
            {
                "type": finding.type,
                "status": status,
                "reason": finding.reason,
                "message": finding.message,
                "observedGeneration": generation,
                "lastTransitionTime": since or time,
            }
        )
    return made
