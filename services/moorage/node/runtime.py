"""Calls a container runtime: lists, creates, starts, updates and removes containers and sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import grpc.aio
import msgspec
from google.protobuf.message import Message

from .api import cri_pb2 as cri

RUNTIME, IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
M = TypeVar("M", bound=Message)

#: The fields of LinuxContainerResources by the Go names that plugins use.
FIELDS = {
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "CpuShares": "cpu_shares",
    "MemoryLimitInBytes": "memory_limit_in_bytes",
    "OomScoreAdj": "oom_score_adj",
    "CpusetCpus": "cpuset_cpus",
    "CpusetMems": "cpuset_mems",
    "MemorySwapLimitInBytes": "memory_swap_limit_in_bytes",
}
_TEXT = frozenset({"CpusetCpus", "CpusetMems"})

#: States of containers, and the one of a ready sandbox.
CREATED, RUNNING, EXITED = 0, 1, 2
READY = 0


class _Info(msgspec.Struct):
    """The part of a container's status that a runtime adds; of this, its process."""

    pid: int = 0


def set_property(resources: cri.LinuxContainerResources, name: str, value: str) -> None:
    """Writes a property by its Go name, or a file of the cgroup by the file's. Raises ValueError for what is no number."""
    field = FIELDS.get(name)
    if field is None:
        resources.unified[name] = value
    elif name in _TEXT:
        setattr(resources, field, value)
    else:
        number = int(value)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"{name} is {value}, which is out of range")
        setattr(resources, field, number)


def get_property(resources: cri.LinuxContainerResources, name: str) -> str:
    field = FIELDS.get(name)
    return resources.unified.get(name, "") if field is None else str(getattr(resources, field))


class Runtime:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, Any] = {}

    async def version(self) -> cri.VersionResponse:
        return await self._call(f"{RUNTIME}Version", cri.VersionRequest(), cri.VersionResponse, 2.0)

    async def sandboxes(self) -> list[cri.PodSandbox]:
        return list(
            (
                await self._call(f"{RUNTIME}ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)
            ).items
        )

    async def containers(self) -> list[cri.Container]:
        return list(
            (
                await self._call(f"{RUNTIME}ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse)
            ).containers
        )

    async def status(self, container: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container)
        return (await self._call(f"{RUNTIME}ContainerStatus", request, cri.ContainerStatusResponse)).status

    async def process(self, container: str) -> int:
        """Returns the id of the container's process; 0 if it has none or the runtime does not tell."""
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        answer = await self._call(f"{RUNTIME}ContainerStatus", request, cri.ContainerStatusResponse)
        try:
            return msgspec.json.decode(answer.info.get("info", "{}"), type=_Info).pid
        except msgspec.DecodeError:
            return 0

    async def update(self, container: str, properties: Mapping[str, str]) -> None:
        """Changes these properties of a container and no other: what is not sent stays."""
        request = cri.UpdateContainerResourcesRequest(container_id=container)
        request.linux.SetInParent()
        for name, value in properties.items():
            set_property(request.linux, name, value)
        await self._call(f"{RUNTIME}UpdateContainerResources", request, cri.EmptyResponse)

    async def run_sandbox(self, config: cri.PodSandboxConfig) -> str:
        request = cri.RunPodSandboxRequest(config=config)
        return (await self._call(f"{RUNTIME}RunPodSandbox", request, cri.RunPodSandboxResponse, 120.0)).pod_sandbox_id

    async def stop_sandbox(self, sandbox: str) -> None:
        request = cri.PodSandboxIdRequest(pod_sandbox_id=sandbox)
        await self._call(f"{RUNTIME}StopPodSandbox", request, cri.EmptyResponse, 60.0)

    async def remove_sandbox(self, sandbox: str) -> None:
        request = cri.PodSandboxIdRequest(pod_sandbox_id=sandbox)
        await self._call(f"{RUNTIME}RemovePodSandbox", request, cri.EmptyResponse, 60.0)

    async def create(self, request: cri.CreateContainerRequest) -> str:
        answer = await self._call(f"{RUNTIME}CreateContainer", request, cri.CreateContainerResponse, 60.0)
        return answer.container_id

    async def start(self, container: str) -> None:
        await self._call(
            f"{RUNTIME}StartContainer", cri.ContainerIdRequest(container_id=container), cri.EmptyResponse, 60.0
        )

    async def stop(self, container: str, grace: int) -> None:
        request = cri.StopContainerRequest(container_id=container, timeout=grace)
        await self._call(f"{RUNTIME}StopContainer", request, cri.EmptyResponse, grace + 30.0)

    async def remove(self, container: str) -> None:
        await self._call(
            f"{RUNTIME}RemoveContainer", cri.ContainerIdRequest(container_id=container), cri.EmptyResponse, 60.0
        )

    async def pull_missing(self, image: str) -> None:
        """Pulls an image that the runtime does not have."""
        spec = cri.ImageSpec(image=image)
        found = await self._call(f"{IMAGES}ImageStatus", cri.ImageStatusRequest(image=spec), cri.ImageStatusResponse)
        if not found.image.id:
            await self._call(f"{IMAGES}PullImage", cri.PullImageRequest(image=spec), cri.PullImageResponse, 600.0)

    async def _call(self, method: str, request: Message, answer: type[M], timeout: float = 10.0) -> M:
        if (call := self._calls.get(method)) is None:
            call = self._calls[method] = self._channel.unary_unary(method)
        return answer.FromString(await call(request.SerializeToString(), timeout=timeout))
