"""`moorage controllers`: who is asked, how long, and what silence means."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..durations import seconds
from ..exit_codes import DONE, USAGE, Failure
from ..gateway_client import Client, path
from ..output import Format, StateDir, show, show_list
from ..resource_types import resolve
from ..terminal import out
from .completion import Controller

app = App(name="controllers", help="Show the registered controllers; `set` changes or adds one.")


@app.default
def listed(*, output: Format = "table", state: StateDir = None) -> int:
    """Show the registered controllers."""
    kind = resolve("controllers")
    return show_list(Client.find(state).items("/v1/controllers"), kind.columns, output, kind.named)


@app.command(name="set")
def set_(
    name: Controller,
    /,
    *,
    deadline: str = "",
    policy: Literal["required", "optional", "stale-ok"] | None = None,
    weight: float | None = None,
    placement: Annotated[bool | None, Parameter(negative="--no-placement")] = None,
    actions: Annotated[bool | None, Parameter(negative="--no-actions")] = None,
    remove: Annotated[bool, Parameter(negative="")] = False,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Change a controller while the mesh runs; one that is not there is added (plain NATS controllers enter so).

    Parameters
    ----------
    deadline
        How long it may take: 300ms.
    policy
        What its silence means: required, optional or stale-ok.
    weight
        What its scores count.
    placement
        Whether it is asked for candidates.
    actions
        Whether it is asked for contributions to manifests.
    remove
        Forget it and what was set: nobody is asked in its name until it registers again.
    """
    given = {"policy": policy, "weight": weight, "placement": placement, "actions": actions}
    body: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if deadline:
        body["deadlineMs"] = round(seconds(deadline) * 1000, 3)
    if remove:
        if body:
            raise Failure("what is removed has no settings: give --remove alone", USAGE)
        return _remove(Client.find(state), name, output)
    if not body:
        raise Failure("nothing to set: give --deadline, --policy, --weight or --remove", USAGE)
    answer = Client.find(state).call("PUT", path("controllers", name), body=body)
    if output in ("json", "yaml"):
        return show(answer, output)
    out(f"controller/{name}" if output == "name" else f"controller {name} set")
    return DONE


def _remove(client: Client, name: str, output: Format) -> int:
    client.get(path("controllers", name))  # one that is not there is not found
    client.call("PUT", path("controllers", name), body={"remove": True})
    out(f"controller/{name}" if output == "name" else f"controller {name} removed")
    return DONE


@app.command(name=["get", "list"])
def get_(name: Controller = "", /, *, output: Format = "table", state: StateDir = None) -> int:
    """Show one controller, or all."""
    from .get import get

    return get("controllers", name, output=output, state=state)
