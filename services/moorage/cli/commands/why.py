"""`moorage why`, `moorage candidates` and `moorage story`: explain the placement of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter

from ..exit_codes import DONE, MISSING, Failure
from ..gateway_client import Client, Refusal, group_path, path
from ..names import full_name
from ..output import Format, Project, StateDir, show
from ..terminal import out, paint, table
from .completion import Group

#: Phases in which a group has its clusters.
PLACED = ("Placed", "Deploying", "Running")


def why(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Explain the placement of a group: its clusters, or why it has none."""
    found = Client.find(state).get(group_path(full_name(group, project), "why"))
    if output in ("json", "yaml"):
        return show(found, output)
    out(found["group"] if output == "name" else why_text(found))
    return DONE


def why_text(found: dict[str, Any]) -> str:
    state, phase = found["state"], found["phase"]
    lines = [f"{found['group']}  revision {found['revision']}  {state}  {paint(phase)}"]
    for name, app in found.get("apps", {}).items():
        lines += _app_lines(name, app)
    if found.get("pendingRevision"):
        lines.append(f"  {_pending_text(found)}")
    if found.get("reasons"):
        lines.append("  because")
        lines += [f"    {line}" for line in reason_lines(found["reasons"])]
    for warning in found.get("warnings", []):
        lines.append(f"  warning {warning['code']}: {warning['message']}")
    if found.get("controllers"):
        lines.append("  asked")
        rows = [
            [
                "  ",
                c["name"],
                c["outcome"],
                f"{c['tookMs']:.1f} ms of {c['deadlineMs']:g}",
                c["policy"],
                c.get("error", ""),
            ]
            for c in found["controllers"]
        ]
        lines += [
            line.removesuffix("   -") for line in table(["", "", "", "", "", ""], rows, heading=False).splitlines()
        ]
    if found.get("decision"):
        lines.append(f"  decision {found['decision']}, fleet {found.get('epoch', '-')}")
    return "\n".join(lines)


def _pending_text(found: dict[str, Any]) -> str:
    pending, phase = found["pendingRevision"], found.get("pendingPhase", "Deciding")
    running = f"revision {found['revision']} keeps running"
    if phase == "Pending":
        return f"Revision {pending} cannot be placed; {running}."
    return f"Revision {pending} is {paint(phase)}; {running}."


def _app_lines(name: str, app: dict[str, Any]) -> Iterable[str]:
    clusters = app.get("clusters", [])
    where = ", ".join(clusters) if clusters else "not placed"
    score = f"  score {app['score']:.2f}" if app.get("score") is not None else ""
    yield f"  {name}  {len(clusters)} of {app['replicas'] or 'all'}: {where}{score}"
    for claim in app.get("claims", []):
        slots = ", ".join(s["node"] + (f" x{s['count']}" if s.get("count", 1) > 1 else "") for s in claim["slots"])
        yield f"    {claim['object']} on {claim['cluster']}: {slots or '-'}"
    yield from _optional_lines(app)


def _optional_lines(app: dict[str, Any]) -> Iterable[str]:
    """Yields a line per optional need: the clusters where it is granted, and those where it is not."""
    clusters: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for claim in app.get("claims", []):
        for grant in claim.get("optional", []):
            granted, missing = clusters.setdefault((claim["object"], grant["consumer"], grant["need"]), ([], []))
            (granted if grant["granted"] else missing).append(claim["cluster"])
    for (owner, consumer, need), (granted, missing) in clusters.items():
        parts = [f"granted on {', '.join(granted)}"] if granted else []
        parts += [f"not granted on {', '.join(missing)}"] if missing else []
        yield f"    optional {need} of {consumer or owner}: {'; '.join(parts)}"


def reason_lines(reasons: Iterable[dict[str, Any]]) -> Iterable[str]:
    for reason in reasons:
        place = " ".join(p for p in (reason.get("app"), reason.get("consumer"), reason.get("need")) if p)
        numbers = [f"needs {reason['needed']}"] if reason.get("needed") else []
        count = reason.get("clusters", 0)
        if reason["code"] == "NotEnoughClusters":
            numbers = [f"{number} clusters" for number in numbers]  # its message has the other numbers
            count = 0
        elif reason.get("free"):
            numbers.append(f"best free {reason['free']}")
        if count:
            samples = ", ".join(reason.get("samples", [])[:3])
            numbers.append(f"{count} cluster{'s' if count > 1 else ''}" + (f" ({samples})" if samples else ""))
        elif reason.get("cluster"):
            numbers.append(reason["cluster"])
        by = f" [{reason['by']}]" if reason.get("by") else ""
        text = "; ".join(part for part in (", ".join(numbers), reason.get("message", "")) if part)
        yield f"{reason['code']} {place}".rstrip() + (f": {text}" if text else "") + by


def candidates(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """List the clusters that qualify for each app, merged and by controller."""
    found = Client.find(state).get(group_path(full_name(group, project), "candidates"))
    if output in ("json", "yaml"):
        return show(found, output)
    if output == "name":
        out(found["group"])
        return DONE
    out(f"{found['group']}  revision {found['revision']}")
    sections = [("merged", found["merged"]), *((c["name"], c) for c in found["controllers"])]
    for name, answer in sections:
        outcome = "" if name == "merged" or answer.get("outcome") == "answered" else f"  {answer.get('outcome')}"
        out(f"{name}{outcome}")
        for app, sets in (answer if name == "merged" else answer.get("apps", {})).items():
            for candidate_set in sets:
                out(f"  {app}: {candidate_set['count']}: {set_text(candidate_set)}")
        for rule in answer.get("rules", []) if name != "merged" else []:
            out(f"  {rule['app']}: {rule['mode']} {', '.join(rule['apps'])}")
    return DONE


def set_text(candidate_set: dict[str, Any]) -> str:
    """Describes a candidate set in words: the clusters it allows, or those it excludes."""
    listed = ", ".join(candidate_set["clusters"])
    listed += f" and {candidate_set['more']} more" if candidate_set.get("more") else ""
    if candidate_set["mode"] == "deny":
        return f"any cluster except {listed}" if listed else "any cluster"
    return listed or "none"


def story(
    target: Annotated[
        Group, Parameter(help="Name of a group, or the id of a message to show with all messages that it caused.")
    ],
    /,
    *,
    project: Project = "",
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Show all messages about a group in order."""
    client = Client.find(state)
    is_group = "/" in target
    items: list[dict[str, Any]] = []
    if not is_group:
        items = client.get(path("story", target))["items"]  # empty if no message has this id
    if not items:
        name = full_name(target, project)
        try:
            items = client.get(group_path(name, "story"))["items"]
        except Refusal as refusal:
            if refusal.status != 404 or is_group:
                raise
            raise Failure(
                f"{target} does not exist: it is neither the id of a stored message nor a group ({name})", MISSING
            ) from refusal
    if output in ("json", "yaml"):
        return show({"items": items}, output)
    if output == "name":
        out("\n".join(item["id"] for item in items))
        return DONE
    rows = [[i["time"][11:23], i["subject"].split(".", 2)[2], i["id"], i.get("cause", ""), summary(i)] for i in items]
    out(table(["TIME", "SUBJECT", "ID", "CAUSE", "SUMMARY"], rows))
    return DONE


def summary(event: dict[str, Any]) -> str:
    """Summarizes an event in a few words from the fields that its data has."""
    data = event.get("data") or {}
    if not isinstance(data, dict):
        return ""
    words = []
    if data.get("method") and data.get("outcome"):  # an audit event
        words.append(f"{data.get('who') or 'anonymous'} {data['method']} {data.get('path')} {data.get('status')}")
    if isinstance(problem := data.get("problem"), dict) and data.get("by"):  # a rejected message
        words.append(f"{data['by']}: {problem.get('code')} on {data.get('subject')}: {problem.get('detail')}")
    if data.get("revision"):
        words.append(f"revision {data['revision']}")
    apps = data.get("apps")
    if isinstance(apps, dict):
        words += [
            f"{name} on {', '.join(app['clusters'])}"
            for name, app in apps.items()
            if isinstance(app, dict) and app.get("clusters")
        ]
    reasons = data.get("reasons")
    if isinstance(reasons, list):
        words += list(dict.fromkeys(r["code"] for r in reasons if isinstance(r, dict) and "code" in r))
    words += [f"{k} {data[k]}" for k in ("cluster", "state", "message") if isinstance(data.get(k), str) and data[k]]
    return "; ".join(words)[:120]
