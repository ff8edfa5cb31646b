"""Describes how requests reach an API server: over connections that are kept for the next ones, or over one each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class TransportFailed(Exception):
    """No answer, or one that ended early or is no HTTP."""


class Answer(Protocol):
    """An answer whose body is still to be read."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    async def read(self) -> bytes:
        """Returns the whole body. Raises TransportFailed, as every call here does."""

    async def read_any(self) -> bytes:
        """Returns some of the body as soon as it is there; b"" at its end."""

    def close(self) -> None:
        """Gives up what was not read."""


class Transport(Protocol):
    async def send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        anew: bool,
    ) -> Answer:
        """Sends a request, `anew` over a new connection, and returns once the head of the answer is there."""

    async def close(self) -> None: ...
