"""`moorage token`: who may use the gateway, and for what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..durations import seconds
from ..exit_codes import DONE
from ..gateway_client import Client, path
from ..output import Column, Format, StateDir, field, show, show_list
from ..terminal import note, out
from .completion import TokenName

app = App(name="token", help="Access tokens: create, list, revoke.")

_COLUMNS = (
    Column("NAME", field("name")),
    Column("ROLE", field("role")),
    Column("PROJECTS", lambda row: ",".join(row["projects"]) or "all"),
    Column("CREATED", field("created")),
    Column("EXPIRES", lambda row: row.get("expires") or "never"),
    Column("BY", field("by"), wide=True),
)


@app.command
def create(
    name: str,
    /,
    *,
    role: Literal["viewer", "editor", "admin"] = "viewer",
    project: Annotated[list[str] | None, Parameter(name=["--project", "-p"], negative="")] = None,
    expires: str = "",
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Make a token. It is printed this once and cannot be shown again.

    Parameters
    ----------
    name
        What it is called where it is listed, and who it is in the audit.
    role
        viewer reads, editor also changes what is in its projects, admin does everything.
    project
        A project it is good for; may be given several times. Without one: all of them.
    expires
        After how long it ends: 12h. Without it: when it is revoked.
    """
    body: dict[str, Any] = {"name": name, "role": role, "projects": list(project or [])}
    if expires:
        body["expiresIn"] = seconds(expires)
    made = Client.find(state).call("POST", "/v1/tokens", body=body)
    if output in ("json", "yaml"):
        return show(made, output)
    if output == "name":
        out(f"token/{name}")
    else:
        note(f"token {name}, {role} of {', '.join(made['projects']) or 'all projects'}; it is not shown again:")
        out(made["token"])
    return DONE


@app.command(name="list")
def listed(*, output: Format = "table", state: StateDir = None) -> int:
    """Show the tokens there are, without their secrets."""
    items = Client.find(state).items("/v1/tokens")
    return show_list(items, _COLUMNS, output, lambda row: f"token/{row['name']}")


@app.command
def revoke(name: TokenName, /, *, state: StateDir = None) -> int:
    """Revoke a token: at once, everywhere.

    Parameters
    ----------
    name
        As it is listed.
    """
    Client.find(state).call("DELETE", path("tokens", name))
    out(f"token {name} revoked")
    return DONE
