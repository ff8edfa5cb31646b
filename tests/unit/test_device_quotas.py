"""Quotas of devices: what a project holds, through whatever class, and which decisions are one device too many."""

from __future__ import annotations

import random

import msgspec
import pytest

from moorage.classes import BUILT_IN_ONLY, NOTHING, ClassCatalog, Grants, Selector
from moorage.fleet import Fleet, FleetWriter, normalize_node, with_devices
from moorage.ledger import Ledger
from moorage.ledger.device_quotas import DeviceQuotas
from moorage.merger.core.class_binding import bound
from moorage.merger.core.class_quotas import _not_selected, within_quotas, without_full_classes
from moorage.model.claims import Claim, Commit, Decision, IntentRef, Release, Slot, Withdrawal
from moorage.model.groups import Revision
from moorage.model.part_reports import PropertyValue, Typed
from moorage.model.part_requests import DeviceAsk, PartGroup
from moorage.model.reports import NodeReport
from moorage.model.resource_classes import ClassGrantSpec, FleetObject, StoredMetadata
from moorage.model.shapes import Shape, ShapedApp
from moorage.parts import PropertyTable

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.memory"


def fleet() -> Fleet:
    writer = FleetWriter()
    reports = [
        NodeReport(name=name, ready=True, allocatable={"cpu": "64", GPU: "8"}, labels={MEMORY: memory})
        for name, memory in (("large", "81920"), ("small", "16384"))
    ]
    rows = [with_devices(normalize_node(report)[0], BUILT_IN_ONLY) for report in reports]
    writer.put(0, "lab/a", rows, whole=True, as_of=1.0)
    return writer.fleet


def object_(kind: str, name: str, cluster: str = "", **spec: object) -> tuple[str, bytes]:
    found = FleetObject(kind=kind, metadata=StoredMetadata(name=name, cluster=cluster, uid=name), spec=dict(spec))
    return found.key, msgspec.json.encode(found)


def class_(name: str, least: str, cluster: str = "") -> tuple[str, bytes]:
    wanted = {"key": "memory", "operator": "GtEq", "values": [least]}
    return object_("ResourceClass", name, cluster, resourceSelector=[{"matchExpressions": [wanted]}])


def catalog(*objects: tuple[str, bytes]) -> ClassCatalog:
    found = ClassCatalog()
    for key, value in objects:
        found.put(key, value, 1)
    return found


def quota(**counts: int) -> tuple[str, bytes]:
    devices = [{"class": "*" if name == "all" else name, "count": count} for name, count in counts.items()]
    return object_("DeviceQuota", "q", projects=["a", "b*"], devices=devices)


def holding(
    name: str, gpus: int, node: str = "large", project: str = "a", ident: str = "", revision: int = 1
) -> Decision:
    intent = IntentRef(kind="Application", name=name, revision=revision)
    slot = Slot(node=node, count=1, resources={"cpu": 1, GPU: gpus}, parts={f"{node}/{GPU}": {GPU: gpus}})
    claim = Claim(
        id=f"claim-{ident or name}",
        decision=ident or name,
        intent=intent,
        tenant=project,
        slots=[slot],
        cluster="lab/a",
        app="app",
        object="o",
    )
    return Decision(id=ident or name, group=f"{project}/{name}/v1/default", revision=revision, claims=[claim])


class World:
    def __init__(self, *objects: tuple[str, bytes]) -> None:
        self.ledger = Ledger()
        self.quotas = DeviceQuotas(fleet(), self.ledger, catalog(*objects))

    def commit(self, *decisions: Decision) -> None:
        seq = self.ledger.seq + 1
        self.quotas.folded(self.ledger.fold(seq, Commit(id=str(seq), by="t", entries=list(decisions))))


def test_a_class_bounds_the_devices_that_it_selects() -> None:
    world = World(class_("big", "30G"), quota(big=4))
    world.commit(holding("x", 3))
    assert world.quotas.held("a", "big") == 3000 and world.quotas.held("a") == 3000
    assert world.quotas.check(holding("y", 1)) is None
    refused = world.quotas.check(holding("y", 2))
    assert refused is not None and refused.code == "QuotaExceeded"
    assert (refused.needed, refused.free) == ("2", "1")
    assert refused.message == "project a may hold 4 devices of big by quota q; it holds 3, and would hold 5"
    assert world.quotas.check(holding("y", 8, node="small")) is None, "the class does not select these"


def test_parts_of_which_nothing_is_taken_count_as_none() -> None:
    world = World(quota(all=4))
    world.commit(holding("x", 3))
    assert world.quotas.held("a") == 3000
    world.commit(holding("y", 0, node="small"))
    world.commit(holding("y", 0, node="small", ident="again", revision=2))
    assert world.quotas.held("a") == 3000
    assert world.quotas.check(holding("z", 0)) is None


def test_a_quota_of_all_devices() -> None:
    world = World(quota(all=4))
    world.commit(holding("x", 3, node="small"))
    assert world.quotas.check(holding("y", 1)) is None
    assert world.quotas.check(holding("y", 2)) is not None


def test_each_project_has_a_quota_of_its_own() -> None:
    world = World(quota(all=4))
    world.commit(holding("x", 4))
    assert world.quotas.check(holding("y", 1)) is not None
    assert world.quotas.check(holding("y", 4, project="b1")) is None
    assert world.quotas.check(holding("y", 5, project="b2")) is not None
    assert world.quotas.check(holding("y", 8, project="c")) is None, "it has no quota"


def test_decisions_of_one_commit_count_together() -> None:
    world = World(quota(all=4))
    batch = world.quotas.batch()
    assert batch.check(holding("x", 2)) is None
    assert batch.check(holding("y", 3)) is not None
    assert batch.check(holding("y", 2)) is None
    assert batch.check(holding("z", 1)) is not None


def test_an_update_takes_over_what_its_object_holds() -> None:
    world = World(quota(all=4))
    world.commit(holding("x", 4))
    assert world.quotas.check(holding("x", 4, ident="x2", revision=2)) is None
    assert world.quotas.check(holding("x", 5, ident="x2", revision=2)) is not None
    assert world.quotas.check(holding("x", 4, node="small", ident="x2", revision=2)) is not None, (
        "both are held for a while"
    )


def test_what_is_given_back_does_not_count() -> None:
    world = World(quota(all=4))
    world.commit(holding("x", 4))
    seq = world.ledger.seq + 1
    group = "a/x/v1/default"
    withdrawal = Withdrawal(group=group, revision=1)
    world.quotas.folded(world.ledger.fold(seq, Commit(id="w", by="t", entries=[withdrawal])))
    assert world.quotas.held("a") == 4000, "until its pods are gone"
    release = Release(claims=["claim-x"])
    world.quotas.folded(world.ledger.fold(seq + 1, Commit(id="r", by="t", entries=[release])))
    assert world.quotas.held("a") == 0 and world.quotas.check(holding("y", 4)) is None


def test_a_quota_that_shrinks_refuses_only_what_takes_more() -> None:
    world = World(quota(all=8))
    world.commit(holding("x", 6))
    world.quotas._catalog.put(*quota(all=2), 2)
    assert world.quotas.check(holding("x", 6, ident="x2", revision=2)) is None
    assert world.quotas.check(holding("y", 1)) is not None


def test_a_class_is_looked_up_in_the_cluster_of_the_device() -> None:
    world = World(class_("big", "30G"), class_("big", "1G", "lab/a"), quota(big=1))
    world.commit(holding("x", 1, node="small"))
    assert world.quotas.held("a", "big") == 1000
    assert world.quotas.check(holding("y", 1)) is not None


def test_a_ledger_that_is_loaded_again_is_counted_anew() -> None:
    world = World(quota(all=4))
    world.commit(holding("x", 3))
    fresh = DeviceQuotas(fleet(), world.ledger, world.quotas._catalog)
    assert fresh.held("a") == 3000


def asking(*asks: DeviceAsk, pods: int = 1, group: str = "a/y/v1/default") -> Revision:
    groups = [PartGroup(suffix="gpu", devices=asks)]
    shape = Shape(key="k", object="Deployment/d", count=pods, resources={"pods": 1}, groups=groups)
    return Revision(group=group, revision=1, tenant="p", apps=[ShapedApp(name="app", shapes=[shape])])


def left(record: Revision, world: World) -> list[str]:
    found = within_quotas(record, world.quotas)
    return [ask.resource_class for ask in found.apps[0].shapes[0].groups[0].devices]


def test_alternatives_beyond_a_quota_are_left_out() -> None:
    world = World(class_("big", "30G"), class_("any", "1G"), quota(big=4, all=8))
    world.commit(holding("x", 3))
    big, any_ = DeviceAsk(resource_class="big", count=2), DeviceAsk(resource_class="any", count=2)
    assert left(asking(big, any_), world) == ["any"]
    assert left(asking(any_, big, pods=2), world) == ["any"]
    assert left(asking(any_, big, pods=3), world) == ["any", "big"], "none would be left: the commit says why"
    assert left(asking(big), world) == ["big"]
    assert left(asking(big, any_, group="c/y/v1/default"), world) == ["big", "any"], "it has no quota"
    half = DeviceAsk(resource_class="big", count=1, share=500)
    assert left(asking(half, any_, pods=2), world) == ["big", "any"]
    own = asking(DeviceAsk(resource_class="big", count=4), any_, group="a/x/v1/default")
    assert left(own, world) == ["big", "any"], "what the group holds now is its own"


def narrowed(class_name: str, world: World, group: str = "a/y/v1/default") -> list[str]:
    """Returns the memories of the devices that a need for a class may have."""
    known, there = world.quotas._catalog, world.quotas._fleet
    record = bound(asking(DeviceAsk(resource_class=class_name), group=group), known)
    found = without_full_classes(record, world.quotas, known, there)
    shape = found.apps[0].shapes[0]
    assert (shape == record.apps[0].shapes[0]) or shape.key != record.apps[0].shapes[0].key
    assert bool(found.warnings) == (shape != record.apps[0].shapes[0])
    selector = Selector(shape.groups[0].devices[0].properties)
    sizes = ("16Gi", "80Gi")
    return [size for size in sizes if selector.matches({"Kind": "nvidia-gpu", "memory": Typed(quantity=size)})]


def test_a_need_takes_no_devices_of_another_class_with_a_full_quota() -> None:
    world = World(class_("big", "30G"), class_("any", "1G"), class_("huge", "50G"), quota(big=4))
    world.commit(holding("x", 3))
    assert narrowed("any", world) == ["16Gi", "80Gi"], "it may have one more"
    world.commit(holding("z", 1))
    assert narrowed("any", world) == ["16Gi"]
    assert narrowed("any", world, "a/x/v1/default") == ["16Gi", "80Gi"], "what the group holds now is its own"
    assert narrowed("any", world, "c/y/v1/default") == ["16Gi", "80Gi"], "it has no quota"
    assert narrowed("big", world) == narrowed("huge", world) == ["80Gi"], "none would be left: the commit says why"


def test_a_class_that_selects_nothing_is_not_widened_by_a_full_quota() -> None:
    world = World(class_("big", "30G"), object_("ResourceClass", "empty", resourceSelector=[]), quota(big=4))
    world.commit(holding("x", 4))
    known, there = world.quotas._catalog, world.quotas._fleet
    record = bound(asking(DeviceAsk(resource_class="empty")), known)
    assert record.apps[0].shapes[0].groups[0].devices[0].properties == NOTHING
    assert without_full_classes(record, world.quotas, known, there) == record


def test_what_a_class_of_several_terms_does_not_select_is_said_by_all_of_them() -> None:
    terms = [
        {"matchExpressions": [{"key": "memory", "operator": "GtEq", "values": ["30G"]}]},
        {"matchExpressions": [{"key": "Kind", "operator": "In", "values": ["nvidia-gpu"]}]},
    ]
    every = object_("ResourceClass", "every", resourceSelector=terms)
    world = World(every, class_("any", "1G"), quota(every=2))
    world.commit(holding("x", 2, node="small"))
    assert narrowed("any", world) == ["16Gi", "80Gi"], "there is nothing beside it"
    terms[1]["matchExpressions"].append({"key": "memory", "operator": "Lt", "values": ["10G"]})
    world = World(object_("ResourceClass", "every", resourceSelector=terms), class_("any", "1G"), quota(every=2))
    world.commit(holding("x", 2))
    assert narrowed("any", world) == ["16Gi"]


@pytest.mark.parametrize(
    ("project", "name", "allowed"),
    [
        ("a", "nvidia.high", True),
        ("b", "nvidia.high", False),
        ("b", "amd.high", True),
        ("c", "amd.high", True),
    ],
)
def test_a_class_that_a_grant_names_is_only_for_those_it_is_granted_to(project: str, name: str, allowed: bool) -> None:
    everything = ClassGrantSpec(projects=["*"], classes=["*"])
    named = ClassGrantSpec(projects=["a"], classes=["nvidia.*"], algorithms=["best-fit"])
    assert Grants([everything, named]).allow(project, name) is allowed


def test_without_grants_nothing_is_allowed() -> None:
    assert not Grants([]).allow("a", "x")
    named = Grants([ClassGrantSpec(projects=["a"], classes=["x"], algorithms=["best-fit"])])
    assert named.allow("a", "x") and not named.allow("b", "x") and not named.allow("a", "y")
    assert named.allow_algorithm("a", "x", "best-fit") and not named.allow_algorithm("a", "x", "fgd")


VALUES: tuple[PropertyValue | None, ...] = (
    None,
    3,
    "a",
    True,
    Typed(quantity="4Gi"),
    (1, 9),
    (Typed(quantity="1Gi"), 7),
    ("a", "b"),
)
OPERATORS = ("In", "NotIn", "Gt", "GtEq", "Lt", "LtEq", "Exists", "DoesNotExist")


@pytest.mark.parametrize("seed", range(200))
def test_what_a_class_does_not_select_is_exactly_the_rest(seed: int) -> None:
    rng = random.Random(seed)

    def requirement() -> dict[str, object]:
        operator = rng.choice(OPERATORS)
        values = [] if operator in ("Exists", "DoesNotExist") else [rng.choice(("3", "a", "5", "2Gi"))]
        return {"key": rng.choice(("x", "y")), "operator": operator, "values": values}

    terms = [{"matchExpressions": [requirement() for _ in range(rng.randint(1, 2))]} for _ in range(rng.randint(1, 3))]
    known = catalog(object_("ResourceClass", "c", resourceSelector=terms))
    selected, rest = known.classes[0].selector, Selector(_not_selected("c", known))
    table = PropertyTable()
    for x in VALUES:
        for y in VALUES:
            device = {key: value for key, value in (("x", x), ("y", y)) if value is not None}
            expected = not selected.matches(device)
            assert rest.matches(device) is expected
            if device:
                number = table.number(device.items())
                assert bool(table.selected(rest)[number]) is expected
