"""What lets an object be made before it is written down: a mark on it that nothing else in this cluster can carry rightly,
and a list, written ahead, of the kinds among which such objects have to be looked for. Who takes over follows those kinds,
and finds what its predecessor was ended over."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

import msgspec
import structlog

from moorage.bus import new_id
from moorage.kube import ApiResource

from .fenced_configmap import FencedConfigMap, FencedConfigMaps, FencedContent, content_of

log = structlog.get_logger("agent")

#: On every object this agent made. A copy of the object, under another name or in another place, does not match it.
MARK = "moorage.dev/mark"
NAME = "moorage-marks"


class OwnershipContent(FencedContent, kw_only=True, rename="camel"):
    """`id` tells this agent's objects from those of agents that were here under other records."""

    id: str
    kinds: list[tuple[str, str]] = []


class OwnershipRegistry:
    def __init__(self, sheets: FencedConfigMaps) -> None:
        self._sheets = sheets
        self._sheet = FencedConfigMap(NAME, OwnershipContent(id=""))
        self._one = asyncio.Lock()

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return self._sheet.content.kinds

    async def load(self) -> None:
        """Ours from here on, also where there was none: a predecessor can add no kind any more."""
        found = await self._sheets.api.get(f"{self._sheets.path}/{NAME}")
        content = content_of(found, OwnershipContent) if found is not None else None
        if found is not None and content is None:
            log.warning("the marks cannot be read and are begun anew", name=NAME)
        version = str(found["metadata"]["resourceVersion"]) if found is not None else ""
        sheet = FencedConfigMap(NAME, content or OwnershipContent(id=new_id()), version)
        await self._sheets.fence(sheet)
        self._sheet = sheet

    def of(self, kind: ApiResource, namespace: str, name: str) -> str:
        where = namespace if kind.namespaced else ""
        group = kind.api_version.rpartition("/")[0]
        said = msgspec.json.encode([self._sheet.content.id, group, kind.kind, where, name])
        return hashlib.sha256(said).hexdigest()[:20]

    async def note(self, kinds: Iterable[ApiResource]) -> None:
        """Back once all of them stand there."""
        wanted = dict.fromkeys((kind.api_version, kind.kind) for kind in kinds)
        if not self._sheet.behind and wanted.keys() <= set(self.kinds):
            return
        async with self._one:
            content = self._sheet.content
            new = [one for one in wanted if one not in content.kinds]
            if new:
                self._sheet.content = msgspec.structs.replace(content, kinds=[*content.kinds, *new])
            if new or self._sheet.behind:
                await self._sheets.store(self._sheet)
