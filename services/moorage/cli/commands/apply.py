"""`moorage apply` and `moorage simulate`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from ..documents import Document, merge_fleets, read_all, read_values
from ..durations import seconds
from ..emco_files import apply as apply_anchored
from ..emco_files import is_anchored
from ..exit_codes import DONE, FAILED, USAGE, Failure
from ..gateway_client import Client, Refusal
from ..output import Format, StateDir, Yes, show
from ..placement_text import PLACED, why_text
from ..suggestions import for_failure
from ..terminal import counted, note, out
from .explain_class import class_lines
from .wait import get_group, wait_for_phase

Files = Annotated[
    list[str],
    Parameter(name=["--filename", "-f"], negative="", help="File, directory, or - for stdin (repeatable)."),
]


Values = Annotated[
    list[str] | None,
    Parameter(name=["--values", "-v"], negative="", help="Values file for documents that are templates (repeatable)."),
]


#: The step of an anchored document that instantiates a group.
_INSTANTIATED = re.compile(
    "projects/([^/]+)/composite-apps/([^/]+)/([^/]+)/deployment-intent-groups/([^/]+)/instantiate"
)


def apply(
    *,
    filename: Files,
    values: Values = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    wait: Annotated[bool, Parameter(negative="")] = False,
    timeout: str = "60s",
    yes: Yes = False,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Apply documents.

    Exits with 0 once the documents are stored durably, even if nothing fits yet.

    Parameters
    ----------
    dry_run
        Validate and place the documents without storing or claiming anything.
    wait
        Wait until the groups of the documents run. Exits with 7 when the time is up, and with 1 as soon as one is Failed.
    timeout
        Maximum time to wait, for example 10s or 2m.
    """
    if wait and dry_run:
        raise Failure("--wait cannot be combined with --dry-run", USAGE)
    within = seconds(timeout)
    documents = merge_fleets(read_all(filename, values=read_values(values)))
    client = Client.find(state)
    answers: list[dict[str, Any]] = []
    code = DONE
    for document in documents:
        try:
            answer = _send(client, document, dry_run, yes)
        except Refusal as refusal:
            note(f"moorage: {refusal}{for_failure(refusal)}")
            answer = {"accepted": False, "problem": refusal.problem}
            code = code or refusal.code
        else:
            if output in ("table", "wide"):
                out(_line(document, answer, dry_run))
            elif output == "name":
                kind = "" if is_anchored(document.body) else f"{document.kind.lower()}/"
                out(f"{kind}{answer.get('name', document.name)}")
        answers.append(answer)
    if wait:
        code = code or _wait_for_all(client, answers, within, say=note if output in ("json", "yaml", "name") else out)
    if output in ("json", "yaml"):
        show({"items": answers}, output)
    return code


def _wait_for_all(client: Client, answers: list[dict[str, Any]], within: float, *, say: Callable[[str], None]) -> int:
    """Waits until the groups of all accepted documents run. An intent may belong to a group that does not exist yet."""
    end = time.monotonic() + within
    for group in dict.fromkeys(group for answer in answers if (group := _group_of(answer))):
        if get_group(client, group) is None:
            continue
        if code := wait_for_phase(client, group, "Running", max(0.0, end - time.monotonic()), say=say):
            return code
    return DONE


def _group_of(answer: dict[str, Any]) -> str:
    if group := str(answer.get("group", "")):
        return group
    found = _INSTANTIATED.fullmatch(str(answer.get("name", "")))
    return "/".join(found.groups()) if found else ""


def _send(client: Client, document: Document, dry_run: bool, yes: bool) -> dict[str, Any]:
    if document.kind == "Fleet":
        from ..fleet_changes import apply_fleet_document

        return apply_fleet_document(client, document, yes=yes, dry_run=dry_run)
    if is_anchored(document.body):
        if dry_run:
            raise Failure(f"{document.where}: --dry-run is not supported for documents with an anchor", USAGE)
        return apply_anchored(client, document)
    query = {"dryRun": "true"} if dry_run else None
    answer: dict[str, Any] = client.call("POST", "/v1/apply", query=query, body=document.body, where=document.where)
    return answer


def _line(document: Document, answer: dict[str, Any], dry_run: bool) -> str:
    if document.kind == "Fleet":
        return "fleet (dry run)" if dry_run else f"fleet: {counted(len(answer.get('clusters', [])), 'cluster')}"
    if is_anchored(document.body):
        return f"{answer['name']} {answer['outcome']}"
    outcome = answer.get("outcome", "accepted") + (" (dry run)" if dry_run else "")
    revision = f", revision {answer['revision']}" if answer.get("group") else ""
    lines = [f"{document.kind.lower()}/{answer['name']} {outcome}{revision}"]
    lines += [f"  warning {w['code']}: {w['message']}" for w in answer.get("warnings", [])]
    if dry_run and "why" in answer:
        lines.append(why_text(answer["why"]))
    if dry_run and "explain" in answer:
        lines += class_lines(answer["explain"])
    return "\n".join(lines)


def simulate(*, filename: Files, output: Format = "table", state: StateDir = None) -> int:
    """Place documents without storing or claiming anything.

    Resource classes among the documents count as if they were stored. Exits with 1 if a document would not be placed.
    """
    documents = read_all(filename)
    client = Client.find(state)
    if len(documents) > 1 and any(d.kind == "ResourceClass" for d in documents):  # the others may ask for it
        bodies = [d.body for d in documents]
        found = client.call("POST", "/v1/simulate", body=bodies, where=documents[0].where, timeout=60)["items"]
    else:
        found = [client.call("POST", "/v1/simulate", body=d.body, where=d.where, timeout=30) for d in documents]
    if output in ("json", "yaml"):
        show(found[0] if len(found) == 1 else {"items": found}, output)
    elif output == "name":
        out("\n".join(answer.get("group") or answer["name"] for answer in found))
    else:
        out("\n\n".join(_simulated_text(answer) for answer in found))
    return DONE if all(answer.get("phase") in PLACED for answer in found if "phase" in answer) else FAILED


def _simulated_text(answer: dict[str, Any]) -> str:
    """Returns where a document would be placed; of a resource class, what it would select."""
    if "phase" in answer:
        return why_text(answer)
    lines = [f"{answer['name']} {answer['outcome']} (dry run)"]
    lines += [f"  warning {w['code']}: {w['message']}" for w in answer.get("warnings", [])]
    return "\n".join(lines + (class_lines(answer["explain"]) if "explain" in answer else []))
