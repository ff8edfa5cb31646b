"""Deployment intent groups: their stored records, states and phases."""

from __future__ import annotations

from typing import Any, Literal

from .base import Message, Model
from .reasons import Warn
from .resource_classes import FleetObject
from .shapes import Intent, ShapedApp

State = Literal["Created", "Approved", "Instantiated", "InstantiateStopped", "Terminated", "TerminateStopped"]
Phase = Literal[
    "Draft", "Deciding", "Pending", "Placed", "Deploying", "Running", "Degraded", "Terminating", "Terminated", "Failed"
]


class Succession(Model, kw_only=True):
    """The group that this one takes the place of, and its objects that this one has, too: app → object → namespace. They are
    updated in place, so on each node an old and a new one count as in an update."""

    group: str
    objects: dict[str, dict[str, str]] = {}


class Revision(Model, kw_only=True):
    """One resolved revision: the input of a decision. `succession`: until the group before it ends."""

    group: str
    revision: int
    tenant: str
    apps: list[ShapedApp]
    intents: list[Intent] = []
    warnings: list[Warn] = []
    instantiated: str = ""  # RFC 3339, time of the first instantiation; groups that wait are served oldest first
    traceparent: str = ""  # of the request, so that the trace continues after a lost hint or a wait
    succession: Succession | None = None


class Action(Model, kw_only=True):
    """A step in a group's life cycle, as listed in its status."""

    state: State
    time: str
    revision: int


class GroupRecord(Model, kw_only=True):
    """The record of a group in the intent store. It is one value, so that a change is one write."""

    group: str
    revision: int
    state: State
    resolved: Revision
    manifests: dict[str, list[dict[str, Any]]] = {}  # app → objects, as given
    document: dict[str, Any] = {}  # the Application as given
    intents: dict[str, dict[str, Any]] = {}  # "Kind/name" → standalone intents for this group
    labels: dict[str, str] = {}
    created: str = ""
    digest: str = ""  # of document and intents: equal means unchanged
    origin: str = ""  # "v2": composed from resources; else an Application as given
    succeeds: str = ""  # the group that is terminated as soon as this one runs
    leaving: str = ""  # id of the request to remove it once it is terminated
    actions: list[Action] = []  # the last ones, of groups composed from resources
    told: list[str] = []  # subject and id of the event about this change


class Decide(Message, kw_only=True):
    """Intent store → mergers: this revision needs a decision. `ahead`: its record is still being written, and nothing may be
    committed before `Stored` confirms it. `classes`: resource classes that are not stored, for a simulation."""

    record: Revision
    ahead: bool = False
    classes: list[FleetObject] = []


class Stored(Message, kw_only=True):
    """Intent store → all mergers: the record announced by the `Decide` with this id is durable."""


class EndedGroups(Message, kw_only=True):
    """Intent store → one merger: deleted groups. The answer has those of them that the decision log still knows."""

    groups: list[str] = []


class Withdraw(Message, kw_only=True):
    """Intent store → mergers: `revision` and all earlier ones end. `created`: of the group's record."""

    group: str
    revision: int
    created: str = ""
