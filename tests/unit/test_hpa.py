"""hpa's answers: sets, scores, conflicts, warnings and reasons with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.candidates.decode import DecodedAnswer, decode_answer
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Ask
from moorage.model.reports import NodeReport
from moorage.model.shapes import EXCLUSIVE, NeedRef, OptionalNeed, Requirement, Shape, ShapedApp
from moorage_testkit.brute_force import GPU, clusters, exists, rows_in, shape, shapes
from moorage_testkit.fleets import fleet_of, node


def ask_for(apps: dict[str, list[Shape]], **fields: Any) -> Ask:
    shaped = [ShapedApp(name=name, shapes=many) for name, many in apps.items()]
    return Ask(group="p/a/v1/g", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=shaped, **fields)


def read(answer: Answer, fleet: Fleet) -> DecodedAnswer:
    return decode_answer(answer, list(answer.apps), fleet.ids, fleet.size)


def allowed(answer: Answer, fleet: Fleet, app: str) -> list[str]:
    found = read(answer, fleet).apps[list(answer.apps).index(app)].allowed
    return fleet.clusters.named(fleet.known if found is None else fleet.known & found)


def test_sets_scores_and_conflicts() -> None:
    fleet = fleet_of(
        {
            "lab/large": [node(cpu="8", memory="32Gi", resources={GPU: "1"})],
            "lab/medium": [node(cpu="8", memory="32Gi")],
            "lab/tight": [node(cpu="5", memory="32Gi")],
            "lab/small": [node(cpu="2", memory="32Gi")],
            "lab/stale": [node(cpu="64", memory="64Gi")],
        },
        stale=["lab/stale"],
    )
    wishes = [
        OptionalNeed(consumer="fwall", name=GPU, weight=9, resources={GPU: 1}),
        OptionalNeed(consumer="fwall", name="cpu", weight=4, resources={"cpu": 1000}),
    ]
    fwall = shape("StatefulSet/fwall", resources={"cpu": 4000}, optional=wishes)
    other = shape("Deployment/other", resources={"cpu": 2000})
    answer = HardwareAnswers(fleet).answer(ask_for({"fwall": [fwall], "other": [other]}))
    assert allowed(answer, fleet, "fwall") == ["lab/large", "lab/medium", "lab/tight"]
    assert allowed(answer, fleet, "other") == ["lab/large", "lab/medium", "lab/tight", "lab/small"]
    opinion = read(answer, fleet)
    scores = opinion.apps[0].scores
    assert scores is not None
    assert scores.tolist() == [1, 4 / 13, 4 / 13, 0, 0]
    assert {pair: fleet.clusters.named(where) for pair, where in opinion.conflicts.items()} == {(0, 1): ["lab/tight"]}
    assert answer.epoch == str(fleet.epoch)
    assert not answer.warnings
    assert not any(app.reasons for app in answer.apps.values()), "reasons cost; only who asks gets them"


def test_a_device_that_two_objects_want_counts_once() -> None:
    fleet = fleet_of(
        {"lab/one": [node(cpu="64", resources={GPU: "1"})], "lab/two": [node(cpu="12", resources={GPU: "2"})]}
    )
    wish = [OptionalNeed(consumer="c", name=GPU, weight=5, resources={GPU: 1})]
    apps = [shape(f"Deployment/{name}", resources={"cpu": 1000}, optional=wish) for name in "wv"]
    scores = read(HardwareAnswers(fleet).answer(ask_for({"a": apps})), fleet).apps[0].scores
    assert scores is not None
    assert scores.tolist() == [1 / 2, 1]


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=20),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_weights_decide_exactly(weights: list[int], offered: list[set[int]]) -> None:
    """A cluster scores the weight that it meets by the weight asked. More than sixteen values are rounded in order."""
    fleet = fleet_of(
        {
            f"lab/{i}": [node(cpu="64", resources={f"example.com/r{r}": "1" for r in has})]
            for i, has in enumerate(offered)
        }
    )
    wishes = [
        OptionalNeed(consumer="c", name=f"r{r}", weight=weight, resources={f"example.com/r{r}": 1})
        for r, weight in enumerate(weights)
    ]
    app = shape("Deployment/a", resources={"cpu": 1000}, optional=wishes)
    answer = HardwareAnswers(fleet).answer(ask_for({"a": [app]}))
    found = read(answer, fleet).apps[0].scores
    scores = [0.0] * fleet.size if found is None else found.tolist()
    met = [sum(weights[r] for r in has if r < len(weights)) for has in offered]
    if len(set(met) - {0}) <= 16:
        assert scores == [weight / sum(weights) for weight in met]
    else:
        assert len(set(scores) - {0.0}) <= 16
        by_weight = sorted(zip(met, scores, strict=True))
        assert [score for _, score in by_weight] == sorted(scores), "the order is kept"


def test_clusters_that_report_exclusive_cores_outrank_those_that_report_nothing() -> None:
    fleet = fleet_of(
        {
            "lab/silent": [node(cpu="64", resources={GPU: "1"})],
            "lab/static": [node(cpu="8", exclusive=4)],
            "lab/both": [node(cpu="8", exclusive=4, resources={GPU: "1"})],
        }
    )
    wish = [OptionalNeed(consumer="c", name=GPU, weight=10, resources={GPU: 1})]
    hpa = HardwareAnswers(fleet)
    for optional, expected in (([], [0, 1, 1]), (wish, [1 / 3, 2 / 3, 1])):
        app = shape(resources={"cpu": 2000, EXCLUSIVE: 2}, optional=optional)
        scores = read(hpa.answer(ask_for({"a": [app]})), fleet).apps[0].scores
        assert scores is not None and scores.tolist() == expected
    asked_optionally = [OptionalNeed(consumer="c", name="cpu", weight=1, resources={"cpu": 1000, EXCLUSIVE: 1})]
    app = shape(resources={"cpu": 1000}, optional=asked_optionally)
    scores = read(hpa.answer(ask_for({"a": [app]})), fleet).apps[0].scores
    assert scores is not None and scores.tolist() == [1 / 3, 1, 1]
    app = shape(resources={"cpu": 1000})
    assert read(hpa.answer(ask_for({"a": [app]})), fleet).apps[0].scores is None


def test_where_apps_run_already_nothing_stands_between_them_whoever_asked_before() -> None:
    fleet = fleet_of({f"lab/{name}": [node(cpu="3"), node(cpu="2")] for name in "hij"})
    apps = {
        "a": [shape("Deployment/a", resources={"cpu": 2500})],
        "b": [shape("Deployment/b", resources={"cpu": 2400})],
    }
    hpa = HardwareAnswers(fleet)
    for held, free in (({}, {"lab/h", "lab/i", "lab/j"}), ({"a": ["lab/h"], "b": ["lab/h"]}, {"lab/i", "lab/j"})):
        opinion = read(hpa.answer(ask_for(apps, held=held)), fleet)
        assert {pair: set(fleet.clusters.named(where)) for pair, where in opinion.conflicts.items()} == {(0, 1): free}


def test_reasons_have_numbers_and_whose_need_it_was() -> None:
    fleet = fleet_of(
        {
            "lab/a": [node(cpu="2", memory="4Gi", labels={"avx": "true"})],
            "lab/b": [node(cpu="1", memory="4Gi", labels={"avx": "true"})],
            "lab/c": [node(cpu="16", memory="4Gi")],
            "lab/d": [node(cpu="16", memory="1Gi", labels={"avx": "true"})],
            "lab/e": [node(cpu="16", memory="4Gi", labels={"avx": "true"}, ready=False)],
            "lab/f": [node(cpu="5", memory="4Gi", labels={"avx": "true"})],
            "lab/g": [node(cpu="16", memory="4Gi", labels={"avx": "true"})],
        },
        cordoned=["lab/g"],
    )
    needs = [
        NeedRef(consumer="core", name="cpu", amount=4000),
        NeedRef(consumer="side", name="memory", amount=2 << 30),
        NeedRef(consumer="core", name="avx", label=("avx", "true")),
    ]
    core = shape(
        "StatefulSet/core-fwall",
        resources={"cpu": 4000, "memory": 2 << 30},
        terms=[[Requirement(key="avx", operator="In", values=("true",))]],
        needs=needs,
        count=2,
    )
    answer = HardwareAnswers(fleet).answer(ask_for({"fwall": [core]}))
    assert allowed(answer, fleet, "fwall") == []
    found = {
        (r.code, r.consumer, r.need): (r.clusters, r.needed, r.free, r.samples) for r in answer.apps["fwall"].reasons
    }
    assert found == {
        ("ClusterCordoned", "", ""): (1, "", "", ["lab/g"]),
        ("LabelMissing", "core", "avx"): (1, "", "", ["lab/c"]),
        ("NodesUnusable", "core, side", ""): (1, "", "", ["lab/e"]),
        ("ResourceShort", "core", "cpu"): (2, "4", "2", ["lab/a", "lab/b"]),
        ("ResourceShort", "side", "memory"): (1, "2Gi", "1Gi", ["lab/d"]),
        ("CapacityShort", "core, side", "pods"): (1, "2", "1", ["lab/f"]),
    }
    assert all(r.by == "hpa" and r.app == "fwall" and r.message for r in answer.apps["fwall"].reasons)


def test_reasons_of_what_is_refused_elsewhere_when_somebody_asks() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4")], "lab/b": [node(cpu="1")]})
    apps = {
        "a": [shape("Deployment/a", resources={"cpu": 3000})],
        "b": [shape("Deployment/b", resources={"cpu": 2000})],
    }
    answer = HardwareAnswers(fleet).answer(ask_for(apps, explain=True))
    reasons = [(r.code, r.app, r.samples, r.needed, r.free) for app in answer.apps.values() for r in app.reasons]
    assert reasons == [
        ("ResourceShort", "a", ["lab/b"], "3", "1"),
        ("AppsConflict", "a", ["lab/a"], "5", "4"),
        ("ResourceShort", "b", ["lab/b"], "2", "1"),
    ]


def test_a_shortage_names_what_unusable_nodes_have() -> None:
    fleet = fleet_of({"lab/a": [node("n-0", cpu="1"), node("n-1", cpu="8", ready=False)]})
    answer = HardwareAnswers(fleet).answer(ask_for({"a": [shape("Deployment/a", resources={"cpu": 3000})]}))
    (reason,) = answer.apps["a"].reasons
    assert (reason.code, reason.needed, reason.free) == ("ResourceShort", "3", "1")
    assert reason.message.endswith(
        "at most 1 is free there, 2 too little. A node with 8 free is not ready, unschedulable or has a taint"
    )


def test_an_app_whose_own_objects_do_not_fit_together() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4")], "lab/b": [node(cpu="6")]})
    many = [shape("Deployment/x", resources={"cpu": 3000}), shape("Deployment/y", resources={"cpu": 3000})]
    answer = HardwareAnswers(fleet).answer(ask_for({"a": many}, explain=True))
    assert allowed(answer, fleet, "a") == ["lab/b"]
    (reason,) = answer.apps["a"].reasons
    assert (reason.code, reason.samples, reason.needed, reason.free) == ("PackingFails", ["lab/a"], "6", "4")
    assert reason.message.endswith("they need 6 cpu, one cluster has at most 4 free")


def test_clusters_that_nobody_reports_exclusive_cores_of_are_allowed() -> None:
    fleet = fleet_of(
        {
            "lab/silent": [node(cpu="8")],
            "lab/static": [node(cpu="8", exclusive=4)],
            "lab/used": [node(cpu="8", exclusive=1)],
            "lab/none": [node(cpu="8", exclusive=8, policy="none")],
        }
    )
    answer = HardwareAnswers(fleet).answer(ask_for({"a": [shape(resources={"cpu": 2000, EXCLUSIVE: 2})]}))
    assert allowed(answer, fleet, "a") == ["lab/silent", "lab/static"]
    assert not answer.warnings, "which cluster is chosen is not known yet"


def test_without_pods_or_clusters_nothing_is_objected_to() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="1")]})
    answer = HardwareAnswers(fleet).answer(ask_for({"a": [], "b": []}))
    assert [app.groups[0].mode for app in answer.apps.values()] == ["deny", "deny"]
    assert allowed(answer, fleet, "a") == ["lab/a"]
    empty = Fleet()
    nothing = HardwareAnswers(empty).answer(
        ask_for({"a": [shape()], "b": [shape("Deployment/b"), shape("Deployment/c")]})
    )
    assert [[r.code for r in app.reasons] for app in nothing.apps.values()] == [["NoClusters"], ["NoClusters"]]


def test_what_nothing_can_decide_is_refused() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="1")]})
    answer = HardwareAnswers(fleet).answer(ask_for({"a": [shape(devices=[{}])]}))
    assert allowed(answer, fleet, "a") == []
    assert [r.code for r in answer.apps["a"].reasons] == ["Unsupported"]


@given(
    st.lists(clusters, min_size=1, max_size=4),
    st.lists(st.lists(shapes, min_size=1, max_size=2), min_size=1, max_size=3),
    st.booleans(),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_answers_are_necessary_and_reasons_complete(
    many: list[list[NodeReport]], apps: list[list[Shape]], explain: bool
) -> None:
    fleet = fleet_of({f"lab/{i}": nodes for i, nodes in enumerate(many)})
    ask = ask_for({str(i): lot for i, lot in enumerate(apps)}, explain=explain)
    answer = HardwareAnswers(fleet).answer(ask)
    opinion = read(answer, fleet)

    def possible(lot: list[Shape]) -> list[int]:
        lot = [s for s in lot if s.count or s.per_node]
        return [cid for cid in range(fleet.size) if exists(fleet, rows_in(fleet, cid), lot, [[] for _ in lot])]

    for number, lot in enumerate(apps):
        mask = opinion.apps[number].allowed
        allowed_ = np.ones(fleet.size, np.bool_) if mask is None else mask
        with_pods = [s for s in lot if s.count or s.per_node]
        if with_pods:
            assert set(possible(lot)) <= set(np.flatnonzero(allowed_).tolist())
        refused = int((fleet.known & ~allowed_).sum())
        reasons = answer.apps[str(number)].reasons
        if refused and (explain or not allowed_.any()) and len(with_pods) == len(lot):
            assert sum(r.clusters for r in reasons) >= refused
    for (a, b), where in opinion.conflicts.items():
        assert not set(np.flatnonzero(where).tolist()) & set(possible(apps[a] + apps[b]))
