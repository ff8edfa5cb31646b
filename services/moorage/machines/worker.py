"""The worker as a process: all answer hooks; the holder of the lease acts. All that a leader does in a term is one group of tasks."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from base64 import b64decode
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import structlog
from aiohttp import web

from moorage.bus import Bus, NoAnswer, Settings, until_done
from moorage.kube import Api, ApiError, LeaderElector, LeaderTerm, Reflector, Unreachable, connect, list_objects
from moorage.kube.objects import Key
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.effects import Effect
from moorage.machine_groups.injection import MachineGroup
from moorage.machine_groups.names import ENABLED, GROUP_VERSION, MACHINE_TYPE, NAMESPACE_LABELS
from moorage.machine_groups.objects import IMAGE, difference
from moorage.model.object_names import NAMESPACE
from moorage.telemetry import ProcessHealth
from moorage.web import listener_of

from . import certificates, hook_configurations
from .hooks import Hooks
from .install_manifests import LEASE, SECRET
from .mesh_documents import write_documents
from .mesh_sync import MeshSync
from .metrics import MachineMetrics
from .other_controller import OtherController
from .requests import MAX_AT_ONCE, Requests, collection

log = structlog.get_logger("machines")
#: Seconds that changes are gathered after a plan. One that comes alone does not wait.
GATHER = 0.01
#: Seconds between looks at the certificate.
CERTIFICATE_INTERVAL = 5.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def main(
    *,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    listen: str = "127.0.0.1:0",
    url: str | None = None,
    image: str = IMAGE,
    process_health: ProcessHealth | None = None,
    ready: Callable[[str], None] = lambda _url: None,
    settings: Settings | None = None,
    cluster: str = "",
    user: str = "",
) -> None:
    """Runs until cancelled. `url`: where the API server reaches the hooks; None: where they listen; "": at the Service. `settings`: of
    the mesh, with the name of their `user`; without it, the cluster is alone."""
    api = await connect(kubeconfig, context)
    worker = MachinesWorker(api, listen, url, image, ready, process_health)
    try:
        if settings is not None:
            async with asyncio.TaskGroup() as tasks:
                # Hooks must not wait for the mesh.
                tasks.create_task(worker.run())
                tasks.create_task(worker.join_mesh(settings, cluster, user))
        else:
            await worker.run()
    finally:
        await worker.leave_mesh()
        await api.close()


class MachinesWorker:
    def __init__(
        self,
        api: Api,
        listen: str,
        url: str | None,
        image: str,
        ready: Callable[[str], None],
        process_health: ProcessHealth | None,
    ) -> None:
        self.api, self._image, self._ready = api, image, ready
        self._socket = listener_of(listen)
        host, port = self._socket.getsockname()[:2]
        own = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._url = own if url is None else url
        self._identity = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._state = ClusterMachines(image)
        self._other = OtherController(api, self._state, self._note_change, lambda: self._leading)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._keys: certificates.Keys | None = None
        self._served: certificates.Pair | None = None
        self._trusted = b""  # the CAs that hooks trust since this process wrote them last
        self._changed = asyncio.Event()
        self._requests: Requests | None = None
        self._hooks: Hooks | None = None
        self._leading = False
        self._announced = asyncio.Event()
        self._writing_hooks = asyncio.Lock()
        self._bus: Bus | None = None
        self._sync: MeshSync | None = None
        self._joined = asyncio.Event()
        if process_health is not None:
            # Hooks are answered without the mesh: its connection is no part of this process's readiness.
            process_health.claimed = True
            process_health.connected = lambda: True
            process_health.health = self._health
        self._metrics = MachineMetrics(self._state, process_health, lambda: self._leading)

    def _note_change(self) -> None:
        self._changed.set()

    def _health(self) -> dict[str, Any]:
        missing = [] if self._hooks is not None else ["the API server"]
        return {"ok": not missing, "missing": missing, "role": "active" if self._leading else "standby"}

    @property
    def _names(self) -> list[str]:
        """Returns the names under which the API server reaches the hooks."""
        if self._url:
            return [urlsplit(self._url).hostname or "localhost"]
        service = f"{hook_configurations.NAME}.{NAMESPACE}.svc"
        return [service, f"{service}.cluster.local"]

    async def run(self) -> None:
        user = await self._user()
        await self._read_keys()
        await self._other.look()
        find = self._list_groups, self._find_nodes, self._other.look
        hooks = Hooks(self._state, user, *find, self._metrics.observe_admission)
        runner = web.ServerRunner(hooks.server())
        try:
            async with asyncio.TaskGroup() as tasks:
                reflectors = self._reflectors()
                for reflector in reflectors:
                    tasks.create_task(reflector.run())
                for reflector in reflectors:
                    await reflector.synced.wait()
                self._state.groups()
                self._state.relist_pods = False  # all Pods come now
                pods = self._pod_reflectors()
                for reflector in pods:
                    tasks.create_task(reflector.run())
                for reflector in pods:
                    await reflector.synced.wait()
                await runner.setup()
                await web.SockSite(runner, self._socket, ssl_context=self._tls).start()
                self._hooks = hooks
                tasks.create_task(self._watch_keys())
                tasks.create_task(self._other.run())
                tasks.create_task(self._announce_ready())
                elector = LeaderElector(self.api, NAMESPACE, LEASE, self._identity)
                tasks.create_task(elector.run(self._lead))
        finally:
            await runner.cleanup()
            self._socket.close()

    async def join_mesh(self, settings: Settings, cluster: str, user: str) -> None:
        """Connects to the mesh, however long that takes, and ends the process when the connection is closed for good."""
        self._state.expects_mesh = True
        async for attempt in until_done((NoAnswer,), first=1.0):
            with attempt:
                self._bus = await Bus.connect(settings, worker=user)
        assert self._bus is not None
        write = partial(write_documents, self.api, self._state)
        self._sync = MeshSync(self._bus, self._state, cluster, self._changed.set, write)
        await self._sync.listen()
        self._joined.set()
        await self._bus.closed.wait()
        raise ConnectionError("the connection to the mesh is closed for good")

    async def leave_mesh(self) -> None:
        if self._bus is not None:
            await self._bus.close()

    async def _run_sync(self, term: LeaderTerm) -> None:
        await self._joined.wait()
        assert self._sync is not None
        await self._sync.run(term)

    async def _announce_ready(self) -> None:
        """Says where the hooks are, once the configurations name this process or another one that acts."""
        await self._announced.wait()
        self._ready(self._url or f"https://{self._names[0]}")

    async def _user(self) -> str:
        """Returns the name that the API server has for this process."""
        body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
        while True:
            try:
                _, data = await self.api.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
                return str(_decode(data)["status"]["userInfo"]["username"])
            except Unreachable as error:
                log.warning("the API server cannot be reached", error=str(error))
                await asyncio.sleep(1)

    # --- what is there

    def _reflectors(self) -> list[Reflector[dict[str, Any]]]:
        state = self._state

        def put_namespace(key: Key, obj: dict[str, Any]) -> None:
            labels = obj["metadata"].get("labels") or {}
            state.set_namespace(key.name, any(labels.get(name) == ENABLED for name in NAMESPACE_LABELS))

        def reflect(path: str, put: Callable[[dict[str, Any]], None], drop: Callable[[Key], None], labels: str = "") -> Reflector[dict[str, Any]]:  # fmt: skip
            def changed_put(_key: Key, obj: dict[str, Any]) -> None:
                put(obj)
                self._changed.set()

            def changed_drop(key: Key, _uid: str) -> None:
                drop(key)
                self._changed.set()

            return Reflector(self.api, path, _decode, changed_put, changed_drop, labels=labels)

        def objects(kind: str, namespace: str, labels: str = "") -> Reflector[dict[str, Any]]:
            return reflect(
                collection(kind, namespace),
                lambda obj: state.put_object(obj, kind),
                lambda key: state.drop_object(kind, key.namespace, key.name),
                labels,
            )

        return [
            reflect(collection("Node"), state.put_node, lambda key: state.drop_node(key.name)),
            reflect(collection("Machine"), state.put_machine, lambda key: state.drop_machine(key.name)),
            Reflector(
                self.api,
                "/api/v1/namespaces",
                _decode,
                put_namespace,
                lambda key, _uid: state.set_namespace(key.name, False),
            ),
            objects("MachineNodePool", ""),
            objects("StatefulSet", NAMESPACE),
            objects("Service", NAMESPACE),
        ]

    def _pod_reflectors(self) -> list[Reflector[dict[str, Any]]]:
        """Guests and reservations. They begin when the Machines are known, to which they belong. Reservations are known by their names,
        too: somebody may take their labels off."""

        def put(_key: Key, pod: dict[str, Any]) -> None:
            self._state.put_pod(pod)
            self._changed.set()

        def drop(key: Key, uid: str) -> None:
            self._state.drop_pod(key.namespace, key.name, uid)
            self._changed.set()

        elsewhere = f"metadata.namespace!={NAMESPACE}"
        return [
            Reflector(self.api, "/api/v1/pods", _decode, put, drop, labels=MACHINE_TYPE, fields=elsewhere),
            Reflector(self.api, f"/api/v1/namespaces/{NAMESPACE}/pods", _decode, put, drop),
        ]

    async def _list_groups(self) -> dict[str, MachineGroup]:
        """Reads the Machines from the API server."""
        try:
            found = await self.api.get(f"/apis/{GROUP_VERSION}/machines") or {}
        except (ApiError, Unreachable) as error:
            log.warning("Machines cannot be listed", error=str(error))
            return self._state.groups()
        for machine in found.get("items") or ():
            self._state.put_machine(machine)
        self._changed.set()
        return self._state.groups()

    async def _find_nodes(self, names: Collection[str]) -> set[str]:
        """Asks the API server for Nodes that no watch has shown yet."""

        async def find(name: str) -> str:
            try:
                return name if await self.api.get(f"{collection('Node')}/{quote(name, safe='')}", brief=True) else ""
            except (ApiError, Unreachable) as error:
                log.warning("a Node cannot be read", node=name, error=str(error))
                return ""

        return set(await asyncio.gather(*map(find, sorted(names)[:MAX_AT_ONCE]))) - {""}

    # --- certificates

    async def _read_keys(self) -> None:
        """Reads the Secret, or makes one."""
        while True:
            try:
                await self._step_keys(make=True)
                return
            except ApiError as error:
                if error.code != 409:
                    raise
            except Unreachable as error:
                log.warning("the API server cannot be reached", error=str(error))
            await asyncio.sleep(0.5)

    async def _step_keys(self, *, make: bool = False) -> None:
        """Reads the certificate, does the next step of its rotation if this process acts, and serves it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}"
        secret = await self.api.get(path)
        if secret is None:
            raise ApiError(404, "NotFound", f"Secret {SECRET} does not exist; run `moorage cluster join --machines`")
        now, lifetime = time.time(), certificates.days() * 86400
        keys = certificates.from_secret(secret.get("data") or {})
        wanted = keys
        if keys is None:
            wanted = certificates.Keys(certificates.issue(self._names, now, lifetime)) if make else None
        elif self._leading and self._trusted == keys.bundle:
            # A certificate is served only once its CA is in the hooks, however long the API server took to store them.
            wanted = certificates.advance(keys, self._names, now, lifetime)
        if wanted is not None and wanted != keys:
            body = {**secret, "data": certificates.to_secret(wanted)}
            await self.api.call("PUT", path, body=msgspec.json.encode(body))
        if wanted is not None:
            self._keys = wanted
            if self._served != wanted.current:
                certificates.load(self._tls, wanted.current)
                self._served = wanted.current

    async def _watch_keys(self) -> None:
        while True:
            try:
                await self._step_keys()
                if self._leading:
                    await self._write_hooks()
                else:
                    await self._note_hooks()
            except (ApiError, Unreachable) as error:
                log.debug("the certificate is not renewed yet", error=str(error))
            lifetime = certificates.days() * 86400
            await asyncio.sleep(min(CERTIFICATE_INTERVAL, max(0.5, lifetime / 100)))

    async def _write_hooks(self) -> None:
        """Lets the API server ask this process, and trust its certificates."""
        async with self._writing_hooks:
            await self._write_hooks_once()

    async def _write_hooks_once(self) -> None:
        assert self._keys is not None
        bundle = self._keys.bundle
        for configuration in (hook_configurations.mutating(self._url), hook_configurations.validating(self._url)):
            wanted = hook_configurations.with_bundle(configuration, bundle)
            path = f"{hook_configurations.paths()[configuration['kind']]}/{hook_configurations.NAME}"
            found = await self.api.get(path)
            if found is None:
                continue  # this cluster does not want hooks, or is being left
            if difference(wanted["webhooks"], found.get("webhooks") or []) is None and not _other_place(wanted, found):
                continue
            version = found["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "webhooks": wanted["webhooks"]}
            await self.api.call(
                "PATCH", path, body=msgspec.json.encode(patch), content_type="application/merge-patch+json"
            )
        self._trusted = bundle
        self._announced.set()

    async def _note_hooks(self) -> None:
        """Notes that another process wrote the configurations with a CA that this one serves."""
        path = f"{hook_configurations.paths()['MutatingWebhookConfiguration']}/{hook_configurations.NAME}"
        found = await self.api.get(path)
        for hook in (found or {}).get("webhooks") or ():
            bundle = b64decode(hook["clientConfig"].get("caBundle") or "")
            if self._served is not None and self._served.ca in bundle:
                self._announced.set()

    # --- acting

    async def _lead(self, term: LeaderTerm) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:

                def spawn(coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
                    return tasks.create_task(coro)

                self._requests = Requests(self.api, term, self._identity, self._metrics.writes, self._done, spawn)
                self._leading, self._trusted = True, b""
                self._state.start_term()
                await self._other.look()
                async for attempt in until_done((ApiError, Unreachable), first=0.2):
                    with attempt:
                        await self._write_hooks()
                spawn(self._run_sync(term))
                await self._act()
        finally:
            self._leading = False

    async def _act(self) -> None:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        self._changed.set()
        planned = -GATHER
        while True:
            await self._changed.wait()
            await asyncio.sleep(max(0.0, planned + GATHER - loop.time()))
            self._changed.clear()
            now = time.time()
            if self._state.relist_pods:
                await self._relist_pods()
            effects, later = self._state.plan(now)
            assert self._requests is not None
            self._requests.send(effects)
            if self._sync is not None:
                self._sync.notice()
            if timer is not None:
                timer.cancel()
            if later is not None:
                timer = loop.call_later(max(0.0, later - time.time()) + 0.001, self._wake)
            planned = loop.time()

    def _wake(self) -> None:
        self._state.wake(time.time())
        self._changed.set()

    def _done(self, effect: Effect, answer: dict[str, Any] | None, failed: bool) -> None:
        self._state.done(effect, answer, time.time(), failed=failed)
        if effect.purpose == "open":
            self._metrics.observe_handovers()
        self._changed.set()

    async def _relist_pods(self) -> None:
        """Puts Pods again whose Machine came after them."""
        self._state.relist_pods = False  # what comes meanwhile may need another list
        complete = False
        try:
            async for pod in list_objects(self.api, "/api/v1/pods", MACHINE_TYPE):
                self._state.put_pod(pod)
            complete = True
        except (ApiError, Unreachable) as error:
            log.warning("Pods cannot be listed", error=str(error))
            self._changed.set()
        finally:
            self._state.relist_pods |= not complete


def _other_place(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    """Returns whether hooks are configured at another place: at a URL or at a Service."""
    pairs = zip(wanted["webhooks"], found.get("webhooks") or [], strict=False)
    return any(("url" in w["clientConfig"]) != ("url" in f["clientConfig"]) for w, f in pairs)
