"""Before something changes: what it would change, what moves or goes, and a question where something is lost. After: waiting
until it runs. And what was meant where a name does not exist."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import moorage.cli
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

FLEET = Path(moorage.cli.__path__[0]) / "example" / "fleet.yaml"

APPLICATION = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: %s}
spec:
  apps:
    - name: web
      placement: {allOf: [{cluster: %s}]}
      manifests:
        - apiVersion: apps/v1
          kind: StatefulSet
          metadata: {name: web}
          spec:
            serviceName: web
            selector: {matchLabels: {app: web}}
            %s
            template:
              metadata: {labels: {app: web}}
              spec: {containers: [{name: nginx, image: nginx, resources: {requests: {cpu: %s}}}]}
"""
CLAIMS = "volumeClaimTemplates: [{metadata: {name: data}, spec: {}}]"


def application(name: str, *, cluster: str = "telco/core-1", cpu: str = "100m", volumes: str = "") -> bytes:
    return (APPLICATION % (name, cluster, volumes, cpu)).encode()


def ran(mesh: Mesh, *arguments: str, data: bytes | None = None, code: int = 0) -> tuple[str, str]:
    done = mesh.run(*arguments, data=data)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    return done.stdout.decode(), done.stderr.decode()


def test_apply_waits_until_all_of_it_runs(example: Mesh) -> None:
    both = application("waited-1") + b"---" + application("waited-2")
    text, _ = ran(example, "apply", "-f", "-", "--wait", "--timeout", "90s", data=both)
    assert "default/waited-1/v1/default Running" in text and "default/waited-2/v1/default Running" in text
    text, said = ran(example, "apply", "-f", "-", "--wait", "-o", "json", data=both)
    assert len(json.loads(text)["items"]) == 2 and "default/waited-2/v1/default Running" in said
    ran(example, "delete", "-f", "-", data=both)


def test_apply_says_why_it_does_not_run_in_time(example: Mesh) -> None:
    data = application("never", cpu='"900"')
    _, said = ran(example, "apply", "-f", "-", "--wait", "--timeout", "2s", data=data, code=7)
    assert "is not Running after 2 s, but Pending" in said or "is not Running after" in said
    ran(example, "apply", "-f", "-", "--wait", "--dry-run", data=data, code=2)
    ran(example, "apply", "-f", "-", "--wait", "--timeout", "soon", data=data, code=2)
    ran(example, "delete", "app", "never")


def test_diff_shows_what_a_file_would_change(example: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "compared.yaml"
    file.write_bytes(application("compared"))
    text, _ = ran(example, "diff", "-f", str(file), code=1)
    assert "+kind: Application" in text and "+++ Application/compared in" in text
    ran(example, "get", "app", "compared", code=3)
    ran(example, "apply", "-f", str(file))
    text, said = ran(example, "diff", "-f", str(file))
    assert not text and "application/compared: no differences" in said
    # Fields in another order, and defaults written out, are the same.
    document = yaml.safe_load(file.read_text())
    document["metadata"]["project"] = "default"
    assert not ran(example, "diff", "-f", "-", data=json.dumps(dict(reversed(document.items()))).encode())[0]
    file.write_bytes(application("compared", cpu="200m"))
    text, _ = ran(example, "diff", "-f", str(file), code=1)
    changes = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line.split()[-1] for line in changes] == ["100m", "200m"]
    (item,) = json.loads(ran(example, "diff", "-f", str(file), "-o", "json", code=1)[0])["items"]
    assert item["change"] == "updated" and item["name"] == "compared"
    assert ran(example, "diff", "-f", str(file), "-o", "name", code=1)[0] == "application/compared\n"
    ran(example, "delete", "app", "compared")


def test_diff_never_shows_values_of_secrets(example: Mesh) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "hunter2"}}
    document = yaml.safe_load(application("secretive"))
    document["spec"]["apps"][0]["manifests"].append(secret)
    data = json.dumps(document).encode()
    text, said = ran(example, "diff", "-f", "-", data=data, code=1)
    assert "hunter2" not in text + said and "stringData" in text
    ran(example, "apply", "-f", "-", data=data)
    ran(example, "diff", "-f", "-", data=data)
    ran(example, "delete", "app", "secretive")


def test_diff_of_what_cannot_be_compared_is_wrong_usage(example: Mesh) -> None:
    assert "fleet apply --dry-run" in ran(example, "diff", "-f", str(FLEET), code=2)[1]
    assert "either a group or -f" in ran(example, "diff", code=2)[1]
    assert "either a group or -f" in ran(example, "diff", "app1", "-f", str(FLEET), code=2)[1]


@pytest.fixture
def smaller_fleet(tmp_path: Path) -> str:
    """The example's fleet without telco/core-1, and with a new cluster."""
    fleet = yaml.safe_load(FLEET.read_text())
    fleet["clusters"] = [c for c in fleet["clusters"] if c["name"] != "core-1"]
    fleet["clusters"].append({"name": "new", "provider": "lab", "nodes": []})
    file = tmp_path / "smaller.yaml"
    file.write_text(yaml.safe_dump(fleet))
    return str(file)


def run_and_type(mesh: Mesh, answer: str, *arguments: str) -> tuple[int, str]:
    """Runs a command in a terminal where somebody types this answer."""
    main, other = pty.openpty()
    env: dict[str, Any] = {**os.environ, "MOORAGE_STATE": str(mesh.state)}
    command = [sys.executable, "-m", "moorage.cli", *arguments]
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env) as process:
        os.close(other)
        text = b""
        while process.poll() is None:
            try:
                text += os.read(main, 4096)
            except OSError:
                break
            if b"[y/N]" in text and answer:
                os.write(main, f"{answer}\n".encode())
                answer = ""
        code = process.wait(60)
    os.close(main)
    return code, text.decode()


def clusters(mesh: Mesh) -> list[str]:
    return ran(mesh, "get", "clusters", "-o", "jsonpath={.items[*].id}")[0].split()


def test_a_fleet_that_loses_groups_is_not_applied_without_being_asked(example: Mesh, smaller_fleet: str) -> None:
    ran(example, "apply", "-f", "-", "--wait", data=application("resident"))
    before = clusters(example)
    for command in (("fleet", "apply", smaller_fleet), ("apply", "-f", smaller_fleet)):
        code, said = run_and_type(example, "n", *command)
        assert "1 added, 1 removed" in said and "default/resident/v1/default runs on telco/core-1" in said
        assert "Continue? [y/N]" in said and "nothing was changed" in said
        assert code == 1 and clusters(example) == before
    _, said = ran(example, "fleet", "apply", smaller_fleet, "--dry-run")
    assert "added: lab/new" in said and clusters(example) == before
    told, said = ran(example, "fleet", "apply", smaller_fleet)
    assert "6 clusters" in told and "no terminal to ask on" in said
    wait_until(lambda: {"telco/core-1", "lab/new"} & {*clusters(example)} == {"lab/new"}, "the fleet is another one")
    _, said = ran(example, "fleet", "apply", str(FLEET))
    assert "removed: lab/new" in said, "nothing runs there: nobody is asked"
    _, said = ran(example, "fleet", "apply", str(FLEET))
    assert not said, "nothing changes"
    ran(example, "delete", "app", "resident")


def test_draining_shows_what_moves_and_asks_for_data_in_volumes(example: Mesh) -> None:
    data = application("keeps", volumes=CLAIMS).replace(b"{cluster: telco/core-1}", b"{provider: telco}")
    ran(example, "apply", "-f", "-", "--wait", data=data)
    (place,) = json.loads(ran(example, "why", "keeps", "-o", "json")[0])["apps"]["web"]["clusters"]
    try:
        _, said = ran(example, "cluster", "drain", place, "--dry-run")
        assert "default/keeps/v1/default  web: StatefulSet/web; " in said and "qualif" in said
        code, text = run_and_type(example, "n", "cluster", "drain", place)
        assert f"data in volumes of keeps: StatefulSet/web stays on {place}" in text
        assert code == 1 and "nothing was changed" in text
        assert json.loads(ran(example, "get", "cluster", place, "-o", "json")[0])["state"] == "Ready"
        code, text = run_and_type(example, "y", "cluster", "drain", place)
        assert code == 0 and f"moved from {place}" in text and "drained" in text, text
    finally:
        ran(example, "cluster", "uncordon", place)
        ran(example, "delete", "app", "keeps")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["delete", "app1"], 2, "unknown resource type 'app1'; did you mean `moorage delete application app1`?"),
        (["get", "ap1"], 2, "did you mean `moorage get application app1`?"),
        (["describe", "lab/edge-1"], 2, "did you mean `moorage describe cluster lab/edge-1`?"),
        (["get", "clustrs"], 2, "unknown resource type 'clustrs'; did you mean 'clusters'?"),
        (["why", "apq1"], 3, "does not exist; did you mean 'app1'?"),
        (["why", "app1", "-p", "other"], 3, "did you mean -p default?"),
        (["delete", "application", "apq1"], 3, "did you mean 'app1'?"),
        (["wait", "apq1", "--for", "phase=Running"], 3, "did you mean 'app1'?"),
        (["get", "cluster", "lab/edg-3"], 3, "did you mean 'lab/edge-"),
        (["get", "node", "lab/edge-3/gpu-nod"], 3, "did you mean 'lab/edge-3/gpu-node'?"),
        (["controllers", "get", "labls"], 3, "did you mean 'labels'?"),
        (["fleet", "fault", "lab/edg-3", "silent"], 3, "did you mean 'lab/edge-"),
        (["cluster", "drian", "lab/edge-1"], 2, "unknown command 'drian' of `moorage cluster`; did you mean 'drain'?"),
        (["token", "bogus"], 2, "known are create, list, revoke"),
    ],
)
def test_what_was_meant(example: Mesh, arguments: list[str], code: int, text: str) -> None:
    assert text in ran(example, *arguments, code=code)[1]


def test_without_a_mesh_nothing_is_suggested_and_the_message_is_the_same(example: Mesh, tmp_path: Path) -> None:
    text = ran(example, "delete", "shop", "--state", str(tmp_path), code=2)[1]
    assert text.startswith("moorage: unknown resource type 'shop'; known are applications")
