"""Tests how the fleet narrows down to the clusters that an app may take: counted by the merger, and shown by `why`."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.bus import Reply
from moorage.cli.placement_text import some_of, why_text
from moorage.controllers.cluster_selection.core.selection import decide as select_by_placement
from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fleet import Fleet
from moorage.ledger import Ledger
from moorage.merger.core.funnel import funnels
from moorage.merger.core.propose import NameOrder, ProposalRefused, propose
from moorage.merger.core.responses import ControllerResults, Replies, gather
from moorage.model.attempts import Funnel
from moorage.model.candidates import Answer, AppAnswer, Ask, CandidateGroup, PackedSet, WireSet
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.reasons import Reason
from moorage.model.reports import NodeReport
from moorage.model.shapes import Intent, Requirement, Shape, ShapedApp
from moorage_testkit.brute_force import shape
from moorage_testkit.fleets import fleet_of, node

HUGE = "hugepages-1Gi"
LABEL = "feature.node.kubernetes.io/cpu-cpuid.AVX512F"


def placement(app: str, **spec: Any) -> Intent:
    body = {"group": "shop", "app": app, **spec}
    return Intent(kind="PlacementIntent", name=app, spec=msgspec.Raw(msgspec.json.encode(body)))


def refused(
    fleet: Fleet, apps: list[ShapedApp], intents: list[Intent], **others: Answer
) -> tuple[ControllerResults, ProposalRefused]:
    """Returns what the merger knows after it asked the built-in controllers, and others, for reasons."""
    record = Revision(group="default/shop/v1/default", revision=1, tenant="default", apps=apps, intents=intents)
    ask = Ask(
        group=record.group, revision=1, budget_ms=500, epoch="1.1", tenant="t", apps=apps, intents=intents, explain=True
    )
    answers = {
        "hpa": HardwareAnswers(fleet).answer(ask),
        "labels": select_by_placement(ask, fleet),
        **others,
    }
    replies = {name: Reply("answered", msgspec.json.encode(answer), 1.0) for name, answer in answers.items()}
    controllers = [Controller(name=name, steady=name == "labels") for name in answers]
    results = gather(Replies([app.name for app in apps], controllers, replies, {}), fleet)
    proposal = propose(record, results, fleet, Ledger(), NameOrder(), "d")
    assert isinstance(proposal, ProposalRefused), proposal
    return results, proposal


def counted(fleet: Fleet, apps: list[ShapedApp], intents: list[Intent], **others: Answer) -> dict[str, Funnel]:
    results, proposal = refused(fleet, apps, intents, **others)
    assert proposal.shortfall is not None
    return funnels(results, fleet, proposal.shortfall)


def steps(funnel: Funnel) -> list[tuple[str, int, int]]:
    return [(step.name, step.excluded, step.left) for step in funnel.steps]


def needs(cpu: int = 1000, **resources: int) -> Shape:
    return shape("Deployment/web", resources={"cpu": cpu, **resources})


def large_fleet() -> Fleet:
    """56 clusters: 6 outside eu, 34 without hugepages, 15 with too little CPU, one that fits."""
    clusters, labels = {}, {}
    for number in range(56):
        name = f"lab/c-{number:02}"
        huge = {HUGE: "4Gi"} if number >= 40 else {}
        clusters[name] = [node(cpu="16" if number == 55 else "2", memory="64Gi", resources=huge)]
        labels[name] = {"region": "us" if number < 6 else "eu"}
    return fleet_of(clusters, labels=labels)


def test_each_requirement_is_a_step_with_what_it_leaves() -> None:
    shapes = [shape("Deployment/web", resources={"cpu": 4000, HUGE: 2 << 30})]
    # The rarest need is written last here, but labels and the first need that fails count first.
    app = ShapedApp(name="web", replicas=2, shapes=shapes)
    fleet = large_fleet()
    funnel = counted(fleet, [app], [placement("web", allOf=[{"label": {"region": "eu"}}])])["web"]
    assert (funnel.clusters, funnel.needs) == (56, 2)
    assert steps(funnel)[0] == ("placement", 6, 50) and steps(funnel)[-1][2] == 1
    by_name = {step.name: step for step in funnel.steps}
    assert by_name["placement"].by == "labels" and by_name["placement"].code == "PlacementExcludes"
    assert by_name["cpu"].needed == "4" and by_name["cpu"].free == "2" and by_name["cpu"].by == "hpa"
    assert by_name["cpu"].samples == ["lab/c-06", "lab/c-07", "lab/c-08"], "none that the placement left out before"
    assert sum(step.excluded for step in funnel.steps) == 55


def test_stale_and_cordoned_clusters_are_steps() -> None:
    fleet = fleet_of({f"lab/{n}": [node(cpu="8")] for n in "abcd"}, stale=["lab/a", "lab/b"], cordoned=["lab/c"])
    funnel = counted(fleet, [ShapedApp(name="web", replicas=2, shapes=[needs()])], [])["web"]
    assert steps(funnel) == [("not stale", 2, 2), ("not cordoned", 1, 1)]


def test_a_controller_that_gives_no_reason_is_a_step_of_its_name() -> None:
    fleet = fleet_of({f"lab/{n}": [node(cpu="8")] for n in "abc"})
    only_a = AppAnswer(groups=[CandidateGroup(mode="allow", clusters=["lab/a"])])
    funnel = counted(
        fleet, [ShapedApp(name="web", replicas=2, shapes=[needs()])], [], mine=Answer(apps={"web": only_a})
    )
    (step,) = funnel["web"].steps
    assert (step.name, step.by, step.code, step.left) == ("mine", "mine", "ControllerExcludes", 1)
    assert step.samples == ["lab/b", "lab/c"]


def test_sets_for_reasons_that_are_not_there_do_no_harm() -> None:
    fleet = fleet_of({f"lab/{n}": [node(cpu="8")] for n in "abc"})
    reasons = [Reason(code="ControllerExcludes", message=f"{i}") for i in range(3)]
    damaged: list[WireSet] = [
        PackedSet(format="roaring", data=b"not one"),
        PackedSet(format="bits", data=b"x" * 100_000),
        ["x/y"],
    ]
    excluded: dict[int, WireSet] = {7: ["lab/b"], -1: ["x/y"], **dict(enumerate(damaged))}
    allowed = [CandidateGroup(mode="allow", clusters=["lab/a"])]
    odd = AppAnswer(groups=allowed, reasons=reasons, excluded=excluded)
    funnel = counted(fleet, [ShapedApp(name="web", replicas=2, shapes=[needs()])], [], mine=Answer(apps={"web": odd}))
    assert steps(funnel["web"]) == [("mine", 2, 1)]


def test_what_the_exact_assignment_cannot_place_is_a_step() -> None:
    """Four pods of 3 cores and 12 GiB: every cluster has the sums and each resource on some node."""
    fleet = fleet_of({f"lab/{n}": [node(cpu="6", memory="30Gi")] for n in "ab"})
    shapes = [
        shape("Deployment/x", count=2, resources={"cpu": 2000}),
        shape("Deployment/y", count=1, resources={"cpu": 3000}),
    ]
    funnel = counted(fleet, [ShapedApp(name="web", replicas=1, shapes=shapes)], [])["web"]
    assert funnel.steps[-1].left == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(st.data())
def test_steps_add_up_to_what_all_controllers_allow(data: st.DataObject) -> None:
    """The reference looks at each cluster alone: it is left if, and only if, every controller allows it."""
    draw = data.draw
    nodes = st.builds(
        lambda cpu, huge, label: node(
            cpu=str(cpu), resources={HUGE: f"{huge}Gi"} if huge else {}, labels={LABEL: "true"} if label else {}
        ),
        st.integers(1, 8), st.integers(0, 2), st.booleans(),
    )  # fmt: skip
    clusters: dict[str, list[NodeReport]] = {
        f"lab/{n}": draw(st.lists(nodes, max_size=3)) for n in range(draw(st.integers(1, 8)))
    }
    labels = {name: {"region": draw(st.sampled_from(["eu", "us"]))} for name in clusters}
    stale = draw(st.lists(st.sampled_from(sorted(clusters)), max_size=2))
    fleet = fleet_of(clusters, labels=labels, stale=stale)
    terms = ((Requirement(key=LABEL, operator="In", values=("true",)),),) if draw(st.booleans()) else ()
    shapes = [
        shape(f"Deployment/{i}", resources={"cpu": draw(st.integers(1, 9)) * 1000, **extra}, terms=terms)
        for i, extra in enumerate(draw(st.lists(st.sampled_from([{}, {HUGE: 1 << 30}]), min_size=1, max_size=2)))
    ]
    apps = [ShapedApp(name="web", replicas=20, shapes=shapes)]
    intents = [placement("web", allOf=[{"label": {"region": "eu"}}])] if draw(st.booleans()) else []
    results, proposal = refused(fleet, apps, intents)
    assert proposal.shortfall is not None
    funnel = funnels(results, fleet, proposal.shortfall)["web"]
    expected = fleet.usable_clusters.copy()
    for weighted in results.weighted:
        allowed = weighted.answer.apps[0].allowed
        expected &= np.ones(fleet.size, np.bool_) if allowed is None else allowed
    left = funnel.clusters
    for step in funnel.steps:
        assert step.excluded > 0 and step.left == left - step.excluded
        assert len(step.samples) == min(3, step.excluded)
        left = step.left
    assert left <= np.count_nonzero(expected)
    if not any(step.by == "merger" and step.code not in ("ClusterStale", "ClusterCordoned") for step in funnel.steps):
        assert left == np.count_nonzero(expected)


# --- in text -----------------------------------------------------------------------------------------------------------


def pending(**fields: Any) -> dict[str, Any]:
    return {"group": "default/shop/v1/default", "revision": 1, "state": "Instantiated", "phase": "Pending", **fields}


def many_steps(clusters: int, count: int) -> dict[str, Any]:
    names = [f"provider-{i}/cluster-in-region-{i}" for i in range(3)]
    found, left = [], clusters
    for number in range(count):
        left -= 37
        found.append(
            {"name": f"example.com/resource-{number}", "excluded": 37, "left": left, "by": "hpa", "code": "ResourceShort",
             "consumer": "web-server", "need": "memory", "needed": "716800Mi", "free": "523776Mi", "samples": names}
        )  # fmt: skip
    return {"clusters": clusters, "needs": 2, "steps": found}


def test_the_blocking_app_comes_first_in_one_line_and_its_steps_below() -> None:
    funnel = {
        "db": {"clusters": 56, "needs": 1, "steps": []},
        "web": {
            "clusters": 56,
            "needs": 2,
            "steps": [
                {"name": "placement", "excluded": 6, "left": 50, "by": "labels", "code": "PlacementExcludes",
                 "message": "not selected by the placement region=eu", "samples": ["a/1", "a/2", "a/3"]},
                {"name": "hugepages-1Gi", "excluded": 34, "left": 16, "by": "hpa", "code": "ResourceShort",
                 "consumer": "web", "need": "hugepages-1Gi", "needed": "2Gi", "free": "0", "samples": ["b/1", "b/2", "b/3"]},
                {"name": "cpu", "excluded": 15, "left": 1, "by": "hpa", "code": "ResourceShort",
                 "consumer": "web", "need": "cpu", "needed": "1500m", "free": "500m", "samples": ["c/1", "c/2", "c/3"]},
            ],
        },
    }  # fmt: skip
    text = why_text(pending(funnel=funnel, blocking=["web"], apps={"db": {"replicas": 1}, "web": {"replicas": 2}}))
    assert text.splitlines()[1:] == [
        "  web  56 clusters → 50 placement → 16 hugepages-1Gi → 1 cpu; needs 2",
        "     -6 placement  PlacementExcludes: region=eu (a/1, a/2 +4) [labels]",
        "    -34 hugepages-1Gi  ResourceShort: web needs 2Gi on one node, best free 0 (b/1, b/2 +32) [hpa]",
        "    -15 cpu  ResourceShort: web needs 1.5 on one node, best free 500m (c/1, c/2 +13) [hpa]",
        "  db   56 clusters; needs 1",
    ]


@pytest.mark.parametrize(("apps", "count"), [(1, 3), (1, 12), (3, 12), (30, 20)])
def test_an_explanation_has_at_most_twenty_lines_of_a_hundred_columns(apps: int, count: int) -> None:
    names = [f"app-{i}" for i in range(apps)]
    reasons = [
        {"code": "AppsConflict", "app": names[0], "by": "merger", "message": f"message {i}"} for i in range(30)
    ] + [{"code": "ResourceShort", "app": names[0], "need": "cpu", "needed": "9", "by": "hpa"}]
    controllers = [
        {"name": name, "outcome": "answered", "tookMs": 1.25, "deadlineMs": 500, "policy": "required"}
        for name in ("hpa", "labels", "affinity")
    ]
    found = pending(
        funnel={name: many_steps(1000, count) for name in names},
        blocking=names,
        reasons=reasons,
        controllers=controllers,
        warnings=[{"code": "ExclusiveCoresUnknown", "message": f"{i}"} for i in range(9)],
    )
    lines = why_text(found).splitlines()
    assert len(lines) <= 20 and max(map(len, lines)) <= 100, "\n".join(lines)
    assert "700Gi" in "\n".join(lines) and "Mi" not in "\n".join(lines)
    assert len(why_text(found, everything=True).splitlines()) > len(lines)


def test_lists_are_cut_and_say_how_much_is_missing() -> None:
    names = [f"c{i}" for i in range(34)]
    assert some_of(names) == "c0, c1, c2 +31" and some_of(names[:3]) == "c0, c1, c2" and some_of([]) == ""
    assert some_of(names[:5], 3, 34) == "c0, c1, c2 +31", "samples of more clusters"


def test_attempts_from_before_have_reasons_only() -> None:
    reason = {"code": "ResourceShort", "app": "web", "consumer": "web", "need": "memory", "needed": "716800Mi",
              "free": "523776Mi", "clusters": 34, "samples": ["a", "b", "c", "d", "e"], "by": "hpa"}  # fmt: skip
    text = why_text(pending(reasons=[reason], apps={"web": {"replicas": 2}}))
    assert "web  0 of 2: not placed" in text
    assert "ResourceShort web web memory: needs 700Gi, best free 511.5Gi, 34 clusters (a, b, c +31) [hpa]" in text
