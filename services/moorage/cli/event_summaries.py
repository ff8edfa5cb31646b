"""Summarizes events in a few words, from the fields that their data has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: What happens to things inside nodes, as their events count it.
_INSIDE = ("added", "removed", "moved", "changed", "failed", "recovered", "closed", "opened")
#: Names that are listed of many.
_LISTED = 2


def summary(event: dict[str, Any]) -> str:
    data = event.get("data") or {}
    return "; ".join(_words(event.get("subject", ""), data))[:120] if isinstance(data, dict) else ""


def _words(subject: str, data: dict[str, Any]) -> Iterator[str]:
    if data.get("method") and data.get("outcome"):  # an audit event
        yield f"{data.get('who') or 'anonymous'} {data['method']} {data.get('path')} {data.get('status')}"
    if isinstance(problem := data.get("problem"), dict) and data.get("by"):  # a rejected message
        yield f"{data['by']}: {problem.get('code')} on {data.get('subject')}: {problem.get('detail')}"
    if data.get("revision"):
        yield f"revision {data['revision']}"
    if isinstance(apps := data.get("apps"), dict):
        for name, app in apps.items():
            if isinstance(app, dict) and app.get("clusters"):
                yield f"{name} on {', '.join(app['clusters'])}"
    if isinstance(reasons := data.get("reasons"), list):
        yield from dict.fromkeys(r["code"] for r in reasons if isinstance(r, dict) and "code" in r)
    if subject.startswith("moorage.events.placement.provider."):
        yield _provider(data)
    elif subject.startswith("moorage.events.placement.allocation."):
        yield _consumer(data)
    elif isinstance(data.get("kind"), str) and data.get("name"):
        yield f"{data['kind']} {data['name']}"
    elif data.get("kind") and data.get("massFailure"):
        of = f": {data['failed']} of {data['of']}" if "of" in data else ""
        yield f"mass failure of {data['kind']} {data['massFailure']}{of}"
    if isinstance(data.get("machine"), str):
        guests = data.get("guests") or []
        yield ", ".join([data["machine"], *(f"{g.get('namespace')}/{g.get('name')}" for g in guests[:_LISTED])])
    yield from _inside(data)
    if isinstance(nodes := data.get("nodes"), int):
        yield _count(nodes, "node")
    for key in ("cluster", "node", "state", "message"):
        if isinstance(text := data.get(key), str) and text:
            yield f"{key} {text}"


def _provider(data: dict[str, Any]) -> str:
    changed = f": {', '.join(data['changed'])}" if data.get("changed") else ""
    return f"{data.get('name') or data.get('provider')}{changed}"


def _consumer(data: dict[str, Any]) -> str:
    """Tells what a consumer of the Placement interface holds, by class."""
    holds: dict[str, int] = {}
    allocations = data.get("allocations") or {}
    for amounts in allocations.values():
        for name, amount in amounts.items():
            holds[name] = holds.get(name, 0) + amount
    amounts = ", ".join(f"{name} {amount}" for name, amount in sorted(holds.items()))
    held = f"{amounts} of {_count(len(allocations), 'provider')}" if holds else "nothing"
    return f"{data.get('type') or 'consumer'} of {data.get('project')}: {held}"


def _inside(data: dict[str, Any]) -> Iterator[str]:
    for change in _INSIDE:
        if isinstance(count := data.get(f"{change}Count"), int):
            names = data.get(change) or []
            more = ", …" if count > _LISTED else ""
            yield f"{count} {change}: {', '.join(names[:_LISTED])}{more}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
