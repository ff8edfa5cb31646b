"""Desired state of clusters: contributions to it, the versions that agents fetch, and the record of it per group."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .base import Message, Model
from .problems import Problem
from .reasons import Reason, Warn
from .shapes import ShapedApp


class Contribution(Model, kw_only=True):
    """A change that an action controller makes to a manifest. `set`: the value at the JSON pointer `path`; `require`: node selector
    requirements ANDed into every term; `prefer`: a preferred node affinity term. Without `cluster` it applies to all clusters."""

    app: str
    object: str  # "StatefulSet/core-fwall"
    op: Literal["set", "require", "prefer"] = "set"
    path: str = ""
    value: Any = None
    by: str = ""
    cluster: str = ""


class ActionAsk(Message, kw_only=True):
    """The ask to action controllers: a decision and its manifests. Resources of slots beyond those of the shapes in `apps`
    are the optional needs that were granted on that cluster."""

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


class PinnedSlot(Model, kw_only=True):
    """Places for `count` pods of a claim on one node, each with these parts, as canonical quantities. `surge`: for pods beyond the
    object's number during a rollout."""

    node: str
    count: int = 1
    surge: bool = False
    parts: dict[str, dict[str, str]] = {}


class PinnedClaim(Model, kw_only=True):
    """The slots to which an agent pins the pods of a claim."""

    claim: str
    object: str
    slots: list[PinnedSlot] = []


class Pins(Model, kw_only=True):
    """All claims of an app on a cluster, of each object the newest last. `tag` changes with them."""

    tag: str = ""
    claims: list[PinnedClaim] = []


class AppVersion(Model, kw_only=True):
    """A version of one app of a group on one cluster. `version` only grows; `remove`: delete the objects of earlier versions. `pins`:
    the slots to which the app's pods are pinned; absent: as before, or they are not pinned. `succeeds`: the group whose objects of
    the same names the app takes over."""

    group: str
    app: str
    version: int
    decision: str = ""
    remove: bool = False
    claims: list[str] = []
    traceparent: str = ""
    pins: Pins | None = None
    succeeds: str = ""


class DesiredApp(AppVersion, kw_only=True):
    """The final objects of a version, as the agent applies them."""

    objects: list[dict[str, Any]] = []


class EncodedDesiredApp(AppVersion, kw_only=True):
    """A `DesiredApp` whose objects are encoded already: many clusters share them."""

    objects: list[msgspec.Raw] = []


class DesiredAsk(Message, kw_only=True):
    """An agent's request. `have`: the applied versions by `group app`; only differing apps are returned. `pins`: the tags of their
    pins, of those that have any."""

    have: dict[str, int] = {}
    pins: dict[str, str] = {}
    part: int = 0


class DesiredReply(Model, kw_only=True):
    apps: list[DesiredApp] = []
    part: tuple[int, int] = (0, 1)
    generation: int = 0


class DesiredRecord(Model, kw_only=True):
    """A value of the bucket `moorage-desired`, one per group: what cannot be computed again from the log and the documents.
    `nodes`: the nodes that each claim's pods prefer. They are kept while the claim is the same, so that neither a later
    decision nor a reassignment changes a pod template. `confined`: the pods of each claim of a Deployment that is confined to
    its nodes; `held`: those with fewer pods for now, until these run under a changed template. `parts`: the annotation of each
    claim's pods, which is kept like the nodes. `devices`: a hash of the devices to which a claim's ResourceClaims are pinned;
    other devices are another version, whose pod templates are the same. `succeeds`: the group whose place this one takes."""

    group: str
    revision: int
    decision: str
    version: int  # compared by agents; grows with every change and every restore
    seq: int = 0  # of the decision in the log
    generation: int = 0  # of the patcher that wrote it
    contributions: list[Contribution] = []
    nodes: dict[str, list[str]] = {}
    confined: dict[str, int] = {}
    held: dict[str, int] = {}
    parts: dict[str, str] = {}
    devices: dict[str, str] = {}
    succeeds: str = ""
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    traceparent: str = ""


class DiffAsk(Message, kw_only=True, forbid_unknown_fields=True):
    """The request on `moorage.patcher.diff` for the changes that the decision makes to a group's manifests."""

    group: str


class DiffItem(Model, kw_only=True):
    """One app on one cluster: its objects as given and as applied there, in the same order."""

    cluster: str
    app: str
    manifests: list[dict[str, Any]]
    objects: list[dict[str, Any]]
    patch: list[dict[str, Any]] = []


class DiffReply(Model, kw_only=True):
    """`decision` is empty if there is none. A longer reply is cut below 4 MB and marked as `truncated`."""

    group: str = ""
    revision: int = 0
    decision: str = ""
    items: list[DiffItem] = []
    reasons: list[Reason] = []
    truncated: bool = False
    problem: Problem | None = None
