"""Desired state of a cluster as its agent asks for it, and what the agent confirms."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .base import Message, Model
from .groups import Phase
from .problems import Problem
from .reasons import Reason, Warn
from .shapes import ShapedApp


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
    """The decision and the manifests it is about; what its claims' slots hold beyond `apps`' shapes are the optional
    needs that each cluster was found to meet."""

    group: str
    revision: int
    budget_ms: float
    decision: dict[str, Any]
    intents: list[Any] = []
    manifests: dict[str, list[dict[str, Any]]] = {}
    apps: list[ShapedApp] = []


class ActionAnswer(Message, kw_only=True):
    contributions: list[Contribution] = []
    error: str = ""


class AppVersion(Model, kw_only=True):
    """A version of one app of a group on one cluster. `version` only grows; `remove`: delete what earlier versions made."""

    group: str
    app: str
    version: int
    decision: str = ""
    remove: bool = False
    claims: list[str] = []
    traceparent: str = ""


class DesiredApp(AppVersion, kw_only=True):
    """The final objects of a version, as the agent applies them."""

    objects: list[dict[str, Any]] = []


class EncodedDesiredApp(AppVersion, kw_only=True):
    """A `DesiredApp` whose objects are encoded already: many clusters share them."""

    objects: list[msgspec.Raw] = []


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


class DesiredRecord(Model, kw_only=True):
    """Bucket `moorage-desired`, one value per group: all that cannot be computed again from the log and the documents.
    `nodes`: what each claim's pods prefer, kept while the claim is the same, so that a later decision (or a claim that
    was assigned again) never changes a pod template."""

    group: str
    revision: int
    decision: str
    version: int  # what agents compare: grows with every change, and with every restore
    seq: int = 0  # of the decision in the log
    generation: int = 0  # of the patcher that wrote it
    contributions: list[Contribution] = []
    nodes: dict[str, list[str]] = {}
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    traceparent: str = ""


class AppStatus(Model, kw_only=True):
    """What the agent of one cluster confirmed last of one app."""

    app: str
    cluster: str
    version: int = 0
    removed: bool = False
    objects: list[ObjectStatus] = []
    as_of: float = 0


class GroupStatus(Model, kw_only=True):
    """Bucket `moorage-status`, one value per group. `reached`: this decision ran in full at least once, so what is not
    ready now is degraded and not on its way."""

    group: str
    revision: int
    phase: Phase
    decision: str = ""
    version: int = 0
    reached: bool = False
    apps: list[AppStatus] = []
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    told: str = ""  # the id of the event that says this phase
    generation: int = 0  # of the patcher that wrote it


class PhaseChange(Model, kw_only=True):
    """Data of the patcher's events on `moorage.events.decisions.<phase>.<group>`."""

    group: str
    revision: int
    phase: Phase
    decision: str = ""
    reasons: list[Reason] = []


class ClaimsRemoved(Message, kw_only=True):
    """Patcher → the merger that writes releases: the agent confirmed that these claims' pods are taken away. `gone`: the
    whole cluster has left the fleet, after what was made there had been taken away."""

    claims: list[str]
    cluster: str
    as_of: float = 0
    gone: bool = False


class DiffAsk(Message, kw_only=True, forbid_unknown_fields=True):
    """On `moorage.patcher.diff`: what the decision changes in a group's manifests."""

    group: str


class DiffItem(Model, kw_only=True):
    """One app on one cluster: its objects as given and as applied there, in the same order."""

    cluster: str
    app: str
    manifests: list[dict[str, Any]]
    objects: list[dict[str, Any]]
    patch: list[dict[str, Any]] = []


class DiffReply(Model, kw_only=True):
    """`decision` is empty where none stands. Cut below 4 MB: then `truncated`."""

    group: str = ""
    revision: int = 0
    decision: str = ""
    items: list[DiffItem] = []
    reasons: list[Reason] = []
    truncated: bool = False
    problem: Problem | None = None
