"""Runs simulated clusters in virtual time, with a minimal inventory and patcher that check every message."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.model.desired_state import DesiredApp, DesiredAsk, DesiredReply
from moorage.model.reports import NodeReport, PodReport, Report, ReportReply
from moorage.model.status import Confirm
from moorage.sim.core.cluster_rows import node_rows, pod_rows
from moorage.sim.core.cluster_spec import ClusterSpec
from moorage.sim.core.fleet_documents import decode, expand
from moorage.sim.core.simulator import Simulator


class World:
    """Stands in for inventory and patcher, which answer at once unless `silent`. Time is virtual."""

    def __init__(self, fleet: dict[str, Any] | dict[str, ClusterSpec]) -> None:
        self.now = 100.0
        self.core = Simulator("s1", wall=1000.0)
        self.sessions: dict[str, tuple[str, int]] = {}
        self.parts: dict[str, list[Report]] = {}
        self.nodes: dict[str, dict[str, NodeReport]] = {}
        self.pods: dict[str, dict[str, PodReport]] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.desired: dict[str, list[DesiredApp]] = {}
        self.to_confirm_again: list[DesiredApp] = []
        self.confirms: list[tuple[str, Confirm]] = []
        self.reports: list[tuple[float, str, Report]] = []
        self.asks = 0
        self.stale = 0
        self.refused: set[str] = set()
        self.silent = False
        self.core.apply(fleet if fleet and "clusters" not in fleet else expand(decode(fleet)), self.now)
        self.run(0.001)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.core.tick(self.now)
            while self.core.out:
                batch, self.core.out[:] = self.core.out[:], []
                for send in batch:
                    answer = self.answer(send.verb, send.cluster, send.payload)
                    token, nonce = send.token.split(".")
                    if not self.silent:
                        self.core.on_reply(token, nonce, msgspec.json.encode(answer), self.now)
                self.core.tick(self.now)
            due = self.core.next_timer()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
        self.now = end

    def answer(self, verb: str, cluster: str, payload: bytes) -> msgspec.Struct:
        assert len(payload) < 512_000
        if verb == "confirm":
            self.confirms.append((cluster, msgspec.json.decode(payload, type=Confirm, strict=True)))
            return ReportReply()
        if verb == "ask":
            self.asks += 1
            ask = msgspec.json.decode(payload, type=DesiredAsk)
            apps = [
                a
                for a in self.desired.get(cluster, [])
                if ask.have.get(f"{a.group} {a.app}", 0) < a.version
                or (a.pins is not None and a.pins.tag != ask.pins.get(f"{a.group} {a.app}", ""))
            ]
            return DesiredReply(apps=apps + self.to_confirm_again)
        return self.report(cluster, msgspec.json.decode(payload, type=Report, strict=True))

    def report(self, cluster: str, report: Report) -> ReportReply:
        self.reports.append((self.now, cluster, report))
        if cluster in self.refused:
            return ReportReply(refused="another session has it")
        session, seq = self.sessions.get(cluster, ("", 0))
        index, count = report.part
        if report.session == session and (report.seq < seq or (report.seq == seq and not self.parts.get(cluster))):
            self.stale += 1
            return ReportReply()
        if report.session != session and report.kind != "full":
            return ReportReply(resync=True)
        if report.kind == "delta" and report.seq not in (seq, seq + 1):
            return ReportReply(resync=True)
        self.sessions[cluster] = (report.session, report.seq)
        parts = self.parts.setdefault(cluster, [])
        assert index == len(parts)
        parts.append(report)
        if len(parts) < count:
            return ReportReply()
        del self.parts[cluster]
        if report.leaving:
            del self.nodes[cluster], self.pods[cluster], self.labels[cluster]
            return ReportReply()
        if report.kind == "full":
            self.nodes[cluster], self.pods[cluster] = {}, {}
        for part in parts:
            self.nodes[cluster].update({n.name: n for n in part.nodes})
            self.pods[cluster].update({p.uid: p for p in part.pods})
            for uid in part.pods_gone:
                self.pods[cluster].pop(uid, None)
        if report.labels is not None:
            self.labels[cluster] = report.labels
        return ReportReply()

    def want(self, cluster: str, *apps: DesiredApp, hint: bool = True) -> None:
        self.desired[cluster] = list(apps)
        if hint:
            self.core.on_hint(cluster, self.now)

    def last(self, cluster: str = "lab/a") -> Confirm:
        return [confirm for name, confirm in self.confirms if name == cluster][-1]

    def free(self, cluster: str, node: str, resource: str = "cpu") -> str:
        return self.nodes[cluster][node].requested.get(resource, "0")

    def assert_reported(self) -> None:
        """Asserts that the reported nodes and pods are those that exist."""
        for ident, agent in self.core.agents.items():
            rows = [msgspec.json.decode(r, type=NodeReport) for r in node_rows(agent.cluster)]
            assert {n.name: n for n in rows} == self.nodes[ident]
            pods = [msgspec.json.decode(r, type=PodReport) for r in pod_rows(agent.cluster, agent.cluster.pods)]
            assert {p.uid: p for p in pods} == self.pods[ident]
            for node in (agent.cluster.nodes or {}).values():
                managed = [p for p in agent.cluster.pods.values() if p.node is node]
                assert node.used.get("cpu", 0) == sum(p.need.requests.get("cpu", 0) for p in managed if p.key)


LAB: dict[str, Any] = {
    "clusters": [
        {
            "name": "a",
            "provider": "lab",
            "labels": {"region": "eu"},
            "nodes": [
                {"name": "n", "count": 3, "allocatable": {"cpu": "4", "memory": "8Gi"}, "labels": {"disk": "ssd"}},
                {
                    "name": "x",
                    "allocatable": {"cpu": "8", "memory": "8Gi"},
                    "cpuManager": {"policy": "static", "exclusive": 6},
                    "taints": [{"key": "only", "effect": "NoSchedule"}],
                },
            ],
        }
    ]
}


def slow_lab(**behaviour: float) -> dict[str, Any]:
    return {"clusters": [LAB["clusters"][0] | {"behaviour": behaviour}]}


def workload(
    kind: str = "Deployment", cpu: str = "1", replicas: int = 2, name: str = "web", **pod: Any
) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **pod}
    template = {"metadata": {"labels": {"moorage.dev/claim": f"claim-{name}"}}, "spec": spec}
    metadata = {"name": name, "namespace": "shop"}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": {**metadata, **template["metadata"]}, "spec": spec}
    count = {"parallelism": replicas} if kind == "Job" else {} if kind == "DaemonSet" else {"replicas": replicas}
    body = (
        {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}
        if kind == "CronJob"
        else {**count, "template": template}
    )
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": body}


def app(version: int, *objects: dict[str, Any], remove: bool = False, name: str = "front") -> DesiredApp:
    return DesiredApp(group="p/shop/v1/default", app=name, version=version, objects=list(objects), remove=remove)
