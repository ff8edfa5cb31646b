"""Bodies of /v2 resources of tests."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from moorage.intents.core import v2_compose
from moorage.intents.core.v2_normalize import read
from moorage.model.names import GroupName
from moorage.model.v2_resources import (
    KINDS,
    Path,
    Resource,
    ResourceKind,
    ResourceTree,
    kind_of,
)

BY_SEGMENT: dict[str, ResourceKind] = {kind.segment: kind for kind in KINDS}


def form(segment: str, body: Any) -> Any:
    return msgspec.to_builtins(read(BY_SEGMENT[segment], body).body)


def need(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "spec": spec}


GROUP = GroupName("p", "ca", "v1.0", "g")
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
}


def tree_of(resources: dict[str, Any]) -> ResourceTree:
    """`resources`: bodies by path below the composite app."""
    tree = ResourceTree()
    root = "projects/p/composite-apps/ca/v1.0"
    for number, (below, body) in enumerate(resources.items(), 1):
        path: Path = tuple(os.path.normpath(f"{root}/{below}").split("/"))
        kind = kind_of(path)
        assert kind is not None, path
        whole = {"metadata": {"name": path[-1]}, **body}
        objects, chart = whole.pop("objects", []), whole.pop("chart", "")
        raw = msgspec.Raw(msgspec.json.encode(read(kind, whole).body))
        tree.put(path, Resource(body=raw, objects=objects, chart=chart), number)
    return tree


async def no_charts(*_: Any) -> list[dict[str, Any]]:
    raise AssertionError("there is no chart")


async def composed(resources: dict[str, Any]) -> v2_compose.ComposedGroup:
    return await v2_compose.compose(tree_of(resources), GROUP, no_charts)


BASE: dict[str, Any] = {
    "apps/web": {"objects": [DEPLOYMENT]},
    "deployment-intent-groups/g": {},
    "deployment-intent-groups/g/hpa-intents/h": {"spec": {"app": "web"}},
    "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w": {
        "spec": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "container": "c", "replicas": 2}
    },
    "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w/resource-requirements/cpu": {
        "spec": {"name": "cpu", "requests": "500m"}
    },
    "deployment-intent-groups/g/hpa-intents/h/hpa-resource-consumers/w/resource-requirements/fast": {
        "spec": {"allocatable": False, "name": "disk", "value": "ssd"}
    },
}
