"""The controller resource-class: alternatives before scores, the order by algorithms, reasons per need; and classes by cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from moorage.candidates import Choice, choose, merge
from moorage.candidates.decode import decode_answer
from moorage.candidates.merge import WeightedAnswer
from moorage.candidates.objective import FreeCapacity
from moorage.classes import ClassCatalog
from moorage.controllers.resource_class.core.answers import ClassAnswers, alternatives
from moorage.fit import Assigned, FitCache, PackingSolutions, assign
from moorage.fit.device_counts import DeviceCounts, count_devices
from moorage.fit.device_rows import DeviceRows, best_clusters_first
from moorage.fleet import Fleet, normalize_node
from moorage.merger.core.class_binding import bound
from moorage.model.candidates import Answer, Ask
from moorage.model.groups import Revision
from moorage.model.part_reports import CounterSetReport, DeviceClassReport, DeviceReport, DeviceTaint
from moorage.model.part_requests import DeviceAsk, DeviceToleration, PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import RESOURCE_CLASS, FleetObject, StoredMetadata
from moorage.model.shapes import NeedRef, Shape, ShapedApp
from moorage_testkit.fleets import fleet_of, node, writer_of


def _model(name: str) -> Any:
    return ((PropertyCondition(key="model", operator="In", values=(name,)),),)


def _gpus(node_name: str, *models: str, **fields: Any) -> list[DeviceReport]:
    return [
        DeviceReport(
            id=f"gpu.d/{node_name}/g{i}",
            driver="gpu.d",
            pool=node_name,
            name=f"g{i}",
            attributes={"model": model},
            **fields,
        )
        for i, model in enumerate(models)
    ]


def _node(*models: str, name: str = "n0", in_use: int = 0, **fields: Any) -> NodeReport:
    used = {f"gpu.d/{name}/g{i}": {"GPU_D": "1"} for i in range(in_use)}
    found = node(name, cpu="8", memory="32Gi", in_use=used)
    return msgspec.structs.replace(found, devices=_gpus(name, *models, **fields))


def _need(*models: str, count: int = 1, name: str = "gpu", **fields: Any) -> PartGroup:
    asks = tuple(DeviceAsk(resource_class=f"class-{m}", properties=_model(m), count=count, **fields) for m in models)
    return PartGroup(suffix=name, devices=asks)


def _shape(*groups: PartGroup, count: int = 1) -> Shape:
    return Shape(
        key=repr((groups, count)),
        object="Deployment/train",
        count=count,
        resources={"cpu": 1000, "pods": 1},
        groups=list(groups),
        needs=[NeedRef(consumer="main", name="gpu", group="gpu")],
    )


def _ask(*shapes: Shape, **fields: Any) -> Ask:
    apps = [ShapedApp(name="web", shapes=list(shapes))]
    return Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=apps, **fields)


def _chosen(fleet: Fleet, answer: Answer, scores: dict[str, float] | None = None) -> str:
    """Returns the cluster that is chosen by the answer beside another controller's scores."""
    ours = WeightedAnswer("resource-class", 1, decode_answer(answer, ["web"], fleet.ids, fleet.size))
    other = Answer(apps={})
    if scores:
        from moorage.sdk import allow
        from moorage.sdk import answer as made

        levels = [(value, [cluster]) for cluster, value in scores.items()]
        other = made({"web": allow(fleet.known, levels=levels)}, _ask(), fleet, "other")
    theirs = WeightedAnswer("other", 1, decode_answer(other, ["web"], fleet.ids, fleet.size))
    merged = merge([1], fleet.usable_clusters, [ours, theirs], fleet.known)
    nothing = np.zeros((0, fleet.size))
    capacity = FreeCapacity(nothing, nothing, np.zeros((1, 0)))
    got = choose(merged, capacity, np.arange(fleet.size), current=[None], own=[{}], failed=[])
    assert isinstance(got, Choice)
    return fleet.names[got.clusters[0][0]]


def test_the_first_alternative_that_some_cluster_can_give_wins_before_scores() -> None:
    fleet = fleet_of({"lab/b": [_node("B")], "lab/none": [_node()], "lab/a": [_node("A")]})
    answer = ClassAnswers(fleet).answer(_ask(_shape(_need("A", "B"))))
    assert _chosen(fleet, answer, {"lab/b": 1.0}) == "lab/a"
    assert _chosen(fleet, ClassAnswers(fleet).answer(_ask(_shape(_need("C", "B"))))) == "lab/b"


def test_alternatives_are_combined_and_those_of_claims_are_left_to_nodes() -> None:
    shape = _shape(_need("A", "B"), _need("C", "D", name="nic"), _need("E", "F", name="claim/request"))
    found = [
        ["".join(ask.resource_class[-1] for ask in group.devices) for group in one[0].groups]
        for one in alternatives([shape])
    ]
    assert found == [["A", "C", "EF"], ["A", "D", "EF"], ["B", "C", "EF"], ["B", "D", "EF"]]


def test_the_algorithm_decides_between_clusters_of_one_score() -> None:
    fleet = fleet_of(
        {"lab/a": [_node("A", "A", "A", "A")], "lab/b": [_node("A", "A", "A", "A", in_use=3)], "lab/c": [_node("B")]}
    )
    for name, best in (("best-fit", "lab/b"), ("spread", "lab/a"), ("default", "lab/b"), ("first-fit", "lab/a")):
        answer = ClassAnswers(fleet, name).answer(_ask(_shape(_need("A"))))
        assert _chosen(fleet, answer) == best, name
    named = ClassAnswers(fleet).answer(_ask(_shape(_need("A", algorithm="spread"))))
    assert _chosen(fleet, named) == "lab/a"
    # A score of another controller decides before.
    assert _chosen(fleet, named, {"lab/b": 0.5}) == "lab/b"


def _rows(fleet: Fleet, cluster: str) -> list[int]:
    found: list[int] = fleet.rows_of(fleet.ids[cluster]).tolist()
    return found


def test_scores_follow_the_fleet() -> None:
    writer = writer_of({"lab/a": [_node("A", "A")], "lab/b": [_node("A", "A", in_use=1)], "lab/c": [_node("B")]})
    fleet, shape = writer.fleet, _shape(_need("A"))
    rows = DeviceRows(fleet)
    before = rows.by_node(shape, "best-fit")
    assert before is not None and before.argmax() in _rows(fleet, "lab/b")
    assert (before[_rows(fleet, "lab/c")] == -np.inf).all()
    row, problem = normalize_node(_node("A", "A", in_use=2))
    assert not problem
    writer.put(fleet.ids["lab/b"], "lab/b", [row])
    after = rows.by_node(shape, "best-fit")
    fresh = DeviceRows(fleet).by_node(shape, "best-fit")
    assert after is not None and fresh is not None and (after == fresh).all()
    assert after.argmax() in _rows(fleet, "lab/a") and (after[_rows(fleet, "lab/b")] == -np.inf).all()
    assert rows.by_node(_shape(), "best-fit") is None


def test_best_clusters_come_first_alone() -> None:
    scores = np.array([1.0, 5.0, -np.inf, 3.0, 4.0, 5.0])
    found = best_clusters_first(scores, np.array([0, 1, 2, 3, 4, 5]), 6, 3)
    assert [np.flatnonzero(mask).tolist() for mask in found] == [[1, 5], [4], [0, 3]]


def test_reasons_count_devices_step_by_step() -> None:
    taint = DeviceTaint(key="broken", effect="NoSchedule")
    fleet = fleet_of(
        {
            "lab/other": [_node("B", "B")],
            "lab/tainted": [_node("A", "A", taints=[taint])],
            "lab/taken": [_node("A", "A", in_use=1)],
            "lab/spread": [_node("A", name="n0"), _node("A", name="n1")],
            "lab/fits": [_node("A", "A")],
        }
    )
    found = ClassAnswers(fleet).answer(_ask(_shape(_need("A", count=2)), explain=True)).apps["web"]
    assert [(r.code, r.samples, r.needed, r.free, r.need) for r in found.reasons] == [
        ("PartMissing", ["lab/other"], "2", "0", "gpu"),
        ("DeviceTainted", ["lab/tainted"], "2", "0", "gpu"),
        ("PartShort", ["lab/taken"], "2", "1", "gpu"),
        ("PartShort", ["lab/spread"], "2", "1", "gpu"),
    ]
    assert "2 there, 2 selected, 2 healthy, 0 tolerated, 0 free" in found.reasons[1].message
    unknown = _shape(PartGroup(suffix="gpu", devices=(DeviceAsk(resource_class="gone"),)))
    answer = ClassAnswers(fleet).answer(_ask(unknown, explain=True)).apps["web"]
    assert [(r.code, r.clusters) for r in answer.reasons] == [("ClassNotFound", 5)]


def test_an_unhealthy_device_is_not_chosen_whatever_taints_are_tolerated() -> None:
    taint = DeviceTaint(key="broken", effect="NoSchedule")
    every = (DeviceToleration(operator="Exists"),)
    fleet = fleet_of(
        {"lab/unhealthy": [_node("A", taints=[taint], healthy=False)], "lab/tainted": [_node("A", taints=[taint])]}
    )
    shape = _shape(_need("A", tolerations=every))
    found = ClassAnswers(fleet).answer(_ask(shape, explain=True)).apps["web"]
    assert [(r.code, r.samples) for r in found.reasons] == [("PartMissing", ["lab/unhealthy"])]
    assert "1 selected, 0 healthy" in found.reasons[0].message
    assert isinstance(assign(fleet, fleet.rows_of(fleet.ids["lab/tainted"]), [shape]), Assigned)
    assert not isinstance(assign(fleet, fleet.rows_of(fleet.ids["lab/unhealthy"]), [shape]), Assigned)


# --- classes ----------------------------------------------------------------------------------------------------------


def _stored(catalog: ClassCatalog, name: str, model: str | None, cluster: str = "") -> None:
    selector = [{"matchExpressions": [{"key": "model", "operator": "Eq", "values": [model]}]}]
    one = FleetObject(
        kind=RESOURCE_CLASS.kind,
        metadata=StoredMetadata(name=name, cluster=cluster, uid=f"{name}{model}"),
        spec={"resourceSelector": selector if model else []},
    )
    catalog.put(one.key, msgspec.json.encode(one))


def _bound(catalog: ClassCatalog, name: str, count: int = 1) -> Shape:
    shape = _shape(PartGroup(suffix="gpu", devices=(DeviceAsk(resource_class=name, count=count),)))
    record = Revision(group="p/a/v1/g", revision=1, tenant="p", apps=[ShapedApp(name="web", shapes=[shape])])
    return bound(record, catalog).apps[0].shapes[0]


def test_a_class_is_what_the_fleet_or_the_cluster_says() -> None:
    catalog = ClassCatalog()
    _stored(catalog, "big", "A")
    _stored(catalog, "big", "B", cluster="lab/b")
    _stored(catalog, "empty", None)
    fleet = fleet_of({"lab/a": [_node("A", "B")], "lab/b": [_node("A", "B")], "lab/c": [_node("B")]})
    shape = _bound(catalog, "big")
    assert fleet.clusters.named(FitCache(fleet).get(shape).fits) == ["lab/a", "lab/b"]
    for cluster, device in (("lab/a", "g0"), ("lab/b", "g1")):
        cid = fleet.ids[cluster]
        found = assign(fleet, fleet.rows_of(cid), [shape])
        assert isinstance(found, Assigned)
        assert [grant.part.rpartition("/")[2] for grant in found.slots[0][0].devices] == [device]
    assert not FitCache(fleet).get(_bound(catalog, "big", count=2)).fits.any()
    assert not FitCache(fleet).get(_bound(catalog, "empty")).fits.any()
    assert not FitCache(fleet).get(_bound(catalog, "none")).fits.any()


def test_a_class_that_is_made_again_is_another_one() -> None:
    catalog = ClassCatalog()
    _stored(catalog, "big", "A")
    first = _bound(catalog, "big")
    _stored(catalog, "big", "B")
    assert _bound(catalog, "big").key != first.key
    assert _bound(catalog, "none").groups[0].devices[0].properties == ()


@pytest.mark.parametrize("name", ["default", "fgd", "aligned"])
def test_a_record_without_needs_for_devices_costs_nothing(name: str) -> None:
    record = Revision(group="p/a/v1/g", revision=1, tenant="p", apps=[ShapedApp(name=name, shapes=[_shape()])])
    assert bound(record, ClassCatalog()) is record


# --- nodes ------------------------------------------------------------------------------------------------------------


def _placed(fleet: Fleet, shape: Shape, solutions: PackingSolutions) -> dict[str, int]:
    found = assign(fleet, fleet.rows_of(0), [shape], solutions=solutions)
    assert isinstance(found, Assigned)
    pods: Counter[str] = Counter()
    for slot in found.slots[0]:
        pods[slot.node] += slot.count
    return dict(sorted(pods.items()))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("first-fit", {"a": 2}),
        ("best-fit", {"b": 1, "c": 1}),
        ("spread", {"a": 2}),
        ("default", {"b": 1, "c": 1}),
    ],
)
def test_the_algorithm_chooses_nodes(algorithm: str, expected: dict[str, int]) -> None:
    fleet = fleet_of(
        {"lab/x": [_node(*"AAAA", name="a"), _node(*"AA", name="b", in_use=1), _node(*"AAA", name="c", in_use=2)]}
    )
    rows = DeviceRows(fleet)
    solutions = PackingSolutions(lambda shapes, where, able: rows.choose(shapes, where, able, algorithm))
    shape = _shape(_need("A"), count=2)
    assert _placed(fleet, shape, solutions) == expected
    # Whoever decides again from the answers comes to the same, without the algorithm.
    again = PackingSolutions()
    again.solved.update(solutions.solved)
    assert _placed(fleet, shape, again) == expected


def test_spread_takes_another_node_for_each_pod() -> None:
    fleet = fleet_of({"lab/x": [_node(*"AAAA", name=name) for name in "abc"]})
    rows = DeviceRows(fleet)
    solutions = PackingSolutions(lambda shapes, where, able: rows.choose(shapes, where, able, "spread"))
    assert _placed(fleet, _shape(_need("A"), count=6), solutions) == {"a": 2, "b": 2, "c": 2}


def test_pods_are_placed_where_the_algorithm_fails() -> None:
    """Two needs of a pod want the devices of one node, which the algorithm does not see together with relations."""
    fleet = fleet_of({"lab/x": [_node(*"A", name="a"), _node(*"AB", name="b")]})
    rows = DeviceRows(fleet)
    asked: list[Any] = []

    def choose(shapes: Any, where: Any, able: Any) -> Any:
        asked.append(rows.choose(shapes, where, able, "first-fit"))
        return np.array([[2, 0]])

    shape = _shape(_need("A"), _need("B", name="nic"))
    assert _placed(fleet, shape, PackingSolutions(choose)) == {"b": 1}
    assert asked[0].tolist() == [[0, 1]]
    assert _placed(fleet, shape, PackingSolutions(lambda *_: None)) == {"b": 1}


def test_needs_of_a_pod_are_scored_together() -> None:
    fleet = fleet_of({"lab/x": [_node(*"AA", name="a"), _node(*"AABB", name="b"), _node(*"BB", name="c")]})
    rows = DeviceRows(fleet)
    shape = _shape(_need("A"), _need("B", name="nic"), count=2)
    found = rows.choose([shape], fleet.rows_of(0), np.ones((1, 3), np.bool_), "best-fit")
    assert found is not None and found.tolist() == [[0, 2, 0]]
    many = _shape(_need("A"), _need("B", name="nic"), count=3)
    assert rows.choose([many], fleet.rows_of(0), np.ones((1, 3), np.bool_), "best-fit") is None


def test_the_first_alternative_is_taken_on_whatever_node_has_it() -> None:
    fleet = fleet_of({"lab/x": [_node(*"BBBB", name="a"), _node(*"A", name="b")]})
    rows = DeviceRows(fleet)
    solutions = PackingSolutions(lambda shapes, where, able: rows.choose(shapes, where, able, "default"))
    assert _placed(fleet, _shape(_need("A", "B")), solutions) == {"b": 1}
    assert _placed(fleet, _shape(_need("C", "B")), solutions) == {"a": 1}


@pytest.mark.parametrize(("taken", "wholes", "cores"), [({}, 2, 8), ({"core-0": 1}, 1, 7), ({"zone-1": 1}, 1, 4)])
def test_nested_devices_count_as_free_if_their_counters_are(taken: dict[str, int], wholes: int, cores: int) -> None:
    """Zones with exclusive cores, which are devices themselves."""
    devices = [
        DeviceReport(name=f"zone-{z}", kind="numa-node", consumes={f"cores-{z}": {"cores": "4"}}) for z in range(2)
    ]
    devices += [
        DeviceReport(name=f"core-{i}", kind="single-core", consumes={f"cores-{i // 4}": {"cores": "1"}})
        for i in range(8)
    ]
    counters = [CounterSetReport(pool="", name=f"cores-{z}", counters={"cores": "4"}) for z in range(2)]
    kinds = {"zone-1": "NUMA_NODE", "core-0": "SINGLE_CORE"}
    used = {f"n0/{name}": {kinds[name]: str(n)} for name, n in taken.items()}
    made = msgspec.structs.replace(node("n0", in_use=used), devices=devices, counters=counters)
    fleet = fleet_of({"lab/a": [made]})

    def counts(kind: str) -> DeviceCounts:
        selector = ((PropertyCondition(key="Kind", operator="In", values=(kind,)),),)
        return count_devices(fleet, DeviceAsk(resource_class=kind, properties=selector), fleet.known)

    whole, single = counts("numa-node"), counts("single-core")
    assert [int(whole.there[0]), int(whole.free[0]), int(whole.most_free[0])] == [10, wholes, wholes]
    assert [int(single.selected[0]), int(single.free[0]), int(single.most_free[0])] == [8, cores, cores]


@pytest.mark.parametrize(("used", "free"), [("0", 1), ("60", 1), ("75", 0)])
def test_a_divided_device_is_free_for_who_asks_no_more_than_is_left(used: str, free: int) -> None:
    card = DeviceReport(name="card", kind="card", capacity={"memory": "100"}, divisible=True)
    made = msgspec.structs.replace(node("n0", in_use={"card": {"MEMORY": used}}), devices=[card])
    fleet = fleet_of({"lab/a": [made]})
    selector = ((PropertyCondition(key="Kind", operator="Eq", values=("card",)),),)
    ask = DeviceAsk(resource_class="card", properties=selector, capacity={"memory": "30"})
    assert int(count_devices(fleet, ask, fleet.known).free[0]) == free
    assert int(count_devices(fleet, msgspec.structs.replace(ask, capacity={}, share=300), fleet.known).free[0]) == free
    whole = msgspec.structs.replace(ask, capacity={})
    assert int(count_devices(fleet, whole, fleet.known).free[0]) == (used == "0")


def test_reasons_name_each_condition_and_the_nearest_device() -> None:
    catalog = ClassCatalog()
    _stored(catalog, "big", "Z")
    fleet = fleet_of({"lab/a": [_node("A", "B")], "lab/b": [_node("A")]})
    answer = ClassAnswers(fleet).answer(_ask(_bound(catalog, "big"), explain=True)).apps["web"]
    (reason,) = answer.reasons
    assert (reason.code, reason.clusters) == ("PartMissing", 2)
    assert "3 there, 0 selected" in reason.message and "; 0 meet model In Z; nearest is lab/" in reason.message
    assert reason.message.endswith("model is A")


@pytest.mark.parametrize(
    ("asked", "missed"),
    [
        ("20", "MEMORY 10 of 20"),
        ("200", "memory 100 of 200"),
        ("1k", "memory 100 of 1000"),
        ("", "it has no capacity size"),
    ],
)
def test_the_capacity_of_the_nearest_device_is_named(asked: str, missed: str) -> None:
    card = DeviceReport(name="card", kind="card", capacity={"memory": "100"}, divisible=True)
    made = [
        msgspec.structs.replace(node(name, in_use={"card": {"MEMORY": used}}), devices=[card])
        for name, used in (("n0", "95"), ("n1", "90"), ("n2", "99"))
    ]
    selector = ((PropertyCondition(key="Kind", operator="Eq", values=("card",)),),)
    capacity = {"memory": asked} if asked else {"size": "1"}
    group = PartGroup(suffix="gpu", devices=(DeviceAsk(properties=selector, capacity=capacity),))
    (reason,) = ClassAnswers(fleet_of({"lab/a": made})).answer(_ask(_shape(group), explain=True)).apps["web"].reasons
    nearest = "n1" if missed.startswith("MEMORY") else "n0"
    assert reason.code == "PartShort" and f"; nearest is {nearest}/card: {missed}" in reason.message


@pytest.mark.parametrize(
    ("free", "tainted", "code"), [(1, 0, "PartShort"), (1, 1, "DeviceTainted"), (2, 0, None), (0, 0, "PartShort")]
)
def test_a_need_for_all_devices_says_how_many_of_the_nearest_node_are_free(
    free: int, tainted: int, code: str | None
) -> None:
    made = _node("A", "A", in_use=0 if tainted else 2 - free)
    if tainted:
        made.devices[0] = msgspec.structs.replace(made.devices[0], taints=[DeviceTaint(key="k", effect="NoSchedule")])
    group = PartGroup(suffix="gpu", devices=(DeviceAsk(selectors=('device.driver == "gpu.d"',), all=True),))
    found = ClassAnswers(fleet_of({"lab/a": [made]})).answer(_ask(_shape(group), explain=True)).apps["web"].reasons
    assert [reason.code for reason in found] == ([code] if code else [])
    if code and free:
        assert found[0].message.endswith(f"nearest is n0: 2 selected, {2 - tainted} healthy and tolerated, 1 free")
        assert (found[0].needed, found[0].free) == ("2", "1")


@pytest.mark.parametrize(("invalid", "code"), [(False, "PoolIncomplete"), (True, "PoolInvalid")])
def test_pools_that_do_not_count_are_named_as_the_reason(invalid: bool, code: str) -> None:
    bad = _node()
    bad.incomplete_pools, bad.invalid_pools = True, invalid
    fleet = fleet_of({"lab/a": [bad], "lab/b": [_node("B")]})
    found = ClassAnswers(fleet).answer(_ask(_shape(_need("A")), explain=True)).apps["web"]
    assert [(reason.code, reason.samples) for reason in found.reasons] == [
        (code, ["lab/a"]),
        ("PartMissing", ["lab/b"]),
    ]
    assert "pools of 1 node" in found.reasons[0].message
    bad.device_classes = [DeviceClassReport(name="gpu", selectors=['device.driver == "gpu.d"'])]
    shape = _shape(PartGroup(suffix="gpu", devices=(DeviceAsk(device_class="gpu"),)))
    (reason,) = ClassAnswers(fleet_of({"lab/a": [bad]})).answer(_ask(shape, explain=True)).apps["web"].reasons
    assert reason.code == code, "the class is known"


def test_an_expression_with_an_error_is_named() -> None:
    fleet = fleet_of({"lab/a": [_node("A")]})
    ask = DeviceAsk(selectors=('device.attributes["gpu.d"].none == "x"',))
    shape = _shape(PartGroup(suffix="gpu", devices=(ask,)))
    (reason,) = ClassAnswers(fleet).answer(_ask(shape, explain=True)).apps["web"].reasons
    assert reason.code == "SelectorError" and "an error in device.attributes" in reason.message
