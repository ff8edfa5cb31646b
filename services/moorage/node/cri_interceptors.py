"""Edits the kubelet's calls of the runtime: a pod is admitted before its sandbox runs, a container is given what its plugins
decided before it is created, and the kubelet sees what it asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError, Message

from .api import cri_pb2 as cri
from .containers import ASKED, ContainerIndex, ContainerRecord, Gate, is_asked
from .cri_proxy import Forward, Interceptor, Refused
from .pod_objects import told_by_runtime
from .runtime import CREATED, EXITED, FIELDS, RUNNING, get_property, set_property

M = TypeVar("M", bound=Message)


class CriInterceptors:
    def __init__(
        self,
        gate: Gate,
        index: ContainerIndex,
        write_files: Callable[[ContainerRecord], Awaitable[None]] | None = None,
    ) -> None:
        """`write_files`: writes files of a started container's cgroup, on a machine where the runtime would refuse them."""
        self._gate, self._index, self._write_files = gate, index, write_files

    def all(self) -> dict[str, Interceptor]:
        return {
            "RunPodSandbox": self.run_sandbox,
            "StopPodSandbox": self.stop_sandbox,
            "RemovePodSandbox": self.remove_sandbox,
            "CreateContainer": self.create,
            "StartContainer": self.start,
            "StopContainer": self.stop,
            "RemoveContainer": self.remove,
            "UpdateContainerResources": self.update,
            "ContainerStatus": self.status,
        }

    async def run_sandbox(self, request: bytes, forward: Forward) -> bytes:
        config = _read(cri.RunPodSandboxRequest, request).config
        await self._admit(config)
        answer = await forward(request)
        self._index.add_sandbox(_read(cri.RunPodSandboxResponse, answer).pod_sandbox_id, config.metadata.uid)
        return answer

    async def _admit(self, config: cri.PodSandboxConfig, container: str = "") -> None:
        pod = config.metadata
        told = told_by_runtime(pod.uid, pod.namespace, pod.name, dict(config.labels), dict(config.annotations))
        await self._gate.admit(told, container)

    async def create(self, request: bytes, forward: Forward) -> bytes:
        message = _read(cri.CreateContainerRequest, request)
        uid, name = message.sandbox_config.metadata.uid, message.config.metadata.name
        self._index.add_sandbox(message.pod_sandbox_id, uid)
        # The sandbox may be older than the agent, or the agent's state may be: then the pod is admitted here.
        await self._admit(message.sandbox_config, name)
        asked = self.edit(message, uid, name)
        answer = await forward(message.SerializeToString())
        pod = message.sandbox_config.metadata
        self._index.put(
            ContainerRecord(
                id=_read(cri.CreateContainerResponse, answer).container_id,
                uid=uid,
                name=name,
                sandbox=message.pod_sandbox_id,
                namespace=pod.namespace,
                pod=pod.name,
                state=CREATED,
                asked=asked,
            )
        )
        return answer

    def edit(self, message: cri.CreateContainerRequest, uid: str, name: str) -> dict[str, str]:
        """Writes what the container is given into the request, and returns what was asked for instead."""
        adjustment = self._gate.adjustment(uid, name)
        resources = message.config.linux.resources
        asked = {prop: get_property(resources, prop) for prop in adjustment.properties}
        for prop, value in adjustment.properties.items():
            if prop in FIELDS or self._write_files is None:
                set_property(resources, prop, value)
        given = {env.key: env for env in message.config.envs}
        for key, value in adjustment.envs.items():
            if key in given:
                given[key].value = value
            else:
                message.config.envs.add(key=key, value=value)
        message.config.annotations.update(adjustment.annotations)
        if asked:
            message.config.annotations[ASKED] = msgspec.json.encode(asked).decode()
        return asked

    async def start(self, request: bytes, forward: Forward) -> bytes:
        record = self._index.get(_read(cri.ContainerIdRequest, request).container_id)
        if record is None:
            return await forward(request)
        await self._gate.pre_start(record.uid, record.name)
        answer = await forward(request)
        record.state = RUNNING
        self._index.put(record)
        if self._write_files is not None:
            await self._write_files(record)
        return answer

    async def stop(self, request: bytes, forward: Forward) -> bytes:
        answer = await forward(request)
        if (record := self._index.get(_read(cri.StopContainerRequest, request).container_id)) is not None:
            record.state = EXITED
            self._index.put(record)
        return answer

    async def remove(self, request: bytes, forward: Forward) -> bytes:
        answer = await forward(request)
        self._index.drop(_read(cri.ContainerIdRequest, request).container_id)
        return answer

    async def stop_sandbox(self, request: bytes, forward: Forward) -> bytes:
        answer = await forward(request)
        sandbox = _read(cri.PodSandboxIdRequest, request).pod_sandbox_id
        for record in [r for r in self._index.live() if r.sandbox == sandbox]:
            record.state = EXITED
        if uid := self._index.uid_of(sandbox):
            self._gate.sandbox_stopped(uid)
        return answer

    async def remove_sandbox(self, request: bytes, forward: Forward) -> bytes:
        answer = await forward(request)
        if uid := self._index.drop_sandbox(_read(cri.PodSandboxIdRequest, request).pod_sandbox_id):
            self._gate.sandbox_removed(uid)
        return answer

    async def update(self, request: bytes, forward: Forward) -> bytes:
        """Passes a change without the properties that plugins decide, and remembers what was asked of these."""
        message = _read(cri.UpdateContainerResourcesRequest, request)
        record = self._index.get(message.container_id)
        if record is None:
            return await forward(request)
        owned = self._gate.owned(record.uid, record.name)
        names = owned | record.asked.keys()
        self._gate.keep_asked(record, {name: get_property(message.linux, name) for name in names})
        for name in owned:
            clear_property(message.linux, name)
        return await forward(message.SerializeToString() if owned else request)

    async def status(self, request: bytes, forward: Forward) -> bytes:
        """Shows the kubelet its own values: it compares them when it resizes a container in place."""
        answer = await forward(request)
        record = self._index.get(_read(cri.ContainerStatusRequest, request).container_id)
        if record is None:
            return answer
        message = _read(cri.ContainerStatusResponse, answer)
        record.state = message.status.state
        if not record.asked or not message.status.HasField("resources"):
            return answer
        show(message.status.resources.linux, record.asked)
        return message.SerializeToString()


def show(resources: cri.LinuxContainerResources, asked: Mapping[str, str]) -> None:
    for name, value in asked.items():
        if is_asked(value):
            set_property(resources, name, value)
        else:
            clear_property(resources, name)


def clear_property(resources: cri.LinuxContainerResources, name: str) -> None:
    """Removes a property: to the runtime, an absent one means that it stays as it is."""
    if name in FIELDS:
        resources.ClearField(FIELDS[name])
    else:
        resources.unified.pop(name, None)


def _read(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(f"the message cannot be decoded: {error}", grpc.StatusCode.INVALID_ARGUMENT) from error
