"""Entries of the registry of controllers: which are asked, with which deadline and policy. Operators edit it at run time."""

from __future__ import annotations

from typing import Any, Literal

from .base import Message, Model

Policy = Literal["required", "optional", "stale-ok"]
#: What may concern a controller beside kinds of intents: pods that ask for what is inside nodes, for devices, for slots of machines.
PARTS, DEVICES, MACHINES = "parts", "devices", "machines"


class Controller(Model, kw_only=True):
    name: str
    deadline_ms: float = 500
    policy: Policy = "optional"
    weight: float = 1
    placement: bool = True
    actions: bool = False
    kinds: dict[str, dict[str, Any]] = {}  # kinds of intent that it registers → JSON Schema of their spec
    steady: bool = False  # its answers depend on documents and labels of clusters only, until it publishes `changed`
    together: bool = False  # takes batches of asks
    concerns: list[str] = []  # it is asked only where a group has one of these; empty: about every group
    action_concerns: list[str] = []
    priority: int = 0  # of the /v2 controller with this name; breaks ties between scores
    pinned: list[str] = []  # fields set by an operator, which registration does not change


class Register(Message, kw_only=True, forbid_unknown_fields=True):
    """The message on `moorage.controllers.<name>.register`; the name is taken from the subject."""

    deadline_ms: float = 500
    policy: Policy = "optional"
    weight: float = 1
    placement: bool = True
    actions: bool = False
    kinds: dict[str, dict[str, Any]] = {}
    steady: bool = False
    together: bool = False
    concerns: list[str] = []
    action_concerns: list[str] = []


class Setting(Message, kw_only=True, forbid_unknown_fields=True):
    """The message on `moorage.controllers.set`: an operator sets these fields, or creates the entry."""

    name: str
    deadline_ms: float | None = None
    policy: Policy | None = None
    weight: float | None = None
    placement: bool | None = None
    actions: bool | None = None
    remove: bool = False  # remove the entry with its settings
