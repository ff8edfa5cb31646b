"""Encodes the nodes and pods of a simulated cluster as rows of reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moorage.model.reports import PodReport
from moorage.model.shapes import PODS
from moorage.parsing import format_amount

from .cluster import SimulatedCluster
from .cluster_spec import ClusterSpec, encode, initial_usage
from .node_zones import ReportedZones, Zones


def node_rows(cluster: SimulatedCluster, names: Iterable[str] | None = None) -> Iterator[bytes]:
    """Encodes these nodes, or all, as rows of a report."""
    ident = cluster.spec.id
    if cluster.nodes is None:
        for number, (name, kind) in enumerate(cluster.spec.nodes()):
            used, pods = initial_usage(kind, cluster.spec.seed, number)
            yield kind.row(ident, name, used, pods, 0, (), kind.initial_zones)
        return
    for name in cluster.nodes if names is None else names:
        node = cluster.nodes.get(name)
        if node is not None:
            zones = _zone_fields(cluster, node.zones)
            row = node.kind.row(ident, name, node.used, node.pods, node.cores, node.ports, zones)
            yield row if cluster.devices is None else cluster.devices.with_devices(name, row)


def _zone_fields(cluster: SimulatedCluster, zones: Zones | None) -> bytes:
    """Encodes what is reported to be in use of a node's zones, and the listed pods that it includes."""
    if zones is None:
        return b""
    listed = [uid for uid in zones.report.counted if (pod := cluster.pods.get(uid)) is not None and pod.need.claim]
    report: ReportedZones = zones.report
    return report.fields(listed)


def original_rows(spec: ClusterSpec) -> Iterator[bytes]:
    """Encodes all nodes of a cluster as they were before any pod ran there."""
    return node_rows(SimulatedCluster(spec._replace(pods=())))


def pod_rows(cluster: SimulatedCluster, uids: Iterable[str]) -> Iterator[bytes]:
    """Encodes those of these pods that carry a claim as rows of a report."""
    for uid in uids:
        pod = cluster.pods.get(uid)
        if pod is None or not pod.need.claim:
            continue
        work = cluster.applied.workloads.get(pod.owner) if pod.owner is not None else None
        waits = cluster.binding.get(uid)  # the scheduler chose a node, and keeps its room for the pod
        node = pod.node if waits is None else waits[0]
        report = PodReport(
            uid=uid,
            namespace=work.namespace if work is not None else "default",
            name=pod.name,
            node=node.name if node is not None else pod.refused,
            phase="Failed" if pod.refused else "Running" if pod.ready else "Pending",
            reason=pod.refusal[0] if pod.refused else "",
            message=pod.refusal[1] if pod.refused else "",
            labels=pod.need.labels,
            requests={k: format_amount(k, v) for k, v in pod.need.requests.items() if k != PODS},
            claim=pod.need.claim,
        )
        if cluster.devices is not None and node is not None:
            report.parts = cluster.devices.parts_of(uid, node.name)
        yield encode(report)
