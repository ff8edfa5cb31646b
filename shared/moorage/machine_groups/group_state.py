"""A Machine that keeps all rules, with its Pods and what its objects store. Pure."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.model.machines import Condition, Machine

from .handover import Handover
from .handover_records import Stored, StoredGrant
from .names import GRANTS, SLOTS
from .sizes import sizes
from .slot_limits import SlotLimits

Object = dict[str, Any]
_MAX_PLAIN = 128 << 10
_PACKED = "zlib:"


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
        self.told_nodes: Mapping[str, Condition] = {}  # the conditions of its Nodes by its status
        self.limits = SlotLimits()
        self.unmarked: set[str] = set()  # uids of guests that another controller let in
        self.untold: dict[str, float] = {}  # uids of guests that may have to be told why they wait, and when
        #: What StatefulSets have, by type, each with the text from which its grants were read.
        self.stored: dict[str, tuple[str, Stored]] = {}

    def set_machine(self, machine: Machine) -> None:
        self.machine, self.sizes = machine, sizes(machine)
        self.handover.set_machine(machine, self.sizes)
        self.entries = {node.name: node for node in machine.node_pool}

    def stored_of(self, machine_type: str, stateful_set: Object) -> Stored:
        """Returns what the StatefulSet of a type has."""
        text = (stateful_set["metadata"].get("annotations") or {}).get(GRANTS, "")
        replicas = int(stateful_set["spec"].get("replicas", 1))
        before = self.stored.get(machine_type)
        if before is None or before[0] != text:
            self.stored[machine_type] = text, Stored(replicas, read_grants(text))
        elif before[1].replicas != replicas:
            self.stored[machine_type] = text, before[1]._replace(replicas=replicas)
        return self.stored[machine_type][1]


def read_slots(stateful_set: Mapping[str, Any] | None) -> StoredSlots:
    """Returns the slots that a StatefulSet names; none where nobody can read what it says."""
    text = (stateful_set["metadata"].get("annotations") or {}).get(SLOTS, "") if stateful_set is not None else ""
    try:
        return msgspec.json.decode(text, type=StoredSlots) if text else StoredSlots()
    except (msgspec.DecodeError, RecursionError):
        return StoredSlots()


def grants_text(grants: Mapping[str, StoredGrant]) -> str:
    """Returns the annotation with grants, packed if it is long: all annotations of an object have 256 KiB."""
    if not grants:
        return ""
    text = msgspec.json.encode(grants, order="sorted")
    return text.decode() if len(text) <= _MAX_PLAIN else _PACKED + b64encode(zlib.compress(text, 1)).decode()


def read_grants(text: str) -> dict[str, StoredGrant]:
    """Returns the grants of an annotation; none where nobody can read it."""
    try:
        data = zlib.decompress(b64decode(text[len(_PACKED) :])) if text.startswith(_PACKED) else text
        return msgspec.json.decode(data, type=dict[str, StoredGrant]) if text else {}
    except (msgspec.DecodeError, RecursionError, ValueError, zlib.error):
        return {}
