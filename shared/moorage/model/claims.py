"""Claims, decisions and the other entries of the decision log, and the commit that carries them."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from .base import Message, Model, Value
from .candidates import Asked
from .reasons import Warn


class IntentRef(Model, kw_only=True):
    kind: str
    name: str
    revision: int


class Slot(Model, kw_only=True):
    """Places for `count` equal pods on one node. `host` is the node's hostname label where that differs from its name."""

    node: str = ""
    host: str = ""
    count: int = 1
    resources: dict[str, int] = {}
    providers: dict[str, dict[str, int]] = {}
    devices: list[dict[str, Any]] = []
    numa: int | None = None


class OptionalGrant(Value, kw_only=True, frozen=True):
    """Says whether all pods of a claim have an optional need."""

    consumer: str
    need: str
    granted: bool


class Claim(Model, kw_only=True):
    """The slots of one object of an app on one cluster."""

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
    optional: list[OptionalGrant] = []


class LedgerEntry(Model, tag_field="kind", kw_only=True):
    """One entry of the decision log. Entries are told apart by the field `kind`."""


class Decision(LedgerEntry, tag="decision", kw_only=True):
    """All claims of a group at a revision. It stands until the group's next decision or a withdrawal."""

    id: str
    group: str
    revision: int
    claims: list[Claim]
    epoch: str = ""
    scores: dict[str, float] = {}
    replicas: dict[str, int] = {}
    controllers: list[Asked] = []
    warnings: list[Warn] = []
    traceparent: str = ""  # the patcher continues this trace


class Withdrawal(LedgerEntry, tag="withdrawal", kw_only=True):
    """Ends all decisions of the group up to this revision; later ones for these revisions are ignored."""

    group: str
    revision: int
    traceparent: str = ""  # the patcher continues this trace


class Release(LedgerEntry, tag="release", kw_only=True):
    """Stops counting these claims: an agent confirmed the removal, and a later report shows none of their pods."""

    claims: list[str]


class Reassignment(LedgerEntry, tag="reassign", kw_only=True):
    """Replaces the slots of a claim whose pods run on other nodes than claimed (`Displaced`)."""

    claim: str
    slots: list[Slot]


Entry = Decision | Withdrawal | Release | Reassignment
_Kind = TypeVar("_Kind", bound=LedgerEntry)


class Commit(Message, kw_only=True):
    """One message of the decision log. A missing acknowledgement is resolved by looking for its unique `id` in the log."""

    by: str = ""
    entries: list[Entry] = []

    def entries_of(self, kind: type[_Kind]) -> list[_Kind]:
        return [entry for entry in self.entries if isinstance(entry, kind)]


def decision_document(decision: Decision) -> dict[str, Any]:
    """Returns a decision as REST and action controllers see it: without the field that tells entries of the log apart."""
    document: dict[str, Any] = msgspec.to_builtins(decision)
    del document["kind"]
    return document


def claim_id(group: str, app: str, obj: str, cluster: str, template: str) -> str:
    """Returns an id that stays the same while the arguments, of which `template` is the resolved pod template's hash, do.
    It is a valid label value."""
    text = "\0".join((group, app, obj, cluster, template))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
