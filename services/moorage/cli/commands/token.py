"""`moorage token`: manages access tokens of the gateway."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..durations import seconds
from ..exit_codes import DONE
from ..gateway_client import Client, path
from ..output import DEFAULT, Column, Format, Listing, StateDir, field, show, show_list
from ..terminal import note, out
from .completion import TokenName

app = App(name="token", help="Create, list and revoke access tokens.")

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
    """Create a token.

    The token is printed once and cannot be shown again.

    Parameters
    ----------
    name
        Name of the token in lists and in the audit log.
    role
        Role: a viewer reads, an editor also changes documents of its projects, an admin may do everything.
    project
        Project that the token is valid for (repeatable; default: all).
    expires
        Lifetime, for example 12h (default: until revoked).
    """
    body: dict[str, Any] = {"name": name, "role": role, "projects": list(project or [])}
    if expires:
        body["expiresIn"] = seconds(expires)
    created = Client.find(state).call("POST", "/v1/tokens", body=body)
    if output in ("json", "yaml"):
        return show(created, output)
    if output == "name":
        out(f"token/{name}")
    else:
        projects = ", ".join(created["projects"]) or "all projects"
        note(f"token {name} created: {role} of {projects}; it is not shown again:")
        out(created["token"])
    return DONE


@app.command(name="list")
def list_tokens(*, listing: Listing = DEFAULT, state: StateDir = None) -> int:
    """List tokens without their secrets."""
    items = Client.find(state).items("/v1/tokens")
    return show_list(items, _COLUMNS, listing, lambda row: f"token/{row['name']}")


@app.command
def revoke(name: TokenName, /, *, state: StateDir = None) -> int:
    """Revoke a token immediately."""
    Client.find(state).call("DELETE", path("tokens", name))
    out(f"token {name} revoked")
    return DONE
