"""Explains a placement in text: what runs where, or how the requirements of each app narrow the fleet down.

A group takes few lines, whatever the size of the fleet: long lists are cut and say how much is missing, as in `+31`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .quantities import readable
from .table import cut, terminal_width, width_of
from .terminal import counted, paint

#: Phases in which a group has its clusters.
PLACED = ("Placed", "Deploying", "Running")

_NAMES = 3
_EVERYTHING = 1 << 30
#: Lines are not longer where something may be left out.
_WIDTH = 100
#: Reasons about single requirements. Where there is a funnel, its steps show them.
_STEPWISE = {
    "ResourceShort", "CapacityShort", "LabelMissing", "NodesUnusable", "PlacementExcludes", "ControllerExcludes",
    "ClusterStale", "ClusterCordoned", "NotEnoughClusters",
}  # fmt: skip


def why_text(found: Mapping[str, Any], *, everything: bool = False) -> str:
    most = _Limits() if not everything else _Limits(*[_EVERYTHING] * 6)
    lines = [f"{found['group']}  revision {found['revision']}  {found['state']}  {paint(found['phase'])}"]
    funnel = found.get("funnel") or {}
    if found.get("decision") or not funnel:
        lines += _placed_lines(found.get("apps", {}), most)
    if found.get("pendingRevision"):
        lines.append(f"  {_pending_text(found)}")
    lines += _funnel_lines(funnel, found.get("blocking", []), most)
    reasons = list(reason_lines(r for r in found.get("reasons", []) if not _is_step(r, funnel)))
    lines += [f"  {line}" for line in _some(reasons, most.reasons, "reason")]
    warnings = [f"warning {warning['code']}: {warning['message']}" for warning in found.get("warnings", [])]
    lines += [f"  {line}" for line in _some(warnings, most.warnings, "warning")]
    if found.get("controllers"):
        lines.append(f"  asked: {', '.join(_asked(controller) for controller in found['controllers'])}")
    if found.get("decision"):
        lines.append(f"  decision {found['decision']}, fleet {found.get('epoch', '-')}")
    width = None if everything else terminal_width()
    return "\n".join(lines if width is None else (cut(line, width) for line in lines))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The numbers of names and lines that are shown of a long list."""

    names: int = 3
    apps: int = 4
    steps: int = 5
    reasons: int = 3
    warnings: int = 2
    claims: int = 4

    @property
    def cuts(self) -> bool:
        return self.apps != _EVERYTHING


def some_of(names: Sequence[str], most: int = _NAMES, total: int = 0) -> str:
    """Lists names, the first of them if there are many: `a, b, c +31`. `total`: how many there are, if not all are given."""
    total = max(total, len(names))
    shown = names if total <= most else names[:most]
    return ", ".join(shown) + (f" +{total - len(shown)}" if total > len(shown) else "")


def _some(lines: Sequence[str], most: int, noun: str) -> list[str]:
    """Returns the first lines, and one with the number of the others."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"and {counted(len(lines) - most, f'more {noun}')}; -o wide shows all"]


def _pending_text(found: Mapping[str, Any]) -> str:
    pending, phase = found["pendingRevision"], found.get("pendingPhase", "Deciding")
    running = f"revision {found['revision']} keeps running"
    if phase == "Pending":
        return f"Revision {pending} cannot be placed; {running}."
    return f"Revision {pending} is {paint(phase)}; {running}."


def _asked(controller: Mapping[str, Any]) -> str:
    if controller["outcome"] == "answered":
        return f"{controller['name']} {controller['tookMs']:.1f} ms"
    if controller["outcome"] == "skipped":
        return f"{controller['name']} not concerned"
    text = f"{controller['name']} {paint(controller['outcome'])} ({controller['policy']})"
    return text + (f": {controller['error']}" if controller.get("error") else "")


# --- what is placed ----------------------------------------------------------------------------------------------------


def _placed_lines(apps: Mapping[str, Any], most: _Limits) -> list[str]:
    lines: list[str] = []
    for number, (name, app) in enumerate(apps.items()):
        if number == most.apps and len(apps) > most.apps + 1:
            rest = len(apps) - number
            return [*lines, f"  and {counted(rest, 'more app')}; -o wide shows all"]
        lines += _app_lines(name, app, most)
    return lines


def _app_lines(name: str, app: Mapping[str, Any], most: _Limits) -> Iterable[str]:
    clusters = app.get("clusters", [])
    where = some_of(clusters, most.names + 1) if clusters else "not placed"
    score = f"  score {app['score']:.2f}" if app.get("score") is not None else ""
    yield f"  {name}  {len(clusters)} of {app['replicas'] or 'all'}: {where}{score}"
    claims = [_claim(claim, most) for claim in app.get("claims", [])]
    yield from (f"    {line}" for line in _some(claims, most.claims, "claim"))
    yield from _optional_lines(app, most)


def _claim(claim: Mapping[str, Any], most: _Limits) -> str:
    slots = [_inside(s) + (f" x{s['count']}" if s.get("count", 1) > 1 else "") for s in claim["slots"]]
    return f"{claim['object']} on {claim['cluster']}: {some_of(slots, most.names) or '-'}"


def _inside(slot: Mapping[str, Any]) -> str:
    """Returns the node of a slot and its parts."""
    node: str = slot["node"]
    parts = [part.removeprefix(f"{node}/") for part in slot.get("parts", {})]
    return f"{node} ({', '.join(parts)})" if parts else node


def _optional_lines(app: Mapping[str, Any], most: _Limits) -> Iterable[str]:
    """Yields a line per optional need: the clusters where it is granted, and those where it is not."""
    clusters: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for claim in app.get("claims", []):
        for grant in claim.get("optional", []):
            granted, missing = clusters.setdefault((claim["object"], grant["consumer"], grant["need"]), ([], []))
            (granted if grant["granted"] else missing).append(claim["cluster"])
    for (owner, consumer, need), (granted, missing) in clusters.items():
        parts = [f"granted on {some_of(granted, most.names)}"] if granted else []
        parts += [f"not granted on {some_of(missing, most.names)}"] if missing else []
        yield f"    optional {need} of {consumer or owner}: {'; '.join(parts)}"


# --- what is not -------------------------------------------------------------------------------------------------------


def _funnel_lines(funnel: Mapping[str, Any], blocking: Sequence[str], most: _Limits) -> list[str]:
    """Returns a line for each app, the blocking ones first, and below the first of them a line for each requirement."""
    names = [*(app for app in blocking if app in funnel), *(app for app in funnel if app not in blocking)]
    width = max(map(len, names[: most.apps]), default=0)
    lines: list[str] = []
    for number, name in enumerate(names):
        if number == most.apps and len(names) > most.apps + 1:
            return [*lines, f"  and {counted(len(names) - number, 'more app')}; -o wide shows all"]
        head = f"  {name.ljust(min(width, 40))}  "
        lines.append(head + _narrowing(funnel[name], max(_WIDTH - width_of(head), 0) if most.cuts else _EVERYTHING))
        if name in blocking and (number == 0 or not most.cuts):
            lines += [f"    {line}" for line in _step_lines(funnel[name].get("steps", []), most)]
    return lines


def _narrowing(funnel: Mapping[str, Any], room: int) -> str:
    """Formats a funnel in one line: `56 clusters → 50 placement → 16 hugepages-1Gi → 1 cpu; needs 2`. Where there is no room
    for all steps, some in the middle are left out."""
    steps = [f"{step['left']} {_short(step['name'])}" for step in funnel.get("steps", [])]
    line = _joined(funnel, steps)
    for kept in range(len(steps) - 1, 0, -1):
        if width_of(line) <= room:
            break
        line = _joined(funnel, [*steps[: kept // 2], "…", *steps[kept // 2 - kept :]])
    return line


def _joined(funnel: Mapping[str, Any], steps: Sequence[str]) -> str:
    return " → ".join([counted(funnel["clusters"], "cluster"), *steps]) + f"; needs {funnel['needs']}"


def _step_lines(steps: Sequence[Mapping[str, Any]], most: _Limits) -> list[str]:
    shown = list(steps)
    if len(shown) > most.steps + 1:  # those that exclude most say most
        largest = sorted(range(len(steps)), key=lambda i: -steps[i]["excluded"])[: most.steps]
        shown = [steps[i] for i in sorted(largest)]
    width = max((len(str(step["excluded"])) for step in shown), default=0)
    lines = [f"{'-' + str(step['excluded']):>{width + 1}} {_step(step, most, _WIDTH - width - 6)}" for step in shown]
    if len(shown) < len(steps):
        lines.append(f"and {counted(len(steps) - len(shown), 'smaller step')}; -o wide shows all")
    return lines


def _step(step: Mapping[str, Any], most: _Limits, room: int) -> str:
    """Formats one requirement, with as many sample clusters as there is room for."""
    text = _why_excluded(step) or step.get("message", "").removeprefix("not selected by the placement ")
    code = step.get("code", "")
    head = f"{_short(step['name'])}  {code}" + (f": {text}" if text else "")
    for names in range(most.names - 1, 0, -1) if most.cuts else (most.names,):
        samples = some_of(step.get("samples", []), names, step["excluded"])
        line = f"{head} ({samples}){_by(step)}" if samples else f"{head}{_by(step)}"
        if width_of(line) <= room or not most.cuts:
            return line
    return cut(head, room)


def _why_excluded(step: Mapping[str, Any]) -> str:
    """Returns needed and free amounts, where the step has numbers or is about a label."""
    consumer, need = step.get("consumer", ""), step.get("need", "")
    if step.get("needed") and step.get("code") in ("ResourceShort", "CapacityShort"):
        unit = "pods of one object" if step["code"] == "CapacityShort" else "on one node"
        needed, free = readable(need, step["needed"]), readable(need, step.get("free", "0"))
        return f"{consumer} needs {needed} {unit}, best free {free}".lstrip()
    return f"no node has it, {consumer} needs it" if step.get("code") == "LabelMissing" else ""


def _short(name: str) -> str:
    """Shortens the name of a label or extended resource to what differs: without a long prefix, which is in the details."""
    prefix, slash, rest = name.rpartition("/")
    return rest if slash and len(prefix) > 16 else name


def _by(reason: Mapping[str, Any]) -> str:
    return f" [{reason['by']}]" if reason.get("by") else ""


def _is_step(reason: Mapping[str, Any], funnel: Mapping[str, Any]) -> bool:
    """Returns whether the funnel shows a reason. Reasons about one cluster, and those that name what every cluster must
    take, say more."""
    app = funnel.get(reason.get("app", "")) if reason.get("app") else funnel
    if not app or reason["code"] not in _STEPWISE | {step.get("code") for step in app.get("steps", [])}:
        return False
    return not reason.get("cluster") and not (reason["code"] == "NotEnoughClusters" and reason.get("samples"))


def reason_lines(reasons: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for reason in reasons:
        place = " ".join(p for p in (reason.get("app"), reason.get("consumer"), reason.get("need")) if p)
        need = reason.get("need", "")
        numbers = [f"needs {readable(need, reason['needed'])}"] if reason.get("needed") else []
        count = reason.get("clusters", 0)
        if reason["code"] == "NotEnoughClusters":
            numbers = [f"{number} clusters" for number in numbers]  # its message has the other numbers
            count = 0
        elif reason.get("free"):
            numbers.append(f"best free {readable(need, reason['free'])}")
        if count:
            samples = some_of(reason.get("samples", []), _NAMES, count) if reason.get("samples") else ""
            numbers.append(counted(count, "cluster") + (f" ({samples})" if samples else ""))
        elif reason.get("cluster"):
            numbers.append(reason["cluster"])
        message = "" if reason.get("needed") and reason["code"] == "ResourceShort" else reason.get("message", "")
        text = "; ".join(part for part in (", ".join(numbers), message) if part)
        yield f"{reason['code']} {place}".rstrip() + (f": {text}" if text else "") + _by(reason)
