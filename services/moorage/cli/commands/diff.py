"""`moorage diff`: compares the objects applied on each cluster with the given manifests. Exits with 1 if they differ, like
diff."""

from __future__ import annotations

import difflib
from itertools import zip_longest
from typing import Any

from ..exit_codes import DONE, FAILED
from ..gateway_client import Client, group_path
from ..names import full_name
from ..output import Format, Project, StateDir, show
from ..terminal import as_yaml, has_colour, note, out
from .completion import Group


def diff(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Compare applied objects with the manifests, by cluster and app.

    Exits with 1 if they differ.
    """
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


def _lines(before: Any, after: Any, where: str) -> list[str]:
    shown = after or before or {}
    name = f"{shown.get('kind')}/{(shown.get('metadata') or {}).get('name')}"
    old = as_yaml(before).splitlines() if before else []
    new = as_yaml(after).splitlines() if after else []
    lines = difflib.unified_diff(old, new, f"{name} as given", f"{name} on {where}", lineterm="")
    if not has_colour():
        return list(lines)
    colours = {"+": 32, "-": 31, "@": 36}
    return [f"\x1b[{colours[line[0]]}m{line}\x1b[0m" if line[:1] in colours else line for line in lines]
