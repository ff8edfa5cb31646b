"""Claims of apps are counted in shapes, and pinned to the devices of their slots by DeviceClasses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorage.agent.core import kube_types
from moorage.agent.core.claim_allocation import GatedClaims
from moorage.agent.core.cluster_state import ClusterState
from moorage.agent.core.device_annotations import DeviceAnnotations, read_slot_devices
from moorage.agent.core.kube_types import Pod
from moorage.dra import objects as dra
from moorage.dra.objects import DeviceClaim
from moorage.dra.pins import UnknownClass, completed, is_pin
from moorage.dra.shares import has_shares, with_shares
from moorage.dra.slices import Devices
from moorage.intents.core.diagnostics import Diagnostics
from moorage.intents.core.manifest_rules import read_objects
from moorage.intents.core.shapes import app_shapes
from moorage.kube.objects import Key
from moorage.model.claims import Claim, IntentRef
from moorage.model.groups import Revision
from moorage.model.part_requests import AttributeRelation, ClassVersion, DeviceAsk
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import DeviceGrant, Slot, names_parts, own_parts
from moorage.patcher.core.claimed_devices import devices_of
from moorage.patcher.core.class_needs import ClassNeeds, class_needs
from moorage.patcher.core.device_pins import DevicePins
from moorage.patcher.core.final_objects import FinalObjects
from moorage.podspec import CLASS_OF_NEED, CLASS_OF_PIN, CLASS_UID, PINNED_DEVICES, TEMPLATE_SLOTS

API = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"


def template(name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    spec = {"spec": {"devices": {"requests": list(requests), **devices}}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def exactly(name: str, device_class: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def deployment(name: str, *claims: dict[str, str], replicas: int = 1) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": list(claims)}
    spec = {"replicas": replicas, "selector": {}, "template": {"metadata": {"labels": {"a": name}}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


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


def claim(obj: str, *grants: tuple[str, str, str], ident: str = "c1") -> Claim:
    """`grants`: node, device and need."""
    slots = [
        Slot(
            node=node,
            parts={f"{DRIVER}/{node}/{device}": {"GPU_EXAMPLE_COM": 1}},
            devices=[DeviceGrant(part=f"{DRIVER}/{node}/{device}", need=need, name="GPU_EXAMPLE_COM", amount=1)],
        )
        for node, device, need in grants
    ]
    intent = IntentRef(kind="HpaIntent", name="i", revision=1)
    return Claim(id=ident, decision="d", intent=intent, tenant="t", slots=slots, object=obj, cluster="p/c", app="web")


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


# --- the agent


def state_of(*devices: dict[str, Any]) -> ClusterState:
    state = ClusterState()
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "nodeName": "n0", "devices": list(devices)}
    state.put_slice(Key("", "s"), dra.slice_(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})))
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    config = [{"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}]
    found = {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector], "config": config}}
    state.put_device_class(Key("", "gpu"), dra.device_class(msgspec.json.encode(found)))
    return state


def device(name: str, **attributes: Any) -> dict[str, Any]:
    kinds: dict[type, str] = {str: "string", int: "int", bool: "bool"}
    return {"name": name, "attributes": {k: {kinds[type(v)]: v} for k, v in attributes.items()}}


def ids(*names: str) -> list[str]:
    return [f"{DRIVER}/n0/{name}" for name in names]


def test_a_class_keeps_selectors_and_configuration_of_the_one_that_was_asked_for() -> None:
    state = state_of(device("g0", uuid="GPU-0"))
    metadata = {
        "name": "moorage-c1-a",
        "annotations": {CLASS_OF_PIN: "gpu", PINNED_DEVICES: msgspec.json.encode(ids("g0")).decode()},
    }
    pin = {"apiVersion": API, "kind": "DeviceClass", "metadata": metadata, "spec": {}}
    spec = completed(pin, state.device_classes, state.devices)["spec"]
    assert [selector["cel"]["expression"] for selector in spec["selectors"]] == [
        f'device.driver == "{DRIVER}"',
        (
            f'(device.driver == "{DRIVER}" && has(device.attributes["{DRIVER}"].uuid)'
            f' && device.attributes["{DRIVER}"].uuid in ["GPU-0"])'
        ),
    ]
    assert spec["config"] == [{"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}]
    state.drop_device_class(Key("", "gpu"), "")
    with pytest.raises(UnknownClass, match="there is no DeviceClass 'gpu'"):
        completed(pin, state.device_classes, state.devices)
    state.put_device_class(Key("", "moorage-c1-a"), dra.device_class(msgspec.json.encode(pin)))
    assert state.device_classes.reports() == []


# --- claims that the agent allocates


def gated(name: str, claim: str = "", template: str = "moorage-c1-x") -> tuple[Key, Pod]:
    entries = [{"name": "x", "resourceClaimTemplateName": template}]
    made = [{"name": "x", "resourceClaimName": claim}] if claim else []
    found = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": name,
        },
        "spec": {"schedulingGates": [{"name": "moorage.dev/devices"}], "resourceClaims": entries},
        "status": {"resourceClaimStatuses": made},
    }
    return Key("default", name), kube_types.pod(msgspec.json.encode(found))


def claim_object(name: str, *devices: str, version: str = "1") -> tuple[Key, DeviceClaim]:
    results = [{"request": "a", "driver": DRIVER, "pool": "n0", "device": device} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": version}
    found = {"metadata": metadata, "status": status}
    return Key("default", name), dra.device_claim(msgspec.json.encode(found))


def planned(claims: GatedClaims, slots: Any, **allocable: bool | None) -> dict[str, tuple[str, list[list[str]]]]:
    annotations = {TEMPLATE_SLOTS: slots if isinstance(slots, str) else msgspec.json.encode(slots).decode()}
    found = claims.plan(
        lambda _namespace, name: {"metadata": {"annotations": annotations}} if name == "moorage-c1-x" else None,
        lambda ident: allocable.get(ident.rpartition("/")[2], True),
    )
    return {
        one.pod.uid: (one.node, [d for claim in one.claims for d in claim.devices.values()])  # type: ignore[misc]
        for one in found
    }


def test_each_gated_pod_gets_the_devices_of_a_slot_that_nobody_has() -> None:
    slots = [{"node": "n0", "devices": {"a": ids(f"g{i}")}} for i in range(3)]
    claims = GatedClaims()
    for name in ("p1", "p2", "p3"):
        claims.put_pod(*gated(name, f"{name}-x"))
        claims.put_claim(*claim_object(f"{name}-x"))
    claims.put_pod(*gated("p4"))  # its claim is not made yet
    assert planned(claims, slots) == {f"p{i + 1}": ("n0", [ids(f"g{i}")]) for i in range(3)}
    claims.put_claim(*claim_object("stranger", "g0"))
    assert planned(claims, slots) == {"p1": ("n0", [ids("g1")]), "p2": ("n0", [ids("g2")])}
    assert planned(claims, slots, g1=False) == {"p1": ("n0", [ids("g2")])}
    # An earlier agent ended after it had allocated: the gate is opened.
    claims.put_claim(*claim_object("p2-x", "g2"))
    assert planned(claims, slots)["p2"] == ("n0", [])
    # What must be told more of than its name, the scheduler allocates by the pins.
    assert planned(claims, slots, g0=None)["p1"] == ("", [])
    claims.drop_claim(Key("default", "stranger"))
    claims.allocating["p1-x"] = frozenset(ids("g0"))
    assert "p1" not in planned(claims, slots) and planned(claims, slots)["p3"] == ("n0", [ids("g1")])


def test_a_claim_whose_request_failed_keeps_its_devices_until_it_was_read() -> None:
    slots = [{"node": "n0", "devices": {"a": ids(f"g{i}")}} for i in range(2)]
    claims = GatedClaims()
    for name in ("p1", "p2"):
        claims.put_pod(*gated(name, f"{name}-x"))
        claims.put_claim(*claim_object(f"{name}-x"))
    claims.allocating["p1-x"] = frozenset(ids("g0"))
    assert planned(claims, slots) == {"p2": ("n0", [ids("g1")])}
    # It had succeeded. An event of before, which comes only now, does not take it back.
    key, allocated = claim_object("p1-x", "g0", version="7")
    claims.confirm(key, "p1-x", allocated)
    claims.put_claim(*claim_object("p1-x", version="6"))
    assert planned(claims, slots) == {"p1": ("n0", []), "p2": ("n0", [ids("g1")])}
    claims.allocating["p2-x"] = frozenset(ids("g1"))
    claims.drop_claim(Key("default", "p2-x"))
    claims.confirm(Key("default", "p2-x"), "p2-x", claim_object("p2-x")[1])  # it was deleted after it had been read
    assert planned(claims, slots) == {"p1": ("n0", [])} and not claims.allocating


@pytest.mark.parametrize("slots", ["junk", "[1]", "{}", "[]", '[{"devices": 1}]'])
def test_slots_that_make_no_sense_give_nothing(slots: str) -> None:
    claims = GatedClaims()
    claims.put_pod(*gated("p", "p-x"))
    claims.put_claim(*claim_object("p-x"))
    assert planned(claims, slots) == {}


# --- what is written on pods


def bound_pod(**annotations: str) -> tuple[Key, Pod]:
    resources = {"claims": [{"name": "x"}]}
    found = {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "p",
            "resourceVersion": "1",
            "labels": {"moorage.dev/claim": "c1"},
            "annotations": annotations,
        },
        "spec": {
            "nodeName": "n0",
            "containers": [{"name": "c", "resources": resources}, {"name": "d"}],
            "resourceClaims": [{"name": "x", "resourceClaimTemplateName": "moorage-c1-x"}],
        },
        "status": {"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "p-x"}]},
    }
    return Key("default", "p"), kube_types.pod(msgspec.json.encode(found))


def test_pods_say_which_devices_the_cluster_gave_them() -> None:
    manifests = [template("two", exactly("a")), deployment("web", {"name": "x", "resourceClaimTemplateName": "two"})]
    objects = FinalObjects(manifests, [], {}, "d").on_cluster("p/c", [claim("Deployment/web", ("n0", "g1", "x/a"))])
    known = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    wanted: dict[tuple[str, str], dict[str, Any]] = {}
    annotations = DeviceAnnotations(
        lambda kind, _namespace, name: wanted.get((kind, name)), lambda _claim: "d1", lambda _class: "u1"
    )
    annotations.put_pod(*bound_pod())
    annotations.put_claim(*claim_object("p-x", "g2"))
    assert list(annotations.missing()) == [] and not annotations.is_idle  # the app is not known yet
    wanted = known
    (found,) = annotations.missing()
    assert annotations.is_idle and found.annotations["scheduler.alpha.kubernetes.io/resClass_gpu_g2"] == "1"
    text = found.annotations["moorage.dev/devices"] or ""
    (entry,) = msgspec.json.decode(text)
    assert entry == {
        "class": "gpu",
        "classUid": "u1",
        "algorithm": "first-fit",
        "claim": "p-x",
        "request": "a",
        "containers": ["c"],
        "parts": ids("g2"),
        "quantity": 1,
        "decision": "d1",
    }
    annotations.put_pod(*bound_pod(**{k: v or "" for k, v in found.annotations.items()}))
    assert list(annotations.missing()) == []
    # Another device is written as soon as the claim has it.
    annotations.put_claim(*claim_object("p-x", "g3"))
    (found,) = annotations.missing()
    assert found.annotations["scheduler.alpha.kubernetes.io/resClass_gpu_g2"] is None
    annotations.drop_pod("p")
    assert annotations.is_idle


def test_pods_say_which_devices_without_claims_their_slots_name() -> None:
    """The story of the proposal: a device plugin's devices are written on the pod by class and name."""
    version = {"tesla": ClassVersion(uid="u", spec="s", algorithm="default")}

    def slot(name: str, count: int = 1) -> Slot:
        part = f"n0/{name}"
        grants = [DeviceGrant(part=part, need="gpu", name="NVIDIA_GPU", amount=1, resource_class="tesla")] * 4
        pages = DeviceGrant(
            part="n0/hugepages-1Gi", need="mem", name="hugepages-1Gi", amount=2 << 30, resource_class="m"
        )
        parts = {part: {"NVIDIA_GPU": 4}, "n0/hugepages-1Gi": {"hugepages-1Gi": 2 << 30}}
        return Slot(node="n0", count=count, resources={"pods": 1}, parts=parts, devices=[*grants, pages])

    def pod(uid: str, claim_: str = "c1", **annotations: str) -> tuple[Key, Pod]:
        metadata = {"name": uid, "namespace": "d", "uid": uid, "resourceVersion": "1", "annotations": annotations}
        found = {"metadata": metadata | {"labels": {"moorage.dev/claim": claim_}}, "spec": {"nodeName": "n0"}}
        return Key("d", uid), kube_types.pod(msgspec.json.encode(found))

    made = claim("Deployment/web")
    made.slots, made.classes = [slot("nvidia-tesla-gpu"), slot("other")], version
    (web,) = FinalObjects([deployment("web")], [], {}, "d").on_cluster("p/c", [made])
    runs = read_slot_devices(web["metadata"]["annotations"]["moorage.dev/slot-devices"])
    known: Any = {}
    annotations = DeviceAnnotations(lambda *_: None, lambda _: "d1", lambda _: "", lambda: known)
    for one in (pod("b"), pod("a"), pod("x", "another")):
        annotations.put_pod(*one)
    assert list(annotations.missing()) == [] and annotations.is_idle, "nothing is known of the claim yet"
    known = runs
    annotations.check_slots()
    first, second = annotations.missing()
    legacy = "scheduler.alpha.kubernetes.io/resClass"
    assert first.uid == "a" and first.annotations[f"{legacy}_tesla_nvidia-tesla-gpu"] == "4"
    assert second.uid == "b" and second.annotations[f"{legacy}_tesla_other"] == "4"
    assert second.annotations[f"{legacy}_m_hugepages-1Gi"] == "2"
    entry, _ = msgspec.json.decode(first.annotations["moorage.dev/devices"] or "")
    assert entry == {
        "class": "tesla",
        "classUid": "u",
        "algorithm": "default",
        "request": "gpu",
        "containers": ["c"],
        "parts": ["n0/nvidia-tesla-gpu"],
        "quantity": 4,
        "decision": "d1",
    }
    annotations.put_pod(*pod("a", **{k: v or "" for k, v in first.annotations.items()}))
    assert [one.uid for one in annotations.missing()] == []
    known = {"c1": []}  # the claim has no such devices any more
    annotations.check_slots()
    left = {one.uid: set(one.annotations.values()) for one in annotations.missing()}
    assert left == {"a": {None}}
