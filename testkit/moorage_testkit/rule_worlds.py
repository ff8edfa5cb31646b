"""Random small worlds of pods with rules about each other: applications as users write them, and the nodes of one cluster."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from moorage.model.reports import NodeReport, Taint

from .fleets import node

HOSTNAME = "kubernetes.io/hostname"
TAINT = Taint(key="t", effect="NoSchedule")
KEYS = [HOSTNAME, "zone", "rack"]
KINDS = ("apart", "near", "spread", "ports")


class World(NamedTuple):
    application: dict[str, Any]
    nodes: list[NodeReport]


def random_world(
    rng: random.Random, kinds: tuple[str, ...] = KINDS, *, nodes: int = 4, pods: int = 5, name: str = "w"
) -> World:
    """Returns an application of up to three objects in two apps, and nodes in zones and racks, some without."""
    counts = [rng.randint(1, max(1, min(3, pods // 2))) for _ in range(rng.randint(1, 3))]
    while sum(counts) > pods:
        counts.pop()
    objects = [_object(rng, number, count or 1, kinds, len(counts)) for number, count in enumerate(counts or [1])]
    split = rng.randint(1, len(objects))
    parts = [part for part in (objects[:split], objects[split:]) if part]
    apps = [{"name": f"app-{i}", "manifests": part} for i, part in enumerate(parts)]
    spec = {"apps": apps, "affinity": [{"together": [app["name"] for app in apps]}] if len(apps) > 1 else []}
    application = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": spec,
    }
    return World(application, [_node(rng, i) for i in range(rng.randint(1, nodes))])


def _node(rng: random.Random, number: int) -> NodeReport:
    labels = {}
    if rng.random() < 0.85:
        labels["zone"] = rng.choice("ab" if rng.random() < 0.7 else "abc")
    if rng.random() < 0.7:
        labels["rack"] = labels.get("zone", "a") + rng.choice("12")
    return node(
        f"n-{number}",
        labels=labels,
        taints=[TAINT] if rng.random() < 0.2 else [],
        cpu=str(rng.choice([1, 2, 3, 8])),
        memory="32Gi",
        host_ports=["80/TCP"] if rng.random() < 0.15 else [],
    )


def _object(rng: random.Random, number: int, count: int, kinds: tuple[str, ...], objects: int) -> dict[str, Any]:
    labels = {"app": rng.choice(["x", "x", f"o{number}"]), "tier": rng.choice(["front", "back"])}
    container: dict[str, Any] = {
        "name": "c",
        "image": "i",
        "resources": {"requests": {"cpu": rng.choice(["500m", "1"])}},
    }
    spec: dict[str, Any] = {"containers": [container]}
    affinity: dict[str, Any] = {}
    if "ports" in kinds and rng.random() < 0.2:
        container["ports"] = [{"containerPort": 80, "hostPort": 80}]
    if "apart" in kinds and rng.random() < 0.6:
        terms = [_term(rng, labels, objects) for _ in range(rng.randint(1, 2))]
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if "near" in kinds and rng.random() < 0.5:
        terms = [_term(rng, labels, objects) for _ in range(rng.choice([1, 1, 2]))]
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if "spread" in kinds and rng.random() < 0.6:
        keys = rng.sample(KEYS, rng.choice([1, 1, 2]))
        spec["topologySpreadConstraints"] = [_spread(rng, key, labels, objects) for key in keys]
    if affinity:
        spec["affinity"] = affinity
    if rng.random() < 0.2:
        spec["nodeSelector"] = {"zone": rng.choice("ab")}
    if rng.random() < 0.3:
        spec["tolerations"] = [{"operator": "Exists"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"o{number}"},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"object": f"o{number}"}},
            "template": {"metadata": {"labels": {**labels, "object": f"o{number}"}}, "spec": spec},
        },
    }


def _selector(rng: random.Random, labels: dict[str, str], objects: int) -> dict[str, Any] | None:
    kind = rng.random()
    if kind < 0.45:
        return {"matchLabels": {"app": labels["app"]}}
    if kind < 0.75:
        return {"matchLabels": {"object": f"o{rng.randrange(objects)}"}}
    if kind < 0.85:
        return {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": [labels["tier"]]}]}
    return rng.choice([{}, None, {"matchExpressions": [{"key": "app", "operator": "Exists"}]}])


def _term(rng: random.Random, labels: dict[str, str], objects: int) -> dict[str, Any]:
    term: dict[str, Any] = {"topologyKey": rng.choice(KEYS)}
    selector = _selector(rng, labels, objects)
    if selector is not None:
        term["labelSelector"] = selector
        if rng.random() < 0.15:
            term[rng.choice(["matchLabelKeys", "mismatchLabelKeys"])] = [_other_key(rng, selector, ["tier", "object"])]
    if rng.random() < 0.15:
        term["namespaces"] = rng.choice([["default"], ["elsewhere"], ["default", "elsewhere"]])
    elif rng.random() < 0.15:
        named = {"matchLabels": {"kubernetes.io/metadata.name": rng.choice(["default", "elsewhere"])}}
        term["namespaceSelector"] = rng.choice([{}, named])
    return term


def _other_key(rng: random.Random, selector: dict[str, Any], keys: list[str]) -> str:
    """Returns a key that the selector does not name: Kubernetes refuses a key that both have."""
    named = {*selector.get("matchLabels", {}), *(e["key"] for e in selector.get("matchExpressions", ()))}
    return rng.choice([key for key in keys if key not in named])


def _spread(rng: random.Random, key: str, labels: dict[str, str], objects: int) -> dict[str, Any]:
    constraint: dict[str, Any] = {
        "topologyKey": key,
        "maxSkew": rng.choice([1, 1, 2]),
        "whenUnsatisfiable": "DoNotSchedule",
    }
    selector = _selector(rng, labels, objects)
    if selector is not None:
        constraint["labelSelector"] = selector
        if rng.random() < 0.2:
            constraint["matchLabelKeys"] = [_other_key(rng, selector, ["tier", "pod-template-hash"])]
    if rng.random() < 0.2:
        constraint["minDomains"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        constraint["nodeAffinityPolicy"] = rng.choice(["Ignore", "Honor"])
    if rng.random() < 0.3:
        constraint["nodeTaintsPolicy"] = rng.choice(["Ignore", "Honor"])
    return constraint
