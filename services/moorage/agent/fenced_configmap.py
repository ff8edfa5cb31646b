"""ConfigMaps in the agent's namespace that only the lease holder can write. Each carries the term it was written in, and a new
holder writes all of them again, so that its predecessor's writes fail on an outdated resourceVersion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from moorage.kube import Api, ApiError, LeaderTerm, Unreachable
from moorage.kube.api import decode


class StaleTerm(Exception):
    """Another agent has taken over."""


class FencedContent(msgspec.Struct, kw_only=True, rename="camel"):
    term: int = 0


C = TypeVar("C", bound=FencedContent)


class FencedConfigMap(Generic[C]):
    """`version` is the resourceVersion, empty if nothing is stored; `behind`: what is stored may differ from `content`."""

    def __init__(self, name: str, content: C, version: str = "", labels: Mapping[str, str] | None = None) -> None:
        self.name, self.content, self.version = name, content, version
        self.labels = dict(labels or {})
        self.behind = not version


class FencedConfigMaps:
    def __init__(self, api: Api, namespace: str, term: LeaderTerm) -> None:
        self.api, self._term = api, term
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"

    async def take_over(self, configmap: FencedConfigMap[C]) -> None:
        """Writes the ConfigMap again in this term, unless that has happened."""
        if configmap.content.term > self._term.generation:
            raise StaleTerm(f"{configmap.name} was written by term {configmap.content.term}")
        if configmap.behind or configmap.content.term < self._term.generation:
            await self.store(configmap)

    def _check_term(self) -> None:
        if not self._term.is_valid:
            raise StaleTerm("the lease was not renewed in time")

    async def store(self, configmap: FencedConfigMap[C]) -> None:
        self._check_term()
        configmap.behind = True
        content = msgspec.structs.replace(configmap.content, term=self._term.generation)
        metadata: dict[str, Any] = {"name": configmap.name, "labels": configmap.labels}
        if configmap.version:
            metadata["resourceVersion"] = configmap.version
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"record": msgspec.json.encode(content).decode()},
        }
        method, path = ("PUT", f"{self.path}/{configmap.name}") if configmap.version else ("POST", self.path)
        try:
            _, data = await self.api.call(method, path, body=msgspec.json.encode(body))
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            if not await self._is_stored(configmap, content):
                raise StaleTerm(f"{configmap.name}: {error.message}") from error
        else:
            configmap.version = str(decode(data, dict[str, Any])["metadata"]["resourceVersion"])
        configmap.content, configmap.behind = content, False

    async def _is_stored(self, configmap: FencedConfigMap[C], content: C) -> bool:
        """Looks what a conflict means. True: our own write, whose answer was lost; False: a newer term. Raises Unreachable,
        so that the write is repeated, if the ConfigMap was deleted or changed by anybody else."""
        found = await self.api.get(f"{self.path}/{configmap.name}")
        if found is None:
            configmap.version = ""
            raise Unreachable(f"{configmap.name} was deleted")
        stored = content_of(found, type(content))
        if stored is not None and stored.term > self._term.generation:
            return False
        configmap.version = str(found["metadata"]["resourceVersion"])
        if stored != content:
            raise Unreachable(f"{configmap.name} was changed by somebody else")
        return True

    async def remove(self, configmap: FencedConfigMap[C]) -> None:
        if configmap.version:
            self._check_term()
            options = {"preconditions": {"resourceVersion": configmap.version}}
            try:
                await self.api.call("DELETE", f"{self.path}/{configmap.name}", body=msgspec.json.encode(options))
            except ApiError as error:
                if error.code == 409:
                    await self._is_stored(configmap, configmap.content)
                    raise Unreachable(f"{configmap.name} was changed by somebody else") from error
                if error.code != 404:
                    raise
        configmap.version, configmap.behind = "", True


def content_of(item: Mapping[str, Any], kind: type[C]) -> C | None:
    try:
        return msgspec.json.decode((item.get("data") or {}).get("record", ""), type=kind)
    except msgspec.DecodeError:
        return None
