"""Mirrors the access tokens. Only their digests are stored."""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime

import msgspec
from aiohttp import web

from moorage.bus import Bus
from moorage.mesh import stores
from moorage.model.auth import Caller, Token

_FORM = re.compile(r"mrg_([A-Za-z0-9]{1,64})_([A-Za-z0-9_-]{43})", re.ASCII)
_stored = msgspec.json.Decoder(Token).decode


class TokenReader:
    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket(stores.TOKENS)
        self._by_id: dict[str, Token] = {}
        self._by_key: dict[str, tuple[Token, int]] = {}

    async def start(self) -> None:
        await self._bucket.mirror(self._update)

    def _update(self, key: str, value: bytes | None, revision: int) -> None:
        old = self._by_key.get(key)
        if old is not None and value is not None and old[1] >= revision:
            return
        if old is not None:
            self._by_id.pop(old[0].id, None)
            del self._by_key[key]
        if value is not None:
            new = _stored(value)
            self._by_key[key] = (new, revision)
            self._by_id[new.id] = new

    def authenticate(self, given: str) -> tuple[str, Caller] | None:
        """Returns the token's id and caller; None if it is wrong, revoked or expired."""
        match = _FORM.fullmatch(given)
        if match is None or (stored := self._by_id.get(match[1])) is None:
            return None
        if not hmac.compare_digest(digest_of(match[2]), stored.digest) or not self.is_valid(stored.id):
            return None
        return stored.id, Caller(name=stored.name, role=stored.role, projects=tuple(stored.projects))

    def is_valid(self, ident: str) -> bool:
        """Returns whether the token is neither revoked nor expired. Event streams ask repeatedly, because they outlive a request."""
        stored = self._by_id.get(ident)
        return stored is not None and (not stored.expires or datetime.now(UTC) < datetime.fromisoformat(stored.expires))


def token_of(request: web.Request) -> str:
    """Returns the token that a caller of the Placement interface presents: `X-Auth-Token`, or a bearer token."""
    given = request.headers.get("x-auth-token", "")
    if given:
        return given
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
