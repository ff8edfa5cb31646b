"""Roles, access tokens as they are stored, and audit events."""

from __future__ import annotations

from typing import Literal

from .base import Model, Value

Role = Literal["viewer", "editor", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "editor", "admin")


class Caller(Value, kw_only=True, frozen=True):
    """An authenticated caller. Without projects it may use all of them."""

    name: str
    role: Role
    projects: tuple[str, ...] = ()

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, project: str) -> bool:
        return not self.projects or project in self.projects


class Token(Model, kw_only=True):
    """An access token as it is stored, with a hash of the secret. The secret has 256 random bits, so a fast hash is enough."""

    id: str
    name: str
    role: Role
    digest: str
    projects: list[str] = []
    created: str = ""
    expires: str = ""  # RFC 3339; empty: never
    by: str = ""


class Audit(Model, kw_only=True):
    """The data of `moorage.events.audit.<outcome>.<who>`, published for every change requested over HTTP."""

    who: str
    role: str
    address: str
    method: str
    path: str
    status: int
    outcome: Literal["done", "refused", "failed"]
    code: str = ""  # code of the problem
    what: list[str] = []  # the documents in the body
