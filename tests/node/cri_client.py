"""Speaks to a container runtime, or to what stands before it, as a kubelet does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from moorage.node import grpc_unix
from moorage.node.api import cri_pb2 as cri

from .containerd import IMAGE

M = TypeVar("M", bound=Message)


class CriClient:
    def __init__(self, socket: str, cgroup_parent: str = "") -> None:
        self.channel: grpc.aio.Channel = grpc_unix.channel(socket)
        self._cgroup_parent = cgroup_parent

    async def close(self) -> None:
        await self.channel.close()

    async def call(self, method: str, request: Message, answer: type[M], timeout: float = 60.0) -> M:
        raw = await self.channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(
            request.SerializeToString(), timeout=timeout
        )
        return answer.FromString(raw)

    def sandbox_config(
        self, name: str, uid: str = "", namespace: str = "default", annotations: Mapping[str, str] = {}
    ) -> cri.PodSandboxConfig:
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=uid or name, namespace=namespace), annotations=annotations
        )
        config.linux.cgroup_parent = f"{self._cgroup_parent}/{uid or name}"
        config.linux.security_context.namespace_options.network = cri.NODE
        return config

    async def run_sandbox(self, config: cri.PodSandboxConfig) -> str:
        request = cri.RunPodSandboxRequest(config=config)
        return (await self.call("RunPodSandbox", request, cri.RunPodSandboxResponse)).pod_sandbox_id

    async def create(self, sandbox: str, config: cri.PodSandboxConfig, name: str, **resources: Any) -> str:
        container = cri.ContainerConfig(metadata=cri.ContainerMetadata(name=name), image=cri.ImageSpec(image=IMAGE))
        container.labels.update(
            {
                "io.kubernetes.container.name": name,
                "io.kubernetes.pod.name": config.metadata.name,
                "io.kubernetes.pod.namespace": config.metadata.namespace,
                "io.kubernetes.pod.uid": config.metadata.uid,
            }
        )
        container.linux.resources.CopyFrom(cri.LinuxContainerResources(**resources))
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=container, sandbox_config=config)
        return (await self.call("CreateContainer", request, cri.CreateContainerResponse)).container_id

    async def start(self, container: str) -> None:
        await self.call("StartContainer", cri.ContainerIdRequest(container_id=container), cri.EmptyResponse)

    async def run(self, name: str, uid: str = "", annotations: Mapping[str, str] = {}, **resources: Any) -> str:
        """Runs a pod with one container `main` and returns the container's id."""
        config = self.sandbox_config(name, uid, annotations=annotations)
        container = await self.create(await self.run_sandbox(config), config, "main", **resources)
        await self.start(container)
        return container

    async def status(self, container: str) -> cri.ContainerStatusResponse:
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        return await self.call("ContainerStatus", request, cri.ContainerStatusResponse)

    async def pid(self, container: str) -> int:
        return int(json.loads((await self.status(container)).info["info"])["pid"])

    async def update(self, container: str, **resources: Any) -> None:
        request = cri.UpdateContainerResourcesRequest(container_id=container)
        request.linux.CopyFrom(cri.LinuxContainerResources(**resources))
        await self.call("UpdateContainerResources", request, cri.EmptyResponse)

    async def stop(self, container: str) -> None:
        await self.call("StopContainer", cri.StopContainerRequest(container_id=container), cri.EmptyResponse)
