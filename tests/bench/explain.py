"""Measures how long `moorage why` takes for an app that fits nowhere among 1,000 clusters, and how long its explanation is."""

from __future__ import annotations

import json
import time
from typing import Any

from moorage_testkit.mesh import Mesh

from .harness import Figure

#: Clusters of each kind; the app asks for more than any of them has, and each kind lacks something else.
_KINDS: dict[str, dict[str, Any]] = {
    "small": {"allocatable": {"cpu": "8", "memory": "32Gi"}},
    "huge": {"allocatable": {"cpu": "8", "memory": "32Gi", "hugepages-1Gi": "8Gi"}},
    "gpu": {"allocatable": {"cpu": "32", "memory": "256Gi", "hugepages-1Gi": "8Gi", "nvidia.com/gpu": "2"}},
    "avx": {
        "allocatable": {"cpu": "16", "memory": "64Gi"},
        "labels": {"feature.node.kubernetes.io/cpu-cpuid.AVX512F": "true"},
    },
}


def fleet(clusters: int, nodes: int) -> dict[str, Any]:
    each = clusters // len(_KINDS)
    return {
        "clusters": [
            {
                "name": name,
                "provider": "bench",
                "count": each,
                "labels": {"region": "us" if name == "small" else "eu"},
                "nodes": [{"name": "n", "count": nodes, **kind}],
            }
            for name, kind in _KINDS.items()
        ]
    }


def application() -> dict[str, Any]:
    needs = [
        {"label": "feature.node.kubernetes.io/cpu-cpuid.AVX512F", "value": "true"},
        {"resource": "cpu", "requests": 12},
        {"resource": "memory", "requests": 48, "units": "Gi"},
        {"resource": "hugepages-1Gi", "requests": 2, "limits": 2, "units": "Gi"},
    ]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:1.27"}]},
            },
        },
    }
    consumer = {"object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "container": "nginx"}
    app = {
        "name": "web",
        "replicas": 2,
        "placement": {"allOf": [{"label": {"region": "eu"}}]},
        "manifests": [deployment],
        "consumers": [{**consumer, "needs": needs}],
    }
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": "waits"},
        "spec": {"apps": [app]},
    }


async def explain() -> list[Figure]:
    with Mesh() as mesh:
        mesh.run("apply", "-f", "-", data=json.dumps({"kind": "Fleet", **fleet(1000, 20)}).encode())
        mesh.run("apply", "-f", "-", data=json.dumps(application()).encode())
        done = mesh.run("wait", "waits", "--for", "phase=Pending", "--timeout", "30s")
        assert done.returncode == 0, done.stderr.decode()
        mesh.environment["COLUMNS"] = "100"
        samples: list[float] = []
        for _ in range(11):
            start = time.perf_counter()
            done = mesh.run("why", "waits")
            samples.append((time.perf_counter() - start) * 1e3)
            assert done.returncode == 0, done.stderr.decode()
        text = done.stdout.decode()
        assert "1000 clusters → 750 placement" in text, text
        wrapped = sum(max(1, -(-len(line) // 100)) for line in text.splitlines())
    name = "`why` of an app that fits none of 1,000 clusters"
    return [
        Figure.of(name, samples[1:], "<= 300 ms", p50=300),
        Figure.of(f"{name}: lines at 100 columns", [wrapped], "<= 20 lines", p50=20, unit="lines"),
    ]
