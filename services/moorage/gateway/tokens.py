"""Creates and revokes access tokens. The secret is returned once and only its digest is stored."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from moorage.bus import Conflict, new_id, now_text
from moorage.model.auth import Role, Token
from moorage.model.names import token
from moorage.model.problems import Refused, conflict, not_found
from moorage.web import TokenReader, digest_of


class TokenRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    name: str
    role: Role = "viewer"
    projects: list[str] = []
    expires_in: float | None = None  # seconds


class TokenStore(TokenReader):
    """Creates and revokes tokens, too."""

    @property
    def names(self) -> list[str]:
        return sorted(stored.name for stored, _ in self._by_key.values())

    def get(self, name: str) -> Token | None:
        found = self._by_key.get(token(name))
        return None if found is None else found[0]

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
