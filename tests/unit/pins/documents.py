"""Documents of tests of pinned claims."""

from __future__ import annotations

from typing import Any

from moorage.model.claims import Claim, IntentRef
from moorage.model.slots import DeviceGrant, Slot

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


def device(name: str, **attributes: Any) -> dict[str, Any]:
    kinds: dict[type, str] = {str: "string", int: "int", bool: "bool"}
    return {"name": name, "attributes": {k: {kinds[type(v)]: v} for k, v in attributes.items()}}
