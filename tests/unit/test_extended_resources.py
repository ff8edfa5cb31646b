"""Extended resources that a DeviceClass serves are decided by device, and pods get these devices by claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from moorage.agent.core.cluster_state import ClusterState
from moorage.classes import BUILT_IN_ONLY, ClassCatalog
from moorage.controllers.resource_class.core.explanations import device_reasons
from moorage.dra import objects as dra
from moorage.fit import Assigned, FitCache, assign
from moorage.fleet import Fleet, normalize_node, with_devices
from moorage.kube.objects import Key
from moorage.merger.core.class_binding import bound_app
from moorage.model.claims import Claim, IntentRef
from moorage.model.groups import Revision
from moorage.model.part_reports import DeviceClassReport, DeviceReport
from moorage.model.part_requests import PodContainer
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import Slot
from moorage.parts.layout import common_layout
from moorage.patcher.core.class_needs import class_needs
from moorage.patcher.core.device_pins import DevicePins
from moorage.podspec import CLASS_OF_PIN, PIN_PREFIX, PINNED_DEVICES
from moorage.podspec.extended_resources import extended_needs
from moorage_testkit.fleets import fleet_of, node

GPU, DRIVER = "nvidia.com/gpu", "gpu.example.com"


def container(name: str, count: int, **fields: Any) -> PodContainer:
    return PodContainer(name=name, requests={"cpu": 100, GPU: count} if count else {"cpu": 100}, **fields)


@pytest.mark.parametrize(
    ("containers", "total", "expected"),
    [
        ([container("c", 2), container("sidecar", 0)], 2, {"nvidia.com.gpu": (2, {"c"})}),
        (
            [container("a", 2), container("b", 1)],
            3,
            {"nvidia.com.gpu.a": (2, {"a"}), "nvidia.com.gpu.b": (1, {"b"})},
        ),
        ([container("load", 1, init=True), container("c", 2)], 2, {"nvidia.com.gpu": (2, {"c", "load"})}),
        ([container("load", 3, init=True), container("c", 2)], 3, {}),  # it needs more than those after it
        ([container("load", 2, init=True), container("c", 0)], 2, {"nvidia.com.gpu": (2, {"load"})}),
        (
            [container("s", 1, init=True, sidecar=True), container("load", 1, init=True), container("c", 1)],
            2,
            {"nvidia.com.gpu.s": (1, {"s"}), "nvidia.com.gpu.c": (1, {"c", "load"})},
        ),
        ([container("c", 2)], 4, {}),  # the pod itself requests more
        ([container("c", 33)], 33, {}),  # more than a claim may have
    ],
)
def test_each_container_that_runs_beside_others_has_a_need(
    containers: list[PodContainer], total: int, expected: dict[str, tuple[int, set[str]]]
) -> None:
    found = extended_needs(containers, {"cpu": 100, GPU: total})
    assert {need.name: (need.devices, set(need.containers)) for need in found} == expected
    assert not extended_needs(containers, {GPU: total}, resources={"example.com/other"})


def backed(name: str, devices: int, taken: Mapping[str, str] | None = None) -> NodeReport:
    """`taken`: by whom devices are taken."""
    reports = [
        DeviceReport(id=f"{DRIVER}/{name}/g{i}", driver=DRIVER, pool=name, name=f"g{i}", attributes={"fast": i > 0})
        for i in range(devices)
    ]
    free = devices - len(taken or {})
    found = node(
        name, cpu="8", memory="32Gi", in_use={f"{DRIVER}/{name}/{d}": {"GPU_EXAMPLE_COM": "1"} for d in taken or ()}
    )
    served = DeviceClassReport(name="fast", selectors=[f'device.attributes["{DRIVER}"].fast'], extended_resource=GPU)
    other = DeviceClassReport(name="all", selectors=[])
    return msgspec.structs.replace(
        found, devices=reports, device_classes=[other, served], allocatable={**found.allocatable, GPU: str(free)}
    )


def plugin(name: str, count: int) -> NodeReport:
    found = node(name, cpu="8", memory="32Gi")
    return msgspec.structs.replace(found, allocatable={**found.allocatable, GPU: str(count)})


def shape(count: int, pods: int = 1) -> Shape:
    resources = {"cpu": 100, GPU: count, "pods": 1}
    return Shape(key="k", object="Deployment/web", count=pods, resources=resources, containers=[container("c", count)])


def bound(fleet: Fleet, one: Shape) -> Shape:
    served = fleet.parts.layouts.extended_resources if fleet.layout is not None else frozenset()
    return bound_app(ShapedApp(name="web", shapes=[one]), ClassCatalog(), served).shapes[0]


def slots(fleet: Fleet, one: Shape, cluster: str = "lab/a") -> list[Slot] | None:
    found = assign(fleet, fleet.rows_of(fleet.ids[cluster]), [bound(fleet, one)])
    return found.slots[0] if isinstance(found, Assigned) else None


def fitting(fleet: Fleet, one: Shape) -> set[str]:
    fits = FitCache(fleet).get(bound(fleet, one)).fits
    return {fleet.names[int(cid)] for cid in fits.nonzero()[0]}


def test_devices_are_chosen_that_the_class_selects() -> None:
    fleet = fleet_of({"lab/a": [backed("n", 3)], "lab/b": [backed("m", 2)], "lab/c": [plugin("p", 4)]})
    assert fitting(fleet, shape(2)) == {"lab/a", "lab/c"}, "the first device of each node is not of the class"
    (slot,) = slots(fleet, shape(2)) or []
    assert slot.resources[GPU] == 2 and [(grant.part, grant.need, grant.resource_class) for grant in slot.devices] == [
        (f"{DRIVER}/n/g{i}", "nvidia.com.gpu", "fast") for i in (1, 2)
    ]
    (slot,) = slots(fleet, shape(4), "lab/c") or []
    assert slot.resources[GPU] == 4 and not slot.devices


def test_devices_are_not_counted_as_the_resource_once_more() -> None:
    """The node's resource is these devices; that of a plugin is devices of a kind that a source says."""

    def kinds(report: NodeReport) -> list[str]:
        row = with_devices(normalize_node(report)[0], BUILT_IN_ONLY)
        return [part.kind for part in common_layout(row.inside).parts if part.device >= 0]

    assert kinds(backed("n", 2)) == [DRIVER, DRIVER] and kinds(plugin("p", 4)) == ["nvidia-gpu"]


def test_what_others_have_of_the_class_is_not_given_again() -> None:
    """The node has free devices enough; the class does not."""
    fleet = fleet_of({"lab/a": [backed("n", 4, {"g1": "x"})]})
    assert fitting(fleet, shape(2)) == {"lab/a"} and fitting(fleet, shape(3)) == set()
    about = fleet.known.copy()
    ((reason, clusters),) = device_reasons(fleet, "web", bound(fleet, shape(3)), about)
    assert (reason.code, reason.need, reason.needed, reason.free) == ("PartShort", "nvidia.com.gpu", "3", "2")
    assert clusters.sum() == 1
    with_plugin = fleet_of({"lab/a": [backed("n", 4, {"g1": "x"}), plugin("p", 3)]})
    assert not device_reasons(with_plugin, "web", bound(with_plugin, shape(3)), with_plugin.known.copy())


def test_nodes_with_a_plugin_and_with_devices_serve_one_object() -> None:
    fleet = fleet_of({"lab/a": [backed("n", 3), plugin("p", 2)]})
    found = slots(fleet, shape(2, pods=2)) or []
    assert {slot.node: len(slot.devices) for slot in found} == {"n": 2, "p": 0}
    assert slots(fleet, shape(2, pods=3)) is None


def test_fleets_without_such_classes_bind_nothing() -> None:
    fleet = fleet_of({"lab/c": [plugin("p", 4)]})
    one = shape(2)
    assert bound(fleet, one) is one


def manifest(*containers: tuple[str, str]) -> dict[str, Any]:
    spec = {
        "containers": [
            {"name": name, "image": "i", "resources": {"requests": {"cpu": "100m", GPU: n}, "limits": {GPU: n}}}
            for name, n in containers
        ]
    }
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {}, "template": template},
    }


def pinned(slots_: list[Slot], one: Shape, *containers: tuple[str, str]) -> list[dict[str, Any]]:
    web = manifest(*containers)
    claim = Claim(
        id="idweb",
        decision="d",
        intent=IntentRef(kind="Application", name="g", revision=1),
        tenant="p",
        slots=slots_,
        app="web",
        object="Deployment/web",
        cluster="lab/a",
    )
    record = Revision(group="g", revision=1, tenant="p", apps=[ShapedApp(name="web", shapes=[one])])
    pins = DevicePins([web], [claim], class_needs(record, "web", [web]))
    found = pins.pin([web])
    return [*found.manifests, *found.added]


def test_pods_get_the_devices_by_a_claim_instead_of_the_resource() -> None:
    fleet = fleet_of({"lab/a": [backed("n", 4)]})
    two = msgspec.structs.replace(shape(3), containers=[container("a", 2), container("b", 1)])
    web, *added = pinned(slots(fleet, two) or [], two, ("a", "2"), ("b", "1"))
    spec = web["spec"]["template"]["spec"]
    requests = {c["name"]: [claimed["request"] for claimed in c["resources"]["claims"]] for c in spec["containers"]}
    assert all(c["resources"]["requests"] == {"cpu": "100m"} for c in spec["containers"])
    assert not any(c["resources"]["limits"] for c in spec["containers"])
    by_name = {m["metadata"]["name"]: m for m in added}
    (entry,) = spec["resourceClaims"]
    asked = by_name[entry["resourceClaimTemplateName"]]["spec"]["spec"]["devices"]["requests"]
    pins = {}
    for request in asked:
        (only,) = request["firstAvailable"]
        pin = by_name[only["deviceClassName"]]["metadata"]["annotations"]
        pins[request["name"]] = pin[CLASS_OF_PIN], only["count"], pin[PINNED_DEVICES]
    (a,), (b,) = requests["a"], requests["b"]
    assert pins == {
        a: ("fast", 2, f'["{DRIVER}/n/g1","{DRIVER}/n/g2"]'),
        b: ("fast", 1, f'["{DRIVER}/n/g3"]'),
    }


def test_a_template_keeps_the_resource_where_some_of_its_pods_get_it_from_a_plugin() -> None:
    fleet = fleet_of({"lab/a": [backed("n", 3), plugin("p", 2)]})
    one = shape(2, pods=2)
    (web,) = pinned(slots(fleet, one) or [], one, ("c", "2"))
    (only,) = web["spec"]["template"]["spec"]["containers"]
    assert only["resources"]["limits"] == {GPU: "2"} and "claims" not in only["resources"]
    assert PIN_PREFIX not in str(web)


def test_the_newest_class_serves_a_resource_unless_the_node_has_it() -> None:
    state = ClusterState()
    for name, created in (("a", "2026-01-01T00:00:00Z"), ("c", "2026-01-02T00:00:00Z"), ("b", "2026-01-02T00:00:00Z")):
        spec = {"selectors": [], "extendedResourceName": GPU}
        found = {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}
        state.put_device_class(Key("", name), dra.device_class(msgspec.json.encode(found)))
    classes = state.device_classes
    assert classes.serving(GPU) == "b" and classes.serving("example.com/other") == ""
    assert [c.name for c in classes.reports({GPU: "0"}) if c.extended_resource] == ["b"]
    assert not any(c.extended_resource for c in classes.reports({GPU: "2"}))
    state.drop_device_class(Key("", "b"), "")
    assert classes.serving(GPU) == "c"
