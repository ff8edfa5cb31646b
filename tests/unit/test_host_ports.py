"""Host ports against the rule as Kubernetes writes it: two pods on a node conflict over a port and protocol if their IPs are
equal or one of them is every IP."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fit import Assigned, FitCache, Unassigned, assign, conflicts, explain
from moorage.fleet import Fleet, FleetWriter, normalize_node
from moorage.ledger import Ledger
from moorage.ledger.capacity import Capacity
from moorage.model.claims import Claim, Commit, Decision, IntentRef, Slot
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.podspec import HostPort, host_port, parse_host_port, port_amounts, ports_in
from moorage.sim.core.cluster_spec import NodeKind
from moorage.sim.core.pod_needs import read_template
from moorage.sim.core.scheduler import SchedulerNode, choose
from moorage_testkit.brute_force import shape
from moorage_testkit.fleets import fleet_of, node

ports = st.frozensets(
    st.builds(
        host_port, st.sampled_from([80, 53]), st.sampled_from(["TCP", "UDP"]), st.sampled_from(["", "1.1.1.1", "::1"])
    ),
    max_size=2,
)
Pods = Sequence[frozenset[HostPort]]


def clash(a: HostPort, b: HostPort) -> bool:
    return a[:2] == b[:2] and (not a.ip or not b.ip or a.ip == b.ip)


def fits(pods: Pods, nodes: Pods) -> bool:
    """Tries every node for every pod."""
    for places in itertools.product(range(len(nodes)), repeat=len(pods)):
        used = [list(node) for node in nodes]
        for pod, place in zip(pods, places, strict=True):
            if any(clash(want, have) for want in pod for have in used[place]):
                break
            used[place] += pod
        else:
            return True
    return not pods


def fleet_with(nodes: Pods) -> Fleet:
    return fleet_of({"lab/a": [node(cpu="8", host_ports=[str(port) for port in used]) for used in nodes]})


def using(pod: frozenset[HostPort], **fields: Any) -> Shape:
    return shape(resources=port_amounts(pod), **fields)


@given(st.lists(ports, min_size=1, max_size=3), st.lists(st.tuples(ports, st.integers(1, 3)), min_size=1, max_size=2))
@settings(deadline=None)
def test_fits_and_assignments_equal_enumeration(nodes: Pods, wanted: list[tuple[frozenset[HostPort], int]]) -> None:
    fleet = fleet_with(nodes)
    shapes = [using(pod, count=count) for pod, count in wanted]
    for (pod, count), one in zip(wanted, shapes, strict=True):
        assert FitCache(fleet).get(one).fits[0] == fits([pod] * count, nodes)
    result = assign(fleet, fleet.rows_of(0), shapes)
    possible = fits([pod for pod, count in wanted for _ in range(count)], nodes)
    assert isinstance(result, Assigned) == possible
    if isinstance(result, Assigned):
        by_node = [list(used) for used in nodes]
        for (pod, _), slots in zip(wanted, result.slots, strict=True):
            for slot in slots:
                assert sorted(ports_in(slot.resources)) == sorted(map(str, pod))
                for _ in range(slot.count):
                    used = by_node[int(slot.node.removeprefix("n-"))]
                    assert not any(clash(want, have) for want in pod for have in used)
                    used += pod
    elif all(FitCache(fleet).get(one).fits[0] for one in shapes) and len(shapes) == 2:
        assert conflicts(fleet, shapes[:1], shapes[1:], np.ones(1, np.bool_)).tolist() == [True]


@given(st.lists(ports, min_size=1, max_size=3), ports, st.booleans())
def test_the_simulated_scheduler_obeys_the_same_rule(nodes: Pods, pod: frozenset[HostPort], sidecar: bool) -> None:
    def template(wanted: frozenset[HostPort]) -> dict[str, Any]:
        listed = [{"hostPort": p.port, "protocol": p.protocol, "hostIP": p.ip or "0.0.0.0"} for p in wanted]
        other = {"name": "s", "restartPolicy": "Always", "ports": listed if sidecar else []}
        starting = {"name": "i", "ports": [{"hostPort": 80}]}
        main = {"name": "c", "ports": [] if sidecar else listed}
        return {"spec": {"containers": [main], "initContainers": [other, starting]}}

    fleet = []
    for number, used in enumerate(nodes):
        made = SchedulerNode(f"n-{number}", NodeKind(allocatable={"cpu": "8"}), {}, 0)
        made.take(read_template(template(used)))
        fleet.append(made)
    chosen = choose(read_template(template(pod)), fleet)
    assert (chosen is not None) == fits([pod], nodes)
    if chosen is not None:
        chosen.take(read_template(template(pod)), -1)
        chosen.take(read_template(template(pod)))


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("80/TCP", HostPort(80)),
        ("0.0.0.0:80/UDP", HostPort(80, "UDP")),
        ("fe80::1:53/UDP", HostPort(53, "UDP", "fe80::1")),
    ],
)
def test_host_ports_are_read(text: str, port: HostPort) -> None:
    assert parse_host_port(text) == port
    assert parse_host_port(str(port)) == port


@pytest.mark.parametrize("text", ["", "80", "x/TCP", "0/TCP", "65536/TCP", "-1/TCP", "80/", "²/TCP", "1" * 99 + "/TCP"])
def test_a_node_with_an_unreadable_port_is_not_usable(text: str) -> None:
    row, problem = normalize_node(NodeReport(name="n", allocatable={"cpu": "8"}, host_ports=["80/TCP", text]))
    assert problem.startswith("node n: hostPorts: ")
    fleet = FleetWriter()
    fleet.put(0, "lab/a", [row], whole=True)
    assert not fleet.fleet.usable[0]


def test_claims_hold_their_ports_until_their_pods_are_reported() -> None:
    writer = FleetWriter(fleet_of({"lab/a": [node(cpu="8"), node(cpu="8")]}))
    fleet, ledger = writer.fleet, Ledger()
    capacity = Capacity(fleet, ledger)
    one = using(frozenset((HostPort(80),)))
    slot = Slot(node="n-0", resources=one.resources)
    ref = IntentRef(kind="Application", name="g", revision=1)
    claim = Claim(id="c", decision="d", intent=ref, tenant="t", slots=[slot], cluster="lab/a")
    decision = Decision(id="d", group="g", revision=1, claims=[claim])

    def nodes_left() -> list[str]:
        found = assign(fleet, fleet.rows_of(0), [msg_count(one, 1)])
        many = assign(fleet, fleet.rows_of(0), [msg_count(one, 2)])
        if isinstance(many, Assigned):
            return ["n-0", "n-1"]
        return [slot.node for slot in found.slots[0]] if isinstance(found, Assigned) else []

    assert nodes_left() == ["n-0", "n-1"]
    capacity.hold(decision)
    assert nodes_left() == ["n-1"]
    capacity.folded(ledger.fold(1, Commit(id="x", entries=[decision])), [decision])
    assert nodes_left() == ["n-1"]
    running, _ = normalize_node(
        NodeReport(name="n-0", allocatable={"cpu": "8", "pods": "110"}, pod_count=1, host_ports=["80/TCP"])
    )
    writer.put(0, "lab/a", [running], claims={"c": {"n-0": 1}})
    assert nodes_left() == ["n-1"]
    assert fleet.free(next(r for r in one.resources if r != "pods"))[fleet.row_of(0, "n-0")] == 0  # type: ignore[index]


def msg_count(one: Shape, count: int) -> Shape:
    return shape(resources=one.resources, count=count)


def test_a_taken_port_is_the_reason() -> None:
    fleet = fleet_with([frozenset((HostPort(80),)), frozenset((HostPort(80, ip="1.1.1.1"),))])
    one = using(frozenset((HostPort(80),)), count=2)
    failure = assign(fleet, fleet.rows_of(0), [one])
    assert isinstance(failure, Unassigned)
    assert (failure.code, failure.resource, failure.needed, failure.best) == ("HostPortTaken", "host port 80/TCP", 2, 0)
    (rejection,) = explain(fleet, one, np.ones(1, np.bool_))
    assert (rejection.code, rejection.needed, rejection.best) == ("HostPortTaken", 2, 0)
    assert isinstance(assign(fleet, fleet.rows_of(0), [using(frozenset((HostPort(80, ip="2.2.2.2"),)))]), Assigned)
