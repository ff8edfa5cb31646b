"""The controller topology: which clusters have parts for the pods of an app, which it prefers, and why others are excluded."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.candidates.decode import DecodedAnswer, decode_answer
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.controllers.topology.core import daemon_sets
from moorage.controllers.topology.core.answers import TopologyAnswers
from moorage.fit import Assigned, FitCache, Unassigned, assign
from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Ask, OwnClaim
from moorage.model.claims import Slot
from moorage.model.part_reports import DeviceReport, ProviderReport, TopologyManager
from moorage.model.part_requests import (
    AttributeRelation,
    DeviceAsk,
    Isolated,
    OneZone,
    PartGroup,
    PodContainer,
    RootConditions,
    SameSubtree,
)
from moorage.model.reports import NodeReport
from moorage.model.shapes import NeedRef, OptionalNeed, Shape, ShapedApp
from moorage_testkit.fleets import fleet_of, node, provider, two_zones

C = PartGroup(suffix="_C", resources={"cpu": 2000})
A = PartGroup(suffix="_A", resources={"FPGA": 1})
IN_ONE_SUBTREE = SameSubtree(groups=("_A", "_C"))


def _fpgas(*paths: str, traits: tuple[str, ...] = ()) -> list[ProviderReport]:
    return [provider(path, path.rpartition("/")[0], traits=traits, FPGA="1") for path in paths]


def _node(cpu: str = "4", *cards: str, **fields: Any) -> NodeReport:
    return node(cpu="8", memory="32Gi", zones=two_zones(cpu), providers=_fpgas(*cards), **fields)


def _shape(*groups: PartGroup, relations: Any = (), count: int = 1, **fields: Any) -> Shape:
    values: dict[str, Any] = {
        "key": repr((groups, relations, count, fields)),
        "object": "Deployment/video",
        "count": count,
        "resources": {"cpu": 2000, "pods": 1},
        "groups": list(groups),
        "relations": list(relations),
        "needs": [NeedRef(consumer="encoder", name="FPGA", amount=1, group="_A")],
    }
    return Shape(**values | fields)


def _ask(apps: dict[str, list[Shape]], **fields: Any) -> Ask:
    shaped = [ShapedApp(name=name, shapes=many) for name, many in apps.items()]
    return Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=shaped, **fields)


def _read(answer: Answer, fleet: Fleet) -> DecodedAnswer:
    return decode_answer(answer, list(answer.apps), fleet.ids, fleet.size)


def _allowed(answer: Answer, fleet: Fleet, app: str = "web") -> list[str]:
    found = _read(answer, fleet).apps[list(answer.apps).index(app)].allowed
    return fleet.clusters.named(fleet.known if found is None else fleet.known & found)


def _reasons(fleet: Fleet, *shapes: Shape) -> list[tuple[str, dict[str, str]]]:
    """Returns each reason with its numbers, and checks that each cluster is excluded for one reason at most."""
    answer = TopologyAnswers(fleet).answer(_ask({"web": list(shapes)}, explain=True))
    found = []
    for reason in answer.apps["web"].reasons:
        assert (reason.app, reason.by, reason.clusters, len(reason.samples)) == ("web", "topology", 1, 1)
        assert reason.message
        fields = ("group", "relation", "need", "needed", "free", "consumer")
        values = {name: value for name in fields if (value := getattr(reason, name))}
        found.append((reason.samples[0], {"code": reason.code, **values}))
    return found


def _message(fleet: Fleet, shape: Shape) -> str:
    (reason,) = TopologyAnswers(fleet).answer(_ask({"web": [shape]}, explain=True)).apps["web"].reasons
    return reason.message


def test_clusters_without_parts_for_the_pods_are_excluded() -> None:
    fleet = fleet_of(
        {
            "lab/fits": [_node("4", "numa-0/fpga")],
            "lab/apart": [node(cpu="8", memory="32Gi", zones=two_zones("4"), providers=_fpgas("fpga"))],
            "lab/none": [_node("4")],
            "lab/full": [_node("4", "numa-0/fpga", in_use={"numa-0/fpga": {"FPGA": "1"}})],
            "lab/small": [node(cpu="1", memory="32Gi")],
        }
    )
    shape = _shape(A, C, relations=[IN_ONE_SUBTREE])
    answer = TopologyAnswers(fleet).answer(_ask({"web": [shape]}))
    # What nodes lack as a whole is for the controller hpa to say.
    assert _allowed(answer, fleet) == ["lab/fits", "lab/small"]
    assert _allowed(HardwareAnswers(fleet).answer(_ask({"web": [shape]})), fleet) == [
        "lab/fits",
        "lab/apart",
        "lab/none",
        "lab/full",
    ]


def test_apps_that_ask_nothing_of_parts_may_run_anywhere() -> None:
    fleet = fleet_of({"lab/a": [_node()], "lab/b": [node(cpu="1")]})
    answer = TopologyAnswers(fleet).answer(_ask({"web": [_shape()], "none": []}))
    assert _allowed(answer, fleet) == _allowed(answer, fleet, "none") == ["lab/a", "lab/b"]
    assert not answer.apps["web"].levels and not answer.apps["web"].reasons


def test_reasons_count_parts_and_name_the_nearest_miss() -> None:
    """Class, conditions, amount and relations are tried in this order."""
    traited = A.__class__(suffix="_A", resources={"FPGA": 1}, required=(("FAST",),))
    fleet = fleet_of(
        {
            "lab/none": [_node("4")],
            "lab/slow": [_node("4", "numa-0/fpga")],
            "lab/full": [
                node(
                    cpu="8",
                    zones=two_zones("4"),
                    providers=_fpgas("numa-0/fpga", traits=("FAST",)),
                    in_use={"numa-0/fpga": {"FPGA": "1"}},
                )
            ],
            "lab/apart": [node(cpu="8", zones=two_zones("4"), providers=_fpgas("fpga", traits=("FAST",)))],
        }
    )
    assert dict(_reasons(fleet, _shape(traited, C, relations=[IN_ONE_SUBTREE]))) == {
        "lab/none": {"code": "PartMissing", "group": "_A", "need": "FPGA", "consumer": "encoder"},
        "lab/slow": {"code": "PartMissing", "group": "_A", "need": "FPGA", "consumer": "encoder"},
        "lab/full": {
            "code": "PartShort", "group": "_A", "need": "FPGA", "needed": "1", "free": "0", "consumer": "encoder"
        },
        "lab/apart": {"code": "RelationFails", "relation": "sameSubtree _A,_C", "consumer": "encoder"},
    }  # fmt: skip
    answer = TopologyAnswers(fleet).answer(_ask({"web": [_shape(traited)]}, explain=True))
    assert [reason.message for reason in answer.apps["web"].reasons] == [
        "no node has parts with FPGA, which group _A of Deployment/video needs",
        "of 1 parts with FPGA, none meets the conditions of group _A of Deployment/video: traits FAST",
        "of 1 parts that could be group _A of Deployment/video, none has 1 FPGA free; nearest is lab/full n-0/numa-0/fpga"
        + " with 0 of 1 FPGA",
    ]


def test_a_tree_that_is_nowhere_is_named() -> None:
    full = _node("4", "numa-0/fpga", in_use={"numa-0/fpga": {"FPGA": "1"}}, name="n-1")
    fleet = fleet_of({"lab/none": [_node("4", "numa-0/fpga")], "lab/full": [_node("4", "numa-0/fpga"), full]})
    shape = _shape(PartGroup(suffix="_A", resources={"FPGA": 1}, in_tree="n-1/numa-0"), C)
    assert dict(_reasons(fleet, shape)) == {
        "lab/none": {"code": "PartMissing", "group": "_A", "consumer": "encoder"},
        "lab/full": {
            "code": "PartShort", "group": "_A", "need": "FPGA", "needed": "1", "free": "0", "consumer": "encoder"
        },
    }  # fmt: skip
    answer = TopologyAnswers(fleet).answer(_ask({"web": [shape]}, explain=True))
    assert answer.apps["web"].reasons[0].message.startswith("no node is n-1, in whose tree inTree wants parts of")


@pytest.mark.parametrize(
    ("relation", "name"),
    [
        (Isolated(groups=("_A", "_B")), "isolate _A,_B"),
        (SameSubtree(groups=("_C",), apart=("_A",)), "sameSubtree _C,!_A"),
        (RootConditions(required=(("FAST",),)), "root"),
    ],
)
def test_the_relation_that_excludes_a_cluster_is_named(relation: Any, name: str) -> None:
    card = [provider("numa-0/card", "numa-0", FPGA="2")]
    fleet = fleet_of({"lab/a": [node(cpu="4", zones=two_zones("4")[:1], providers=card)]})
    b = PartGroup(suffix="_B", resources={"FPGA": 1})
    in_zone = SameSubtree(groups=("_A", "_C"))
    ((_, found),) = _reasons(fleet, _shape(A, b, C, relations=[relation, in_zone]))
    assert (found["code"], found["relation"]) == ("RelationFails", name)
    assert "; nearest is lab/a n-0: n-0/" in _message(fleet, _shape(A, b, C, relations=[relation, in_zone]))


def test_of_devices_that_do_not_agree_the_nearest_are_named() -> None:
    made = node(cpu="4")
    made.devices = [
        DeviceReport(id=f"d.x/p/{name}", driver="d.x", pool="p", name=name, attributes={"d.x/root": root})
        for name, root in (("g0", "a"), ("g1", "b"))
    ]
    fleet = fleet_of({"lab/a": [made]})
    ask = DeviceAsk(selectors=('device.driver == "d.x"',), count=2)
    relation = AttributeRelation(groups=("gpu/one",), attribute="d.x/root")
    shape = _shape(PartGroup(suffix="gpu/one", devices=(ask,)), relations=[relation])
    ((_, found),) = _reasons(fleet, shape)
    assert (found["code"], found["relation"]) == ("RelationFails", "match d.x/root")
    assert _message(fleet, shape).endswith("; nearest is lab/a n-0: d.x/p/g0 (a), d.x/p/g1 (b)")


def test_what_excludes_many_clusters_is_tested_on_some() -> None:
    fleet = fleet_of({f"lab/{n}": [node(cpu="8", zones=two_zones("4"), providers=_fpgas("fpga"))] for n in range(200)})
    shape = _shape(A, C, relations=[IN_ONE_SUBTREE])
    answer = TopologyAnswers(fleet).answer(_ask({"web": [shape]}))
    assert [(r.code, r.relation, r.clusters) for r in answer.apps["web"].reasons] == [
        ("RelationFails", "sameSubtree _A,_C", 200)
    ]


def test_a_zone_that_is_required_must_have_all_at_once() -> None:
    fleet = fleet_of(
        {
            "lab/half": [_node("3", in_use={"numa-0": {"cpu": "2"}})],
            "lab/fits": [_node("4")],
            "lab/unzoned": [node(cpu="8", memory="32Gi", providers=_fpgas("fpga"))],
        }
    )
    shape = _shape(relations=[OneZone()], resources={"cpu": 3500, "pods": 1}, needs=[])
    answer = TopologyAnswers(fleet).answer(_ask({"web": [shape]}))
    assert _allowed(answer, fleet) == ["lab/fits"]
    found = dict(_reasons(fleet, shape))
    assert found["lab/half"] == {
        "code": "ZoneShort", "relation": "zone", "need": "cpu", "needed": "3500m", "free": "3", "consumer": "video"
    }  # fmt: skip
    assert found["lab/unzoned"] == {"code": "PartMissing", "relation": "zone", "consumer": "video"}


def _guaranteed(cpu: int) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": 1 << 30}
    return {
        "resources": {**amounts, "pods": 1},
        "containers": [PodContainer(name="main", requests=amounts)],
        "guaranteed": True,
        "needs": [],
    }


def test_pods_that_a_kubelet_would_reject_are_refused() -> None:
    single = TopologyManager(policy="single-numa-node", scope="container")
    effort = TopologyManager(policy="best-effort", scope="container")
    fleet = fleet_of(
        {
            "lab/rejects": [_node("3", topology=single)],
            "lab/fits": [_node("4", topology=single)],
            "lab/spreads": [_node("3", topology=effort)],
            "lab/zones": [_node("3")],
        }
    )
    shape = _shape(**_guaranteed(4000))
    answer = TopologyAnswers(fleet).answer(_ask({"web": [shape]}))
    assert _allowed(answer, fleet) == ["lab/fits", "lab/spreads", "lab/zones"]
    assert _reasons(fleet, shape) == [
        ("lab/rejects", {"code": "ZoneShort", "relation": "zone", "need": "cpu", "needed": "4", "free": "3", "consumer": "video"})
    ]  # fmt: skip
    # Where a kubelet aligns but admits all, one zone is better than several; of others nothing is known.
    scores = _read(answer, fleet).apps[0].scores
    assert scores is not None
    assert dict(zip(fleet.names, scores.tolist(), strict=True)) == {
        "lab/rejects": 0, "lab/fits": 1, "lab/spreads": 0, "lab/zones": 1
    }  # fmt: skip


def test_a_zone_that_is_preferred_only_scores() -> None:
    fleet = fleet_of({"lab/one": [_node("4")], "lab/two": [_node("3")], "lab/unzoned": [node(cpu="8")]})
    shape = _shape(relations=[OneZone(required=False)], resources={"cpu": 4000, "pods": 1})
    other = _shape(relations=[OneZone(required=False)], resources={"cpu": 1000, "pods": 1})
    for shapes, expected in (([shape], [1, 0, 0]), ([shape, other], [1, 0.5, 0])):
        answer = TopologyAnswers(fleet).answer(_ask({"web": shapes}))
        assert _allowed(answer, fleet) == ["lab/one", "lab/two", "lab/unzoned"]
        scores = _read(answer, fleet).apps[0].scores
        assert scores is not None and scores.tolist() == expected


def test_a_node_gives_what_its_zones_do_not_report() -> None:
    fleet = fleet_of(
        {
            "lab/plain": [node(cpu="8")],
            "lab/card": [node(cpu="8", providers=_fpgas("fpga"))],
            "lab/small": [node(cpu="1", providers=_fpgas("fpga"))],
            "lab/zones": [node(cpu="8", zones=two_zones("4"), providers=_fpgas("fpga"))],
        }
    )
    alone, both = _shape(C), _shape(A, C, relations=[IN_ONE_SUBTREE])
    assert _allowed(TopologyAnswers(fleet).answer(_ask({"web": [alone]})), fleet) == list(fleet.names)
    cache = FitCache(fleet)
    assert fleet.clusters.named(cache.get(alone).fits) == ["lab/plain", "lab/card", "lab/zones"]
    assert fleet.clusters.named(cache.get(both).fits) == ["lab/card"]
    found = assign(fleet, fleet.rows_of(fleet.ids["lab/card"]), [both])
    assert isinstance(found, Assigned)
    # The cores are among the resources of the slot.
    assert [slot.parts for slot in found.slots[0]] == [{"n-0/fpga": {"FPGA": 1}}]
    assert dict(_reasons(fleet, both)) == {
        "lab/plain": {"code": "PartMissing", "group": "_A", "need": "FPGA", "consumer": "encoder"},
        "lab/zones": {"code": "RelationFails", "relation": "sameSubtree _A,_C", "consumer": "encoder"},
    }


def test_more_pods_than_parts_serve() -> None:
    fleet = fleet_of({"lab/a": [_node("4", "numa-0/fpga", "numa-1/fpga")]})
    shape = _shape(A, C, relations=[IN_ONE_SUBTREE], count=3)
    assert _reasons(fleet, shape) == [
        ("lab/a", {"code": "PartShort", "need": "pods", "needed": "3", "free": "2", "consumer": "video"})
    ]


def test_nodes_that_lack_a_device_for_a_pod_on_each_node_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(f"n-{number}", cpu="8") for number in range(3)]
    nodes[0].devices = [DeviceReport(id="d.x/n-0/x", driver="d.x", pool="n-0", name="x")]
    fleet = fleet_of({"lab/a": nodes})
    group = PartGroup(suffix="gpu", devices=(DeviceAsk(selectors=('device.driver == "d.x"',), count=1),))
    shape = _shape(group, per_node=True, object="DaemonSet/web")
    assert [code for _, code in _reasons(fleet, shape)] == [{"code": "PartShort", "need": "pods", "consumer": "web"}]
    assert _message(fleet, shape).endswith("are not on all: 2 of 3 nodes of lab/a, such as n-1, n-2")
    monkeypatch.setattr(daemon_sets, "_LOOKED_AT", 1)
    assert _message(fleet, shape).endswith("are not on all: 2 of 3 nodes of lab/a"), "the first one lacks nothing"
    assert _reasons(fleet_of({"lab/a": nodes[:1]}), shape) == []


def test_a_device_that_several_nodes_reach_serves_one_pod() -> None:
    """Three nodes reach one device: each alone could serve a pod."""
    nodes = [node(f"n-{number}", cpu="8") for number in range(3)]
    for made in nodes:
        made.devices = [DeviceReport(id="d.x/rack/x", driver="d.x", pool="rack", name="x", shared=True)]
    fleet = fleet_of({"lab/a": nodes})
    ask = DeviceAsk(selectors=('device.driver == "d.x"',), count=1)
    for count in (2, 3, 4):
        shape = _shape(PartGroup(suffix="gpu", devices=(ask,)), count=count)
        found = assign(fleet, fleet.rows_of(0), [shape])
        assert isinstance(found, Unassigned)
        assert (found.code, found.needed, found.best) == ("PartShort", count, 1)
        assert found.message == f"parts of the nodes serve 1 of the {count} pods"
        assert "serve at most 1 of the" in _message(fleet, shape)


def test_objects_and_apps_that_fit_alone_but_not_together() -> None:
    fleet = fleet_of({"lab/one": [_node("4", "fpga")], "lab/two": [_node("4", "fpga", "other")]})
    a, b = _shape(A), _shape(A, object="Deployment/other")
    answer = TopologyAnswers(fleet).answer(_ask({"web": [a], "other": [b]}))
    assert _allowed(answer, fleet) == _allowed(answer, fleet, "other") == ["lab/one", "lab/two"]
    conflicts = _read(answer, fleet).conflicts
    assert {pair: fleet.clusters.named(where) for pair, where in conflicts.items()} == {(0, 1): ["lab/one"]}
    together = TopologyAnswers(fleet).answer(_ask({"web": [a, b]}))
    assert _allowed(together, fleet) == ["lab/two"]
    assert [(r.code, r.samples) for r in together.apps["web"].reasons] == [("PackingFails", ["lab/one"])]


def test_where_an_app_runs_already_it_is_not_excluded() -> None:
    fleet = fleet_of({"lab/a": [_node("4", "numa-0/fpga")], "lab/b": [_node("4")]})
    shape = _shape(A)
    row = int(fleet.rows_of(0)[0])
    fleet.take_parts(row, {"n-0/numa-0/fpga": {"FPGA": 1}})
    asked = {"web": [shape]}
    assert _allowed(TopologyAnswers(fleet).answer(_ask(asked)), fleet) == []
    slot = Slot(node="n-0", resources=shape.resources, parts={"n-0/numa-0/fpga": {"FPGA": 1}})
    own = {"web": {"lab/a": [OwnClaim(id="c", object=shape.object, slots=[slot])]}}
    assert _allowed(TopologyAnswers(fleet).answer(_ask(asked, own=own)), fleet) == ["lab/a"]


def test_optional_needs_of_parts_score_where_they_are_granted() -> None:
    fleet = fleet_of({"lab/card": [_node("4", "numa-0/fpga")], "lab/none": [_node("4")], "lab/plain": [node(cpu="8")]})
    need = OptionalNeed(consumer="c", name="FPGA", weight=3, group="_A", part_resources={"FPGA": 1})
    shape = _shape(PartGroup(suffix="_A", optional=True), optional=[need])
    answer = HardwareAnswers(fleet).answer(_ask({"web": [shape]}))
    assert _allowed(answer, fleet) == ["lab/card", "lab/none", "lab/plain"]
    scores = _read(answer, fleet).apps[0].scores
    assert scores is not None and scores.tolist() == [1, 0, 0]
    assert _allowed(TopologyAnswers(fleet).answer(_ask({"web": [shape]})), fleet) == [
        "lab/card",
        "lab/none",
        "lab/plain",
    ]
