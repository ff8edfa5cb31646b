"""Runs the pods of a directory without a kubelet: sandboxes, init containers in order, restarts with back-off. Volumes and
probes are not served: a manifest with them runs without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import structlog

from moorage.parsing import parse_amount

from .api import cri_pb2 as cri
from .containers import ContainerIndex, ContainerRecord, Gate
from .cri_interceptors import CriInterceptors
from .cri_proxy import Refused
from .pod_objects import told_by_runtime
from .pod_source import Manifest, ManifestDirectory
from .runtime import CREATED, EXITED, READY, RUNNING, Runtime

log = structlog.get_logger("node")

#: Seconds before a container that ended is started again: doubled each time, as by a kubelet, and reset after ten minutes.
FIRST_BACKOFF, LAST_BACKOFF, RESET_AFTER = 1.0, 300.0, 600.0
#: Seconds between looks at containers whose end nobody announces, and between tries with a runtime that fails.
LOOK = 1.0
#: Seconds between tries to admit a refused pod, where nothing that changed woke it before.
TRY_AGAIN = 2.0
GRACE = 10
_PARENT = "/moorage"
#: The label of containers with the uid of their pod.
_UID = "io.kubernetes.pod.uid"


class PodRunner:
    """Keeps the pods of a directory running."""

    def __init__(
        self,
        runtime: Runtime,
        directory: ManifestDirectory,
        gate: Gate,
        index: ContainerIndex,
        room: asyncio.Condition,
        cgroup_parent: str = _PARENT,
        write_files: Callable[[ContainerRecord], Awaitable[None]] | None = None,
    ) -> None:
        self._runtime, self._directory, self._gate, self._index, self._room = runtime, directory, gate, index, room
        self._parent = cgroup_parent
        self._edit = CriInterceptors(gate, index, write_files).edit
        self._write_files = write_files
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self.messages: dict[str, str] = {}

    def changed(self, _uid: str = "") -> None:
        self._wake.set()

    async def run(self) -> None:
        """Starts what the directory has and stops what it has no more, for ever."""
        await self._directory.read.wait()  # before, it would seem to have none of what runs
        try:
            while True:
                self._wake.clear()
                wanted = self._directory.manifests
                for uid, manifest in wanted.items():
                    if uid not in self._tasks or _failed(self._tasks[uid]):
                        self._tasks[uid] = asyncio.ensure_future(self._guarded(manifest))
                for uid in [uid for uid in self._tasks if uid not in wanted]:
                    self._tasks.pop(uid).cancel()
                    self.messages.pop(uid, None)
                for uid in self._index.uids() - wanted.keys():
                    await self._remove(uid)
                await _wait(self._wake, LOOK)
        finally:
            for task in self._tasks.values():
                task.cancel()  # the pods run on

    async def _guarded(self, manifest: Manifest) -> None:
        uid = manifest.pod.spec.uid
        while True:
            try:
                await self._run_pod(manifest)
                return
            except Refused as refused:
                if self.messages.get(uid) != str(refused):
                    log.warning("a pod is refused", pod=manifest.pod.spec.name, reason=str(refused))
                self.messages[uid] = str(refused)
                async with self._room:
                    await _wait_for_room(self._room, TRY_AGAIN)
            except grpc.aio.AioRpcError as error:
                self.messages[uid] = f"the runtime: {error.details()}"
                log.warning("a pod cannot be run", pod=manifest.pod.spec.name, error=error.details())
                await asyncio.sleep(LOOK)

    async def _run_pod(self, manifest: Manifest) -> None:
        """Runs a pod until all its containers have ended for good."""
        spec = manifest.data.get("spec") or {}
        config = self._sandbox_config(manifest)
        pod = config.metadata
        policy = str(spec.get("restartPolicy") or "Always")
        if await self._is_done(pod.uid, spec, policy):
            self._directory.end(pod.uid)
            return
        await self._gate.admit(
            told_by_runtime(pod.uid, pod.namespace, pod.name, dict(config.labels), dict(config.annotations))
        )
        self.messages.pop(pod.uid, None)
        sandbox = await self._sandbox(config)
        first, plain = _list(spec.get("initContainers")), _list(spec.get("containers"))
        sidecars = [c for c in first if c.get("restartPolicy") == "Always"]
        started = any(self._index.named(pod.uid, name) is not None for name in _names(plain))
        for container in () if started else first:
            if container in sidecars:
                await self._start(sandbox, config, container)
            elif (code := await self._until_done(sandbox, config, container, policy)) != 0:
                self.messages[pod.uid] = f"its init container {container.get('name')} ended with {code}"
                plain = sidecars = []
                break
        beside = [asyncio.ensure_future(self._keep(sandbox, config, c, "Always")) for c in sidecars]
        try:
            async with asyncio.TaskGroup() as tasks:
                for container in plain:
                    tasks.create_task(self._keep(sandbox, config, container, policy))
        finally:
            for task in beside:
                task.cancel()
        await self._runtime.stop_sandbox(sandbox)
        self._directory.end(pod.uid)

    async def _is_done(self, uid: str, spec: Mapping[str, Any], policy: str) -> bool:
        """Returns whether all containers of a pod have ended for good, by what the runtime still has of them."""
        if policy == "Always":
            return False
        codes: dict[str, int] = {}
        for container in await self._runtime.containers():
            if container.labels.get(_UID) == uid and container.state == EXITED:
                codes[container.metadata.name] = (await self._runtime.status(container.id)).exit_code
        first, plain = _names(spec.get("initContainers")), _names(spec.get("containers"))
        if policy == "Never" and any(codes.get(name) for name in first):
            return True
        return all(name in codes and (policy == "Never" or codes[name] == 0) for name in plain)

    def _sandbox_config(self, manifest: Manifest) -> cri.PodSandboxConfig:
        metadata, spec = manifest.data["metadata"], manifest.pod.spec
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=spec.name, uid=spec.uid, namespace=spec.namespace),
            hostname="" if spec.host_network else spec.name,
            labels={str(k): str(v) for k, v in (metadata.get("labels") or {}).items()},
            annotations={str(k): str(v) for k, v in (metadata.get("annotations") or {}).items()},
        )
        config.linux.cgroup_parent = f"{self._parent}/{spec.uid}"
        if spec.host_network:
            config.linux.security_context.namespace_options.network = cri.NODE
        return config

    async def _sandbox(self, config: cri.PodSandboxConfig) -> str:
        """Returns the pod's sandbox, which may run since before the agent started."""
        ours = [s for s in await self._runtime.sandboxes() if s.metadata.uid == config.metadata.uid]
        for sandbox in ours:
            if sandbox.state == READY:
                self._index.add_sandbox(sandbox.id, config.metadata.uid)
                await self._find_ended(sandbox.id, config.metadata)
                return sandbox.id
        for sandbox in ours:  # of before the machine was started: the runtime keeps its name
            await self._runtime.stop_sandbox(sandbox.id)
            await self._runtime.remove_sandbox(sandbox.id)
            self._index.drop_sandbox(sandbox.id)
        sandbox_id = await self._runtime.run_sandbox(config)
        self._index.add_sandbox(sandbox_id, config.metadata.uid)
        return sandbox_id

    async def _find_ended(self, sandbox: str, pod: cri.PodSandboxMetadata) -> None:
        """Finds containers that ended while the agent was away: what they ended with counts, and the runtime keeps their names."""
        for container in await self._runtime.containers():
            name = container.metadata.name
            ended = container.pod_sandbox_id == sandbox and container.state == EXITED
            if ended and self._index.named(pod.uid, name) is None:
                self._index.put(
                    ContainerRecord(
                        id=container.id,
                        uid=pod.uid,
                        name=name,
                        sandbox=sandbox,
                        namespace=pod.namespace,
                        pod=pod.name,
                        state=EXITED,
                    )
                )

    async def _until_done(
        self, sandbox: str, config: cri.PodSandboxConfig, spec: Mapping[str, Any], policy: str
    ) -> int:
        """Runs an init container until it has succeeded, or failed for good; returns its exit code."""
        backoff = FIRST_BACKOFF
        while True:
            record = self._ended_before(sandbox, config, spec) or await self._start(sandbox, config, spec)
            code = await self._ended(record)
            if code == 0 or policy == "Never":
                return code
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LAST_BACKOFF)
            await self._remove_container(record)

    async def _keep(self, sandbox: str, config: cri.PodSandboxConfig, spec: Mapping[str, Any], policy: str) -> None:
        """Runs a container, and again after it ended, as its restart policy says. One that cannot be run is tried again, and does
        not disturb others of its pod."""
        backoff, uid = FIRST_BACKOFF, config.metadata.uid
        while True:
            started = time.monotonic()
            try:
                record = self._ended_before(sandbox, config, spec) or await self._start(sandbox, config, spec)
                code = await self._ended(record)
                if policy == "Never" or (policy == "OnFailure" and code == 0):
                    return
                if time.monotonic() - started > RESET_AFTER:
                    backoff = FIRST_BACKOFF
                await asyncio.sleep(backoff)
                await self._remove_container(record)
            except (Refused, grpc.aio.AioRpcError) as error:
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                self.messages[uid] = f"container {spec.get('name')}: {why}"
                log.warning("a container cannot be run", pod=config.metadata.name, error=self.messages[uid])
                await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LAST_BACKOFF)

    def _ended_before(
        self, sandbox: str, config: cri.PodSandboxConfig, spec: Mapping[str, Any]
    ) -> ContainerRecord | None:
        """Returns the container if it has run in this sandbox and ended."""
        found = self._index.named(config.metadata.uid, str(spec.get("name")))
        return found if found is not None and found.state == EXITED and found.sandbox == sandbox else None

    async def _start(self, sandbox: str, config: cri.PodSandboxConfig, spec: Mapping[str, Any]) -> ContainerRecord:
        """Returns the running container, which is created and started unless it runs already."""
        name, uid = str(spec.get("name")), config.metadata.uid
        found = self._index.named(uid, name)
        if found is not None and found.state == RUNNING and found.sandbox == sandbox:
            return found
        if found is not None:
            await self._remove_container(found)
        await self._runtime.pull_missing(str(spec.get("image")))
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, sandbox_config=config)
        request.config.CopyFrom(container_config(config, spec))
        asked = self._edit(request, uid, name)
        record = ContainerRecord(
            id=await self._runtime.create(request),
            uid=uid,
            name=name,
            sandbox=sandbox,
            namespace=config.metadata.namespace,
            pod=config.metadata.name,
            state=CREATED,
            asked=asked,
        )
        self._index.put(record)
        await self._gate.pre_start(uid, name)
        await self._runtime.start(record.id)
        record.state = RUNNING
        self._index.put(record)
        if self._write_files is not None:
            await self._write_files(record)
        return record

    async def _ended(self, record: ContainerRecord) -> int:
        """Waits until a container has ended, and returns its exit code. While the runtime is away, nothing has ended."""
        while True:
            try:
                status = await self._runtime.status(record.id)
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    return 1
            else:
                if status.state == EXITED:
                    record.state = EXITED
                    self._index.put(record)
                    return status.exit_code
            await asyncio.sleep(LOOK)

    async def _remove_container(self, record: ContainerRecord) -> None:
        await self._runtime.remove(record.id)
        self._index.drop(record.id)

    async def _remove(self, uid: str) -> None:
        """Stops and removes a pod that the directory has no more."""
        try:
            for sandbox in await self._runtime.sandboxes():
                if sandbox.metadata.uid == uid:
                    for record in [r for r in self._index.live() if r.uid == uid]:
                        await self._runtime.stop(record.id, GRACE)
                    await self._runtime.stop_sandbox(sandbox.id)
                    await self._runtime.remove_sandbox(sandbox.id)
                    self._index.drop_sandbox(sandbox.id)
        except grpc.aio.AioRpcError as error:
            log.warning("a pod cannot be removed", uid=uid, error=error.details())
            return
        self._gate.sandbox_removed(uid)


def container_config(config: cri.PodSandboxConfig, spec: Mapping[str, Any]) -> cri.ContainerConfig:
    """Returns the container as a kubelet would ask for it: resources, command, variables with values, labels."""
    pod = config.metadata
    made = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=str(spec.get("name"))),
        image=cri.ImageSpec(image=str(spec.get("image"))),
        command=[str(word) for word in spec.get("command") or ()],
        args=[str(word) for word in spec.get("args") or ()],
        labels={
            "io.kubernetes.container.name": str(spec.get("name")),
            "io.kubernetes.pod.name": pod.name,
            "io.kubernetes.pod.namespace": pod.namespace,
            _UID: pod.uid,
        },
    )
    for variable in _list(spec.get("env")):
        if "value" in variable:
            made.envs.add(key=str(variable.get("name")), value=str(variable["value"]))
    resources = spec.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    cores = parse_amount("cpu", str(requests.get("cpu", limits.get("cpu", "0"))), True)
    made.linux.resources.cpu_shares = max(2, cores * 1024 // 1000)
    if "cpu" in limits:
        made.linux.resources.cpu_period = 100_000
        made.linux.resources.cpu_quota = parse_amount("cpu", str(limits["cpu"]), True) * 100
    if "memory" in limits:
        made.linux.resources.memory_limit_in_bytes = parse_amount("memory", str(limits["memory"]), True)
    return made


def _list(value: Any) -> Sequence[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _names(containers: Any) -> list[str]:
    return [str(container.get("name")) for container in _list(containers)]


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


async def _wait_for_room(room: asyncio.Condition, seconds: float) -> None:
    try:
        await asyncio.wait_for(room.wait(), seconds)
    except TimeoutError:
        return
