"""The object store: values too large for one message."""

from __future__ import annotations

import base64

import nats.errors
import nats.js.errors
from nats.js.api import ObjectInfo, ObjectStoreConfig
from nats.js.client import JetStreamContext
from nats.js.object_store import ObjectStore

from .connection import Connection
from .errors import NoAnswer


class Objects:
    """A named store of objects, opened on first use."""

    def __init__(self, conn: Connection, name: str) -> None:
        self._js: JetStreamContext = conn.nc.jetstream()
        self._name = name
        self._store: ObjectStore | None = None

    async def _open(self) -> ObjectStore:
        if self._store is None:
            self._store = await self._js.object_store(self._name)
        return self._store

    async def put(self, name: str, data: bytes) -> None:
        await (await self._open()).put(name, data)

    async def get(self, name: str) -> bytes | None:
        try:
            result = await (await self._open()).get(name)
        except nats.js.errors.ObjectNotFoundError:
            return None
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise NoAnswer(f"object {name}: no answer") from error
        return result.data

    async def names(self) -> list[str]:
        return sorted(info.name for info in await self._infos() if not info.deleted)

    async def _infos(self) -> list[ObjectInfo]:
        try:
            return await (await self._open()).list()
        except nats.js.errors.NotFoundError:
            return []

    async def delete(self, name: str) -> None:
        """Deletes an object. The client leaves a marker for each, for ever; those that there are go too."""
        await (await self._open()).delete(name)
        for marker in [info.name for info in await self._infos() if info.deleted]:
            token = base64.urlsafe_b64encode(marker.encode()).decode()
            await self._js.purge_stream(f"OBJ_{self._name}", subject=f"$O.{self._name}.M.{token}")


async def create_objects(conn: Connection, name: str) -> None:
    await conn.nc.jetstream().create_object_store(name, config=ObjectStoreConfig(bucket=name))
