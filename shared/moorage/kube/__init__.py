"""Kubernetes for agents: following objects, holding a lease, server-side apply. kubernetes-asyncio reads configurations and
credentials; what it offers beyond that is not usable as it is, so following and electing are written here."""

from __future__ import annotations

from .api import Api, ApiError, Unreachable
from .apply import MANAGER, Exists, apply, apply_order, create, delete, release
from .config import connect
from .discovery import ApiDiscovery, ApiResource
from .leader_election import LeaderElector, Term
from .objects import Metadata, Object
from .reflector import Reflector

__all__ = [
    "MANAGER",
    "Api",
    "ApiDiscovery",
    "ApiError",
    "ApiResource",
    "Exists",
    "LeaderElector",
    "Metadata",
    "Object",
    "Reflector",
    "Term",
    "Unreachable",
    "apply",
    "apply_order",
    "connect",
    "create",
    "delete",
    "release",
]
