"""Reports: what sources in and beside a cluster say of its nodes and pods, in parts, with sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from .base import Message, Model, Value

#: A part of a report stays well below 512 kB.
PART_BYTES = 400_000


class Taint(Value, kw_only=True, frozen=True):
    key: str
    effect: str
    value: str = ""


class CpuManager(Value, kw_only=True, frozen=True):
    policy: str = "none"
    exclusive_free: int = 0


class NodeReport(Model, kw_only=True):
    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: list[Taint] = []
    ready: bool = True
    unschedulable: bool = False
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    requested: dict[str, str] = {}
    pod_count: int = 0
    cpu_manager: CpuManager | None = None
    zones: list[dict[str, Any]] = []
    providers: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    machines: list[dict[str, Any]] = []


class ContainerReport(Model, kw_only=True):
    name: str
    state: str = ""
    reason: str = ""


class PodReport(Model, kw_only=True):
    uid: str
    namespace: str
    name: str
    node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    labels: dict[str, str] = {}
    requests: dict[str, str] = {}
    claim: str = ""
    containers: list[ContainerReport] = []


class Report(Message, kw_only=True):
    """A delta names only rows that changed, each row whole; one with none is a heartbeat. `requested` includes the pods
    that stand one by one. `seq` grows by one with each report of a session (a full one may jump ahead); all parts of a
    report share it, and the report counts once the last part is there. A report that is not answered is sent again as it
    was. `succeeds`: the session that this one takes the place of at once, if the source still knows it; without that, a
    new session is refused until the old one is silent. `leaving`: the cluster goes for good; its number stays its own."""

    session: str
    seq: int
    part: tuple[int, int] = (0, 1)
    kind: Literal["full", "delta"] = "delta"
    as_of: float = 0
    nodes: list[NodeReport] = []
    nodes_gone: list[str] = []
    pods: list[PodReport] = []
    pods_gone: list[str] = []
    labels: dict[str, str] | None = None  # of the cluster; None = as before
    succeeds: str = ""
    leaving: bool = False


class ReportReply(Model, kw_only=True):
    """What inventory answers. `resync`: report in full; `refused`: another session owns this cluster's source."""

    period_ms: int = 2000
    resync: bool = False
    refused: str = ""
    generation: int = 0


def parts_of(rows: Mapping[str, Iterable[bytes]]) -> list[bytes]:
    """What a report lists, by field and each entry encoded, for as many parts as it takes: the fields of each part, with
    a comma before each. What is gone is cut as well: a burst of pods that end is as long as one of pods that come."""
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
