"""Reports about the nodes and pods of a cluster, in parts and with sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from .base import Message, Model, Value
from .part_reports import (
    CounterSetReport,
    DeviceClassReport,
    DeviceReport,
    ProviderReport,
    RoleKind,
    TopologyManager,
    ZoneReport,
)

#: A part of a report stays well below 512 kB.
PART_BYTES = 400_000


class Taint(Value, kw_only=True, frozen=True):
    key: str
    effect: str
    value: str = ""


class CpuManager(Value, kw_only=True, frozen=True):
    policy: str = "none"
    exclusive_free: int = 0


class QosReport(Value, kw_only=True, frozen=True):
    """The way in which a node's agent gives resources: whether its gate is on, how it aligns, and the roles that it knows, with what they get."""

    gate: bool = False
    topology_policy: str = ""
    topology_scope: str = ""
    roles: list[str] = []
    role_kinds: dict[str, RoleKind] = {}


class NodeReport(Model, kw_only=True):
    """A node. In a delta, `zones`, `providers` and `topology_manager` that are absent are as before. `in_use` has what
    the pods of the node use of its parts, by the part's id without the node's name (`numa-0`, `numa-0/card-1`), of a device by its id, and class.
    `counted`: the uids of those pods with a claim whose use of zones `in_use` includes; of pods whose `parts` are told it is known anyway.
    A node's agent tells `capacity` and `allocatable` of the resources of its plugins alone, and in `removed` those that are gone."""

    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: list[Taint] = []
    ready: bool = True
    unschedulable: bool = False
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    removed: list[str] = []
    requested: dict[str, str] = {}
    pod_count: int = 0
    host_ports: list[str] = []  # used by its pods: 8080/TCP, or 10.0.0.1:53/UDP for a single IP
    cpu_manager: CpuManager | None = None
    zones: list[ZoneReport] | None = None
    providers: list[ProviderReport] | None = None
    devices: list[DeviceReport] = []
    counters: list[CounterSetReport] = []
    device_classes: list[DeviceClassReport] = []  # of its cluster; only of nodes with devices
    incomplete_pools: bool = False  # there are pools for it of which no device counts
    invalid_pools: bool = False  # among these are some that make no sense
    topology_manager: TopologyManager | None = None
    in_use: dict[str, dict[str, str]] = {}
    counted: list[str] = []
    machines: list[dict[str, Any]] = []
    qos: QosReport | None = None  # of a node agent
    created: str = ""  # RFC 3339
    problems: list[str] = []  # what its source could not make sense of


class ContainerReport(Model, kw_only=True):
    name: str
    state: str = ""
    reason: str = ""


class PodReport(Model, kw_only=True):
    """A pod. `parts`: what it takes of which parts, by the ids and classes that claims have (`n-0/numa-0`, `cpu`), where its source
    knows; what that reports in use includes it. A node's agent tells only `uid` and `parts`."""

    uid: str
    namespace: str = ""
    name: str = ""
    node: str = ""
    phase: str = "Pending"
    reason: str = ""  # of a failed pod
    message: str = ""  # of a failed pod
    deleting: bool = False
    labels: dict[str, str] = {}
    requests: dict[str, str] = {}
    claim: str = ""
    parts: dict[str, dict[str, str]] = {}
    containers: list[ContainerReport] = []


class AdmissionReport(Model, kw_only=True):
    """The decision of a node's agent about a pod that the scheduler bound to its node. `pod` is the pod's uid; `code` and `message`
    say why it is refused."""

    pod: str
    outcome: Literal["admitted", "refused"] = "admitted"
    code: str = ""
    message: str = ""


class Report(Message, kw_only=True):
    """A delta has only changed rows, each complete; an empty one is a heartbeat. `requested` of a node includes the pods that
    are listed one by one. `seq` grows by one with each report of a session (a full one may skip numbers). All parts of a
    report share it, and the report takes effect with the last part. An unanswered report is sent again unchanged.
    `succeeds`: the session that this one replaces at once, if the source still knows it; otherwise a new session is refused
    until the old one is silent. `leaving`: the cluster leaves for good; its id is not given to another one."""

    session: str
    seq: int
    part: tuple[int, int] = (0, 1)
    kind: Literal["full", "delta"] = "delta"
    as_of: float = 0
    nodes: list[NodeReport] = []
    nodes_gone: list[str] = []
    pods: list[PodReport] = []
    pods_gone: list[str] = []
    admissions: list[AdmissionReport] = []  # of a node's agent
    labels: dict[str, str] | None = None  # of the cluster; None = as before
    succeeds: str = ""
    leaving: bool = False


class ReportReply(Model, kw_only=True):
    """Inventory's answer. `resync`: send a full report; `refused`: another session owns this source of the cluster."""

    period_ms: int = 2000
    resync: bool = False
    refused: str = ""
    generation: int = 0


def parts_of(rows: Mapping[str, Iterable[bytes]]) -> list[bytes]:
    """Divides the encoded rows of a report, by field, into parts: the JSON members of each part, each after a comma. Fields
    with what is gone are divided as well, for a burst of ending pods is as long as one of new pods."""
    bodies: list[dict[str, list[bytes]]] = [{}]
    size = 0
    for field, entries in rows.items():
        for entry in entries:
            if size and size + len(entry) > PART_BYTES:
                bodies.append({})
                size = 0
            bodies[-1].setdefault(field, []).append(entry)
            size += len(entry) + 1
    return [b"".join(b',"%b":[%b]' % (f.encode(), b",".join(found)) for f, found in body.items()) for body in bodies]
