"""Joining a cluster and leaving it, as an operator who may administer it: what joining makes, leaving takes away, and before
that everything the agent made there."""

from __future__ import annotations

import asyncio
import os
import socket
from base64 import b64decode
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from moorage.bus import Bus, Settings, new_id
from moorage.kube import Api, ApiDiscovery, ApiError, LeaderElector, Term, Unreachable, apply, apply_order
from moorage.model.desired import Confirm, DesiredApp

from .app_reconciler import AppReconciler
from .app_records import AppRecord, AppRecords, label_of
from .context import ClusterContext
from .core.cluster_state import ClusterState
from .install_manifests import MANAGER, NAME, NAMESPACE, Object
from .object_watches import ObjectWatches
from .reporting import leave
from .worker import LEASE, SESSION

Say = Callable[[str], None]
_LAST = 1 << 62  # a version newer than any decision


async def join(api: Api, objects: list[Object], say: Say) -> None:
    """Safe to repeat; what is there already is brought to what it should be."""
    kinds = ApiDiscovery(api)
    for obj in objects:
        kind = await kinds.find(obj["apiVersion"], obj["kind"])
        if kind is None:
            raise ApiError(404, "NoKind", f"the cluster has no kind {obj['kind']} in {obj['apiVersion']}")
        _, created = await apply(api, kind, obj, force=True, manager=MANAGER)
        say(f"{obj['kind']} {obj['metadata']['name']} {'created' if created else 'is there'}")


async def joined(api: Api) -> dict[str, str]:
    """What joining left for agents that run beside the cluster; nothing where nobody joined it, or nobody may read it."""
    try:
        found = await api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}")
    except ApiError as error:
        if error.code in (401, 403):
            return {}
        raise
    return {name: b64decode(value).decode() for name, value in ((found or {}).get("data") or {}).items()}


async def token(api: Api, seconds: int = 3600) -> str:
    """One that acts as the agent's service account, for an agent that runs beside its cluster."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}
    _, data = await api.call("POST", path, body=msgspec.json.encode(body))
    return str(msgspec.json.decode(data)["status"]["token"])


async def undo(api: Api, say: Say, within: float) -> str:
    """Stops the agent, takes away what it made and gives back the fields it owns. The session it reported with last."""
    await _remove(api, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}")
    session = ""
    done = asyncio.Event()

    async def work(term: Term) -> None:
        nonlocal session
        session = term.before.get(SESSION, "")
        await _clear(api, term, say)
        done.set()
        await asyncio.Event().wait()

    elector = LeaderElector(api, NAMESPACE, LEASE, f"leave-{socket.gethostname()}-{os.getpid()}-{new_id()}")
    task = asyncio.ensure_future(elector.run(work))
    finished = asyncio.ensure_future(done.wait())
    try:
        async with asyncio.timeout(within):
            await asyncio.wait({task, finished}, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        raise Unreachable(f"not all of it is gone after {within:g} s; leave again to go on") from None
    finally:
        for one in (task, finished):
            one.cancel()
        outcome = (await asyncio.gather(task, finished, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise outcome
    return session


async def _clear(api: Api, term: Term, say: Say) -> None:
    records = AppRecords(api, NAMESPACE, term)
    async with asyncio.TaskGroup() as tasks:
        begun: list[asyncio.Task[Any]] = []

        def spawn(coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            begun.append(tasks.create_task(coro))
            return begun[-1]

        following = ObjectWatches(api, spawn, lambda _label: None, lambda kind, live: site.seen(kind, live))
        site = ClusterContext(api, term, records, ApiDiscovery(api), following, ClusterState())
        heard: list[Confirm] = []
        apps: dict[str, AppReconciler] = {}

        def adopt(record: AppRecord) -> AppReconciler:
            app = apps[label_of(record.content.group, record.content.app)] = AppReconciler(site, record, heard.append)
            return app

        site.among(apps, adopt)
        for record in await records.load():
            adopt(record)
        await site.search(spawn)
        running: set[str] = set()
        while not all(app.gone for app in apps.values()):  # each is when its objects are
            for label, app in apps.items():
                if label not in running:
                    say(f"removing {app.group}, app {app.app}")
                    app.decide(DesiredApp(group=app.group, app=app.app, version=_LAST, remove=True))
                    spawn(app.run())
                    running.add(label)
            await asyncio.sleep(0.05)
        for task in begun:
            task.cancel()


async def dismantle(api: Api, objects: list[Object], say: Say) -> None:
    """What joining made, in reverse; the namespace takes what is in it along."""
    kinds = ApiDiscovery(api)
    # Of equal rank the last one first: the role that sums up others would be made again when they go.
    order = sorted(range(len(objects)), key=lambda i: (apply_order(objects[i]["kind"]), i), reverse=True)
    for obj in (objects[i] for i in order):
        kind = await kinds.find(obj["apiVersion"], obj["kind"])
        if kind is not None:
            await _remove(api, kind.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))
            say(f"{obj['kind']} {obj['metadata']['name']} removed")


async def _remove(api: Api, path: str) -> None:
    try:
        await api.call("DELETE", path, body=b'{"propagationPolicy":"Foreground"}')
    except ApiError as error:
        if error.code not in (404, 409):
            raise


async def say_goodbye(settings: Settings, cluster: str, session: str) -> None:
    """Inventory forgets the cluster. As an administrator: the agent is gone."""
    bus = await Bus.connect(settings, worker="admin")
    try:
        await leave(bus, cluster, session)
    finally:
        await bus.close()


def read_labels(text: str) -> dict[str, str]:
    """`a=b,c=d`."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ValueError(f"{part!r} is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
