"""The question all placement controllers get at once, and the compact answer each gives."""

from __future__ import annotations

from typing import Literal

from .base import Message, Model, Value
from .reasons import Reason, Warn
from .shapes import Intent, ShapedApp


class PackedSet(Value, kw_only=True, frozen=True):
    """Dense cluster ids: the shorter of a roaring bitmap and bits packed most significant first."""

    format: Literal["roaring", "bits"]
    data: bytes


#: Cluster names from outsiders, ids from our own.
WireSet = list[str] | PackedSet


class Ask(Message, kw_only=True):
    group: str
    revision: int
    budget_ms: float
    epoch: str
    tenant: str
    apps: list[ShapedApp]
    intents: list[Intent] = []
    explain: bool = False  # reasons are wanted (something was refused, or somebody asks why)
    held: dict[str, list[str]] = {}  # app → clusters where it runs already, unchanged: its room there is its own


class CandidateGroup(Model, kw_only=True):
    """`count` clusters out of these. One group with the app's count is the plain case; count 0 = all of them."""

    mode: Literal["allow", "deny"]
    clusters: WireSet = []
    count: int | None = None  # None: the app's own count


class Level(Model, kw_only=True):
    value: float
    clusters: WireSet


class AppAnswer(Model, kw_only=True):
    groups: list[CandidateGroup] = []  # empty: deny nothing
    levels: list[Level] = []  # clusters in none score 0
    reasons: list[Reason] = []


class Conflict(Model, kw_only=True):
    """Each app fits there, both do not."""

    apps: tuple[str, str]
    clusters: WireSet


class AppsRule(Model, kw_only=True):
    """The seed's second form: the apps that may (`allow`) or may not (`deny`) share a cluster with this one."""

    app: str
    mode: Literal["allow", "deny", "with"]  # "with": must be on the same clusters
    apps: list[str]
    mandatory: bool = True


class Answer(Message, kw_only=True):
    apps: dict[str, AppAnswer] = {}
    conflicts: list[Conflict] = []
    rules: list[AppsRule] = []
    warnings: list[Warn] = []
    epoch: str = ""
    error: str = ""


class Asks(Message, kw_only=True):
    """Questions about several groups in one message, for those who registered that they take them `together`."""

    asks: list[Ask]


class Answers(Message, kw_only=True):
    """Of a bundle, by the asks' ids; what takes longer than the rest may come in a message of its own."""

    answers: dict[str, Answer]


Outcome = Literal["answered", "timeout", "error", "stale", "skipped"]


class Asked(Model, kw_only=True):
    """How one controller did, as `why` shows it."""

    name: str
    outcome: Outcome
    took_ms: float
    deadline_ms: float
    policy: str
    error: str = ""
