"""Rules of pods about each other against the filters of the scheduler: an assignment is right if its pods, each held to its
node, all start in whatever order they come."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from moorage.controllers.hardware.core.answers import HardwareAnswers
from moorage.fit import Assigned, FitCache, PackingSolutions, Unassigned, assign, explain
from moorage.fit.hard_packing import solve
from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.ledger import Ledger
from moorage.ledger.capacity import Capacity
from moorage.merger.core.propose import NameOrder, propose
from moorage.merger.core.responses import ControllerResults, Replies
from moorage.model.candidates import Ask
from moorage.model.claims import Commit, Decision
from moorage.model.groups import Revision
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape
from moorage.podspec import parse_host_port
from moorage.sim.core.cluster_spec import NodeKind
from moorage.sim.core.pod_needs import PodNeed, read_template
from moorage.sim.core.scheduler import SchedulerNode, choose
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.rule_worlds import HOSTNAME, World, random_world

WORLDS = 20


def revision_of(application: dict[str, Any]) -> Revision:
    return resolve(validate.application(application))


def shapes_of(record: Revision) -> list[Shape]:
    return [shape for app in record.apps for shape in app.shapes]


class Pods(NamedTuple):
    """The pods of one object as the scheduler reads them."""

    need: PodNeed
    replicas: int


def pods_of(application: dict[str, Any]) -> list[Pods]:
    found = []
    for app in application["spec"]["apps"]:
        for manifest in app["manifests"]:
            template = manifest["spec"]["template"]
            generated = {"pod-template-hash": manifest["metadata"]["name"]}
            found.append(Pods(read_template(template, generated=generated), manifest["spec"].get("replicas", 1)))
    return found


def kinds_of(nodes: Sequence[NodeReport]) -> list[NodeKind]:
    return [NodeKind(allocatable=n.allocatable, labels=n.labels, taints=tuple(n.taints)) for n in nodes]


class Reference:
    """Decides by trying: every placement, and for each of them every order."""

    def __init__(self, world: World) -> None:
        self.nodes = world.nodes
        self.kinds = kinds_of(world.nodes)
        self.pods = pods_of(world.application)

    def cluster(self) -> list[SchedulerNode]:
        made = []
        for report, kind in zip(self.nodes, self.kinds, strict=True):
            node = SchedulerNode(report.name, kind, {}, 0)
            node.ports.update(map(parse_host_port, report.host_ports))
            made.append(node)
        return made

    def all_start(self, places: Sequence[Sequence[int]]) -> bool:
        """Returns whether no order leaves a pod behind. `places`: per object the nodes of its pods."""
        pods = [(n, place) for n, chosen in enumerate(places) for place in chosen]
        seen: set[frozenset[int]] = set()
        stack: list[frozenset[int]] = [frozenset()]
        while stack:
            bound = stack.pop()
            if bound in seen or len(bound) == len(pods):
                continue
            seen.add(bound)
            cluster = self.cluster()
            for at in bound:
                cluster[pods[at][1]].take(self.pods[pods[at][0]].need)
            following = [
                bound | {at}
                for at, (number, place) in enumerate(pods)
                if at not in bound and choose(self.pods[number].need, [cluster[place]], cluster) is not None
            ]
            if not following:
                return False
            stack += following
        return True

    def exists(self) -> bool:
        ways = [itertools.combinations_with_replacement(range(len(self.nodes)), pods.replicas) for pods in self.pods]
        return any(self.all_start(places) for places in itertools.product(*map(list, ways)))


def check(world: World, exact: bool) -> bool:
    """Compares an assignment with the reference, and returns whether there is one."""
    record = revision_of(world.application)
    if any(": affinity" in warning.message for warning in record.warnings):
        return False  # nobody knows the pods that these pods must be near to
    shapes = shapes_of(record)
    fleet = fleet_of({"lab/a": world.nodes})
    reference = Reference(world)
    where = fleet.rows_of(0)
    result = assign(fleet, where, shapes)
    solutions = PackingSolutions()
    solved = assign(fleet, where, shapes, steps=0, solutions=solutions)
    solutions.add(solve(solutions.unsolved, 20))
    solved = assign(fleet, where, shapes, steps=0, solutions=solutions)
    for found in (result, solved):
        if isinstance(found, Assigned):
            rows = {fleet.node_name(row): at for at, row in enumerate(where.tolist())}
            places = [[rows[slot.node] for slot in slots for _ in range(slot.count)] for slots in found.slots]
            assert reference.all_start(places), places
            assert all(FitCache(fleet).get(shape).fits[0] for shape in shapes), "necessary for each object"
        elif found.code != "SearchBound" and exact:
            assert not reference.exists(), found
    if len(shapes) == 1 and len(shapes[0].rules) == 1 and exact:
        assert FitCache(fleet).get(shapes[0]).fits[0] == reference.exists(), "one rule of one object is exact"
    if not isinstance(result, Assigned):
        for shape in shapes:
            if not FitCache(fleet).get(shape).fits[0]:
                assert explain(fleet, shape, np.ones(1, np.bool_))
    return isinstance(result, Assigned)


KINDS = [
    ("apart",),
    ("near",),
    ("spread",),
    ("apart", "spread"),
    ("apart", "near", "ports"),
    ("apart", "near", "spread", "ports"),
]


def is_exact(kinds: tuple[str, ...]) -> bool:
    """Spread is refused where it holds only because some pods start after others."""
    return not {"near", "spread"} <= set(kinds)


@pytest.mark.parametrize("kinds", KINDS, ids=" ".join)
def test_assignments_are_right_and_found(kinds: tuple[str, ...]) -> None:
    placed = 0
    for seed in range(WORLDS):
        rng = random.Random(f"{kinds}{seed}")
        placed += check(random_world(rng, kinds, nodes=4, pods=4), is_exact(kinds))
    assert 0 < placed < WORLDS


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kinds", KINDS, ids=" ".join)
@pytest.mark.parametrize("part", range(16))
def test_many_assignments_are_right_and_found(kinds: tuple[str, ...], part: int) -> None:
    for seed in range(WORLDS * (part + 1), WORLDS * (part + 2)):
        check(random_world(random.Random(f"{kinds}{seed}"), kinds, nodes=4, pods=5), is_exact(kinds))


# --- each rule by name


def deployment(name: str, replicas: int, cpu: str = "1", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "template": template},
    }


def application(*objects: dict[str, Any]) -> dict[str, Any]:
    apps = [{"name": f"a{i}", "manifests": [made]} for i, made in enumerate(objects)]
    return {"kind": "Application", "metadata": {"name": "w"}, "spec": {"apps": apps}}


def beside(kind: str, app: str, key: str = "zone") -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def evenly(app: str, key: str = "zone", **fields: Any) -> dict[str, Any]:
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **selector, **fields}
    return {"topologySpreadConstraints": [constraint]}


def zones(*names: str, cpu: str = "4") -> list[NodeReport]:
    return [node(f"n-{i}", cpu=cpu, labels={"zone": name} if name else {}) for i, name in enumerate(names)]


def places(nodes: list[NodeReport], *objects: dict[str, Any]) -> list[list[str]] | Unassigned:
    """Per object the values of `zone` where its pods are."""
    fleet = fleet_of({"lab/a": nodes})
    result = assign(fleet, fleet.rows_of(0), shapes_of(revision_of(application(*objects))))
    if isinstance(result, Unassigned):
        return result
    zone = {n.name: n.labels.get("zone", "") for n in nodes}
    return [sorted(zone[s.node] for s in slots for _ in range(s.count)) for slots in result.slots]


@pytest.mark.parametrize(
    ("zone", "objects", "expected"),
    [
        ("aab", [deployment("x", 2, **beside("podAntiAffinity", "x"))], [["a", "b"]]),
        ("aab", [deployment("x", 3, **beside("podAntiAffinity", "x"))], ("PodAntiAffinity", 3, 2)),
        ("aab", [deployment("x", 3, **beside("podAntiAffinity", "x", HOSTNAME))], [["a", "a", "b"]]),
        ("aab", [deployment("x", 4, **beside("podAntiAffinity", "x", HOSTNAME))], ("PodAntiAffinity", 4, 3)),
        ("a", [deployment("x", 1), deployment("y", 1, **beside("podAntiAffinity", "x"))], ("PodRulesFail", 0, 0)),
        ("ab", [deployment("x", 5), deployment("y", 1, **beside("podAntiAffinity", "x"))], ("PodRulesFail", 0, 0)),
        ("aab", [deployment("x", 5), deployment("y", 1, **beside("podAntiAffinity", "x"))], [["a"] * 5, ["b"]]),
        ("aab", [deployment("x", 3, **evenly("x"))], [["a", "a", "b"]]),
        ("ab", [deployment("x", 8, cpu="500m", **evenly("x"))], [["a"] * 4 + ["b"] * 4]),
        ("aab", [deployment("x", 6, cpu="2", **evenly("x"))], ("TopologySpread", 6, 5)),
        ("aab", [deployment("x", 3, **evenly("x", minDomains=3))], ("TopologySpread", 3, 2)),
        ("aab", [deployment("x", 3, **evenly("x", maxSkew=2, nodeSelector={}))], [["a", "a", "b"]]),
        ("aab", [deployment("x", 6, **beside("podAffinity", "x"))], [["a"] * 6]),
        ("aab", [deployment("x", 9, **beside("podAffinity", "x"))], ("PodAffinity", 9, 8)),
        (
            "ab",
            [deployment("x", 1), deployment("y", 4, **beside("podAffinity", "x", HOSTNAME))],
            ("PodRulesFail", 0, 0),
        ),
        (
            "ab",
            [deployment("x", 2), deployment("y", 4, **beside("podAffinity", "x"))],
            [["a", "b"], ["a", "a", "a", "b"]],
        ),
    ],
)
def test_rules_by_name(zone: str, objects: list[dict[str, Any]], expected: Any) -> None:
    found = places(zones(*zone), *objects)
    if isinstance(found, Unassigned):
        assert (found.code, found.needed, found.best) == expected
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            [deployment("x", 2, **beside("podAntiAffinity", "x"))],
            [deployment("x", 3, **beside("podAntiAffinity", "x"))],
            ["abc"],
        ),
        (
            [deployment("x", 1)],
            [deployment("x", 1), deployment("y", 2, **beside("podAntiAffinity", "x"))],
            ["a", "bc"],
        ),
        (
            [deployment("x", 1)],
            [deployment("x", 1), deployment("y", 3, **beside("podAffinity", "x"))],
            ["a", "aaa"],
        ),
        ([deployment("x", 2, **evenly("x"))], [deployment("x", 3, **evenly("x"))], ["abc"]),
    ],
)
def test_pods_that_stay_count(before: list[dict[str, Any]], after: list[dict[str, Any]], expected: list[str]) -> None:
    fleet, ledger = fleet_of({"lab/a": zones("a", "b", "c")}), Ledger()
    decisions = []
    for number, objects in enumerate((before, after), 1):
        record = msgspec.structs.replace(revision_of(application(*objects)), revision=number)
        none = ControllerResults(Replies([app.name for app in record.apps], [], {}, {}), fleet.membership)
        proposal = propose(record, none, fleet, ledger, NameOrder(), f"d{number}")
        assert isinstance(proposal, Decision)
        ledger.fold(number, Commit(id=f"c{number}", entries=[proposal]))
        decisions.append(proposal)
    zone = {"n-0": "a", "n-1": "b", "n-2": "c"}
    slots = [[zone[s.node] for s in claim.slots for _ in range(s.count)] for claim in decisions[1].claims]
    if expected[0] != "a":
        assert ["".join(sorted(names)) for names in slots] == expected
    else:  # the first pod may be anywhere, and stays there
        (home,) = slots[0]
        assert slots[0] == [zone[decisions[0].claims[0].slots[0].node]]
        beside_it = {name == home for name in slots[1]}
        assert beside_it == ({True} if expected[1] == "aaa" else {False})
    assert [(c.rules, c.marks) for c in decisions[1].claims] == [
        (shape.rules, shape.marks) for shape in shapes_of(revision_of(application(*after)))
    ]


@pytest.mark.parametrize(
    ("spec", "code", "text"),
    [
        (
            beside("podAntiAffinity", "x"),
            "PodAntiAffinity",
            "pod anti-affinity leaves room for at most 2 of the 9 pods",
        ),
        (beside("podAffinity", "x"), "PodAffinity", "pod affinity leaves room for at most 8 of the 9 pods"),
        (evenly("x"), "TopologySpread", "topology spread leaves room for at most 7 of the 9 pods"),
    ],
)
def test_reasons_have_numbers(spec: dict[str, Any], code: str, text: str) -> None:
    fleet = fleet_of(
        {"lab/a": zones(*"aaaaaab", cpu="2")} if code != "PodAffinity" else {"lab/a": zones("a", "b", cpu="8")}
    )
    if code == "TopologySpread":
        fleet = fleet_of({"lab/a": [*zones(*"aa", cpu="5"), node("n-9", cpu="3", labels={"zone": "b"})]})
    record = revision_of(application(deployment("x", 9, **spec)))
    answer = HardwareAnswers(fleet).answer(
        Ask(id="q", group=record.group, revision=1, budget_ms=100, epoch="", tenant="t", apps=record.apps)
    )
    (reason,) = answer.apps["a0"].reasons
    assert (reason.code, reason.needed) == (code, "9")
    assert text in reason.message


def test_updates_keep_the_rules_with_and_without_their_surge() -> None:
    placed = 0
    for seed in range(150):
        kinds = random.Random(seed).choice([("apart",), ("spread",), ("near",), ("apart", "spread")])
        before, after = (
            random_world(random.Random(f"{part}{seed}"), kinds, nodes=4, pods=pods)
            for part, pods in (("a", 4), ("b", 5))
        )
        after = World(after.application, before.nodes)
        fleet, ledger = fleet_of({"lab/a": before.nodes}), Ledger()
        capacity = Capacity(fleet, ledger)
        decisions: list[Decision] = []
        for number, world in enumerate((before, after), 1):
            record = msgspec.structs.replace(revision_of(world.application), revision=number)
            none = ControllerResults(Replies([app.name for app in record.apps], [], {}, {}), fleet.membership)
            proposal = propose(record, none, fleet, ledger, NameOrder(), f"d{number}")
            if any(": affinity" in warning.message for warning in record.warnings) or not isinstance(
                proposal, Decision
            ):
                break
            capacity.hold(proposal)
            changes = ledger.fold(number, Commit(id=f"c{number}", entries=[proposal]))
            capacity.folded(changes, [proposal])
            decisions.append(proposal)
        if len(decisions) == 2:
            placed += 1
            at = {report.name: number for number, report in enumerate(before.nodes)}
            claims = {(claim.app, claim.object): claim for claim in decisions[1].claims}
            chosen = [
                [
                    at[s.node]
                    for s in claims[app["name"], f"Deployment/{m['metadata']['name']}"].slots
                    if not s.surge
                    for _ in range(s.count)
                ]
                for app in after.application["spec"]["apps"]
                for m in app["manifests"]
            ]
            assert Reference(after).all_start(chosen), seed
    assert placed > 10
