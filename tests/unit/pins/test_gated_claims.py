"""Tests how an agent completes the classes of pins, allocates claims of gated pods and says which devices pods have."""

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
from moorage.dra.pins import UnknownClass, completed
from moorage.kube.objects import Key
from moorage.model.part_requests import ClassVersion
from moorage.model.slots import DeviceGrant, Slot
from moorage.patcher.core.final_objects import FinalObjects
from moorage.podspec import CLASS_OF_PIN, PINNED_DEVICES, TEMPLATE_SLOTS

from .documents import API, DRIVER, claim, deployment, device, exactly, template


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
    # Only the name of a device can be given; where more must be, the scheduler allocates by the pins.
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
