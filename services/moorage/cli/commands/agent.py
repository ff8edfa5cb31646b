"""`moorage agent`: runs the agent of one cluster in the foreground, in a pod or on a laptop."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from ..exit_codes import USAGE, Failure
from ..output import StateDir
from ..process_title import set_title
from ..state_dir import StateDirectory, state_dir
from ..terminal import note

if TYPE_CHECKING:
    from moorage.bus import Settings
    from moorage.kube import Api

T = TypeVar("T")

Labels = Annotated[list[str] | None, Parameter(name="--label", negative="")]


def agent(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    name: str = "",
    provider: str = "",
    label: Labels = None,
    state: StateDir = None,
) -> int:
    """Run the agent of one cluster until Ctrl-C.

    In a pod, the environment configures it. Elsewhere it uses a kubeconfig and the name and labels that `cluster join`
    stored in the cluster. It logs in to the mesh on this machine, or, if none is running, with the credentials that `cluster
    join` stored.

    Parameters
    ----------
    kubeconfig
        Kubeconfig file (default: $KUBECONFIG, then ~/.kube/config).
    context
        Context of the kubeconfig (default: the current one).
    name
        Name of the cluster in the fleet, PROVIDER/NAME or NAME (default: the name it joined with, else the context's).
    provider
        Provider of the cluster (default: the one it joined with, else kube).
    label
        Additional label of the cluster, NAME=VALUE (repeatable).
    """
    from moorage.agent.install import joined, read_labels
    from moorage.agent.worker import main
    from moorage.bus import Settings
    from moorage.telemetry import configure

    from ..workers import serve

    known = dict(os.environ)
    if "MOORAGE_CLUSTER" not in known:
        known |= ask_cluster(kubeconfig, context, joined)
    try:
        labels = read_labels(",".join(filter(None, [known.get("MOORAGE_CLUSTER_LABELS", ""), *(label or [])])))
    except ValueError as error:
        raise Failure(f"--label {error}", USAGE) from error
    cluster = known.get("MOORAGE_CLUSTER", "")
    if name or provider or not cluster:
        cluster = cluster_name(name, provider, kubeconfig, context)
    where = StateDirectory(state_dir(state))
    if os.environ.get("MOORAGE_NATS_URL"):
        settings = Settings.from_env()
    elif where.read_endpoint() is None and cluster == known.get("MOORAGE_CLUSTER") and "MOORAGE_NATS_URL" in known:
        settings = Settings(known["MOORAGE_NATS_URL"], known.get("MOORAGE_NATS_SEED", ""))
    else:
        settings = local_settings(where, cluster)
    process_health = configure("agent")
    set_title(f"agent {cluster}")
    note(f"running the agent of {cluster}; press Ctrl-C to stop")
    return serve(main(settings, cluster=cluster, kubeconfig=kubeconfig, context=context, labels=labels), process_health)


def ask_cluster(kubeconfig: Path | None, context: str | None, question: Callable[[Api], Awaitable[T]]) -> T:
    from moorage.kube import connect

    from .join import perform

    if kubeconfig is not None:
        check_kubeconfig(kubeconfig)

    async def work() -> T:
        api = await connect(kubeconfig, context)
        try:
            return await question(api)
        finally:
            await api.close()

    return perform(work())


def local_settings(state: StateDirectory, cluster: str) -> Settings:
    """Gets a NATS user for the cluster's agent on the mesh on this machine."""
    from moorage.bus import Settings

    from ..up.agent_users import ask

    seed = ask(state, "add", cluster)
    endpoint = state.read_endpoint() or {}
    return Settings(str(endpoint.get("nats", "")), seed)


def cluster_name(name: str, provider: str, kubeconfig: Path | None, context: str | None) -> str:
    """Returns `provider/name` from the options. Characters of a context's name that cluster names may not have are
    replaced."""
    from moorage.model.names import is_name

    if kubeconfig is not None:
        check_kubeconfig(kubeconfig)
    before, slash, rest = name.partition("/")
    if slash:
        if provider and provider != before:
            raise Failure(f"{name!r} and --provider {provider!r} name different providers", USAGE)
        provider, name = before, rest
    else:
        name = name or _replace_invalid(context or _current_context(kubeconfig))
    cluster = f"{provider or 'kube'}/{name}"
    if not all(is_name(part) for part in cluster.split("/")) or cluster.count("/") != 1:
        raise Failure(f"{cluster!r} is not a cluster name; use PROVIDER/NAME", USAGE)
    return cluster


def check_kubeconfig(kubeconfig: Path) -> None:
    if not kubeconfig.is_file():
        raise Failure(f"kubeconfig '{kubeconfig}' does not exist", USAGE)


def _replace_invalid(context: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in context).strip("-_.")


def _current_context(kubeconfig: Path | None) -> str:
    import yaml

    paths = [kubeconfig] if kubeconfig else [Path(p) for p in os.environ.get("KUBECONFIG", "").split(":") if p]
    for path in paths or [Path("~/.kube/config").expanduser()]:
        try:
            found = yaml.safe_load(path.read_text())
        except OSError:
            continue
        except yaml.YAMLError as error:
            raise Failure(f"cannot read {path}: {error}", USAGE) from error
        if isinstance(found, dict) and found.get("current-context"):
            return str(found["current-context"])
    raise Failure("no kubeconfig with a current context; use --kubeconfig and --context", USAGE)
