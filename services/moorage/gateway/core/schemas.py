"""Types of request and response bodies. The OpenAPI document is made from these and from the model, and tests check every
response against it. Class names are component names in that document."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from moorage.model.attempts import Why
from moorage.model.auth import Role
from moorage.model.base import Model
from moorage.model.candidates import Conflict, Outcome
from moorage.model.claims import IntentRef, OptionalGrant
from moorage.model.controllers import Policy
from moorage.model.documents import Application, IntentDocument
from moorage.model.groups import Phase, State
from moorage.model.part_reports import DeviceTaint, PropertyValue, ProviderReport, TopologyManager, ZoneReport
from moorage.model.part_requests import ClassVersion
from moorage.model.problems import Problem
from moorage.model.reasons import Warn
from moorage.model.reports import AdmissionReport, QosReport, Taint
from moorage.model.resource_classes import ClassGrant, DeviceQuota, DeviceSource, ResourceClass
from moorage.model.slots import DeviceGrant

T = TypeVar("T")


class Page(Model, Generic[T], kw_only=True):
    """A page of a list. If there are more items, `continue` is the value of the next request's parameter of that name."""

    items: list[T]
    next: str = msgspec.field(name="continue", default="")


class AppItem(Model, kw_only=True):
    replicas: int
    clusters: list[str] = []


class GroupItem(Model, kw_only=True):
    group: str
    revision: int
    state: State
    phase: Phase
    apps: dict[str, AppItem]
    pending_revision: int = 0  # a newer revision that is undecided or does not fit
    pending_phase: Phase | None = None
    silent: list[str] = []  # clusters of the group that do not report
    decision: str = ""
    labels: dict[str, str] = {}
    intents: list[str] = []
    created: str = ""


class ApplicationItem(Application, kw_only=True):
    """An Application document as given, with its status. `apply` accepts it again and ignores the status."""

    status: GroupItem


class ClusterClaim(Model, kw_only=True):
    id: str
    group: str
    app: str
    object: str
    withdrawn: bool


class ClusterItem(Model, kw_only=True):
    """A cluster. With `view=name`, only `id` and `state`."""

    id: str
    state: Literal["Ready", "Stale", "Cordoned"]
    seq: int = 0
    labels: dict[str, str] = {}
    nodes: int = 0
    allocatable: dict[str, str] = {}
    free: dict[str, str] = {}
    used: dict[str, str] = {}
    created: str = ""  # when it joined
    last_report: str = ""
    claims: list[ClusterClaim] = []


class ClusterEdit(Model, kw_only=True, forbid_unknown_fields=True):
    cordoned: bool | None = None
    labels: dict[str, str] | None = None


class ClusterEdited(Model, kw_only=True):
    id: str


class NodeItem(Model, kw_only=True):
    name: str
    cluster: str
    usable: bool
    labels: dict[str, str]
    taints: list[Taint]
    allocatable: dict[str, str]
    free: dict[str, str]
    host_ports: list[str] = []
    used: dict[str, str]
    created: str = ""  # or when its cluster joined, if the node does not report it
    last_report: str = ""  # of its cluster
    zones: list[ZoneReport] = []
    providers: list[ProviderReport] = []
    topology_manager: TopologyManager | None = None
    qos: QosReport | None = None  # of a node agent
    admissions: list[AdmissionReport] = []  # pods that the node agent refused last


class PartInventory(Model, kw_only=True):
    total: str
    reserved: str = ""
    min_unit: str = ""
    max_unit: str = ""  # without a limit: absent
    step_size: str = ""
    allocation_ratio: float | None = None  # 1: absent


class HolderItem(Model, kw_only=True):
    claim: str = ""
    consumer: str = ""  # of an allocation over the placement interface
    amounts: dict[str, str] = {}


class PartItem(Model, kw_only=True):
    """A part of a node, or one that several `nodes` reach. `used` includes claims that pods do not cover yet. `provider` is its uuid in
    the placement interface."""

    id: str
    cluster: str
    node: str
    parent: str
    kind: str
    traits: list[str]
    aggregates: list[str]
    health: str
    inventories: dict[str, PartInventory]
    used: dict[str, str]
    holders: list[HolderItem]
    provider: str
    properties: dict[str, PropertyValue] = {}
    vendor: str = ""
    taints: list[DeviceTaint] = []
    classes: list[str] = []  # that select it
    nodes: list[str] = []  # that reach it, of a part that several may


class SlotItem(Model, kw_only=True):
    node: str = ""
    count: int
    resources: dict[str, str] = {}
    parts: dict[str, dict[str, str]] = {}
    instances: list[str] = []
    devices: list[DeviceGrant] = []
    host_ports: list[str] = []
    surge: bool = False


class ClaimItem(Model, kw_only=True):
    id: str
    decision: str
    intent: IntentRef
    tenant: str
    slots: list[SlotItem]
    app: str = ""
    object: str = ""
    cluster: str = ""
    replaces: str = ""
    optional: list[OptionalGrant] = []
    classes: dict[str, ClassVersion] = {}  # by which it has devices, as they were then


class DecisionItem(Model, kw_only=True):
    """A decision. Past ones have `outcome` and what follows it; in lists they have no claims, but their number."""

    id: str
    group: str
    revision: int
    seq: int
    claims: list[ClaimItem]
    epoch: str = ""
    scores: dict[str, float] = {}
    outcome: Literal["Current", "Replaced", "Withdrawn", "Displaced", "Ended", ""] = ""
    decided: str = ""
    ended: str = ""
    replaced_by: str = ""
    recorded: bool = False  # it can be replayed
    apps: dict[str, list[str]] = {}  # the clusters of each app
    claim_count: int = 0


class CandidateSet(Model, kw_only=True):
    """A set of clusters that are allowed or denied. `more` is the number of clusters that are not listed."""

    count: int
    mode: Literal["allow", "deny"]
    clusters: list[str]
    more: int = 0


class CandidatesOf(Model, kw_only=True):
    name: str
    outcome: Outcome
    took_ms: float
    apps: dict[str, list[CandidateSet]]
    conflicts: list[Conflict] = []
    error: str = ""


class RankedCluster(Model, kw_only=True):
    """A cluster for one app. It is preferred where the app stays, then by score, then by the tie value: the smallest share of a
    resource that would stay free."""

    cluster: str
    stays: bool
    score: float
    tie: float


class ChoiceOf(Model, kw_only=True):
    clusters: list[str]
    best: list[RankedCluster]


class TriedChoice(Model, kw_only=True):
    """A choice of clusters that was tried. `without_room`: clusters where the pods did not fit on the nodes."""

    apps: dict[str, ChoiceOf]
    without_room: list[str]


class Candidates(Model, kw_only=True):
    """The clusters that qualify. Of a decision (`decision`), `recorded` tells whether these are the answers that led to it."""

    group: str
    revision: int
    epoch: str
    merged: dict[str, list[CandidateSet]]
    controllers: list[CandidatesOf]
    decision: str = ""
    recorded: bool = False
    choices: list[TriedChoice] = []


class ControllerItem(Model, kw_only=True):
    name: str
    deadline_ms: float
    policy: Policy
    weight: float
    placement: bool
    actions: bool
    kinds: dict[str, dict[str, Any]]
    concerns: list[str]
    action_concerns: list[str]


class ControllerEdit(Model, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; a controller that does not exist is created. `remove` deletes the controller with its settings."""

    name: str | None = None
    deadline_ms: float | None = None
    policy: Policy | None = None
    weight: float | None = None
    placement: bool | None = None
    actions: bool | None = None
    remove: bool = False


class Misbehaviour(Model, kw_only=True, forbid_unknown_fields=True):
    """A fault to inject, for `seconds` or until the next fault."""

    fault: Literal["silent", "slow", "refuse", "lose-pods", "replay"]
    seconds: float | None = None


class EventItem(Model, kw_only=True):
    id: str
    cause: str
    time: str
    subject: str
    data: Any
    traceparent: str = ""  # if the event is part of a trace


class Applied(Model, kw_only=True):
    """The result of applying one document; with `dryRun`, also its expected placement."""

    accepted: bool
    name: str = ""
    group: str = ""
    revision: int = 0
    outcome: str = ""
    state: str = ""
    warnings: list[Warn] = []
    dry_run: bool = False
    why: Why | None = None
    problem: Problem | None = None


class AppliedAll(Model, kw_only=True):
    """The results of several documents, in their order."""

    items: list[Applied]


class WhyAll(Model, kw_only=True):
    items: list[Why]


class Acted(Model, kw_only=True):
    group: str
    accepted: bool = True
    revision: int = 0
    state: str = ""
    outcome: str = ""


class Leaving(Model, kw_only=True):
    group: str
    phase: Literal["Terminating"]


class WorkerHealth(Model, kw_only=True):
    kind: str
    id: str
    version: str
    pid: str
    ok: bool
    missing: str


class ControllerHealth(Model, kw_only=True):
    name: str
    policy: Policy
    answers: bool


class Away(Model, kw_only=True):
    """A group with claims on clusters that do not report, or are gone from the fleet. `pending`: it is to be placed elsewhere
    and waits for another cluster."""

    group: str
    state: str
    stale: list[str]
    gone: list[str]
    pending: bool


class RecordsHealth(Model, kw_only=True):
    """Records of decisions: whether their stream exists, its bytes and the time of the oldest one, and how many decisions the
    running mergers did not record."""

    kept: bool
    lost: int
    bytes: int = 0
    since: str = ""


class Health(Model, kw_only=True):
    """Health of the mesh. `stale` and `away` have at most a hundred entries."""

    expected: list[str]
    workers: list[WorkerHealth]
    controllers: list[ControllerHealth]
    stale: list[str]
    stale_count: int
    away: list[Away]
    away_count: int
    records: RecordsHealth


class SubjectRow(Model, kw_only=True):
    subject: str
    payload: str
    request: bool
    publish: list[str]
    subscribe: list[str]
    about: str


class TokenItem(Model, kw_only=True):
    name: str
    role: Role
    projects: list[str]
    created: str = ""
    expires: str = ""
    by: str = ""


class TokenMade(TokenItem, kw_only=True):
    """A new token. Only this response has its text."""

    token: str


class Version(Model, kw_only=True):
    version: str


class Me(Model, kw_only=True):
    name: str
    role: Role
    projects: list[str]


DocumentBody = Application | ResourceClass | DeviceSource | DeviceQuota | ClassGrant | IntentDocument
