"""Tests which pods an agent ends because their claims left devices that failed."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from moorage.agent.core import kube_types
from moorage.agent.core.vacated_devices import VacatedDevices
from moorage.dra import objects as dra
from moorage.kube.objects import Key


def pod(uid: str, claim: str = "c", *, node: str = "n", **metadata: Any) -> kube_types.Pod:
    made = {
        "metadata": {"name": uid, "namespace": "ns", "uid": uid, "labels": {"moorage.dev/claim": claim}, **metadata},
        "spec": {"nodeName": node, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
        "status": {"phase": "Running", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{uid}-gpu"}]},
    }
    return msgspec.convert(made, kube_types.Pod)


def allocated(device: str, **more: Any) -> dra.DeviceClaim:
    result = {"driver": "d", "pool": "p", "device": device, "request": "one", **more}
    made = {"metadata": {"name": "x"}, "status": {"allocation": {"devices": {"results": [result]}}}}
    return msgspec.convert(made, dra.DeviceClaim)


def pin(text: str) -> dra.DeviceClass:
    annotations = {"moorage.dev/vacated-devices": text}
    return msgspec.convert({"metadata": {"name": "x", "annotations": annotations}, "spec": {}}, dra.DeviceClass)


def test_pods_with_devices_that_their_claim_left_end_and_no_others() -> None:
    known = VacatedDevices()
    for uid, claim, device in (("a", "c", "g0"), ("b", "c", "g1"), ("stranger", "other", "g0")):
        known.put_pod(Key("ns", uid), pod(uid, claim))
        known.put_claim(Key("ns", f"{uid}-gpu"), allocated(device))
    assert known.is_idle and list(known.pods()) == []
    known.put_class("moorage-c-one", pin(json.dumps({"c": ["d/p/g0"]})))
    assert not known.is_idle and [found.uid for found in known.pods()] == ["a"]
    known.put_class("theirs", pin(json.dumps({"c": ["d/p/g1"]})))
    assert [found.uid for found in known.pods()] == ["a"], "only classes that pin say so"
    known.put_pod(Key("ns", "a"), pod("a", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert list(known.pods()) == [], "it ends already"
    known.put_class("moorage-c-one", pin("junk"))
    assert known.is_idle


def test_a_pod_that_is_not_bound_or_only_sees_the_device_stays() -> None:
    known = VacatedDevices()
    known.put_class("moorage-c-one", pin(json.dumps({"c": ["d/p/g0"]})))
    known.put_pod(Key("ns", "a"), pod("a", node=""))
    known.put_pod(Key("ns", "b"), pod("b"))
    known.put_claim(Key("ns", "a-gpu"), allocated("g0"))
    known.put_claim(Key("ns", "b-gpu"), allocated("g0", adminAccess=True))
    assert list(known.pods()) == []
    known.put_claim(Key("ns", "b-gpu"), allocated("g0"))
    assert [found.uid for found in known.pods()] == ["b"]
    known.drop_claim(Key("ns", "b-gpu"))
    assert list(known.pods()) == []
    known.drop_pod("b")
    known.drop_class("moorage-c-one")
    assert known.is_idle
