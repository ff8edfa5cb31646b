"""Writes what sysfs says of a machine, and policies and pods for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def write_sysfs(root: Path, zones: int = 2, cpus_per_zone: int = 40, memory: int = 226 << 30) -> Path:
    """Writes a machine whose CPUs are numbered node by node, each a core of its own."""
    for cpu in range(zones * cpus_per_zone):
        topology = root / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(f"{cpu}\n")
        (topology / "physical_package_id").write_text(f"{cpu // cpus_per_zone}\n")
    (root / "devices/system/cpu/online").write_text(f"0-{zones * cpus_per_zone - 1}\n")
    for zone in range(zones):
        node = root / f"devices/system/node/node{zone}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{zone * cpus_per_zone}-{(zone + 1) * cpus_per_zone - 1}\n")
        (node / "meminfo").write_text(f"Node {zone} MemTotal:       {memory >> 10} kB\n")
        (node / "distance").write_text(" ".join("10" if z == zone else "21" for z in range(zones)) + "\n")
    return root


def write_policy(path: Path, **spec: Any) -> Path:
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"kind": "NodePolicy", "spec": spec}))
    fresh.rename(path)
    return path


def pod(name: str, role: str = "", cpu: str = "1", memory: str = "1Gi", **metadata: Any) -> dict[str, Any]:
    annotations = {**({"kubernetes.io/pod-role": role} if role else {}), **metadata.pop("annotations", {})}
    amounts = {"cpu": cpu, "memory": memory}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": annotations,
            **metadata,
        },
        "spec": {"containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]},
    }


def write_pod(directory: Path, manifest: dict[str, Any]) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / f"{manifest['metadata']['name']}.yaml"
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(manifest))
    fresh.rename(path)
