"""Applications whose pods run in slots of machines: what they ask for, which clusters take them, how their pods are labelled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.controllers.machine.core.answers import candidates
from moorage.controllers.machine.core.labels import contributions
from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import Accepted
from moorage.ledger import Capacity, Ledger, Wanted, assign_beside_own
from moorage.machine_groups.windows import parse_runtime
from moorage.model.candidates import Ask
from moorage.model.claims import Claim, Commit, Decision, IntentRef, SlotGrants, SlotReservations
from moorage.model.desired_state import ActionAsk
from moorage.model.groups import Revision
from moorage.model.machine_slots import Dependent, GrantedSlot, ReservedSlots, reservation_claim, slot_resource
from moorage.model.machines import Allow
from moorage.model.problems import Refused
from moorage.model.reports import NodeReport, Taint
from moorage.model.shapes import Shape, ShapedApp, Toleration
from moorage.patcher.core.final_objects import with_contributions
from moorage.sdk import unpack
from moorage.selectors.taints import tolerated
from moorage_testkit.fleets import fleet_of, node

NEED = {"machine": "general/large"}
EVERYONE = Allow()
MANIFEST: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "labels": {"imperator.tenzen-y.io/injecting-container": "main"}},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {"name": "side", "resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}},
                    {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}}},
                ]
            }
        }
    },
}


def document(*needs: dict[str, Any], **consumer: Any) -> dict[str, Any]:
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}
    consumers = [{"object": ref, "needs": list(needs), **consumer}]
    app = {"name": "web", "manifests": [MANIFEST], "consumers": consumers}
    return {"kind": "Application", "metadata": {"name": "shop"}, "spec": {"apps": [app]}}


def revision(*needs: dict[str, Any], **consumer: Any) -> Revision:
    found = validate.accept(document(*needs, **consumer), {})
    assert isinstance(found, Accepted)
    return resolve(found)


def shape(*needs: dict[str, Any]) -> Shape:
    return revision(*(needs or (NEED,))).apps[0].shapes[0]


def shape_in(namespace: str) -> Shape:
    given = document(NEED)
    app = given["spec"]["apps"][0]
    app["manifests"] = [{**MANIFEST, "metadata": {**MANIFEST["metadata"], "namespace": namespace}}]
    found = validate.accept(given, {})
    assert isinstance(found, Accepted)
    return resolve(found).apps[0].shapes[0]


def errors(*needs: dict[str, Any], **consumer: Any) -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        validate.accept(document(*needs, **consumer), {})
    prefix = "spec.apps[0].consumers[0]."
    return {error.path.removeprefix(prefix): error.code for error in caught.value.problem.errors}


def test_a_slot_has_the_size_of_the_whole_pod() -> None:
    found = shape()
    assert found.resources == {slot_resource("general/large"): 1, "ephemeral-storage": 1 << 30}
    assert (found.machine, found.needs[0].amount) == ("general/large", 1)
    assert shape({**NEED, "window": "night"}).resources[slot_resource("general/large", "night")] == 1
    templates = {shape(n).template for n in (NEED, {"machine": "general/small"}, {**NEED, "maxRuntime": "2h"})}
    assert len(templates) == 3, "another machine is another pod template"


@pytest.mark.parametrize(("grace", "runtime"), [(None, 3635), (60, 3665), ("soon", 3635), ({}, 3635), (10**400, 3635)])
def test_pods_that_run_once_say_when_they_are_gone(grace: Any, runtime: float) -> None:
    given = document({**NEED, "maxRuntime": "1h"})
    pods = {**MANIFEST["spec"]["template"]["spec"], "terminationGracePeriodSeconds": grace}
    given["spec"]["apps"][0]["manifests"] = [{**MANIFEST, "spec": {"template": {"spec": pods}}}]
    found = validate.accept(given, {})
    assert isinstance(found, Accepted)
    assert resolve(found).apps[0].shapes[0].runtime == runtime


@pytest.mark.parametrize(
    ("need", "path", "code"),
    [
        ({"machine": "General"}, "needs[0].machine", "InvalidName"),
        ({**NEED, "window": "a b"}, "needs[0].window", "InvalidName"),
        ({**NEED, "maxRuntime": "soon"}, "needs[0].maxRuntime", "InvalidQuantity"),
        ({**NEED, "mandatory": False}, "needs[0]", "Contradiction"),
        ({**NEED, "weight": 3}, "needs[0]", "Contradiction"),
        ({**NEED, "requests": 1}, "needs[0]", "Contradiction"),
        ({"label": "a", "value": "b", "window": "night"}, "needs[0]", "Contradiction"),
    ],
)
def test_needs_that_make_no_sense_are_refused(need: dict[str, Any], path: str, code: str) -> None:
    assert errors(need) == {path: code}


def test_a_machine_stands_beside_no_resources_and_no_second_machine() -> None:
    cpu = {"resource": "cpu", "requests": 1}
    assert errors(NEED, cpu, container="main") == {"needs[0]": "Contradiction"}
    assert errors(NEED, {"machine": "general/small"})["needs[1]"] == "Duplicate"


def test_durations() -> None:
    assert [parse_runtime(text) for text in ("2h", "90m", "1h30m", "45s")] == [7200, 5400, 5400, 45]
    assert [parse_runtime(text) for text in ("", "0s", "2 h", "h", "1d")] == [None] * 5


class World:
    """Three clusters of one node with a taint; the first two reserve two slots and one."""

    def __init__(self) -> None:
        taint = Taint(key="imperator.tenzen-y.io/large", value="general", effect="NoSchedule")
        self.fleet = fleet_of(
            {
                f"lab/{n}": [node(cpu="8", taints=[taint], labels={"zone": n}, resources={"ephemeral-storage": "9Gi"})]
                for n in "abc"
            }
        )
        self.ledger = Ledger()
        self.capacity = Capacity(self.fleet, self.ledger)
        self.reserve()

    def reserve(self, allow: Allow = EVERYONE) -> None:
        """Makes the reservations. `allow`: who may use those of the first cluster."""
        reserved = [
            ReservedSlots(
                machine="general/large",
                cluster=cluster,
                size={"cpu": 4000, "pods": 1},
                slots={"n-0": count},
                allow=allow if cluster == "lab/a" else EVERYONE,
            )
            for cluster, count in (("lab/a", 2), ("lab/b", 1))
        ]
        commit = Commit(id="1", entries=[SlotReservations(id="r", generation=1, reserved=reserved)])
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit))

    def placed(self, cluster: int, wanted: Shape) -> list[str]:
        found = assign_beside_own(self.fleet, cluster, [Wanted(wanted, "k", [])])
        return [s.node for placed in found for s in placed.slots] if isinstance(found, list) else [found.code]

    def decide(self, ident: str, cluster: str) -> None:
        claim = Claim(
            id=f"claim-{ident}",
            decision=ident,
            intent=IntentRef(kind="Application", name=ident, revision=1),
            tenant="t",
            app="web",
            object="Job/train",
            cluster=cluster,
            within=reservation_claim("general/large", cluster),
            slots=self.slots(cluster),
        )
        decision = Decision(id=ident, group=f"g-{ident}", revision=1, claims=[claim])
        commit = Commit(id=ident, entries=[decision])
        self.capacity.folded(self.ledger.fold(self.ledger.seq + 1, commit), [decision])

    def slots(self, cluster: str) -> list[Any]:
        found = assign_beside_own(self.fleet, self.fleet.ids[cluster], [Wanted(shape(), "k", [])])
        assert isinstance(found, list)
        return list(found[0].slots)


def test_pods_go_to_free_slots_only_whatever_else_is_free() -> None:
    world = World()
    assert world.placed(0, shape()) == ["n-0"], "the taint of the machine's nodes is tolerated"
    assert world.placed(2, shape()) == ["SlotShort"]
    assert world.placed(0, shape(NEED, {"label": "zone", "value": "z"})) == ["LabelMissing"]
    world.decide("one", "lab/b")
    assert world.placed(1, shape()) == ["SlotShort"]
    column = world.fleet.free("cpu")
    rows = [row for cid in range(3) if (row := world.fleet.row_of(cid, "n-0")) is not None]
    assert column is not None and column[rows].tolist() == [0, 4000, 8000], "a guest takes no room of its own"


def ask(*shapes: Shape) -> Ask:
    return Ask(
        id="a",
        group="g",
        revision=1,
        budget_ms=1000,
        tenant="t",
        epoch="",
        apps=[ShapedApp(name="web", shapes=list(shapes))],
    )


def test_the_controller_allows_clusters_with_enough_slots_and_tells_the_rest_with_numbers() -> None:
    world = World()
    two = msgspec.structs.replace(shape(), count=2)
    answer = candidates(ask(two), world.fleet).apps["web"]
    (group,) = answer.groups
    mask = unpack(group.clusters, world.fleet.ids, world.fleet.size)
    allowed = mask if group.mode == "allow" else ~mask
    assert [world.fleet.names[c] for c in range(3) if allowed[c]] == ["lab/a"]
    (reason,) = answer.reasons
    assert (reason.code, reason.needed, reason.free, reason.clusters) == ("SlotShort", "2", "1", 2)
    other = candidates(ask(shape({"machine": "no/such"})), world.fleet).apps["web"]
    assert [r.code for r in other.reasons] == ["MachineUnknown"]
    plain = msgspec.structs.replace(shape(), machine="", resources={"cpu": 1})
    assert candidates(ask(plain), world.fleet).apps["web"].reasons == []


def test_clusters_come_first_where_pods_have_room_in_slots_that_others_of_their_type_opened() -> None:
    world = World()
    half, small = "general/half", Dependent(parent="general/large", per_parent=2)

    def reserve(**slots: int) -> None:
        reserved = [
            ReservedSlots(
                machine="general/large",
                cluster=f"lab/{name}",
                size={"cpu": 4000, "pods": 3},
                slots={"n-0": count},
                children={half: {"cpu": 2000, "pods": 1}},
                dependents={half: small},
            )
            for name, count in slots.items()
        ]
        commit = Commit(id="2", entries=[SlotReservations(id="s", generation=1, reserved=reserved)])
        world.capacity.folded(world.ledger.fold(world.ledger.seq + 1, commit))

    def order(count: int) -> list[str]:
        wanted = msgspec.structs.replace(shape(), resources={slot_resource(half): 1}, machine=half, count=count)
        sets = candidates(ask(wanted), world.fleet).apps["web"].order
        masks = [unpack(one, world.fleet.ids, world.fleet.size) for one in sets]
        return ["".join("abc"[c] for c in range(3) if mask[c]) for mask in masks]

    reserve(a=2, b=2, c=1)
    assert order(1) == [], "no slot is open: what is free decides"
    commit = Commit(id="3", entries=[SlotGrants(id="g", generation=1, granted=[
        GrantedSlot(uid="u", machine=half, cluster="lab/c", node="n-0", claim=reservation_claim(half, "lab/c"), parent="general/large")
    ])])  # fmt: skip
    world.capacity.folded(world.ledger.fold(world.ledger.seq + 1, commit))
    assert order(1) == ["c", "ab"]
    assert order(2) == [], "the cluster with the open slot has no room for two"


@pytest.mark.parametrize(
    ("allow", "project", "namespace", "allowed"),
    [
        (Allow(), "p", "n", "ab"),
        (Allow(namespaces=("team",)), "p", "default", "b"),
        (Allow(namespaces=("team",)), "p", "team", "ab"),
        (Allow(projects=("p",)), "p", "default", "ab"),
        (Allow(projects=("p",)), "q", "team", "b"),
        (Allow(projects=("p",), namespaces=("team",)), "q", "team", "ab"),
        (Allow(projects=("p",), namespaces=("team",)), "q", "default", "b"),
    ],
)
def test_a_machine_takes_pods_of_projects_and_namespaces_that_it_allows(
    allow: Allow, project: str, namespace: str, allowed: str
) -> None:
    world = World()
    world.reserve(allow=allow)
    answer = candidates(msgspec.structs.replace(ask(shape_in(namespace)), tenant=project), world.fleet).apps["web"]
    (group,) = answer.groups
    mask = unpack(group.clusters, world.fleet.ids, world.fleet.size)
    taken = mask if group.mode == "allow" else ~mask
    assert "".join("abc"[c] for c in range(3) if taken[c]) == allowed
    refused = [r for r in answer.reasons if r.code == "NotAllowed"]
    assert [(r.clusters, r.samples) for r in refused] == ([] if "a" in allowed else [(1, ["lab/a"])])
    for reason in refused:
        assert reason.message.startswith(f"general/large is for {allow.named()} only; this is project {project}")
        assert (f"namespace {namespace}" in reason.message) == bool(allow.namespaces)


def test_pods_of_different_namespaces_are_different_shapes() -> None:
    found = [shape_in(name) for name in ("team", "default")]
    assert [s.namespace for s in found] == ["team", "default"] and found[0].key != found[1].key
    plain = validate.accept(document(), {})
    assert isinstance(plain, Accepted) and resolve(plain).apps[0].shapes[0].namespace == ""


def action_ask(found: Revision, manifest: dict[str, Any]) -> ActionAsk:
    return ActionAsk(
        id="a",
        group="g",
        revision=1,
        budget_ms=100,
        decision={},
        intents=[{"kind": i.kind, "name": i.name, "spec": msgspec.json.decode(i.spec)} for i in found.intents],
        manifests={"web": [manifest]},
    )


def test_pods_are_labelled_as_guests() -> None:
    given = action_ask(revision({**NEED, "window": "night", "maxRuntime": "2h"}), MANIFEST)
    values = {c.path.removeprefix("/spec/template/"): c.value for c in contributions(given, fleet_of({}))}
    domain = "metadata/labels/imperator.tenzen-y.io~1"
    assert values == {
        f"{domain}machine-group": "general",
        f"{domain}machine-type": "large",
        f"{domain}pod-role": "guest",
        f"{domain}window": "night",
        f"{domain}injecting-container": "main",
        "spec/activeDeadlineSeconds": 7200,
    }


def daemon_set(**spec: Any) -> tuple[Revision, dict[str, Any]]:
    """Returns an application with a DaemonSet in slots, and its manifest."""
    pods = {**MANIFEST["spec"]["template"], "metadata": {"labels": {"app": "train"}}}
    pods["spec"] = {**pods["spec"], **spec}
    manifest = {**MANIFEST, "apiVersion": "apps/v1", "kind": "DaemonSet"}
    manifest["spec"] = {"selector": {"matchLabels": {"app": "train"}}, "template": pods}
    given = document(NEED)
    app = given["spec"]["apps"][0]
    app["manifests"] = [manifest]
    app["consumers"][0]["object"] = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "train"}
    accepted = validate.accept(given, {})
    assert isinstance(accepted, Accepted)
    return resolve(accepted), manifest


TYPE = "imperator.tenzen-y.io/large"
READY = Taint(key="imperator.tenzen-y.io/node-pool", value="ready", effect="NoSchedule")


def pool_node(name: str, state: str = "ready", **labels: str) -> NodeReport:
    """A node of a pool whose types are `large` and `small`."""
    own = [Taint(key=f"imperator.tenzen-y.io/{t}", value="general", effect="NoSchedule") for t in ("large", "small")]
    taints = [*own, msgspec.structs.replace(READY, value=state)]
    return node(
        name, cpu="8", taints=taints, labels={TYPE: "general", **labels}, resources={"ephemeral-storage": "9Gi"}
    )


def test_a_daemon_set_runs_on_the_nodes_of_its_machine_and_on_no_other() -> None:
    """Nodes without slots, in maintenance, or of another group do not keep it from the others."""
    other = Taint(key="imperator.tenzen-y.io/large", value="other", effect="NoSchedule")
    nodes = [pool_node("a"), pool_node("b"), pool_node("rests", "maintenance"), node("plain", cpu="8")]
    nodes.append(node("others", cpu="8", taints=[other, READY], labels={TYPE: "other"}))
    fleet, ledger = fleet_of({"lab/one": nodes, "lab/two": [pool_node("a")]}), Ledger()
    capacity = Capacity(fleet, ledger)
    reserved = ReservedSlots(machine="general/large", cluster="lab/one", size={"cpu": 4000}, slots={"a": 1, "b": 1})
    entry = SlotReservations(id="r", generation=1, reserved=[reserved])
    capacity.folded(ledger.fold(1, Commit(id="1", entries=[entry])))
    (wanted,) = daemon_set()[0].apps[0].shapes
    assert wanted.per_node
    found = assign_beside_own(fleet, 0, [Wanted(wanted, "k", [])])
    assert isinstance(found, list) and sorted(s.node for placed in found for s in placed.slots) == ["a", "b"]
    (reason,) = candidates(ask(wanted), fleet).apps["web"].reasons
    assert (reason.code, reason.needed, reason.free, reason.samples) == ("SlotShort", "1", "0", ["lab/two"])


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ([], ["large", "node-pool", "small"]),
        ([{"key": "imperator.tenzen-y.io/small", "operator": "Exists"}], ["large", "node-pool"]),
        ([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}], ["large", "node-pool", "small"]),
        ([{"operator": "Exists"}], []),
    ],
)
def test_the_template_of_a_daemon_set_has_what_the_nodes_of_its_machine_require(
    own: list[dict[str, str]], added: list[str]
) -> None:
    """Kubernetes makes pods of it for all nodes that it selects, and for none whose taints it does not tolerate."""
    found, manifest = daemon_set(**({"tolerations": own} if own else {}))
    fleet = fleet_of({"lab/one": [pool_node("a")]})
    (final,) = with_contributions([manifest], contributions(action_ask(found, manifest), fleet), "d")
    spec = final["spec"]["template"]["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": TYPE, "operator": "In", "values": ["general"]}]}
    ]
    tolerations = spec.get("tolerations", [])
    assert tolerations[: len(own)] == own
    assert [t["key"].removeprefix("imperator.tenzen-y.io/") for t in tolerations[len(own) :]] == added
    given = [
        Toleration(key=t.get("key", ""), **{k: t[k] for k in ("operator", "value", "effect") if k in t})
        for t in tolerations
    ]
    assert tolerated(pool_node("a").taints, given) and (not added) == tolerated(
        pool_node("a", "maintenance").taints, given
    )


def test_a_daemon_set_tolerates_all_types_of_its_machine_wherever_they_come_later() -> None:
    found, manifest = daemon_set()
    fleet, ledger = fleet_of({"lab/one": [pool_node("a"), pool_node("b")]}), Ledger()
    capacity = Capacity(fleet, ledger)
    reserved = [
        ReservedSlots(machine=key, cluster="lab/one", size={"cpu": 1000}, slots={"b": 1}, children=children)
        for key, children in (("general/huge", {"general/part": {"cpu": 500}}), ("other/alien", {}))
    ]
    entry = SlotReservations(id="r", generation=1, reserved=reserved)
    capacity.folded(ledger.fold(1, Commit(id="1", entries=[entry])))
    (final,) = with_contributions([manifest], contributions(action_ask(found, manifest), fleet), "d")
    tolerations = final["spec"]["template"]["spec"]["tolerations"]
    assert [t["key"].partition("/")[2] for t in tolerations] == ["large", "node-pool", "huge", "part", "small"]
