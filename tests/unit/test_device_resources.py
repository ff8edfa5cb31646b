"""Pods of claims with devices that extended resources count request these resources."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.model.claims import Claim, IntentRef, Slot
from moorage.model.slots import DeviceGrant
from moorage.patcher.core.class_needs import ClassNeeds
from moorage.patcher.core.final_objects import FinalObjects

GPU, PAGES = "nvidia.com/gpu", "hugepages-1Gi"


def web(**resources: dict[str, str]) -> dict[str, Any]:
    containers = [{"name": "main", "image": "i", "resources": resources}, {"name": "side", "image": "i"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}},
    }


def slot(node: str, *grants: tuple[str, str, int], count: int = 1) -> Slot:
    devices = [DeviceGrant(part=f"{node}/{name}", need=need, name=name, amount=n) for need, name, n in grants]
    parts = {grant.part: {grant.name: grant.amount} for grant in devices}
    return Slot(node=node, count=count, resources={"pods": 1}, parts=parts, devices=devices)


def claim(*slots: Slot) -> Claim:
    intent = IntentRef(kind="Application", name="web", revision=1)
    return Claim(
        id="c",
        decision="d",
        intent=intent,
        tenant="p",
        slots=list(slots),
        cluster="lab/a",
        app="web",
        object="Deployment/web",
    )


def containers(manifest: dict[str, Any], made: Claim, needs: dict[str, ClassNeeds] | None = None) -> list[Any]:
    found = FinalObjects([manifest], [], {}, "d", needs=needs).on_cluster("lab/a", [made])[0]
    return [one.get("resources", {}) for one in found["spec"]["template"]["spec"]["containers"]]


def test_the_first_container_requests_what_the_slot_has() -> None:
    made = claim(slot("n-0", ("gpu", GPU, 2), ("mem", PAGES, 2 << 30)))
    asked = {GPU: "2", PAGES: "2Gi"}
    assert containers(web(), made) == [{"requests": asked, "limits": asked}, {}]


def test_the_container_of_the_need_requests_it() -> None:
    needs = {"Deployment/web": ClassNeeds({}, [], {"gpu": {"side"}})}
    assert containers(web(), claim(slot("n-0", ("gpu", GPU, 1))), needs)[1] == {
        "requests": {GPU: "1"},
        "limits": {GPU: "1"},
    }


def test_what_the_manifest_requests_itself_stays_and_classes_go() -> None:
    given = web(limits={GPU: "1", "cpu": "1", "nvidia.high.mem": "2"})
    found = containers(given, claim(slot("n-0", ("nvidia.high.mem", GPU, 2))))[0]
    assert found == {"requests": {GPU: "3"}, "limits": {GPU: "3", "cpu": "1"}}


@pytest.mark.parametrize("counts", [(3, 1), (1, 3)])
def test_a_template_is_one_for_all_pods(counts: tuple[int, int]) -> None:
    made = claim(slot("n-0", ("gpu", GPU, 1), count=counts[0]), slot("n-1", ("gpu", "amd.com/gpu", 1), count=counts[1]))
    name = GPU if counts[0] > counts[1] else "amd.com/gpu"
    assert containers(web(), made)[0] == {"requests": {name: "1"}, "limits": {name: "1"}}


def test_devices_of_drivers_are_not_requested_so() -> None:
    devices = [DeviceGrant(part="gpu.nvidia.com/n-0/gpu-0", need="gpu", name="GPU_NVIDIA_COM", amount=1)]
    made = claim(Slot(node="n-0", resources={"pods": 1}, devices=devices))
    assert containers(web(), made)[0].keys() <= {"claims"}
