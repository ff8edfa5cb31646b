"""Status of groups: what agents confirm, the record of it per group, and the messages about its changes."""

from __future__ import annotations

from typing import Literal

from .base import Message, Model
from .groups import Phase
from .reasons import Reason, Warn


class ObjectStatus(Model, kw_only=True):
    object: str
    state: Literal["Ready", "Progressing", "Failed", "Removed"]
    message: str = ""
    code: str = ""  # of a reason, where one says more than that the cluster refused it
    ready: int = 0
    wanted: int = 0


class Confirm(Message, kw_only=True):
    """Agent → patcher: the result of applying one version."""

    group: str
    app: str
    version: int
    removed: bool = False
    objects: list[ObjectStatus] = []
    as_of: float = 0


class AppStatus(Model, kw_only=True):
    """The last confirmation of one app by the agent of one cluster."""

    app: str
    cluster: str
    version: int = 0
    removed: bool = False
    objects: list[ObjectStatus] = []
    as_of: float = 0


class GroupStatus(Model, kw_only=True):
    """A value of the bucket `moorage-status`, one per group. `reached`: this decision ran in full at least once, so objects
    that are not ready now are degraded rather than progressing. `ran`: this or an earlier decision did, and something of the
    group has been there ever since. `held`: further pods start only when those of now run under their changed template."""

    group: str
    revision: int
    phase: Phase
    decision: str = ""
    version: int = 0
    reached: bool = False
    ran: bool = False
    held: bool = False
    apps: list[AppStatus] = []
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    told: str = ""  # id of the event about this phase
    generation: int = 0  # of the patcher that wrote it


class PhaseChange(Model, kw_only=True):
    """Data of the patcher's events on `moorage.events.decisions.<phase>.<group>`."""

    group: str
    revision: int
    phase: Phase
    decision: str = ""
    reasons: list[Reason] = []


class ClaimsRemoved(Message, kw_only=True):
    """Patcher → the merger that writes releases: the agent confirmed that it removed these claims' pods. `gone`: the whole
    cluster has left the fleet after its objects were removed."""

    claims: list[str]
    cluster: str
    as_of: float = 0
    gone: bool = False
