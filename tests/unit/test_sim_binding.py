"""Compares the simulated scheduler with a plain transcription of the rules of Kubernetes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moorage.model.reports import Taint
from moorage.sim.core.cluster_spec import NodeKind
from moorage.sim.core.pod_needs import read_template
from moorage.sim.core.scheduler import SchedulerNode, choose

ZONES = ["a", "b"]


@st.composite
def nodes(draw: st.DrawFn) -> list[SchedulerNode]:
    made = []
    for i in range(draw(st.integers(1, 5))):
        labels = {"zone": draw(st.sampled_from(ZONES))} if draw(st.booleans()) else {}
        taints = (Taint(key="k", effect=draw(st.sampled_from(["NoSchedule", "PreferNoSchedule"]))),)
        kind = NodeKind(
            allocatable={
                "cpu": str(draw(st.integers(1, 4))),
                "memory": "4Gi",
                "pods": draw(st.sampled_from(["1", "9"])),
            },
            labels=labels,
            taints=taints if draw(st.booleans()) else (),
            ready=draw(st.sampled_from([True, True, True, False])),
            unschedulable=draw(st.sampled_from([False, False, True])),
        )
        made.append(SchedulerNode(f"n-{i}", kind, {"cpu": draw(st.integers(0, 2)) * 500}, draw(st.integers(0, 1))))
    return made


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": f"{draw(st.integers(1, 30))}00m"}}}]
    }
    if draw(st.booleans()):
        spec["nodeSelector"] = {"zone": draw(st.sampled_from(ZONES))}
    if draw(st.booleans()):
        operator = draw(st.sampled_from(["Exists", "Equal"]))
        spec["tolerations"] = [{"key": draw(st.sampled_from(["k", "other"])), "operator": operator}]
    affinity: dict[str, Any] = {}
    if draw(st.booleans()):
        terms = draw(st.lists(st.sampled_from(ZONES), max_size=2))
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": [z]}]} for z in terms
            ]
        }
    affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
        {
            "weight": draw(st.integers(1, 9)),
            "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [v]}]},
        }
        for key, v in draw(
            st.lists(st.sampled_from([("zone", "a"), ("zone", "b"), ("kubernetes.io/hostname", "n-1")]), max_size=3)
        )
    ]
    spec["affinity"] = {"nodeAffinity": affinity}
    return {"metadata": {}, "spec": spec}


def reference(template: dict[str, Any], fleet: list[SchedulerNode]) -> str | None:
    spec = template["spec"]
    asked = int(spec["containers"][0]["resources"]["requests"]["cpu"][:-1])
    tolerates = any(t["key"] == "k" and (t["operator"] == "Exists" or True) for t in spec.get("tolerations", []))
    node_affinity = spec["affinity"]["nodeAffinity"]

    def expression(e: dict[str, Any], node: SchedulerNode) -> bool:
        value = node.name if e["key"] == "kubernetes.io/hostname" else node.kind.labels.get(e["key"])
        return bool((value in e["values"]) == (e["operator"] == "In"))

    feasible = []
    for node in fleet:
        kind = node.kind
        if not kind.ready or kind.unschedulable or node.pods + 1 > kind.amounts["pods"]:
            continue
        if node.used["cpu"] + asked > kind.amounts["cpu"]:
            continue
        if any(t.effect == "NoSchedule" for t in kind.taints) and not tolerates:
            continue
        if any(kind.labels.get(k) != v for k, v in spec.get("nodeSelector", {}).items()):
            continue
        required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        if required is not None and not any(
            all(expression(e, node) for e in t["matchExpressions"]) for t in required["nodeSelectorTerms"]
        ):
            continue
        feasible.append(node)
    if not feasible:
        return None
    raw = {
        n.name: sum(
            p["weight"]
            for p in node_affinity["preferredDuringSchedulingIgnoredDuringExecution"]
            if all(expression(e, n) for e in p["preference"]["matchExpressions"])
        )
        for n in feasible
    }
    most = max(raw.values())
    memory = 200 << 20

    def score(node: SchedulerNode) -> int:
        have, total = node.kind.amounts["cpu"], node.kind.amounts["memory"]
        least = ((have - node.used["cpu"] - asked) * 100 // have + (total - memory) * 100 // total) // 2
        return 2 * (raw[node.name] * 100 // most if most else 0) + least

    return max(feasible, key=lambda n: (score(n), -fleet.index(n))).name


@given(nodes(), templates())
def test_pods_are_bound_as_kubernetes_binds_them(fleet: list[SchedulerNode], template: dict[str, Any]) -> None:
    chosen = choose(read_template(template), fleet)
    assert (chosen.name if chosen is not None else None) == reference(template, fleet)


def test_requests_are_summed_as_in_kubernetes() -> None:
    spec = {
        "overhead": {"cpu": "10m"},
        "initContainers": [
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"name": "once", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}},
        ],
        "containers": [
            {"name": "a", "resources": {"limits": {"cpu": "500m"}}},
            {"name": "b", "resources": {"requests": {"cpu": "1", "x/y": 1}, "limits": {"cpu": "4", "x/y": 1}}},
        ],
    }
    need = read_template({"spec": spec})
    assert need.requests == {"cpu": 2110, "memory": 1 << 30, "x/y": 1, "pods": 1}
    assert need.cores == 0


def test_only_guaranteed_pods_with_whole_cores_get_exclusive_cores() -> None:
    def need(cpu: str, memory: str | None = "1Gi") -> int:
        limits = {"cpu": cpu} | ({"memory": memory} if memory else {})
        return read_template({"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}).cores

    assert (need("4"), need("1500m"), need("4", None)) == (4, 0, 0)
