"""`why`, `candidates` and `story`: the numbers behind what became of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..exit_codes import DONE, MISSING, Failure
from ..gateway_client import Client, Refusal, group_path, path
from ..names import full_name
from ..output import Format, Project, StateDir, show
from ..terminal import out, paint, table
from .completion import Group

#: Phases in which a group has its clusters.
PLACED = ("Placed", "Deploying", "Running")


def why(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Why a group is where it is, or why it is nowhere yet."""
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
        phase = paint(found.get("pendingPhase", "Deciding"))
        lines.append(f"  revision {found['pendingRevision']} is {phase}; what stands is from before")
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


def _app_lines(name: str, app: dict[str, Any]) -> Iterable[str]:
    clusters = app.get("clusters", [])
    where = ", ".join(clusters) if clusters else "nowhere yet"
    score = f"  score {app['score']:.2f}" if app.get("score") is not None else ""
    yield f"  {name}  {len(clusters)} of {app['replicas'] or 'all'}: {where}{score}"
    for claim in app.get("claims", []):
        slots = ", ".join(s["node"] + (f" x{s['count']}" if s.get("count", 1) > 1 else "") for s in claim["slots"])
        yield f"    {claim['object']} on {claim['cluster']}: {slots or '-'}"


def reason_lines(reasons: Iterable[dict[str, Any]]) -> Iterable[str]:
    for reason in reasons:
        place = " ".join(p for p in (reason.get("app"), reason.get("consumer"), reason.get("need")) if p)
        numbers = [f"needed {reason['needed']}"] if reason.get("needed") else []
        numbers += [f"best free {reason['free']}"] if reason.get("free") else []
        count = reason.get("clusters", 0)
        if count:
            samples = ", ".join(reason.get("samples", [])[:3])
            numbers.append(f"{count} cluster{'s' if count > 1 else ''}" + (f" ({samples})" if samples else ""))
        elif reason.get("cluster"):
            numbers.append(reason["cluster"])
        by = f" [{reason['by']}]" if reason.get("by") else ""
        text = "; ".join(part for part in (", ".join(numbers), reason.get("message", "")) if part)
        yield f"{reason['code']} {place}".rstrip() + (f": {text}" if text else "") + by


def candidates(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """The clusters that may take each app: merged, and as each controller answers."""
    found = Client.find(state).get(group_path(full_name(group, project), "candidates"))
    if output in ("json", "yaml"):
        return show(found, output)
    if output == "name":
        out(found["group"])
        return DONE
    out(f"{found['group']}  revision {found['revision']}")
    sections = [("merged", found["merged"]), *((c["name"], c) for c in found["controllers"])]
    for name, answer in sections:
        said = "" if name == "merged" or answer.get("outcome") == "answered" else f"  {answer.get('outcome')}"
        out(f"{name}{said}")
        for app, sets in (answer if name == "merged" else answer.get("apps", {})).items():
            for one in sets:
                listed = ", ".join(one["clusters"]) + (f" and {one['more']} more" if one.get("more") else "")
                out(f"  {app}: {one['count']}: {one['mode']} {listed or '[]'}")
        for rule in answer.get("rules", []) if name != "merged" else []:
            out(f"  {rule['app']}: {rule['mode']} {', '.join(rule['apps'])}")
    return DONE


def story(what: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Every message of one group, or of the one message with this id and what it set off, in order."""
    client = Client.find(state)
    known = "/" in what
    items: list[dict[str, Any]] = []
    if not known:
        items = client.get(path("story", what))["items"]  # an id, unless nothing has it
    if not items:
        name = full_name(what, project)
        try:
            items = client.get(group_path(name, "story"))["items"]
        except Refusal as wrong:
            if wrong.status != 404 or known:
                raise
            raise Failure(
                f"{what} does not exist: neither a kept message with this id nor a group {name}", MISSING
            ) from wrong
    if output in ("json", "yaml"):
        return show({"items": items}, output)
    if output == "name":
        out("\n".join(item["id"] for item in items))
        return DONE
    rows = [[i["time"][11:23], i["subject"].split(".", 2)[2], i["id"], i.get("cause", ""), summary(i)] for i in items]
    out(table(["TIME", "WHAT", "ID", "CAUSE", "SUMMARY"], rows))
    return DONE


def summary(event: dict[str, Any]) -> str:
    """A few words on an event, from whatever its data has."""
    data = event.get("data") or {}
    if not isinstance(data, dict):
        return ""
    words = []
    if data.get("method") and data.get("outcome"):  # an audit line
        words.append(f"{data.get('who') or 'nobody'} {data['method']} {data.get('path')} {data.get('status')}")
    if isinstance(problem := data.get("problem"), dict) and data.get("by"):  # a message that was not readable
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
