"""Tests that templates name the devices of pins themselves where ResourceQuotas count devices by class."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.dra import objects as dra
from moorage.dra.quotas import Quotas, with_quotas
from moorage.dra.slices import Devices
from moorage.kube.objects import Key
from moorage.podspec import CLASS_OF_PIN, PINNED_DEVICES

DRIVER = "gpu.example.com"
API = {"apiVersion": "resource.k8s.io/v1"}


def devices() -> Devices:
    found = Devices(lambda _node: None, lambda: None)
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    names = [{"name": f"g{i}", "attributes": {"uuid": {"string": f"u{i}"}}} for i in range(3)]
    spec = {"driver": DRIVER, "pool": pool, "nodeName": "n", "devices": names}
    found.put("s", dra.slice_(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})))
    return found


def quota(name: str, namespace: str, *classes: str) -> Quotas:
    found = Quotas()
    hard = {f"{of}.deviceclass.resource.k8s.io/devices": "4" for of in classes} | {"pods": "9"}
    found.put(Key(namespace, name), dra.resource_quota(msgspec.json.encode({"metadata": {}, "spec": {"hard": hard}})))
    return found


def pin(name: str, of: str, *numbers: int) -> dict[str, Any]:
    ids = msgspec.json.encode([f"{DRIVER}/n/g{i}" for i in numbers]).decode()
    metadata = {"name": name, "annotations": {CLASS_OF_PIN: of, PINNED_DEVICES: ids}}
    return {**API, "kind": "DeviceClass", "metadata": metadata, "spec": {}}


def app(*numbers: int, namespace: str = "a") -> list[dict[str, Any]]:
    requests = [
        {"name": "one", "exactly": {"deviceClassName": "moorage-c-one", "count": 1}},
        {
            "name": "any",
            "firstAvailable": [
                {"name": "x", "deviceClassName": "moorage-c-any-x", "selectors": [{"cel": {"expression": "true"}}]},
                {"name": "y", "deviceClassName": "moorage-c-any-y"},
            ],
        },
    ]
    template = {
        **API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "moorage-c-gpu", "namespace": namespace, "annotations": {"kept": "yes"}},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    claims = [{"name": "gpu", "resourceClaimTemplateName": "moorage-c-gpu"}, {"name": "b", "resourceClaimName": "b"}]
    pod = {"metadata": {}, "spec": {"containers": [], "resourceClaims": claims}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"template": pod},
    }
    pins = [
        pin("moorage-c-one", "gpu", *numbers),
        pin("moorage-c-any-x", "gpu", 2),
        pin("moorage-c-any-y", "nic", 1),
    ]
    return [*pins, template, deployment]


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(one for one in found if one["kind"] == kind)


def test_only_requests_for_counted_classes_name_their_devices() -> None:
    given = app(0)
    result = with_quotas(given, quota("q", "a", "gpu").of, devices)
    template = of_kind(result.manifests, "ResourceClaimTemplate")
    name = template["metadata"]["name"]
    assert result.templates == {("a", name): ["gpu"]} and template["metadata"]["annotations"] == {"kept": "yes"}
    one, several = template["spec"]["spec"]["devices"]["requests"]
    assert one["exactly"]["deviceClassName"] == "gpu" and one["exactly"]["count"] == 1
    (selector,) = one["exactly"]["selectors"]
    assert '"u0"' in selector["cel"]["expression"]
    first, second = several["firstAvailable"]
    assert first["deviceClassName"] == "gpu" and len(first["selectors"]) == 2
    assert second == {"name": "y", "deviceClassName": "moorage-c-any-y"}
    entries = of_kind(result.manifests, "Deployment")["spec"]["template"]["spec"]["resourceClaims"]
    assert [entry.get("resourceClaimTemplateName") for entry in entries] == [name, None]
    assert [one for one in result.manifests if one["kind"] == "DeviceClass"] == given[:3]


def test_other_devices_make_another_template_and_equal_ones_the_same() -> None:
    def name(*numbers: int) -> str:
        found = with_quotas(app(*numbers), quota("q", "a", "gpu").of, devices).manifests
        return str(of_kind(found, "ResourceClaimTemplate")["metadata"]["name"])

    assert name(0) == name(0) != name(1) and name(0).startswith("moorage-c-gpu-")


def test_without_such_a_quota_in_the_namespace_nothing_changes() -> None:
    given = app(0)
    for found in (Quotas(), quota("q", "other", "gpu"), quota("q", "a", "another"), quota("q", "a")):
        assert with_quotas(given, found.of, devices) == (given, {})


def test_quotas_that_go_count_no_more() -> None:
    found = quota("q", "a", "gpu")
    assert found.of("a") == {"gpu"} and found.of("b") == frozenset()
    found.put(Key("a", "q"), dra.resource_quota(b'{"metadata": {}, "spec": {"hard": {"pods": "1"}}}'))
    assert found.of("a") == frozenset()
    found = quota("q", "a", "gpu")
    found.drop(Key("a", "q"))
    assert found.of("a") == frozenset()


def test_quotas_of_an_extended_resource_count_devices_of_the_class_that_serves_it() -> None:
    found = Quotas({"example.com/gpu": "gpu"}.get)  # type: ignore[arg-type]
    hard = {
        "requests.example.com/gpu": "3",
        "requests.deviceclass.resource.kubernetes.io/nic": "2",
        "requests.cpu": "9",
        "requests.example.com/other": "1",
    }
    found.put(Key("a", "q"), dra.resource_quota(msgspec.json.encode({"metadata": {}, "spec": {"hard": hard}})))
    assert found.of("a") == {"gpu", "nic"} and not found.of("b")
    assert (found.limit("a", "gpu"), found.limit("a", "nic"), found.limit("a", "cpu")) == (3, 2, None)
