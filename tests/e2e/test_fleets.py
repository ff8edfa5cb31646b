"""Runs simulated fleets beside each other: refused clusters, clusters that leave at the end, and dead clusters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application
from moorage_testkit.polling import wait_until

NODE = {"name": "n", "allocatable": {"cpu": "4", "memory": "8Gi"}}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh() as found:
        yield found


def fleet(tmp_path: Path, *names: str) -> str:
    file = tmp_path / ("-".join(names) + ".json")
    document = {"clusters": [{"name": n, "provider": "far", "nodes": [NODE]} for n in names]}
    file.write_text(json.dumps({"apiVersion": "moorage.dev/v1alpha1", "kind": "Fleet", **document}))
    return str(file)


@contextlib.contextmanager
def simulator(mesh: Mesh, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts `moorage fleet sim` in a process, and waits until it reports its clusters."""
    env = {**os.environ, "MOORAGE_STATE": str(mesh.state)}
    command = [sys.executable, "-m", "moorage.cli", "fleet", "sim", *arguments]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert b"simulating" in process.stderr.readline()
            yield process
        finally:
            process.kill()


def stop_and_read(process: subprocess.Popen[bytes]) -> str:
    """Stops the process and returns its last output; it exits with 0."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    text = process.stderr.read().decode()
    assert process.wait(60) == 0 and "Traceback" not in text, text
    return text


def done(mesh: Mesh, *arguments: str, code: int = 0, data: bytes | None = None) -> str:
    ran = mesh.run(*arguments, data=data)
    text = ran.stdout.decode() + ran.stderr.decode()
    assert ran.returncode == code and "Traceback" not in text, f"{arguments}: {ran.returncode}\n{text}"
    return text


def clusters(mesh: Mesh) -> dict[str, str]:
    return {c["id"]: c["state"] for c in mesh.http("/v1/clusters")["items"]}


def why(mesh: Mesh, name: str) -> Any:
    return mesh.http(f"/v1/groups/default/{name}/v1/default/why")


def codes(mesh: Mesh, name: str) -> list[str]:
    return [reason["code"] for reason in why(mesh, name).get("reasons", ())]


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    wait_until(condition, within=seconds)


def test_a_cluster_of_another_simulator_is_refused_with_a_message(mesh: Mesh, tmp_path: Path) -> None:
    with simulator(mesh, fleet(tmp_path, "g")) as first:
        assert "far/g: another simulator" in done(mesh, "fleet", "sim", fleet(tmp_path, "g"), code=4)
        # The other clusters join.
        for command in (("fleet", "apply"), ("apply", "-f")):
            assert "far/g: another simulator" in done(mesh, *command, fleet(tmp_path, "g", "h"), code=4)
        until(lambda: clusters(mesh) == {"far/g": "Ready", "far/h": "Ready"})
        with simulator(mesh, fleet(tmp_path, "g", "i")) as second:
            until(lambda: clusters(mesh).keys() == {"far/g", "far/h", "far/i"})
            assert "refused: far/g" in stop_and_read(second)
        until(lambda: clusters(mesh).keys() == {"far/g", "far/h"})
        assert stop_and_read(first) == ""
    # The name is free, and the fleet that was refused gets it, with other nodes.
    until(lambda: mesh.run("fleet", "apply", fleet(tmp_path, "g")).returncode == 0, 60)
    assert "1 cluster\n" in done(mesh, "fleet", "apply", fleet(tmp_path, "g"))
    done(mesh, "fleet", "apply", "-", data=b"clusters: []")
    until(lambda: clusters(mesh) == {})


def test_a_stopped_fleet_leaves_except_clusters_in_use(mesh: Mesh, tmp_path: Path) -> None:
    with simulator(mesh, fleet(tmp_path, "a", "b")) as process:
        done(mesh, "apply", "-f", "-", data=json.dumps(application("held", on="far/a")).encode())
        done(mesh, "wait", "held", "--for", "phase=Running", "--timeout", "90s")
        for option in ((), ("--abandon-claims",)):  # what is advised must not be refused
            advice = done(mesh, "delete", "cluster", "far/a", *option, code=4)
            assert "far/a still reports" in advice and "moorage cluster drain far/a" in advice
            assert "--abandon-claims" not in advice
        assert "far/a" in stop_and_read(process)
    until(lambda: clusters(mesh) == {"far/a": "Stale"})
    until(lambda: codes(mesh, "held") == ["ClusterStale"])
    assert why(mesh, "held")["phase"] == "Running"
    assert "far/a" in done(mesh, "get", "groups", "-o", "wide").split("SILENT")[1]
    assert "has claims on far/a, which is stale" in done(mesh, "check", code=1)
    assert "--abandon-claims" in done(mesh, "delete", "cluster", "far/a", code=4)
    assert clusters(mesh) == {"far/a": "Stale"}
    assert "cluster/far/a deleted" in done(mesh, "delete", "cluster", "far/a", "--abandon-claims")
    until(lambda: clusters(mesh) == {})
    done(mesh, "get", "cluster", "far/a", code=3)
    # Groups that ran there are placed elsewhere.
    until(lambda: why(mesh, "held").get("pendingPhase") == "Pending" and "ClusterGone" in codes(mesh, "held"))
    found = why(mesh, "held")
    assert (found["phase"], found["pendingRevision"]) == ("Degraded", 2)
    (gone,) = (r for r in found["reasons"] if r["code"] == "ClusterGone")
    assert gone["message"] == "the cluster left the fleet; revision 2 waits for another cluster"
    until(lambda: "it waits for another cluster" in done(mesh, "check", code=1))
    checked = done(mesh, "check", code=1)
    assert "has claims on far/a, which is gone" in checked
    assert "--abandon-claims" not in done(mesh, "why", "held") + checked, "it has been done"
    done(mesh, "stop", "held")
    until(lambda: "moorage instantiate default/held/v1/default" in done(mesh, "check", code=1))
    done(mesh, "instantiate", "held")
    done(mesh, "delete", "app", "held", "--timeout", "90s")
    done(mesh, "delete", "cluster", "far/a", code=3)
    until(lambda: mesh.run("check").returncode == 0)


def test_a_fleet_can_be_several_documents(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    head = "apiVersion: moorage.dev/v1alpha1\nkind: Fleet\n"
    file.write_text(f"{head}clusters: [{{name: j}}]\n---\n{head}clusters: [{{name: k, provider: far}}]\n")
    assert "2 clusters" in done(mesh, "fleet", "apply", str(file))
    assert "2 clusters" in done(mesh, "apply", "-f", str(file))
    until(lambda: clusters(mesh).keys() == {"sim/j", "far/k"})
    done(mesh, "fleet", "apply", "-", data=b"clusters: []")
    until(lambda: clusters(mesh) == {})


def test_groups_of_a_removed_cluster_are_placed_again(mesh: Mesh, tmp_path: Path) -> None:
    done(mesh, "fleet", "apply", fleet(tmp_path, "d", "e"))
    done(mesh, "apply", "-f", "-", data=json.dumps(application("moved")).encode())
    done(mesh, "wait", "moved", "--for", "phase=Running", "--timeout", "90s")
    (had,) = why(mesh, "moved")["apps"]["web"]["clusters"]
    other = {"far/d": "e", "far/e": "d"}[had]
    done(mesh, "fleet", "apply", fleet(tmp_path, other))
    done(mesh, "wait", "moved", "--for", "phase=Degraded", "--timeout", "90s")
    until(lambda: "ClusterGone" in done(mesh, "why", "moved"))
    assert "claims of default/moved/v1/default" in done(mesh, "delete", "cluster", had, code=4)
    done(mesh, "delete", "cluster", had, "--abandon-claims")
    done(mesh, "wait", "moved", "--for", "phase=Running", "--timeout", "90s")
    assert why(mesh, "moved")["apps"]["web"]["clusters"] == [f"far/{other}"]
    done(mesh, "delete", "app", "moved")
    done(mesh, "fleet", "apply", "-", data=b"clusters: []")
    until(lambda: clusters(mesh) == {})


def test_terminating_on_a_silent_cluster_shows_what_it_waits_for(mesh: Mesh, tmp_path: Path) -> None:
    done(mesh, "fleet", "apply", fleet(tmp_path, "f"))
    done(mesh, "apply", "-f", "-", data=json.dumps(application("ending")).encode())
    done(mesh, "wait", "ending", "--for", "phase=Running", "--timeout", "90s")
    done(mesh, "fleet", "fault", "far/f", "silent")
    done(mesh, "delete", "app", "ending", "--timeout", "500ms", code=7)
    until(lambda: "RemovalUnconfirmed: 1 cluster (far/f); waiting for the cluster" in done(mesh, "why", "ending"))
    until(lambda: clusters(mesh) == {"far/f": "Stale"})
    until(lambda: "ClusterStale: 1 cluster (far/f); removal is not confirmed" in done(mesh, "why", "ending"))
    done(mesh, "fleet", "apply", fleet(tmp_path, "f"))  # ends the fault
    done(mesh, "wait", "ending", "--for", "delete", "--timeout", "90s")
    done(mesh, "fleet", "apply", "-", data=b"clusters: []")
    until(lambda: clusters(mesh) == {})


def test_a_dead_cluster_without_claims_can_be_forgotten_and_rejoin(mesh: Mesh, tmp_path: Path) -> None:
    with simulator(mesh, fleet(tmp_path, "c")) as process:
        process.kill()
    until(lambda: clusters(mesh) == {"far/c": "Stale"})
    done(mesh, "check", code=1)
    done(mesh, "delete", "cluster", "far/c")
    until(lambda: mesh.run("check").returncode == 0)
    with simulator(mesh, fleet(tmp_path, "c")) as process:
        until(lambda: clusters(mesh) == {"far/c": "Ready"})
        stop_and_read(process)
    until(lambda: clusters(mesh) == {})
