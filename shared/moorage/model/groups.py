"""Deployment intent groups: the stored record of one, its states and phases."""

from __future__ import annotations

from typing import Any, Literal

from .base import Message, Model
from .reasons import Warn
from .shapes import Intent, ShapedApp

State = Literal["Created", "Approved", "Instantiated", "InstantiateStopped", "Terminated", "TerminateStopped"]
Phase = Literal[
    "Draft", "Deciding", "Pending", "Placed", "Deploying", "Running", "Degraded", "Terminating", "Terminated", "Failed"
]


class Revision(Model, kw_only=True):
    """One revision, resolved: all that asking, choosing and assigning need, and nothing more."""

    group: str
    revision: int
    tenant: str
    apps: list[ShapedApp]
    intents: list[Intent] = []
    warnings: list[Warn] = []
    instantiated: str = ""  # RFC 3339, of the first instantiation: what waits is served oldest first
    traceparent: str = ""  # of who asked for it: where the hint is lost or it has to wait, the trace goes on


class Action(Model, kw_only=True):
    """A step of a group's life, as its status lists them."""

    state: State
    time: str
    revision: int


class GroupRecord(Model, kw_only=True):
    """What the intent store keeps for a group, as one value: a change is one write."""

    group: str
    revision: int
    state: State
    resolved: Revision
    manifests: dict[str, list[dict[str, Any]]] = {}  # app → objects, as given
    document: dict[str, Any] = {}  # the Application as given
    intents: dict[str, dict[str, Any]] = {}  # "Kind/name" → documents of their own that name this group
    labels: dict[str, str] = {}
    created: str = ""
    digest: str = ""  # of document and intents: equal means unchanged
    origin: str = ""  # "v2": composed from resources; else an Application as given
    succeeds: str = ""  # the group that ends as soon as this one runs
    leaving: str = ""  # to be forgotten as soon as it is terminated: the id of the request that wants it so
    actions: list[Action] = []  # of groups from resources, the last ones
    told: list[str] = []  # the event that says this change: what it is called, and its id


class Decide(Message, kw_only=True):
    """Intent store → mergers: this revision wants a decision. `ahead`: its record is being written; nothing may be
    committed before `Stored` says that it stands."""

    record: Revision
    ahead: bool = False


class Stored(Message, kw_only=True):
    """Intent store → all mergers: the record of the hint with this id is durable."""


class Withdraw(Message, kw_only=True):
    """Intent store → mergers: `revision` and all before it are to end."""

    group: str
    revision: int
