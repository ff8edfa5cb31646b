"""`moorage apply` and `moorage simulate`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from ..documents import Document, merge_fleets, read_all, read_values
from ..emco_files import apply as apply_anchored
from ..emco_files import is_anchored
from ..exit_codes import DONE, FAILED, USAGE, Failure
from ..gateway_client import Client, Refusal
from ..output import Format, StateDir, show
from ..terminal import counted, note, out
from .why import PLACED, why_text

Files = Annotated[
    list[str],
    Parameter(name=["--filename", "-f"], negative="", help="File, directory, or - for stdin (repeatable)."),
]


Values = Annotated[
    list[str] | None,
    Parameter(name=["--values", "-v"], negative="", help="Values file for documents that are templates (repeatable)."),
]


def apply(
    *,
    filename: Files,
    values: Values = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Apply documents.

    Exits with 0 once the documents are stored durably, even if nothing fits yet.

    Parameters
    ----------
    dry_run
        Validate and place the documents without storing or claiming anything.
    """
    documents = merge_fleets(read_all(filename, values=read_values(values)))
    client = Client.find(state)
    answers: list[dict[str, Any]] = []
    code = DONE
    for document in documents:
        try:
            answer = _send(client, document, dry_run)
        except Refusal as refusal:
            note(f"moorage: {refusal}")
            answer = {"accepted": False, "problem": refusal.problem}
            code = code or refusal.code
        else:
            if output in ("table", "wide"):
                out(_line(document, answer, dry_run))
            elif output == "name":
                kind = "" if is_anchored(document.body) else f"{document.kind.lower()}/"
                out(f"{kind}{answer.get('name', document.name)}")
        answers.append(answer)
    if output in ("json", "yaml"):
        show({"items": answers}, output)
    return code


def _send(client: Client, document: Document, dry_run: bool) -> dict[str, Any]:
    if document.kind == "Fleet" and not dry_run:
        from ..up.bootstrap import apply_fleet

        return apply_fleet(client, document)
    if is_anchored(document.body):
        if dry_run:
            raise Failure(f"{document.where}: --dry-run is not supported for documents with an anchor", USAGE)
        return apply_anchored(client, document)
    query = {"dryRun": "true"} if dry_run else None
    answer: dict[str, Any] = client.call("POST", "/v1/apply", query=query, body=document.body, where=document.where)
    return answer


def _line(document: Document, answer: dict[str, Any], dry_run: bool) -> str:
    if document.kind == "Fleet":
        return f"fleet: {counted(len(answer.get('clusters', [])), 'cluster')}"
    if is_anchored(document.body):
        return f"{answer['name']} {answer['outcome']}"
    outcome = answer.get("outcome", "accepted") + (" (dry run)" if dry_run else "")
    lines = [f"{document.kind.lower()}/{answer['name']} {outcome}, revision {answer['revision']}"]
    lines += [f"  warning {w['code']}: {w['message']}" for w in answer.get("warnings", [])]
    if dry_run and "why" in answer:
        lines.append(why_text(answer["why"]))
    return "\n".join(lines)


def simulate(*, filename: Files, output: Format = "table", state: StateDir = None) -> int:
    """Place documents without storing or claiming anything.

    Exits with 1 if a document would not be placed.
    """
    documents = read_all(filename)
    client = Client.find(state)
    found = [client.call("POST", "/v1/simulate", body=d.body, where=d.where, timeout=30) for d in documents]
    if output in ("json", "yaml"):
        show(found[0] if len(found) == 1 else {"items": found}, output)
    elif output == "name":
        out("\n".join(why["group"] for why in found))
    else:
        out("\n\n".join(why_text(why) for why in found))
    return DONE if all(why["phase"] in PLACED for why in found) else FAILED
