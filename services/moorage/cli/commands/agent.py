"""`moorage agent`: the agent of one cluster in the foreground, in a pod or on a laptop."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from ..exit_codes import USAGE, Failure
from ..output import StateDir
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

    In a pod everything comes from its environment. Elsewhere it uses a kubeconfig, and what `cluster join` left there: the
    cluster's name and labels. The mesh on this machine gives it a user of its own; where none runs, it is the one that
    joining made.

    Parameters
    ----------
    kubeconfig
        The file; default $KUBECONFIG, then ~/.kube/config.
    context
        Which context of it; default the current one.
    name
        The cluster's name in the fleet, PROVIDER/NAME or NAME; default the one it joined with, else the context's.
    provider
        The cluster's provider; default the one it joined with, else kube.
    label
        NAME=VALUE, a label of the cluster beside those it joined with (may be given several times).
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
    except ValueError as wrong:
        raise Failure(f"--label {wrong}", USAGE) from wrong
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
    vitals = configure("agent")
    note(f"the agent of {cluster}; Ctrl-C ends it")
    return serve(main(settings, cluster=cluster, kubeconfig=kubeconfig, context=context, labels=labels), vitals)


def ask_cluster(kubeconfig: Path | None, context: str | None, question: Callable[[Api], Awaitable[T]]) -> T:
    from moorage.kube import connect

    from .join import perform

    if kubeconfig is not None:
        readable(kubeconfig)

    async def work() -> T:
        api = await connect(kubeconfig, context)
        try:
            return await question(api)
        finally:
            await api.close()

    return perform(work())


def local_settings(state: StateDirectory, cluster: str) -> Settings:
    """A user of its own on the broker of the mesh on this machine."""
    from moorage.bus import Settings

    from ..up.agent_users import ask

    seed = ask(state, "add", cluster)
    endpoint = state.read_endpoint() or {}
    return Settings(str(endpoint.get("nats", "")), seed)


def cluster_name(name: str, provider: str, kubeconfig: Path | None, context: str | None) -> str:
    """`provider/name`, given so or in two; contexts may be called what clusters may not."""
    from moorage.model.names import is_name

    if kubeconfig is not None:
        readable(kubeconfig)
    before, slash, rest = name.partition("/")
    if slash:
        if provider and provider != before:
            raise Failure(f"{name!r} names the provider {before!r}, and --provider {provider!r}", USAGE)
        provider, name = before, rest
    else:
        name = name or _tidy(context or _current_context(kubeconfig))
    cluster = f"{provider or 'kube'}/{name}"
    if not all(is_name(part) for part in cluster.split("/")) or cluster.count("/") != 1:
        raise Failure(f"{cluster!r} is no name of a cluster; name it as PROVIDER/NAME", USAGE)
    return cluster


def readable(kubeconfig: Path) -> None:
    if not kubeconfig.is_file():
        raise Failure(f"there is no kubeconfig '{kubeconfig}'", USAGE)


def _tidy(context: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in context).strip("-_.")


def _current_context(kubeconfig: Path | None) -> str:
    import yaml

    paths = [kubeconfig] if kubeconfig else [Path(p) for p in os.environ.get("KUBECONFIG", "").split(":") if p]
    for path in paths or [Path("~/.kube/config").expanduser()]:
        try:
            found = yaml.safe_load(path.read_text())
        except OSError:
            continue
        except yaml.YAMLError as wrong:
            raise Failure(f"{path} cannot be read: {wrong}", USAGE) from wrong
        if isinstance(found, dict) and found.get("current-context"):
            return str(found["current-context"])
    raise Failure("no kubeconfig with a current context; name one with --kubeconfig and --context", USAGE)
