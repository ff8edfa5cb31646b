"""`moorage fleet`: runs simulated clusters, changes those of a running mesh, and injects faults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..documents import read_fleet
from ..durations import seconds
from ..exit_codes import DONE, USAGE, Failure, of_status
from ..gateway_client import Client, path, problem_text
from ..names import cluster_parts
from ..output import DEFAULT, Format, Listing, StateDir, Yes, show
from ..terminal import counted, note, out
from .completion import Cluster

app = App(name="fleet", help="Run and change simulated clusters.")


@app.default
def list_clusters(*, listing: Listing = DEFAULT, state: StateDir = None) -> int:
    """List all clusters of the fleet."""
    from .get import get

    return get("clusters", listing=listing, state=state)


@app.command(name=["list", "get"])
def list_clusters_by_name(*, listing: Listing = DEFAULT, state: StateDir = None) -> int:
    """List all clusters of the fleet."""
    return list_clusters(listing=listing, state=state)


@app.command
def apply(
    file: Annotated[str, Parameter(help="Fleet file, or - for stdin.")] = "",
    /,
    *,
    filename: Annotated[str, Parameter(name=["--filename", "-f"], help="Fleet file, or - for stdin.")] = "",
    timeout: str = "120s",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Yes = False,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Make the simulated fleet of the running mesh equal to a file.

    Adds, changes and removes clusters, and returns when the inventory has them. Shows what is added and removed, and asks if
    groups run on clusters that are removed.

    Parameters
    ----------
    timeout
        Maximum time to wait for the inventory.
    dry_run
        Only show what changes.
    """
    source = file or filename
    if not source:
        raise Failure("a fleet file is required", USAGE)
    from ..fleet_changes import apply_fleet_document

    document, within = read_fleet(source), seconds(timeout)
    answer = apply_fleet_document(Client.find(state), document, yes=yes, dry_run=dry_run, within=within)
    if output in ("json", "yaml"):
        return show(answer, output)
    if dry_run:
        return DONE
    out(
        "\n".join(f"cluster/{c}" for c in answer["clusters"])
        if output == "name"
        else counted(len(answer["clusters"]), "cluster")
    )
    return DONE


@app.command
def fault(
    cluster: Cluster,
    fault: Literal["silent", "slow", "refuse", "lose-pods", "replay"],
    /,
    *,
    for_: Annotated[str, Parameter(name="--for", help="Duration (default: until the fleet is applied again).")] = "",
    state: StateDir = None,
) -> int:
    """Inject a fault into a simulated cluster.

    Parameters
    ----------
    fault
        silent: no reports and no answers; slow: everything 2 s late; refuse: applies are refused; lose-pods: half of the pods
        vanish; replay: old reports are sent again.
    """
    body: dict[str, Any] = {"fault": fault}
    if for_:
        body["seconds"] = seconds(for_)
    Client.find(state).call("POST", path("sim", "clusters", *cluster_parts(cluster), "fault"), body=body)
    out(f"cluster {cluster}: {fault}" + (f" for {for_}" if for_ else ""))
    return DONE


@app.command
def sim(
    file: Path | None = None,
    /,
    *,
    clusters: int = 0,
    nodes: int = 20,
    seed: int = 1,
    state: StateDir = None,
) -> int:
    """Run simulated clusters in the foreground against a running mesh.

    The clusters come from a file or are generated. If another simulator already runs one of them, all are refused and the
    command exits with 4. When it stops, its clusters leave the fleet, except those on which groups have claims.

    With MOORAGE_CLUSTER set, it has only the permissions of that cluster's agent, and the file must have that one cluster.

    Parameters
    ----------
    file
        Fleet file.
    clusters
        Number of clusters to generate instead of reading a file.
    nodes
        Nodes of each generated cluster.
    seed
        Seed of the generator; the same seed makes the same clusters.
    """
    if (file is None) == (clusters <= 0):
        raise Failure("give either a fleet file or --clusters N", USAGE)
    from ..process_title import set_title
    from ..state_dir import StateDirectory, state_dir
    from ..workers import prepare_process, serve
    from .run import settings_for

    body = read_fleet(str(file)).body if file is not None else None
    settings = settings_for("sim", StateDirectory(state_dir(state)))
    from msgspec import to_builtins

    from moorage.mesh.discovery import installed
    from moorage.model.problems import Refused
    from moorage.sim.foreground import simulate
    from moorage.telemetry import configure

    set_title("sim")
    prepare_process(installed().workers["sim"].nice)
    cluster = os.environ.get("MOORAGE_CLUSTER", "")
    simulated = simulate(settings, fleet=body, clusters=clusters, nodes=nodes, seed=seed, agent=cluster, say=note)
    try:
        return serve(simulated, configure("sim"))
    except Refused as refused:
        problem = refused.problem
        raise Failure(problem_text(to_builtins(problem)), of_status(problem.status)) from refused
