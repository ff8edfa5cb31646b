"""Pods keep what they were given after all state is lost: plugins take it over from records and annotations."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.node.core.checkpoint import by_plugins, decode_copy, encode_copy, rebuild
from moorage.qos.messages import PodSpec
from moorage_testkit.nodes import GB, SimulatedNode, machine, pod

POLICY = """
kind: NodePolicy
spec:
  reservedCpus: "0"
  topologyScope: %s
  topologyPolicy: %s
  cpu: {strategy: %s}
  pools: {online: {cpus: "1-15", default: true}, offline: {cpus: "16-23"}}
  roles:
    db: {exclusive: true, numa: bind, sharesNumaWith: [db, near]}
    own: {exclusive: true}
    near: {pool: online, numa: bind, sharesNumaWith: [near, db]}
  nics: [{name: a, numa: 0, mbps: 100, ipv6: "fd00::1"}, {name: b, numa: 1, mbps: 100, ipv6: "fd00::2"}]
"""
ROLES = ["", "", "db", "own", "near", "ETL", "reranker", "numa-enhancement", "storage-service"]
_containers = st.lists(
    st.tuples(st.sampled_from(["container", "init"]), st.sampled_from(["500m", "1", "2", "3", "5"])),
    min_size=1,
    max_size=4,
)
_step = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 7), st.sampled_from(ROLES), _containers, st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 7)),
    st.tuples(st.sampled_from(["lose plugins", "lose all"])),
)


def _pod(name: str, role: str, containers: list[tuple[str, str]], guaranteed: bool) -> PodSpec:
    found: dict[str, list[dict[str, Any]]] = {"container": [], "init": []}
    for number, (kind, cpus) in enumerate(containers):
        amounts = {"cpu": cpus, "memory": "1Gi"}
        limits = amounts if guaranteed else {}
        found[kind].append({"name": f"{kind}{number}", "resources": {"requests": amounts, "limits": limits}})
    mains = found["container"] or [{"name": "only"}]
    return pod(name, role, containers=mains, initContainers=found["init"])


def _after_a_loss(node: SimulatedNode, scope: str, *, of_records: bool) -> SimulatedNode:
    fresh = SimulatedNode(node.node.policy, node.machine)
    pods = {uid: record.pod for uid, record in node.records.items()}
    fresh.records = dict(node.records)
    if of_records:
        copies = {
            uid: {name: decode_copy(encode_copy(given)) for name, given in record.containers.items()}
            for uid, record in node.records.items()
        }
        fresh.records = rebuild(pods, {}, copies, {}, pod_scope=scope == "pod")
    for plugin in fresh.plugins.values():
        assert plugin.adopt(pods, by_plugins(fresh.records)) == []
    return fresh


def _given(node: SimulatedNode) -> dict[tuple[str, str], str]:
    """Returns the CPUs of containers by the plugin of CPUs."""
    found = {}
    answer = node.cpu.resources_allocation()
    for uid, record in node.records.items():
        for name in record.containers:
            found[uid, name] = answer[uid].get(name, answer[uid].get("", {}))["cpu"].allocation_result
    return found


def _memory(node: SimulatedNode) -> dict[int, dict[str, int]]:
    nodes = node.plugins["memory"].nodes.nodes.values()  # type: ignore[union-attr]
    return {zone.id: {name: size for name, size in zone.reserved.items() if size} for zone in nodes}


@given(
    st.lists(_step, max_size=22),
    st.sampled_from(["container", "pod"]),
    st.sampled_from(["restricted", "best-effort", "single-numa-node", "numeric"]),
    st.sampled_from(["packed", "distributed"]),
)
@settings(max_examples=400, deadline=None)
def test_pods_have_what_they_had(steps: list[Any], scope: str, policy: str, strategy: str) -> None:
    node = SimulatedNode(POLICY % (scope, policy, strategy), machine(2, 12, memory=(40 * GB, 40 * GB)))
    for kind, *rest in steps:
        if kind == "admit":
            number, role, containers, guaranteed = rest
            if f"uid-p{number}" not in node.records:
                node.admit(_pod(f"p{number}", role, containers, guaranteed))
        elif kind == "remove":
            node.remove(f"uid-p{rest[0]}")
        else:
            fresh = _after_a_loss(node, scope, of_records=kind == "lose all")
            assert fresh.cpu.exclusive == node.cpu.exclusive
            assert _given(fresh) == _given(node)
            assert _memory(fresh) == _memory(node)
            assert {u: r.containers for u, r in fresh.records.items()} == {
                u: r.containers for u, r in node.records.items()
            }
            node = fresh
        node.check()
