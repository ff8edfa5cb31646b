"""Records of decisions: what a decision was made from, so that it can be looked at and made again later; and the history of
decisions, as short entries of the same stream."""

from __future__ import annotations

from typing import Literal

import msgspec

from .base import Message, Model
from .claims import Decision
from .controllers import Controller
from .groups import Revision

Values = list[tuple[int, int]]


class RecordedReply(Model, kw_only=True):
    """The reply of one controller. `answer` is the hash of its data; `stale` that of an earlier answer, used in its place."""

    outcome: str
    took_ms: float
    error: str = ""
    answer: str = ""
    stale: str = ""


class RecordedChoice(Model, kw_only=True):
    """One choice of clusters that was tried: per app, its clusters, and the best ones with their values. `failed`: clusters
    where the pods did not fit."""

    clusters: list[list[int]]
    failed: list[int] = []
    ranked: list[Values] = []


class RecordedPacking(Model, kw_only=True):
    """The answer of a solver to one problem: pods per group and node; nothing as the proof that there is none; or, with `gave_up`,
    after how many seconds it was stopped."""

    problem: tuple[bytes, bytes, tuple[int, ...], bytes]
    packed: bytes | None = None
    gave_up: float | None = None


class DecisionRecord(Model, kw_only=True):
    """Everything that one decision depends on. Clusters are numbers, named in `fleet`; `own` is a ledger with what the group
    had. `limits` are the bounds of searches, which another release may change."""

    release: str
    decision: Decision
    revision: Revision
    fleet: msgspec.Raw
    controllers: list[Controller]
    replies: dict[str, RecordedReply]
    tried: list[RecordedChoice]
    own: bytes = b""
    packings: list[RecordedPacking] = []
    limits: dict[str, int] = {}


class RecordBatch(Model, kw_only=True):
    """Records by the ids of their decisions, encoded, with the hash of each; and answers by hash."""

    records: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    answers: dict[str, bytes] = {}


class PastDecision(Model, kw_only=True):
    """A decision as the history lists it. `recorded`: there was time to record what it was made from."""

    id: str
    group: str
    revision: int
    seq: int
    decided: str
    apps: dict[str, list[str]] = {}  # the clusters of each app
    claims: int = 0
    recorded: bool = False


class PastEnd(Model, kw_only=True):
    """The end of what was decided for a group up to a revision, or of one decision."""

    group: str = ""
    revision: int = 0
    decision: str = ""
    seq: int
    ended: str
    outcome: Literal["Withdrawn", "Displaced"] = "Withdrawn"


class History(Message, kw_only=True):
    """Entries of the history. `records`: the sequence of the message with the records of these decisions."""

    decisions: list[PastDecision] = []
    ends: list[PastEnd] = []
    records: int = 0


class ReplayAsk(Message, kw_only=True):
    """Gateway → a merger: decide again from the record in this message."""

    decision: str
    records: int


class Difference(Model, kw_only=True):
    what: str
    recorded: str
    computed: str


class Replay(Model, kw_only=True):
    """A decision made again from its record. `unsure`: what the record cannot tell exactly."""

    decision: str
    group: str
    revision: int
    same: bool
    differences: list[Difference] = []
    unsure: list[str] = []
    release: str = ""
