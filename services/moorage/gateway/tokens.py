"""Stores access tokens. The secret is returned once and only its digest is stored. Every gateway mirrors the bucket, so a
revocation takes effect everywhere at once."""

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

    @property
    def names(self) -> list[str]:
        return sorted(stored.name for stored, _ in self._by_key.values())

    def get(self, name: str) -> Token | None:
        found = self._by_key.get(token(name))
        return None if found is None else found[0]

    def authenticate(self, given: str) -> tuple[str, Caller] | None:
        """Returns the token's id and caller; None if it is wrong, revoked or expired."""
        match = _FORM.fullmatch(given)
        if match is None or (stored := self._by_id.get(match[1])) is None:
            return None
        if not hmac.compare_digest(digest_of(match[2]), stored.digest) or not self.is_valid(stored.id):
            return None
        return stored.id, Caller(name=stored.name, role=stored.role, projects=tuple(stored.projects))

    def is_valid(self, ident: str) -> bool:
        """Whether the token is neither revoked nor expired. Event streams ask repeatedly, because they outlive a request."""
        stored = self._by_id.get(ident)
        return stored is not None and (not stored.expires or datetime.now(UTC) < datetime.fromisoformat(stored.expires))

    async def create(self, spec: TokenRequest, by: str) -> tuple[Token, str]:
        """Stores a new token, and returns it with its text, which has the secret."""
        secret = secrets.token_urlsafe(32)
        created = Token(
            id=new_id(),
            name=spec.name,
            role=spec.role,
            digest=digest_of(secret),
            projects=sorted(set(spec.projects)),
            created=now_text(),
            by=by,
        )
        if spec.expires_in is not None:
            end = datetime.now(UTC) + timedelta(seconds=spec.expires_in)
            created.expires = end.isoformat(timespec="seconds").replace("+00:00", "Z")
        key, value = token(created.name), msgspec.json.encode(created)
        try:
            self._update(key, value, await self._bucket.create(key, value))
        except Conflict:
            raise Refused(conflict(f"token {created.name} already exists; revoke it first")) from None
        return created, f"mrg_{created.id}_{secret}"

    async def revoke(self, name: str) -> None:
        key = token(name)
        entry = await self._bucket.get(key)
        if entry is None:
            raise Refused(not_found(f"token {name}"))
        await self._bucket.delete(key)
        self._update(key, None, 0)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
