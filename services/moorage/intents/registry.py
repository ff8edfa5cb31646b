"""Keeps the registry of controllers in its bucket: registrations, settings of operators, and kinds of intents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from moorage.bus import Bus, Conflict, Entry
from moorage.mesh import stores
from moorage.model.controllers import Controller, Register, Setting
from moorage.model.names import token
from moorage.model.problems import Refused, conflict

from .core import controller_registry

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Controller).decode


class ControllerRegistry:
    """`priority` gives the priority of a controller that its /v2 resource sets."""

    def __init__(self, bus: Bus, priority: Callable[[str], int]) -> None:
        self._bucket = bus.bucket(stores.CONTROLLERS)
        self._priority = priority
        self._known: dict[str, tuple[Controller, int]] = {}  # by key, with the bucket's revision
        #: Kind of intent → the JSON Schemas that controllers registered for its spec.
        self.kinds: dict[str, list[dict[str, Any]]] = {}

    async def start(self, builtin: Iterable[Controller]) -> None:
        await self._bucket.mirror(self._on_change)
        if self._known:
            return
        # An empty registry gets the built-in controllers before the first document is taken: a document that comes
        # before they have registered would be decided without them.
        for controller in builtin:
            key, value = token(controller.name), _encode(controller)
            with contextlib.suppress(Conflict):  # another store or the controller itself was faster
                self._on_change(key, value, await self._bucket.create(key, value))

    def is_known(self, name: str) -> bool:
        return token(name) in self._known

    async def register(self, name: str, registration: Register) -> Controller | None:
        others = [controller for controller, _ in self._known.values()]
        return await self._change(name, lambda old: controller_registry.register(old, name, registration, others))

    async def leave(self, name: str) -> Controller | None:
        return await self._change(name, lambda old: controller_registry.leave(old) if old is not None else None)

    async def set(self, setting: Setting) -> Controller | None:
        return await self._change(
            setting.name, lambda old: None if setting.remove else controller_registry.apply_setting(old, setting)
        )

    async def refresh_priority(self, name: str) -> None:
        await self._change(name, lambda old: old)

    async def _change(self, name: str, change: Callable[[Controller | None], Controller | None]) -> Controller | None:
        """Stores the controller as `change` makes it, or deletes it for None; returns what is stored then."""
        key = token(name)

        async def changed(entry: Entry | None) -> bytes | None:
            old = _decode(entry.value) if entry is not None else None
            new = change(old)
            if new is None:
                return None
            new = msgspec.structs.replace(new, priority=self._priority(name))
            return entry.value if entry is not None and new == old else _encode(new)

        try:
            _, after = await self._bucket.modify(key, changed)
        except Conflict:
            raise Refused(conflict(f"controller {name} keeps changing; try again")) from None
        if after is None:
            self._on_change(key, None, 0)
            return None
        self._on_change(key, after.value, after.revision)
        return _decode(after.value)

    def _on_change(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self._known.pop(key, None)
        else:
            known = self._known.get(key)
            if known is not None and known[1] >= revision:
                return
            self._known[key] = (_decode(value), revision)
        kinds: dict[str, list[dict[str, Any]]] = {}
        for controller, _ in self._known.values():
            for kind, schema in controller.kinds.items():
                kinds.setdefault(kind, []).append(schema)
        self.kinds = kinds
