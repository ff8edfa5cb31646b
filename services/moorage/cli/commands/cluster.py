"""`moorage cluster`: the clusters of the fleet."""

from __future__ import annotations

from cyclopts import App

from ..output import Format, StateDir, Watch
from .completion import Cluster

app = App(name="cluster", help="Clusters: show, join, leave, cordon, uncordon and drain them.")
app.command("moorage.cli.commands.join:join", name="join", help="Join a cluster to the fleet.")
app.command("moorage.cli.commands.join:leave", name="leave", help="Take a cluster out of the fleet.")
app.command("moorage.cli.commands.drain:cordon", name="cordon", help="Let nothing new go to a cluster.")
app.command("moorage.cli.commands.drain:uncordon", name="uncordon", help="Let new things go to a cluster again.")
app.command("moorage.cli.commands.drain:drain", name="drain", help="Move to other clusters what can be moved.")


@app.default
def listed(*, output: Format = "table", watch: Watch = False, state: StateDir = None) -> int:
    """Show all clusters."""
    from .get import get

    return get("clusters", output=output, watch=watch, state=state)


@app.command(name=["get", "list"])
def get_(name: Cluster = "", /, *, output: Format = "table", watch: Watch = False, state: StateDir = None) -> int:
    """Show one cluster, or all."""
    from .get import get

    return get("clusters", name, output=output, watch=watch, state=state)


@app.command(name="describe")
def describe_(name: Cluster, /, *, state: StateDir = None) -> int:
    """Describe one cluster with its nodes and claims."""
    from .describe import describe

    return describe("clusters", name, state=state)
