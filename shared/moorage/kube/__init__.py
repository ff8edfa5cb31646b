"""A Kubernetes client for agents: reflectors, leader election, discovery, server-side apply.

kubernetes-asyncio reads configurations and credentials. Its watches and its leader election do not survive the failures that
agents have to survive, so both are written here.
"""

from __future__ import annotations

from .api import Api, ApiError, Unreachable
from .apply import MANAGER, AlreadyExists, apply, apply_order, create, delete, release
from .config import connect
from .discovery import ApiDiscovery, ApiResource
from .install import Say, install_objects
from .leader_election import LeaderElector, LeaderTerm
from .objects import Object, ObjectMetadata
from .reflector import Reflector, list_objects

__all__ = [
    "MANAGER",
    "AlreadyExists",
    "Api",
    "ApiDiscovery",
    "ApiError",
    "ApiResource",
    "LeaderElector",
    "LeaderTerm",
    "Object",
    "ObjectMetadata",
    "Reflector",
    "Say",
    "Unreachable",
    "apply",
    "apply_order",
    "connect",
    "create",
    "delete",
    "install_objects",
    "list_objects",
    "release",
]
