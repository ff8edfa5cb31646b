"""`moorage cluster`: the clusters of the fleet."""

from __future__ import annotations

from cyclopts import App

from .output import Format, StateDir, Watch

app = App(name="cluster", help="Show clusters: `cluster`, `cluster get NAME`, `cluster describe NAME`.")


@app.default
def listed(*, output: Format = "table", watch: Watch = False, state: StateDir = None) -> int:
    """Show all clusters."""
    from .getting import get

    return get("clusters", output=output, watch=watch, state=state)


@app.command(name="get")
def get_(name: str = "", /, *, output: Format = "table", watch: Watch = False, state: StateDir = None) -> int:
    """Show one cluster, or all."""
    from .getting import get

    return get("clusters", name, output=output, watch=watch, state=state)


@app.command(name="describe")
def describe_(name: str, /, *, state: StateDir = None) -> int:
    """Describe one cluster with its nodes and claims."""
    from .describing import describe

    return describe("clusters", name, state=state)
