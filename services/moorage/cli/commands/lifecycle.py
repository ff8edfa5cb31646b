"""The life-cycle commands of a group: approve, instantiate, update, migrate, rollback, stop, terminate."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

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
    """Approve a group, so that it can be instantiated."""
    return act("approve", group, project, output, state)


def instantiate(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Place and deploy an approved group."""
    return act("instantiate", group, project, output, state)


def update(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Apply changed intents to an instantiated group."""
    return act("update", group, project, output, state)


def migrate(
    group: Group,
    /,
    *,
    to: Annotated[Group, Parameter(help="The group that replaces it, which must be approved.")],
    project: Project = "",
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Replace a group by another one.

    The group is terminated as soon as the other one runs.
    """
    return act("migrate", group, project, output, state, target=full_name(to, project))


def rollback(
    group: Group, /, *, revision: int = 0, project: Project = "", output: Format = "table", state: StateDir = None
) -> int:
    """Return an instantiated group to an earlier revision.

    The earlier revision is placed again, possibly on other clusters.

    Parameters
    ----------
    revision
        Revision to return to (default: the previous one).
    """
    return act("rollback", group, project, output, state, revision=revision)


def stop(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Pause new decisions for a group.

    Running objects stay. `moorage instantiate` resumes.
    """
    return act("stop", group, project, output, state)


def terminate(group: Group, /, *, project: Project = "", output: Format = "table", state: StateDir = None) -> int:
    """Remove a group from its clusters. Its documents stay."""
    return act("terminate", group, project, output, state)
