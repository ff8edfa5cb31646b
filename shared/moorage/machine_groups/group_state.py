"""A Machine that keeps all rules, with its Pods and what its objects store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.model.machines import Machine

from .handover import Handover
from .handover_records import Stored, StoredGrant
from .names import GRANTS, SLOTS
from .sizes import sizes
from .slot_limits import SlotLimits

Object = dict[str, Any]


class StoredSlots(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The annotation of a StatefulSet with the slots of its type. `mesh`: the mesh gave them."""

    slots: dict[str, int] = {}
    offline: dict[str, int] = {}
    claim: str = ""
    mesh: bool = False


class GroupState:
    """A Machine that keeps all rules, with its Pods and objects."""

    def __init__(self, machine: Machine, uid: str) -> None:
        self.machine, self.uid = machine, uid
        self.sizes = sizes(machine)
        self.handover = Handover(machine, self.sizes)
        self.entries = {node.name: node for node in machine.node_pool}
        self.status_at = 0.0
        self.limits = SlotLimits()
        self.unmarked: set[str] = set()  # uids of guests that another controller let in
        self.untold: dict[str, float] = {}  # uids of guests that may have to be told why they wait, and when
        #: What StatefulSets have, by type, each with the version from which it was read.
        self.stored: dict[str, tuple[tuple[str, str], Stored]] = {}

    def set_machine(self, machine: Machine) -> None:
        self.machine, self.sizes = machine, sizes(machine)
        self.handover.set_machine(machine, self.sizes)
        self.entries = {node.name: node for node in machine.node_pool}

    def stored_of(self, machine_type: str, stateful_set: Object) -> Stored:
        """Returns what the StatefulSet of a type has."""
        meta = stateful_set["metadata"]
        key = (str(meta.get("uid")), str(meta.get("resourceVersion")))
        if machine_type not in self.stored or self.stored[machine_type][0] != key:
            grants = _read_grants((meta.get("annotations") or {}).get(GRANTS, ""))
            self.stored[machine_type] = key, Stored(int(stateful_set["spec"].get("replicas", 1)), grants)
        return self.stored[machine_type][1]


def read_slots(stateful_set: Mapping[str, Any] | None) -> StoredSlots:
    """Returns the slots that a StatefulSet names; none where nobody can read what it says."""
    text = (stateful_set["metadata"].get("annotations") or {}).get(SLOTS, "") if stateful_set is not None else ""
    try:
        return msgspec.json.decode(text, type=StoredSlots) if text else StoredSlots()
    except (msgspec.DecodeError, RecursionError):
        return StoredSlots()


def _read_grants(text: str) -> dict[str, StoredGrant]:
    try:
        return msgspec.json.decode(text, type=dict[str, StoredGrant]) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
