"""`moorage why`, `moorage candidates` and `moorage story`: explain the placement of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter

from ..event_summaries import summary
from ..exit_codes import DONE, MISSING, USAGE, Failure
from ..gateway_client import Client, Refusal, group_path, path
from ..names import full_name
from ..output import Format, Project, StateDir, show
from ..placement_text import why_text
from ..table import table
from ..terminal import note, out
from .completion import DecisionId, Group


def why(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Explain the placement of a group: its clusters, or why it has none.

    Long lists are cut: `-o wide` shows everything, `-o json` everything with exact quantities.
    """
    found = Client.find(state).get(group_path(full_name(group, project), "why"))
    if output in ("json", "yaml"):
        return show(found, output)
    out(found["group"] if output == "name" else why_text(found, everything=output == "wide"))
    return DONE


def candidates(
    group: Group = "",
    /,
    *,
    decision: DecisionId = "",
    project: Project = "",
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """List the clusters that qualify for each app, merged and by controller.

    Controllers are asked again. With --decision, it shows the answers that led to a decision, and the choices of clusters that
    were tried, with score and tie value (the smallest share of a resource that would stay free). For example:
    `moorage candidates --decision $(moorage get decisions --group shop -o name | cut -d/ -f2)`.
    """
    if bool(group) == bool(decision):
        raise Failure("name either a group or, with --decision, a decision", USAGE)
    where = (
        path("decisions", decision, "candidates") if decision else group_path(full_name(group, project), "candidates")
    )
    found = Client.find(state).get(where)
    if output in ("json", "yaml"):
        return show(found, output)
    if output == "name":
        out(found["group"])
        return DONE
    out(f"{found['group']}  revision {found['revision']}")
    if decision and not found.get("recorded"):
        note(f"decision {decision} has no record; these are the answers of now")
    sections = [("merged", found["merged"]), *((c["name"], c) for c in found["controllers"])]
    for name, answer in sections:
        outcome = "" if name == "merged" or answer.get("outcome") == "answered" else f"  {answer.get('outcome')}"
        out(f"{name}{outcome}")
        for app, sets in (answer if name == "merged" else answer.get("apps", {})).items():
            for candidate_set in sets:
                out(f"  {app}: {candidate_set['count']}: {set_text(candidate_set)}")
        for rule in answer.get("rules", []) if name != "merged" else []:
            out(f"  {rule['app']}: {rule['mode']} {', '.join(rule['apps'])}")
    for number, choice in enumerate(found.get("choices", []), 1):
        out(f"choice {number}")
        for line in _choice_lines(choice):
            out(f"  {line}")
    return DONE


def _choice_lines(choice: dict[str, Any]) -> Iterable[str]:
    for app, chosen in choice["apps"].items():
        yield f"{app}: {', '.join(chosen['clusters']) or 'none'}"
        for best in chosen["best"]:
            stays = ", runs there" if best["stays"] else ""
            yield f"  {best['cluster']}  score {best['score']:g}, tie {best['tie']:g}{stays}"
    if choice["withoutRoom"]:
        yield f"no room on the nodes of {', '.join(choice['withoutRoom'])}"


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
