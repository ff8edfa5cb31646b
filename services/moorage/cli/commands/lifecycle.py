"""The verbs of a group's life: approve, instantiate, update, migrate, rollback, stop, terminate."""

from __future__ import annotations

from typing import Any

from ..exit_codes import DONE
from ..gateway_client import Client, group_path
from ..names import full_name
from ..output import Format, Project, StateDir, show
from ..terminal import out
from .completion import Group

_DONE = {"migrate": "migrating", "rollback": "rolled back", "stop": "stopped"}


def act(verb: str, group: str, project: str, output: str, state: Any, **order: Any) -> int:
    name = full_name(group, project)
    answer = Client.find(state).call("POST", group_path(name, verb), body=order or None, timeout=90)
    if output in ("json", "yaml"):
        return show(answer, output)
    done = _DONE.get(verb) or (f"{verb}d" if verb.endswith("e") else f"{verb}ed")
    out(name if output == "name" else f"{name}: {done}")
    return DONE


def approve(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Approve a group that was created, so that it may be instantiated."""
    return act("approve", group, project, output, state)


def instantiate(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Have an approved group decided and deployed."""
    return act("instantiate", group, project, output, state)


def update(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Have the changed intents of an instantiated group take effect."""
    return act("update", group, project, output, state)


def migrate(
    group: Group, /, *, to: Group, project: Project = "", output: Format = "table", state: StateDir = None
) -> int:
    """Have another group take this one's place: it ends as soon as the other runs.

    Parameters
    ----------
    to
        The other group, approved: a full name.
    """
    return act("migrate", group, project, output, state, target=full_name(to, project))


def rollback(
    group: Group, /, *, revision: int = 0, project: Project = "", output: Format = "table", state: StateDir = None
) -> int:
    """Go back to an earlier revision of an instantiated group; room for it is looked for anew.

    Parameters
    ----------
    revision
        Which one; the one before the present by default.
    """
    return act("rollback", group, project, output, state, revision=revision)


def stop(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Decide nothing new for a group; what runs stays. Instantiate goes on."""
    return act("stop", group, project, output, state)


def terminate(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Take a group off its clusters; its documents stay."""
    return act("terminate", group, project, output, state)
