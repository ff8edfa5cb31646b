"""More hardware never scores less: nodes, capacity and labels that are added to a cluster never lower what it can be granted of
optional needs, and what the score says of one object is what the assignment grants."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fit import Assigned, assign, combinations
from moorage.fleet import Fleet
from moorage.model.candidates import Ask
from moorage.model.reports import NodeReport
from moorage.model.shapes import OptionalNeed, Shape, ShapedApp
from moorage.sdk import unpack
from moorage_testkit.brute_force import GPU, exists, nodes, optional, rows_in, shape, zones
from moorage_testkit.fleets import fleet_of, node

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

counted = st.builds(
    shape,
    resources=st.builds(lambda cpu, gpu: {"cpu": 1000 * cpu, GPU: gpu}, st.integers(0, 2), st.sampled_from([0, 0, 1])),
    count=st.integers(1, 3),
    optional=st.lists(optional, max_size=4),
)
many_wishes = st.builds(shape, count=st.integers(1, 2), optional=st.lists(optional, min_size=6, max_size=9))


@st.composite
def grown(draw: st.DrawFn) -> tuple[list[NodeReport], list[NodeReport]]:
    """A cluster, and the same one with more hardware."""
    before = draw(st.lists(nodes, min_size=1, max_size=3))
    after = msgspec.json.decode(msgspec.json.encode(before), type=list[NodeReport])
    for _ in range(draw(st.integers(1, 3))):
        old = draw(st.sampled_from(after))
        match draw(st.sampled_from(["node", "capacity", "label"])):
            case "node":
                after.append(draw(nodes))
            case "capacity":
                resource = draw(st.sampled_from(["cpu", "memory", "pods", GPU]))
                old.allocatable[resource] = str(int(old.allocatable.get(resource, "0")) + draw(st.integers(1, 3)))
            case _:
                old.labels = {**draw(zones), **old.labels}
    return before, after


def fleet_with(many: list[NodeReport]) -> Fleet:
    for number, report in enumerate(many):
        report.name = report.labels["kubernetes.io/hostname"] = f"n-{number}"
    return fleet_of({"lab/a": many})


def score(fleet: Fleet, shapes: list[Shape]) -> float:
    """Returns the score that hpa answers; -1 where the app does not fit."""
    app = ShapedApp(name="a", shapes=shapes)
    found = HardwareAnswers(fleet).answer(Ask(group="g", revision=1, budget_ms=1, epoch="0", tenant="p", apps=[app]))
    answer = found.apps["a"]
    allowed = unpack(answer.groups[0].clusters, fleet.ids, fleet.size)[0]
    if bool(allowed) != (answer.groups[0].mode == "allow"):
        return -1.0
    return max((lvl.value for lvl in answer.levels if unpack(lvl.clusters, fleet.ids, fleet.size)[0]), default=0.0)


@SLOW
@given(grown(), st.lists(counted, min_size=1, max_size=3) | st.lists(many_wishes, min_size=1, max_size=2))
def test_more_hardware_never_scores_less(clusters: tuple[list[NodeReport], list[NodeReport]], app: list[Shape]) -> None:
    before, after = (score(fleet_with(many), app) for many in clusters)
    assert after >= before


@SLOW
@given(st.lists(nodes, min_size=1, max_size=3), counted)
def test_what_the_score_says_is_granted(many: list[NodeReport], wanted: Shape) -> None:
    fleet = fleet_with(many)
    found = assign(fleet, fleet.rows_of(0), [wanted])
    expected = score(fleet, [wanted])
    if not isinstance(found, Assigned):
        assert expected == -1.0
        return
    total = sum(o.weight for o in wanted.optional)
    granted = sum(wanted.optional[i].weight for i in found.met[0])
    best = max(
        sum(wanted.optional[i].weight for _, i in needs)
        for needs in combinations([wanted])
        if exists(fleet, rows_in(fleet, 0), [wanted], [[i for _, i in needs]])
    )
    assert granted == best
    assert expected == (granted / total if total else 0.0)


@SLOW
@given(st.lists(nodes, min_size=1, max_size=3), many_wishes)
def test_needs_beyond_the_combined_ones_are_granted_in_addition(many: list[NodeReport], wanted: Shape) -> None:
    fleet = fleet_with(many)
    found = assign(fleet, fleet.rows_of(0), [wanted])
    if isinstance(found, Assigned):
        total = sum(o.weight for o in wanted.optional)
        granted = sum(wanted.optional[i].weight for i in found.met[0])
        assert exists(fleet, rows_in(fleet, 0), [wanted], found.met)
        assert granted / total >= score(fleet, [wanted])


def test_a_node_with_a_gpu_does_not_cost_the_lighter_needs() -> None:
    """The heaviest need first would take the only node with a GPU, and two lighter needs are met only elsewhere."""
    wishes = [
        OptionalNeed(consumer="c", name=GPU, weight=5, resources={GPU: 1}),
        OptionalNeed(consumer="c", name="cpu", weight=4, resources={"cpu": 8000}),
        OptionalNeed(consumer="c", name="zone", weight=3, label=("zone", "a")),
    ]
    wanted = shape(resources={"cpu": 1000}, optional=wishes)
    large = node(name="n-0", cpu="16", labels={"zone": "a"})
    small = node(name="n-1", cpu="4", resources={GPU: "1"})
    without, both = fleet_of({"lab/a": [large]}), fleet_of({"lab/a": [large, small]})
    assert score(without, [wanted]) == score(both, [wanted]) == 7 / 12
    found = assign(both, both.rows_of(0), [wanted])
    assert isinstance(found, Assigned)
    assert found.met == [[1, 2]]
