"""Desired state of a cluster as its agent asks for it, and what the agent confirms."""

from __future__ import annotations

from typing import Any, Literal

from .base import Message, Model


class Contribution(Model, kw_only=True):
    """What an action controller wants in a manifest. `set`: the value at the JSON pointer `path`; `require`: node selector
    requirements ANDed into every term; `prefer`: a preferred node affinity term. Without `cluster` it holds for all."""

    app: str
    object: str  # "StatefulSet/core-fwall"
    op: Literal["set", "require", "prefer"] = "set"
    path: str = ""
    value: Any = None
    by: str = ""
    cluster: str = ""


class ActionAsk(Message, kw_only=True):
    """The decision and the manifests it is about; `claims` tell which optional needs each cluster meets."""

    group: str
    revision: int
    budget_ms: float
    decision: dict[str, Any]
    intents: list[Any] = []
    manifests: dict[str, list[dict[str, Any]]] = {}


class ActionAnswer(Message, kw_only=True):
    contributions: list[Contribution] = []
    error: str = ""


class DesiredApp(Model, kw_only=True):
    """One app of a group on one cluster. `version` only grows; `remove`: take away what earlier versions made."""

    group: str
    app: str
    version: int
    decision: str = ""
    remove: bool = False
    objects: list[dict[str, Any]] = []
    patch: list[dict[str, Any]] = []  # RFC 6902, over {"objects": [...]}: what turns the manifests into what is applied
    claims: list[str] = []


class DesiredAsk(Message, kw_only=True):
    """`have`: versions already applied, per `group app`; only what differs comes back."""

    have: dict[str, int] = {}
    part: int = 0


class DesiredReply(Model, kw_only=True):
    apps: list[DesiredApp] = []
    part: tuple[int, int] = (0, 1)
    generation: int = 0


class ObjectStatus(Model, kw_only=True):
    object: str
    state: Literal["Ready", "Progressing", "Failed", "Removed"]
    message: str = ""
    ready: int = 0
    wanted: int = 0


class Confirm(Message, kw_only=True):
    """Agent → patcher, on its own subject: what became of one version."""

    group: str
    app: str
    version: int
    removed: bool = False
    objects: list[ObjectStatus] = []
    as_of: float = 0
