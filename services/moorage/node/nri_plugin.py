"""Attaches the agent to a runtime as an NRI plugin, beside an untouched kubelet: containers are changed as they are created,
and by updates of the runtime's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog
from google.protobuf.message import Message

from moorage.qos.messages import PodSpec

from .api import nri_pb2 as nri
from .cgroups import has_version_2
from .containers import ASKED, ContainerIndex, ContainerRecord, Gate
from .grpc_unix import SocketRefused
from .nri_connection import NriConnection, NriFailed
from .pod_objects import told_by_runtime
from .runtime import CREATED, EXITED, RUNNING

log = structlog.get_logger("node")

NAME, INDEX = "moorage", "10"
#: Events that are asked for: of sandboxes run, stop, remove; of containers create, start, update, stop, remove.
_RUN_SANDBOX, _STOP_SANDBOX, _REMOVE_SANDBOX = 1, 2, 3
_CREATE, _START, _UPDATE, _STOP, _REMOVE = 4, 6, 8, 10, 11
_EVENTS = sum(
    1 << (event - 1)
    for event in (_RUN_SANDBOX, _STOP_SANDBOX, _REMOVE_SANDBOX, _CREATE, _START, _UPDATE, _STOP, _REMOVE)
)
#: NRI's states of containers.
_NRI_CREATED, _NRI_STOPPED = 1, 4
RETRY = (0.1, 0.2, 0.5, 1.0)


class NriPlugin:
    """Keeps one registration with the runtime alive. After each, `add` is called with every container of the runtime, what is
    told of its pod, and its annotations, then `synchronized`."""

    def __init__(
        self,
        socket: Path,
        gate: Gate,
        index: ContainerIndex,
        add: Callable[[ContainerRecord, PodSpec, Mapping[str, str]], None],
        synchronized: Callable[[], Mapping[str, Mapping[str, str]]],
    ) -> None:
        self._socket, self._gate, self._index = socket, gate, index
        self._add, self._synchronized = add, synchronized
        self._connection: NriConnection | None = None
        self._refused: dict[str, str] = {}
        self.attached = asyncio.Event()

    async def run(self) -> None:
        """Registers, and again whenever the runtime comes back or cuts the plugin off."""
        attempt = 0
        while True:
            try:
                self._connection = await NriConnection.connect(self._socket, self._serve)
                request = nri.RegisterPluginRequest(plugin_name=NAME, plugin_idx=INDEX)
                await self._connection.call("RegisterPlugin", request, nri.Empty)
                attempt = 0
                await self._connection.closed.wait()
                log.warning("the runtime has ended the NRI connection")
            except (OSError, SocketRefused, NriFailed) as error:
                if attempt == 0:
                    log.warning("the runtime's NRI cannot be reached", error=str(error))
            finally:
                self.attached.clear()
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
            await asyncio.sleep(RETRY[min(attempt, len(RETRY) - 1)])
            attempt += 1

    async def update(self, container: str, properties: Mapping[str, str]) -> None:
        """Changes a running container. Raises NriFailed."""
        if self._connection is None:
            raise NriFailed("the runtime is away")
        request = nri.UpdateContainersRequest()
        request.update.append(_update(container, properties))
        answer = await self._connection.call("UpdateContainers", request, nri.UpdateContainersResponse)
        if any(failed.container_id == container for failed in answer.failed):
            raise NriFailed(f"the runtime could not update container {container[:12]}")

    async def _serve(self, method: str, payload: bytes) -> Message:
        if method == "Configure":
            return nri.ConfigureResponse(events=_EVENTS)
        if method == "Synchronize":
            return self._synchronize(nri.SynchronizeRequest.FromString(payload))
        if method == "CreateContainer":
            return await self._create(nri.ContainerRequest.FromString(payload))
        if method == "UpdateContainer":
            return self._update(nri.ContainerRequest.FromString(payload))
        if method in ("StopContainer", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "RemoveContainer"):
            events = {"StopContainer": _STOP, "RunPodSandbox": _RUN_SANDBOX, "StopPodSandbox": _STOP_SANDBOX}
            request = nri.ContainerRequest.FromString(payload)
            event = events.get(method, _REMOVE_SANDBOX if method == "RemovePodSandbox" else _REMOVE)
            self._changed(event, request.pod, request.container)
            return nri.Empty()
        if method == "StateChange":
            change = nri.StateChangeEvent.FromString(payload)
            self._changed(change.event, change.pod, change.container)
            return nri.Empty()
        if method == "Shutdown":
            return nri.Empty()
        raise NotImplementedError

    def _synchronize(self, request: nri.SynchronizeRequest) -> nri.SynchronizeResponse:
        """Takes over what runs already, and pins what started while the agent was away."""
        pods = {pod.id: pod for pod in request.pods}
        for pod in pods.values():
            self._index.add_sandbox(pod.id, pod.uid)
        for container in request.containers:
            if (found := pods.get(container.pod_sandbox_id)) is not None:
                self._add(_record(found, container), _told(found), container.annotations)
        if request.more:
            return nri.SynchronizeResponse(more=True)
        self.attached.set()
        updates = self._synchronized()
        return nri.SynchronizeResponse(update=[_update(name, given) for name, given in updates.items()])

    async def _create(self, request: nri.ContainerRequest) -> nri.CreateContainerResponse:
        pod, container = request.pod, request.container
        await self._gate.admit(_told(pod), container.name)
        adjustment = self._gate.adjustment(pod.uid, container.name)
        await self._gate.pre_start(pod.uid, container.name)
        record = _record(pod, container, CREATED)
        record.asked = {name: _property(container.linux.resources, name) for name in adjustment.properties}
        answer = nri.CreateContainerResponse()
        for name, value in adjustment.properties.items():
            if "." in name and not has_version_2():
                continue  # written to the cgroup once it is there
            _set(answer.adjust.linux.resources, name, value)
        for key, value in adjustment.envs.items():
            answer.adjust.env.add(key=key, value=value)
        answer.adjust.annotations.update(adjustment.annotations)
        if record.asked:
            answer.adjust.annotations[ASKED] = msgspec.json.encode(record.asked).decode()
        self._index.add_sandbox(pod.id, pod.uid)
        self._index.put(record)
        return answer

    def _update(self, request: nri.ContainerRequest) -> nri.SynchronizeResponse:
        """Keeps what plugins decided in an update of the kubelet: the runtime merges what is answered over it."""
        answer = nri.SynchronizeResponse()
        record = self._index.get(request.container.id)
        if record is not None:
            adjustment = self._gate.adjustment(record.uid, record.name)
            names = {*adjustment.properties, *record.asked}
            self._gate.keep_asked(record, {name: _property(request.linux_resources, name) for name in names})
            if adjustment.properties:
                answer.update.append(_update(record.id, adjustment.properties))
        return answer

    def _changed(self, event: int, pod: nri.PodSandbox, container: nri.Container) -> None:
        if event == _RUN_SANDBOX:
            self._index.add_sandbox(pod.id, pod.uid)
        elif event == _STOP_SANDBOX:
            for record in [r for r in self._index.live() if r.sandbox == pod.id]:
                record.state = EXITED
            self._gate.sandbox_stopped(pod.uid)
        elif event == _REMOVE_SANDBOX:
            self._index.drop_sandbox(pod.id)
            self._gate.sandbox_removed(pod.uid)
        elif event == _REMOVE:
            self._index.drop(container.id)
        elif event in (_STOP, _START) and (found := self._index.get(container.id)) is not None:
            found.state = EXITED if event == _STOP else RUNNING
            found.pid = container.pid or found.pid
            self._index.put(found)


def _told(pod: nri.PodSandbox) -> PodSpec:
    return told_by_runtime(pod.uid, pod.namespace, pod.name, dict(pod.labels), dict(pod.annotations))


def _record(pod: nri.PodSandbox, container: nri.Container, state: int | None = None) -> ContainerRecord:
    if state is None:
        state = {_NRI_CREATED: CREATED, _NRI_STOPPED: EXITED}.get(container.state, RUNNING)
    return ContainerRecord(
        id=container.id,
        uid=pod.uid,
        name=container.name,
        sandbox=pod.id,
        namespace=pod.namespace,
        pod=pod.name,
        state=state,
        pid=container.pid,
    )


def _update(container: str, properties: Mapping[str, str]) -> nri.ContainerUpdate:
    update = nri.ContainerUpdate(container_id=container)
    for name, value in properties.items():
        _set(update.linux.resources, name, value)
    return update


def _set(resources: nri.LinuxResources, name: str, value: str) -> None:
    if name == "CpusetCpus":
        resources.cpu.cpus = value
    elif name == "CpusetMems":
        resources.cpu.mems = value
    elif name == "CpuQuota":
        resources.cpu.quota.value = int(value)
    elif name == "CpuPeriod":
        resources.cpu.period.value = int(value)
    elif name == "CpuShares":
        resources.cpu.shares.value = int(value)
    elif name == "MemoryLimitInBytes":
        resources.memory.limit.value = int(value)
    elif "." in name:
        resources.unified[name] = value


def _property(resources: nri.LinuxResources, name: str) -> str:
    values: Iterable[tuple[str, str]] = (
        ("CpusetCpus", resources.cpu.cpus),
        ("CpusetMems", resources.cpu.mems),
        ("CpuQuota", str(resources.cpu.quota.value)),
        ("CpuPeriod", str(resources.cpu.period.value)),
        ("CpuShares", str(resources.cpu.shares.value)),
        ("MemoryLimitInBytes", str(resources.memory.limit.value)),
    )
    return dict(values).get(name, resources.unified.get(name, ""))
