"""Records, in the cluster, which objects the agent manages for each app, so that a restarted or another agent knows what to
prune and to remove. No object is changed or deleted before its record is stored, and none is created either, except those
that carry a mark by which they are found again."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.kube import Api, LeaderTerm
from moorage.kube.api import decode
from moorage.model.desired_state import Pins

from .core.owned_objects import Ref, label_of
from .fenced_configmap import FencedConfigMap, FencedConfigMaps, FencedContent, content_of
from .ownership import OwnershipRegistry

RECORD_LABEL = "moorage.dev/record"


class AppRecordContent(FencedContent, kw_only=True, rename="camel"):
    group: str
    app: str
    version: int = 0
    refs: list[Ref] = []
    pins: Pins | None = None  # so that a successor pins pods while the mesh is away


class AppRecord(FencedConfigMap[AppRecordContent]):
    def __init__(self, content: AppRecordContent, version: str = "") -> None:
        name = f"moorage-app-{label_of(content.group, content.app)}"
        super().__init__(name, content, version, {RECORD_LABEL: "true"})

    def set_refs(self, refs: list[Ref], version: int) -> None:
        """Sets which objects of the app may exist from now on. The record is stored later."""
        before = self.content
        if refs != before.refs or version != before.version:
            self.content = msgspec.structs.replace(before, version=version, refs=refs)
            self.behind = True

    def set_pins(self, pins: Pins) -> None:
        """Sets the slots of the app's pods. The record is stored later."""
        self.content = msgspec.structs.replace(self.content, pins=pins if pins.tag else None)
        self.behind = True


class AppRecords(FencedConfigMaps):
    """One ConfigMap per app, and the one of the ownership registry."""

    def __init__(self, api: Api, namespace: str, term: LeaderTerm) -> None:
        super().__init__(api, namespace, term)
        self.ownership = OwnershipRegistry(self)

    async def load(self) -> list[AppRecord]:
        """Reads all records and takes them over: afterwards the writes of a predecessor are refused."""
        _, data = await self.api.call("GET", self.path, query={"labelSelector": RECORD_LABEL})
        records = []
        for item in decode(data, dict[str, Any]).get("items") or ():
            content = content_of(item, AppRecordContent)
            if content is not None:
                records.append(AppRecord(content, str(item["metadata"]["resourceVersion"])))
        for record in records:
            await self.take_over(record)
        await self.ownership.load()
        return records
