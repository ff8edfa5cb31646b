"""A client of the Placement interface that survives the end of a worker."""

from __future__ import annotations

import asyncio
import uuid
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec

VERSION = "1.39"


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class PlacementClient:
    def __init__(self, url: str, token: str, version: str = VERSION) -> None:
        self._url, self._token, self._version = url.rstrip("/"), token, version
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def once(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Sends a request. The status is 0 if there was no answer."""
        assert self._session is not None
        given = {"x-auth-token": self._token, "openstack-api-version": f"placement {self._version}", **headers}
        if body is not None:
            given["content-type"] = "application/json"
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, f"{self._url}{path}", headers=given, data=data) as answer:
                found = await answer.read()
                shown = msgspec.json.decode(found) if found.startswith((b"{", b"[")) else found
                return Reply(answer.status, shown, dict(answer.headers))
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return Reply(0, None, {})

    async def call(self, method: str, path: str, body: Any = None, seconds: float = 180) -> Reply:
        """Repeats a request until a worker answers it."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.once(method, path, body)
                if found.status not in (0, 503):
                    return found
                await asyncio.sleep(0.05)

    async def done(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the body of an answer, which must be no error."""
        found = await self.call(method, path, body)
        assert found.status < 300, (method, path, found.status, found.body)
        return found.body

    async def provider(
        self, name: str, offers: dict[str, int] | None = None, *, parent: str | None = None, ident: str = ""
    ) -> str:
        """Makes a provider with amounts by class, or finds it made by a request whose answer was lost."""
        ident = ident or str(uuid.uuid4())
        body = {"name": name, "uuid": ident, "parent_provider_uuid": parent}
        made = await self.call("POST", "/resource_providers", body)
        assert made.status in (200, 409), made
        if offers:
            await self.offer(ident, offers)
        return ident

    async def offer(self, provider: str, amounts: dict[str, int]) -> None:
        inventories = {name: {"total": total} for name, total in amounts.items()}
        while True:
            body = {"resource_provider_generation": await self.generation(provider), "inventories": inventories}
            answer = await self.call("PUT", f"/resource_providers/{provider}/inventories", body)
            if answer.status != 409:
                assert answer.status == 200, answer
                return

    async def generation(self, provider: str) -> int:
        found: int = (await self.done("GET", f"/resource_providers/{provider}"))["generation"]
        return found

    async def allocate(
        self, consumer: str, allocations: dict[str, dict[str, int]], generation: int | None = None
    ) -> Reply:
        return await self.call("PUT", f"/allocations/{consumer}", self.allocation(allocations, generation))

    @staticmethod
    def allocation(allocations: dict[str, dict[str, int]], generation: int | None = None) -> dict[str, Any]:
        return {
            "allocations": {provider: {"resources": amounts} for provider, amounts in allocations.items()},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "TEST",
            "consumer_generation": generation,
        }

    async def held(self, provider: str) -> dict[str, dict[str, int]]:
        """Returns what consumers hold of a provider."""
        found = (await self.done("GET", f"/resource_providers/{provider}/allocations"))["allocations"]
        return {consumer: one["resources"] for consumer, one in found.items()}

    async def used(self, provider: str) -> dict[str, int]:
        found: dict[str, int] = (await self.done("GET", f"/resource_providers/{provider}/usages"))["usages"]
        return found
