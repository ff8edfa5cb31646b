"""Claims, decisions and the other entries of the decision log, and the commit that carries them."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from .allocations import ConsumerWrite, InventoryRecord
from .base import Message, Model
from .candidates import Asked
from .machine_slots import GrantedSlot, ReservedSlots
from .part_requests import ClassVersion, DeviceAsk
from .reasons import Warn
from .shapes import PodRule
from .slots import OptionalGrant, Slot

__all__ = [
    "Allocation",
    "AskedDevices",
    "Claim",
    "Commit",
    "Decision",
    "Entry",
    "IntentRef",
    "LedgerEntry",
    "OptionalGrant",
    "Reassignment",
    "Release",
    "Settlement",
    "Slot",
    "SlotGrants",
    "SlotReservations",
    "Withdrawal",
    "claim_id",
    "decision_document",
]


class IntentRef(Model, kw_only=True):
    kind: str
    name: str
    revision: int


class Claim(Model, kw_only=True):
    """The slots of one object of an app on one cluster. `replaces`: the object's claim there before, which it takes over.
    `required_nodes`: the nodes to which required node affinity confines the pods, each with its hostname label where that
    differs; empty: the pods only prefer the nodes of their slots. `refused_by`: nodes that did not admit pods of it, each with
    the words of its kubelet; a settlement confined the pods to others then. `pinned`: pods are created with a scheduling gate, and
    the agent pins each to a slot. `within`: the reservation of machines whose slots the pods use. `vacated`: devices that failed
    and whose slots moved; pods that still have them are to be ended. `classes`: the resource classes by which slots have devices, as
    they were when they got them."""

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
    rules: list[PodRule] = []  # of the shape, about pods of the same group
    marks: list[str] = []
    required_nodes: dict[str, str] = {}
    refused_by: dict[str, str] = {}
    pinned: bool = False
    vacated: list[str] = []
    classes: dict[str, ClassVersion] = {}


class AskedDevices(Model, kw_only=True):
    """The requests of each of `count` pods of an object for devices, the first choice of each need, and of its node beside them."""

    app: str
    object: str
    count: int
    resources: dict[str, int]
    devices: list[DeviceAsk]


class LedgerEntry(Model, tag_field="kind", kw_only=True):
    """One entry of the decision log. The field `kind` distinguishes entries."""


class Decision(LedgerEntry, tag="decision", kw_only=True):
    """All claims of a group at a revision. It stands until the group's next decision or a withdrawal. `asked`: of devices, from which
    algorithms learn again after a restart."""

    id: str
    group: str
    revision: int
    claims: list[Claim]
    epoch: str = ""
    scores: dict[str, float] = {}
    replicas: dict[str, int] = {}
    controllers: list[Asked] = []
    warnings: list[Warn] = []
    asked: list[AskedDevices] = []
    traceparent: str = ""  # the patcher continues this trace
    based_on: int = 0  # the last commit that was folded when the hint or the record was received; 0: not known


class Withdrawal(LedgerEntry, tag="withdrawal", kw_only=True):
    """Ends all decisions of the group up to this revision; later ones for these revisions are ignored."""

    group: str
    revision: int
    traceparent: str = ""  # the patcher continues this trace
    based_on: int = 0  # as in a decision


class Release(LedgerEntry, tag="release", kw_only=True):
    """Stops counting these claims: an agent confirmed the removal, and a later report shows none of their pods."""

    claims: list[str]


class Reassignment(LedgerEntry, tag="reassign", kw_only=True):
    """Replaces the slots of a claim whose pods run on other nodes than claimed. Only read: settlements do it now."""

    claim: str
    slots: list[Slot]


class Shortfall(Model, kw_only=True):
    """The scarcest resource of a pod that fits on no node of its cluster, and the most that one of its nodes has free. `refused`:
    the words of a node that did not admit it, if that is why. `code`: DeviceFailed or MassFailure, if devices failed that slots
    name: `devices` are these, with what is wrong; `needed` counts them, `free` those of their kind (`resource`) that pods could
    have, or of a mass failure those that did not fail."""

    resource: str
    needed: int
    free: int
    refused: str = ""
    code: str = ""
    devices: dict[str, str] = {}


class ObjectMove(Model, kw_only=True):
    """Devices that slots of one object leave, each with what is wrong, those that they get instead, and how many pods stay on their
    `node` or in the `cluster`."""

    app: str
    object: str
    outcome: dict[str, int]
    left: dict[str, str]
    taken: list[str]

    @property
    def text(self) -> str:
        left = ", ".join(f"{part} ({words})" for part, words in self.left.items())
        return f"{self.object} leaves {left} for {', '.join(self.taken) or 'others'}"


class GroupMove(Model, kw_only=True):
    """Devices that slots of a group leave in one settlement. `told`: the id of the event about it."""

    group: str
    revision: int
    decision: str
    cluster: str
    moves: list[ObjectMove]
    message: str = ""
    told: str = ""


class Settlement(LedgerEntry, tag="settlement", kw_only=True):
    """Moves slots of claims on one cluster: to their pods where these run elsewhere, and to other nodes where pods that
    nobody expected took the room. `ended`: decisions that did not run yet and whose pods do not fit there any more; they are
    taken back. `restored`: those from before them that stand again. `displaced`: all groups with slots that fit nowhere on
    the cluster while their decision stands. `epoch`: of the rows that it was computed from. `confined`: claims whose pods a node
    refused, each with these nodes and their words; the pods run on the nodes of their slots only from then on. `vacated`: by claim,
    the devices that failed and that its pods are to leave; all of them, replacing what it had. `classes`: by claim, if they change
    with its slots. `moved`: what slots leave because devices failed."""

    cluster: str
    epoch: str
    slots: dict[str, list[Slot]] = {}
    ended: list[str] = []
    restored: list[str] = []
    displaced: dict[str, Shortfall] = {}
    confined: dict[str, dict[str, str]] = {}
    vacated: dict[str, list[str]] = {}
    classes: dict[str, dict[str, ClassVersion]] = {}
    moved: list[GroupMove] = []


class Allocation(LedgerEntry, tag="allocation", kw_only=True):
    """Changes what consumers of the Placement interface hold. It takes effect whole or not at all: the generation of each
    consumer must stand, and no placement worker with a newer lease may have written.

    `inventories`: the exchange of inventories together with it, by provider; its records follow. `recorded`: exchanges up to
    this sequence are in the records. `forgotten`: providers that are deleted, whose writes need not be counted. `cause` is the
    id of the request."""

    id: str
    generation: int
    cause: str = ""
    writes: list[ConsumerWrite] = []
    inventories: dict[str, dict[str, InventoryRecord]] = {}
    recorded: int = 0
    forgotten: list[str] = []


class SlotReservations(LedgerEntry, tag="reservation", kw_only=True):
    """Replaces the slots of machine types in clusters; a type without slots is not reserved any more. It takes effect whole or not at
    all. `generation`: of the lease of `slots`; an older one than that of the newest entry changes nothing."""

    id: str
    generation: int
    reserved: list[ReservedSlots] = []


class SlotGrants(LedgerEntry, tag="grant", kw_only=True):
    """Gives slots to guests, whole or not at all, and takes back those of the guests in `withdrawn`. `observed`: the guests have
    their slots already, so they are counted even where there is no slot for them. `generation` as in a reservation."""

    id: str
    generation: int
    granted: list[GrantedSlot] = []
    withdrawn: list[str] = []
    observed: bool = False


Entry = Decision | Withdrawal | Release | Reassignment | Settlement | Allocation | SlotReservations | SlotGrants
_Kind = TypeVar("_Kind", bound=LedgerEntry)


class Commit(Message, kw_only=True):
    """One message of the decision log. A missing acknowledgement is resolved by looking for its unique `id` in the log."""

    by: str = ""
    at: float = 0.0  # the committer's time, in seconds since 1970
    entries: list[Entry] = []

    def entries_of(self, kind: type[_Kind]) -> list[_Kind]:
        return [entry for entry in self.entries if isinstance(entry, kind)]


def decision_document(decision: Decision) -> dict[str, Any]:
    """Returns a decision as REST and action controllers see it: without the fields that only the log needs."""
    document: dict[str, Any] = msgspec.to_builtins(decision)
    del document["kind"]
    document.pop("basedOn", None)
    document.pop("asked", None)
    return document


def claim_id(group: str, app: str, obj: str, cluster: str, template: str) -> str:
    """Returns an id that stays the same while the arguments, of which `template` is the resolved pod template's hash, do.
    It is a valid label value."""
    text = "\0".join((group, app, obj, cluster, template))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
