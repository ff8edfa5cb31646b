"""Watches the objects that the agent created, per kind, from its first object on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from moorage.kube import Api, ApiResource, Reflector
from moorage.kube.objects import Key

from .core.owned_objects import APP_LABEL, Live

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
_decode = msgspec.json.Decoder(Live).decode


class ObjectWatches:
    """`on_change` gets an app's label whenever one of its objects changed or went; `on_object` every object, each time."""

    def __init__(
        self,
        api: Api,
        spawn: Spawn,
        on_change: Callable[[str], None],
        on_object: Callable[[ApiResource, Live], None],
    ) -> None:
        self._api, self._spawn, self._on_change, self._on_object = api, spawn, on_change, on_object
        self._objects: dict[tuple[str, str], dict[Key, Live]] = {}
        self._reflectors: dict[tuple[str, str], Reflector[Live]] = {}

    def watch(self, kind: ApiResource) -> None:
        if (kind.api_version, kind.kind) in self._objects or not kind.watchable:
            return
        known: dict[Key, Live] = {}
        self._objects[kind.api_version, kind.kind] = known

        def put(key: Key, live: Live) -> None:
            live["metadata"].pop("managedFields", None)
            live.setdefault("apiVersion", kind.api_version)  # items of a list lack both
            live.setdefault("kind", kind.kind)
            known[key] = live
            self._on_object(kind, live)
            self._on_change((live["metadata"].get("labels") or {}).get(APP_LABEL, ""))

        def drop(key: Key, _uid: str) -> None:
            live = known.pop(key, None)
            if live is not None:
                self._on_change((live["metadata"].get("labels") or {}).get(APP_LABEL, ""))

        reflector = Reflector(self._api, kind.all_namespaces(), _decode, put, drop, labels=APP_LABEL)
        self._reflectors[kind.api_version, kind.kind] = reflector
        self._spawn(reflector.run())

    async def wait_listed(self, kind: ApiResource) -> None:
        """Returns once the server has listed the kind's objects, or refused to."""
        reflector = self._reflectors.get((kind.api_version, kind.kind))
        if reflector is not None:
            await reflector.synced.wait()

    def is_complete(self, kind: ApiResource) -> bool:
        """Returns whether an object that `get` does not return does not exist: the kind is watched and was listed."""
        reflector = self._reflectors.get((kind.api_version, kind.kind))
        return reflector is not None and reflector.listed and not reflector.absent

    def get(self, kind: ApiResource, namespace: str, name: str) -> Live | None:
        key = Key(namespace if kind.namespaced else "", name)
        return self._objects.get((kind.api_version, kind.kind), {}).get(key)
