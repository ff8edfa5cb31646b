"""Compares the merger's proposals with all possible ones on small fleets: a group is placed if and only if some choice of
clusters gives every pod a place that all controllers allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.bus import Reply
from moorage.fleet import Fleet
from moorage.ledger import Ledger
from moorage.merger.core.propose import NameOrder, ProposalRefused, propose
from moorage.merger.core.responses import ControllerResults, Replies, gather
from moorage.model.candidates import Answer, AppAnswer, AppsRule, CandidateGroup, Conflict, Level
from moorage.model.claims import Decision
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.reports import NodeReport
from moorage.model.shapes import EXCLUSIVE, ShapedApp
from moorage_testkit.brute_force import exists, rows_in
from moorage_testkit.brute_force import shape as shaped
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.merger_harness import revision

Answers = Mapping[str, Answer]
Choice = tuple[tuple[int, ...], ...]  # per app its clusters


def gathered(record: Revision, fleet: Fleet, answers: Answers) -> ControllerResults:
    """Returns the answers of controllers that all answered in time."""
    names = [app.name for app in record.apps]
    replies = {name: Reply("answered", msgspec.json.encode(answer), 1.0) for name, answer in answers.items()}
    return gather(Replies(names, [Controller(name=name) for name in answers], replies, {}), fleet)


def proposed(record: Revision, fleet: Fleet, answers: Answers) -> Decision | ProposalRefused:
    return propose(record, gathered(record, fleet, answers), fleet, Ledger(), NameOrder(), "d")


# -- the rules as written, every choice tried -------------------------------------------------------------------------


def allowed(record: Revision, fleet: Fleet, answers: Answers, choice: Choice) -> bool:
    """Returns whether no controller objects."""
    numbers = {app.name: i for i, app in enumerate(record.apps)}
    for answer in answers.values():
        for name, said in answer.apps.items():
            mine = {fleet.names[c] for c in choice[numbers[name]]}
            for group in said.groups:
                listed = set(group.clusters) if isinstance(group.clusters, list) else set()
                if group.mode == "deny" and mine & listed:
                    return False
                if group.mode == "allow" and not mine <= listed:
                    return False
        for conflict in answer.conflicts:
            a, b = (set(choice[numbers[name]]) for name in conflict.apps)
            where = {fleet.ids[c] for c in conflict.clusters} if isinstance(conflict.clusters, list) else set()
            if a & b & where:
                return False
        for rule in answer.rules:
            for other in rule.apps if rule.mandatory else ():
                a, b = (set(choice[numbers[name]]) for name in (rule.app, other))
                if rule.mode == "deny" and a & b:
                    return False
                if rule.mode == "with" and not (a <= b or b <= a):
                    return False
    return True


def holds(record: Revision, fleet: Fleet, choice: Choice) -> bool:
    """Returns whether on every cluster all pods that would come have a place at once."""
    for cid in range(fleet.size):
        here = [app for app, clusters in zip(record.apps, choice, strict=True) if cid in clusters]
        every = [one for app in here for one in app.shapes]
        if here and not (fleet.usable_clusters[cid] and exists(fleet, rows_in(fleet, cid), every, [[] for _ in every])):
            return False
    return True


def choices(record: Revision, fleet: Fleet, answers: Answers) -> Iterator[Choice]:
    options = [combinations(range(fleet.size), counted(app, answers)) for app in record.apps]
    for choice in product(*options):
        if allowed(record, fleet, answers, choice) and holds(record, fleet, choice):
            yield choice


def counted(app: ShapedApp, answers: Answers) -> int:
    said = [g.count for a in answers.values() if app.name in a.apps for g in a.apps[app.name].groups]
    return next((count for count in said if count is not None), app.replicas)


def chosen_by(decision: Decision, record: Revision, fleet: Fleet) -> Choice:
    return tuple(
        tuple(sorted({fleet.ids[c.cluster] for c in decision.claims if c.app == app.name})) for app in record.apps
    )


def assert_valid(decision: Decision, record: Revision, fleet: Fleet, answers: Answers) -> None:
    choice = chosen_by(decision, record, fleet)
    assert [len(clusters) for clusters in choice] == [counted(app, answers) for app in record.apps]
    assert allowed(record, fleet, answers, choice)
    left = {
        (fleet.names[cid], fleet.node_name(row)): {r: int(fleet.free(r)[row]) for r in fleet.resources}  # type: ignore[index]
        for cid in range(fleet.size)
        for row in rows_in(fleet, cid)
        if fleet.usable[row]
    }
    assert len({claim.id for claim in decision.claims}) == len(decision.claims)
    for app, clusters in zip(record.apps, choice, strict=True):
        for one in app.shapes:
            for cid in clusters:
                (claim,) = (
                    c
                    for c in decision.claims
                    if (c.app, c.object, c.cluster) == (app.name, one.object, fleet.names[cid])
                )
                assert sum(slot.count for slot in claim.slots) == one.count
                for slot in claim.slots:
                    assert {**slot.resources} == {r: n for r, n in one.resources.items() if n}
                    free = left[claim.cluster, slot.node]
                    for resource, amount in slot.resources.items():
                        free[resource] -= amount * slot.count
                        assert free[resource] >= 0, (claim.cluster, slot.node, resource)


# -- questions --------------------------------------------------------------------------------------------------------

nodes = st.builds(lambda cpu, memory: node(cpu=str(cpu), memory=str(memory)), st.integers(1, 6), st.integers(2, 6))
fleets = st.lists(st.lists(nodes, min_size=1, max_size=2), min_size=1, max_size=3)


@st.composite
def apps(draw: st.DrawFn, name: str) -> ShapedApp:
    objects = [
        shaped(
            f"Deployment/{name}{i}",
            count=draw(st.integers(1, 2)),
            resources={"cpu": 1000 * draw(st.integers(1, 2)), "memory": draw(st.integers(0, 2))},
            template="t",
        )
        for i in range(draw(st.sampled_from([1, 1, 2])))
    ]
    return ShapedApp(name=name, replicas=draw(st.sampled_from([1, 1, 1, 2])), shapes=objects)


@st.composite
def answered(draw: st.DrawFn, names: Sequence[str], clusters: Sequence[str]) -> Answer:
    some = st.lists(st.sampled_from(clusters), unique=True)
    most = some.map(lambda left_out: [c for c in clusters if c not in left_out[:1]])
    few = some.map(lambda denied: denied[:1])
    answer = Answer()
    for name in draw(st.sets(st.sampled_from(names))):
        allows, denies = (
            CandidateGroup(mode="allow", clusters=draw(most)),
            CandidateGroup(mode="deny", clusters=draw(few)),
        )
        group = draw(st.sampled_from([allows, denies]))
        levels = [Level(value=draw(st.sampled_from([0.2, 0.9])), clusters=draw(some))]
        answer.apps[name] = AppAnswer(groups=[group], levels=levels)
    if len(names) > 1 and draw(st.booleans()):
        answer.conflicts.append(Conflict(apps=(names[0], names[1]), clusters=draw(some)))
    if len(names) > 1 and draw(st.integers(0, 2)) == 0:
        rule = AppsRule(app=names[0], mode="deny", apps=[names[1]], mandatory=draw(st.booleans()))
        rule.mode = draw(st.sampled_from(["deny", "with"]))
        answer.rules.append(rule)
    return answer


@st.composite
def questions(draw: st.DrawFn) -> tuple[Revision, Fleet, Answers]:
    many: list[list[NodeReport]] = draw(fleets)
    fleet = fleet_of({f"lab/c-{i}": some for i, some in enumerate(many)})
    names = draw(st.sampled_from(["a", "ab", "ab", "ab"]))
    record = revision("g", *(draw(apps(name)) for name in names))
    answers = {f"voice-{i}": draw(answered(names, fleet.names)) for i in range(draw(st.sampled_from([0, 1, 1, 2])))}
    if draw(st.integers(0, 3)) == 0:
        count = draw(st.integers(1, 2))
        record.apps[0].replicas = draw(st.sampled_from([0, count]))  # 0: as many as are selected
        group = CandidateGroup(mode="allow", clusters=list(fleet.names), count=count)
        answers["counting"] = Answer(apps={names[0]: AppAnswer(groups=[group])})
    return record, fleet, answers


@given(questions())
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_is_placed_if_and_only_if_some_choice_holds(question: tuple[Revision, Fleet, Answers]) -> None:
    record, fleet, answers = question
    possible = list(choices(record, fleet, answers))
    found = proposed(record, fleet, answers)
    if isinstance(found, ProposalRefused):
        assert not possible
        assert found.reasons and not found.final
        return
    assert chosen_by(found, record, fleet) in possible
    assert_valid(found, record, fleet, answers)


@st.composite
def questions_with_a_partial_set(draw: st.DrawFn) -> tuple[Revision, Fleet, Answers]:
    """One app, or both, take all clusters of a set that can take it."""
    many: list[list[NodeReport]] = draw(st.lists(st.lists(nodes, min_size=1, max_size=2), min_size=2, max_size=4))
    fleet = fleet_of({f"lab/c-{i}": some for i, some in enumerate(many)})
    record = revision("g", draw(apps("a")), draw(apps("b")))
    answer = Answer(apps={})
    for app in draw(st.sampled_from([record.apps[:1], record.apps[1:], record.apps])):
        app.replicas = 0
        selected = draw(st.lists(st.sampled_from(fleet.names), unique=True, min_size=1))
        group = CandidateGroup(mode="allow", clusters=selected, count=0, partial=True)
        answer.apps[app.name] = AppAnswer(groups=[group])
    conflicts = Conflict(apps=("a", "b"), clusters=draw(st.lists(st.sampled_from(fleet.names), unique=True)))
    rules = [AppsRule(app="a", mode="deny", apps=["b"])] if draw(st.integers(0, 3)) == 0 else []
    return record, fleet, {"where": answer, "voice": Answer(conflicts=[conflicts], rules=rules)}


@given(questions_with_a_partial_set())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_partial_set_leaves_out_what_conflicts_and_nothing_else(question: tuple[Revision, Fleet, Answers]) -> None:
    record, fleet, answers = question
    where = answers["where"].apps

    def options(app: ShapedApp) -> list[tuple[int, ...]]:
        if app.name not in where:
            return list(combinations(range(fleet.size), app.replicas))
        selected = [fleet.ids[name] for name in where[app.name].groups[0].clusters]  # type: ignore[union-attr]
        return [some for count in range(1, len(selected) + 1) for some in combinations(sorted(selected), count)]

    possible = {
        choice
        for choice in product(*map(options, record.apps))
        if allowed(record, fleet, answers, choice) and holds(record, fleet, choice)
    }
    found = proposed(record, fleet, answers)
    if isinstance(found, ProposalRefused):
        assert not possible
        return
    choice = chosen_by(found, record, fleet)
    assert choice in possible
    # No partial set could take another of its clusters beside this choice.
    for number, app in enumerate(record.apps):
        for cid in range(fleet.size):
            more = tuple(sorted({*choice[number], cid}))
            grown = tuple(more if at == number else clusters for at, clusters in enumerate(choice))
            assert app.name not in where or grown == choice or grown not in possible


# -- where the sums suffice and the nodes do not ----------------------------------------------------------------------


def pods(name: str, cpu: int, count: int = 1) -> ShapedApp:
    return ShapedApp(name=name, shapes=[shaped(f"Deployment/{name}", count=count, resources={"cpu": cpu})])


def preferring(*clusters: str) -> Answer:
    levels = [Level(value=1.0 - i / 100, clusters=[cluster]) for i, cluster in enumerate(clusters)]
    return Answer(apps={"a": AppAnswer(levels=levels)})


@pytest.mark.parametrize("misleading", [1, 5, 31])
def test_where_the_best_does_not_hold_it_all_the_next_is_taken(misleading: int) -> None:
    """Four cores in the sum, but no node with three."""
    torn = {f"lab/c-{i:02}": [node(cpu="2"), node(cpu="2")] for i in range(misleading)}
    fleet = fleet_of({**torn, "lab/last": [node(cpu="3")]})
    found = proposed(revision("g", pods("a", 3000)), fleet, {"taste": preferring(*torn)})
    assert isinstance(found, Decision)
    assert [claim.cluster for claim in found.claims] == ["lab/last"]


def test_two_that_fit_alone_but_not_together_go_apart() -> None:
    fleet = fleet_of({"lab/one": [node(cpu="3"), node(cpu="3")], "lab/two": [node(cpu="3")]})
    record = revision("g", pods("a", 2000, 2), pods("b", 2000))
    found = proposed(
        record, fleet, {"taste": Answer(apps={"b": AppAnswer(levels=[Level(value=1, clusters=["lab/one"])])})}
    )
    assert isinstance(found, Decision)
    assert {claim.app: claim.cluster for claim in found.claims} == {"a": "lab/one", "b": "lab/two"}


def both(**cores: int) -> tuple[Revision, Fleet]:
    return revision("g", pods("a", 1000), pods("b", 1000)), fleet_of(
        {f"lab/{name}": [node(cpu=str(n))] for name, n in cores.items()}
    )


def liking(cluster: str) -> dict[str, AppAnswer]:
    return {app: AppAnswer(levels=[Level(value=1, clusters=[cluster])]) for app in "ab"}


def test_where_somebody_says_they_conflict_they_are_not_together() -> None:
    record, fleet = both(one=8, two=8)
    for where in ("lab/one", "lab/two"):
        answer = Answer(apps=liking(where), conflicts=[Conflict(apps=("b", "a"), clusters=[where])])
        found = proposed(record, fleet, {"voice": answer})
        assert isinstance(found, Decision)
        assert len({claim.cluster for claim in found.claims}) == 2
        free = proposed(record, fleet, {"voice": Answer(apps=liking(where))})
        assert isinstance(free, Decision)
        assert {claim.cluster for claim in free.claims} == {where}


def test_what_must_be_together_or_apart_is() -> None:
    record, fleet = both(one=8, two=8)
    tastes = {"a": AppAnswer(levels=[Level(value=1, clusters=["lab/one"])])}
    tastes["b"] = AppAnswer(levels=[Level(value=1, clusters=["lab/two"])])
    together = Answer(apps=tastes, rules=[AppsRule(app="a", mode="with", apps=["b"])])
    apart = Answer(apps=liking("lab/one"), rules=[AppsRule(app="a", mode="deny", apps=["b"])])
    for answer, clusters in ((together, 1), (apart, 2)):
        found = proposed(record, fleet, {"voice": answer})
        assert isinstance(found, Decision)
        assert len({claim.cluster for claim in found.claims}) == clusters


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_that_fits_alone_is_not_kept_from_a_cluster_where_two_do_not_fit(order: tuple[int, int]) -> None:
    """Checks that each of two apps that fail together on a cluster may still go there alone."""
    fleet = fleet_of({"lab/torn": [node(cpu="3"), node(cpu="3")], "lab/small": [node(cpu="2")]})
    apps = [pods("a", 2000, 2), pods("b", 2000)]
    record = revision("g", *(apps[i] for i in order))
    found = proposed(record, fleet, {"voice": Answer(apps=liking("lab/torn"))})
    assert isinstance(found, Decision)
    assert {claim.app: claim.cluster for claim in found.claims} == {"a": "lab/torn", "b": "lab/small"}


def test_many_that_all_fail_in_their_nodes_say_so_within_bounds() -> None:
    fleet = fleet_of({f"lab/c-{i:02}": [node(cpu="2"), node(cpu="2")] for i in range(60)})
    found = proposed(revision("g", pods("a", 3000)), fleet, {})
    assert isinstance(found, ProposalRefused)
    assert {reason.code for reason in found.reasons} >= {"ResourceShort"}


def test_a_required_voice_that_is_missing_leaves_nothing_to_propose() -> None:
    fleet = fleet_of({"lab/one": [node(cpu="3")]})
    record = revision("g", pods("a", 1000))
    heard = Replies(
        ["a"], [Controller(name="must", policy="required")], {"must": Reply("timeout", b"", 1.0, "silent")}, {}
    )
    found = propose(record, gather(heard, fleet), fleet, Ledger(), NameOrder(), "d")
    assert isinstance(found, ProposalRefused)
    assert [(reason.code, reason.by) for reason in found.reasons] == [("ControllerTimeout", "must")]


@pytest.mark.parametrize("state", ["stale", "cordoned"])
def test_clusters_that_are_not_usable_take_nothing(state: str) -> None:
    fleet = fleet_of({"lab/out": [node(cpu="9")], "lab/in": [node(cpu="3")]}, **{state: ["lab/out"]})
    answers = {"taste": preferring("lab/out")}
    found = proposed(revision("g", pods("a", 1000)), fleet, answers)
    assert isinstance(found, Decision)
    assert [claim.cluster for claim in found.claims] == ["lab/in"]
    refused = proposed(revision("g", pods("a", 4000)), fleet, answers)
    assert isinstance(refused, ProposalRefused)
    assert {"ClusterStale" if state == "stale" else "ClusterCordoned"} <= {r.code for r in refused.reasons}


def test_apps_that_ask_for_it_are_pinned_and_stay_so() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4"), node(cpu="4")]})
    for kind, pinned in (("Deployment", True), ("CronJob", True), ("Pod", False), ("DaemonSet", False)):
        app = pods("x", 3000, 2 if pinned else 1)
        app.shapes[0] = msgspec.structs.replace(app.shapes[0], object=f"{kind}/x", per_node=kind == "DaemonSet")
        decision = proposed(revision("g", msgspec.structs.replace(app, steering="pinned")), fleet, {})
        assert isinstance(decision, Decision)
        (claim,) = decision.claims
        assert claim.pinned == pinned
        assert bool(claim.required_nodes) == (kind == "Pod"), "a bare Pod has one node"


def test_apps_that_ask_for_it_and_groups_that_were_displaced_are_confined_to_their_nodes() -> None:
    fleet = fleet_of({"lab/a": [node(cpu="4"), node(cpu="4")]})
    app = msgspec.structs.replace(pods("x", 3000, 2), steering="required")
    both_nodes = {"n-0": "", "n-1": ""}
    decision = proposed(revision("g", app), fleet, {})
    assert isinstance(decision, Decision) and decision.claims[0].required_nodes == both_nodes
    preferred = revision("g", pods("x", 3000, 2))
    decision = proposed(preferred, fleet, {})
    assert isinstance(decision, Decision) and decision.claims[0].required_nodes == {}
    ledger = Ledger()
    ledger.steered.add(preferred.group)
    again = propose(preferred, gathered(preferred, fleet, {}), fleet, ledger, NameOrder(), "d")
    assert isinstance(again, Decision) and again.claims[0].required_nodes == both_nodes


def test_cores_that_may_not_be_exclusive_are_told_of_the_clusters_that_were_chosen() -> None:
    fleet = fleet_of(
        {
            "lab/silent": [node(cpu="8")],
            "lab/static": [node(cpu="8", exclusive=8)],
            "lab/some": [node("m-0", cpu="8"), node("m-1", cpu="8", exclusive=8)],
        }
    )
    cores = shaped("Deployment/x", resources={"cpu": 2000, EXCLUSIVE: 2})
    record = revision("g", ShapedApp(name="a", shapes=[cores]))

    def warnings(cluster: str, wanted: Revision) -> list[tuple[str, str]]:
        here = Answer(apps={"a": AppAnswer(groups=[CandidateGroup(mode="allow", clusters=[cluster])])})
        decided = proposed(wanted, fleet, {"x": here})
        assert isinstance(decided, Decision)
        return [(warning.code, warning.message) for warning in decided.warnings]

    told = "lab/silent reports no CPU manager; the whole cores of Deployment/x may not be exclusive there"
    assert warnings("lab/silent", record) == [("ExclusiveCoresUnknown", told)]
    assert warnings("lab/static", record) == warnings("lab/some", record) == []
    shared = shaped("Deployment/x", resources={"cpu": 2000})
    assert warnings("lab/silent", revision("g", ShapedApp(name="a", shapes=[shared]))) == []
