"""The objects this agent made, followed per kind as soon as there is one: their status, and what others do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from moorage.kube import Api, ApiResource, Reflector
from moorage.kube.objects import Key

from .app_records import APP_LABEL

Live = dict[str, Any]
_decode = msgspec.json.Decoder(dict[str, Any]).decode
#: What changes all the time without anybody meaning to change the object.
_VOLATILE = frozenset({"resourceVersion", "managedFields", "generation", "creationTimestamp", "uid", "selfLink"})


def digest(obj: Live) -> int:
    """Of what somebody said about an object, not of what became of it."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _VOLATILE}
    rest = {k: v for k, v in obj.items() if k not in ("metadata", "status", "apiVersion", "kind")}
    return hash(msgspec.json.encode([metadata, rest], order="sorted"))


def version(obj: Live) -> int:
    """Comparable between states of one object."""
    text = str(obj["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


class ObjectWatches:
    """`changed` gets the app's label whenever one of its objects changed or went; `seen` every object, each time."""

    def __init__(
        self,
        api: Api,
        spawn: Callable[[Any], asyncio.Task[Any]],
        changed: Callable[[str], None],
        seen: Callable[[ApiResource, Live], None],
    ) -> None:
        self._api, self._spawn, self._changed, self._seen = api, spawn, changed, seen
        self._kinds: dict[tuple[str, str], dict[Key, Live]] = {}
        self._reflectors: dict[tuple[str, str], Reflector[Live]] = {}

    def follow(self, kind: ApiResource) -> None:
        which = (kind.api_version, kind.kind)
        if which in self._kinds or not kind.watchable:
            return
        known: dict[Key, Live] = {}
        self._kinds[which] = known

        def put(key: Key, live: Live) -> None:
            live["metadata"].pop("managedFields", None)
            live.setdefault("apiVersion", kind.api_version)  # entries of a list do not say what they are
            live.setdefault("kind", kind.kind)
            known[key] = live
            self._seen(kind, live)
            self._changed((live["metadata"].get("labels") or {}).get(APP_LABEL, ""))

        def drop(key: Key, _uid: str) -> None:
            live = known.pop(key, None)
            if live is not None:
                self._changed((live["metadata"].get("labels") or {}).get(APP_LABEL, ""))

        reflector = Reflector(self._api, kind.everywhere(), _decode, put, drop, labels=APP_LABEL)
        self._reflectors[which] = reflector
        self._spawn(reflector.run())

    async def asked(self, kind: ApiResource) -> None:
        """Once the server has listed them, or refused to."""
        reflector = self._reflectors.get((kind.api_version, kind.kind))
        if reflector is not None:
            await reflector.synced.wait()

    def sees(self, kind: ApiResource) -> bool:
        """What is not in `get` is not there: the kind is followed, and its list is whole."""
        reflector = self._reflectors.get((kind.api_version, kind.kind))
        return reflector is not None and reflector.listed and not reflector.absent

    def get(self, kind: ApiResource, namespace: str, name: str) -> Live | None:
        key = Key(namespace if kind.namespaced else "", name)
        return self._kinds.get((kind.api_version, kind.kind), {}).get(key)
