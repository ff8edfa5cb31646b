"""`moorage controllers`: shows and configures the registered controllers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..durations import seconds
from ..exit_codes import DONE, USAGE, Failure
from ..gateway_client import Client, path
from ..output import DEFAULT, Format, Listing, StateDir, show, show_list
from ..resource_types import resolve
from ..terminal import out
from .completion import Controller

app = App(name="controllers", help="Show and configure controllers.")


@app.default
def list_controllers(*, listing: Listing = DEFAULT, state: StateDir = None) -> int:
    """List the registered controllers."""
    kind = resolve("controllers")
    return show_list(Client.find(state).items("/v1/controllers"), kind.columns_for([]), listing, kind.qualified_name)


@app.command(name="set")
def set_controller(
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
    """Configure a controller.

    A controller that does not exist is added; this is how controllers without the SDK are registered.

    Parameters
    ----------
    deadline
        Time limit of its answers, for example 300ms.
    policy
        Handling of missing answers: required, optional or stale-ok.
    weight
        Weight of its scores.
    placement
        Ask it for candidates.
    actions
        Ask it for contributions to manifests.
    remove
        Remove it with its settings; it is not asked again until it registers.
    """
    given = {"policy": policy, "weight": weight, "placement": placement, "actions": actions}
    body: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if deadline:
        body["deadlineMs"] = round(seconds(deadline) * 1000, 3)
    if remove:
        if body:
            raise Failure("--remove cannot be combined with other options", USAGE)
        return _remove(Client.find(state), name, output)
    if not body:
        raise Failure("nothing to set; give --deadline, --policy, --weight, --placement, --actions or --remove", USAGE)
    answer = Client.find(state).call("PUT", path("controllers", name), body=body)
    if output in ("json", "yaml"):
        return show(answer, output)
    out(f"controller/{name}" if output == "name" else f"controller {name} set")
    return DONE


def _remove(client: Client, name: str, output: Format) -> int:
    client.get(path("controllers", name))  # fails with 404 if it does not exist
    client.call("PUT", path("controllers", name), body={"remove": True})
    out(f"controller/{name}" if output == "name" else f"controller {name} removed")
    return DONE


@app.command(name=["get", "list"])
def get_controller(name: Controller = "", /, *, listing: Listing = DEFAULT, state: StateDir = None) -> int:
    """List controllers, or show one."""
    from .get import get

    return get("controllers", name, listing=listing, state=state)
