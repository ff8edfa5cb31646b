"""The ask that all placement controllers get at once, and their compact answers."""

from __future__ import annotations

from typing import Literal

from .base import Message, Model, Value
from .reasons import Reason, Warn
from .shapes import Intent, ShapedApp
from .slots import OptionalGrant, Slot

#: Choices of alternatives that are told apart, and ranks of clusters with equal scores.
MAX_PREFERRED, MAX_ORDER = 7, 32


class PackedSet(Value, kw_only=True, frozen=True):
    """A set of cluster ids: the shorter of a roaring bitmap and bits packed most significant first."""

    format: Literal["roaring", "bits"]
    data: bytes


#: Names, from controllers without the SDK, or ids.
WireSet = list[str] | PackedSet


class OwnClaim(Model, kw_only=True):
    """A claim that the group has on a cluster already."""

    id: str
    object: str
    slots: list[Slot]
    optional: list[OptionalGrant] = []


class Ask(Message, kw_only=True):
    """`own`: app → cluster → the claims that the app has there, per object the oldest first. Their room counts as free for
    it."""

    group: str
    revision: int
    budget_ms: float
    epoch: str
    tenant: str
    apps: list[ShapedApp]
    intents: list[Intent] = []
    explain: bool = False  # reasons are wanted: something was refused, or a user asks why
    explain_within: dict[str, PackedSet] = {}  # app → clusters that reasons should be about; absent: all clusters
    held: dict[str, list[str]] = {}  # app → clusters where it runs already, unchanged, and so has its capacity
    own: dict[str, dict[str, list[OwnClaim]]] = {}


class CandidateGroup(Model, kw_only=True):
    """`count` of these clusters; 0 means every one, or with `partial` those that can take the app. Usually there is one
    group with the app's count."""

    mode: Literal["allow", "deny"]
    clusters: WireSet = []
    count: int | None = None  # None: the app's own count
    partial: bool = False


#: A score has at most this many levels. More would make the answer larger without a better choice.
LEVELS = 16


class Level(Model, kw_only=True):
    value: float
    clusters: WireSet


class AppAnswer(Model, kw_only=True):
    groups: list[CandidateGroup] = []  # empty: deny nothing
    levels: list[Level] = []  # clusters in none score 0
    preferred: list[WireSet] = []  # the clusters with the best choice of alternatives first; decides before scores
    order: list[
        WireSet
    ] = []  # the best clusters first; decides where scores are equal, instead of the share that stays free
    reasons: list[Reason] = []
    excluded: dict[int, WireSet] = {}  # index of a reason → the clusters that it is about, where reasons are wanted


class Conflict(Model, kw_only=True):
    """Two apps, and the clusters where each fits alone but not both."""

    apps: tuple[str, str]
    clusters: WireSet


class AppsRule(Model, kw_only=True):
    """The apps that may (`allow`) or may not (`deny`) share a cluster with this one."""

    app: str
    mode: Literal["allow", "deny", "with"]  # "with": must be on the same clusters
    apps: list[str]
    mandatory: bool = True


class Answer(Message, kw_only=True):
    """`epoch`: the fleet that the answer was computed from. `sequence`: the last commit of the decision log whose claims it
    counts; 0 if it counts none."""

    apps: dict[str, AppAnswer] = {}
    conflicts: list[Conflict] = []
    rules: list[AppsRule] = []
    warnings: list[Warn] = []
    epoch: str = ""
    sequence: int = 0
    error: str = ""


class Asks(Message, kw_only=True):
    """A batch of asks about several groups, for controllers that registered with `together`."""

    asks: list[Ask]


class Answers(Message, kw_only=True):
    """Answers to a batch by the ids of the asks. An answer that takes longer may be sent in a message of its own."""

    answers: dict[str, Answer]


Outcome = Literal["answered", "timeout", "error", "stale", "skipped"]


class Asked(Model, kw_only=True):
    """The outcome of the ask to one controller, as `moorage why` shows it."""

    name: str
    outcome: Outcome
    took_ms: float
    deadline_ms: float
    policy: str
    error: str = ""
