"""Tests that claims of apps are counted in shapes, and pinned to the devices of their slots by DeviceClasses."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.dra import objects as dra
from moorage.dra.pins import is_pin
from moorage.dra.shares import has_shares, with_shares
from moorage.dra.slices import Devices
from moorage.intents.core.diagnostics import Diagnostics
from moorage.intents.core.manifest_rules import read_objects
from moorage.intents.core.shapes import app_shapes
from moorage.model.groups import Revision
from moorage.model.part_requests import AttributeRelation, ClassVersion, DeviceAsk
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import DeviceGrant, Slot, names_parts, own_parts
from moorage.patcher.core.claimed_devices import devices_of
from moorage.patcher.core.class_needs import ClassNeeds, class_needs
from moorage.patcher.core.device_pins import DevicePins
from moorage.patcher.core.final_objects import FinalObjects
from moorage.podspec import CLASS_OF_NEED, CLASS_OF_PIN, CLASS_UID, PINNED_DEVICES, TEMPLATE_SLOTS

from .documents import API, DRIVER, claim, deployment, exactly, template


def shapes(*manifests: dict[str, Any]) -> tuple[list[Shape], Diagnostics]:
    diagnostics = Diagnostics()
    objects = read_objects(list(manifests), "spec.apps[0].manifests", diagnostics)
    return app_shapes(objects, [], {}, diagnostics), diagnostics


def test_claims_of_templates_become_groups_of_each_pod() -> None:
    constraints = [{"matchAttribute": "d.io/numa"}]
    made = template("two", exactly("a", count=2), exactly("b", "nic"), constraints=constraints)
    found, diagnostics = shapes(made, deployment("web", {"name": "x", "resourceClaimTemplateName": "two"}))
    assert not diagnostics.errors and not diagnostics.warnings
    (shape,) = found
    assert [(g.suffix, g.devices[0].device_class, g.devices[0].count) for g in shape.groups] == [
        ("x/a", "gpu", 2),
        ("x/b", "nic", 1),
    ]
    (relation,) = shape.relations
    assert relation == AttributeRelation(groups=("x/a", "x/b"), attribute="d.io/numa")


def test_a_claim_by_name_is_of_all_pods_together_on_one_node() -> None:
    claim = {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": "one"},
        "spec": {"devices": {"requests": [exactly("a")]}},
    }
    entry = {"name": "x", "resourceClaimName": "one"}
    found, _ = shapes(claim, deployment("web", entry, replicas=3), deployment("other", entry))
    for shape in found:
        assert shape.groups[0].shared == "claim:default/one"
        assert [(rule.kind, rule.pods) for rule in shape.rules] == [("near", "claim:default/one")]
        assert shape.marks == ["claim:default/one"]


def test_what_is_wrong_is_told_with_its_path() -> None:
    bad = template("two", exactly("a", selectors=[{"cel": {"expression": "device.nothing"}}]))
    _, diagnostics = shapes(bad, deployment("web", {"name": "x", "resourceClaimTemplateName": "nowhere"}))
    (error,) = diagnostics.errors
    at = "spec.apps[0].manifests[0].spec.spec.devices.requests[0].exactly.selectors[0].cel.expression"
    assert (error.code, error.path) == ("SelectorError", at)
    assert "undeclared reference to 'device.nothing'" in error.message
    assert [warning.code for warning in diagnostics.warnings] == ["ClaimNotFound"]
    broken = {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"selectors": [{"cel": {"expression": "1"}}]},
    }
    _, diagnostics = shapes(broken)
    assert diagnostics.errors[0].path == "spec.apps[0].manifests[0].spec.selectors[0].cel.expression"


def test_devices_of_claims_confine_no_pods() -> None:
    one = claim("Deployment/web", ("n0", "gpu-1", "x/a"))
    assert not names_parts(one.slots) and own_parts(one.slots[0]) == {}
    with_zone = msgspec.structs.replace(one.slots[0], parts={**one.slots[0].parts, "n0/numa-0": {"cpu": 1}})
    assert names_parts([with_zone]) and own_parts(with_zone) == {"n0/numa-0": {"cpu": 1}}


def test_pods_get_a_template_that_asks_for_the_devices_of_their_slots() -> None:
    manifests = [template("two", exactly("a")), deployment("web", {"name": "x", "resourceClaimTemplateName": "two"})]
    pinned = claim("Deployment/web", ("n0", "gpu-1", "x/a"), ("n1", "gpu-3", "x/a"))
    final = FinalObjects(manifests, [], {}, "d")
    objects = final.on_cluster("p/c", [pinned])
    assert [msgspec.json.decode(raw) for raw in final.encoded_on_cluster("p/c", [pinned])] == objects
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    web = by_name["Deployment", "web"]["spec"]["template"]["spec"]
    assert web["resourceClaims"] == [{"name": "x", "resourceClaimTemplateName": "moorage-c1-x"}]
    made = by_name["ResourceClaimTemplate", "moorage-c1-x"]["spec"]["spec"]["devices"]["requests"]
    assert made == [{"name": "a", "exactly": {"deviceClassName": "moorage-c1-a"}}]
    annotations = by_name["DeviceClass", "moorage-c1-a"]["metadata"]["annotations"]
    assert annotations == {
        CLASS_OF_PIN: "gpu",
        PINNED_DEVICES: '["gpu.example.com/n0/gpu-1","gpu.example.com/n1/gpu-3"]',
    }
    assert by_name["ResourceClaimTemplate", "two"]["spec"] == manifests[0]["spec"]
    # A move changes the class and what templates are annotated with, and nothing else.
    moved = final.on_cluster("p/c", [claim("Deployment/web", ("n0", "gpu-2", "x/a"), ("n1", "gpu-3", "x/a"))])
    assert _without_annotations(moved) == _without_annotations(objects)
    assert moved != objects


def _without_annotations(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaves out the annotations of classes and templates, which say which devices there are."""
    added = ("DeviceClass", "ResourceClaimTemplate")
    return [
        {**o, "metadata": {k: v for k, v in o["metadata"].items() if k != "annotations"}} if o["kind"] in added else o
        for o in objects
    ]


def test_of_alternatives_those_stay_that_slots_have() -> None:
    request = {"name": "a", "firstAvailable": [{"name": n, "deviceClassName": f"class-{n}"} for n in ("big", "small")]}
    constraints = [{"requests": ["a/big"], "matchAttribute": "d.io/x"}, {"requests": ["a"], "matchAttribute": "d.io/x"}]
    manifests = [
        template("two", request, constraints=constraints),
        deployment("web", {"name": "x", "resourceClaimTemplateName": "two"}),
    ]
    pinned = claim("Deployment/web", ("n0", "gpu-1", "x/a/small"))
    objects = FinalObjects(manifests, [], {}, "d").on_cluster("p/c", [pinned])
    made = next(o for o in objects if o["metadata"]["name"] == "moorage-c1-x")["spec"]["spec"]["devices"]
    assert made["requests"] == [
        {"name": "a", "firstAvailable": [{"name": "small", "deviceClassName": "moorage-c1-a-small"}]}
    ]
    assert made["constraints"] == [{"requests": ["a"], "matchAttribute": "d.io/x"}]


def test_a_claim_by_name_is_pinned_to_the_devices_of_all_that_name_it() -> None:
    by_name = {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": "one"},
        "spec": {"devices": {"requests": [exactly("a")]}},
    }
    entry = {"name": "x", "resourceClaimName": "one"}
    manifests = [by_name, deployment("web", entry), deployment("other", {**entry, "name": "y"})]
    claims = [claim("Deployment/web", ("n0", "gpu-1", "x/a")), claim("Deployment/other", ident="c2")]
    objects = FinalObjects(manifests, [], {}, "d").on_cluster("p/c", claims)
    (made,) = [o for o in objects if is_pin(o)]
    found = next(o for o in objects if o["kind"] == "ResourceClaim")["spec"]["devices"]["requests"]
    assert found == [{"name": "a", "exactly": {"deviceClassName": made["metadata"]["name"]}}]
    assert not DevicePins(manifests, [claims[1]]).there_are and devices_of(claims[1]) == {}


def test_needs_for_classes_get_a_claim_of_their_own() -> None:
    """Pods with one device and with two of the same need: the scheduler takes the alternative that a node has."""
    web = deployment("web")
    web["spec"]["template"]["spec"]["containers"].append({"name": "side", "image": "i"})
    first, second = (f"{DRIVER}/n{i}/gpu-{i}" for i in range(2))
    slots = [
        Slot(node="n0", parts={first: {"G": 1}}, devices=[DeviceGrant(part=first, need="gpu", name="G", amount=1)]),
        Slot(
            node="n1",
            parts={part: {"G": 1} for part in (second, f"{second}0")},
            devices=[DeviceGrant(part=part, need="gpu", name="G", amount=1) for part in (second, f"{second}0")],
        ),
    ]
    assert not names_parts(slots)
    asks = (
        DeviceAsk(resource_class="small", count=1, capacity={"memory": "1Gi"}),
        DeviceAsk(resource_class="big", count=2),
    )
    relations = [AttributeRelation(groups=("gpu",), attribute="resource.kubernetes.io/pcieRoot")]
    needs = {"Deployment/web": ClassNeeds({"gpu": asks}, relations, {"gpu": {"c"}})}
    made = msgspec.structs.replace(claim("Deployment/web"), slots=slots)
    objects = FinalObjects([web], [], {}, "d", needs=needs).on_cluster("p/c", [made])
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    pod = by_name["Deployment", "web"]["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [{"name": "moorage-needs", "resourceClaimTemplateName": "moorage-c1-needs"}]
    claims = [{"name": "moorage-needs", "request": "need-0"}]
    assert [c.get("resources") for c in pod["containers"]] == [{"claims": claims}, None]
    asked = by_name["ResourceClaimTemplate", "moorage-c1-needs"]["spec"]["spec"]["devices"]
    assert [(a["name"], a["deviceClassName"], a["count"]) for a in asked["requests"][0]["firstAvailable"]] == [
        ("of-1", "moorage-c1-need-0-of-1", 1),
        ("of-2", "moorage-c1-need-0-of-2", 2),
    ]
    assert asked["requests"][0]["firstAvailable"][0]["capacity"] == {"requests": {"memory": "1Gi"}}
    assert asked["constraints"] == [{"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["need-0"]}]
    pins = by_name["DeviceClass", "moorage-c1-need-0-of-2"]["metadata"]["annotations"]
    assert msgspec.json.decode(pins[PINNED_DEVICES]) == [second, f"{second}0"]


def test_alternatives_with_as_many_devices_are_told_apart_by_their_classes() -> None:
    web = deployment("web")
    parts = [f"{DRIVER}/n{i}/gpu-{i}" for i in range(3)]
    slots = [
        Slot(
            node=f"n{i}",
            parts={part: {"G": 1}},
            devices=[DeviceGrant(part=part, need="gpu", name="G", amount=1, resource_class=of)],
        )
        for i, (part, of) in enumerate(zip(parts, ("new", "old", "local"), strict=True))
    ]
    asks = tuple(
        DeviceAsk(resource_class=of, count=1, capacity={"memory": size})
        for of, size in (("new", "2Gi"), ("old", "1Gi"), ("local", "3Gi"))
    )
    classes = {
        "new": ClassVersion(uid="u1", spec="1", algorithm="best-fit"),
        "old": ClassVersion(uid="u2", spec="2", algorithm="default"),
    }
    made = msgspec.structs.replace(claim("Deployment/web"), slots=slots, classes=classes)
    needs = {"Deployment/web": ClassNeeds({"gpu": asks}, [], {"gpu": {"c"}})}
    objects = FinalObjects([web], [], {}, "d", needs=needs).on_cluster("p/c", [made])
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    template_ = by_name["ResourceClaimTemplate", "moorage-c1-needs"]
    requests = template_["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
    seen = {}
    for request in requests:
        annotations = by_name["DeviceClass", request["deviceClassName"]]["metadata"]["annotations"]
        devices = msgspec.json.decode(annotations[PINNED_DEVICES])
        size = request["capacity"]["requests"]["memory"]
        seen[annotations[CLASS_OF_NEED]] = annotations.get(CLASS_UID), devices, size, annotations[CLASS_OF_PIN]
    # A name that is no class of the mesh is a DeviceClass, of which the selectors and the configuration hold.
    assert seen == {
        "new": ("u1", [parts[0]], "2Gi", ""),
        "old": ("u2", [parts[1]], "1Gi", ""),
        "local": (None, [parts[2]], "3Gi", "local"),
    }
    told = msgspec.json.decode(template_["metadata"]["annotations"][TEMPLATE_SLOTS])
    named = {f"need-0/{request['name']}" for request in requests}
    assert {name for slot in told for name in slot["devices"]} == named


def test_shares_of_devices_of_different_sizes_are_alternatives() -> None:
    """The template says what each takes; what capacities are called the cluster knows."""
    web, parts = deployment("web"), [f"{DRIVER}/n{i}/gpu-{i}" for i in range(2)]
    slots = [
        Slot(
            node=f"n{i}",
            parts={part: {"MEMORY": size}},
            devices=[DeviceGrant(part=part, need="gpu", name="MEMORY", amount=size, resource_class="s")],
        )
        for i, (part, size) in enumerate(zip(parts, (40, 20), strict=True))
    ]
    classes = {"s": ClassVersion(uid="u1", spec="1", algorithm="best-fit")}
    made = msgspec.structs.replace(claim("Deployment/web"), slots=slots, classes=classes)
    needs = {"Deployment/web": ClassNeeds({"gpu": (DeviceAsk(resource_class="s", share=500),)}, [], {"gpu": {"c"}})}
    objects = FinalObjects([web], [], {}, "d", needs=needs).on_cluster("p/c", [made])
    template_ = next(o for o in objects if o["kind"] == "ResourceClaimTemplate")
    assert has_shares(template_) and not has_shares(web)
    found = Devices(lambda _node: None, lambda: None)
    for i in range(2):
        pool = {"name": f"n{i}", "generation": 1, "resourceSliceCount": 1}
        shared = {"name": f"gpu-{i}", "allowMultipleAllocations": True, "capacity": {"Memory": {"value": "80"}}}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": f"n{i}", "devices": [shared]}
        found.put(f"s{i}", dra.slice_(msgspec.json.encode({"metadata": {"name": f"s{i}"}, "spec": spec})))
    (request,) = with_shares(template_, found)["spec"]["spec"]["devices"]["requests"]
    by_name = {o["metadata"]["name"]: o for o in objects}
    asked = {
        msgspec.json.decode(by_name[one["deviceClassName"]]["metadata"]["annotations"][PINNED_DEVICES])[0]: one
        for one in request["firstAvailable"]
    }
    assert {part: one["capacity"] for part, one in asked.items()} == {
        parts[0]: {"requests": {"Memory": "40"}},
        parts[1]: {"requests": {"Memory": "20"}},
    }
    # What somebody else wrote asks for nothing.
    broken = {**template_, "metadata": {"name": "x", "annotations": {"moorage.dev/shares": "{"}}}
    assert with_shares(broken, found) == broken


def test_classes_that_containers_request_are_taken_out() -> None:
    web = deployment("web")
    limits = {"nvidia.high.mem": 2, "cpu": 1, "deviceclass.resource.kubernetes.io/gpu": 1}
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    (shape,), _ = shapes(web)
    assert [(g.suffix, g.devices[0].resource_class, g.devices[0].count) for g in shape.groups] == [
        ("gpu", "gpu", 1),
        ("nvidia.high.mem", "nvidia.high.mem", 2),
    ]
    (found,) = FinalObjects([web], [], {}, "d").on_cluster("p/c", [])
    assert found["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {"cpu": 1}}


def test_each_container_claims_the_devices_that_it_requests() -> None:
    web = deployment("web")
    spec = web["spec"]["template"]["spec"]
    spec["containers"] = [
        {"name": "a", "resources": {"limits": {"big": 2}}},
        {"name": "b", "resources": {"limits": {"big": 1, "one": 1}}},
    ]
    spec["initContainers"] = [{"name": "load", "resources": {"limits": {"big": 1}}}]
    (shape,), _ = shapes(web)
    assert [(g.suffix, g.devices[0].count) for g in shape.groups] == [("big.a", 2), ("big.b", 1), ("one", 1)]
    record = Revision(group="g", revision=1, tenant="p", apps=[ShapedApp(name="web", shapes=[shape])])
    needs = class_needs(record, "web", [web])["Deployment/web"]
    assert needs.containers == {"big.a": {"a", "load"}, "big.b": {"b"}, "one": {"b"}}
    grants = [("n0", "g1", "big.a"), ("n0", "g2", "big.a"), ("n0", "g3", "big.b"), ("n0", "g4", "one")]
    made = claim("Deployment/web", *grants)
    parts = {part: amounts for slot in made.slots for part, amounts in slot.parts.items()}
    devices = [grant for slot in made.slots for grant in slot.devices]
    made.slots = [Slot(node="n0", parts=parts, devices=devices)]
    found = FinalObjects([web], [], {}, "d", needs={"Deployment/web": needs}).on_cluster("p/c", [made])
    spec = found[0]["spec"]["template"]["spec"]
    claimed = {
        one["name"]: [entry["request"] for entry in one["resources"]["claims"]]
        for one in [*spec["initContainers"], *spec["containers"]]
    }
    assert claimed == {"load": ["need-0"], "a": ["need-0"], "b": ["need-1", "need-2"]}
