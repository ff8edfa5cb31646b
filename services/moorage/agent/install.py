"""Installs the agent in a cluster and removes it again, with an administrator's rights. Before it is removed, everything
that it created for apps is."""

from __future__ import annotations

import asyncio
import os
import socket
from base64 import b64decode
from collections.abc import Coroutine
from typing import Any

import msgspec

from moorage.bus import Bus, Settings, new_id
from moorage.kube import (
    Api,
    ApiDiscovery,
    ApiError,
    ApiResource,
    LeaderElector,
    LeaderTerm,
    Say,
    Unreachable,
    apply_order,
)
from moorage.model.desired_state import DesiredApp
from moorage.model.object_names import NAMESPACE
from moorage.model.status import Confirm

from .app_reconciler import AppReconciler
from .app_records import AppRecord, AppRecords
from .context import ClusterContext
from .core.cluster_state import ClusterState
from .core.owned_objects import Ref, label_of
from .install_manifests import NAME, Object
from .object_watches import ObjectWatches
from .reporting import leave
from .unrecorded_objects import UnrecordedObjects
from .worker import LEASE, SESSION

#: A version that is newer than that of any decision.
_LAST = 1 << 62


async def joined(api: Api) -> dict[str, str]:
    """Returns the credentials that `join` stored, for agents that run outside the cluster; empty if there are none, or if
    they may not be read."""
    try:
        found = await api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}")
    except ApiError as error:
        if error.code in (401, 403):
            return {}
        raise
    return {name: b64decode(value).decode() for name, value in ((found or {}).get("data") or {}).items()}


async def token(api: Api, seconds: int = 3600) -> str:
    """Requests a token of the agent's service account, for an agent that runs outside its cluster."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}
    _, data = await api.call("POST", path, body=msgspec.json.encode(body))
    return str(msgspec.json.decode(data)["status"]["token"])


async def undo(api: Api, say: Say, within: float) -> str:
    """Stops the agent, removes what it created for apps and releases the fields it owns. Returns the session that it
    reported with last."""
    await _remove(api, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}")
    session: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def lead(term: LeaderTerm) -> None:
        await _remove_apps(api, term, say)
        session.set_result(term.previous_annotations.get(SESSION, ""))
        await asyncio.Event().wait()

    elector = LeaderElector(api, NAMESPACE, LEASE, f"leave-{socket.gethostname()}-{os.getpid()}-{new_id()}")
    leading = asyncio.ensure_future(elector.run(lead))
    try:
        async with asyncio.timeout(within):
            futures: list[asyncio.Future[Any]] = [leading, session]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        raise Unreachable(f"not everything is removed after {within:g} s; leave again to continue") from None
    finally:
        leading.cancel()
        outcome = (await asyncio.gather(leading, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise outcome
    return session.result() if session.done() else ""


async def _remove_apps(api: Api, term: LeaderTerm, say: Say) -> None:
    records = AppRecords(api, NAMESPACE, term)
    apps: dict[str, AppReconciler] = {}
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Any]] = []

        def spawn(coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            tasks.append(group.create_task(coro))
            return tasks[-1]

        def app_of(record: AppRecord) -> AppReconciler:
            label = label_of(record.content.group, record.content.app)
            return apps.get(label) or apps.setdefault(label, AppReconciler(cluster, record, _ignore))

        def adopt(record: AppRecord, kind: ApiResource, ref: Ref) -> None:
            app_of(record).adopt(kind, ref)

        watches = ObjectWatches(api, spawn, lambda _label: None, lambda kind, live: unrecorded.learn_object(kind, live))
        cluster = ClusterContext(api, term, records, watches, ClusterState(), apps)
        unrecorded = UnrecordedObjects(cluster, adopt)
        for record in await records.load():
            app_of(record)
        await unrecorded.search(spawn)
        running: set[str] = set()
        while not all(app.removed for app in apps.values()):
            for app in [app for label, app in apps.items() if label not in running]:
                content = app.record.content
                say(f"removing {content.group}, app {content.app}")
                app.set_desired(DesiredApp(group=content.group, app=content.app, version=_LAST, remove=True))
                spawn(app.run())
                running.add(app.label)
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()


def _ignore(_confirm: Confirm) -> None:
    """Confirms nothing: the patcher learns from inventory that the cluster has left."""


async def dismantle(api: Api, objects: list[Object], say: Say) -> None:
    """Removes what `join` applied, in reverse order; what is inside the namespace goes with it."""
    kinds = ApiDiscovery(api)
    # In equal order the last one goes first: Kubernetes writes an aggregated ClusterRole again, even one that is gone, when
    # it sees its parts go before it.
    order = sorted(range(len(objects)), key=lambda i: (apply_order(objects[i]["kind"]), i), reverse=True)
    for obj in (objects[i] for i in order):
        kind = await kinds.find(obj["apiVersion"], obj["kind"])
        if kind is not None:
            await _remove(api, kind.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))
            say(f"{obj['kind']} {obj['metadata']['name']} removed")


async def _remove(api: Api, path: str) -> None:
    """Deletes an object at once and its dependents later. In the foreground the garbage collector would choose the order."""
    try:
        await api.call("DELETE", path, body=b'{"propagationPolicy":"Background"}')
    except ApiError as error:
        if error.code not in (404, 409):
            raise


async def say_goodbye(settings: Settings, cluster: str, session: str) -> None:
    """Requests that inventory forgets the cluster, as an administrator, because the agent is gone."""
    bus = await Bus.connect(settings, worker="admin")
    try:
        await leave(bus, cluster, session)
    finally:
        await bus.close()


def read_labels(text: str) -> dict[str, str]:
    """Parses `a=b,c=d`."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ValueError(f"{part!r} is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
