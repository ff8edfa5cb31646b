"""`moorage diff`: what is applied on each cluster against the manifests as given. 1 where they differ, as diff has it."""

from __future__ import annotations

import difflib
from typing import Any

from .client import Client, group_path
from .exits import DONE, FAILED
from .groups import full_name
from .output import Format, Project, StateDir, show
from .terminal import as_yaml, coloured, note, out


def diff(group: str, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Show, per cluster and app, how the applied objects differ from the manifests: patches, labels, affinity."""
    name = full_name(group, project)
    found = Client.find(state).get(group_path(name, "diff"))
    items: list[dict[str, Any]] = found["items"]
    code = FAILED if items else DONE
    if output in ("json", "yaml"):
        show(found, output)
        return code
    if not items:
        note(f"{name}: " + ("nothing differs from the manifests" if found.get("decision") else "nothing is placed yet"))
    for item in items:
        if output == "name":
            out(f"{item['cluster']}/{item['app']}/{item['object']}")
        else:
            out("\n".join(_lines(item["manifest"], item["patched"], f"{item['cluster']} ({item['app']})")))
    if found.get("truncated"):
        note("there is more than one answer holds; look at one cluster with -o json")
    return code


def _lines(before: Any, after: Any, where: str) -> list[str]:
    shown = after or before or {}
    name = f"{shown.get('kind')}/{(shown.get('metadata') or {}).get('name')}"
    old = as_yaml(before).splitlines() if before else []
    new = as_yaml(after).splitlines() if after else []
    lines = difflib.unified_diff(old, new, f"{name} as given", f"{name} on {where}", lineterm="")
    if not coloured():
        return list(lines)
    colours = {"+": 32, "-": 31, "@": 36}
    return [f"\x1b[{colours[line[0]]}m{line}\x1b[0m" if line[:1] in colours else line for line in lines]
