"""ConfigMaps in the agent's own namespace that only who holds the lease can write: each carries the term it was written in,
and whoever takes over writes all of them anew, so that what a predecessor still writes is refused. That is the fence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from moorage.kube import Api, ApiError, Term, Unreachable
from moorage.kube.api import decoded


class StaleTerm(Exception):
    """Another agent has taken over."""


class FencedContent(msgspec.Struct, kw_only=True, rename="camel"):
    term: int = 0


C = TypeVar("C", bound=FencedContent)


class FencedConfigMap(Generic[C]):
    """`version` is the resourceVersion, empty where nothing is stored; `behind`: what is stored is not known to be this."""

    def __init__(self, name: str, content: C, version: str = "", labels: Mapping[str, str] | None = None) -> None:
        self.name, self.content, self.version = name, content, version
        self.labels = dict(labels or {})
        self.behind = not version


class FencedConfigMaps:
    def __init__(self, api: Api, namespace: str, term: Term) -> None:
        self.api, self._term = api, term
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"

    async def fence(self, sheet: FencedConfigMap[C]) -> None:
        """Ours from here on."""
        if sheet.content.term > self._term.generation:
            raise StaleTerm(f"{sheet.name} was written by term {sheet.content.term}")
        if sheet.behind or sheet.content.term < self._term.generation:
            await self.store(sheet)

    def _valid(self) -> None:
        if not self._term.valid:
            raise StaleTerm("the lease was not renewed in time")

    async def store(self, sheet: FencedConfigMap[C]) -> None:
        self._valid()
        sheet.behind = True
        content = msgspec.structs.replace(sheet.content, term=self._term.generation)
        metadata: dict[str, Any] = {"name": sheet.name, "labels": sheet.labels}
        if sheet.version:
            metadata["resourceVersion"] = sheet.version
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"record": msgspec.json.encode(content).decode()},
        }
        method, path = ("PUT", f"{self.path}/{sheet.name}") if sheet.version else ("POST", self.path)
        try:
            _, data = await self.api.call(method, path, body=msgspec.json.encode(body))
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            if not await self._stored(sheet, content):
                raise StaleTerm(f"{sheet.name}: {error.message}") from error
        else:
            sheet.version = str(decoded(data, dict[str, Any])["metadata"]["resourceVersion"])
        sheet.content, sheet.behind = content, False

    async def _stored(self, sheet: FencedConfigMap[C], content: C) -> bool:
        """A write of ours whose answer was lost, or what somebody touched without taking over."""
        found = await self.api.get(f"{self.path}/{sheet.name}")
        if found is None:
            sheet.version = ""
            raise Unreachable(f"{sheet.name} is gone")  # once more, as a new one
        theirs = content_of(found, type(content))
        if theirs is not None and theirs.term > self._term.generation:
            return False
        sheet.version = str(found["metadata"]["resourceVersion"])
        if theirs != content:
            raise Unreachable(f"{sheet.name} was changed by somebody")
        return True

    async def remove(self, sheet: FencedConfigMap[C]) -> None:
        if sheet.version:
            self._valid()
            options = {"preconditions": {"resourceVersion": sheet.version}}
            try:
                await self.api.call("DELETE", f"{self.path}/{sheet.name}", body=msgspec.json.encode(options))
            except ApiError as error:
                if error.code == 409:
                    await self._stored(sheet, sheet.content)
                    raise Unreachable(f"{sheet.name} was changed by somebody") from error
                if error.code != 404:
                    raise
        sheet.version, sheet.behind = "", True


def content_of(item: Mapping[str, Any], kind: type[C]) -> C | None:
    try:
        return msgspec.json.decode((item.get("data") or {}).get("record", ""), type=kind)
    except msgspec.DecodeError:
        return None
