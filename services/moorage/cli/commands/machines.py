"""`moorage machines`: holds the slots of one cluster's Machines in the foreground, in a pod or on a laptop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from moorage.model.names import is_name

from ..exit_codes import UNREACHABLE, USAGE, Failure
from ..output import StateDir
from ..process_title import set_title
from ..state_dir import StateDirectory, state_dir
from ..terminal import note
from .agent import check_kubeconfig, local_settings

if TYPE_CHECKING:
    from moorage.bus import Settings


def machines(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    name: str = "",
    listen: str = "127.0.0.1:0",
    image: str = "",
    state: StateDir = None,
) -> int:
    """Hold the slots of the Machines of one cluster until Ctrl-C.

    `moorage cluster join --machines` has to be run once before. In a pod, the API server reaches the hooks at their Service;
    elsewhere at the address where they listen. Prints `ready URL` as soon as hooks are answered.

    Parameters
    ----------
    kubeconfig
        Kubeconfig file (default: the service account in a pod, else $KUBECONFIG, then ~/.kube/config).
    context
        Context of the kubeconfig (default: the current one).
    name
        Name of the cluster in the fleet, PROVIDER/NAME (default: in a pod, the one it joined with). Without a name nothing is
        asked of the mesh, and only `offlineSlots` are given out.
    listen
        Address of the hooks, HOST:PORT; port 0 takes a free one. The API server has to reach it.
    image
        Image of reservations; its `sleep` runs.
    """
    from moorage.machine_groups.objects import IMAGE
    from moorage.machines.worker import main
    from moorage.telemetry import configure

    from ..workers import serve

    if kubeconfig is not None:
        check_kubeconfig(kubeconfig)
    if not listen.rpartition(":")[2].isdigit():
        raise Failure(f"--listen {listen!r} is not HOST:PORT", USAGE)
    cluster, settings, user = _mesh(name, StateDirectory(state_dir(state)))
    process_health = configure("machines")
    set_title(f"machines {cluster}".strip())
    in_pod = kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    if not in_pod:
        note("holding the slots of Machines; press Ctrl-C to stop")

    def ready(url: str) -> None:
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()

    coro = main(
        kubeconfig=kubeconfig,
        context=context,
        listen=listen,
        url="" if in_pod else None,
        image=image or IMAGE,
        process_health=process_health,
        ready=ready,
        settings=settings,
        cluster=cluster,
        user=user,
    )
    return serve(coro, process_health)


def _mesh(name: str, where: StateDirectory) -> tuple[str, Settings | None, str]:
    """Returns the name of the cluster in the fleet, and how to reach the mesh, as which user: by the environment, or on this machine."""
    from moorage.bus import Settings
    from moorage.mesh.permissions import agent_user, machines_of

    if name and (name.count("/") != 1 or not all(map(is_name, name.split("/")))):
        raise Failure(f"--name {name!r} is not PROVIDER/NAME", USAGE)
    cluster = name or os.environ.get("MOORAGE_CLUSTER", "")
    if not cluster:
        return "", None, ""
    if os.environ.get("MOORAGE_NATS_URL"):
        # Clusters that joined when there was one user for both have no name of another one.
        return cluster, Settings.from_env(), os.environ.get("MOORAGE_NATS_USER") or agent_user(cluster)
    if where.read_endpoint() is None:
        raise Failure("no mesh is running here; set MOORAGE_NATS_URL, or leave --name out", UNREACHABLE)
    own = machines_of(cluster)
    return cluster, local_settings(where, own), agent_user(own)
