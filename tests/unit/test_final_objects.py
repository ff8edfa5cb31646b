"""Final objects of every kind with a pod template, from manifests, contributions and claims."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.controllers.hardware.core.actions import contributions, granted
from moorage.ledger import Ledger
from moorage.model.claims import Claim, Commit, Decision, IntentRef, Slot
from moorage.model.controllers import Controller
from moorage.model.desired_state import ActionAnswer, ActionAsk, Contribution, DesiredRecord, Pins
from moorage.model.object_names import DECISION
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import DeviceGrant
from moorage.patcher.core.cluster_apps import ClusterApps
from moorage.patcher.core.contribution_checks import disagreements, unusable
from moorage.patcher.core.contributions import MAX_BYTES, combine, read_answer
from moorage.patcher.core.desired_state import confined_pods, held_pods, nodes_of, parts_of, pins_of
from moorage.patcher.core.final_objects import (
    FinalObjects,
    preferred_nodes,
    required_nodes,
)
from moorage.podspec import CLAIM, GATE, PARTS, WORKLOADS, diff, pod_spec, template

Manifest = dict[str, Any]
API = {"Job": "batch/v1", "CronJob": "batch/v1", "Pod": "v1", "ReplicationController": "v1"}


def manifest(kind: str, spec: Manifest | None = None, name: str = "core") -> Manifest:
    pod: Manifest = spec or {
        "initContainers": [{"name": "prepare", "image": "i"}],
        "containers": [
            {"name": "side", "image": "s", "resources": {"requests": {"cpu": "100m"}}},
            {"name": "main", "image": "m", "resources": {"limits": {"memory": "1Mi", "x/y": "1"}}},
        ],
    }
    node: Manifest = {"metadata": {"labels": {"app": "core"}}, "spec": pod}
    for part in reversed(WORKLOADS[kind]):
        node = {part: node}
    node.update({"apiVersion": API.get(kind, "apps/v1"), "kind": kind})
    node["metadata"] = {**node.get("metadata", {}), "name": name}
    return node


def claim(
    cluster: str = "lab/a", kind: str = "StatefulSet", slots: list[Slot] | None = None, ident: str = "c1"
) -> Claim:
    return Claim(
        id=ident,
        decision="d1",
        intent=IntentRef(kind="Application", name="shop", revision=1),
        tenant="default",
        app="fwall",
        object=f"{kind}/core",
        cluster=cluster,
        slots=slots if slots is not None else [Slot(node="n-1", resources={"cpu": 4000})],
    )


def ask(kind: str, consumers: list[Manifest], claims: list[Claim] | None = None, needed: dict[str, int] | None = None, spec: Manifest | None = None) -> ActionAsk:  # fmt: skip
    for consumer in consumers:
        ref = {"apiVersion": API.get(kind, "apps/v1"), "kind": kind, "name": "core"}
        consumer.setdefault("object", ref)
    decision = Decision(id="d1", group="g", revision=1, claims=claims if claims is not None else [claim(kind=kind)])
    return ActionAsk(
        group="g",
        revision=1,
        budget_ms=100,
        decision=msgspec.to_builtins(decision),
        intents=[
            {"kind": "HpaIntent", "name": "fwall", "spec": {"group": "g", "app": "fwall", "consumers": consumers}}
        ],
        manifests={"fwall": [manifest(kind, spec)]},
        apps=[ShapedApp(name="fwall", shapes=[Shape(key="k", object=f"{kind}/core", resources=needed or {})])],
    )


def everywhere(_cluster: str, _label: tuple[str, str]) -> bool:
    return True


def patched(asked: ActionAsk, cluster: str = "lab/a", extra: list[Contribution] | None = None) -> Manifest:
    decision = msgspec.convert(asked.decision, Decision)
    found = contributions(asked, everywhere) + (extra or [])
    assert disagreements(found) == []
    assert unusable(asked.manifests, found) == []
    nodes = {c.id: preferred_nodes(c) for c in decision.claims}
    before = copy.deepcopy(asked.manifests)
    final = FinalObjects(asked.manifests["fwall"], found, nodes, decision.id)
    by_cluster: dict[str, list[Claim]] = {}
    for one in decision.claims:
        by_cluster.setdefault(one.cluster, []).append(one)
    for other, claims in by_cluster.items():  # what they share must not differ from what each gets alone
        alone = FinalObjects(
            asked.manifests["fwall"], [c for c in found if c.cluster in ("", other)], nodes, decision.id
        )
        assert final.on_cluster(other, claims) == alone.on_cluster(other, claims)
        assert [msgspec.json.decode(raw) for raw in final.encoded_on_cluster(other, claims)] == alone.on_cluster(
            other, claims
        )
    assert asked.manifests == before, "the input manifest was changed"
    return final.on_cluster(cluster, by_cluster.get(cluster, []))[0]


NEEDS = [
    {"resource": "cpu", "requests": 4, "limits": 4},
    {"resource": "memory", "requests": 1000, "limits": 1000, "units": "MB"},
    {"resource": "nvidia.com/gpu", "limits": 1},
    {"label": "feature/avx", "value": "true"},
]


@pytest.mark.parametrize("kind", list(WORKLOADS))
def test_every_kind_with_a_pod_template(kind: str) -> None:
    result = patched(ask(kind, [{"name": "core", "container": "main", "needs": NEEDS}]))
    spec = pod_spec(result)
    assert spec is not None
    side, main = spec["containers"]
    assert side == {"name": "side", "image": "s", "resources": {"requests": {"cpu": "100m"}}}
    assert main["resources"] == {
        "requests": {"cpu": "4", "memory": "1G", "nvidia.com/gpu": "1"},
        "limits": {"cpu": "4", "memory": "1G", "nvidia.com/gpu": "1", "x/y": "1"},
    }
    node = spec["affinity"]["nodeAffinity"]
    label = {"key": "feature/avx", "operator": "In", "values": ["true"]}
    required = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert required == [{"matchExpressions": [label]}]
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n-1"]}
    preferred = {"weight": 100, "preference": {"matchExpressions": [host]}}
    if kind != "DaemonSet":
        assert node["preferredDuringSchedulingIgnoredDuringExecution"] == [preferred]
    found = template(result)
    assert found is not None
    assert found["metadata"]["labels"] == {"app": "core", CLAIM: "c1"}
    assert result["metadata"]["annotations"] == {DECISION: "d1"}
    if kind != "Pod":
        assert "annotations" not in found["metadata"], "a decision must never restart pods"


def test_init_containers_are_found_by_name() -> None:
    needs: list[Manifest] = [{"resource": "cpu", "requests": "250m"}]
    spec = pod_spec(patched(ask("Deployment", [{"container": "prepare", "needs": needs}])))
    assert spec is not None
    assert spec["initContainers"][0]["resources"] == {"requests": {"cpu": "250m"}}


def test_requests_above_the_manifests_limit_take_it_along() -> None:
    needs = [{"resource": "memory", "requests": "2Mi"}, {"resource": "cpu", "requests": 1}]
    spec = pod_spec(patched(ask("Deployment", [{"container": "main", "needs": needs}])))
    assert spec is not None
    assert spec["containers"][1]["resources"] == {
        "requests": {"memory": "2Mi", "cpu": "1"},
        "limits": {"memory": "2Mi", "x/y": "1"},
    }


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"])
def test_replicas_of_a_consumer(kind: str) -> None:
    result: Any = patched(ask(kind, [{"replicas": 3, "needs": []}]))
    assert result["spec"]["replicas"] == 3


@pytest.mark.parametrize("kind", ["Job", "CronJob", "DaemonSet", "Pod"])
def test_kinds_without_replicas_keep_their_own_numbers(kind: str) -> None:
    result = patched(ask(kind, [{"replicas": 1, "needs": []}]))
    assert template(result) != template(manifest(kind)), "it carries the claim"
    assert b"replicas" not in msgspec.json.encode(result) and b"parallelism" not in msgspec.json.encode(result)


def test_labels_are_anded_into_every_term_and_empty_terms_stay_empty() -> None:
    there = {"key": "zone", "operator": "In", "values": ["a"]}
    affinity = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [there]}, {"matchFields": [{"key": "metadata.name"}]}, {}]
            }
        },
    }
    spec = {"containers": [{"name": "main"}], "affinity": affinity}
    result = pod_spec(patched(ask("Deployment", [{"needs": [{"label": "gpu", "value": True}]}], spec=spec)))
    assert result is not None
    label = {"key": "gpu", "operator": "In", "values": ["true"]}
    terms = result["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [there, label]},
        {"matchFields": [{"key": "metadata.name"}], "matchExpressions": [label]},
        {},
    ]
    assert result["affinity"]["podAntiAffinity"] == {"x": 1}


def test_optional_needs_are_written_only_where_they_were_granted() -> None:
    needs = [
        {"resource": "cpu", "requests": 2},
        {"resource": "nvidia.com/gpu", "limits": 1, "mandatory": False, "weight": 9},
        {"label": "ssd", "value": "true", "weight": 3},
    ]
    claims = [
        claim("lab/a", slots=[Slot(node="n-1", resources={"cpu": 2000, "nvidia.com/gpu": 1})]),
        claim("lab/b", slots=[Slot(node="n-1", resources={"cpu": 2000})], ident="c2"),
    ]
    asked = ask("StatefulSet", [{"container": "main", "needs": needs}], claims, {"cpu": 2000})
    with_gpu, without = pod_spec(patched(asked)), pod_spec(patched(asked, "lab/b"))
    assert with_gpu is not None and without is not None
    assert with_gpu["containers"][1]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in without["containers"][1]["resources"]["limits"]
    preferred = without["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred[0]["weight"] == 3
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in without["affinity"]["nodeAffinity"]


@pytest.mark.parametrize(
    "slot", [Slot(node="n-1", parts={"n-1/numa0": {"cpu": 1}}), Slot(node="n-1", devices=[DeviceGrant(part="x")])]
)
def test_slots_inside_of_a_node_bind_the_pods_to_it(slot: Slot) -> None:
    spec = pod_spec(patched(ask("StatefulSet", [], [claim(slots=[slot, Slot(node="n-2")])])))
    assert spec is not None
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert required == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n-1", "n-2"]}]}
    ]


def test_consumers_of_one_container_add_up() -> None:
    one = {"container": "main", "needs": [{"resource": "cpu", "limits": 1}]}
    two = {"container": "main", "needs": [{"resource": "cpu", "requests": "500m"}]}
    spec = pod_spec(patched(ask("Deployment", [one, two])))
    assert spec is not None
    resources = spec["containers"][1]["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("1500m", "1500m")


def setter(path: str, value: Any, by: str, cluster: str = "") -> Contribution:
    return Contribution(app="fwall", object="StatefulSet/core", path=path, value=value, by=by, cluster=cluster)


@pytest.mark.parametrize(
    ("one", "two", "disagree"),
    [
        (setter("/spec/replicas", 2, "a"), setter("/spec/replicas", 3, "b"), True),
        (setter("/spec/replicas", 2, "a"), setter("/spec/replicas", 2, "b"), False),
        (setter("/spec/replicas", 1, "a"), setter("/spec/replicas", True, "b"), True),
        (setter("/spec/replicas", 2, "a", "lab/a"), setter("/spec/replicas", 3, "b", "lab/b"), False),
        (setter("/spec/replicas", 2, "a"), setter("/spec/replicas", 3, "b", "lab/b"), True),
        (setter("/spec/x", {"y": 1}, "a"), setter("/spec/x/y", 2, "b"), True),
        (setter("/spec/x/y", 1, "b"), setter("/spec/x", {"y": 1}, "a"), False),
        (setter("/spec/x", {}, "a"), setter("/spec/x/y", 2, "b"), True),
    ],
)
def test_disagreement_names_both(one: Contribution, two: Contribution, disagree: bool) -> None:
    reasons = disagreements([one, two])
    assert bool(reasons) is disagree
    assert disagreements([two, one]) != [] if disagree else True
    for reason in reasons:
        assert reason.code == "PatchConflict"
        assert set(reason.by.split(", ")) == {"a", "b"}


@pytest.mark.parametrize(
    "one",
    [
        setter("/spec/template/spec/containers/7/image", "x", "a"),
        setter("", {}, "a"),
        setter("/kind", "Pod", "a"),
        setter("/metadata/name", "x", "a"),
        setter("spec", "x", "a"),
        Contribution(app="fwall", object="StatefulSet/other", path="/x", value=1, by="a"),
        Contribution(app="fwall", object="StatefulSet/core", op="require", value=7, by="a"),
    ],
)
def test_contributions_that_fit_nothing_are_refused(one: Contribution) -> None:
    reasons = unusable({"fwall": [manifest("StatefulSet")]}, [one])
    assert [(r.code, r.by) for r in reasons] == [("ControllerError", "a")]


def test_contributions_that_are_too_large_together_are_refused() -> None:
    controllers = [Controller(name=name, actions=True) for name in "ab"]
    value = Contribution(app="fwall", object="StatefulSet/core", path="/spec/x", value="x" * (MAX_BYTES // 2), by="")
    encoded = msgspec.json.encode(ActionAnswer(contributions=[value]))
    result = read_answer("a", encoded, {"fwall": [manifest("StatefulSet")]})
    assert not combine(controllers[:1], {"a": result}, {}).reasons
    (reason,) = combine(controllers, {"a": result, "b": result._replace(size=result.size + 1)}, {}).reasons
    assert (reason.code, reason.by) == ("PatchTooLarge", "b")


def test_an_optional_label_is_written_only_where_some_node_has_it() -> None:
    need = {"label": "avx", "value": "true", "mandatory": False, "weight": 4}
    asked = ask("Deployment", [{"needs": [need]}], [claim("lab/a", "Deployment"), claim("lab/b", "Deployment")])
    found = contributions(asked, lambda cluster, label: (cluster, label) == ("lab/b", ("avx", "true")))
    assert [(c.op, c.cluster) for c in found] == [("prefer", "lab/b")]
    assert [c.cluster for c in contributions(asked, everywhere)] == [""]
    assert contributions(asked, lambda _cluster, _label: False) == []


def test_a_preference_names_nodes_by_their_hostname_label() -> None:
    assert preferred_nodes(claim(slots=[Slot(node="n-1"), Slot(node="n-2", host="ip-2")])) == ["ip-2", "n-1"]


def test_pods_that_are_confined_to_nodes_require_them() -> None:
    one = msgspec.structs.replace(claim(kind="Deployment"), required_nodes={"n-1": "", "n-2": "ip-2"})
    assert required_nodes(one) == ["ip-2", "n-1"]
    found = FinalObjects([manifest("Deployment")], [], {"c1": required_nodes(one)}, "d1").on_cluster("lab/a", [one])[0]
    affinity = template(found)["spec"]["affinity"]["nodeAffinity"]  # type: ignore[index]
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["ip-2", "n-1"]}
    terms = [{"matchExpressions": [expression]}]
    assert affinity == {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def test_preferred_nodes_stay_and_required_ones_follow_the_claim() -> None:
    decision = Decision(id="d", group="g", revision=1, claims=[claim()])
    before = DesiredRecord(group="g", revision=1, decision="d", version=1, nodes={"c1": ["n-9"]})
    assert nodes_of(decision, before) == {"c1": ["n-9"]}
    decision.claims[0].required_nodes = {"n-1": ""}
    assert nodes_of(decision, before) == {"c1": ["n-1"]}


def test_pods_that_are_confined_by_their_parts_may_start_on_each_node_of_the_claim() -> None:
    """The nodes of before stay while the slots are among them."""
    before = DesiredRecord(group="g", revision=1, decision="d", version=1, nodes={"c1": ["n-1", "n-2"]})
    for node, nodes in (("n-2", ["n-1", "n-2"]), ("n-3", ["n-3"])):
        one = claim(slots=[Slot(node=node, parts={f"{node}/zone-0": {"cpu": 1}})])
        assert nodes_of(Decision(id="d", group="g", revision=1, claims=[one]), before) == {"c1": nodes}


def test_a_confined_deployment_gets_more_pods_once_those_of_before_run_under_the_changed_template() -> None:
    before = DesiredRecord(group="g", revision=1, decision="d", version=1, nodes={"c": ["a"]}, confined={"c": 2})
    assert held_pods({"c": 3}, {"c": ["a"]}, before, {}, runs=True) == {}, "the template stays"
    assert held_pods({"c": 1}, {"c": ["b"]}, before, {}, runs=True) == {}, "there are fewer pods"
    assert held_pods({"c": 3}, {"c": ["a", "b"]}, None, {}, runs=True) == {}, "it is new"
    held = held_pods({"c": 3}, {"c": ["a", "b"]}, before, {}, runs=True)
    assert held == {"c": 2}
    assert held_pods({"c": 2}, {"c": ["b"]}, before, {"c": 1}, runs=True) == {"c": 1}, "one of them could not start"
    assert held_pods({"c": 2}, {"c": ["b"]}, before, {"c": 0}, runs=True) == {}, "none runs"
    holding = DesiredRecord(
        group="g", revision=2, decision="e", version=2, nodes={"c": ["a", "b"]}, confined={"c": 3}, held=held
    )
    assert held_pods({"c": 4}, {"c": ["a", "b"]}, holding, {}, runs=False) == {"c": 2}
    assert held_pods({"c": 4}, {"c": ["a", "b", "d"]}, holding, {}, runs=True) == {"c": 2}, "the template changes again"
    assert held_pods({"c": 3}, {"c": ["a", "b"]}, holding, {}, runs=True) == {}
    one = msgspec.structs.replace(claim(kind="Deployment", ident="c"), required_nodes={"a": "", "b": ""})
    assert confined_pods(Decision(id="d", group="g", revision=1, claims=[one])) == {"c": 1}
    (made,) = FinalObjects([manifest("Deployment")], [], holding.nodes, "e", held).on_cluster("lab/a", [one])
    assert made["spec"]["replicas"] == 2


PINNED_KINDS = [kind for kind in WORKLOADS if kind not in ("DaemonSet", "Pod")]


@pytest.mark.parametrize("kind", PINNED_KINDS)
def test_pinned_pods_are_created_with_a_gate_and_without_affinity(kind: str) -> None:
    one = msgspec.structs.replace(claim(kind=kind), pinned=True)
    other = {"containers": [{"name": "main", "image": "m"}], "schedulingGates": [{"name": "other/gate"}]}
    for before in (manifest(kind), manifest(kind, other)):
        found = pod_spec(FinalObjects([before], [], {"c1": ["n-1"]}, "d1").on_cluster("lab/a", [one])[0])
        assert found is not None and found["schedulingGates"][-1] == {"name": GATE} and "affinity" not in found
    named = manifest(kind, {"containers": [], "nodeName": "n-1"})
    found = pod_spec(FinalObjects([named], [], {}, "d1").on_cluster("lab/a", [one])[0])
    assert found is not None and "schedulingGates" not in found, "Kubernetes refuses both together"


def test_the_annotation_about_parts_stays_when_slots_move() -> None:
    def decision(*nodes: str, pinned: bool = False) -> Decision:
        made = claim(slots=[Slot(node=node, count=2, parts={f"{node}/numa0": {"cpu": 2000}}) for node in nodes])
        return Decision(id="d", group="g", revision=1, claims=[msgspec.structs.replace(made, pinned=pinned)])

    def stored(of: Decision, before: DesiredRecord | None = None) -> DesiredRecord:
        nodes, parts = nodes_of(of, before), parts_of(of, before)
        return DesiredRecord(group="g", revision=1, decision="d", version=1, nodes=nodes, parts=parts)

    def annotation(*nodes: str) -> dict[str, Any]:
        return {node: [{"count": 2, "parts": {f"{node}/numa0": {"cpu": "2"}}}] for node in nodes}

    pinned = stored(decision("n-1", "n-2", pinned=True))
    assert msgspec.json.decode(pinned.parts["c1"]) == annotation("n-1", "n-2")
    moved = decision("n-1", "n-3", pinned=True)
    assert stored(moved, pinned).parts == pinned.parts
    final = FinalObjects([manifest("Deployment")], [], pinned.nodes, "d", parts=pinned.parts)
    found = template(final.on_cluster("lab/a", [msgspec.structs.replace(moved.claims[0], object="Deployment/core")])[0])
    assert found is not None and found["metadata"]["annotations"] == {PARTS: pinned.parts["c1"]}
    # Pods that are not pinned could not start on a node that their template does not name.
    confined = stored(decision("n-1"))
    assert confined.nodes == {"c1": ["n-1"]}
    assert stored(decision("n-1"), confined) == confined
    follows = stored(decision("n-2"), confined)
    assert follows.nodes == {"c1": ["n-2"]} and msgspec.json.decode(follows.parts["c1"]) == annotation("n-2")
    assert msgspec.json.decode(stored(moved, confined).parts["c1"]) == annotation("n-1", "n-3")


def test_pins_are_told_with_older_claims_and_slots_for_a_surge_beside_these() -> None:
    def decided(ident: str, of: Claim) -> Commit:
        return Commit(id=ident, entries=[Decision(id=ident, group="g/g/v1/d", revision=1, claims=[of])])

    def pins() -> Pins:
        (app,) = ClusterApps(ledger).on("lab/a")
        assert app.pinned
        return pins_of(ledger, app.families)

    ledger = Ledger()
    slots = [Slot(node="n-1", count=2), Slot(node="n-2", surge=True)]
    ledger.fold(1, decided("d1", msgspec.structs.replace(claim(slots=slots), pinned=True)))
    first = pins()
    assert [(c.claim, [(s.node, s.count) for s in c.slots]) for c in first.claims] == [("c1", [("n-1", 2)])]
    newer = msgspec.structs.replace(claim(slots=slots, ident="c2"), replaces="c1", decision="d2")
    ledger.fold(2, decided("d2", newer))
    both = pins()
    assert [(c.claim, len(c.slots)) for c in both.claims] == [("c1", 1), ("c2", 2)] and both.tag != first.tag
    assert pins() == both


def test_a_new_decision_that_changes_nothing_changes_no_template() -> None:
    asked = ask("StatefulSet", [{"container": "main", "needs": NEEDS}])
    found = contributions(asked, everywhere)
    one, two = (
        FinalObjects(asked.manifests["fwall"], found, {"c1": ["n-1"]}, ident).on_cluster("lab/a", [claim()])[0]
        for ident in ("d1", "d2")
    )
    assert one["metadata"] != two["metadata"]
    assert template(one) == template(two)


labels = st.builds(lambda k, v: {"label": k, "value": v}, st.sampled_from("ab"), st.sampled_from(["x", "y"]))
resources = st.builds(
    lambda r, n, optional: {"resource": r, "requests": n} | ({"mandatory": False, "weight": 2} if optional else {}),
    st.sampled_from(["cpu", "memory", "a/b"]),
    st.integers(1, 4),
    st.booleans(),
)


@given(
    st.sampled_from(list(WORKLOADS)),
    st.lists(labels | resources, max_size=5),
    st.sampled_from(["main", "side", "prepare"]),
)
def test_what_nobody_contributed_to_stays_and_twice_is_once(kind: str, needs: list[Manifest], container: str) -> None:
    asked = ask(kind, [{"container": container, "needs": needs}])
    result = patched(asked)
    original = asked.manifests["fwall"][0]
    touched = {c.path for c in contributions(asked, everywhere) if c.op == "set"}
    for operation in diff(original, result):
        assert operation["op"] == "add" or operation["path"] in touched
    again = FinalObjects([result], contributions(asked, everywhere), {"c1": ["n-1"]}, "d1")
    assert again.on_cluster("lab/a", [claim(kind=kind)]) == [result]


@given(st.lists(st.integers(1, 5), max_size=6), st.data())
def test_granted_finds_the_needs_that_a_slot_holds(optional: list[int], data: st.DataObject) -> None:
    chosen = [data.draw(st.booleans()) for _ in optional]
    extra = sum(v for v, yes in zip(optional, chosen, strict=True) if yes)
    found = granted(extra, optional)
    assert sum(v for v, yes in zip(optional, found, strict=True) if yes) == extra
