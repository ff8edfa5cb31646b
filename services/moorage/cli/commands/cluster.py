"""`moorage cluster`: shows and changes the clusters of the fleet."""

from __future__ import annotations

from cyclopts import App

from ..output import DEFAULT, Listing, StateDir, Watch
from .completion import Cluster
from .drain import cordon, drain, uncordon
from .join import join, leave

app = App(name="cluster", help="Show, join, remove, cordon and drain clusters.")
for command in (join, leave, cordon, uncordon, drain):
    app.command(command)


@app.default
def list_clusters(*, listing: Listing = DEFAULT, watch: Watch = False, state: StateDir = None) -> int:
    """List all clusters."""
    from .get import get

    return get("clusters", listing=listing, watch=watch, state=state)


@app.command(name=["get", "list"])
def get_cluster(
    name: Cluster = "", /, *, listing: Listing = DEFAULT, watch: Watch = False, state: StateDir = None
) -> int:
    """List clusters, or show one."""
    from .get import get

    return get("clusters", name, listing=listing, watch=watch, state=state)


@app.command(name="describe")
def describe_cluster(name: Cluster, /, *, state: StateDir = None) -> int:
    """Show the details of a cluster with its nodes and claims."""
    from .describe import describe

    return describe("clusters", name, state=state)
