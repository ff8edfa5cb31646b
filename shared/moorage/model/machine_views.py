"""Machines, slots and guests as they are shown, over the command line and over REST."""

from __future__ import annotations

from typing import Any, Literal

from .base import Message, Model
from .machines import Condition, GuestState, Usage


class ClusterCondition(Model, kw_only=True):
    """The condition of a node in a pool."""

    cluster: str
    name: str
    condition: Condition | None = None


class MachineCondition(Model, kw_only=True):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""


class TypeUsage(Model, kw_only=True):
    """The slots of a machine type, over all clusters and in each."""

    name: str
    usage: Usage
    clusters: dict[str, Usage] = {}


class MachineStatusView(Model, kw_only=True):
    conditions: list[MachineCondition] = []
    available_machines: list[TypeUsage] = []
    node_pool: list[ClusterCondition] = []


class MachineView(Model, kw_only=True):
    """`origin`: `mesh` for a document, or the cluster in which the Machine was made."""

    metadata: dict[str, Any]
    spec: dict[str, Any]
    origin: str
    status: MachineStatusView


class SlotView(Model, kw_only=True, omit_defaults=False):
    """`short`: slots that are wanted and fit nowhere; they have no node. `holder`: the guest, NAMESPACE/NAME, or the group."""

    machine: str
    cluster: str
    node: str = ""
    state: Literal["reserved", "granted", "used", "short"]
    claim: str = ""
    holder: str = ""


class GuestView(Model, kw_only=True, omit_defaults=False):
    """`granted_at`: when its gate was taken off, in milliseconds since 1970. `group`: of the application whose pod it is."""

    machine: str
    cluster: str
    namespace: str
    name: str
    uid: str
    window: str = ""
    state: GuestState
    node: str = ""
    group: str = ""
    created_at: str = ""
    granted_at: int = 0
    reason: str = ""
    message: str = ""


class MachinesAsk(Message, kw_only=True):
    """Asks `slots` for one of these lists."""

    kind: Literal["machines", "slots", "guests"]
    machine: str = ""  # of slots and guests: only those of this type, GROUP/TYPE
    cluster: str = ""


class MachinesShown(Message, kw_only=True):
    """The list that was asked for."""

    machines: list[MachineView] = []
    slots: list[SlotView] = []
    guests: list[GuestView] = []
