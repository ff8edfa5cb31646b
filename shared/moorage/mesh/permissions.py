"""Least privilege: what each user of the bus may publish and subscribe to, in the form of the server's configuration."""

from __future__ import annotations

from typing import Any

from moorage.model.names import cluster_tokens

from . import subjects
from .mesh import ADMIN, Mesh, SubjectRow
from .spec import WorkerSpec
from .stores import Bucket, ObjectStore, Stream

_API = "$JS.API"
_MACHINES = "machines:"


def for_user(mesh: Mesh, user: str) -> dict[str, Any]:
    """Returns the permissions of one kind of worker."""
    if user == ADMIN:
        return {"publish": {"allow": [">"]}, "subscribe": {"allow": [">"]}}
    spec = mesh.spec(user)
    publish = [_own(row, spec) for row in mesh.subjects if user in row.publishers]
    subscribe = [_own(row, spec) for row in mesh.subjects if user in row.subscribers and not row.streamed]
    permissions: dict[str, Any] = {
        "publish": {"allow": publish + _stores(mesh, spec)},
        "subscribe": {"allow": [f"_INBOX.{user}.>", *subscribe]},
        # Asks that came in one batch may be answered one by one.
        "allow_responses": {"max": subjects.MAX_BATCH, "expires": "2m"} if spec.controller else True,
    }
    if spec.controller and not spec.entry:
        # Another controller never answers, registers or leaves in the name of a built-in one.
        deny = [subjects.OF_CONTROLLER.replace("*", builtin.name) + ">" for builtin in mesh.builtin_controllers]
        permissions["publish"]["deny"] = deny
        permissions["subscribe"]["deny"] = deny
    return permissions


def for_agent(mesh: Mesh, cluster: str, *, machines: bool = False) -> dict[str, Any]:
    """Returns the permissions of the agent of one cluster: it uses the subjects of that cluster and has no rights on
    streams at all. `machines`: what holds slots of Machines there has no user of its own (`machines_of`), because the cluster joined
    when there was none, and uses the agent's. Of a node, PROVIDER/CLUSTER/NODE: its agent only reports that node."""
    if cluster.startswith(_MACHINES):
        return _of_cluster(mesh, cluster, {"machines"})
    if cluster.count("/") == 2:
        place, _, node = cluster.rpartition("/")
        publish = [subjects.reports(place, f"node-{node}")]
        return {"publish": {"allow": publish}, "subscribe": {"allow": [f"_INBOX.{node_user(cluster)}.>"]}}
    return _of_cluster(mesh, cluster, {"agent", "machines"} if machines else {"agent"})


def _of_cluster(mesh: Mesh, place: str, kinds: set[str]) -> dict[str, Any]:
    """Returns the permissions on the subjects of one cluster that these kinds of workers use."""
    own = cluster_tokens(place.removeprefix(_MACHINES))
    publish = [row.pattern.replace(subjects.OF_CLUSTER, own) for row in mesh.subjects if kinds & {*row.publishers}]
    subscribe = [row.pattern.replace(subjects.OF_CLUSTER, own) for row in mesh.subjects if kinds & {*row.subscribers}]
    return {"publish": {"allow": publish}, "subscribe": {"allow": [f"_INBOX.{agent_user(place)}.>", *subscribe]}}


def machines_of(cluster: str) -> str:
    """Returns the name under which the user of what holds slots of Machines in a cluster is added."""
    return f"{_MACHINES}{cluster}"


def agent_user(place: str) -> str:
    """Returns the name of the user of a cluster's agent, of what holds its slots (`machines_of`), or of a node's agent
    (PROVIDER/CLUSTER/NODE)."""
    if place.startswith(_MACHINES):
        return f"machines.{cluster_tokens(place.removeprefix(_MACHINES))}"
    return node_user(place) if place.count("/") == 2 else f"agent.{cluster_tokens(place)}"


def node_user(place: str) -> str:
    """Returns the name of the user of a node's agent. It begins the subjects on which it gets answers."""
    return f"node.{cluster_tokens(place)}"


def _own(row: SubjectRow, spec: WorkerSpec) -> str:
    """Returns the pattern with all clusters, and with the controller's own name if it is a built-in one."""
    pattern = row.pattern.replace(subjects.OF_CLUSTER, "*.*")
    if spec.builtin_controller and pattern.startswith(subjects.OF_CONTROLLER):
        pattern = pattern.replace("*", spec.name, 1)
    return pattern


def _read(stream: str) -> list[str]:
    return [
        f"{_API}.STREAM.INFO.{stream}",
        f"{_API}.CONSUMER.CREATE.{stream}.>",
        f"{_API}.CONSUMER.DELETE.{stream}.>",
        f"{_API}.CONSUMER.INFO.{stream}.>",
        f"{_API}.DIRECT.GET.{stream}",
        f"{_API}.DIRECT.GET.{stream}.>",
        f"{_API}.STREAM.MSG.GET.{stream}",
    ]


def _stores(mesh: Mesh, spec: WorkerSpec) -> list[str]:
    allow = ["$JS.FC.>"]
    written = {store.name for store in spec.owns} | {*spec.writes}
    for name in dict.fromkeys((*(store.name for store in spec.owns), *spec.writes, *spec.reads)):
        store = mesh.stores[name]
        allow += _read(store.stream)
        if isinstance(store, Bucket):
            if name in written:
                allow.append(f"$KV.{name}.>")
            if store.purged and store in spec.owns:
                allow.append(f"{_API}.STREAM.PURGE.{store.stream}")
            continue
        # A limited stream drops its oldest messages by itself.
        if name in written and not (isinstance(store, Stream) and store.limited):
            allow.append(f"{_API}.STREAM.PURGE.{store.stream}")
        if isinstance(store, ObjectStore):
            # The client's object store lists through a consumer without a name and asks for the stream's name first.
            allow += [f"{_API}.CONSUMER.CREATE.{store.stream}", f"{_API}.STREAM.NAMES"]
            if name in written:
                allow.append(f"$O.{name}.>")
    return allow
