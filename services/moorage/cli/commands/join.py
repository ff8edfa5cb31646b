"""`moorage cluster join` and `leave`: what an administrator of a cluster does once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from cyclopts import Parameter

from ..exit_codes import CONFLICT, DONE, FAILED, UNREACHABLE, USAGE, Failure
from ..gateway_client import Client, Refusal, group_path, path
from ..output import StateDir
from ..state_dir import StateDirectory, state_dir
from ..terminal import note, out
from .agent import Labels, cluster_name

T = TypeVar("T")
_LEAVE_WITHIN = 120.0


def join(
    name: str = "",
    /,
    *,
    context: str | None = None,
    kubeconfig: Path | None = None,
    provider: str = "",
    label: Labels = None,
    nats: str = "",
    image: str = "",
    replicas: int = 2,
    deploy: Annotated[bool, Parameter(negative="--no-deploy")] = True,
    state: StateDir = None,
) -> int:
    """Join a cluster: a namespace, the least rights, credentials of its own, and the agent's deployment.

    Parameters
    ----------
    name
        The cluster's name in the fleet, PROVIDER/NAME or NAME; default the context's.
    context
        Which context of the kubeconfig; default the current one.
    kubeconfig
        The file; default $KUBECONFIG, then ~/.kube/config.
    provider
        The cluster's provider; default kube.
    label
        NAME=VALUE, a label of the cluster (may be given several times).
    nats
        Where the agent reaches the broker; default the one of the mesh on this machine.
    image
        The agent's image.
    replicas
        How many agents; one acts, the others stand by.
    deploy
        Also make the deployment; without it, run `moorage agent` yourself.
    """
    from moorage.agent.install import join as make
    from moorage.agent.install import read_labels
    from moorage.agent.install_manifests import IMAGE, credentials, deployment, rights
    from moorage.kube import connect

    from ..up.agent_users import ask

    try:
        labels = read_labels(",".join(label or []))
    except ValueError as wrong:
        raise Failure(f"--label {wrong}", USAGE) from wrong
    cluster = cluster_name(name, provider, kubeconfig, context)
    where = StateDirectory(state_dir(state))
    endpoint = where.read_endpoint()
    if endpoint is None:
        raise Failure(f"no mesh runs here: there is no {where.endpoint}; join where `moorage up` runs", UNREACHABLE)

    async def work() -> None:
        api = await connect(kubeconfig, context)
        try:
            await api.call("GET", "/version")  # before anything is made anywhere
            seed = ask(where, "add", cluster)
            objects = [*rights(), credentials(cluster, nats or endpoint["nats"], seed, labels)]
            if deploy:
                objects.append(deployment(image or IMAGE, replicas))
            await make(api, objects, note)
        finally:
            await api.close()

    perform(work())
    host = urlsplit(nats or endpoint["nats"]).hostname
    if deploy and host in ("127.0.0.1", "localhost", "::1"):
        note(
            f"agents in pods cannot reach {nats or endpoint['nats']}: start `moorage up --nats HOST:PORT` on an address "
            "they can reach and join again with --nats, or run `moorage agent` here"
        )
    out(f"{cluster} joined")
    return DONE


def leave(
    name: str = "",
    /,
    *,
    context: str | None = None,
    kubeconfig: Path | None = None,
    provider: str = "",
    force: Annotated[bool, Parameter(negative="")] = False,
    state: StateDir = None,
) -> int:
    """Take a cluster out of the fleet: what the agent made there goes, then the agent, its rights and its credentials.

    Parameters
    ----------
    name
        The cluster's name in the fleet, PROVIDER/NAME or NAME; default the context's.
    context
        Which context of the kubeconfig; default the current one.
    kubeconfig
        The file; default $KUBECONFIG, then ~/.kube/config.
    provider
        The cluster's provider; default kube.
    force
        Also where groups still run there.
    """
    from moorage.agent.install import dismantle, say_goodbye, undo
    from moorage.agent.install_manifests import deployment, rights
    from moorage.bus import Settings
    from moorage.kube import connect

    from ..up.agent_users import ask

    cluster = cluster_name(name, provider, kubeconfig, context)
    where = StateDirectory(state_dir(state))
    client = Client.find(state)
    endpoint = where.read_endpoint() or {}
    known = _known(client, cluster)
    groups: list[str] = []
    if known is not None:
        groups = sorted({claim["group"] for claim in known["claims"]})
        if groups and not force:
            raise Failure(
                f"{', '.join(groups[:5])} {'is' if len(groups) == 1 else 'are'} still on {cluster}; "
                f"`moorage cluster drain {cluster}` first, or leave with --force",
                CONFLICT,
            )
        client.call("PATCH", path("clusters", *cluster.split("/")), body={"cordoned": True})

    async def work() -> None:
        api = await connect(kubeconfig, context)
        try:
            session = await undo(api, note, _LEAVE_WITHIN)
            await dismantle(api, [*rights(), deployment()], note)
        finally:
            await api.close()
        if known is not None:
            await say_goodbye(Settings(endpoint["nats"], endpoint["natsSeed"]), cluster, session)

    perform(work())
    if known is not None:
        with contextlib.suppress(Refusal):
            client.call("PATCH", path("clusters", *cluster.split("/")), body={"cordoned": False})
    ask(where, "revoke", cluster)
    for group in groups:  # they go where they can
        with contextlib.suppress(Refusal):
            client.call("POST", group_path(group, "redecide"))
    out(f"{cluster} left")
    return DONE


def _known(client: Client, cluster: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get(path("clusters", *cluster.split("/")))
    except Refusal as refusal:
        if refusal.status == 404:
            return None
        raise
    return found


def perform(work: Coroutine[Any, Any, T]) -> T:
    """What goes wrong on the way to a cluster, as a command says it."""
    from moorage.bus import NoAnswer
    from moorage.kube import ApiError, Unreachable

    try:
        return asyncio.run(work)
    except ApiError as error:
        raise Failure(f"the cluster refuses: {error.message}", 5 if error.code in (401, 403) else FAILED) from error
    except (Unreachable, NoAnswer) as error:
        raise Failure(str(error), UNREACHABLE) from error
