"""The registry of controllers: who is asked, how long, and what their silence means. Operators edit it while we run."""

from __future__ import annotations

from typing import Any, Literal

from .base import Message, Model

Policy = Literal["required", "optional", "stale-ok"]


class Controller(Model, kw_only=True):
    name: str
    deadline_ms: float = 500
    policy: Policy = "optional"
    weight: float = 1
    placement: bool = True
    actions: bool = False
    kinds: dict[str, dict[str, Any]] = {}  # kinds of intent it brings → JSON Schema of their spec
    steady: bool = False  # where it allows an app changes with documents and labels of clusters, and when it says so
    together: bool = False  # takes questions about several groups in one message
    priority: int = 0  # of its namesake among /v2/controllers: breaks ties between scores, and does nothing else
    pinned: list[str] = []  # fields that an operator set; what registers later does not change them


class Register(Message, kw_only=True, forbid_unknown_fields=True):
    """On `moorage.controllers.<name>.register`; the name is the subject's. What an operator set before stands."""

    deadline_ms: float = 500
    policy: Policy = "optional"
    weight: float = 1
    placement: bool = True
    actions: bool = False
    kinds: dict[str, dict[str, Any]] = {}
    steady: bool = False
    together: bool = False


class Setting(Message, kw_only=True, forbid_unknown_fields=True):
    """On `moorage.controllers.set`, from operators: what is given is set, and made where it is not there."""

    name: str
    deadline_ms: float | None = None
    policy: Policy | None = None
    weight: float | None = None
    placement: bool | None = None
    actions: bool | None = None
    remove: bool = False  # forget it, settings and all
