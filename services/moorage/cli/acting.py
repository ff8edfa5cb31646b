"""The verbs of a group's life: approve, instantiate, update, terminate."""

from __future__ import annotations

from typing import Any

from .client import Client, group_path
from .exits import DONE
from .groups import full_name
from .output import Format, Project, StateDir, show
from .terminal import out


def act(verb: str, group: str, project: str, output: str, state: Any) -> int:
    name = full_name(group, project)
    answer = Client.find(state).call("POST", group_path(name, verb))
    if output in ("json", "yaml"):
        return show(answer, output)
    out(name if output == "name" else f"{name}: {verb}d" if verb.endswith("e") else f"{name}: {verb}ed")
    return DONE


def approve(group: str, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Approve a group that was created, so that it may be instantiated."""
    return act("approve", group, project, output, state)


def instantiate(group: str, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Have an approved group decided and deployed."""
    return act("instantiate", group, project, output, state)


def update(group: str, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Have the changed intents of an instantiated group take effect."""
    return act("update", group, project, output, state)


def terminate(group: str, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Take a group off its clusters; its documents stay."""
    return act("terminate", group, project, output, state)
