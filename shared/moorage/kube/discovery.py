"""Discovers the kinds that a server has and the paths of their objects, per group, and again when a kind is missing."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from .api import Api, ApiError, decode

#: A missing kind is looked up again after this many seconds: its CRD may have been applied a moment ago.
_RECHECK_AFTER = 1.0


class ApiResource(NamedTuple):
    api_version: str
    kind: str
    plural: str
    namespaced: bool
    watchable: bool

    @property
    def root(self) -> str:
        return group_path(self.api_version)

    def all_namespaces(self) -> str:
        return f"{self.root}/{self.plural}"

    def collection(self, namespace: str) -> str:
        return f"{self.root}/namespaces/{quote(namespace)}/{self.plural}" if self.namespaced else self.all_namespaces()

    def path(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{quote(name, safe='')}"


def group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


class _Resource(msgspec.Struct, kw_only=True):
    name: str
    kind: str = ""
    namespaced: bool = False
    verbs: list[str] = []


class _Resources(msgspec.Struct):
    resources: list[_Resource] | None = None


class ApiDiscovery:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, tuple[float, dict[str, ApiResource]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def find(self, api_version: str, kind: str) -> ApiResource | None:
        """Returns a kind; None if the server does not have it at present."""
        async with self._locks.setdefault(api_version, asyncio.Lock()):
            known = self._groups.get(api_version)
            now = asyncio.get_running_loop().time()
            if known is None or (kind not in known[1] and now - known[0] > _RECHECK_AFTER):
                known = self._groups[api_version] = (now, await self._fetch(api_version))
        return known[1].get(kind)

    async def _fetch(self, api_version: str) -> dict[str, ApiResource]:
        try:
            _, data = await self._api.call("GET", group_path(api_version))
        except ApiError as error:
            if error.code in (404, 403):
                return {}
            raise
        return {
            r.kind: ApiResource(api_version, r.kind, r.name, r.namespaced, "watch" in r.verbs)
            for r in decode(data, _Resources).resources or ()
            if "/" not in r.name and r.kind
        }
