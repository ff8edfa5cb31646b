"""`moorage cluster join` and `moorage cluster leave`."""

from __future__ import annotations

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
_LEAVE_SECONDS = 120.0


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
    machines: Annotated[bool, Parameter(negative="")] = False,
    state: StateDir = None,
) -> int:
    """Join a cluster to the fleet.

    Creates a namespace, a role with least privilege, credentials and the agent's deployment in the cluster.

    Parameters
    ----------
    name
        Name of the cluster in the fleet, PROVIDER/NAME or NAME (default: the context's).
    context
        Context of the kubeconfig (default: the current one).
    kubeconfig
        Kubeconfig file (default: $KUBECONFIG, then ~/.kube/config).
    provider
        Provider of the cluster (default: kube).
    label
        Label of the cluster, NAME=VALUE (repeatable).
    nats
        NATS URL as the agent reaches it (default: the broker of the mesh on this machine).
    image
        Image of the agent.
    replicas
        Number of agents; one is active, the others are standbys.
    deploy
        Create the deployment; with --no-deploy, run `moorage agent` yourself.
    machines
        Let the cluster have Machines, too: their definitions, rights and hooks, and a deployment that holds their slots
        (with --no-deploy, run `moorage machines` yourself).
    """
    from moorage.agent.install import read_labels
    from moorage.agent.install_manifests import IMAGE, credentials, deployment, rights
    from moorage.kube import connect, install_objects
    from moorage.mesh.permissions import machines_of

    from ..up.agent_users import ask

    try:
        labels = read_labels(",".join(label or []))
    except ValueError as error:
        raise Failure(f"--label {error}", USAGE) from error
    cluster = cluster_name(name, provider, kubeconfig, context)
    where = StateDirectory(state_dir(state))
    endpoint = where.read_endpoint()
    if endpoint is None:
        raise Failure(
            f"no mesh is running here: {where.endpoint} does not exist; join on the machine that runs `moorage up`",
            UNREACHABLE,
        )

    async def work() -> None:
        api = await connect(kubeconfig, context)
        try:
            await api.call("GET", "/version")  # fails before anything is created
            seed = ask(where, "add", cluster)
            objects = [*rights(labels), credentials(cluster, nats or endpoint["nats"], seed, labels)]
            if deploy:
                objects.append(deployment(image or IMAGE, replicas))
            await install_objects(api, objects, note)
            if machines:
                from moorage.machines.install import install
                from moorage.machines.install_manifests import credentials as user_of_machines

                user = user_of_machines(cluster, nats or endpoint["nats"], ask(where, "add", machines_of(cluster)))
                await install(api, image or IMAGE, replicas, note, deploy=deploy, user=user)
        finally:
            await api.close()

    perform(work())
    host = urlsplit(nats or endpoint["nats"]).hostname
    if deploy and host in ("127.0.0.1", "localhost", "::1"):
        note(
            f"pods cannot reach {nats or endpoint['nats']}: start `moorage up --nats HOST:PORT` with an address that they "
            "can reach and join again with --nats, or run `moorage agent` here"
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
    """Remove a cluster from the fleet.

    Deletes the objects that the agent created in the cluster, then the agent, its role and its credentials.

    Parameters
    ----------
    name
        Name of the cluster in the fleet, PROVIDER/NAME or NAME (default: the context's).
    context
        Context of the kubeconfig (default: the current one).
    kubeconfig
        Kubeconfig file (default: $KUBECONFIG, then ~/.kube/config).
    provider
        Provider of the cluster (default: kube).
    force
        Remove the cluster even if groups still run on it, or it has Machines or guests. Guests that wait are started.
    """
    from moorage.agent.install import dismantle, say_goodbye, undo
    from moorage.agent.install_manifests import all_rights, deployment
    from moorage.bus import Settings
    from moorage.kube import connect
    from moorage.machines.install import uninstall

    from ..up.agent_users import ask

    cluster = cluster_name(name, provider, kubeconfig, context)
    where = StateDirectory(state_dir(state))
    client = Client.find(state)
    endpoint = where.read_endpoint() or {}
    known = _known(client, cluster)
    machines = perform(_machines_of(kubeconfig, context))
    if machines and not force:
        raise Failure(
            f"{cluster} still has {', '.join(machines[:5])}; delete them first, or use --force, which takes their slots away",
            CONFLICT,
        )
    groups: list[str] = []
    if known is not None:
        groups = sorted({claim["group"] for claim in known["claims"]})
        if groups and not force:
            raise Failure(
                f"{cluster} still runs {', '.join(groups[:5])}; run `moorage cluster drain {cluster}` first, or use --force",
                CONFLICT,
            )
        client.call("PATCH", path("clusters", *cluster.split("/")), body={"cordoned": True})

    async def work() -> None:
        api = await connect(kubeconfig, context)
        try:
            if machines is not None:
                await uninstall(api, note)
            session = await undo(api, note, _LEAVE_SECONDS)
            await dismantle(api, [*all_rights(), deployment()], note)
        finally:
            await api.close()
        if known is not None:
            await say_goodbye(Settings(endpoint["nats"], endpoint["natsSeed"]), cluster, session)

    perform(work())
    if known is not None:
        with contextlib.suppress(Refusal):
            client.call("PATCH", path("clusters", *cluster.split("/")), body={"cordoned": False})
    ask(where, "revoke", cluster)
    for group in groups:  # placed on other clusters where possible
        with contextlib.suppress(Refusal):
            client.call("POST", group_path(group, "redecide"))
    out(f"{cluster} left")
    return DONE


async def _machines_of(kubeconfig: Path | None, context: str | None) -> list[str] | None:
    """Returns the Machines and guests of a cluster; None if it does not have such kinds."""
    from moorage.kube import connect
    from moorage.machines.install import in_use, is_installed

    api = await connect(kubeconfig, context)
    try:
        return await in_use(api) if await is_installed(api) else None
    finally:
        await api.close()


def _known(client: Client, cluster: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get(path("clusters", *cluster.split("/")))
    except Refusal as refusal:
        if refusal.status == 404:
            return None
        raise
    return found


def perform(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that talks to a cluster, and turns its errors into Failures."""
    import asyncio

    from moorage.bus import NoAnswer
    from moorage.kube import ApiError, Unreachable

    try:
        return asyncio.run(work)
    except ApiError as error:
        raise Failure(
            f"the cluster refused the request: {error.message}", 5 if error.code in (401, 403) else FAILED
        ) from error
    except (Unreachable, NoAnswer) as error:
        raise Failure(str(error), UNREACHABLE) from error
