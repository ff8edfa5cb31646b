"""Random applications on nodes whose kubelets align pods, placed by two mergers while reports of zones are late: no kubelet refuses
what was placed."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moorage.bus import subjects
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, eventually
from moorage_testkit.polling import until
from moorage_testkit.seeds import seeds

ENDED = ("Running", "Pending", "Terminated")


def container(name: str, cores: int) -> dict[str, Any]:
    amounts = {"cpu": str(cores), "memory": "64Mi"}
    return {"name": name, "image": "i", "resources": {"requests": amounts, "limits": amounts}}


def node(rng: Random) -> dict[str, Any]:
    zones, cores = rng.choice((2, 2, 3)), rng.randint(4, 7)
    policy = rng.choice(("single-numa-node", "single-numa-node", "restricted"))
    return {
        "name": "n",
        "allocatable": {"cpu": str(zones * cores), "memory": "16Gi"},
        "cpuManager": {"policy": "static", "exclusive": zones * cores},
        "topologyManager": {"policy": policy, "scope": rng.choice(("container", "pod"))},
        "zones": [{"id": i, "resources": {"cpu": cores, "memory": "4Gi"}} for i in range(zones)],
    }


def fleet(rng: Random) -> tuple[dict[str, Any], dict[str, int]]:
    """Clusters of one node each, so that pods are bound to the nodes of their claims, and the cores of strangers there."""
    found: list[dict[str, Any]] = []
    taken: dict[str, int] = {}
    for i in range(4):
        cores = rng.choice((0, 0, 1, 3))
        taken[f"lab/c-{i}"] = cores
        spec = {"nodeName": "n", "containers": [container("c", cores)]}
        pods = [{"metadata": {"name": "stranger"}, "spec": spec}] if cores else []
        behaviour = {"topologyDelayMs": rng.choice((0, 300, 1500)), "readyDelayMs": rng.choice((10, 300))}
        found.append({"name": f"c-{i}", "provider": "lab", "nodes": [node(rng)], "pods": pods, "behaviour": behaviour})
    return {"clusters": found}, taken


def application(rng: Random, name: str) -> dict[str, Any]:
    cores = [rng.randint(1, 4) for _ in range(rng.choice((1, 1, 2)))]
    # A smaller init container may be drawn to a zone that becomes free before its pod arrives.
    first = [container("i", sum(cores))] if rng.random() < 0.3 else []
    kind = rng.choice(("Deployment", "StatefulSet"))
    spec: dict[str, Any] = {
        "replicas": rng.choice((1, 1, 2, 3)),
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"initContainers": first, "containers": [container(f"c{i}", n) for i, n in enumerate(cores)]},
        },
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    manifest = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [{"name": "web", "manifests": [manifest]}]},
    }


def refused(mesh: Mesh) -> float:
    """Returns how many pods of claims their nodes refused."""
    total = 0.0
    for url in mesh.endpoint["metrics"]["inventory"]:
        with urllib.request.urlopen(url, timeout=10) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                total += sum(s.value for s in family.samples if s.name == "moorage_refused_pods_total")
    return total


@pytest.mark.parametrize("seed", seeds(1, 12))
async def test_no_kubelet_refuses_what_was_placed(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    document, taken = fleet(rng)
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(document))
    with Mesh("--fleet", str(file), "--workers", "merger=2") as mesh:

        def cores(cluster: str) -> int:
            items = mesh.http(f"/v1/parts?cluster={cluster}")["items"]
            return sum(int(item["used"].get("cpu", "0")) for item in items if item["kind"] == "zone")

        await until(lambda: all(cores(c) == n for c, n in taken.items()), 60, "strangers are reported")
        async with MeshClient(mesh) as driver:
            standing: dict[str, dict[str, Any]] = {}
            for step in range(24 if seed else 16):
                what = rng.random()
                if what < 0.6 or not standing:
                    name = f"app-{step}"
                    standing[name] = application(rng, name)
                    await driver.apply(standing[name])
                    continue
                name = rng.choice(sorted(standing))
                if what < 0.8:
                    changed = standing[name]["spec"]["apps"][0]["manifests"][0]["spec"]
                    if rng.random() < 0.5:
                        changed["replicas"] = rng.choice((1, 2, 3))
                    else:
                        changed["template"]["metadata"]["labels"]["version"] = f"v{step}"
                    await driver.apply(standing[name])
                else:
                    del standing[name]
                    verb = {"group": f"default/{name}/v1/default", "verb": "terminate"}
                    assert (await driver.ask(subjects.INTENTS_ACT, verb)).get("accepted")

            async def at_rest() -> bool:
                return all(phase in ENDED for phase in (await driver.phases()).values())

            await eventually(at_rest, 120, "each group runs or waits")
            phases = await driver.phases()
            assert sum(phase == "Running" for phase in phases.values()) >= 2, phases
        assert refused(mesh) == 0, phases
