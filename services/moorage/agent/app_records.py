"""What this agent has made in its cluster, written down there: an agent that is started anew, or another one, knows what to
prune and to remove. Nothing is changed or taken away before it is written down, and nothing is made either, but for what
carries a mark by which it is found again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from moorage.kube import Api, ApiResource, Term
from moorage.kube.api import decoded

from .fenced_configmap import FencedConfigMap, FencedConfigMaps, FencedContent, content_of
from .ownership import OwnershipRegistry

LABEL = "moorage.dev/record"
#: On every object this agent made: which app it belongs to.
APP_LABEL = "moorage.dev/app"
OWNER = "moorage.dev/owner"


class Ref(NamedTuple):
    """`namespace` as the object is addressed; of kinds without namespaces it is ignored."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def place(self) -> tuple[str, ...]:
        """The same for all versions of its kind: they show the same objects."""
        return self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name


class AppRecordContent(FencedContent, kw_only=True, rename="camel"):
    group: str
    app: str
    version: int = 0
    refs: list[Ref] = []


def label_of(group: str, app: str) -> str:
    """Names are longer than labels may be."""
    return hashlib.sha256(f"{group} {app}".encode()).hexdigest()[:20]


def names(refs: Sequence[Ref], kind: ApiResource, ref: Ref) -> bool:
    """Whether an object of that kind is among them."""
    group, what, namespace, name = ref.place
    return ref in refs or any(
        place[0] == group and place[1] == what and place[3] == name and (not kind.namespaced or place[2] == namespace)
        for place in (one.place for one in refs)
    )


class AppRecord(FencedConfigMap[AppRecordContent]):
    def __init__(self, content: AppRecordContent, version: str = "") -> None:
        super().__init__(f"moorage-app-{label_of(content.group, content.app)}", content, version, {LABEL: "true"})

    def refer(self, refs: list[Ref], version: int) -> None:
        """What there may be of this app from now on, whatever becomes of writing it down."""
        before = self.content
        if refs != before.refs or version != before.version:
            self.content = AppRecordContent(group=before.group, app=before.app, version=version, refs=refs)
            self.behind = True


class AppRecords(FencedConfigMaps):
    """One for every app, and the marks."""

    def __init__(self, api: Api, namespace: str, term: Term) -> None:
        super().__init__(api, namespace, term)
        self.marks = OwnershipRegistry(self)

    async def load(self) -> list[AppRecord]:
        """All of them, now ours: what a predecessor still writes is refused from here on."""
        _, data = await self.api.call("GET", self.path, query={"labelSelector": LABEL})
        found = []
        for item in decoded(data, dict[str, Any]).get("items") or ():
            content = content_of(item, AppRecordContent)
            if content is not None:
                found.append(AppRecord(content, str(item["metadata"]["resourceVersion"])))
        for record in found:
            await self.fence(record)
        await self.marks.load()
        return found
