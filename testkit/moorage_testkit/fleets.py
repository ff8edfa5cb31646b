"""Builds fleets in memory, the way inventory does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moorage.fleet import HOSTNAME, Fleet, FleetWriter, normalize_node
from moorage.fleet.delta import CORDONED, STALE
from moorage.model.part_reports import ProviderReport, TopologyManager, ZoneReport
from moorage.model.reports import CpuManager, NodeReport, Taint


def node(
    name: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    ready: bool = True,
    unschedulable: bool = False,
    requested: Mapping[str, str] | None = None,
    pod_count: int = 0,
    exclusive: int | None = None,
    policy: str = "static",
    hostname: bool = True,
    resources: Mapping[str, str] | None = None,
    host_ports: Sequence[str] = (),
    zones: Sequence[ZoneReport] | None = None,
    providers: Sequence[ProviderReport] | None = None,
    topology: TopologyManager | None = None,
    in_use: Mapping[str, dict[str, str]] | None = None,
    **amounts: str,
) -> NodeReport:
    """Returns a node as its agent reports it: `node(cpu="8", memory="32Gi", resources={"nvidia.com/gpu": "2"})`; 110 pods unless
    given, a hostname label unless not wanted. Without a name it gets `n-0`, `n-1`, … in its cluster. `zones` and `providers` are
    inside it: `node(cpu="8", zones=two_zones("4"), in_use={"numa-0": {"cpu": "1"}})`."""
    found = NodeReport(
        name=name,
        labels=dict(labels or {}),
        taints=list(taints),
        ready=ready,
        unschedulable=unschedulable,
        allocatable={"pods": "110", **amounts, **(resources or {})},
        requested=dict(requested or {}),
        pod_count=pod_count,
        host_ports=list(host_ports),
        cpu_manager=None if exclusive is None else CpuManager(policy=policy, exclusive_free=exclusive),
        zones=None if zones is None else list(zones),
        providers=None if providers is None else list(providers),
        topology_manager=topology,
        in_use=dict(in_use or {}),
    )
    if hostname:
        found.labels.setdefault(HOSTNAME, name)
    return found


def two_zones(cpu: str, **amounts: str) -> list[ZoneReport]:
    """Returns two equal NUMA zones, `numa-0` and `numa-1`."""
    return [ZoneReport(id=number, inventories={"cpu": cpu, **amounts}) for number in range(2)]


def provider(path: str, parent: str = "", *, traits: Sequence[str] = (), **amounts: str) -> ProviderReport:
    """`provider("numa-0/fpga", "numa-0", FPGA="1")`"""
    return ProviderReport(id=path, parent=parent, inventories=dict(amounts), traits=list(traits))


def writer_of(
    clusters: Mapping[str, Sequence[NodeReport]],
    *,
    labels: Mapping[str, dict[str, str]] | None = None,
    stale: Sequence[str] = (),
    cordoned: Sequence[str] = (),
) -> FleetWriter:
    """Returns the writer of a fleet, for tests that change rows later. Refuses malformed nodes."""
    writer = FleetWriter()
    for cid, (name, nodes) in enumerate(clusters.items()):
        rows = []
        for i, report in enumerate(nodes):
            if not report.name:
                report.name = f"n-{i}"
                if report.labels.get(HOSTNAME) == "":
                    report.labels[HOSTNAME] = report.name
            made, problem = normalize_node(report)
            if problem:
                raise ValueError(problem)
            rows.append(made)
        state = (STALE if name in stale else 0) | (CORDONED if name in cordoned else 0)
        writer.put(cid, name, rows, whole=True, labels=dict((labels or {}).get(name, {})), state=state, as_of=1.0)
    return writer


def fleet_of(clusters: Mapping[str, Sequence[NodeReport]], **options: Any) -> Fleet:
    """`fleet_of({"lab/edge-1": [node(cpu="8", memory="32Gi")]}, labels={"lab/edge-1": {"region": "eu"}})`"""
    return writer_of(clusters, **options).fleet
