"""Stores what is needed to find objects that were created before a record named them: the id that their marks are made with,
and the kinds to search, which are written before the first object of a kind is created."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import structlog

from moorage.bus import new_id
from moorage.kube import ApiResource

from .fenced_configmap import FencedConfigMap, FencedConfigMaps, FencedContent, content_of

log = structlog.get_logger("agent")

NAME = "moorage-marks"


class OwnershipContent(FencedContent, kw_only=True, rename="camel"):
    """`id` distinguishes this agent's objects from those of agents with other records in this cluster."""

    id: str
    kinds: list[tuple[str, str]] = []


class OwnershipRegistry:
    def __init__(self, configmaps: FencedConfigMaps) -> None:
        self._configmaps = configmaps
        self._configmap = FencedConfigMap(NAME, OwnershipContent(id=""))
        self._storing = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._configmap.content.id

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return self._configmap.content.kinds

    async def load(self) -> None:
        """Takes the ConfigMap over, or creates it: afterwards a predecessor can add no kind."""
        found = await self._configmaps.api.get(f"{self._configmaps.path}/{NAME}")
        content = content_of(found, OwnershipContent) if found is not None else None
        if found is not None and content is None:
            log.warning("the ConfigMap of marks cannot be decoded and is replaced", name=NAME)
        version = str(found["metadata"]["resourceVersion"]) if found is not None else ""
        configmap = FencedConfigMap(NAME, content or OwnershipContent(id=new_id()), version)
        await self._configmaps.take_over(configmap)
        self._configmap = configmap

    async def add_kinds(self, kinds: Iterable[ApiResource]) -> None:
        """Returns once all of them are stored."""
        wanted = dict.fromkeys((kind.api_version, kind.kind) for kind in kinds)
        if not self._configmap.behind and wanted.keys() <= set(self.kinds):
            return
        async with self._storing:
            content = self._configmap.content
            new = [kind for kind in wanted if kind not in content.kinds]
            if new:
                self._configmap.content = msgspec.structs.replace(content, kinds=[*content.kinds, *new])
            if new or self._configmap.behind:
                await self._configmaps.store(self._configmap)
