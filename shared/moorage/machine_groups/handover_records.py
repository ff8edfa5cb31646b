"""Inputs and results of a hand-over of slots: guests, reservations, grants and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from .guest_rules import PlacedGuests

#: Claims of slots that the cluster gave out alone begin so, before the mesh has told of one.
OFFLINE = "offline-"
#: Returns the Nodes that a guest may use whoever else is there; None: all.
NodesFor = Callable[["Guest"], frozenset[str] | None]


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A Pod that was let in and is not over. `node`: where it is bound, or else pinned. Guests of one `shape` may use the same Nodes.
    `is_marked`: its Pod says that it was let in; those of another controller do not. `alone`: the cluster gave it its slot alone."""

    uid: str
    namespace: str
    name: str
    version: str
    type: str
    bound: bool = False
    gated: bool = False
    ready: bool = True
    deleting: bool = False
    node: str = ""
    window: str = ""
    claim: str = ""
    owner: str = ""
    owner_uid: str = ""
    shape: str = ""
    created: str = ""
    priority: int = 0
    seconds: int = 0
    grace: int = 30
    granted_at: float = 0.0
    is_marked: bool = True
    alone: bool = False

    @property
    def has_claim(self) -> bool:
        """Returns whether its Pod names the claim that the mesh counts it to."""
        return bool(self.claim) and not self.claim.startswith(OFFLINE)

    @property
    def is_loose(self) -> bool:
        """Returns whether it was let in by another controller and is not bound: it has no gate, and its Node cannot be chosen any more."""
        return not (self.bound or self.gated or self.node)

    @property
    def order(self) -> tuple[int, str, str]:
        return (-self.priority, self.created, self.uid)


class ReservationPod(msgspec.Struct, frozen=True, kw_only=True):
    """A Pod of the StatefulSet of a type. `node`: where it is bound or pinned."""

    uid: str
    name: str
    version: str
    type: str
    ordinal: int
    node: str = ""
    bound: bool = False
    deleting: bool = False
    unschedulable: bool = False
    unschedulable_since: float = 0.0
    claim: str = ""


class StoredGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant as the StatefulSet has it. `at`: when it was given, in seconds since the epoch."""

    node: str
    claim: str
    at: float
    window: str = ""
    not_before: float = 0.0
    until: float = 0.0

    @property
    def alone(self) -> bool:
        """Returns whether the cluster gave it alone."""
        return self.claim.startswith(OFFLINE)


class Stored(NamedTuple):
    """The state of a StatefulSet."""

    replicas: int
    grants: Mapping[str, StoredGrant]


class Situation(NamedTuple):
    """The state that a plan rests on, besides the Pods. `slots`: per type and Node; `offline`: those of them that the cluster grants
    alone; `usable`: Nodes that are Ready; `ordered`: grants of the mesh, None without it; `stored`: by type; `left_over`: reservations
    of another controller, which hold places until they are replaced; `placed`: guests on Nodes, and which rules they have about others;
    `set_aside`: of types of which the mesh promises only so many, how many the cluster grants alone; `silent`: Nodes without a kubelet
    that ends Pods."""

    slots: Mapping[str, Mapping[str, int]]
    offline: Mapping[str, Mapping[str, int]]
    usable: frozenset[str]
    stored: Mapping[str, Stored]
    ordered: Mapping[str, StoredGrant] | None
    nodes_for: NodesFor
    placed: PlacedGuests
    left_over: Sequence[ReservationPod] = ()
    set_aside: Mapping[str, int] = MappingProxyType({})
    silent: frozenset[str] = frozenset()


class Opening(NamedTuple):
    guest: Guest
    grant: StoredGrant


class Plan(NamedTuple):
    """The effects that are due now. `stores`: by type, only what differs. `next`: when to look again."""

    stores: dict[str, Stored]
    pins: dict[str, str]  # name of a reservation → Node
    removals: list[str]  # names of reservations
    forced: list[str]  # names of reservations that go without their kubelet
    openings: list[Opening]
    evictions: list[Guest]
    replaced: list[ReservationPod]  # of another controller
    next: float | None


class TypeCounts(NamedTuple):
    maximum: int
    reserved: int
    used: int
    waiting: int
    granted: int
