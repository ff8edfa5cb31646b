"""Access tokens as they are kept. The secret is told once and kept nowhere; every gateway mirrors the rest, so what is
revoked ends everywhere at once."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from moorage.bus import Bus, Conflict, new_id, now_text
from moorage.mesh import stores
from moorage.model.auth import Caller, Role, Token
from moorage.model.names import token
from moorage.model.problems import Refused, conflict, not_found

BUCKET = stores.TOKENS
_FORM = re.compile(r"mrg_([A-Za-z0-9]{1,64})_([A-Za-z0-9_-]{43})", re.ASCII)
_stored = msgspec.json.Decoder(Token).decode


class TokenRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    name: str
    role: Role = "viewer"
    projects: list[str] = []
    expires_in: float | None = None  # seconds


class TokenStore:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._by_id: dict[str, Token] = {}
        self._by_key: dict[str, tuple[Token, int]] = {}

    async def start(self) -> None:
        await self._bucket.mirror(self._saw)

    def _saw(self, key: str, value: bytes | None, revision: int) -> None:
        old = self._by_key.get(key)
        if old is not None and value is not None and old[1] >= revision:
            return
        if old is not None:
            self._by_id.pop(old[0].id, None)
            del self._by_key[key]
        if value is not None:
            fresh = _stored(value)
            self._by_key[key] = (fresh, revision)
            self._by_id[fresh.id] = fresh

    @property
    def names(self) -> list[str]:
        return sorted(held.name for held, _ in self._by_key.values())

    def get(self, name: str) -> Token | None:
        found = self._by_key.get(token(name))
        return None if found is None else found[0]

    def who(self, given: str) -> tuple[str, Caller] | None:
        """The token's id and whose it is; None for what is wrong, revoked or expired."""
        match = _FORM.fullmatch(given)
        if match is None or (held := self._by_id.get(match[1])) is None:
            return None
        if not hmac.compare_digest(digest_of(match[2]), held.digest) or not self.stands(held.id):
            return None
        return held.id, Caller(name=held.name, role=held.role, projects=tuple(held.projects))

    def stands(self, ident: str) -> bool:
        """Not revoked and not expired: what lasts longer than a request asks again."""
        held = self._by_id.get(ident)
        return held is not None and (not held.expires or datetime.now(UTC) < datetime.fromisoformat(held.expires))

    async def create(self, wanted: TokenRequest, by: str) -> tuple[Token, str]:
        secret = secrets.token_urlsafe(32)
        made = Token(
            id=new_id(),
            name=wanted.name,
            role=wanted.role,
            digest=digest_of(secret),
            projects=sorted(set(wanted.projects)),
            created=now_text(),
            by=by,
        )
        if wanted.expires_in is not None:
            end = datetime.now(UTC) + timedelta(seconds=wanted.expires_in)
            made.expires = end.isoformat(timespec="seconds").replace("+00:00", "Z")
        key, value = token(made.name), msgspec.json.encode(made)
        try:
            self._saw(key, value, await self._bucket.create(key, value))
        except Conflict:
            raise Refused(conflict(f"a token {made.name} is there already; revoke it first")) from None
        return made, f"mrg_{made.id}_{secret}"

    async def revoke(self, name: str) -> None:
        key = token(name)
        entry = await self._bucket.get(key)
        if entry is None:
            raise Refused(not_found(f"token {name}"))
        await self._bucket.delete(key)
        self._saw(key, None, 0)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
