"""What this agent has made in its cluster, written down there before it makes it: an agent that is started anew, or another
one, knows what to prune and to remove. A write by who no longer holds the lease is refused, and that is the fence."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from moorage.kube import Api, ApiError, Term, Unreachable
from moorage.kube.api import decoded

LABEL = "moorage.dev/record"
#: On every object this agent made: which app it belongs to.
APP_LABEL = "moorage.dev/app"
OWNER = "moorage.dev/owner"


class Fenced(Exception):
    """Another agent has taken over."""


class Ref(NamedTuple):
    """`namespace` as the object is addressed; of kinds without namespaces it is ignored."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"


class Content(msgspec.Struct, kw_only=True, rename="camel"):
    group: str
    app: str
    term: int = 0
    version: int = 0
    refs: list[Ref] = []


def label_of(group: str, app: str) -> str:
    """Names are longer than labels may be."""
    return hashlib.sha256(f"{group} {app}".encode()).hexdigest()[:20]


class Record:
    def __init__(self, content: Content, version: str = "") -> None:
        self.content = content
        self.version = version  # resourceVersion; empty = not stored

    @property
    def name(self) -> str:
        return f"moorage-app-{label_of(self.content.group, self.content.app)}"


class Records:
    """ConfigMaps in the agent's own namespace."""

    def __init__(self, api: Api, namespace: str, term: Term) -> None:
        self._api, self._term = api, term
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    async def load(self) -> list[Record]:
        """All of them, now ours: what a predecessor still writes is refused from here on."""
        found = await read_all(self._api, self._path)
        for record in found:
            if record.content.term > self._term.generation:
                raise Fenced(f"{record.name} was written by term {record.content.term}")
            if record.content.term < self._term.generation:
                await self.store(record)
        return found

    async def store(self, record: Record) -> None:
        if not self._term.valid:
            raise Fenced("the lease was not renewed in time")
        content = msgspec.structs.replace(record.content, term=self._term.generation)
        metadata: dict[str, Any] = {"name": record.name, "labels": {LABEL: "true"}}
        if record.version:
            metadata["resourceVersion"] = record.version
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"record": msgspec.json.encode(content).decode()},
        }
        method, path = ("PUT", f"{self._path}/{record.name}") if record.version else ("POST", self._path)
        try:
            _, data = await self._api.call(method, path, body=msgspec.json.encode(body))
        except ApiError as error:
            if error.code in (404, 409) and not await self._stored(record, content):
                raise Fenced(f"{record.name}: {error.message}") from error
            if error.code not in (404, 409):
                raise
            return
        record.content = content
        record.version = str(decoded(data, dict[str, Any])["metadata"]["resourceVersion"])

    async def _stored(self, record: Record, content: Content) -> bool:
        """A write of ours whose answer was lost, or what somebody touched without taking over."""
        found = await self._api.get(f"{self._path}/{record.name}")
        if found is None:
            record.version = ""
            raise Unreachable(f"{record.name} is gone")  # once more, as a new one
        theirs = _content(found)
        if theirs is not None and theirs.term > self._term.generation:
            return False
        record.version = str(found["metadata"]["resourceVersion"])
        if theirs == content:
            record.content = content
            return True
        raise Unreachable(f"{record.name} was changed by somebody")

    async def remove(self, record: Record) -> None:
        if not record.version:
            return
        if not self._term.valid:
            raise Fenced("the lease was not renewed in time")
        options = {"preconditions": {"resourceVersion": record.version}}
        try:
            await self._api.call("DELETE", f"{self._path}/{record.name}", body=msgspec.json.encode(options))
        except ApiError as error:
            if error.code == 409:
                await self._stored(record, record.content)
                raise Unreachable(f"{record.name} was changed by somebody") from error
            if error.code != 404:
                raise
        record.version = ""


async def read_all(api: Api, path: str) -> list[Record]:
    _, data = await api.call("GET", path, query={"labelSelector": LABEL})
    found = []
    for item in decoded(data, dict[str, Any]).get("items") or ():
        content = _content(item)
        if content is not None:
            found.append(Record(content, str(item["metadata"]["resourceVersion"])))
    return found


def _content(item: dict[str, Any]) -> Content | None:
    try:
        return msgspec.json.decode((item.get("data") or {}).get("record", ""), type=Content)
    except msgspec.DecodeError:
        return None
