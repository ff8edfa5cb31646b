"""`moorage node`: runs the agent of a node, and shows and changes what it gives to containers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..durations import seconds
from ..exit_codes import DONE, FAILED, USAGE, Failure
from ..node_client import DEFAULT_ROOT, NodeClient
from ..output import DEFAULT, Column, Format, Listing, Row, StateDir, field, show, show_list
from ..terminal import note, out

app = App(name="node", help="Run the agent of a node, and show what it gives to containers.")
pools_app = App(name="pools", help="Show the pools of CPUs, or change them.")
app.command(pools_app)

Root = Annotated[Path, Parameter(help="Directory of the agent.")]
Pod = Annotated[str, Parameter(help="Pod, NAMESPACE/NAME or its uid.")]


@app.command
def run(
    *,
    node: str,
    attach: Literal["cri", "nri", "alone"] = "cri",
    runtime: str = "unix:///run/containerd/containerd.sock",
    root: Root = DEFAULT_ROOT,
    config: Path | None = None,
    pods: str = "api",
    nri: Path = Path("/var/run/nri/nri.sock"),
    sysfs: Path = Path("/sys"),
    plugins: str = "cpu,memory,NIC",
    cluster: str = "",
    credentials: Path | None = None,
    kubeconfig: Path | None = None,
    kubelet_dir: Path = Path("/var/lib/kubelet"),
    cgroup_parent: str = "/moorage",
    feature_gates: Annotated[str, Parameter(name=["--feature-gates", "--feature-gate"])] = "",
    qos_resource_manager_reconcile_period: str = "3s",
) -> int:
    """Run the agent of this node until SIGTERM.

    It prints `ready` and, attached as a proxy, the address for the kubelet's containerRuntimeEndpoint. With the feature gate
    off, the default, all calls pass unchanged.

    Parameters
    ----------
    node
        Name of the node in its cluster.
    attach
        cri: as a proxy between kubelet and runtime; nri: as a plugin of the runtime; alone: without a kubelet.
    runtime
        Socket of the container runtime.
    config
        File with the NodePolicy; changes apply at once.
    pods
        Where pods are known from: api, or a directory with manifests.
    nri
        Socket of the runtime's NRI.
    sysfs
        Where the machine is read from.
    plugins
        Built-in plugins to run in this process.
    cluster
        Name of the cluster in the fleet, PROVIDER/NAME; with it the agent reports to the mesh.
    credentials
        File that `moorage node join` wrote.
    kubeconfig
        Kubeconfig to watch pods with (default: the pod's service account).
    kubelet_dir
        Directory of the kubelet, for the state of its own managers.
    cgroup_parent
        Parent of the cgroups of pods that run without a kubelet.
    feature_gates
        QoSResourceManager=true turns the agent on.
    qos_resource_manager_reconcile_period
        How often plugins are asked and containers read back.
    """
    try:
        from moorage.node.settings import Settings, read_gate
    except ImportError as error:
        raise _not_installed(error) from error
    try:
        enabled = read_gate(feature_gates)
    except ValueError as error:
        raise Failure(f"--feature-gates: {error}", USAGE) from error
    if attach == "alone" and pods == "api":
        raise Failure("--attach alone runs the pods of a directory: name it with --pods DIR", USAGE)
    settings = Settings(
        node=node,
        attach=attach,
        runtime=runtime,
        root=root.absolute(),
        config=config.absolute() if config is not None else None,
        pods=pods,
        nri=nri,
        sysfs=sysfs,
        plugins=tuple(name for name in plugins.split(",") if name),
        cluster=cluster,
        credentials=credentials,
        kubeconfig=kubeconfig,
        kubelet=kubelet_dir,
        cgroup_parent=cgroup_parent,
        enabled=enabled,
        period=seconds(qos_resource_manager_reconcile_period),
    )
    # The agent runs for months on every node: it does not keep what a command line needs in memory.
    os.execv(sys.executable, [sys.executable, "-m", "moorage.node", settings.encode()])


@app.command
def plugin(
    name: Literal["cpu", "memory", "NIC"],
    /,
    *,
    root: Root = DEFAULT_ROOT,
    config: Path | None = None,
    sysfs: Path = Path("/sys"),
) -> int:
    """Run one built-in plugin in a process of its own, for an agent that runs without it.

    Parameters
    ----------
    config
        File with the NodePolicy.
    sysfs
        Where the machine is read from.
    """
    try:
        from moorage.node.worker import CANNOT_RUN, run_plugin, serve
    except ImportError as error:
        raise _not_installed(error) from error
    _configure_logs()
    try:
        return serve(run_plugin(name, root.absolute(), config, sysfs))
    except CANNOT_RUN as error:
        raise Failure(f"the plugin cannot run: {error}", FAILED) from error


def _configure_logs() -> None:
    from moorage.telemetry import configure

    configure("node")


def _not_installed(error: ImportError) -> Failure:
    return Failure(f"the node agent is not installed ({error}); install moorage[node], in a checkout with `make node`")


ALLOCATIONS = [
    Column("POD", field("pod"), is_name=True),
    Column("CONTAINER", field("container")),
    Column("ROLE", field("role")),
    Column("RESOURCES", lambda row: _resources(row)),
    Column("APPLIED", lambda row: "yes" if row.get("applied") else "no"),
    Column("UID", field("uid"), wide=True),
]


def _resources(row: Row) -> str:
    if reasons := row.get("reasons"):
        return f"refused: {reasons[0]['code']}"
    given = row.get("resources") or {}
    return ", ".join(f"{name} {info['allocationResult'] or info['allocatedQuantity']}" for name, info in given.items())


@app.command
def allocations(pod: Pod = "", /, *, root: Root = DEFAULT_ROOT, listing: Listing = DEFAULT) -> int:
    """List what containers were given."""
    return _list(NodeClient(root).get("/v1/allocations", pod=pod), ALLOCATIONS, listing, "pod")


POOLS = [
    Column("NAME", field("name"), is_name=True),
    Column("CPUS", field("cpus")),
    Column("SIZE", field("size")),
    Column("MIN", field("min")),
    Column("CONTAINERS", lambda row: len(row.get("containers") or ())),
]


@pools_app.default
def pools(*, root: Root = DEFAULT_ROOT, listing: Listing = DEFAULT) -> int:
    """List the pools of CPUs."""
    return _list(NodeClient(root).get("/v1/pools"), POOLS, listing, "name")


@pools_app.command(name="set")
def set_pools(*pool: str, root: Root = DEFAULT_ROOT, listing: Listing = DEFAULT) -> int:
    """Give pools other CPUs, in one step.

    Returns when all containers were read back. Exits with 1, and all as it was, if that cannot be.

    Parameters
    ----------
    pool
        NAME=CPUS, for example online=0-13,40-53.
    """
    wanted = {}
    for text in pool:
        name, equals, cpus = text.partition("=")
        if not equals or not name:
            raise Failure(f"{text!r}: write NAME=CPUS, for example online=0-13,40-53", USAGE)
        wanted[name] = cpus
    if not wanted:
        raise Failure("name at least one pool: NAME=CPUS", USAGE)
    return _list(NodeClient(root).post("/v1/pools", wanted), POOLS, listing, "name")


ZONES = [
    Column("ID", field("id"), is_name=True),
    Column("CPUS", field("cpus")),
    Column("EXCLUSIVE", field("exclusiveCpus")),
    Column("FREE", field("exclusiveFree")),
    Column("MEMORY FREE", lambda row: f"{row.get('memoryFree', 0) / (1 << 30):.1f}Gi"),
    Column("ROLES", lambda row: ",".join(row.get("roles") or ())),
]


@app.command
def zones(*, root: Root = DEFAULT_ROOT, listing: Listing = DEFAULT) -> int:
    """List the NUMA zones with what is free."""
    return _list(NodeClient(root).get("/v1/zones"), ZONES, listing, "id")


PLUGINS = [
    Column("NAME", field("name"), is_name=True),
    Column("REGISTERED", lambda row: "yes" if row.get("registered") else "no"),
    Column("MESSAGE", field("message")),
    Column("SOCKET", field("socket"), wide=True),
]


@app.command
def plugins(*, root: Root = DEFAULT_ROOT, listing: Listing = DEFAULT) -> int:
    """List the plugins."""
    return _list(NodeClient(root).get("/v1/plugins"), PLUGINS, listing, "name")


@app.command
def status(*, root: Root = DEFAULT_ROOT, output: Format = "table") -> int:
    """Show the state of the agent."""
    found = NodeClient(root).get("/v1/status")
    if output in ("json", "yaml"):
        return show(found, output)
    for name, value in found.items():
        out(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return DONE


@app.command
def why(pod: Pod, /, *, root: Root = DEFAULT_ROOT, output: Format = "table") -> int:
    """Explain why a pod was admitted or refused."""
    found = NodeClient(root).get("/v1/why", pod=pod)
    if output in ("json", "yaml"):
        return show(found, output)
    out(f"{found['pod']} is {found['outcome']}")
    for reason in found["reasons"]:
        where = f" (container {reason['container']})" if reason["container"] else ""
        out(f"{reason['code']}{where}: {reason['message']}")
        for miss in reason["nearest"]:
            out(f"  numa-{miss['zone']}: {miss['message']}")
    for warning in found.get("warnings", ()):
        out(f"warning: {warning}")
    return DONE


@app.command
def join(
    place: str,
    /,
    *,
    credentials: Path = Path("/etc/moorage/node.json"),
    nats: str = "",
    state: StateDir = None,
) -> int:
    """Give the agent of a node a user of its own on the mesh, which can report that node and nothing else.

    Runs on the machine of `moorage up`. Copy the file to the node, and start the agent with --credentials.

    Parameters
    ----------
    place
        PROVIDER/CLUSTER/NODE, as the fleet names them.
    credentials
        File to write, with mode 0600.
    nats
        NATS URL as the node reaches it (default: the broker of the mesh on this machine).
    """
    import json

    from ..state_dir import StateDirectory, state_dir, write_private
    from ..up.agent_users import ask

    where = StateDirectory(state_dir(state))
    seed = ask(where, "add", _place(place))
    cluster, _, node = place.rpartition("/")
    url = nats or str((where.read_endpoint() or {}).get("nats", ""))
    try:
        credentials.parent.mkdir(parents=True, exist_ok=True)
        write_private(credentials, json.dumps({"cluster": cluster, "node": node, "nats": url, "seed": seed}))
    except OSError as error:
        raise Failure(f"cannot write {credentials}: {error.strerror}") from error
    note(f"{place} may report; its credentials are in {credentials}")
    out(str(credentials))
    return DONE


@app.command
def leave(place: str, /, *, state: StateDir = None) -> int:
    """Revoke the user of a node's agent.

    Parameters
    ----------
    place
        PROVIDER/CLUSTER/NODE, as given to join.
    """
    from ..state_dir import StateDirectory, state_dir
    from ..up.agent_users import ask

    ask(StateDirectory(state_dir(state)), "revoke", _place(place))
    note(f"the agent of {place} has no access any more")
    return DONE


def _place(place: str) -> str:
    from moorage.model.names import is_name

    if place.count("/") != 2 or not all(is_name(part) for part in place.split("/")):
        raise Failure(f"{place!r} is not a node of the fleet; write PROVIDER/CLUSTER/NODE", USAGE)
    return place


@app.command
def simulate(
    *,
    filename: Annotated[Path, Parameter(name=["--filename", "-f"])],
    root: Root = DEFAULT_ROOT,
    listing: Listing = DEFAULT,
) -> int:
    """Admit pods without running them or changing anything.

    Parameters
    ----------
    filename
        File with Pod manifests.
    """
    try:
        content = filename.read_bytes()
    except OSError as error:
        raise Failure(f"{filename}: {error.strerror}", USAGE) from error
    return _list(NodeClient(root).send("/v1/simulate", content), ALLOCATIONS, listing, "pod")


@app.command
def check(*, root: Root = DEFAULT_ROOT, output: Format = "table") -> int:
    """Check the agent. Exits with 1 if something is wrong."""
    found = NodeClient(root).get("/v1/check")
    if output in ("json", "yaml"):
        show(found, output)
    else:
        for item in found["items"]:
            out(f"{item['what']}\n  {item['action']}")
        if not found["items"]:
            note("nothing is wrong")
    return FAILED if found["items"] else DONE


@app.command
def detach(*, root: Root = DEFAULT_ROOT, output: Format = "table") -> int:
    """Give containers back what the kubelet asked for, and let all calls pass unchanged from here on."""
    return _show(NodeClient(root).post("/v1/detach", {}), output)


@app.command
def reset(*, root: Root = DEFAULT_ROOT, output: Format = "table") -> int:
    """Set the agent's state aside and make it again from what runs."""
    return _show(NodeClient(root).post("/v1/reset", {}), output)


def _show(found: dict[str, Any], output: str) -> int:
    if output in ("json", "yaml"):
        return show(found, output)
    for name, value in found.items():
        out(f"{name}: {value}")
    return FAILED if found.get("failed") else DONE


def _list(found: dict[str, Any], columns: list[Column], listing: Listing, name: str) -> int:
    return show_list(found["items"], columns, listing, lambda row: str(row[name]))
