"""Machines, and the messages with which each cluster's `machines` and the fleet's `slots` agree on who holds which slot."""

from __future__ import annotations

from typing import Literal

import msgspec

from .base import Message, Model, Value

Mode = Literal["ready", "maintenance"]
#: Of a Node of a pool, in status.
Condition = Literal["Ready", "NotReady", "Maintenance"]
GuestState = Literal["waiting", "granted", "used"]
#: Kinds of documents.
MACHINE_KINDS = ("Machine", "MachineNodePool")


class Gpu(Value, kw_only=True, frozen=True):
    """One of `family`, `product` and `machine` names the label of Nodes that have such GPUs."""

    type: str
    num: int
    family: str = ""
    product: str = ""
    machine: str = ""


class Dependence(Value, kw_only=True, frozen=True):
    machine_type: str
    available_ratio: float


class TypeSpec(Value, kw_only=True, frozen=True):
    """The size of one slot. `cpu` and `memory` are "" only in a type that depends on another."""

    cpu: str = ""
    memory: str = ""
    gpu: Gpu | None = None
    host_limit: float = 1.0
    dependence: Dependence | None = None


class Window(Value, kw_only=True, frozen=True):
    """Slots that only guests that name the window get between two times (RFC 3339)."""

    name: str
    slots: int
    from_: str = msgspec.field(name="from")
    until: str
    projects: tuple[str, ...] = ()


class MachineType(Value, kw_only=True, frozen=True):
    """`offline_slots` of the available ones are never promised by the mesh: their cluster grants them alone."""

    name: str
    spec: TypeSpec
    available: int
    offline_slots: int = 0
    windows: tuple[Window, ...] = ()


class PoolNode(Value, kw_only=True, frozen=True):
    name: str
    mode: Mode = "ready"
    taint: bool = False
    machine_types: tuple[str, ...] = ()
    cluster: str = ""


class Allow(Value, kw_only=True, frozen=True):
    """The projects and namespaces that may use a Machine; all if both are empty."""

    projects: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def admits(self, project: str, namespace: str) -> bool:
        """Returns whether a project, or somebody in a namespace, may."""
        everyone = not self.projects and not self.namespaces
        return everyone or project in self.projects or namespace in self.namespaces

    def named(self) -> str:
        """Returns the names of those who may."""
        projects, namespaces = ((f"project {p}" for p in self.projects), (f"namespace {n}" for n in self.namespaces))
        return ", ".join((*projects, *namespaces))


class Machine(Value, kw_only=True, frozen=True):
    """A Machine that keeps all rules."""

    name: str
    group: str
    node_pool: tuple[PoolNode, ...] = ()
    types: tuple[MachineType, ...] = ()
    allow: Allow = Allow()
    cluster: str = ""


class Usage(Model, kw_only=True, omit_defaults=False):
    maximum: int = 0
    reserved: int = 0
    used: int = 0
    waiting: int = 0


# --- between a cluster and `slots`


class MachineReport(Model, kw_only=True):
    """A Machine of the cluster. `origin`: made there, or written for a document of the mesh. `invalid`: why nothing of it changes."""

    name: str
    uid: str
    generation: int = 0
    origin: Literal["cluster", "mesh"] = "cluster"
    machine: Machine | None = None
    invalid: str = ""
    deleting: bool = False


class PoolNodeReport(Model, kw_only=True):
    """A Node of a pool. `since`: when its condition began, in seconds since the epoch."""

    name: str
    condition: Condition
    since: float = 0.0


class HeldReport(Model, kw_only=True):
    """The reservations of a type. `last` names the Nodes of those that leave first, the first to leave first."""

    machine: str  # GROUP/TYPE
    last: list[str] = []
    unschedulable: dict[str, int] = {}  # node → reservations that are pinned there and find no room


class GuestReport(Model, kw_only=True):
    """A Pod that was let in. `nodes` are those of its type that it may use; None: all of them. `seconds` is its
    activeDeadlineSeconds, 0 if it has none. `ready`: nothing but a slot keeps it from being scheduled. `claim`: the claim that its Pod
    carries since before, of an app that the mesh decided."""

    uid: str
    namespace: str
    name: str
    machine: str  # GROUP/TYPE
    state: GuestState = "waiting"
    node: str = ""
    window: str = ""
    claim: str = ""
    project: str = ""
    priority: int = 0
    created_at: str = ""
    granted_at: int = 0  # when its gate was taken off, in milliseconds since the epoch
    seconds: int = 0
    grace: int = 30
    nodes: list[str] | None = None
    ready: bool = True
    not_before: float = 0.0  # after a slot that it could not use, in seconds since the epoch
    reason: str = ""
    ended: bool = False  # bound and over, or gone: with it its slot
    kind: str = ""  # by rules about other guests; "" where none has any
    alone: bool = False  # the cluster gave it its slot alone, one of `offlineSlots`


class NearGuests(Model, kw_only=True):
    """One of these kinds has to be in the domain of a topology key, unless none is anywhere."""

    topology_key: str
    kinds: list[str] = []


class GuestRule(Model, kw_only=True):
    """The relation of guests of a kind to others by required pod affinity. `apart`: by topology key the kinds that may not be in its
    domain, by their own rules or by those of the others."""

    kind: str
    apart: dict[str, list[str]] = {}
    near: list[NearGuests] = []


class MachinesSync(Message, kw_only=True):
    """A cluster's snapshot of its Machines, Nodes of pools and guests, or what changed since the last one (`full` false). `term`: the
    transitions of the cluster's Lease; an older one is refused. `generation` and `revision`: of the last answer that was carried out."""

    cluster: str
    session: str
    sequence: int
    term: int = 0
    full: bool = False
    generation: int = 0
    revision: int = 0
    machines: list[MachineReport] = []
    machines_gone: list[str] = []
    nodes: list[PoolNodeReport] = []
    nodes_gone: list[str] = []
    held: list[HeldReport] = []
    guests: list[GuestReport] = []
    guests_gone: list[str] = []
    rules: list[GuestRule] | None = None  # None: as before
    controller: str = ""  # a foreign controller that still acts on these Machines


class Reservation(Model, kw_only=True):
    """The slots of a type on the Nodes of this cluster. `offline` are those of them that the cluster grants alone."""

    machine: str  # GROUP/TYPE
    claim: str
    slots: dict[str, int] = {}
    offline: dict[str, int] = {}
    reason: str = ""  # why fewer than the maximum are held


class Grant(Model, kw_only=True):
    """A slot that a guest has. `not_before` and `until`: when it may start and has to end, in seconds since the epoch."""

    uid: str
    machine: str  # GROUP/TYPE
    node: str
    claim: str
    window: str = ""
    not_before: float = 0.0
    until: float = 0.0


class WaitingReason(Model, kw_only=True):
    uid: str
    code: str
    message: str = ""


class MachineDocument(Model, kw_only=True):
    """A Machine of the mesh as this cluster gets it: its Nodes, and its share of `available`."""

    name: str
    machine: Machine
    revision: int = 0


class MachinesSynced(Message, kw_only=True):
    """The answer. `generation` is the number of the term of `slots`: an older one is ignored; `revision` counts answers of it. With
    `full`, what is not listed is not there any more; otherwise `withdrawn` and `documents_gone` name it. With `resync` nothing was
    taken, and the cluster reports in full."""

    generation: int
    revision: int
    full: bool = False
    resync: bool = False
    refused: str = ""
    period_ms: int = 10_000
    reservations: list[Reservation] = []
    reservations_gone: list[str] = []
    grants: list[Grant] = []
    withdrawn: list[str] = []  # uids
    waiting: list[WaitingReason] = []
    documents: list[MachineDocument] = []
    documents_gone: list[str] = []
