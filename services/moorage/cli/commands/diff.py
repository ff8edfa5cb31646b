"""`moorage diff`: compares the objects applied on each cluster with the given manifests, or documents with the stored ones.
Exits with 1 if they differ, like diff."""

from __future__ import annotations

import difflib
from itertools import zip_longest
from typing import Annotated, Any

from cyclopts import Parameter

from ..documents import API_VERSION, Document, read_all, read_values
from ..emco_files import is_anchored
from ..exit_codes import DONE, FAILED, USAGE, Failure
from ..gateway_client import Client, Refusal, group_path, path
from ..names import full_name
from ..output import Format, Project, StateDir, show
from ..terminal import as_yaml, has_colour, note, out
from .apply import Values
from .completion import Group

OptionalFiles = Annotated[
    list[str] | None,
    Parameter(name=["--filename", "-f"], negative="", help="File, directory, or - for stdin (repeatable)."),
]


def diff(
    group: Group = "",
    /,
    *,
    filename: OptionalFiles = None,
    values: Values = None,
    project: Project = "",
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Compare applied objects with the manifests, by cluster and app, or documents with the stored ones.

    With -f it shows what applying the documents would change. Exits with 1 if there are differences.
    """
    if bool(group) == bool(filename):
        raise Failure("give either a group or -f FILE", USAGE)
    if filename:
        documents = read_all(filename, values=read_values(values))
        return _diff_documents(Client.find(state), documents, output)
    name = full_name(group, project)
    found = Client.find(state).get(group_path(name, "diff"))
    items: list[dict[str, Any]] = found["items"]
    code = FAILED if any(item.get("patch") for item in items) else DONE
    if output in ("json", "yaml"):
        show(found, output)
        return code
    if code == DONE:
        note(f"{name}: " + ("no differences" if found.get("decision") else "not placed yet"))
    for item in items:
        if not item.get("patch"):
            continue
        if output == "name":
            out(f"{item['cluster']}/{item['app']}")
            continue
        for before, after in zip_longest(item["manifests"], item["objects"]):
            if lines := _lines(before, after, f"{item['cluster']} ({item['app']})"):
                out("\n".join(lines))
    if found.get("truncated"):
        note("the output is truncated")
    return code


# --- documents ---------------------------------------------------------------------------------------------------------


def _diff_documents(client: Client, documents: list[Document], output: str) -> int:
    items = [_compare(client, document) for document in documents]
    if output in ("json", "yaml"):
        show({"items": items}, output)
    for item in items if output not in ("json", "yaml") else ():
        name = f"{item['kind'].lower()}/{item['name']}"
        if item["change"] == "unchanged":
            note(f"{name}: no differences")
        elif output == "name":
            out(name)
        else:
            out("\n".join(_coloured(item["diff"])))
    return DONE if all(item["change"] == "unchanged" for item in items) else FAILED


def _compare(client: Client, document: Document) -> dict[str, Any]:
    """Compares a document with the stored one. Values of Secrets are hidden on both sides and not compared."""
    from moorage.parsing.redaction import redact

    if document.kind == "Fleet":
        raise Failure(f"{document.where}: a Fleet is compared with `moorage fleet apply --dry-run FILE`", USAGE)
    if is_anchored(document.body) or not document.name:
        raise Failure(f"{document.where}: only documents with a kind and a name can be compared", USAGE)
    stored = _stored(client, document)
    before = [] if stored is None else as_yaml(_comparable(stored)).splitlines()
    after = as_yaml(_comparable(redact(document.body))).splitlines()
    name = f"{document.kind}/{document.name}"
    lines = list(difflib.unified_diff(before, after, f"{name} as stored", f"{name} in {document.where}", lineterm=""))
    change = "created" if stored is None else "updated" if lines else "unchanged"
    found = {"kind": document.kind, "project": document.project, "name": document.name, "change": change}
    return {**found, "diff": lines}


def _stored(client: Client, document: Document) -> dict[str, Any] | None:
    parts = ("applications",) if document.kind == "Application" else ("intents", document.kind)
    try:
        found: dict[str, Any] = client.get(path(*parts, document.project, document.name))
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return None
    return found


def _comparable(body: dict[str, Any]) -> Any:
    """Returns a document without its status, with the defaults of its head, and with fields in one order."""
    metadata = body.get("metadata")
    metadata = {"project": "default", **metadata} if isinstance(metadata, dict) else metadata
    document = {"apiVersion": API_VERSION, **body, "metadata": metadata}
    return _ordered({key: value for key, value in document.items() if key != "status"})


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=str)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


# --- text --------------------------------------------------------------------------------------------------------------


def _lines(before: Any, after: Any, where: str) -> list[str]:
    shown = after or before or {}
    name = f"{shown.get('kind')}/{(shown.get('metadata') or {}).get('name')}"
    old = as_yaml(before).splitlines() if before else []
    new = as_yaml(after).splitlines() if after else []
    return _coloured(list(difflib.unified_diff(old, new, f"{name} as given", f"{name} on {where}", lineterm="")))


def _coloured(lines: list[str]) -> list[str]:
    if not has_colour():
        return lines
    colours = {"+": 32, "-": 31, "@": 36}
    return [f"\x1b[{colours[line[0]]}m{line}\x1b[0m" if line[:1] in colours else line for line in lines]
