"""Attempts to decide a group, and the explanation of its state that `moorage why` shows."""

from __future__ import annotations

from collections.abc import Iterable

from .base import Model
from .candidates import Asked
from .claims import OptionalGrant, Slot
from .groups import Phase, State
from .reasons import Reason, Warn


class SlotView(Model, kw_only=True):
    node: str
    count: int = 1


def slot_views(slots: Iterable[Slot]) -> list[SlotView]:
    """Adds up slots by node: a claim that grew has separate slots for the added pods."""
    counts: dict[str, int] = {}
    for slot in slots:
        counts[slot.node] = counts.get(slot.node, 0) + slot.count
    return [SlotView(node=node, count=count) for node, count in counts.items()]


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


class Why(Model, kw_only=True):
    """The state of one group. `pending_revision` and `pending_phase` belong to a newer revision that is not decided or does
    not fit; so do the reasons then. All else belongs to the current revision."""

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
    simulated: bool = False
