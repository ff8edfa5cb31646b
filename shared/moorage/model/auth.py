"""Who may do what: roles, tokens as they are stored, and what is said about every change that somebody asked for."""

from __future__ import annotations

from typing import Literal

from .base import Model, Value

Role = Literal["viewer", "editor", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "editor", "admin")


class Caller(Value, kw_only=True, frozen=True):
    """Someone known. No projects: good for all of them."""

    name: str
    role: Role
    projects: tuple[str, ...] = ()

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, project: str) -> bool:
        return not self.projects or project in self.projects


class Token(Model, kw_only=True):
    """As it is stored: of the secret only a hash. It has 256 bits of chance, so nothing slower is needed."""

    id: str
    name: str
    role: Role
    digest: str
    projects: list[str] = []
    created: str = ""
    expires: str = ""  # RFC 3339; empty: never
    by: str = ""


class Audit(Model, kw_only=True):
    """The data of `moorage.events.audit.<outcome>.<who>`: one for every change that was asked for over HTTP."""

    who: str
    role: str
    address: str
    method: str
    path: str
    status: int
    outcome: Literal["done", "refused", "failed"]
    code: str = ""  # of the problem
    what: list[str] = []  # documents that the body named
