"""Attempts to decide a group, and the explanation of its state that `moorage why` shows."""

from __future__ import annotations

import msgspec

from .base import Model
from .candidates import Asked
from .claims import OptionalGrant
from .groups import Phase, State
from .reasons import Reason, Warn


class GrantView(Model, kw_only=True):
    """An amount of a part that serves a need of one pod, as a canonical quantity."""

    part: str
    need: str
    name: str = msgspec.field(name="class")
    amount: str


class SlotView(Model, kw_only=True):
    """Pods on a node. `parts`: what each takes of parts of the node, as canonical quantities by class; `devices`: which need of
    the pod each of these serves, where that is told apart."""

    node: str
    count: int = 1
    parts: dict[str, dict[str, str]] = {}
    devices: list[GrantView] = []


class ClaimView(Model, kw_only=True):
    cluster: str
    object: str
    slots: list[SlotView]
    optional: list[OptionalGrant] = []


class AppView(Model, kw_only=True):
    replicas: int
    clusters: list[str] = []
    score: float | None = None
    claims: list[ClaimView] = []


class FunnelStep(Model, kw_only=True):
    """One requirement of an app: the clusters that it excludes of those that the steps before left, and how many are left.
    `code` and the other fields are those of the reason, where the controller gave one."""

    name: str
    excluded: int
    left: int
    samples: list[str] = []
    by: str = ""
    code: str = ""
    consumer: str = ""
    need: str = ""
    needed: str = ""
    free: str = ""
    message: str = ""


class Funnel(Model, kw_only=True):
    """The steps by which the requirements of an app that is not placed narrow the fleet down. `needs` is the number of clusters
    that the app needs."""

    clusters: int
    needs: int
    steps: list[FunnelStep] = []


class Why(Model, kw_only=True):
    """The state of one group. `pending_revision` and `pending_phase` belong to a newer revision that is not decided or does
    not fit; so do the reasons, `blocking` and `funnel` then. All else belongs to the current revision. `blocking`: the apps
    that cannot be placed, the one that lacks most first."""

    group: str
    revision: int
    state: State
    phase: Phase
    decision: str | None = None
    epoch: str | None = None
    apps: dict[str, AppView] = {}
    controllers: list[Asked] = []
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    blocking: list[str] = []
    funnel: dict[str, Funnel] = {}
    pending_revision: int | None = None
    pending_phase: Phase | None = None


class Attempt(Model, kw_only=True):
    """The outcome of one attempt to decide a group: the data of the event on `moorage.events.decisions.<phase>.<group>`."""

    group: str
    revision: int
    phase: Phase  # Placed, Pending or Failed
    decision: str = ""
    epoch: str = ""
    seq: int = 0
    apps: dict[str, AppView] = {}
    controllers: list[Asked] = []
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    blocking: list[str] = []  # the apps that cannot be placed, the one that lacks most first
    funnel: dict[str, Funnel] = {}  # by app; empty if it is placed
    simulated: bool = False
