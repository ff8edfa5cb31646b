"""Keeps a copy of all resources in memory, from their bucket, and deletes those whose parent is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from moorage.bus import Bucket, Bus, Conflict, NoAnswer, OrderedConsumer
from moorage.model import v2_bodies
from moorage.model.v2_resources import Path, Resource, ResourceTree, key_of, kind_of, path_of

decode = msgspec.json.Decoder(Resource).decode
_controller = msgspec.json.Decoder(v2_bodies.ControllerBody)
#: Seconds between looks for resources without a parent.
_SWEEP = 1.0
_CATCH_UP = 5.0


class ResourceCopy:
    """`is_elsewhere` says whether something that is not a resource stands at a path, like a group made by an Application."""

    def __init__(self, bus: Bus, bucket: Bucket, is_elsewhere: Callable[[Path], bool]) -> None:
        self._bus, self._bucket = bus, bucket
        self._is_elsewhere = is_elsewhere
        self.tree = ResourceTree()
        self._moved = asyncio.Event()
        self._orphans: set[Path] = set()
        self._mirrors: list[OrderedConsumer] = []

    async def start(self) -> None:
        self._mirrors.append(await self._bucket.mirror(self._on_change, passed=self._on_position))
        self._bus.spawn(self._delete_orphans())

    def exists(self, path: Path) -> bool:
        return self.tree.get(path) is not None or self._is_elsewhere(path)

    def priority(self, controller: str) -> int:
        """Returns the priority in the resource of a controller; 0 where it has none."""
        stored = self.tree.get(("controllers", controller))
        return 0 if stored is None else _controller.decode(stored.value.body).spec.priority

    async def caught_up(self) -> None:
        """Waits until the copy holds at least what the bucket held when this was called."""
        last = await self._bucket.last()
        try:
            async with asyncio.timeout(_CATCH_UP):
                while self.tree.position < last:
                    await self._moved.wait()
        except TimeoutError:
            raise NoAnswer("the copy of the resources does not follow its bucket") from None

    def _on_change(self, key: str, value: bytes | None, seq: int) -> None:
        path = path_of(key)
        if value is None:
            self.tree.drop(path, seq, mirrored=True)
            self._orphans.update(self.tree.below(path))
        else:
            self.tree.put(path, decode(value), seq)
            if self._is_orphan(path):
                self._orphans.add(path)

    def _on_position(self, seq: int) -> None:
        self.tree.position = max(self.tree.position, seq)
        self._moved.set()
        self._moved = asyncio.Event()

    def _is_orphan(self, path: Path) -> bool:
        kind = kind_of(path)
        return kind is not None and bool(kind.parent(path)) and not self.exists(kind.parent(path))

    async def _delete_orphans(self) -> None:
        """A child can be created in one process while another deletes its parent: no single key ties the two. Every
        reader of the bucket sees both in order, and deletes the child."""
        while True:
            await asyncio.sleep(_SWEEP)
            orphans, self._orphans = self._orphans, set()
            for path in orphans:
                stored = self.tree.get(path)
                if stored is None or not self._is_orphan(path):
                    continue
                try:
                    await self._bucket.delete(key_of(path), stored.seq)
                    self._bus.count("orphans")
                except Conflict:
                    continue
                except NoAnswer:
                    self._orphans.add(path)
