"""Claims and decisions, and the messages of the decision log: each a commit that holds many, whole or absent."""

from __future__ import annotations

import hashlib
from typing import Any

from .base import Message, Model
from .candidates import Asked
from .reasons import Warn


class IntentRef(Model, kw_only=True):
    kind: str
    name: str
    revision: int


class Slot(Model, kw_only=True):
    """A run of `count` equal pods' places on one node. `host`: its hostname label, where that is not its name."""

    node: str = ""
    host: str = ""
    count: int = 1
    resources: dict[str, int] = {}
    providers: dict[str, dict[str, int]] = {}
    devices: list[dict[str, Any]] = []
    numa: int | None = None


class Claim(Model, kw_only=True):
    id: str
    decision: str
    intent: IntentRef
    tenant: str
    slots: list[Slot]
    app: str = ""
    object: str = ""
    cluster: str = ""
    within: str = ""
    replaces: str = ""


class Decision(Model, kw_only=True):
    """All claims of a group at a revision; it stands until another of the group or a withdrawal."""

    id: str
    group: str
    revision: int
    claims: list[Claim]
    epoch: str = ""
    scores: dict[str, float] = {}
    replicas: dict[str, int] = {}
    controllers: list[Asked] = []
    warnings: list[Warn] = []
    traceparent: str = ""  # who carries it out goes on with this trace


class Withdrawal(Model, kw_only=True):
    """Ends every decision of the group at or below the revision; one that comes later for it folds to nothing."""

    group: str
    revision: int
    traceparent: str = ""  # who carries it out goes on with this trace


class Release(Model, kw_only=True):
    """These claims count no more: the agent confirmed the removal and a later report shows no pod of theirs."""

    claims: list[str]


class Reassign(Model, kw_only=True):
    """Pods run elsewhere than claimed (`Displaced`): the claim's slots are these now."""

    claim: str
    slots: list[Slot]


class Commit(Message, kw_only=True):
    """One message of the log. `id` is unique: a missing acknowledgement is settled by looking for it."""

    by: str = ""
    decisions: list[Decision] = []
    withdrawals: list[Withdrawal] = []
    releases: list[Release] = []
    reassigns: list[Reassign] = []


def claim_id(group: str, app: str, obj: str, cluster: str, template: str) -> str:
    """Stable while the group, the app, the object, the cluster and the resolved pod template are; a valid label value."""
    text = "\0".join((group, app, obj, cluster, template))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
