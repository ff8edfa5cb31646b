"""Kubernetes for agents: following objects, holding a lease, server-side apply. kubernetes-asyncio reads configurations and
credentials; what it offers beyond that is not usable as it is, so following and electing are written here."""

from __future__ import annotations

from .api import Api, ApiError, Unreachable
from .apply import MANAGER, Exists, apply, create, delete, rank, release
from .config import connect
from .discovery import Kind, Kinds
from .leader_election import Elector, Term
from .reflector import Metadata, Object, Reflector

__all__ = [
    "MANAGER",
    "Api",
    "ApiError",
    "Elector",
    "Exists",
    "Kind",
    "Kinds",
    "Metadata",
    "Object",
    "Reflector",
    "Term",
    "Unreachable",
    "apply",
    "connect",
    "create",
    "delete",
    "rank",
    "release",
]
