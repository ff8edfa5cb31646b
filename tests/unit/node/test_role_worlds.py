"""Random lives of pods with roles, and of others with CPUs of their own, on nodes with policies of their own that report late: no node
refuses a pod that was decided for it, whatever the roles of its policy are."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from tests.unit.reported_cluster import ReportedCluster

from moorage.fit import Unassigned
from moorage.intents.core.part_groups import PartNeeds, alignment
from moorage.intents.core.role_parts import with_role
from moorage.ledger import Wanted, assign_beside_own
from moorage.model.reports import NodeReport, PodReport, Report
from moorage.model.shapes import Shape
from moorage.model.slots import PartAmounts
from moorage.node.core.node_report import NOTHING, NodeDescription, NodeRows, report_bodies
from moorage.podspec import container_resources
from moorage.qos.admission import Admitted
from moorage_testkit.nodes import SimulatedNode, machine, pod
from moorage_testkit.seeds import seeds

GiB = 1 << 30
SPACES = ("default", "batch")


def policy(rng: Random, zones: int, cpus: int) -> str:
    """A policy of random roles: alone, among themselves, in pairs, in pools, with CPUs of their own on any zone."""
    total = zones * cpus
    spec: dict[str, Any] = {"topologyPolicy": rng.choice(("restricted", "best-effort", "single-numa-node", "none"))}
    if rng.random() < 0.5:
        spec["reservedCpus"] = "0-1"
    if rng.random() < 0.5:
        spec["reservedMemory"] = {"0": "1Gi"}
    if rng.random() < 0.6:
        cut = rng.randint(4, total - 4)
        spec["pools"] = {
            "online": {"cpus": f"2-{cut - 1}", "min": rng.randint(1, 2), "default": True},
            "offline": {"cpus": f"{cut}-{total - 1}", "min": rng.randint(1, 3)},
        }
    roles: dict[str, Any] = {"tool": {"pool": "offline"}}
    chosen = rng.sample(("db", "kin", "mates", "bound", "one", "ETL"), 5)
    for name in [*chosen, *(["two"] if "one" in chosen else [])]:
        roles[name] = {
            "db": {"exclusive": True, "numa": "bind"},
            "kin": {"exclusive": rng.random() < 0.7, "numa": "bind", "sharesNumaWith": ["kin"]},
            "mates": {"exclusive": rng.random() < 0.5, "numa": "bind", "sharesNumaWith": ["mates"]},
            "bound": {"numa": "bind"},
            "one": {"exclusive": True, "numa": "bind", "sharesNumaWith": ["two"]},
            "two": {"exclusive": True, "numa": "bind", "sharesNumaWith": ["one"]},
            "ETL": {"exclusive": True, "numa": "bind", "namespaces": ["batch"]},
        }[name]
        if rng.random() < 0.15:
            roles[name]["implicit"] = ["NIC"]
    spec["nics"] = [{"name": "eth0", "numa": rng.randrange(zones), "mbps": 1000}]
    return json.dumps({"kind": "NodePolicy", "spec": {**spec, "roles": roles}})


class Node:
    """A node with its agent, and what of it was told."""

    def __init__(self, name: str, rng: Random) -> None:
        self.zones, cores = rng.choice((2, 2, 3)), rng.choice((6, 8, 10))
        on = machine(self.zones, cores, memory=tuple(rng.choice((8, 16)) * GiB for _ in range(self.zones)))
        self.simulated = SimulatedNode(policy(rng, self.zones, cores), on, name)
        self.description, self.told = NodeDescription(name, on), NOTHING
        self.allocatable = {"cpu": str(self.zones * cores), "memory": f"{16 * self.zones}Gi", "pods": "110"}

    def rows(self) -> NodeRows:
        cpu, every = self.simulated.cpu, (1 << self.zones) - 1
        nics = sum({1 << nic.numa for nic in self.simulated.node.policy.spec.nics or ()})
        return self.description.rows(
            self.simulated.node.policy,
            self.simulated.records,
            {},
            enabled=True,
            exclusive_free=cpu.capacity(cpu.free()),
            offered={"cpu": every, "memory": every, "NIC": nics},
            zones_free=cpu.free_by_zone(),
        )


class Ask(msgspec.Struct):
    role: str
    namespace: str
    cpu: int  # in milli
    memory: int
    count: int
    sidecar: int

    def shape(self, ident: str) -> Shape:
        amounts = {"cpu": self.cpu, "memory": self.memory}
        beside = {"cpu": self.sidecar, "memory": GiB // 4}
        containers = [container_resources("main", amounts, amounts)]
        if self.sidecar:
            containers.append(container_resources("beside", beside, beside))
        aligned = alignment(containers)
        found = with_role(PartNeeds([], []), self.role, self.namespace, "", containers)
        memory = self.memory + (GiB // 4 if self.sidecar else 0)
        resources = {"cpu": self.cpu + self.sidecar, "memory": memory, "pods": 1}
        if not self.cpu % 1000:
            resources["moorage.dev/exclusive-cpu"] = self.cpu // 1000
        return Shape(
            key=ident,
            object=f"StatefulSet/{ident}",
            count=self.count,
            resources=resources,
            groups=found.groups,
            relations=found.relations,
            containers=aligned.containers,
            guaranteed=aligned.guaranteed,
        )


class Pod(msgspec.Struct):
    claim: str
    node: str
    ask: Ask


class World(ReportedCluster):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.nodes = {f"n-{i}": Node(f"n-{i}", self.rng) for i in range(self.rng.choice((1, 2, 3)))}
        self.pods: dict[str, Pod] = {}
        self.asks: dict[str, Ask] = {}
        self.counts: Counter[str] = Counter()
        self.begin(list(self.nodes))

    def claimed_pods(self) -> dict[str, Pod]:
        return self.pods

    def remove_pod(self, uid: str) -> None:
        self.nodes[self.pods.pop(uid).node].simulated.remove(uid)

    # -- reports ------------------------------------------------------------------------------------------------------

    def say(self, source: str, members: dict[str, Any]) -> None:
        self.report(source, msgspec.convert({"id": "r", **self.report_head(source), **members}, Report))

    def report_cluster(self) -> None:
        nodes = []
        for name, node in self.nodes.items():
            here = [pod.ask.shape("").resources for pod in self.pods.values() if pod.node == name]
            requested = {"cpu": f"{sum(r['cpu'] for r in here)}m", "memory": str(sum(r["memory"] for r in here))}
            row = NodeReport(name=name, allocatable=node.allocatable, requested=requested, pod_count=len(here))
            nodes.append(msgspec.to_builtins(row))
        pods = [
            msgspec.to_builtins(PodReport(uid=uid, node=pod.node, phase="Running", claim=pod.claim))
            for uid, pod in self.pods.items()
        ]
        self.say("agent", {"nodes": nodes, "pods": pods, "podsGone": self.pods_gone()})

    def report_node(self, name: str) -> None:
        node = self.nodes[name]
        now = node.rows()
        for body in report_bodies(node.told, now):
            self.say(f"node-{name}", json.loads(b"{" + body[1:] + b"}"))
        node.told = now

    # -- the mesh -----------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        rng = self.rng
        roles = (
            "",
            "",
            "db",
            "kin",
            "mates",
            "bound",
            "one",
            "two",
            "ETL",
            "tool",
            "storage-service",
            "reranker",
            "nobody",
        )
        role, cores = rng.choice(roles), rng.randint(1, 5)
        cpu = cores * 1000 - rng.choice((0, 0, 500))
        memory, sidecar = rng.randint(1, 5) * GiB, rng.choice((0, 0, 500))
        ask = Ask(role, rng.choice(SPACES), cpu, memory, rng.choice((1, 1, 2, 3)), sidecar)
        self.counts["made"] += 1
        ident = f"k{self.counts['made']}"
        found = assign_beside_own(self.fleet, 0, [Wanted(ask.shape(ident), ident)])
        if isinstance(found, Unassigned):
            self.counts["waits"] += 1
            return
        self.counts["decided"] += 1
        self.asks[ident] = ask
        self.claim(ident, found[0].slots)

    def start(self) -> None:
        """Starts a pod that is missing on the node of a slot that has none. Its node's agent admits it, always."""
        waiting = []
        for ident, active in self.ledger.claims.items():
            seats = Counter(slot.node for slot in active.claim.slots for _ in range(slot.count))
            seats.subtract(pod.node for pod in self.pods.values() if pod.claim == ident)
            if ident not in self.leaving:
                waiting += [(ident, node) for node, count in seats.items() if count > 0]
        if not waiting:
            return
        ident, node = self.rng.choice(sorted(waiting))
        ask = self.asks[ident]
        self.counts["started"] += 1
        uid = f"p{self.counts['started']}"
        runs: dict[str, list[dict[str, Any]]] = {}
        for slot in self.ledger.claims[ident].claim.slots:
            runs.setdefault(slot.node, []).append({"count": slot.count, "parts": _texts(slot.parts)})
        amounts = {"cpu": f"{ask.cpu}m", "memory": str(ask.memory)}
        containers = [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]
        if ask.sidecar:
            beside = {"cpu": f"{ask.sidecar}m", "memory": str(GiB // 4)}
            containers.append({"name": "beside", "resources": {"requests": beside, "limits": beside}})
        asked = pod(
            uid,
            ask.role,
            namespace=ask.namespace,
            annotations={"moorage.dev/parts": json.dumps(runs)},
            labels={"moorage.dev/claim": ident},
            containers=containers,
        )
        asked = msgspec.structs.replace(asked, uid=uid)
        outcome = self.nodes[node].simulated.admit(asked)
        assert isinstance(outcome, Admitted), (ident, ask, runs, outcome)
        self.pods[uid] = Pod(ident, node, ask)

    def end(self) -> None:
        if self.pods:
            self.remove_pod(self.rng.choice(sorted(self.pods)))

    def run(self, steps: int) -> None:
        actions = [self.decide, self.decide, self.start, self.start, self.start, self.end, self.withdraw, self.release]
        actions += [self.report_cluster, lambda: self.report_node(self.rng.choice(list(self.nodes)))]
        for _ in range(steps):
            self.rng.choice(actions)()
        while self.leaving:
            self.release()
        for _ in range(200):
            self.start()
        self.report_cluster()
        for name, node in self.nodes.items():
            self.report_node(name)
            node.simulated.check()


def _texts(parts: PartAmounts) -> dict[str, dict[str, str]]:
    return {part: {name: str(amount) for name, amount in amounts.items()} for part, amounts in parts.items()}


@pytest.mark.parametrize("seed", seeds(20, 2_000))
def test_no_node_refuses_what_was_decided_for_it(seed: int) -> None:
    World(seed).run(150)


def test_the_worlds_are_not_empty() -> None:
    total: Counter[str] = Counter()
    for seed in range(5):
        world = World(seed)
        world.run(150)
        total += world.counts
    assert total["decided"] > 40 and total["started"] > 60 and total["waits"] > 20, total
