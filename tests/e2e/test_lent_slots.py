"""Applications in slots that a window keeps for later: those that end before it begins."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.machines import machine
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    nodes = [{"name": "n-0", "allocatable": {"cpu": "8", "memory": "64Gi"}}]
    clusters = [{"name": name, "provider": "lab", "nodes": nodes} for name in "ab"]
    file.write_text(json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": clusters}))
    with Mesh("--fleet", str(file)) as found:
        yield found


def text(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


def with_windows(*windows: dict[str, Any]) -> dict[str, Any]:
    kind = {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 2, "windows": list(windows)}
    return machine("g", {"t": kind}, {"n-0": ["t"]}, cluster="lab/a")


def application(name: str, pods: int = 1, kind: str = "Job", **need: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = {"metadata": {"labels": {"app": name}}, "spec": {**spec, "containers": [{"name": "main", "image": "i"}]}}
    manifest: dict[str, Any] = {"kind": kind, "metadata": {"name": name}, "spec": {"template": template}}
    if kind == "Job":
        manifest |= {"apiVersion": "batch/v1"}
        manifest["spec"] |= {"parallelism": pods, "completions": pods}
    else:
        manifest |= {"apiVersion": "apps/v1"}
        manifest["spec"] |= {"replicas": pods, "selector": {"matchLabels": {"app": name}}}
    this = {"apiVersion": manifest["apiVersion"], "kind": kind, "name": name}
    consumer = {"object": this, "container": "main", "needs": [{"machine": "g/t", **need}]}
    apps = [{"name": "a", "manifests": [manifest], "consumers": [consumer]}]
    return {"kind": "Application", "metadata": {"name": name}, "spec": {"apps": apps}}


def phase(mesh: Mesh, name: str) -> str:
    return str(mesh.http(f"/v1/groups/default/{name}/v1/default")["phase"])


def states(mesh: Mesh) -> list[str]:
    return sorted(slot["state"] for slot in mesh.http("/v1/slots?machine=g/t")["items"])


def apply(mesh: Mesh, file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document))
    done = mesh.run("apply", "-f", str(file))
    assert done.returncode == 0, done.stderr.decode()


async def test_who_ends_before_a_window_begins_gets_what_it_keeps(mesh: Mesh, tmp_path: Path) -> None:
    window = {"name": "w", "slots": 2, "from": text(1800), "until": text(3600)}
    apply(mesh, tmp_path / "m.json", with_windows(window))
    await until(lambda: states(mesh) == ["reserved"] * 2)
    mesh.http("/v1/apply", application("endless"))
    mesh.http("/v1/apply", application("long", maxRuntime="40m"))
    mesh.http("/v1/apply", application("again", kind="Deployment", maxRuntime="5m"))  # its pods are followed by others
    for name in ("endless", "long", "again"):
        await until(lambda name=name: phase(mesh, name) == "Pending")  # type: ignore[misc]
    mesh.http("/v1/apply", application("short", 2, maxRuntime="5m"))
    await until(lambda: phase(mesh, "short") == "Running")
    await until(lambda: states(mesh) == ["used"] * 2)
    reasons = mesh.http("/v1/groups/default/long/v1/default/why")["reasons"]
    assert ("SlotShort", "machine:g/t") in {(r["code"], r["need"]) for r in reasons if r["by"] == "machine"}, reasons
    mesh.http("/v1/apply", application("timed", 2, kind="Deployment", window="w"))
    await until(lambda: states(mesh) == ["granted"] * 2 + ["used"] * 2, what="those of the window have them after that")
    mesh.http("/v1/apply", application("more", maxRuntime="5m"))
    mesh.http("/v1/apply", application("late"))
    for name in ("more", "late"):
        await until(lambda name=name: phase(mesh, name) == "Pending")  # type: ignore[misc]
    assert mesh.run("delete", "application", "late").returncode == 0
    assert mesh.run("delete", "application", "timed").returncode == 0
    assert mesh.run("delete", "application", "short").returncode == 0
    await until(lambda: phase(mesh, "more") == "Running", what="who waits gets what is lent again")

    # A window that goes leaves its slots to everyone else; those who have them keep them.
    apply(mesh, tmp_path / "m.json", with_windows())
    await until(lambda: sorted(phase(mesh, name) for name in ("endless", "long", "again")) == ["Pending", "Pending", "Running"])  # fmt: skip
    await until(lambda: states(mesh) == ["used"] * 2)
    assert phase(mesh, "more") == "Running"
    for name in ("endless", "long", "again", "more"):
        assert mesh.run("delete", "application", name).returncode == 0
    await until(lambda: states(mesh) == ["reserved"] * 2)
