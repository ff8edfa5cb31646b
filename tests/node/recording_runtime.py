"""A container runtime that runs nothing: it keeps what it is asked for, and every call in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from moorage.node import grpc_unix
from moorage.node.api import cri_pb2 as cri

SERVICE = "runtime.v1.RuntimeService"


class RecordingRuntime:
    def __init__(self) -> None:
        self.sandboxes: dict[str, cri.PodSandboxConfig] = {}
        self.containers: dict[str, cri.CreateContainerRequest] = {}
        self.states: dict[str, int] = {}
        self.resources: dict[str, cri.LinuxContainerResources] = {}
        self.calls: list[tuple[str, Any]] = []
        #: Called after each update of a container, to check what must hold at all times.
        self.after_update: Callable[[], None] = lambda: None
        self.delay = 0.0
        #: Processes of containers that have one.
        self.pids: dict[str, int] = {}
        self.fail_updates: set[str] = set()
        self._server: grpc.aio.Server | None = None
        self._next = 0

    async def start(self, path: Path) -> None:
        methods = {
            "Version": (cri.VersionRequest, self._version),
            "Status": (cri.StatusRequest, self._status),
            "RunPodSandbox": (cri.RunPodSandboxRequest, self._run_sandbox),
            "ListPodSandbox": (cri.ListPodSandboxRequest, self._list_sandboxes),
            "StopPodSandbox": (cri.PodSandboxIdRequest, self._stop_sandbox),
            "RemovePodSandbox": (cri.PodSandboxIdRequest, self._remove_sandbox),
            "CreateContainer": (cri.CreateContainerRequest, self._create),
            "StartContainer": (cri.ContainerIdRequest, self._start),
            "StopContainer": (cri.StopContainerRequest, self._stop),
            "RemoveContainer": (cri.ContainerIdRequest, self._remove),
            "ListContainers": (cri.ListContainersRequest, self._list),
            "ContainerStatus": (cri.ContainerStatusRequest, self._container_status),
            "UpdateContainerResources": (cri.UpdateContainerResourcesRequest, self._update),
        }
        handlers = {name: _handler(kind, method) for name, (kind, method) in methods.items()}
        self._server = await grpc_unix.serve(path, [grpc_unix.unary_methods(SERVICE, handlers)])

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    def of_pod(self, uid: str, name: str = "main") -> str:
        """Returns the newest container of this name of a pod."""
        return [
            found
            for found, request in self.containers.items()
            if request.sandbox_config.metadata.uid == uid and request.config.metadata.name == name
        ][-1]

    def cpus(self, uid: str, name: str = "main") -> str:
        return self.resources[self.of_pod(uid, name)].cpuset_cpus

    def updates(self) -> list[Any]:
        return [request for name, request in self.calls if name == "UpdateContainerResources"]

    async def _version(self, _: Any, __: Any) -> Any:
        return cri.VersionResponse(version="0.1.0", runtime_name="recording", runtime_api_version="v1")

    async def _status(self, _: Any, __: Any) -> Any:
        return cri.StatusResponse(
            status=cri.RuntimeStatus(conditions=[cri.RuntimeCondition(type="RuntimeReady", status=True)])
        )

    async def _run_sandbox(self, request: Any, _: Any) -> Any:
        self.calls.append(("RunPodSandbox", request))
        self._next += 1
        sandbox = f"sandbox-{self._next}"
        self.sandboxes[sandbox] = request.config
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox)

    async def _list_sandboxes(self, _: Any, __: Any) -> Any:
        return cri.ListPodSandboxResponse(
            items=[
                cri.PodSandbox(id=name, metadata=c.metadata, labels=c.labels, annotations=c.annotations)
                for name, c in self.sandboxes.items()
            ]
        )

    async def _stop_sandbox(self, request: Any, _: Any) -> Any:
        for name, container in self.containers.items():
            if container.pod_sandbox_id == request.pod_sandbox_id:
                self.states[name] = 2
        return cri.EmptyResponse()

    async def _remove_sandbox(self, request: Any, _: Any) -> Any:
        self.sandboxes.pop(request.pod_sandbox_id, None)
        for name in [n for n, c in self.containers.items() if c.pod_sandbox_id == request.pod_sandbox_id]:
            del self.containers[name], self.states[name], self.resources[name]
        return cri.EmptyResponse()

    async def _create(self, request: Any, _: Any) -> Any:
        self.calls.append(("CreateContainer", request))
        self._next += 1
        name = f"container-{self._next}"
        self.containers[name], self.states[name] = request, 0
        self.resources[name] = cri.LinuxContainerResources()
        self.resources[name].CopyFrom(request.config.linux.resources)
        return cri.CreateContainerResponse(container_id=name)

    async def _start(self, request: Any, _: Any) -> Any:
        self.states[request.container_id] = 1
        self.after_update()
        return cri.EmptyResponse()

    async def _stop(self, request: Any, _: Any) -> Any:
        self.states[request.container_id] = 2
        return cri.EmptyResponse()

    async def _remove(self, request: Any, _: Any) -> Any:
        self.containers.pop(request.container_id, None)
        self.states.pop(request.container_id, None)
        return cri.EmptyResponse()

    async def _list(self, _: Any, __: Any) -> Any:
        return cri.ListContainersResponse(
            containers=[
                cri.Container(
                    id=name,
                    pod_sandbox_id=c.pod_sandbox_id,
                    metadata=c.config.metadata,
                    state=self.states[name],
                    labels=c.config.labels,
                    annotations=c.config.annotations,
                )
                for name, c in self.containers.items()
            ]
        )

    async def _container_status(self, request: Any, context: Any) -> Any:
        name = request.container_id
        if name not in self.containers:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        answer = cri.ContainerStatusResponse(status=cri.ContainerStatus(id=name, state=self.states[name]))
        answer.status.resources.linux.CopyFrom(self.resources[name])
        if request.verbose and name in self.pids:
            answer.info["info"] = f'{{"pid": {self.pids[name]}}}'
        return answer

    async def _update(self, request: Any, context: Any) -> Any:
        self.calls.append(("UpdateContainerResources", request))
        if self.delay:
            await asyncio.sleep(self.delay)
        if request.container_id in self.fail_updates:
            await context.abort(grpc.StatusCode.INTERNAL, "the runtime does not feel like it")
        # As a real runtime does: what is not given stays.
        self.resources[request.container_id].MergeFrom(request.linux)
        self.after_update()
        return cri.EmptyResponse()


def _handler(kind: Any, method: Any) -> grpc.RpcMethodHandler:
    async def handle(request: bytes, context: Any) -> bytes:
        answer = await method(kind.FromString(request), context)
        data: bytes = answer.SerializeToString()
        return data

    return grpc.unary_unary_rpc_method_handler(handle)
