"""Tests `moorage up`: detached, stopped, started again, refused, with killed workers, and killed itself."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage.cli.up.bootstrap import typed_command
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

APPLICATION = json.dumps(
    {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": "kept"},
        "spec": {
            "apps": [
                {
                    "name": "web",
                    "manifests": [
                        {
                            "apiVersion": "apps/v1",
                            "kind": "Deployment",
                            "metadata": {"name": "web"},
                            "spec": {
                                "replicas": 2,
                                "selector": {"matchLabels": {"app": "web"}},
                                "template": {
                                    "metadata": {"labels": {"app": "web"}},
                                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                                },
                            },
                        }
                    ],
                }
            ]
        },
    }
).encode()


class Local:
    """Runs the command line with a state directory of its own."""

    def __init__(self, state: Path) -> None:
        self.environment: dict[str, str] = {}  # beside what the test has
        self.state = state

    def __call__(self, *arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("MOORAGE_")} | {"MOORAGE_STATE": str(self.state)}
        env |= self.environment
        command = [sys.executable, "-m", "moorage.cli", *arguments]
        return subprocess.run(command, env=env, input=data, capture_output=True, timeout=200, check=False)

    def ok(self, *arguments: str, data: bytes | None = None) -> str:
        done = self(*arguments, data=data)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        return done.stdout.decode()

    @property
    def endpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "endpoint.json").read_bytes())
        return found

    def pids(self) -> list[int]:
        return [pid for pids in self.endpoint["pids"].values() for pid in pids]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    found = Local(tmp_path / "state")
    yield found
    found("down")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def restarted(local: Local, kind: str, old: int) -> bool:
    return local.endpoint["pids"][kind] not in ([old], [])


def healthy_again(local: Local, kind: str) -> bool:
    """Returns whether all is well and `check` tells that the process was killed; others may notice the death only after one check."""
    done = local("check", "-o", "json")
    (row,) = [i for i in json.loads(done.stdout)["items"] if i["kind"] == "process" and i["name"] == kind]
    return done.returncode == 0 and "restarted" in row["detail"] and "SIGKILL" in row["detail"]


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    wait_until(condition, what, seconds)


def test_a_detached_mesh_stops_and_starts_with_its_state(local: Local) -> None:
    output = local.ok("up", "--example", "--detach", "--http", "127.0.0.1:0")
    endpoint = local.endpoint
    assert output.splitlines()[-1] == f"ready {endpoint['http']}"
    assert "fwall  1 of 1: lab/edge-3" in output
    assert stat.S_IMODE((local.state / "endpoint.json").stat().st_mode) == 0o600
    assert {"http", "token", "nats", "natsSeed", "redis", "pids"} <= set(endpoint)
    assert all(stat.S_IMODE(p.stat().st_mode) & 0o077 == 0 for p in local.state.iterdir())

    second = local("up", "--detach", "--http", "127.0.0.1:0")
    assert second.returncode == 4 and str(endpoint["pids"]["up"][0]) in second.stderr.decode()
    assert local.endpoint == endpoint, "a refused one touches nothing"

    local.ok("apply", "-f", "-", data=APPLICATION)
    local.ok("wait", "kept", "--for", "phase=Running", "--timeout", "90s")
    decision = json.loads(local.ok("why", "kept", "-o", "json"))["decision"]

    pids = local.pids()
    start = time.monotonic()
    local.ok("down")
    assert time.monotonic() - start < 60, "less than ten seconds on a quiet machine"
    assert not any(alive(pid) for pid in pids) and not (local.state / "endpoint.json").exists()
    assert local("get", "groups").returncode == 6
    assert local("down").returncode == 0

    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    assert local.endpoint["token"] == endpoint["token"]
    assert "restored the simulated fleet: 6 clusters" in (local.state / "logs" / "up.log").read_text()
    found = json.loads(local.ok("why", "kept", "-o", "json"))
    assert found["decision"] == decision, "what was acknowledged stands"
    local.ok("wait", "kept", "--for", "phase=Running", "--timeout", "90s")


@pytest.mark.timeout(900)
def test_a_killed_process_restarts_and_check_reports_it(local: Local) -> None:
    local.ok("up", "--example", "--detach", "--http", "127.0.0.1:0")
    huge = APPLICATION.replace(b'"kept"', b'"huge"').replace(
        b'"image": "i"', b'"image": "i", "resources": {"requests": {"cpu": "900"}}'
    )
    local.ok("apply", "-f", "-", data=huge)
    local.ok("wait", "huge", "--for", "phase=Pending", "--timeout", "90s")
    for kind in [kind for kind in local.endpoint["pids"] if kind != "up"]:
        (old,) = local.endpoint["pids"][kind]
        os.kill(old, signal.SIGKILL)
        until(partial(restarted, local, kind, old), 40, f"{kind} is not restarted")
        until(partial(healthy_again, local, kind), 60, f"not healthy again after {kind} died")
    local.ok("wait", "app1", "--for", "phase=Running", "--timeout", "90s")
    local.ok("wait", "huge", "--for", "phase=Pending", "--timeout", "90s")

    def has_numbers() -> bool:
        """Returns whether `why` has numbers; they come again after a controller was restarted."""
        return "ResourceShort" in {r["code"] for r in json.loads(local.ok("why", "huge", "-o", "json"))["reasons"]}

    until(has_numbers, 30, "why has no reasons with numbers")
    local.ok("apply", "-f", "-", data=APPLICATION)
    local.ok("wait", "kept", "--for", "phase=Running", "--timeout", "90s")


def test_processes_are_told_apart_by_their_titles(local: Local) -> None:
    local.ok("up", "--detach", "--http", "127.0.0.1:0", "--workers", "merger=2")
    pids = local.endpoint["pids"]
    titles = {psutil.Process(pid).cmdline()[0] for kind in pids if kind not in ("nats", "redis") for pid in pids[kind]}
    expected = {f"moorage: {kind}" for kind in pids if kind not in ("nats", "redis")} | {"moorage: merger-1"}
    assert titles == expected


def test_servers_listen_on_loopback_only(local: Local) -> None:
    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    sockets = [socket for pid in local.pids() for socket in psutil.Process(pid).net_connections("inet")]
    listening = [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert len(listening) > 3
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_check_reports_a_hanging_worker_and_down_stops_it(local: Local) -> None:
    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    (pid,) = local.endpoint["pids"]["hpa"]
    os.kill(pid, signal.SIGSTOP)
    done = local("check", "-o", "json")
    assert done.returncode == 1
    items = [i for i in json.loads(done.stdout)["items"] if i["name"] == "hpa" and i["state"] == "down"]
    assert {i["kind"] for i in items} == {"worker", "controller"} and all(i["do"] for i in items)
    start = time.monotonic()
    local.ok("down")
    assert time.monotonic() - start < 60 and not alive(pid)


def test_no_process_outlives_a_killed_supervisor(local: Local) -> None:
    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    pids = local.pids()
    assert len(pids) >= 12
    os.kill(local.endpoint["pids"]["up"][0], signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), 40, "orphans")
    checked = local("check")
    assert checked.returncode == 1 and b"restarting" not in checked.stdout, "nobody is there to start them again"
    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    until(lambda: local("check").returncode == 0, 40, "the leases of those that were killed run out")


def test_several_replicas_of_a_worker_run(local: Local) -> None:
    local.ok("up", "--detach", "--http", "127.0.0.1:0", "--workers", "merger=2", "--workers", "gateway=2")
    assert len(local.endpoint["pids"]["merger"]) == 2 and len(local.endpoint["pids"]["gateway"]) == 2
    until(lambda: local("check").returncode == 0, 40, "all of it works")


def test_a_signal_stops_the_foreground_mesh() -> None:
    mesh = Mesh()
    try:
        mesh.start()
        pids = [pid for pids in mesh.endpoint["pids"].values() for pid in pids]
        assert mesh.process is not None
        start = time.monotonic()
        mesh.process.send_signal(signal.SIGINT)
        assert mesh.process.wait(100) == 0
        assert time.monotonic() - start < 60 and not any(alive(pid) for pid in pids)
    finally:
        mesh.remove()


def test_a_failed_start_names_the_cause(local: Local, tmp_path: Path) -> None:
    done = local("up", "--detach", "--fleet", str(tmp_path / "nope.yaml"))
    assert done.returncode == 2 and b"nope.yaml" in done.stderr
    done = local("up", "--detach", "--http", "nonsense")
    assert done.returncode == 2 and b"HOST:PORT" in done.stderr
    done = local("up", "--detach", "--http", "203.0.113.1:80")
    assert done.returncode == 1 and b"cannot listen" in done.stderr and b"--http" in done.stderr
    local.environment["MOORAGE_PLACEMENT_HTTP"] = "nonsense"
    done = local("up", "--detach", "--http", "127.0.0.1:0")
    assert done.returncode == 2 and b"MOORAGE_PLACEMENT_HTTP 'nonsense' is not HOST:PORT" in done.stderr
    local.environment["MOORAGE_PLACEMENT_HTTP"] = "203.0.113.1:80"
    done = local("up", "--detach", "--http", "127.0.0.1:0")
    assert done.returncode == 1 and b"MOORAGE_PLACEMENT_HTTP" in done.stderr and b"--http" not in done.stderr
    local.environment.clear()
    broken = tmp_path / "broken.yaml"
    broken.write_text("clusters: [{name: x, nodes: [{name: n, count: 2}]}]")
    done = local("up", "--detach", "--http", "127.0.0.1:0", "--fleet", str(broken))
    assert done.returncode == 1 and b"nodes[0].allocatable: is required" in done.stderr
    assert not (local.state / "endpoint.json").exists()


def test_an_idle_mesh_uses_little_cpu(local: Local) -> None:
    local.ok("up", "--example", "--detach", "--http", "127.0.0.1:0")

    def memory(pid: int) -> int:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
        raise AssertionError(f"no Pss of {pid}")

    assert sum(memory(pid) for pid in local.pids()) < 600 * 1024


def test_what_it_says_last_can_be_typed_in_a_fresh_shell(local: Local, tmp_path: Path) -> None:
    program, named = Path(sys.executable).with_name("moorage"), tmp_path / "a state"
    directory, environment = program.parents[2], {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    start = [str(program), "up", "--example", "--detach", "--http", "127.0.0.1:0", "--state", str(named)]
    said = subprocess.run(start, cwd=directory, capture_output=True, text=True, timeout=200, check=True).stdout
    try:
        *_, title, export, first, second, third, ready = said.splitlines()
        assert title == "next, in another terminal:" and ready.startswith("ready http://")
        assert [line.split()[0] for line in (first, second, third)] == [f"{program.relative_to(directory)}"] * 3
        for line in (first, second):
            typed = ["/bin/sh", "-c", f"{export}\n{line}"]
            shown = subprocess.run(typed, cwd=directory, env=environment, capture_output=True, text=True, check=False)
            assert shown.returncode == 0 and "lab/edge-3" in shown.stdout, f"{line}: {shown}"
        assert "lab/edge-3: gpu-node" in said, "a node, not a resource"
    finally:
        Local(named)("down")


def test_the_command_is_named_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / ".venv/bin/moorage"
    assert typed_command(str(program), tmp_path) == ".venv/bin/moorage"
    assert typed_command(str(program), tmp_path / "elsewhere") == str(program)
    assert typed_command("/x/moorage/cli/__main__.py", tmp_path) == f"{sys.executable} -m moorage.cli"
    # Outside of an environment that a shell must activate, the path has it.
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert typed_command(str(program), tmp_path) == ".venv/bin/moorage"
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert typed_command(str(program), tmp_path) == "moorage"


def test_a_cluster_that_is_silent_since_before_a_restart_has_no_age(local: Local, tmp_path: Path) -> None:
    """Its last report was kept in Redis only, so nobody knows when it was."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("clusters: [{name: lost, nodes: [{name: n, allocatable: {cpu: '4', memory: 8Gi}}]}]")
    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    environment = {**os.environ, "MOORAGE_STATE": str(local.state)}
    command = [sys.executable, "-m", "moorage.cli", "fleet", "sim", str(fleet)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as simulator:
        until(lambda: "lost" in local.ok("get", "clusters"), 40, "the cluster did not join")
        local.ok("apply", "-f", "-", data=APPLICATION)
        local.ok("wait", "kept", "--for", "phase=Running", "--timeout", "90s")
        simulator.kill()
    local.ok("down")
    local.ok("up", "--detach", "--http", "127.0.0.1:0")
    until(lambda: "ClusterStale" in local.ok("why", "kept"), 30, "the cluster is not stale")
    assert "no report since the mesh started" in local.ok("why", "kept")
