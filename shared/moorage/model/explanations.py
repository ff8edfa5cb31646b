"""What `moorage why` answers: the state of one group and the numbers behind it."""

from __future__ import annotations

from .base import Model
from .candidates import Asked
from .groups import Phase, State
from .reasons import Reason, Warn


class SlotView(Model, kw_only=True):
    node: str
    count: int = 1


class ClaimView(Model, kw_only=True):
    cluster: str
    object: str
    slots: list[SlotView]


class AppView(Model, kw_only=True):
    replicas: int
    clusters: list[str] = []
    score: float | None = None
    claims: list[ClaimView] = []


class Why(Model, kw_only=True):
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
    pending_revision: int | None = None


class Attempt(Model, kw_only=True):
    """The outcome of one try to decide a group: the data of the event on `moorage.events.decisions.<phase>.<group>`."""

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
    simulated: bool = False
