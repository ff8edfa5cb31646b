"""Which kinds a server has and where their objects are: asked per group when first needed, again when one is missing."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from .api import Api, ApiError, decoded

#: A kind that is missing may come with a CRD that was applied a moment ago.
_AGAIN = 1.0


class ApiResource(NamedTuple):
    api_version: str
    kind: str
    plural: str
    namespaced: bool
    watchable: bool

    @property
    def root(self) -> str:
        return base(self.api_version)

    def everywhere(self) -> str:
        return f"{self.root}/{self.plural}"

    def collection(self, namespace: str) -> str:
        return f"{self.root}/namespaces/{quote(namespace)}/{self.plural}" if self.namespaced else self.everywhere()

    def path(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{quote(name, safe='')}"


def base(api_version: str) -> str:
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
        """None: this server does not have it (now)."""
        async with self._locks.setdefault(api_version, asyncio.Lock()):
            known = self._groups.get(api_version)
            now = asyncio.get_running_loop().time()
            if known is None or (kind not in known[1] and now - known[0] > _AGAIN):
                known = self._groups[api_version] = (now, await self._ask(api_version))
        return known[1].get(kind)

    async def _ask(self, api_version: str) -> dict[str, ApiResource]:
        try:
            _, data = await self._api.call("GET", base(api_version))
        except ApiError as error:
            if error.code in (404, 403):
                return {}
            raise
        found = {}
        for one in decoded(data, _Resources).resources or ():
            if "/" not in one.name and one.kind:
                found[one.kind] = ApiResource(api_version, one.kind, one.name, one.namespaced, "watch" in one.verbs)
        return found
