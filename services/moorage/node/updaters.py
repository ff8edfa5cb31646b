"""Changes and reads running containers: over the runtime interface or NRI, and always by what their cgroups say."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import grpc.aio

from .cgroups import Cgroup, has_version_2, of_process
from .containers import ContainerRecord
from .nri_plugin import NriPlugin
from .runtime import EXITED, FIELDS, Runtime, get_property


class CgroupReader:
    """Reads cgroups of containers. The cgroup of a container never changes, so each is looked up once."""

    def __init__(self, runtime: Runtime | None) -> None:
        self._runtime = runtime
        self._cgroups: dict[str, Cgroup] = {}

    async def cgroup(self, record: ContainerRecord) -> Cgroup | None:
        found = self._cgroups.get(record.id)
        if found is None:
            if not record.pid and self._runtime is not None:
                record.pid = await self._runtime.process(record.id)
            found = of_process(record.pid)
            if found is not None:
                self._cgroups[record.id] = found
        return found

    def unchanged(self, record: ContainerRecord) -> bool:
        """Returns whether the container's cgroup is as it was read last."""
        cgroup = self._cgroups.get(record.id)
        return cgroup is not None and cgroup.unchanged()

    async def read(self, record: ContainerRecord, properties: Mapping[str, str]) -> dict[str, str] | None:
        cgroup = await self.cgroup(record)
        found = cgroup.read(properties) if cgroup is not None else {}
        if found:
            return found
        self._cgroups.pop(record.id, None)
        record.pid = 0
        if self._runtime is None:
            return None
        return await self._status(record, properties)

    async def _status(self, record: ContainerRecord, properties: Mapping[str, str]) -> dict[str, str] | None:
        """Asks the runtime where no cgroup can be read: the container is not running yet, or not any more."""
        assert self._runtime is not None
        try:
            status = await self._runtime.status(record.id)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise
        if status.state == EXITED:
            return None
        if not status.HasField("resources"):
            return {}
        return {name: get_property(status.resources.linux, name) for name in properties}

    async def write_files(self, record: ContainerRecord, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Writes what the runtime cannot, with cgroups of version 1, and returns the rest."""
        files = {name: value for name, value in properties.items() if name not in FIELDS}
        if not files or has_version_2():
            return properties
        if await self.cgroup(record) is not None:
            self.write(record, files)
        return {name: value for name, value in properties.items() if name in FIELDS}

    def forget(self, container: str) -> None:
        self._cgroups.pop(container, None)

    def write(self, record: ContainerRecord, properties: Mapping[str, str]) -> None:
        """Writes what the runtime interface cannot say on a machine with cgroups of version 1."""
        cgroup = self._cgroups.get(record.id)
        if cgroup is not None and not cgroup.is_v2:
            for name, value in properties.items():
                cgroup.write(name, value)


class CriUpdater:
    def __init__(self, runtime: Runtime, reader: CgroupReader) -> None:
        self._runtime, self._reader = runtime, reader

    async def update(self, record: ContainerRecord, properties: Mapping[str, str]) -> None:
        if properties := await self._reader.write_files(record, properties):
            await self._runtime.update(record.id, properties)

    async def read(self, record: ContainerRecord, properties: Mapping[str, str]) -> dict[str, str] | None:
        return await self._reader.read(record, properties)

    def unchanged(self, record: ContainerRecord) -> bool:
        return self._reader.unchanged(record)


class NriUpdater:
    def __init__(self, plugin: NriPlugin, reader: CgroupReader) -> None:
        self._plugin, self._reader = plugin, reader

    async def update(self, record: ContainerRecord, properties: Mapping[str, str]) -> None:
        if properties := await self._reader.write_files(record, properties):
            await self._plugin.update(record.id, properties)

    async def read(self, record: ContainerRecord, properties: Mapping[str, str]) -> dict[str, str] | None:
        return await self._reader.read(record, properties)

    def unchanged(self, record: ContainerRecord) -> bool:
        return self._reader.unchanged(record)
