"""Tests that systemd and an API server accept the files of `ops/node` as they are."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage_testkit import kube_assets
from moorage_testkit.control_plane import ControlPlane

from .machines import write_policy
from .test_examples import Stand

OPS = Path(__file__).parents[2] / "ops" / "node"
_GROUPS = {
    "v1": "/api/v1",
    "apps/v1": "/apis/apps/v1",
    "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1",
}


def test_the_unit_is_one_of_systemd(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    program = tmp_path / "moorage"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = (OPS / "moorage-node.service").read_text()
    assert "/opt/moorage/bin/moorage" in unit
    file = tmp_path / "moorage-node.service"
    file.write_text(unit.replace("/opt/moorage/bin/moorage", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "moorage-node.service" in line]
    assert not ours, done.stderr


def test_an_api_server_takes_the_manifests() -> None:
    if kube_assets.find()[0] is None:
        pytest.skip(kube_assets.find()[1])
    documents: list[dict[str, Any]] = []
    for name in yaml.safe_load((OPS / "kustomization.yaml").read_text())["resources"]:
        documents += [d for d in yaml.safe_load_all((OPS / name).read_text()) if d]
    assert "DaemonSet" in {document["kind"] for document in documents}
    plane = ControlPlane("ops")
    try:
        plane.begin()
        plane.until(plane.ready, 120, "kube-apiserver")
        for document in documents:
            namespace = document["metadata"].get("namespace", "")
            place = f"/namespaces/{namespace}" if namespace else ""
            if document["kind"] == "Namespace":
                plane.call("POST", "/api/v1/namespaces", document)
                continue
            path = f"{_GROUPS[document['apiVersion']]}{place}/{document['kind'].lower()}s"
            made = plane.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", document)
            assert document["metadata"]["name"].encode() in made
    finally:
        plane.remove()


async def test_the_probe_of_the_daemon_set_asks_the_agent(tmp_path: Path) -> None:
    """The probe runs every half minute on each node, so it is a small program."""
    documents = yaml.safe_load_all((OPS / "daemonset.yaml").read_text())
    [container] = next(iter(documents))["spec"]["template"]["spec"]["containers"]
    program, path, *rest = container["livenessProbe"]["exec"]["command"]
    assert path.startswith("/var/lib/moorage/node/")
    stand = Stand(tmp_path)
    write_policy(stand.policy)
    await stand.start()
    try:
        here = str(stand.agent.root / Path(path).name)
        command = (sys.executable, "-IS", str(OPS.parent / "image" / program), here, *rest)
        for expected, output in ((0, b"ok\n"), (1, b"")):
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            found, _ = await process.communicate()
            assert (process.returncode, found) == (expected, output)
            await stand.agent.kill()
    finally:
        await stand.close()
